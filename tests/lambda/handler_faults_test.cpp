// What goes wrong around a handler: timeouts, freezes, a store that is down, handlers that spoil their event, and
// duplicates at the same time. After each it is counted how often the work ran and what the records say.
#include <once/engine/within_invocation.hpp>
#include <once/frontends/lambda/idempotent.hpp>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>

#include "handler_test.hpp"

namespace once::lambda {
namespace handler_faults_test {

using ::testing::Each;

constexpr std::string_view order = R"({"id":"order-17","cents":500})";

// A card and its charges. The bank knows no idempotency keys: it charges as often as it is asked.
class HandlerFaults : public HandlerTest {
 protected:
  Handler payment(Process& in, const IdempotentOptions& with, std::function<void(Context&)> between = {}) {
    return idempotent(*in.engine, with, [this, &in, between = std::move(between)](std::string_view, Context& context) {
      ++runs;
      const std::string charge = context.step("charge", [&] { return "ch_" + std::to_string(++charges); });
      if (between) between(context);
      return charge + " by " + in.engine->options().holder;
    });
  }

  static IdempotentOptions with(OnLapse on_lapse) {
    IdempotentOptions made = options();
    made.policy = Policy{.retention = 24h, .skew = 2s, .on_lapse = on_lapse};
    return made;
  }

  // The platform kills the environment at the deadline, in the middle of the work: later requests do not arrive, and
  // its response is lost.
  void time_out(Process& dying, const IdempotentOptions& options, Millis timeout) {
    const auto dies = [&](Context&) {
      dying.cut();
      clock->advance(timeout + 1s);
    };
    static_cast<void>(payment(dying, options, dies)(order, invocation(timeout, "req-1")));
    EXPECT_EQ(dying.told(EventKind::unrecorded), 1U);
  }

  int runs = 0;
  int charges = 0;
};

TEST_F(HandlerFaults, AfterATimeoutTheRetryGoesOnAfterTheCharge) {
  const IdempotentOptions options = with(OnLapse::takeover);
  time_out(process(), options, 3s);
  EXPECT_EQ(record().state, State::in_progress);
  EXPECT_EQ(record().steps.size(), 1U);

  Process& next = process();
  const Handler handler = payment(next, options);
  EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::conflict) << "the lease and the skew";
  clock->advance(5s);
  EXPECT_EQ(handler(order, invocation(30s, "req-2")), "ch_1 by host:2");
  EXPECT_EQ(handler(order, invocation(30s, "req-3")), "ch_1 by host:2");
  EXPECT_EQ(charges, 1) << "charged once, by the attempt that died";
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(next.told(EventKind::took_over), 1U);
  EXPECT_EQ(record().attempt, 2U);
  EXPECT_EQ(record().holder, "host:2 req-2");
}

TEST_F(HandlerFaults, AfterATimeoutUnderHoldNothingRunsUntilSomebodyDecides) {
  const IdempotentOptions options = with(OnLapse::hold);
  time_out(process(), options, 3s);

  Process& next = process();
  const Handler handler = payment(next, options);
  EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::conflict);
  clock->advance(5s);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::outcome_unknown);
    clock->advance(24h);
  }
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(record().state, State::unknown);
  EXPECT_EQ(record().steps.size(), 1U) << "whoever decides sees how far it got";

  Record decided = record();
  const Seen seen{decided.owner, decided.revision, 0};
  complete(decided, Result::inlined("ch_1 by hand", "application/json"), effective(*options.policy),
           Stamp(clock->now(), 0));
  ASSERT_EQ(blocking::replace(*shared, decided, seen).status, AnswerStatus::done);
  EXPECT_EQ(handler(order, invocation()), "ch_1 by hand");
  EXPECT_EQ(runs, 1);
}

TEST_F(HandlerFaults, ThawedAfterAnotherHasFinishedItGivesTheResultThatCounts) {
  IdempotentOptions options = with(OnLapse::takeover);
  options.on_replay = [](const std::string& response, const Record&) { return response + ", replayed"; };
  Process& frozen = process();
  Process& other = process();
  const auto freezes = [&](Context& context) {
    EXPECT_FALSE(context.stop_token().stop_requested());
    timers->advance(10min);  // Frozen, and thawed by the platform's next event.
    EXPECT_TRUE(context.stop_token().stop_requested());
    EXPECT_EQ(payment(other, options)(order, invocation(30s, "req-2")), "ch_1 by host:2");
  };
  EXPECT_EQ(payment(frozen, options, freezes)(order, invocation(30s, "req-1")), "ch_1 by host:2, replayed");
  EXPECT_EQ(frozen.told(EventKind::finish_refused), 1U) << "the late finish was refused, and it says so";
  EXPECT_EQ(frozen.told(EventKind::completed), 0U);
  EXPECT_EQ(charges, 1);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(record().result.bytes, "ch_1 by host:2");
  EXPECT_EQ(record().attempt, 2U);
}

