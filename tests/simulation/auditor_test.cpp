// Shows that the auditor finds faults: planted bugs in whole runs, and short bad histories.
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/stores/memory.hpp>

#include "simulation.hpp"

namespace once::simulation {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The first violation in at most so many worlds; empty if there is none.
std::string first_violation(Bug bug, std::uint64_t worlds, Which store) {
  for (std::uint64_t seed = 1; seed <= worlds; ++seed) {
    try {
      run({.seed = seed, .operations = 1'000, .bug = bug, .store = store});
    } catch (const Violation& violation) {
      return violation.what();
    }
  }
  return {};
}

class PlantedBug : public ::testing::TestWithParam<std::uint8_t> {};

TEST_P(PlantedBug, IsSeen) {
  const Bug bug = static_cast<Bug>(GetParam());
  EXPECT_NE(first_violation(bug, 100, store_of(bug)), "");
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBug,
                         ::testing::Range(static_cast<std::uint8_t>(1),
                                          static_cast<std::uint8_t>(static_cast<int>(last_bug) + 1)),
                         [](const auto& test) { return std::string(to_string(static_cast<Bug>(test.param))); });

TEST(Simulation, WithoutABugNothingIsSeen) {
  EXPECT_EQ(first_violation(Bug::none, 60, Which::simulated), "");
  EXPECT_EQ(first_violation(Bug::none, 10, Which::dynamodb), "");
  EXPECT_EQ(first_violation(Bug::none, 5, Which::sqlite), "");
}

TEST(Simulation, ASeedRepeatsItselfToTheByte) {
  for (const auto& [seed, store] :
       {std::pair(3U, Which::simulated), std::pair(86U, Which::simulated), std::pair(1855U, Which::simulated),
        std::pair(86U, Which::dynamodb), std::pair(3U, Which::sqlite)}) {
    std::ostringstream first;
    std::ostringstream second;
    const Report a = run({.seed = seed, .operations = 500, .store = store, .trace = &first});
    const Report b = run({.seed = seed, .operations = 500, .store = store, .trace = &second});
    EXPECT_EQ(first.str(), second.str());
    EXPECT_GT(first.str().size(), 10'000U);
    const Report untraced = run({.seed = seed, .operations = 500, .store = store});
    EXPECT_EQ(a.digest, b.digest);
    EXPECT_EQ(a.digest, untraced.digest) << "telling what happens must not change it";
  }
}

TEST(Simulation, ItsWorldsHaveAllTheTroubleThatIsMeant) {
  Report sum;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Report report = run({.seed = seed, .operations = 1'000});
    sum.crashes += report.crashes;
    sum.pauses += report.pauses;
    sum.jumps += report.jumps;
    sum.lost_answers += report.lost_answers;
    sum.late_writes += report.late_writes;
    sum.operator_acts += report.operator_acts;
    sum.totals.takeovers += report.totals.takeovers;
    sum.totals.superseded += report.totals.superseded;
    sum.totals.lost += report.totals.lost;
    sum.totals.unrecorded += report.totals.unrecorded;
    sum.totals.mismatches += report.totals.mismatches;
    sum.totals.slept += report.totals.slept;
    sum.totals.saved += report.totals.saved;
    sum.totals.unknown += report.totals.unknown;
    sum.totals.replayed += report.totals.replayed;
    sum.totals.conflicts += report.totals.conflicts;
  }
  EXPECT_GT(sum.crashes, 50U);
  EXPECT_GT(sum.pauses, 50U);
  EXPECT_GT(sum.jumps, 50U);
  EXPECT_GT(sum.lost_answers, 500U);
  EXPECT_GT(sum.late_writes, 100U);
  EXPECT_GT(sum.operator_acts, 50U);
  EXPECT_GT(sum.totals.takeovers, 50U);
  EXPECT_GT(sum.totals.superseded, 5U);
  EXPECT_GT(sum.totals.lost, 20U);
  EXPECT_GT(sum.totals.unrecorded, 20U);
  EXPECT_GT(sum.totals.mismatches, 500U);
  EXPECT_GT(sum.totals.unknown, 100U);
  EXPECT_GT(sum.totals.replayed, 1'000U);
  EXPECT_GT(sum.totals.conflicts, 500U);
  EXPECT_GT(sum.totals.slept, 100U);
  EXPECT_GT(sum.totals.saved, 50U) << "claims that were renewed after a sleep over their lease's end";
}

TEST(Simulation, ItsDiskHasAllTheTroubleThatIsMeant) {
  Report sum;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const Report report = run({.seed = seed, .operations = 500, .store = Which::sqlite});
    sum.crashes += report.crashes;
    sum.power_cuts += report.power_cuts;
    sum.lost_answers += report.lost_answers;
    sum.late_writes += report.late_writes;
    sum.totals.executed += report.totals.executed;
    sum.totals.replayed += report.totals.replayed;
  }
  EXPECT_GT(sum.power_cuts, 50U);
  EXPECT_GT(sum.crashes, sum.power_cuts);
  EXPECT_GT(sum.lost_answers, 500U);
  EXPECT_GT(sum.late_writes, 5U) << "writes in doubt come, or not";
  EXPECT_GT(sum.totals.executed, 500U);
  EXPECT_GT(sum.totals.replayed, 500U);
}

// ---- bad histories, told to the auditor by hand

class History : public ::testing::Test {
 protected:
  static constexpr Time start{Millis{1'000'000}};
  static Stamp stamp(Millis later = Millis{0}) { return {start + later, 0}; }

  static Owner owner(std::uint8_t which) {
    Owner o;
    o.bytes.fill(which);
    return o;
  }
  Attempt attempt(std::uint8_t which) { return {"s#k", owner(which), {}, "holder"}; }
  static EffectivePolicy policy() {
    EffectivePolicy p;
    p.lease = Millis{1'000};
    p.retention = Millis{10'000};
    return p;
  }
  static Seen seen(const Record& record) { return {record.owner, record.revision, 0}; }

  // A claim by process 1, written and handed to call 1.
  Record claim(std::uint8_t who = 1) {
    auditor.at(start);
    Record record = claimed(attempt(who), policy(), stamp(), nullptr, Verdict::execute);
    auditor.landed(who, Wrote::insert, "s#k", {}, &record);
    return record;
  }
  template <class F>
  static std::string violation_of(F act) {
    try {
      act();
    } catch (const Violation& violation) {
      return violation.what();
    }
    return "none";
  }

  Auditor auditor{{}};
};

TEST_F(History, AnInsertOverARecord) {
  const Record first = claim();
  const Record second = claimed(attempt(2), policy(), stamp(), nullptr, Verdict::execute);
  EXPECT_THAT(violation_of([&] { auditor.landed(2, Wrote::insert, "s#k", {}, &second); }), StartsWith("store"));
}

TEST_F(History, AWriteUnderAConditionThatDoesNotHold) {
  const Record first = claim();
  Record next = first;
  renew(next, policy(), stamp());
  Seen wrong = seen(first);
  wrong.revision = 7;
  EXPECT_THAT(violation_of([&] { auditor.landed(1, Wrote::replace, "s#k", wrong, &next); }), StartsWith("store"));
}

TEST_F(History, ATakeoverOfALiveClaim) {
  const Record first = claim();
  const Record next = claimed(attempt(2), policy(), stamp(), &first, Verdict::take_over);
  auditor.at(start + Millis{999});
  EXPECT_THAT(violation_of([&] { auditor.landed(2, Wrote::replace, "s#k", seen(first), &next); }), StartsWith("live"));
  Auditor patient{{}};
  patient.at(start);
  patient.landed(1, Wrote::insert, "s#k", {}, &first);
  patient.at(start + Millis{1'000});
  EXPECT_EQ(violation_of([&] { patient.landed(2, Wrote::replace, "s#k", seen(first), &next); }), "none");
}

TEST_F(History, ATakeoverThatLosesAStep) {
  Record first = claimed(attempt(1), policy(), stamp(), nullptr, Verdict::execute);
  first.steps = {{"charge", "done"}};
  auditor.at(start);
  auditor.landed(1, Wrote::insert, "s#k", {}, &first);
  Record next = claimed(attempt(2), policy(), stamp(Millis{2'000}), &first, Verdict::take_over);
  next.steps.clear();
  auditor.at(start + Millis{2'000});
  EXPECT_THAT(violation_of([&] { auditor.landed(2, Wrote::replace, "s#k", seen(first), &next); }),
              StartsWith("lineage"));
}

TEST_F(History, ATakeoverWithAnOldToken) {
  const Record first = claim();
  Record next = claimed(attempt(2), policy(), stamp(Millis{2'000}), &first, Verdict::take_over);
  next.token = first.token;
  auditor.at(start + Millis{2'000});
  EXPECT_THAT(violation_of([&] { auditor.landed(2, Wrote::replace, "s#k", seen(first), &next); }), StartsWith("token"));
}

TEST_F(History, AResultWithoutWork) {
  const Record first = claim();
  Record next = first;
  complete(next, Result::inlined("from nowhere"), policy(), stamp());
  EXPECT_THAT(violation_of([&] { auditor.landed(1, Wrote::replace, "s#k", seen(first), &next); }),
              StartsWith("result"));
}

TEST_F(History, AClaimRemovedThatNobodyReleased) {
  const Record first = claim();
  EXPECT_THAT(violation_of([&] { auditor.landed(1, Wrote::remove, "s#k", seen(first), nullptr); }),
              StartsWith("deletion"));
}

TEST_F(History, AnUnexpiredRecordSwept) {
  claim();
  EXPECT_THAT(violation_of([&] { auditor.swept("s#k"); }), StartsWith("store"));
}

TEST_F(History, ALiveClaimMarkedUnknownByAStranger) {
  const Record first = claim();
  Record next = first;
  mark_unknown(next, "why", stamp());
  EXPECT_THAT(violation_of([&] { auditor.landed(2, Wrote::replace, "s#k", seen(first), &next); }), StartsWith("live"));
}

TEST_F(History, AnUnknownRecordClaimed) {
  const Record first = claim();
  auditor.at(start + Millis{2'000});
  Record unknown = first;
  mark_lapsed(unknown, stamp(Millis{2'000}));
  auditor.landed(2, Wrote::replace, "s#k", seen(first), &unknown);
  Record next = claimed(attempt(3), policy(), stamp(Millis{2'000}), &unknown, Verdict::take_over);
  EXPECT_THAT(violation_of([&] { auditor.landed(3, Wrote::replace, "s#k", seen(unknown), &next); }),
              StartsWith("result"));
}

TEST_F(History, ATakeoverThatTellsTheReplacedAttemptWrong) {
  const Record first = claim();
  auditor.at(start + Millis{2'000});
  const Record good = claimed(attempt(2), policy(), stamp(Millis{2'000}), &first, Verdict::take_over);
  std::vector<Record> bad(4, good);
  bad[0].history.entries.clear();
  bad[1].history.entries[0].at = start;
  bad[2].history.entries[0].who = "another";
  bad[3].history.entries.push_back(good.history.entries[0]);
  for (const Record& next : bad) {
    Auditor strict{{}};
    strict.at(start);
    strict.landed(1, Wrote::insert, "s#k", {}, &first);
    strict.at(start + Millis{2'000});
    EXPECT_THAT(violation_of([&] { strict.landed(2, Wrote::replace, "s#k", seen(first), &next); }),
                StartsWith("history"));
  }
  auditor.landed(2, Wrote::replace, "s#k", seen(first), &good);
  Record marked = good;
  mark_unknown(marked, "nobody says who had it", stamp(Millis{4'000}));
  auditor.at(start + Millis{4'000});
  EXPECT_THAT(violation_of([&] { auditor.landed(3, Wrote::replace, "s#k", seen(good), &marked); }),
              StartsWith("history"));
  Record again = claimed(attempt(3), policy(), stamp(Millis{4'000}), &good, Verdict::take_over);
  again.history.entries[0].why = "changed later";
  EXPECT_THAT(violation_of([&] { auditor.landed(3, Wrote::replace, "s#k", seen(good), &again); }),
              StartsWith("history"));
}

TEST_F(History, AHolderThatGoesOnThoughItMayNot) {
  const auto claimed_by = [](Auditor& strict) {
    strict.at(start);
    strict.asked(1, {.process = 1, .key = "s#k"});
    Engine engine({.store = stores::make_memory_store(), .policy = {.heartbeat = false}, .scope = "s"});
    Begin begin = engine.begin(engine.request("k", "payload"));
    const Record record = begin.claim.record();
    strict.landed(1, Wrote::insert, "s#k", {}, &record);
    strict.answered(1, begin);
    return record;
  };
  {
    Auditor strict{{}};
    const Time end = claimed_by(strict).lease_until;
    EXPECT_EQ(violation_of([&] { strict.about_to_act(1, true); }), "none");
    strict.at(end - Millis{1});
    EXPECT_EQ(violation_of([&] { strict.about_to_act(1, true); }), "none");
    strict.at(end);
    EXPECT_EQ(violation_of([&] { strict.about_to_act(1, false); }), "none");
    EXPECT_THAT(violation_of([&] { strict.about_to_act(1, true); }), StartsWith("sleep"));
  }
  Auditor strict{{}};
  const Owner holder = claimed_by(strict).owner;
  strict.refused(1, owner(9));
  EXPECT_EQ(violation_of([&] { strict.about_to_act(1, true); }), "none") << "another's";
  strict.refused(2, holder);
  EXPECT_EQ(violation_of([&] { strict.about_to_act(1, true); }), "none") << "another process's";
  strict.refused(1, holder);
  EXPECT_EQ(violation_of([&] { strict.about_to_act(1, false); }), "none");
  EXPECT_THAT(violation_of([&] { strict.about_to_act(1, true); }), StartsWith("stops"));
}

// Each claim has a lease of 10 s, and seconds count from its beginning.
TEST_F(History, ASleeperThatGoesOnThoughItMayNot) {
  Auditor strict{{}};
  Engine engine({.store = stores::make_memory_store(), .policy = {.lease = Millis{10'000}}, .scope = "s"});
  Record record;
  Time from{};
  CallId call = 0;
  const auto claims = [&] {
    ++call;
    strict.asked(call, {.process = 1, .key = "s#k" + std::to_string(call), .heartbeats = Millis{10'000}});
    Begin begin = engine.begin(engine.request("k" + std::to_string(call), "payload"));
    record = begin.claim.record();
    from = record.lease_until - Millis{10'000};
    strict.at(from);
    strict.landed(1, Wrote::insert, record.key, {}, &record);
    strict.answered(call, begin);
    strict.work_started(call, begin.claim);
    return std::move(begin.claim);
  };
  const auto at = [&](int seconds) { strict.at(from + Millis{seconds * 1'000}); };
  const auto renews = [&](int until) {
    record.revision = next_revision(record.revision, 7);
    record.lease_until = from + Millis{until * 1'000};
    return record;
  };
  const auto looks = [&](bool is_ours) { return violation_of([&] { strict.about_to_act(call, is_ours); }); };
  const auto wakes = [&](int seconds) {
    at(seconds);
    strict.woke(1);
    strict.told_to_stop(call);
  };
  {
    const Claim claim = claims();
    wakes(30);
    EXPECT_EQ(looks(false), "none");
    EXPECT_THAT(violation_of([&] { strict.acts(call); }), StartsWith("sleep")) << "whatever its claim says";
    const Seen before = seen(record);
    const Record next = renews(40);
    strict.landed(1, Wrote::replace, record.key, before, &next);
    EXPECT_THAT(looks(true), StartsWith("sleep")) << "the answer is on its way";
    strict.renewed(1, next);
    EXPECT_EQ(looks(true), "none");
    EXPECT_EQ(strict.totals().slept, 1U);
    EXPECT_EQ(strict.totals().saved, 1U);
  }
  {
    const Claim claim = claims();
    wakes(30);
    at(39);
    EXPECT_THAT(violation_of([&] { strict.told_of_loss(call); }), HasSubstr("before a renewal was tried for a lease"));
  }
  {
    const Claim claim = claims();
    wakes(30);
    at(40);
    EXPECT_EQ(violation_of([&] { strict.told_of_loss(call); }), "none");
    strict.renewed(1, renews(60));
    EXPECT_EQ(looks(false), "none");
    EXPECT_THAT(looks(true), HasSubstr("again after it was given up")) << "a step was written";
  }
  {
    const Claim claim = claims();
    wakes(30);
    strict.not_renewed(1, record.owner);
    EXPECT_EQ(violation_of([&] { strict.told_of_loss(call); }), "none") << "refused: it is lost at once";
  }
  {
    const Claim claim = claims();
    wakes(30);
    at(40);
    EXPECT_EQ(looks(false), "none");
    at(41);
    EXPECT_THAT(looks(false), HasSubstr("still tries"));
  }
}

TEST_F(History, SomebodyWithoutAnAnswer) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  EXPECT_THAT(violation_of([&] { auditor.end(); }), HasSubstr("never answered"));
}

TEST_F(History, SomebodyWhoseProcessDiedNeedsNone) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  auditor.died(1);
  EXPECT_EQ(violation_of([&] { auditor.end(); }), "none");
}

TEST_F(History, AnAnswerTwice) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  Begin begin;
  begin.error = {ErrorKind::unavailable, "down"};
  auditor.answered(1, begin);
  EXPECT_THAT(violation_of([&] { auditor.answered(1, begin); }), StartsWith("answers"));
}

TEST_F(History, AReplayOfWhatWasNeverStored) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  Begin begin;
  begin.kind = Begin::Kind::replayed;
  Record invented = claim();
  complete(invented, Result::inlined("invented"), policy(), stamp());
  begin.record = share(std::move(invented));
  EXPECT_THAT(violation_of([&] { auditor.answered(1, begin); }), StartsWith("replay"));
}

TEST_F(History, AReplayOfAnotherPayloadOrKey) {
  Record stored =
      claimed({"s#k", owner(1), Fingerprint::of("this"), "holder"}, policy(), stamp(), nullptr, Verdict::execute);
  auditor.at(start);
  auditor.landed(1, Wrote::insert, "s#k", {}, &stored);
  auditor.asked(1, {.process = 1, .key = "s#k", .fingerprint = Fingerprint::of("that")});
  Begin begin;
  begin.kind = Begin::Kind::replayed;
  Record replayed = stored;
  complete(replayed, Result::inlined("x"), policy(), stamp());
  begin.record = share(std::move(replayed));
  EXPECT_THAT(violation_of([&] { auditor.answered(1, begin); }), HasSubstr("another payload"));
  auditor.asked(2, {.process = 1, .key = "s#other"});
  EXPECT_THAT(violation_of([&] { auditor.answered(2, begin); }), HasSubstr("a record of s#k"));
}

TEST_F(History, CompanionsThatAreCommittedTwice) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  auditor.finish_asked(1, FinishKind::complete, Result::inlined("x"));
  EXPECT_THAT(violation_of([&] { auditor.charged(1); }), StartsWith("together")) << "it had none";
  auditor.asked(2, {.process = 1, .key = "s#k"});
  auditor.finish_asked(2, FinishKind::complete, Result::inlined("x"));
  auditor.charges(2);
  auditor.charged(2);
  EXPECT_THAT(violation_of([&] { auditor.charged(2); }), HasSubstr("charged twice"));
}

// Of a transaction that finishes a claim.
TEST_F(History, ATransactionThatMayNotCommit) {
  const auto claims = [this](Auditor& strict) {
    Attempt first = attempt(1);
    Record record = claimed(first, policy(), stamp(), nullptr, Verdict::execute);
    strict.at(start);
    strict.asked(1, {.process = 1, .key = "s#k"});
    strict.landed(1, Wrote::insert, "s#k", {}, &record);
    strict.handed_out(1, Result::inlined("x"));
    return record;
  };
  const auto finished = [](Record record) {
    complete(record, Result::inlined("x"), policy(), stamp());
    return record;
  };
  {
    Auditor strict{{}};
    claims(strict);
    strict.rows_committed(1);
    EXPECT_THAT(violation_of([&] { strict.at(start); }), HasSubstr("rows without its result"));
  }
  {
    Auditor strict{{}};
    const Record next = finished(claims(strict));
    EXPECT_THAT(violation_of([&] { strict.transaction_landed(1, next); }), HasSubstr("does not stand"))
        << "the claim was not given to call 1";
  }
}

TEST_F(History, TwoReadsAtOnceForOneKey) {
  auditor.sent(1, true, "s#k");
  EXPECT_EQ(violation_of([&] { auditor.sent(2, true, "s#k"); }), "none") << "another process";
  EXPECT_THAT(violation_of([&] { auditor.sent(1, true, "s#k"); }), StartsWith("sharing"));
}

TEST_F(History, AnEventTooMany) {
  auditor.asked(1, {.process = 1, .key = "s#k"});
  claim();
  Begin begin;
  begin.kind = Begin::Kind::conflict;
  begin.retry_after = Millis{1};
  begin.record = std::make_shared<Record>(*auditor.shadow("s#k"));
  auditor.told(1, EventKind::conflict);
  auditor.told(1, EventKind::conflict);
  auditor.answered(1, begin);
  EXPECT_THAT(violation_of([&] { auditor.end(); }), StartsWith("events"));
}

}  // namespace
}  // namespace once::simulation
