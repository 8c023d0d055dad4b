// What a claim, a finish, a renewal and the rest write, as properties over many records and policies.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/testing/records.hpp>

namespace once {
namespace transitions_test {

using testing::SeededRandom;

constexpr Time now = testing::manual_start;

constexpr std::uint32_t bits = 0xFFF42042;  // Only the low 20 count.

struct Situation {
  Record record;
  EffectivePolicy policy;
  Attempt attempt;
  Time at{};
  [[nodiscard]] Stamp stamp() const { return {at, bits}; }
};

// Records at their edges, policies over their whole range.
void for_many(const std::function<void(const Situation&, SeededRandom&)>& visit) {
  SeededRandom random(20'260'101);
  static const std::vector<Millis> leases = {Millis{10}, Millis{30'000}, std::chrono::hours(24)};
  static const std::vector<Millis> retentions = {Millis{1}, Millis{60'000}, std::chrono::hours(24 * 3653),
                                                 keep_forever};
  static const std::vector<Millis> skews = {Millis{0}, Millis{2000}, std::chrono::hours(1)};
  static const std::vector<Time> moments = {Time{Millis{1}}, now, now + std::chrono::hours(24 * 365 * 50)};
  for (int i = 0; i < 3000; ++i) {
    Situation situation;
    situation.record = testing::edge_record("scope#key", random);
    situation.record.token = std::min<std::uint64_t>(situation.record.token, INT64_MAX - 1);
    situation.record.revision = std::min(situation.record.revision, testing::revision_of((1U << 31U)));
    situation.record.attempt = std::min(situation.record.attempt, UINT32_MAX - 1);
    situation.policy.lease = random.pick(leases);
    situation.policy.retention = random.pick(retentions);
    if (random.chance(500)) situation.policy.failure_retention = random.pick(retentions);
    situation.policy.skew = random.pick(skews);
    situation.policy.on_lapse = random.chance(500) ? OnLapse::hold : OnLapse::takeover;
    situation.attempt = {.key = "scope#key", .owner = testing::owner_of(0x42), .holder = "me", .label = "mine"};
    if (random.chance(500)) situation.attempt.fingerprint = Fingerprint::of("payload");
    situation.at = random.pick(moments);
    visit(situation, random);
    if (::testing::Test::HasFailure()) {
      FAIL() << "situation " << i << ": " << testing::describe(situation.record);
    }
  }
}

Time kept_for(const Situation& s, Millis retention) { return retention == keep_forever ? never : s.at + retention; }

// What holds for every record that is in progress.
void expect_lease_is_kept(const Record& record, const EffectivePolicy& policy) {
  EXPECT_GE(record.expires_at, record.lease_until) << "a short retention must not break a live claim";
  if (record.lease_until <= never - policy.skew) {
    EXPECT_GE(record.expires_at, record.lease_until + policy.skew);
  }
  if (record.on_lapse == OnLapse::hold) {
    EXPECT_EQ(record.expires_at, never) << "under hold only a decision ends it";
  }
}

void expect_untouched(const Record& before, const Record& after) {
  EXPECT_EQ(before.key, after.key);
  EXPECT_EQ(before.owner, after.owner);
  EXPECT_EQ(before.token, after.token);
  EXPECT_EQ(before.attempt, after.attempt);
  EXPECT_EQ(before.created_at, after.created_at);
  EXPECT_EQ(before.fingerprint, after.fingerprint);
  EXPECT_EQ(before.holder, after.holder);
  EXPECT_EQ(before.expected_until, after.expected_until);
  EXPECT_EQ(before.on_lapse, after.on_lapse);
  EXPECT_EQ(before.label, after.label);
  EXPECT_EQ(before.input, after.input);
  EXPECT_EQ(before.input_bytes, after.input_bytes);
  EXPECT_EQ(after.revision, next_revision(before.revision, bits));
}

TEST(Transitions, a_revision_is_a_counter_above_20_random_bits) {
  EXPECT_EQ(next_revision(0, 0), 1U << 20U);
  EXPECT_EQ(next_revision(0, 0xFFFFFFFF), (1U << 21U) - 1);
  EXPECT_EQ(next_revision((1U << 21U) - 1, 0), 1U << 21U) << "it grows, whatever the random bits";
  EXPECT_NE(next_revision(7U << 20U, 1), next_revision(7U << 20U, 2));
  EXPECT_EQ(revision_count(next_revision(next_revision(0, 5), 3)), 2U);
  EXPECT_LT(next_revision(testing::revision_of((std::uint64_t{1} << 33U) - 2), 0xFFFFF), std::uint64_t{1} << 53U);
}

TEST(Transitions, a_fresh_claim) {
  for_many([](const Situation& s, SeededRandom&) {
    const Record claim = claimed(s.attempt, s.policy, s.stamp(), nullptr, Verdict::execute);
    Record expected;
    expected.key = "scope#key";
    expected.owner = s.attempt.owner;
    expected.token = static_cast<std::uint64_t>(s.at.time_since_epoch().count());
    expected.attempt = 1;
    expected.revision = next_revision(0, bits);
    expected.on_lapse = s.policy.on_lapse;
    expected.lease_until = s.at + s.policy.lease;
    expected.expires_at = claim.expires_at;
    expected.created_at = s.at;
    expected.fingerprint = s.attempt.fingerprint;
    expected.holder = "me";
    expected.label = "mine";
    EXPECT_EQ(testing::differences(expected, claim), "");
    EXPECT_GE(claim.expires_at, kept_for(s, s.policy.retention));
    expect_lease_is_kept(claim, s.policy);
  });
}

TEST(Transitions, a_token_is_never_0) {
  EXPECT_EQ(claimed(Attempt{}, EffectivePolicy{}, Stamp(Time{}, 0), nullptr, Verdict::execute).token, 1U);
  EXPECT_EQ(claimed(Attempt{}, EffectivePolicy{}, Stamp(Time{Millis{-5}}, 0), nullptr, Verdict::execute).token, 1U);
}

TEST(Transitions, a_claim_over_an_expired_record_begins_anew) {
  for_many([](const Situation& s, SeededRandom&) {
    const Record claim = claimed(s.attempt, s.policy, s.stamp(), &s.record, Verdict::execute);
    EXPECT_EQ(claim.attempt, 1U);
    EXPECT_EQ(claim.created_at, s.at);
    EXPECT_EQ(claim.revision, next_revision(s.record.revision, bits));
    EXPECT_GT(claim.token, s.record.token) << "a token grows across expiry";
    EXPECT_GE(claim.token, static_cast<std::uint64_t>(s.at.time_since_epoch().count()));
    EXPECT_TRUE(claim.steps.empty());
    EXPECT_EQ(claim.fingerprint, s.attempt.fingerprint);
    EXPECT_EQ(claim.state, State::in_progress);
    EXPECT_EQ(claim.result, Result{});
    EXPECT_EQ(claim.failure, Failure{});
    EXPECT_EQ(claim.finished_at, Time{});
    EXPECT_TRUE(claim.note.empty());
    EXPECT_EQ(claim.on_lapse, s.policy.on_lapse) << "a new operation begins with its own policy";
    EXPECT_EQ(claim.history, History{});
    expect_lease_is_kept(claim, s.policy);
  });
}

TEST(Transitions, a_takeover_or_retry_goes_on_where_the_other_stopped) {
  for_many([](const Situation& s, SeededRandom& random) {
    const Verdict verdict = random.chance(500) ? Verdict::take_over : Verdict::retry;
    const Record claim = claimed(s.attempt, s.policy, s.stamp(), &s.record, verdict);
    EXPECT_EQ(claim.key, s.record.key);
    EXPECT_EQ(claim.owner, s.attempt.owner);
    EXPECT_EQ(claim.attempt, s.record.attempt + 1);
    EXPECT_EQ(claim.revision, next_revision(s.record.revision, bits));
    EXPECT_GT(claim.token, s.record.token);
    EXPECT_EQ(claim.created_at, s.record.created_at);
    EXPECT_EQ(claim.steps, s.record.steps) << "steps are kept";
    EXPECT_EQ(claim.on_lapse == OnLapse::hold,
              s.policy.on_lapse == OnLapse::hold || s.record.on_lapse == OnLapse::hold);
    EXPECT_EQ(claim.label, s.record.label.empty() ? "mine" : s.record.label) << "the operation's, once it has one";
    History history = s.record.history;
    append_attempt(history, s.record, s.at);
    history.trace = {};  // This attempt is not traced.
    EXPECT_EQ(claim.history, history);
    EXPECT_EQ(claim.input, "") << "what this attempt was called with, which it does not say";
    EXPECT_EQ(claim.input_bytes, 0U);
    EXPECT_EQ(claim.lease_until, s.at + s.policy.lease);
    EXPECT_EQ(claim.state, State::in_progress);
    EXPECT_EQ(claim.result, Result{});
    EXPECT_EQ(claim.failure, Failure{});
    EXPECT_EQ(claim.finished_at, Time{});
    EXPECT_EQ(claim.fingerprint, s.attempt.fingerprint.empty() ? s.record.fingerprint : s.attempt.fingerprint);
    expect_lease_is_kept(claim, s.policy);
  });
}

TEST(Transitions, a_policy_without_labels_removes_that_of_an_earlier_attempt) {
  Attempt attempt{.key = "scope#key", .owner = testing::owner_of(0x42), .holder = "me"};
  EffectivePolicy policy;
  policy.label = Label::none;
  Record seen;
  seen.label = "alice@example.com";
  EXPECT_EQ(claimed(attempt, policy, Stamp(Time{}, 0), &seen, Verdict::take_over).label, "");
  EXPECT_EQ(claimed(attempt, EffectivePolicy{}, Stamp(Time{}, 0), &seen, Verdict::take_over).label, seen.label);
}

TEST(Transitions, a_claim_has_the_input_of_its_own_attempt) {
  Attempt attempt{.key = "scope#key", .owner = testing::owner_of(0x42), .holder = "me"};
  attempt.input = std::make_shared<const std::string>("this one's");
  attempt.input_bytes = 70'000;
  Record seen;
  seen.input = "an earlier one's, with a secret";
  seen.input_bytes = 31;
  for (const Record* const before : {static_cast<const Record*>(nullptr), static_cast<const Record*>(&seen)}) {
    const Record claim = claimed(attempt, EffectivePolicy{}, Stamp(Time{}, 0), before,
                                 before == nullptr ? Verdict::execute : Verdict::take_over);
    EXPECT_EQ(claim.input, "this one's");
    EXPECT_EQ(claim.input_bytes, 70'000U);
  }
}

TEST(Transitions, when_it_should_be_done_counts_from_the_claim_and_no_heartbeat_moves_it) {
  const Attempt attempt{.key = "scope#key", .owner = testing::owner_of(0x42), .holder = "me"};
  EffectivePolicy policy;
  policy.expected = Millis{5'000};
  Record record = claimed(attempt, policy, Stamp(now, 0), nullptr, Verdict::execute);
  EXPECT_EQ(record.expected_until, now + Millis{5'000});
  renew(record, policy, Stamp(now + Millis{4'000}, 0));
  EXPECT_EQ(record.expected_until, now + Millis{5'000});
  EXPECT_FALSE(is_overdue(record, now + Millis{4'999}));
  EXPECT_TRUE(is_overdue(record, now + Millis{5'000})) << "however long the lease is";

  const Time late = now + Millis{60'000};
  EXPECT_EQ(claimed(attempt, policy, Stamp(late, 0), &record, Verdict::take_over).expected_until, late + Millis{5'000});
  EXPECT_EQ(claimed(attempt, EffectivePolicy{}, Stamp(late, 0), &record, Verdict::take_over).expected_until,
            record.expected_until)
      << "a caller that expects nothing does not take it back";
  EXPECT_EQ(claimed(attempt, EffectivePolicy{}, Stamp(now, 0), nullptr, Verdict::execute).expected_until, Time{});

  Record released = record;
  release(released, "not now", policy, Stamp(now, 0));
  EXPECT_TRUE(is_overdue(released, late)) << "it has not ended";
  Record done = record;
  complete(done, Result{}, policy, Stamp(late, 0));
  EXPECT_FALSE(is_overdue(done, late));
  record.expires_at = late;
  EXPECT_FALSE(is_overdue(record, late)) << "it counts as gone";
}

TEST(Transitions, completed) {
  for_many([](const Situation& s, SeededRandom&) {
    const Result result = Result::inlined(std::string("a\0b", 3), "text/plain");
    Record done = s.record;
    complete(done, Result(result), s.policy, s.stamp());
    expect_untouched(s.record, done);
    EXPECT_EQ(done.history, s.record.history);
    EXPECT_EQ(done.state, State::completed);
    EXPECT_EQ(done.result, result);
    EXPECT_EQ(done.failure, Failure{});
    EXPECT_EQ(done.finished_at, s.at);
    EXPECT_EQ(done.expires_at, kept_for(s, s.policy.retention));
    EXPECT_EQ(done.lease_until, Time{});
    EXPECT_EQ(done.steps, s.record.steps);
    EXPECT_EQ(done.note, s.record.note);
  });
}

TEST(Transitions, failed) {
  for_many([](const Situation& s, SeededRandom&) {
    Record done = s.record;
    fail(done, {.code = std::string(300, 'c'), .message = std::string(5000, 'm') + "\xFF"}, {}, s.policy, s.stamp());
    expect_untouched(s.record, done);
    EXPECT_EQ(done.history, s.record.history);
    EXPECT_EQ(done.state, State::failed);
    EXPECT_EQ(done.failure.code, std::string(Failure::max_code_bytes, 'c'));
    EXPECT_EQ(done.failure.message, std::string(Failure::max_message_bytes, 'm'));
    EXPECT_EQ(done.finished_at, s.at);
    EXPECT_EQ(done.expires_at, kept_for(s, s.policy.failure_retention.value_or(s.policy.retention)));
    EXPECT_EQ(done.lease_until, Time{});
    EXPECT_EQ(done.steps, s.record.steps);
  });
}

TEST(Transitions, marked_unknown_does_not_expire) {
  for_many([](const Situation& s, SeededRandom&) {
    Record unknown = s.record;
    mark_unknown(unknown, "lost \xFF", s.stamp());
    expect_untouched(s.record, unknown);
    EXPECT_EQ(unknown.history, s.record.history);
    EXPECT_EQ(unknown.state, State::unknown);
    EXPECT_EQ(unknown.expires_at, never);
    EXPECT_EQ(unknown.finished_at, s.at);
    EXPECT_EQ(unknown.failure.message, "lost \xEF\xBF\xBD");
    EXPECT_EQ(unknown.steps, s.record.steps);
    Attempt other = s.attempt;
    other.fingerprint = s.record.fingerprint;
    other.owner = testing::owner_of(0x43);
    EXPECT_EQ(decide(&unknown, other, s.policy, never - Millis{1}).verdict, Verdict::unknown);
  });
}

TEST(Transitions, released_may_be_taken_over_at_once_by_any_policy) {
  for_many([](const Situation& s, SeededRandom&) {
    Record free = s.record;
    release(free, "gave up", s.policy, s.stamp());
    expect_untouched(s.record, free);
    History history = s.record.history;
    append_attempt(history, free, s.at);
    EXPECT_EQ(free.history, history);
    EXPECT_TRUE(is_released(free));
    EXPECT_EQ(free.steps, s.record.steps) << "steps are kept";
    EXPECT_EQ(free.note, "gave up");
    EXPECT_EQ(free.result, Result{});
    EXPECT_EQ(free.failure, Failure{});
    EXPECT_EQ(free.finished_at, Time{});
    EXPECT_EQ(free.expires_at, kept_for(s, s.policy.retention));
    Attempt other = s.attempt;
    other.fingerprint = s.record.fingerprint;
    other.owner = testing::owner_of(0x43);
    EXPECT_EQ(decide(&free, other, s.policy, s.at).verdict, Verdict::take_over);
  });
}

TEST(Transitions, renewed_never_shortens) {
  for_many([](const Situation& s, SeededRandom&) {
    Record longer = s.record;
    renew(longer, s.policy, s.stamp());
    expect_untouched(s.record, longer);
    EXPECT_GE(longer.lease_until, s.record.lease_until);
    EXPECT_GE(longer.lease_until, s.at + s.policy.lease);
    EXPECT_TRUE(longer.lease_until == s.record.lease_until || longer.lease_until == s.at + s.policy.lease);
    EXPECT_GE(longer.expires_at, s.record.expires_at);
    expect_lease_is_kept(longer, s.policy);
    Record rest = longer;
    rest.revision = s.record.revision;
    rest.lease_until = s.record.lease_until;
    rest.expires_at = s.record.expires_at;
    EXPECT_EQ(testing::differences(s.record, rest), "") << "nothing else changes";
  });
}

TEST(Transitions, renewed_under_a_fixed_lease_is_a_write_and_nothing_more) {
  for_many([](const Situation& s, SeededRandom&) {
    EffectivePolicy fixed = s.policy;
    fixed.fixed_lease = true;
    Record next = s.record;
    renew(next, fixed, s.stamp());
    EXPECT_EQ(next.revision, next_revision(s.record.revision, bits));
    next.revision = s.record.revision;
    EXPECT_EQ(testing::differences(s.record, next), "");
  });
}

TEST(Transitions, retimed_counts_anew) {
  for_many([](const Situation& s, SeededRandom&) {
    Record anew = s.record;
    retime(anew, s.policy, s.stamp());
    EXPECT_EQ(anew.revision, next_revision(s.record.revision, bits));
    EXPECT_EQ(anew.lease_until, s.at + s.policy.lease);
    EXPECT_EQ(anew.owner, s.record.owner);
    // The token of an insert came from the clock that was wrong.
    const bool was_insert = revision_count(s.record.revision) == 1;
    EXPECT_EQ(anew.token, was_insert ? static_cast<std::uint64_t>(s.at.time_since_epoch().count()) : s.record.token);
    EXPECT_EQ(anew.created_at, s.record.attempt == 1 ? s.at : s.record.created_at);
    expect_lease_is_kept(anew, s.policy);
  });
}

TEST(Transitions, with_step_adds_one_and_renews) {
  for_many([](const Situation& s, SeededRandom&) {
    const Step step{.name = "charge", .result = std::string("\0\xFF", 2)};
    Record next = s.record;
    add_step(next, step, s.policy, s.stamp());
    Record expected = s.record;
    renew(expected, s.policy, s.stamp());
    expected.steps.push_back(step);
    EXPECT_EQ(testing::differences(expected, next), "");
  });
}

// A whole life: the revision grows with each write, the token only grows, over deletion and expiry too.
TEST(Transitions, revision_and_token_over_a_life) {
  SeededRandom random(1);
  EffectivePolicy policy;
  policy.retention = Millis{5000};
  for (int life = 0; life < 200; ++life) {
    Time at = now;
    Attempt attempt{.key = "scope#key", .owner = testing::owner_of(1)};
    const auto stamp = [&] { return Stamp(at, static_cast<std::uint32_t>(random.next())); };
    Record record = claimed(attempt, policy, stamp(), nullptr, Verdict::execute);
    std::uint64_t highest = record.token;
    for (int i = 0; i < 30; ++i) {
      at += Millis{static_cast<Millis::rep>(random.below(20'000))};
      if (random.chance(50)) at -= Millis{60'000};  // Clocks jump back.
      attempt.owner = testing::owner_of(static_cast<std::uint8_t>(random.below(200)));
      const Record before = record;
      switch (random.below(6)) {
        case 0:
          renew(record, policy, stamp());
          break;
        case 1:
          add_step(record, {.name = std::to_string(i), .result = ""}, policy, stamp());
          break;
        case 2:
          release(record, "x", policy, stamp());
          break;
        case 3:
          complete(record, {}, policy, stamp());
          break;
        case 4:
          record = claimed(attempt, policy, stamp(), &record, Verdict::execute);
          break;
        default:
          record = claimed(attempt, policy, stamp(), &record, Verdict::take_over);
          break;
      }
      ASSERT_EQ(revision_count(record.revision), revision_count(before.revision) + 1);
      ASSERT_GT(record.revision, before.revision);
      ASSERT_GE(record.token, before.token);
      if (!(record.owner == before.owner)) {
        ASSERT_GT(record.token, highest) << "a new claim has a higher token";
      }
      highest = std::max(highest, record.token);
    }
  }
}

TEST(Transitions, times_stop_at_never) {
  EffectivePolicy policy;
  policy.skew = std::chrono::hours(1);
  const Time late = never - Millis{1};
  Record record = testing::plain_record("scope#key");
  record.lease_until = never;
  Record next = record;
  renew(next, policy, Stamp(late, 0));
  EXPECT_EQ(next.lease_until, never);
  EXPECT_EQ(next.expires_at, never);
  next = record;
  complete(next, {}, policy, Stamp(late, 0));
  EXPECT_EQ(next.expires_at, never);
  next = record;
  release(next, "", policy, Stamp(late, 0));
  EXPECT_EQ(next.expires_at, never);
  EXPECT_EQ(claimed(Attempt{}, policy, Stamp(late, 0), nullptr, Verdict::execute).lease_until, never);
  EXPECT_EQ(in_progress_expiry(OnLapse::takeover, policy, never, now), never);
}

TEST(Transitions, derived_keys_differ_by_key_and_name) {
  EXPECT_EQ(derived_key("s#k", "stripe"), derived_key("s#k", "stripe"));
  EXPECT_EQ(derived_key("s#k", "stripe").size(), 64U);
  // The same bytes split elsewhere.
  EXPECT_NE(derived_key("s#k", "stripe"), derived_key("s#ks", "tripe"));
  EXPECT_NE(derived_key("s#k1", "1"), derived_key("s#k", "11"));
  EXPECT_NE(derived_key("s#k", ""), derived_key("s#", "k"));
  EXPECT_EQ(derived_key("s#k", "stripe").find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(derived_key("s#k", "stripe"), to_hex(sha256("3:s#kstripe"))) << "stable over versions";
}

void expect_misuse(const Policy& policy, const std::string& member) {
  try {
    check(policy);
    ADD_FAILURE() << "no error for " << member;
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_NE(std::string(error.what()).find(member), std::string::npos) << error.what();
  }
}

TEST(Policy, ranges_are_checked_by_name) {
  EXPECT_NO_THROW(check(Policy{}));
  using std::chrono::hours;
  for (const Millis lease : {Millis{10}, Millis{hours(24)}}) EXPECT_NO_THROW(check(Policy{.lease = lease}));
  for (const Millis lease : {Millis{-1}, Millis{0}, Millis{9}, Millis{hours(24)} + Millis{1}}) {
    expect_misuse(Policy{.lease = lease}, "lease");
  }
  for (const Millis retention : {Millis{0}, Millis{-1}, keep_forever - Millis{1}}) {
    expect_misuse(Policy{.retention = retention}, "policy retention");
    expect_misuse(Policy{.failure_retention = retention}, "policy failure_retention");
  }
  EXPECT_NO_THROW(check(Policy{.retention = keep_forever, .failure_retention = keep_forever}));
  for (const Millis wait : {Millis{-1}, Millis{hours(24)} + Millis{1}}) expect_misuse(Policy{.wait = wait}, "wait");
  for (const Millis skew : {Millis{-1}, Millis{hours(1)} + Millis{1}}) expect_misuse(Policy{.skew = skew}, "skew");
  EXPECT_NO_THROW(check(Policy{.wait = Millis{0}, .skew = hours(1)}));
}

}  // namespace transitions_test
}  // namespace once