TEST_F(HandlerFaults, ThawedWhileAnotherIsAtItItsResponseIsAnError) {
  const IdempotentOptions options = with(OnLapse::takeover);
  Process& frozen = process();
  Process& other = process();
  Claim claim;
  const auto freezes = [&](Context&) {
    timers->advance(10min);
    const WithinInvocation another_process({});
    Begin begin = other.engine->begin(
        Request{.key = Key::from_stored(record().key), .fingerprint = {}, .policy = options.policy, .holder = {}});
    ASSERT_EQ(begin.kind, Begin::Kind::claimed);
    claim = std::move(begin.claim);
  };
  EXPECT_EQ(error_of([&] { return payment(frozen, options, freezes)(order, invocation()); }), errors::claim_lost);
  EXPECT_EQ(frozen.told(EventKind::finish_refused), 1U);
  EXPECT_EQ(record().state, State::in_progress) << "the other's claim is as it was";
  EXPECT_EQ(claim.step("charge"), "ch_1");
  EXPECT_EQ(claim.complete(Result::inlined("the other's")).kind, Finish::Kind::recorded);
  EXPECT_EQ(payment(frozen, options)(order, invocation()), "the other's") << "a retry gets what counts";
  EXPECT_EQ(charges, 1);
  EXPECT_EQ(runs, 1);
}

TEST_F(HandlerFaults, ThawedItBeginsNoFurtherStep) {
  const IdempotentOptions options = with(OnLapse::takeover);
  Process& frozen = process();
  int mails = 0;
  const auto freezes = [&](Context& context) {
    timers->advance(10min);
    context.step("mail", [&] { ++mails; });
  };
  EXPECT_EQ(error_of([&] { return payment(frozen, options, freezes)(order, invocation()); }), errors::claim_lost);
  EXPECT_EQ(mails, 0) << "somebody else may be sending it now";
  EXPECT_EQ(record().state, State::in_progress);
  EXPECT_EQ(payment(process(), options)(order, invocation()), "ch_1 by host:2");
  EXPECT_EQ(charges, 1);
}

TEST_F(HandlerFaults, WithTheStoreDownNothingRuns) {
  const IdempotentOptions options = with(OnLapse::takeover);
  Process& one = process();
  one.cut();
  const Handler handler = payment(one, options);
  EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::store_unavailable);
  EXPECT_EQ(runs, 0);
  one.heal();
  EXPECT_EQ(handler(order, invocation()), "ch_1 by host:1");
  EXPECT_EQ(runs, 1);
}

TEST_F(HandlerFaults, WithTheStoreDownItRunsUnprotectedOnlyIfPolicySaysSo) {
  IdempotentOptions options = with(OnLapse::takeover);
  options.policy->on_store_down = OnStoreDown::run_unprotected;
  Process& one = process();
  one.cut();
  EXPECT_EQ(payment(one, options)(order, invocation()), "ch_1 by host:1");
  EXPECT_EQ(one.told(EventKind::unprotected), 1U);
  EXPECT_EQ(records().size(), 0U);
}

