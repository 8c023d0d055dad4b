// decide() over every combination of its facts, against PROTOCOL section 4 written down a second time; and the table in
// the docs, which this test prints: ONCE_WRITE_DOCS=1 writes docs/decision-table.md anew.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <once/decide.hpp>
#include <once/testing/records.hpp>

#include "../printed_page.hpp"

namespace once {
namespace decide_test {

constexpr Time now = testing::manual_start;

// The facts, as words: for the table, and to make records.
enum class There { nothing, in_progress, released, completed, failed, unknown };
enum class Whose { ours, somebodys };
enum class Payload { same, another, seen_unchecked, ours_unchecked, both_unchecked };
enum class Expiry { past, at_this_moment, next_moment, never };
enum class Lease { live, ends_now, in_skew, skew_ends_now, lapsed };

struct Facts {
  There there = There::nothing;
  Whose whose = Whose::somebodys;
  Payload payload = Payload::same;
  Expiry expiry = Expiry::never;
  Lease lease = Lease::live;
  std::optional<Millis> skew;
  OnLapse on_lapse = OnLapse::takeover;
  OnStoredFailure on_stored_failure = OnStoredFailure::replay;
  OnLapse recorded = OnLapse::takeover;  // What the record says of a lapse.
};

constexpr There all_there[] = {There::nothing,   There::in_progress, There::released,
                               There::completed, There::failed,      There::unknown};
constexpr Whose all_whose[] = {Whose::ours, Whose::somebodys};
constexpr Payload all_payloads[] = {Payload::same, Payload::another, Payload::seen_unchecked, Payload::ours_unchecked,
                                    Payload::both_unchecked};
constexpr Expiry all_expiries[] = {Expiry::past, Expiry::at_this_moment, Expiry::next_moment, Expiry::never};
constexpr Lease all_leases[] = {Lease::live, Lease::ends_now, Lease::in_skew, Lease::skew_ends_now, Lease::lapsed};
constexpr std::optional<Millis> all_skews[] = {std::nullopt, Millis{0}, Millis{2000}};
constexpr OnLapse all_on_lapse[] = {OnLapse::takeover, OnLapse::hold};
constexpr OnStoredFailure all_on_failure[] = {OnStoredFailure::replay, OnStoredFailure::execute};

void for_every_fact(const std::function<void(const Facts&)>& visit) {
  for (const There there : all_there)
    for (const Whose whose : all_whose)
      for (const Payload payload : all_payloads)
        for (const Expiry expiry : all_expiries)
          for (const Lease lease : all_leases)
            for (const auto& skew : all_skews)
              for (const OnLapse on_lapse : all_on_lapse)
                for (const OnStoredFailure on_failure : all_on_failure)
                  for (const OnLapse recorded : all_on_lapse)
                    visit({there, whose, payload, expiry, lease, skew, on_lapse, on_failure, recorded});
}

Millis skew_of(const Facts& facts) { return facts.skew.value_or(Millis{0}); }

Time lease_until(const Facts& facts) {
  switch (facts.lease) {
    case Lease::live:
      return now + Millis{30'000};
    case Lease::ends_now:
      return now;
    case Lease::in_skew:  // Ended, but another machine may see it live for one more millisecond.
      return now - skew_of(facts) + Millis{1};
    case Lease::skew_ends_now:
      return now - skew_of(facts);
    case Lease::lapsed:
      return now - skew_of(facts) - Millis{1};
  }
  return {};
}

Attempt attempt_of(const Facts& facts) {
  Attempt attempt;
  attempt.key = "scope#key";
  attempt.owner = testing::owner_of(1);
  const bool unchecked = facts.payload == Payload::ours_unchecked || facts.payload == Payload::both_unchecked;
  if (!unchecked) attempt.fingerprint = Fingerprint::of("payload");
  return attempt;
}

std::optional<Record> record_of(const Facts& facts) {
  if (facts.there == There::nothing) return std::nullopt;
  Record record = testing::plain_record("scope#key");
  record.owner = testing::owner_of(facts.whose == Whose::ours ? 1 : 2);
  switch (facts.payload) {
    case Payload::same:
    case Payload::ours_unchecked:
      record.fingerprint = Fingerprint::of("payload");
      break;
    case Payload::another:
      record.fingerprint = Fingerprint::of("another payload");
      break;
    case Payload::seen_unchecked:
    case Payload::both_unchecked:
      break;
  }
  switch (facts.expiry) {
    case Expiry::past:
      record.expires_at = now - Millis{1};
      break;
    case Expiry::at_this_moment:
      record.expires_at = now;
      break;
    case Expiry::next_moment:
      record.expires_at = now + Millis{1};
      break;
    case Expiry::never:
      record.expires_at = never;
      break;
  }
  record.lease_until = lease_until(facts);
  record.on_lapse = facts.recorded;
  switch (facts.there) {
    case There::released:
      record.lease_until = Time{};
      break;
    case There::completed:
      record.state = State::completed;
      break;
    case There::failed:
      record.state = State::failed;
      break;
    case There::unknown:
      record.state = State::unknown;
      break;
    case There::nothing:
    case There::in_progress:
      break;
  }
  return record;
}

EffectivePolicy policy_of(const Facts& facts) {
  EffectivePolicy policy;
  policy.skew = skew_of(facts);
  policy.on_lapse = facts.on_lapse;
  policy.on_stored_failure = facts.on_stored_failure;
  return policy;
}

// PROTOCOL section 4, one rule a line, the first that applies. Refined where the section is silent: our own owner
// resumes a claim only (a record that was finished under our owner is replayed like any other); a claim that was given
// up is taken over whatever the policy for lapsed leases; a stored failure may be tried again by policy.
struct Rule {
  const char* seen;
  std::function<bool(const Facts&)> applies;
  Verdict verdict;
  const char* then;
};

const std::vector<Rule>& rules() {
  static const auto is = [](There there) { return [there](const Facts& f) { return f.there == there; }; };
  static const std::vector<Rule> all = {
      {"nothing", is(There::nothing), Verdict::execute, "insert a fresh claim"},
      {"a record with `expires_at <= now`",
       [](const Facts& f) { return f.expiry == Expiry::past || f.expiry == Expiry::at_this_moment; }, Verdict::execute,
       "replace it by a fresh claim, with a higher token"},
      {"a claim of our own owner",
       [](const Facts& f) {
         return f.whose == Whose::ours && (f.there == There::in_progress || f.there == There::released);
       },
       Verdict::resume, "go on: the write was ours, its answer was lost"},
      {"another fingerprint, both non-empty", [](const Facts& f) { return f.payload == Payload::another; },
       Verdict::mismatch, "report it, whatever the state"},
      {"completed", is(There::completed), Verdict::replay, "replay the result"},
      {"failed, policy `replay`",
       [](const Facts& f) { return f.there == There::failed && f.on_stored_failure == OnStoredFailure::replay; },
       Verdict::replay_failure, "replay the failure"},
      {"failed, policy `execute`", is(There::failed), Verdict::retry, "claim it again, steps kept"},
      {"unknown", is(There::unknown), Verdict::unknown, "leave it to an operator or a callback"},
      {"in_progress, released", is(There::released), Verdict::take_over, "claim it, steps kept"},
      {"in_progress, `now < lease_until + skew`", [](const Facts& f) { return now < lease_until(f) + skew_of(f); },
       Verdict::conflict, "say when to try again, or wait"},
      {"in_progress, lapsed, neither the record nor the policy says `hold`",
       [](const Facts& f) { return f.on_lapse == OnLapse::takeover && f.recorded == OnLapse::takeover; },
       Verdict::take_over, "claim it with a higher token, steps kept"},
      {"in_progress, lapsed, the record or the policy says `hold`", [](const Facts&) { return true; },
       Verdict::mark_unknown, "mark it unknown: it is not run"},
  };
  return all;
}

const Rule& rule_for(const Facts& facts) {
  for (const Rule& rule : rules()) {
    if (rule.applies(facts)) return rule;
  }
  return rules().back();
}

std::string text_of(const Facts& f) {
  std::ostringstream out;
  out << "there " << static_cast<int>(f.there) << " whose " << static_cast<int>(f.whose) << " payload "
      << static_cast<int>(f.payload) << " expiry " << static_cast<int>(f.expiry) << " lease "
      << static_cast<int>(f.lease) << " skew " << (f.skew ? std::to_string(f.skew->count()) : "none") << " on_lapse "
      << static_cast<int>(f.on_lapse) << " recorded " << static_cast<int>(f.recorded) << " on_stored_failure "
      << static_cast<int>(f.on_stored_failure);
  return out.str();
}

Decision decide_on(const Facts& facts, const EffectivePolicy& policy) {
  const std::optional<Record> seen = record_of(facts);
  return decide(seen ? &*seen : nullptr, attempt_of(facts), policy, now);
}

TEST(Decide, agrees_with_the_protocol_on_every_combination) {
  std::size_t combinations = 0;
  std::map<const Rule*, std::size_t> used;
  for_every_fact([&](const Facts& facts) {
    ++combinations;
    const Rule& rule = rule_for(facts);
    ++used[&rule];
    const Decision decision = decide_on(facts, policy_of(facts));
    ASSERT_EQ(to_string(decision.verdict), to_string(rule.verdict)) << rule.seen << ": " << text_of(facts);
    if (rule.verdict == Verdict::conflict) {
      ASSERT_EQ(decision.retry_after, lease_until(facts) + skew_of(facts) - now) << text_of(facts);
      ASSERT_GT(decision.retry_after, Millis{0}) << text_of(facts);
    } else {
      ASSERT_EQ(decision.retry_after, Millis{0}) << text_of(facts);
    }
  });
  EXPECT_EQ(combinations, 6U * 2 * 5 * 4 * 5 * 3 * 2 * 2 * 2);
  EXPECT_EQ(used.size(), rules().size()) << "a rule of the protocol was never reached";
}

TEST(Decide, depends_on_nothing_else_in_the_policy) {
  EffectivePolicy other;
  other.lease = Millis{11};
  other.retention = Millis{1};
  other.wait = Millis{0};
  other.on_conflict = OnConflict::wait;
  other.on_throw = OnThrow::hold;
  other.on_unrecorded = OnUnrecorded::fail;
  other.on_store_down = OnStoreDown::run_unprotected;
  other.on_missing_key = OnMissingKey::refuse;
  other.max_inline_bytes = 0;
  other.heartbeat = false;
  for_every_fact([&](const Facts& facts) {
    EffectivePolicy policy = other;
    policy.skew = skew_of(facts);
    policy.on_lapse = facts.on_lapse;
    policy.on_stored_failure = facts.on_stored_failure;
    ASSERT_EQ(decide_on(facts, policy), decide_on(facts, policy_of(facts))) << text_of(facts);
  });
}

TEST(Decide, depends_on_nothing_else_in_the_record) {
  for_every_fact([&](const Facts& facts) {
    std::optional<Record> seen = record_of(facts);
    if (!seen) return;
    seen->key = "another#key";
    seen->token = 1;
    seen->attempt = 99;
    seen->revision = 99;
    seen->created_at = never;
    seen->finished_at = never;
    seen->expected_until = Time{Millis{1}};
    seen->holder = seen->note = seen->label = seen->input = "x";
    seen->input_bytes = 1;
    seen->history = {.entries = {{.what = "lapsed"}}, .dropped = 1};
    seen->steps = {{"a", "b"}};
    seen->result = Result::inlined("bytes", "text/plain");
    seen->failure = {.code = "c", .message = "m"};
    ASSERT_EQ(decide(&*seen, attempt_of(facts), policy_of(facts), now), decide_on(facts, policy_of(facts)))
        << text_of(facts);
  });
}

TEST(Decide, a_lease_without_end_never_lapses) {
  Record record = testing::plain_record("scope#key");
  record.lease_until = never;
  record.expires_at = never;
  Attempt attempt;
  attempt.owner = testing::owner_of(2);
  EffectivePolicy policy;
  policy.skew = std::chrono::hours(1);
  const Decision decision = decide(&record, attempt, policy, now);
  EXPECT_EQ(decision.verdict, Verdict::conflict);
  EXPECT_EQ(decision.retry_after, never - now);
}

TEST(Decide, an_attempt_without_an_owner_owns_nothing) {
  Record record = testing::plain_record("scope#key");
  record.owner = {};
  record.lease_until = never;
  record.expires_at = never;
  EXPECT_EQ(decide(&record, Attempt{}, EffectivePolicy{}, now).verdict, Verdict::conflict);
}

TEST(Decide, never_is_no_moment) {
  Record record = testing::plain_record("scope#key");
  record.state = State::completed;
  record.expires_at = never;
  EXPECT_EQ(decide(&record, Attempt{}, EffectivePolicy{}, never).verdict, Verdict::replay);
}

TEST(Decide, every_verdict_has_a_name) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Verdict::mark_unknown); ++i) names.insert(to_string(static_cast<Verdict>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Verdict::mark_unknown) + 1);
  EXPECT_FALSE(names.contains("?"));
}

