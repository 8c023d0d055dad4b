// What an operator may do to records: the plans, and carrying them out.
#include <once/operate.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "platform/wait.hpp"

namespace once::operate {

void PrintTo(Standing standing, std::ostream* out) { *out << to_string(standing); }

namespace operate_test {

using namespace std::chrono_literals;

constexpr Time now{Millis{1'000'000}};
const Stamp stamp(now, 0xA5A5A);
constexpr Millis skew{2'000};
const Reason reason{.by = "alice@desk", .text = "checked"};

Owner owner(std::uint8_t byte) {
  Owner result;
  result.bytes.fill(byte);
  return result;
}

Record running(const std::string& name = "k") {
  EffectivePolicy policy;
  policy.lease = 10s;
  policy.retention = 1h;
  Record record = claimed({.key = Key("s", name).stored(), .owner = owner(1), .fingerprint = {}, .holder = "h"}, policy,
                          stamp, nullptr, Verdict::execute);
  record.steps.push_back({"charge", "done"});
  return record;
}

Record in_standing(Standing standing) {
  EffectivePolicy policy;
  policy.retention = 1h;
  Record record = running();
  switch (standing) {
    case Standing::running:
      return record;
    case Standing::lapsed:
      record.lease_until = now;
      return record;
    case Standing::released:
      release(record, "r", policy, stamp);
      return record;
    case Standing::completed:
      complete(record, Result::inlined("result"), policy, stamp);
      return record;
    case Standing::failed:
      fail(record, {.code = "c", .message = "m"}, {}, policy, stamp);
      return record;
    case Standing::unknown:
      mark_unknown(record, "r", stamp);
      return record;
    case Standing::expired:
      complete(record, Result::inlined("result"), policy, stamp);
      record.expires_at = now;
      return record;
  }
  return record;
}

constexpr Standing standings[] = {Standing::running, Standing::lapsed,  Standing::released, Standing::completed,
                                  Standing::failed,  Standing::unknown, Standing::expired};

TEST(Standing, FollowsFromStateAndTime) {
  for (const Standing expected : standings) {
    EXPECT_EQ(standing(in_standing(expected), now), expected);
    EXPECT_EQ(standing_from_string(to_string(expected)), expected);
  }
  EXPECT_EQ(standing(running(), now + 10s - 1ms), Standing::running);
  EXPECT_EQ(standing(running(), now + 10s), Standing::lapsed);
  EXPECT_FALSE(standing_from_string("in_progress"));
}

TEST(Resolve, WhatMayBeEndedWithoutForce) {
  const std::set<Standing> allowed = {Standing::lapsed, Standing::released, Standing::unknown};
  for (const Standing from : standings) {
    for (const As as : {As::completed, As::failed, As::released}) {
      Resolution resolution;
      resolution.as = as;
      const Record seen = in_standing(from);
      const Plan plan = plan_resolve(seen, resolution, reason, owner(2), stamp);
      EXPECT_EQ(plan.next.has_value(), allowed.contains(from)) << to_string(from);
      EXPECT_NE(plan.next.has_value(), !plan.refusal.empty());
      resolution.force = true;
      EXPECT_EQ(plan_resolve(seen, resolution, reason, owner(2), stamp).next.has_value(), from != Standing::expired);
    }
  }
}

TEST(Resolve, ChangesTheOwnerAndKeepsWhoAndWhy) {
  Resolution resolution;
  resolution.result = Result::inlined("receipt");
  resolution.retention = 2h;
  const Record seen = in_standing(Standing::unknown);
  const Record next = plan_resolve(seen, resolution, reason, owner(2), stamp).next.value();
  EXPECT_EQ(next.state, State::completed);
  EXPECT_EQ(next.owner, owner(2));
  EXPECT_EQ(next.revision, next_revision(seen.revision, stamp.random));
  EXPECT_EQ(next.token, seen.token);
  EXPECT_EQ(next.result.bytes, "receipt");
  EXPECT_EQ(next.failure, Failure{});
  EXPECT_EQ(next.expires_at, now + 2h);
  EXPECT_EQ(next.note, "resolved as completed by alice@desk: checked");
  resolution.as = As::failed;
  resolution.failure = {.code = "declined", .message = "no money"};
  const Record refused = plan_resolve(seen, resolution, reason, owner(2), stamp).next.value();
  EXPECT_EQ(refused.state, State::failed);
  EXPECT_EQ(refused.failure.code, "declined");
}

TEST(Release, TheNextCallerTakesItOverWithItsSteps) {
  const Record next =
      plan_release(in_standing(Standing::unknown), {.retention = 1h, .force = false}, reason, owner(2), stamp)
          .next.value();
  EXPECT_TRUE(is_released(next));
  EXPECT_EQ(next.steps.size(), 1U);
  EXPECT_EQ(next.note, "released by alice@desk: checked");
  EffectivePolicy hold;
  hold.on_lapse = OnLapse::hold;
  EXPECT_EQ(decide(&next, {.key = next.key, .owner = owner(3), .fingerprint = {}, .holder = {}}, hold, now).verdict,
            Verdict::take_over);
  EXPECT_FALSE(plan_release(next, {.retention = 1h, .force = true}, reason, owner(2), stamp).next);
}

TEST(Extend, KeepsTheOwnerSoThatItsHolderGoesOn) {
  const Record live = running();
  const Record longer = plan_extend(live, 1h, reason, stamp, skew).next.value();
  EXPECT_EQ(longer.owner, live.owner);
  EXPECT_EQ(longer.revision, next_revision(live.revision, stamp.random));
  EXPECT_EQ(longer.lease_until, live.lease_until + 1h);
  EXPECT_EQ(longer.expires_at, live.expires_at + 1h) << "what was left of its retention stays";
  Record brief = live;
  brief.expires_at = brief.lease_until + 1ms;
  EXPECT_EQ(plan_extend(brief, 1h, reason, stamp, skew).next->expires_at, brief.lease_until + 1h + skew);
  Record held = live;
  held.expires_at = never;
  EXPECT_EQ(plan_extend(held, 1h, reason, stamp, skew).next->expires_at, never);
  const Record lapsed = in_standing(Standing::lapsed);
  EXPECT_EQ(plan_extend(lapsed, 1h, reason, Stamp(now + 5s, 7), skew).next->lease_until, now + 5s + 1h);
  const Record done = in_standing(Standing::completed);
  EXPECT_EQ(plan_extend(done, 1h, reason, stamp, skew).next->expires_at, done.expires_at + 1h);
}

TEST(Extend, Refusals) {
  for (const Standing from : {Standing::released, Standing::unknown, Standing::expired}) {
    EXPECT_FALSE(plan_extend(in_standing(from), 1h, reason, stamp, skew).next) << to_string(from);
  }
  EXPECT_FALSE(plan_extend(running(), 0ms, reason, stamp, skew).next);
  EXPECT_FALSE(plan_extend(running(), -1ms, reason, stamp, skew).next);
  EXPECT_FALSE(plan_extend(running(), 24h * 3654, reason, stamp, skew).next);
}

TEST(Extend, NeverPassesTheEndOfTime) {
  Record record = running();
  record.lease_until = never - 1ms;
  record.expires_at = never;
  EXPECT_EQ(plan_extend(record, 1h, reason, stamp, skew).next->lease_until, never);
}

TEST(Reasons, AreAskedFor) {
  for (const Reason& bad :
       {Reason{.by = "", .text = "x"}, Reason{.by = "x", .text = ""}, Reason{.by = "x", .text = " \n"}}) {
    EXPECT_FALSE(plan_extend(running(), 1h, bad, stamp, skew).next);
    EXPECT_FALSE(plan_resolve(in_standing(Standing::unknown), {}, bad, owner(2), stamp).next);
    EXPECT_FALSE(
        plan_release(in_standing(Standing::unknown), {.retention = 1h, .force = false}, bad, owner(2), stamp).next);
  }
  const Reason longest{.by = "x", .text = std::string(5000, 'y')};
  EXPECT_EQ(plan_extend(running(), 1h, longest, stamp, skew).next->note.size(), Record::max_text_bytes);
}

TEST(Remove, OnlyALiveClaimNeedsForce) {
  for (const Standing standing : {Standing::lapsed, Standing::released, Standing::completed, Standing::failed,
                                  Standing::unknown, Standing::expired}) {
    EXPECT_TRUE(plan_remove(in_standing(standing), false, reason, now).next) << to_string(standing);
  }
  EXPECT_NE(plan_remove(running(), false, reason, now).refusal.find("claim is live"), std::string::npos);
  EXPECT_EQ(plan_remove(running(), true, reason, now).next, running());
  EXPECT_FALSE(plan_remove(running(), true, {.by = "x", .text = " "}, now).next);
}

// Each act is written down, after the attempt whose end it writes over.
TEST(Acts, StandInTheHistory) {
  const HistoryEntry unknown{"unknown", "h", "r", 1, now, now};
  const auto act = [](const char* what, const Record& seen) {
    return HistoryEntry{.what = what,
                        .who = "alice@desk",
                        .why = "checked",
                        .at = now,
                        .revision = next_revision(seen.revision, stamp.random),
                        .replaced = seen.revision};
  };
  using Entries = std::vector<HistoryEntry>;

  Resolution resolution{.as = As::completed};
  const Record seen = in_standing(Standing::unknown);
  Record next = plan_resolve(seen, resolution, reason, owner(2), stamp).next.value();
  EXPECT_EQ(next.history.entries, (Entries{unknown, act("resolved as completed", seen)}));
  resolution.as = As::failed;
  EXPECT_EQ(plan_resolve(seen, resolution, reason, owner(2), stamp).next->history.entries,
            (Entries{unknown, act("resolved as failed", seen)}));
  // The attempt that an operator's result replaced has ended only once.
  resolution.force = true;
  const Record resolved = next;
  next = plan_release(resolved, resolution, reason, owner(3), stamp).next.value();
  EXPECT_EQ(next.history.entries, (Entries{unknown, act("resolved as completed", seen), act("released", resolved)}));
  const Attempt attempt{.key = next.key, .owner = owner(4), .fingerprint = {}, .holder = "i"};
  EXPECT_EQ(claimed(attempt, {}, stamp, &next, Verdict::take_over).history, next.history);

  next = plan_release(in_standing(Standing::lapsed), {}, reason, owner(2), stamp).next.value();
  EXPECT_EQ(next.history.entries, (Entries{{"lapsed", "h", "", 1, now, now}, act("released", running())}));
  next = plan_release(running(), resolution, reason, owner(2), stamp).next.value();
  EXPECT_EQ(next.history.entries, (Entries{{"displaced", "h", "", 1, now, now}, act("released", running())}));

  // These leave the attempt as it is.
  EXPECT_EQ(plan_extend(running(), 10min, reason, stamp, skew).next->history.entries,
            Entries{act("lease extended to 1970-01-01T00:26:50.000Z", running())});
  EXPECT_EQ(plan_extend(in_standing(Standing::completed), 10min, reason, stamp, skew).next->history.entries,
            Entries{act("retention extended to 1970-01-01T01:26:40.000Z", in_standing(Standing::completed))});
  Record kept = in_standing(Standing::failed);
  kept.expires_at = never;
  EXPECT_EQ(plan_extend(kept, 10min, reason, stamp, skew).next->history.entries,
            Entries{act("retention extended without end", kept)});
  EXPECT_EQ(plan_on_lapse(running(), OnLapse::hold, 1h, reason, stamp, skew).next->history.entries,
            Entries{act("on lapse hold", running())});
}

// The holder knows them all by the revisions that they name, up to a bound.
TEST(Acts, LeadBackToTheHoldersWrite) {
  const Record claim = running();
  Record record = claim;
  for (std::size_t i = 0; i < History::max_unseen_acts; ++i) {
    const OnLapse other = record.on_lapse == OnLapse::hold ? OnLapse::takeover : OnLapse::hold;
    const Plan plan = i % 2 == 0 ? plan_extend(record, 10min, reason, stamp, skew)
                                 : plan_on_lapse(record, other, 1h, reason, stamp, skew);
    ASSERT_TRUE(plan.next) << plan.refusal;
    record = *plan.next;
  }
  EXPECT_TRUE(leads_back(record, claim.revision));
  EXPECT_NE(plan_extend(record, 10min, reason, stamp, skew).refusal.find("since its holder wrote it"),
            std::string::npos);
  EXPECT_FALSE(plan_on_lapse(record, OnLapse::hold, 1h, reason, stamp, skew).next);
  EXPECT_TRUE(plan_resolve(record, {.as = As::released, .force = true}, reason, owner(2), stamp).next);
  renew(record, {}, stamp);
  EXPECT_TRUE(plan_extend(record, 10min, reason, stamp, skew).next) << "the holder has seen them";
}

// A store that fails as planned, before or after it has carried out the operation.
class Troubled final : public testing::ForwardingStore {
 public:
  enum class Trouble { none, before, after, always_before };
  using ForwardingStore::ForwardingStore;
  Trouble trouble = Trouble::none;
  int writes = 0;

  void replace(RecordPtr record, Seen seen, Done done) override {
    ++writes;
    const Trouble now_trouble = trouble;
    if (trouble != Trouble::always_before) trouble = Trouble::none;
    if (now_trouble == Trouble::none) return inner_->replace(std::move(record), seen, std::move(done));
    if (now_trouble == Trouble::after) inner_->replace(std::move(record), seen, [](Answer) {});
    done(Answer::fail(ErrorKind::in_doubt, "no answer"));
  }
  void remove(std::string key, Seen seen, Done done) override {
    ++writes;
    const Trouble now_trouble = trouble;
    if (trouble != Trouble::always_before) trouble = Trouble::none;
    if (now_trouble == Trouble::none) return inner_->remove(std::move(key), seen, std::move(done));
    if (now_trouble == Trouble::after) inner_->remove(std::move(key), seen, [](Answer) {});
    done(Answer::fail(ErrorKind::in_doubt, "no answer"));
  }
  [[nodiscard]] std::string name() const override { return "troubled"; }
};

struct Bench {
  Troubled store{stores::make_memory_store()};
  Record seen = in_standing(Standing::unknown);
  Bench() { EXPECT_EQ(blocking::insert(store, seen).status, AnswerStatus::done); }
  [[nodiscard]] Record next() const { return plan_resolve(seen, {}, reason, owner(2), stamp).next.value(); }
};

TEST(Apply, WritesOverWhatWasSeen) {
  Bench bench;
  const Applied applied = apply(bench.store, bench.seen, 0, bench.next());
  EXPECT_EQ(applied.kind, Applied::Kind::done);
  EXPECT_EQ(*blocking::get(bench.store, bench.seen.key).record, bench.next());
}

TEST(Apply, IsRefusedWhenTheRecordHasChanged) {
  Bench bench;
  Record other = plan_release(bench.seen, {.retention = 1h, .force = false}, reason, owner(9), stamp).next.value();
  ASSERT_EQ(apply(bench.store, bench.seen, 0, other).kind, Applied::Kind::done);
  const Applied late = apply(bench.store, bench.seen, 0, bench.next());
  EXPECT_EQ(late.kind, Applied::Kind::changed);
  EXPECT_EQ(*late.record, other);
  ASSERT_EQ(blocking::remove(bench.store, other.key, {.owner = other.owner, .revision = other.revision}).status,
            AnswerStatus::done);
  const Applied gone = apply(bench.store, bench.seen, 0, bench.next());
  EXPECT_EQ(gone.kind, Applied::Kind::changed);
  EXPECT_FALSE(gone.record);
}

TEST(Apply, LostAnswers) {
  for (const auto trouble : {Troubled::Trouble::before, Troubled::Trouble::after}) {
    Bench bench;
    bench.store.trouble = trouble;
    EXPECT_EQ(apply(bench.store, bench.seen, 0, bench.next()).kind, Applied::Kind::done);
    EXPECT_EQ(*blocking::get(bench.store, bench.seen.key).record, bench.next());
    EXPECT_EQ(bench.store.writes, trouble == Troubled::Trouble::before ? 2 : 1);
  }
  Bench bench;
  bench.store.trouble = Troubled::Trouble::always_before;
  const Applied applied = apply(bench.store, bench.seen, 0, bench.next());
  EXPECT_EQ(applied.kind, Applied::Kind::failed);
  EXPECT_EQ(applied.error.kind, ErrorKind::in_doubt);
}

TEST(Remove, TakesAwayOnlyWhatWasSeen) {
  Bench bench;
  const Record next = bench.next();
  ASSERT_EQ(apply(bench.store, bench.seen, 0, next).kind, Applied::Kind::done);
  const Applied late = remove(bench.store, bench.seen, 0);
  EXPECT_EQ(late.kind, Applied::Kind::changed);
  EXPECT_EQ(*late.record, next);
  const Applied done = remove(bench.store, next, 0);
  EXPECT_EQ(done.kind, Applied::Kind::done);
  EXPECT_FALSE(done.record);
  EXPECT_FALSE(blocking::get(bench.store, next.key).record);
  const Applied again = remove(bench.store, next, 0);
  EXPECT_EQ(again.kind, Applied::Kind::changed);
  EXPECT_FALSE(again.record);
}

TEST(Remove, LostAnswers) {
  for (const auto trouble : {Troubled::Trouble::before, Troubled::Trouble::after}) {
    Bench bench;
    bench.store.trouble = trouble;
    EXPECT_EQ(remove(bench.store, bench.seen, 0).kind, Applied::Kind::done);
    EXPECT_FALSE(blocking::get(bench.store, bench.seen.key).record);
    EXPECT_EQ(bench.store.writes, 2);
  }
  Bench bench;
  bench.store.trouble = Troubled::Trouble::always_before;
  const Applied applied = remove(bench.store, bench.seen, 0);
  EXPECT_EQ(applied.kind, Applied::Kind::failed);
  EXPECT_EQ(applied.error.kind, ErrorKind::in_doubt);
  EXPECT_TRUE(blocking::get(bench.store, bench.seen.key).record);
}

TEST(Apply, ADisplacedHolderCanWriteNothingMore) {
  Bench bench;
  ASSERT_EQ(apply(bench.store, bench.seen, 0, bench.next()).kind, Applied::Kind::done);
  for (std::uint64_t count = 0; count < 10; ++count) {
    const std::uint64_t revision = next_revision(bench.seen.revision, static_cast<std::uint32_t>(count));
    EXPECT_EQ(blocking::replace(bench.store, bench.seen, {.owner = bench.seen.owner, .revision = revision}).status,
              AnswerStatus::refused);
  }
}

TEST(Apply, AHistoryGivesWayInAStoreWithoutRoom) {
  struct Small : testing::ForwardingStore {
    using ForwardingStore::ForwardingStore;
    [[nodiscard]] Capabilities capabilities() const noexcept override {
      Capabilities own = inner_->capabilities();
      own.max_record_bytes = 10'000;
      return own;
    }
  } store(stores::make_memory_store());
  Record seen = in_standing(Standing::unknown);
  for (int i = 0; i < 12; ++i) append(seen.history, {.what = "released", .why = std::string(256, 'w')});
  seen.steps[0].result.assign(10'000 - record_bytes(seen), 's');
  ASSERT_EQ(blocking::insert(store, seen).status, AnswerStatus::done);
  Record next = plan_resolve(seen, {}, reason, owner(2), stamp).next.value();
  ASSERT_GT(record_bytes(next), 10'000U);
  const Applied applied = apply(store, seen, 0, std::move(next));
  ASSERT_EQ(applied.kind, Applied::Kind::done);
  EXPECT_LE(record_bytes(*applied.record), 10'000U);
  EXPECT_EQ(applied.record->history.entries.back().what, "resolved as completed");
  EXPECT_EQ(applied.record->history.entries.size() + applied.record->history.dropped, 14U);
}

// What a cron line that forgot --on-lapse hold must not be able to do: see decide().
TEST(PlanOnLapse, OnlyAnOperatorTakesHoldBack) {
  Record held = running();
  held.on_lapse = OnLapse::hold;
  held.expires_at = never;
  const Record free = plan_on_lapse(held, OnLapse::takeover, 1h, reason, stamp, skew).next.value();
  EXPECT_EQ(free.on_lapse, OnLapse::takeover);
  EXPECT_EQ(free.owner, held.owner) << "its holder goes on";
  EXPECT_EQ(free.lease_until, held.lease_until);
  EXPECT_EQ(free.expires_at, now + 1h) << "without hold it expires again";
  EXPECT_EQ(free.revision, next_revision(held.revision, stamp.random));
  EXPECT_NE(free.note.find("on lapse takeover"), std::string::npos);
  EXPECT_EQ(plan_on_lapse(free, OnLapse::hold, 1h, reason, stamp, skew).next->expires_at, never);
  EXPECT_EQ(plan_on_lapse(held, OnLapse::takeover, 1ms, reason, stamp, skew).next->expires_at, held.lease_until + skew);
  EXPECT_FALSE(plan_on_lapse(held, OnLapse::hold, 1h, reason, stamp, skew).next);
  EXPECT_FALSE(plan_on_lapse(held, OnLapse::takeover, 1h, {.by = "", .text = "x"}, stamp, skew).next);
  for (const Standing from : {Standing::completed, Standing::failed, Standing::unknown, Standing::expired}) {
    EXPECT_FALSE(plan_on_lapse(in_standing(from), OnLapse::hold, 1h, reason, stamp, skew).next) << to_string(from);
  }
}

TEST(ForEach, EveryFilter) {
  const std::unique_ptr<Store> store = stores::make_memory_store();
  std::map<Standing, int> expected;
  int number = 0;
  for (const Standing standing : standings) {
    for (int i = 0; i < 300; ++i) {  // More than a page in all.
      Record record = in_standing(standing);
      record.key = Key(i % 2 == 0 ? "even" : "odd", std::to_string(number++)).stored();
      record.created_at = now - Millis{i};
      ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
      ++expected[standing];
    }
  }
  const auto found = [&](const Filter& filter) {
    int count = 0;
    const auto error = for_each(*store, filter, now, [&](const Record& record) {
      EXPECT_TRUE(matches(filter, record, now));
      ++count;
      return true;
    });
    EXPECT_FALSE(error);
    return count;
  };
  EXPECT_EQ(found({}), number);
  for (const Standing standing : standings) {
    Filter filter;
    filter.standing = standing;
    EXPECT_EQ(found(filter), expected[standing]) << to_string(standing);
  }
  Filter filter;
  filter.in_progress = true;
  EXPECT_EQ(found(filter), 900);
  filter = {};
  filter.key_prefix = scope_prefix("odd");
  EXPECT_EQ(found(filter), number / 2);
  filter = {};
  filter.created_before = now - 290ms;
  EXPECT_EQ(found(filter), 10 * 7);
  filter = {};
  filter.created_not_before = now - 9ms;
  EXPECT_EQ(found(filter), 10 * 7);
  int seen = 0;
  EXPECT_FALSE(for_each(*store, {}, now, [&](const Record&) { return ++seen < 5; }));
  EXPECT_EQ(seen, 5);
  std::vector<std::uint64_t> read;  // Also those that do not match.
  filter = {.created_before = Time{}};
  EXPECT_FALSE(for_each(
      *store, filter, now, [](const Record&) { return true; },
      [&](std::uint64_t records) {
        read.push_back(records);
        return true;
      }));
  ASSERT_GT(read.size(), 1U);
  EXPECT_TRUE(std::is_sorted(read.begin(), read.end()));
  EXPECT_EQ(read.back(), static_cast<std::uint64_t>(number));
  std::uint64_t pages = 0;  // It may end it, too.
  EXPECT_FALSE(for_each(
      *store, filter, now, [](const Record&) { return true; }, [&](std::uint64_t) { return ++pages < 2; }));
  EXPECT_EQ(pages, 2U);
}

TEST(Filters, AgeIsOfRecordsThatSayWhenTheyWereMade) {
  Record record = in_standing(Standing::running);
  record.created_at = Time{};  // Another program's.
  Filter filter;
  EXPECT_TRUE(matches(filter, record, now));
  filter.created_before = now;
  EXPECT_FALSE(matches(filter, record, now));
  filter = {.created_not_before = Time{}};
  EXPECT_FALSE(matches(filter, record, now));
  Counts counts;
  count(record, now, counts);
  EXPECT_EQ(counts.oldest_created, std::nullopt);
}

TEST(Filters, LabelsAndHoldersByWhatTheyContain) {
  Record record = in_standing(Standing::running);
  record.label = "Order-17";
  record.holder = "web-1/4711";
  EXPECT_TRUE(matches({.label_part = "order-17"}, record, now));
  EXPECT_TRUE(matches({.label_part = "DER", .holder_part = "/47"}, record, now));
  EXPECT_FALSE(matches({.label_part = "order-170"}, record, now));
  EXPECT_FALSE(matches({.label_part = "order", .holder_part = "web-2"}, record, now));
  record.label.clear();
  EXPECT_TRUE(matches({.holder_part = "WEB"}, record, now));
  EXPECT_FALSE(matches({.label_part = "o"}, record, now));
}

TEST(Page, HasEachRecordOnce) {
  const auto store = stores::make_memory_store();
  for (int i = 0; i < 50; ++i) {
    Record record = in_standing(i % 5 == 0 ? Standing::lapsed : Standing::running);
    record.key = Key("s", std::to_string(i)).stored();
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  Filter filter;
  filter.standing = Standing::lapsed;  // The store does not know that, and the page leaves the others out.
  for (const std::size_t limit : {1, 3, 7, 100}) {
    std::set<std::string> seen;
    std::string cursor;
    do {
      ListPage found = page(*store, filter, now, cursor, limit);
      ASSERT_FALSE(found.error);
      EXPECT_LE(found.records.size(), limit);
      for (const Record& record : found.records) EXPECT_TRUE(seen.insert(record.key).second);
      cursor = found.cursor;
    } while (!cursor.empty());
    EXPECT_EQ(seen.size(), 10U) << limit;
  }
}

// Results outside the store, in memory.
class Shelf final : public Offload {
 public:
  std::map<std::string, std::string> kept;
  bool broken = false;
  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    kept[hint] = std::move(bytes);
    done({hint, {}});
  }
  void get(std::string location, Callback<void(OffloadAnswer)> done) override { done({kept[location], {}}); }
  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    if (broken) return done({{}, Error{ErrorKind::unavailable, "broken"}});
    kept.erase(location);
    done({});
  }
};

// A store with things in it that are no records: one on every page, and one in the way of every slice of a sweep.
class SpoiltStore final : public testing::ForwardingStore {
 public:
  SpoiltStore() : ForwardingStore(stores::make_memory_store()) {}

  void list(ListQuery query, Callback<void(ListPage)> done) override {
    query.limit = std::min<std::size_t>(query.limit, 10);
    ListPage page = blocking::list(*inner_, std::move(query));
    page.unreadable.push_back({ErrorKind::corrupt, "item " + std::to_string(++pages)});
    done(std::move(page));
  }
  void sweep(Time at, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    SweepAnswer answer = blocking::sweep(*inner_, at, std::min<std::size_t>(limit, 10));
    answer.error = Error{ErrorKind::corrupt, "slice " + std::to_string(++slices)};
    done(std::move(answer));
  }
  int pages = 0;
  int slices = 0;
};

TEST(Unreadable, DisturbsNoOther) {
  SpoiltStore store;
  for (int i = 0; i < 25; ++i) {
    Record record = in_standing(Standing::expired);
    record.key = Key("s", std::to_string(i)).stored();
    ASSERT_EQ(blocking::insert(store, record).status, AnswerStatus::done);
  }
  int seen = 0;
  const auto error = for_each(store, {}, now, [&](const Record&) { return ++seen > 0; });
  EXPECT_EQ(seen, 25);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::corrupt);
  EXPECT_EQ(error->message, "item 1 (and 2 more that cannot be read)");

  const ListPage found = page(store, {}, now, "", 100);
  EXPECT_EQ(found.records.size(), 25U);
  EXPECT_EQ(found.unreadable.size(), 3U);

  for (const bool offloads : {false, true}) {
    store.slices = store.pages = 0;
    const auto shelf = offloads ? std::make_shared<Shelf>() : nullptr;
    const Swept swept = sweep(store, {.expired_before = now, .offload = shelf, .progress = {}});
    EXPECT_EQ(swept.removed, offloads ? 0U : 25U);
    ASSERT_TRUE(swept.error);
    EXPECT_EQ(swept.error->message, offloads ? "item 1" : "slice 1");
  }
}

TEST(Count, AddsUp) {
  Counts counts;
  for (const Standing standing : standings) count(in_standing(standing), now, counts);
  EXPECT_EQ(counts.records, 7U);
  for (const Standing standing : standings) EXPECT_EQ(counts.of(standing), 1U);
  EXPECT_EQ(counts.oldest_unknown, now);
  EXPECT_EQ(counts.oldest_lapsed, now);
  EXPECT_EQ(counts.oldest_created, now);
}

TEST(Filter, SelectsWhatIsOverdueAndCountsIt) {
  Counts counts;
  Filter filter;
  filter.overdue = true;
  for (const Standing standing : standings) {
    Record record = in_standing(standing);
    EXPECT_FALSE(matches(filter, record, now)) << to_string(standing) << ": nothing is expected of it";
    record.expected_until = now - 1s;
    const bool open = standing == Standing::running || standing == Standing::lapsed || standing == Standing::released;
    EXPECT_EQ(matches(filter, record, now), open) << to_string(standing);
    count(record, now, counts);
    record.expected_until = now + 1s;
    EXPECT_FALSE(matches(filter, record, now)) << to_string(standing) << ": it has time left";
    count(record, now, counts);
  }
  EXPECT_EQ(counts.overdue, 3U);
  EXPECT_EQ(counts.oldest_overdue, now - 1s);
}

// Knows its time only when it has answered, as a service at the other end of a network does.
class FarStore final : public testing::ForwardingStore {
 public:
  enum class Answers : std::uint8_t { with_time, without_time, not_at_all };
  explicit FarStore(Answers answers, bool tells = true)
      : ForwardingStore(stores::make_memory_store()), answers_(answers), tells_(tells) {}
  int gets = 0;

  void get(std::string key, Done done) override {
    ++gets;
    if (answers_ == Answers::not_at_all) return done(Answer::fail(ErrorKind::unavailable, "gone"));
    known_ = answers_ == Answers::with_time;
    inner_->get(std::move(key), std::move(done));
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
    if (!known_) return std::nullopt;
    return StoreTime{now - 2h, 500ms};
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities can = inner_->capabilities();
    can.tells_time = tells_;
    return can;
  }

 private:
  const Answers answers_;
  const bool tells_;
  bool known_ = false;
};

TEST(LearnNow, AsksAStoreThatTellsOnlyWithAnAnswer) {
  const testing::ManualClock clock{now};
  FarStore store(FarStore::Answers::with_time);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(learn_now(store, clock), (StoreTime{now - 2h, 500ms}));
  EXPECT_EQ(store.gets, 1);
}

TEST(LearnNow, DoesNotFallBackOnTheHostsClock) {
  const testing::ManualClock clock{now};
  const auto message = [&](FarStore::Answers answers) {
    FarStore store(answers);
    try {
      learn_now(store, clock);
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable);
      return std::string(error.what());
    }
    return std::string("it told");
  };
  EXPECT_EQ(message(FarStore::Answers::not_at_all), "gone");
  EXPECT_NE(message(FarStore::Answers::without_time).find("without a believable time"), std::string::npos);
  FarStore silent(FarStore::Answers::without_time, false);  // It never said that it would tell.
  EXPECT_EQ(learn_now(silent, clock), (StoreTime{now, 0ms}));
  EXPECT_EQ(silent.gets, 0);
}

TEST(Sweep, TakesExpiredRecordsAndTheirResults) {
  const std::unique_ptr<Store> store = stores::make_memory_store();
  const auto shelf = std::make_shared<Shelf>();
  for (int i = 0; i < 1'200; ++i) {
    Record record = in_standing(i % 2 == 0 ? Standing::expired : Standing::completed);
    record.key = Key("s", std::to_string(i)).stored();
    if (i % 3 == 0) {
      record.result = {};
      record.result.placement = Placement::offloaded;
      record.result.location = record.key;
      shelf->kept[record.key] = "bytes";
    }
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  Swept swept = sweep(*store, {.expired_before = now - 1ms, .offload = shelf, .progress = {}});
  EXPECT_EQ(swept.removed, 0U);
  swept = sweep(*store, {.expired_before = now, .offload = shelf, .progress = {}});
  EXPECT_FALSE(swept.error);
  EXPECT_EQ(swept.removed, 600U);
  EXPECT_EQ(swept.results_removed, 200U);
  EXPECT_EQ(shelf->kept.size(), 200U);
  Counts counts;
  EXPECT_FALSE(for_each(*store, {}, now, [&](const Record& record) {
    count(record, now, counts);
    return true;
  }));
  EXPECT_EQ(counts.of(Standing::completed), 600U);
  EXPECT_EQ(counts.records, 600U);
}

TEST(Sweep, StopsWhenItIsToldTo) {
  const std::unique_ptr<Store> store = stores::make_memory_store();
  for (int i = 0; i < 1'200; ++i) {
    Record record = in_standing(Standing::expired);
    record.key = Key("s", std::to_string(i)).stored();
    ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }
  const Swept swept =
      sweep(*store,
            {.expired_before = now, .offload = nullptr, .progress = [](std::size_t removed) { return removed == 0; }});
  EXPECT_EQ(swept.removed, 500U);
}

TEST(Sweep, SaysWhatStoppedIt) {
  const std::unique_ptr<Store> store = stores::make_memory_store();
  const auto shelf = std::make_shared<Shelf>();
  shelf->broken = true;
  Record record = in_standing(Standing::expired);
  record.result.placement = Placement::offloaded;
  record.result.location = "x";
  ASSERT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  const Swept swept = sweep(*store, {.expired_before = now, .offload = shelf, .progress = {}});
  ASSERT_TRUE(swept.error);
  EXPECT_EQ(swept.error->message, "broken");
  EXPECT_EQ(swept.removed, 1U);
}

std::optional<Error> probed(Store& store) {
  const once::testing::ManualClock clock;
  return wait_for<std::optional<Error>>(
      [&](Callback<void(std::optional<Error>)> done) { probe(store, clock, *system_random(), "h", std::move(done)); });
}

TEST(Probe, LeavesNothing) {
  const std::unique_ptr<Store> store = stores::make_memory_store();
  EXPECT_FALSE(probed(*store));
  EXPECT_TRUE(blocking::list(*store, {}).records.empty());
}

TEST(Probe, NamesTheStepThatFailed) {
  using once::testing::Fault;
  using once::testing::StoreCall;
  for (const auto& [operation, step] : {std::pair{StoreCall::Operation::insert, "written"},
                                        {StoreCall::Operation::get, "read"},
                                        {StoreCall::Operation::remove, "removed"}}) {
    const auto clock = std::make_shared<once::testing::ManualClock>();
    once::testing::FaultyStore store(stores::make_memory_store(clock), [failing = operation](const StoreCall& call) {
      return Fault{.kind = call.operation == failing ? Fault::Kind::unavailable : Fault::Kind::none};
    });
    const std::optional<Error> error = probed(store);
    ASSERT_TRUE(error) << step;
    EXPECT_EQ(error->kind, ErrorKind::unavailable);
    EXPECT_TRUE(error->message.starts_with(std::string("a record could not be ") + step + ": ")) << error->message;
    for (const Record& left : blocking::list(store, {}).records) {  // It is nobody's work, and expires.
      EXPECT_EQ(left.state, State::completed);
      EXPECT_EQ(left.expires_at, once::testing::manual_start + 60s);
    }
  }
}

}  // namespace operate_test
}  // namespace once::operate