TEST_F(HandlerFaults, AnAnswerLostAtTheClaimMakesNoSecondRun) {
  const IdempotentOptions options = with(OnLapse::takeover);
  Process& one = process();
  one.store->set_plan([](const once::testing::StoreCall& call) {
    return once::testing::Fault{.kind = call.number == 0 ? once::testing::Fault::Kind::lost_after
                                                         : once::testing::Fault::Kind::none};
  });
  std::atomic<bool> over = false;
  std::thread pump([&] {  // The engine asks again after a pause.
    while (!over) {
      if (one.store->counts().calls == 1 && timers->pending() == 1) timers->run_next();
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(payment(one, options)(order, invocation()), "ch_1 by host:1");
  over = true;
  pump.join();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(one.told(EventKind::resumed), 1U);
  EXPECT_EQ(record().state, State::completed);
}

TEST_F(HandlerFaults, AResultThatCannotBeWrittenIsGivenAndSaidToBeUnrecorded) {
  const IdempotentOptions options = with(OnLapse::takeover);
  Process& one = process();
  const auto goes_down = [&](Context&) {
    one.cut();
    clock->advance(31s);  // Past the deadline, so that nothing is tried again.
  };
  EXPECT_EQ(payment(one, options, goes_down)(order, invocation()), "ch_1 by host:1");
  EXPECT_EQ(one.told(EventKind::unrecorded), 1U);

  IdempotentOptions raising = options;
  raising.policy->on_unrecorded = OnUnrecorded::fail;
  one.heal();
  clock->advance(1h);
  EXPECT_EQ(error_of([&] { return payment(one, raising, goes_down)(order, invocation()); }), errors::not_recorded);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(charges, 1) << "the step was kept";
}

TEST_F(HandlerFaults, AHandlerThatTakesItsEventApartSpoilsNothing) {
  Process& one = process();
  const Handler consumes = idempotent(*one.engine, options(), [&](std::string event, Context&) {
    ++runs;
    std::string taken = std::move(event);
    event = R"({"id":"another"})";
    taken.clear();
    return "consumed";
  });
  EXPECT_EQ(consumes(order, invocation()), "consumed");
  EXPECT_EQ(consumes(order, invocation()), "consumed");

  // Even the bytes that the runtime owns.
  std::string buffer(R"({"id":"order-18"})");
  const Handler scribbles = idempotent(*one.engine, options(), [&](std::string_view) {
    ++runs;
    buffer.assign(R"({"id":"order-99"})");
    return "scribbled";
  });
  EXPECT_EQ(scribbles(buffer, invocation()), "scribbled");
  EXPECT_EQ(buffer, R"({"id":"order-99"})");
  EXPECT_EQ(scribbles(R"({"id":"order-18"})", invocation()), "scribbled");
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(records().size(), 2U);
  for (const Record& stored : records()) EXPECT_EQ(stored.state, State::completed);
}

TEST_F(HandlerFaults, NestedHandlersThatRunAtTheSameTimeCompleteTheirOwnRecords) {
  Engine& engine = *process().engine;
  IdempotentOptions inner_options = options("item");
  inner_options.name = "item";
  const Handler item =
      idempotent(engine, inner_options, [](std::string_view event) { return "did " + std::string(event); });
  const Handler outer = idempotent(engine, options(), [&](std::string_view, const Invocation& of) {
    std::vector<std::string> done(4);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < done.size(); ++i) {
      threads.emplace_back([&, i] { done[i] = item("{\"item\":" + std::to_string(i) + "}", of); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], "did {\"item\":" + std::to_string(i) + "}");
    return "all";
  });
  EXPECT_EQ(outer(order, invocation()), "all");
  ASSERT_EQ(records().size(), 5U);
  for (int i = 0; i < 4; ++i) {
    const std::string event = "{\"item\":" + std::to_string(i) + "}";
    EXPECT_EQ(item(event, invocation()), "did " + event);
  }
  EXPECT_EQ(outer(order, invocation()), "all");
}

TEST_F(HandlerFaults, OfDuplicatesAtTheSameTimeOneRuns) {
  Process& here = process();
  Process& there = process();
  constexpr int others = 7;
  std::latch refused(others);
  std::latch running(1);
  std::atomic<int> work_runs = 0;
  const auto work = [&](std::string_view) {
    ++work_runs;
    running.count_down();
    refused.wait();
    return "done";
  };
  const Handler in_one = idempotent(*here.engine, options(), work);
  const Handler in_two = idempotent(*there.engine, options(), work);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { EXPECT_EQ(in_one(order, invocation()), "done"); });
  for (int i = 0; i < others; ++i) {
    threads.emplace_back([&, i] {
      running.wait();
      const Handler& handler = i % 2 == 0 ? in_one : in_two;
      EXPECT_EQ(error_of([&] { return handler(order, invocation()); }), errors::conflict);
      refused.count_down();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(work_runs, 1);
  EXPECT_EQ(in_two(order, invocation()), "done");
  EXPECT_EQ(work_runs, 1);
  EXPECT_EQ(record().state, State::completed);
}

TEST(HandlerDuplicates, ThoseThatWaitGetTheResponse) {
  Engine engine({.store = stores::make_memory_store(), .policy = {.on_conflict = OnConflict::wait}});
  IdempotentOptions with;
  with.key = "id";
  with.environment = Environment{.function_name = "pay-fn", .handler = "bootstrap", .disabled = {}};
  constexpr int count = 8;
  std::latch all_there(count);
  std::atomic<int> runs = 0;
  const Handler handler = idempotent(engine, with, [&](std::string_view) {
    all_there.wait();
    return std::to_string(++runs);
  });
  std::vector<std::string> got(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      all_there.count_down();
      got[static_cast<std::size_t>(i)] = handler(order, Invocation{});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(got, Each("1"));
  EXPECT_EQ(runs, 1);
}

}  // namespace handler_faults_test
}  // namespace once::lambda
