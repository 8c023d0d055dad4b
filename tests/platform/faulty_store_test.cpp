#include <gtest/gtest.h>

#include <map>
#include <vector>

#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

namespace once::testing {
namespace faulty_store_test {

using Kind = Fault::Kind;

// A memory store behind faults, in virtual time.
struct Bench {
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<Store> inner = stores::make_memory_store(clock);
  Fault fault;
  std::unique_ptr<FaultyStore> store = std::make_unique<FaultyStore>(
      inner, [this](const StoreCall&) { return fault; }, clock, timers);
  std::vector<Answer> answers;

  void insert(std::string key, std::uint8_t owner = 1) {
    Record record = plain_record(std::move(key));
    record.owner = owner_of(owner);
    store->insert(share(std::move(record)), [this](Answer answer) { answers.push_back(std::move(answer)); });
  }
  void get(std::string key) {
    store->get(std::move(key), [this](Answer answer) { answers.push_back(std::move(answer)); });
  }
  std::optional<Record> there(std::string key) {
    std::optional<Record> found;
    inner->get(std::move(key), [&](Answer answer) { found = copy_of(answer.record); });
    return found;
  }
};

TEST(FaultyStore, lets_through_what_has_no_fault) {
  Bench bench;
  bench.insert("k");
  ASSERT_EQ(bench.answers.size(), 1U);
  EXPECT_EQ(bench.answers[0].status, AnswerStatus::done);
  EXPECT_TRUE(bench.there("k"));
  EXPECT_EQ(bench.store->name(), "faulty:memory:");
  EXPECT_EQ(bench.store->capabilities().max_record_bytes, bench.inner->capabilities().max_record_bytes);
  EXPECT_EQ(bench.store->counts().calls, 1U);
  EXPECT_EQ(bench.store->counts().faults, 0U);
}

TEST(FaultyStore, each_kind_does_what_it_says) {
  struct Expected {
    Kind kind;
    bool written;
    AnswerStatus status;
    ErrorKind error;
  };
  for (const Expected& e : {Expected{Kind::none, true, AnswerStatus::done, {}},
                            Expected{Kind::unavailable, false, AnswerStatus::failed, ErrorKind::unavailable},
                            Expected{Kind::lost_before, false, AnswerStatus::failed, ErrorKind::in_doubt},
                            Expected{Kind::lost_after, true, AnswerStatus::failed, ErrorKind::in_doubt},
                            Expected{Kind::resent, true, AnswerStatus::refused, {}},
                            Expected{Kind::repeated, true, AnswerStatus::done, {}}}) {
    Bench bench;
    bench.fault = {.kind = e.kind};
    bench.insert("k");
    ASSERT_EQ(bench.answers.size(), 1U) << to_string(e.kind);
    EXPECT_EQ(bench.answers[0].status, e.status) << to_string(e.kind);
    if (e.status == AnswerStatus::failed) {
      EXPECT_EQ(bench.answers[0].error.kind, e.error) << to_string(e.kind);
      EXPECT_FALSE(bench.answers[0].error.message.empty());
    }
    if (e.kind == Kind::resent) {
      EXPECT_EQ(bench.answers[0].record->owner, owner_of(1)) << "its own record is in the way";
    }
    EXPECT_EQ(bench.there("k").has_value(), e.written) << to_string(e.kind);
    EXPECT_EQ(bench.store->counts().faults, e.kind == Kind::none ? 0U : 1U);
    // A read that is lost has done nothing: never in doubt.
    bench.get("k");
    if (e.kind == Kind::lost_before || e.kind == Kind::lost_after) {
      EXPECT_EQ(bench.answers[1].error.kind, ErrorKind::unavailable);
    }
  }
}

TEST(FaultyStore, delays_make_calls_overtake_each_other) {
  Bench bench;
  bench.fault = {.request_delay = Millis{10}};
  bench.insert("k", 1);
  bench.fault = {.answer_delay = Millis{20}};
  bench.insert("k", 2);
  EXPECT_TRUE(bench.answers.empty());
  EXPECT_EQ(bench.there("k")->owner, owner_of(2)) << "the second was carried out at once";
  EXPECT_EQ(bench.store->counts().under_way, 2U);
  bench.timers->advance(Millis{10});
  ASSERT_EQ(bench.answers.size(), 1U);
  EXPECT_EQ(bench.answers[0].status, AnswerStatus::refused);
  bench.timers->advance(Millis{9});
  EXPECT_EQ(bench.answers.size(), 1U);
  bench.timers->advance(Millis{1});
  ASSERT_EQ(bench.answers.size(), 2U);
  EXPECT_EQ(bench.answers[1].status, AnswerStatus::done);
  EXPECT_EQ(bench.store->counts().under_way, 0U);
  EXPECT_EQ(bench.store->counts().delayed, 2U);
}

TEST(FaultyStore, a_repetition_may_come_much_later) {
  Bench bench;
  bench.fault = {.kind = Kind::repeated, .repeat_after = Millis{1000}};
  bench.insert("k");
  ASSERT_EQ(bench.answers.size(), 1U);
  EXPECT_EQ(bench.answers[0].status, AnswerStatus::done);
  bench.inner->remove("k", seen_of(*bench.there("k")), [](Answer) {});
  EXPECT_FALSE(bench.there("k"));
  bench.timers->advance(Millis{1000});
  EXPECT_TRUE(bench.there("k")) << "the old insert arrived once more";
  EXPECT_EQ(bench.answers.size(), 1U) << "and nobody hears of it";
}

TEST(FaultyStore, destruction_answers_in_doubt_and_carries_out_nothing_more) {
  Bench bench;
  bench.fault = {.request_delay = Millis{10}};
  bench.insert("waiting");
  bench.get("waiting");
  bench.fault = {.answer_delay = Millis{10}};
  bench.insert("written");
  bench.fault = {.kind = Kind::repeated, .repeat_after = Millis{10}};
  bench.insert("once");
  bench.inner->remove("once", seen_of(*bench.there("once")), [](Answer) {});
  ASSERT_EQ(bench.answers.size(), 1U);
  bench.store.reset();
  ASSERT_EQ(bench.answers.size(), 4U);
  EXPECT_EQ(bench.answers[1].error.kind, ErrorKind::in_doubt);
  EXPECT_EQ(bench.answers[2].error.kind, ErrorKind::unavailable) << "the read";
  EXPECT_EQ(bench.answers[3].error.kind, ErrorKind::in_doubt);
  bench.timers->advance(Millis{1000});
  EXPECT_EQ(bench.answers.size(), 4U);
  EXPECT_FALSE(bench.there("waiting"));
  EXPECT_TRUE(bench.there("written"));
  EXPECT_FALSE(bench.there("once"));
}

TEST(FaultyStore, lists_and_sweeps_fail_too) {
  Bench bench;
  bench.fault = {.kind = Kind::unavailable};
  std::optional<ListPage> page;
  bench.store->list({}, [&](ListPage p) { page = std::move(p); });
  ASSERT_TRUE(page && page->error);
  EXPECT_EQ(page->error->kind, ErrorKind::unavailable);
  bench.fault = {.kind = Kind::lost_after};
  std::optional<SweepAnswer> swept;
  Record old = plain_record("old");
  old.expires_at = Time{};
  bench.inner->insert(share(old), [](Answer) {});
  bench.store->sweep(manual_start, 10, [&](SweepAnswer s) { swept = std::move(s); });
  ASSERT_TRUE(swept && swept->error);
  EXPECT_FALSE(bench.there("old")) << "it was carried out all the same";
}

TEST(FaultyStore, the_plan_sees_every_call_in_order) {
  std::vector<std::string> calls;
  FaultyStore store(std::shared_ptr<Store>(stores::make_memory_store()), [&](const StoreCall& call) {
    calls.push_back(std::to_string(call.number) + " " + std::string(to_string(call.operation)) + " " +
                    std::string(call.key) + (call.is_write() ? " w" : ""));
    return Fault{};
  });
  const Record record = plain_record("a#1");
  store.insert(share(record), [](Answer) {});
  store.replace(share(record), seen_of(record), [](Answer) {});
  store.get("a#2", [](Answer) {});
  store.list({}, [](ListPage) {});
  store.sweep(manual_start, 1, [](SweepAnswer) {});
  store.remove("a#1", seen_of(record), [](Answer) {});
  EXPECT_EQ(calls, (std::vector<std::string>{"0 insert a#1 w", "1 replace a#1 w", "2 get a#2", "3 list ", "4 sweep ",
                                             "5 remove a#1 w"}));
}

TEST(FaultyStore, a_seed_repeats_its_faults_at_the_rates_it_was_given) {
  const FaultRates rates{.unavailable = 100,
                         .lost_before = 100,
                         .lost_after = 100,
                         .resent = 100,
                         .repeated = 100,
                         .delayed = 500,
                         .max_delay = Millis{50}};
  const FaultPlan one = random_faults(rates, 5);
  const FaultPlan two = random_faults(rates, 5);
  std::map<Kind, int> count;
  int delayed = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Fault fault = one(StoreCall{});
    const Fault same = two(StoreCall{});
    ASSERT_EQ(fault.kind, same.kind);
    ASSERT_EQ(fault.request_delay, same.request_delay);
    ASSERT_EQ(fault.answer_delay, same.answer_delay);
    ASSERT_LE(fault.request_delay, Millis{50});
    ++count[fault.kind];
    delayed += fault.request_delay > Millis{0} ? 1 : 0;
  }
  for (const Kind kind : {Kind::unavailable, Kind::lost_before, Kind::lost_after, Kind::resent, Kind::repeated}) {
    EXPECT_GT(count[kind], 800) << to_string(kind);
    EXPECT_LT(count[kind], 1200) << to_string(kind);
  }
  EXPECT_GT(delayed, 4500);
  EXPECT_LT(delayed, 5500);
  EXPECT_EQ(no_faults()(StoreCall{}).kind, Kind::none);
}

TEST(FaultyStore, bad_arguments_are_misuse) {
  const std::shared_ptr<Store> inner = stores::make_memory_store();
  EXPECT_THROW(FaultyStore(nullptr, no_faults()), Exception);
  EXPECT_THROW(FaultyStore(inner, nullptr), Exception);
  EXPECT_THROW(FaultyStore(inner, no_faults(), std::make_shared<ManualClock>(), nullptr), Exception);
  FaultyStore store(inner, no_faults());
  EXPECT_THROW(store.set_plan(nullptr), Exception);
}

}  // namespace faulty_store_test
}  // namespace once::testing