// The table, from what decide() answers: for each fact that matters, the others summed up.
std::string table() {
  std::ostringstream out;
  out << "# The decision table\n\n"
         "Printed by `tests/core/decide_test.cpp` from what `once::decide()` answers over all of its facts; do not "
         "edit.\n"
         "To write it anew: `ONCE_WRITE_DOCS=1 <build>/tests/core/core_test`.\n\n"
         "The first row that applies counts. `now` is the store's time if the store reports it.\n\n"
         "| # | seen | decision | then | combinations |\n|---|---|---|---|---|\n";
  std::map<const Rule*, std::size_t> count;
  std::map<const Rule*, std::set<std::string_view>> verdicts;
  std::size_t all = 0;
  for_every_fact([&](const Facts& facts) {
    const Rule* const rule = &rule_for(facts);
    ++count[rule];
    ++all;
    verdicts[rule].insert(to_string(decide_on(facts, policy_of(facts)).verdict));
  });
  int number = 0;
  for (const Rule& rule : rules()) {
    out << "| " << ++number << " | " << rule.seen << " | ";
    for (const std::string_view verdict : verdicts[&rule]) out << "**" << verdict << "** ";
    out << "| " << rule.then << " | " << count[&rule] << " |\n";
  }
  out << "\n"
      << all
      << " combinations: what is there (6), whose it is (2), the fingerprints (5), the expiry (4) and the lease (5). "
         "Also the\nskew (3), and the policy for stored failures (2). Policy (2) and record (2) also say what "
         "happens to a lapsed lease.\n\n"
         "## By state\n\n"
         "The decision for an attempt that finds another attempt's record, not expired, with the same payload. `hold`: "
         "the\n"
         "record or the policy says so.\n\n"
         "| state | lease | `takeover`, `replay` | `hold`, `replay` | `takeover`, `execute` | `hold`, `execute` |\n"
         "|---|---|---|---|---|---|\n";
  const std::pair<There, const char*> states[] = {{There::in_progress, "in_progress"},
                                                  {There::released, "in_progress, released"},
                                                  {There::completed, "completed"},
                                                  {There::failed, "failed"},
                                                  {There::unknown, "unknown"}};
  const std::pair<Lease, const char*> leases[] = {
      {Lease::live, "live"}, {Lease::in_skew, "over, within the skew"}, {Lease::lapsed, "lapsed"}};
  for (const auto& [there, state] : states) {
    for (const auto& [lease, name] : leases) {
      if (there != There::in_progress && lease != Lease::live) continue;
      out << "| " << state << " | " << (there == There::in_progress ? name : "-") << " |";
      for (const OnStoredFailure on_failure : all_on_failure) {
        for (const OnLapse on_lapse : all_on_lapse) {
          const Facts facts{.there = there,
                            .lease = lease,
                            .skew = Millis{2000},
                            .on_lapse = on_lapse,
                            .on_stored_failure = on_failure};
          out << " " << to_string(decide_on(facts, policy_of(facts)).verdict) << " |";
        }
      }
      out << "\n";
    }
  }
  return out.str();
}

TEST(Decide, the_table_in_the_docs_is_this_one) { expect_page(ONCE_DECISION_TABLE, table()); }

}  // namespace decide_test
}  // namespace once
