// idempotent() and Engine::run() by completion tokens of Boost.Asio.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_future.hpp>

#include <once/codec_json.hpp>
#include <once/idempotent_asio.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/script_store.hpp"

namespace asio_test {

namespace asio = boost::asio;
using once::Outcome;
using once::testing::ScriptStore;
using testing::HasSubstr;

struct Order {
  std::string id;
  int cents = 0;
};

struct Receipt {
  std::string charge;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, charge)

// How a call ended, in a completion.
template <class T>
struct Ended {
  bool called = false;
  std::exception_ptr error;
  T value{};
  auto handler() {
    return [this](std::exception_ptr e, T v) {
      called = true;
      error = std::move(e);
      value = std::move(v);
    };
  }
  [[nodiscard]] bool aborted() const {
    if (!error) return false;
    try {
      std::rethrow_exception(error);
    } catch (const boost::system::system_error& e) {
      return e.code() == asio::error::operation_aborted;
    } catch (...) {
      return false;
    }
  }
};

class AsioTest : public testing::Test {
 protected:
  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  std::shared_ptr<once::testing::ManualTimers> timers = std::make_shared<once::testing::ManualTimers>(clock);
  std::shared_ptr<once::Store> store = once::stores::make_memory_store();
  std::vector<once::EventKind> events;
  once::Engine engine{{.store = store,
                       .scope = "shop",
                       .observer = [this](const once::Event& event) { events.push_back(event.kind); },
                       .clock = clock,
                       .timers = timers}};
  asio::io_context io;
  int runs = 0;

  std::unique_ptr<once::Engine> engine_on(std::shared_ptr<once::Store> other) const {
    return std::make_unique<once::Engine>(
        once::EngineOptions{.store = std::move(other), .scope = "shop", .clock = clock, .timers = timers});
  }

  // Runs a coroutine to its end. What it throws, the test throws.
  template <class F>
  void play(F coroutine) {
    std::exception_ptr error;
    bool over = false;
    asio::co_spawn(io, std::move(coroutine), [&](std::exception_ptr e) {
      error = std::move(e);
      over = true;
    });
    io.restart();
    io.run();
    ASSERT_TRUE(over) << "nothing is left to do, but the coroutine has not ended";
    if (error) std::rethrow_exception(error);
  }

  auto charging() {
    return once::idempotent(engine, {.name = "charge", .key = &Order::id},
                            [this](const Order& order) -> asio::awaitable<Receipt> {
                              co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
                              co_return Receipt{order.id + " run " + std::to_string(++runs)};
                            });
  }

  once::Begin claimed_by_another(const std::string& id) {
    once::Begin other = engine.begin({.key = once::Key("shop/charge", id), .fingerprint = {}});
    EXPECT_EQ(other.kind, once::Begin::Kind::claimed);
    return other;
  }

  // Fires timers and runs the loop until there is no more work.
  void settle() {
    for (int i = 0; i < 100; ++i) {
      timers->advance(once::Millis{100});
      io.restart();
      io.poll();
    }
  }
};

// Arguments of a call that is awaited have names here: g++ 12 destroys what a list in braces makes there twice.
TEST_F(AsioTest, ACoroutineAwaitsTheOneResult) {
  const auto charge = charging();
  const Order first{"17"};
  const Order second{"18"};
  play([&]() -> asio::awaitable<void> {
    EXPECT_EQ((co_await charge(first)).charge, "17 run 1");
    EXPECT_EQ((co_await charge(first)).charge, "17 run 1");
    EXPECT_EQ((co_await charge(second)).charge, "18 run 2");
    const once::OutcomeOf<Receipt> outcome = co_await charge.outcome(second);
    EXPECT_EQ(outcome.kind, Outcome::Kind::replayed);
    EXPECT_EQ(outcome.answer->charge, "18 run 2");
  });
  EXPECT_EQ(runs, 2);
}

TEST_F(AsioTest, AnyCompletionTokenWillDo) {
  const auto charge = charging();
  auto future = charge({"17"}, asio::bind_executor(io, asio::use_future));
  Ended<Receipt> called;
  charge({"17"}, asio::bind_executor(io, called.handler()));
  Ended<Receipt> later;
  auto deferred = charge({"18"}, asio::deferred);
  io.run();
  EXPECT_EQ(future.get().charge, "17 run 1");
  EXPECT_EQ(called.value.charge, "17 run 1");
  EXPECT_EQ(runs, 1) << "what is deferred has not begun";
  std::move(deferred)(asio::bind_executor(io, later.handler()));
  io.restart();
  io.run();
  EXPECT_EQ(later.value.charge, "18 run 2");
  EXPECT_EQ(charge({"18"}, asio::use_future).get().charge, "18 run 2") << "without an executor: Asio's own";
}

TEST_F(AsioTest, TheEnginesRunTakesWorkOfEveryKind) {
  play([&]() -> asio::awaitable<void> {
    const auto request = [&](const char* key) { return engine.request(key, {}); };
    Outcome outcome = co_await once::async_run(engine, request("plain"), [] { return std::string("a"); });
    EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
    EXPECT_EQ(outcome.value(), "a");
    outcome = co_await once::async_run(engine, request("context"), [&](once::Context& context) {
      EXPECT_TRUE(context.is_protected());
      return context.step("one", [] { return std::string("b"); });
    });
    EXPECT_EQ(outcome.value(), "b");
    outcome = co_await once::async_run(engine, request("nothing"), []() -> asio::awaitable<void> { co_return; });
    EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
    const auto number = [&](once::Context&) -> asio::awaitable<int> { co_return ++runs; };
    EXPECT_EQ((co_await once::async_run(engine, request("number"), number)).value(), "1");
    EXPECT_EQ((co_await once::async_run(engine, request("number"), number)).kind, Outcome::Kind::replayed);
    const auto whole = []() -> asio::awaitable<once::Result> { co_return once::Result::inlined("c", "text/x"); };
    EXPECT_EQ((co_await once::async_run(engine, request("result"), whole)).result.content_type, "text/x");
  });
  EXPECT_EQ(runs, 1);
}

TEST_F(AsioTest, WhoComesWhileItRunsWaitsOnTheSameThread) {
  asio::steady_timer gate(io, std::chrono::steady_clock::time_point::max());
  const auto charge =
      once::idempotent(engine, {.name = "charge", .key = &Order::id}, [&](Order) -> asio::awaitable<int> {
        ++runs;
        boost::system::error_code opened;
        co_await gate.async_wait(asio::redirect_error(asio::use_awaitable, opened));
        co_return runs;
      });
  Ended<int> first;
  Ended<int> second;
  charge({"17"}, asio::bind_executor(io, first.handler()));
  charge({"17"}, asio::bind_executor(io, second.handler()));
  io.poll();
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(second.called);
  gate.cancel();
  settle();
  EXPECT_EQ(first.value, 1);
  EXPECT_TRUE(second.called);
  EXPECT_EQ(second.value, 1);
}

TEST_F(AsioTest, WhatTheWorkThrowsPassesThroughAndARetryRuns) {
  const auto failing =
      once::idempotent(engine, {.name = "failing", .key = &Order::id}, [&](const Order& order) -> asio::awaitable<int> {
        ++runs;
        if (order.cents < 0) throw std::runtime_error("card declined");
        co_return order.cents;
      });
  const auto storing =
      once::idempotent(engine, {.name = "storing", .key = &Order::id, .policy = {.on_throw = once::OnThrow::store}},
                       [&](const Order&) -> asio::awaitable<void> {
                         ++runs;
                         throw std::runtime_error("card declined");
                         co_return;
                       });
  const Order refused{"17", -1};
  const Order paid{"17", 5};
  play([&]() -> asio::awaitable<void> {
    EXPECT_THROW(co_await failing(refused), std::runtime_error);
    EXPECT_EQ(co_await failing(paid), 5);
    EXPECT_EQ(runs, 2);
    EXPECT_THROW(co_await storing(paid), std::runtime_error);
    EXPECT_THROW(co_await storing(paid), once::StoredFailure);
    EXPECT_EQ((co_await storing.outcome(paid)).kind, Outcome::Kind::stored_failure);
  });
  EXPECT_EQ(runs, 3);
}

TEST_F(AsioTest, WithoutAKeyItIsRefusedOrRunsUnprotectedIfThatIsChosen) {
  const auto charge = charging();
  const auto lenient = once::idempotent(
      engine, {.name = "lenient", .key = &Order::id, .policy = {.on_missing_key = once::OnMissingKey::run_unprotected}},
      [&](once::Context& context, const Order&) -> asio::awaitable<int> {
        EXPECT_FALSE(context.is_protected());
        co_return ++runs;
      });
  const Order unnamed{""};
  play([&]() -> asio::awaitable<void> {
    std::string refused;
    try {
      co_await charge(unnamed);
    } catch (const once::Exception& error) {
      refused = error.what();
    }
    EXPECT_THAT(refused, HasSubstr("was not run: these arguments have no key"));
    EXPECT_EQ((co_await charge.outcome(unnamed)).error.kind, once::ErrorKind::misuse);
    EXPECT_EQ(runs, 0);
    EXPECT_EQ(co_await lenient(unnamed), 1);
    EXPECT_EQ((co_await lenient.outcome(unnamed)).kind, Outcome::Kind::unprotected);
  });
}

TEST_F(AsioTest, ACallThatIsCancelledWhileItWaitsGivesUpTheClaimThatItGetsLater) {
  const auto charge = charging();
  once::Begin other = claimed_by_another("17");
  asio::cancellation_signal signal;
  Ended<Receipt> ended;
  charge({"17"}, asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, ended.handler())));
  io.poll();
  EXPECT_FALSE(ended.called);
  signal.emit(asio::cancellation_type::total);
  io.restart();
  io.poll();
  EXPECT_TRUE(ended.called) << "at once, and not when the wait would be over";
  EXPECT_TRUE(ended.aborted());

  other.claim.release("on second thoughts");
  settle();
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(claimed_by_another("17").claim.attempt(), 1U) << "nobody holds it";
}

TEST_F(AsioTest, ACallThatIsCancelledBeforeItsWorkBeginsReleasesItsClaim) {
  const auto charge = charging();
  asio::cancellation_signal signal;
  Ended<Receipt> ended;
  // The memory store has answered when this returns; the work would begin when the loop runs.
  charge({"17"}, asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, ended.handler())));
  EXPECT_EQ(events.back(), once::EventKind::claimed);
  signal.emit(asio::cancellation_type::terminal);
  EXPECT_EQ(events.back(), once::EventKind::released);
  io.run();
  EXPECT_TRUE(ended.aborted());
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(claimed_by_another("17").claim.attempt(), 1U);
}

TEST_F(AsioTest, WorkThatRunsIsAskedToStopAndItsResultIsKept) {
  asio::steady_timer gate(io, std::chrono::steady_clock::time_point::max());
  bool asked = false;
  const auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id},
                                       [&](once::Context& context, const Order&) -> asio::awaitable<std::string> {
                                         ++runs;
                                         const std::stop_callback on_stop(context.stop_token(), [&] { gate.cancel(); });
                                         boost::system::error_code woken;
                                         co_await gate.async_wait(asio::redirect_error(asio::use_awaitable, woken));
                                         asked = context.stop_token().stop_requested();
                                         co_return "half of it";
                                       });
  asio::cancellation_signal signal;
  Ended<std::string> ended;
  charge({"17"}, asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, ended.handler())));
  io.poll();
  EXPECT_EQ(runs, 1);
  signal.emit(asio::cancellation_type::total);
  io.poll();
  EXPECT_FALSE(ended.called) << "total: only what has no effect yet";
  signal.emit(asio::cancellation_type::terminal);
  io.poll();
  EXPECT_TRUE(asked);
  EXPECT_FALSE(ended.error) << "the work decides how it ends";
  EXPECT_EQ(ended.value, "half of it");
  Ended<std::string> again;
  charge({"17"}, asio::bind_executor(io, again.handler()));
  io.restart();
  io.poll();
  EXPECT_EQ(again.value, "half of it");
  EXPECT_EQ(runs, 1);
}

TEST_F(AsioTest, AClaimWhoseLeaseIsOverBeforeTheLoopRunsIsMadeAnew) {
  const auto charge = charging();
  Ended<Receipt> ended;
  charge({"17"}, asio::bind_executor(io, ended.handler()));
  clock->advance(std::chrono::minutes(1));
  io.run();
  EXPECT_EQ(ended.value.charge, "17 run 1");
  EXPECT_EQ(std::count(events.begin(), events.end(), once::EventKind::released), 1);
}

TEST_F(AsioTest, AClaimThatIsLostBeforeTheLoopRunsIsMadeAnew) {
  const auto charge = charging();
  Ended<Receipt> ended;
  charge({"17"}, asio::bind_executor(io, ended.handler()));
  const once::RecordPtr record = once::blocking::get(*store, once::Key("shop/charge", "17").stored()).record;
  ASSERT_TRUE(record);
  once::blocking::remove(*store, record->key, {record->owner, record->revision, 0});
  timers->advance(std::chrono::seconds(11));  // A heartbeat finds out, long before the lease ends.
  EXPECT_EQ(events.back(), once::EventKind::renewal_lost);
  io.run();
  EXPECT_FALSE(ended.error) << "the work ran under a claim that was known to be lost";
  EXPECT_EQ(ended.value.charge, "17 run 1");
}

TEST_F(AsioTest, ACallThatIsCancelledWhileItsLateClaimIsReleasedNeedsItsEngineNoMore) {
  const auto slow = std::make_shared<ScriptStore>(store);
  auto own = engine_on(slow);
  asio::cancellation_signal signal;
  Ended<Outcome> ended;
  const auto work = [&] { return std::to_string(++runs); };
  once::async_run(*own, own->request("17", {}), work,
                  asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, ended.handler())));
  clock->advance(std::chrono::minutes(1));
  slow->script({ScriptStore::Next::stall});  // The release, as the lease is over.
  io.poll();
  EXPECT_EQ(slow->stalled(), 1U);
  signal.emit(asio::cancellation_type::terminal);
  io.restart();
  io.poll();
  EXPECT_TRUE(ended.aborted());
  own.reset();
  slow->forget_calls();
  slow->answer_stalled();
  EXPECT_EQ(slow->calls(), std::vector<std::string>());
  EXPECT_EQ(runs, 0);
}

TEST_F(AsioTest, ALoopThatIsDestroyedDropsItsCallsAndTheClaimsWhoseWorkHasNotBegun) {
  const auto slow = std::make_shared<ScriptStore>(store);
  const auto own = engine_on(slow);
  auto loop = std::make_unique<asio::io_context>();
  const auto kept = std::make_shared<int>();
  const auto work = [this, kept] { return std::to_string(++runs); };
  Ended<Outcome> ended;
  slow->script({ScriptStore::Next::stall, ScriptStore::Next::stall});
  once::async_run(*own, own->request("17", {}), work, asio::bind_executor(*loop, ended.handler()));
  asio::co_spawn(
      *loop,
      [&]() -> asio::awaitable<void> {
        const Outcome outcome = co_await once::async_run(*own, own->request("18", {}), work);
        ADD_FAILURE() << "it ran";
      },
      asio::detached);
  loop->poll();
  EXPECT_EQ(slow->stalled(), 2U) << "17 and 18 wait for their claims";
  once::async_run(*own, own->request("19", {}), work, asio::bind_executor(*loop, ended.handler()));
  loop.reset();
  slow->answer_stalled();
  for (const char* const key : {"17", "18", "19"}) {
    EXPECT_EQ(once::blocking::get(*store, once::Key("shop", key).stored()).record, nullptr) << key;
  }
  EXPECT_FALSE(ended.called);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(kept.use_count(), 2) << "a call is left";
}

TEST_F(AsioTest, AnAwaitedStepBlocksNoThreadAndIsDoneOnce) {
  const auto slow = std::make_shared<ScriptStore>(store);
  const auto own = engine_on(slow);
  bool fails = true;
  const auto work = [&](once::Context& context) -> asio::awaitable<Receipt> {
    const Receipt receipt = co_await once::async_step(context, "charge", [this]() -> asio::awaitable<Receipt> {
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
      co_return Receipt{"ch_" + std::to_string(++runs)};
    });
    co_await once::async_step(context, "mail", [this] { ++runs; });
    if (fails) throw std::runtime_error("printer on fire");
    co_return receipt;
  };
  const auto call = [&]() -> asio::awaitable<void> {
    const Outcome outcome = co_await once::async_run(*own, own->request("17", {}), work);
    EXPECT_EQ(outcome.value(), R"({"charge":"ch_1"})");
  };
  slow->script({ScriptStore::Next::carry_out, ScriptStore::Next::stall});
  std::exception_ptr error;
  asio::co_spawn(io, call(), [&](std::exception_ptr e) { error = std::move(e); });
  io.poll();
  EXPECT_EQ(slow->stalled(), 1U) << "the write of the first step; the loop goes on";
  EXPECT_EQ(runs, 1);
  slow->answer_stalled();
  io.restart();
  io.run();
  ASSERT_TRUE(error);
  EXPECT_THROW(std::rethrow_exception(error), std::runtime_error);
  EXPECT_EQ(runs, 2);
  fails = false;
  play(call);
  EXPECT_EQ(runs, 2) << "both steps were finished before";
}

TEST_F(AsioTest, AnAwaitedStepThrowsAndRefusesWhatItsWorkMayNot) {
  const auto thrown_by = [&](auto step, const std::string& key, const std::string& name = "step") {
    const auto work = [&](once::Context& context) -> asio::awaitable<void> {
      co_await once::async_step(context, name, step);
    };
    play([&]() -> asio::awaitable<void> { co_await once::async_run(engine, engine.request(key, {}), work); });
  };
  EXPECT_THROW(thrown_by([]() -> asio::awaitable<std::string> { throw std::out_of_range("no such card"); }, "a"),
               std::out_of_range);
  EXPECT_THROW(thrown_by([] { return std::string("done"); }, "b", std::string(300, 'n')), once::Exception) << "misuse";
  const auto lost = [&]() -> asio::awaitable<void> {
    const std::string key = once::Key("shop", "c").stored();
    const once::RecordPtr record = once::blocking::get(*store, key).record;
    once::blocking::remove(*store, key, {record->owner, record->revision, 0});
    co_return;
  };
  EXPECT_THROW(thrown_by(lost, "c"), once::ClaimLost);
  int unprotected = 0;
  once::Engine off({.store = store, .scope = "shop", .disabled = true});
  const auto work = [&](once::Context& context) -> asio::awaitable<void> {
    co_await once::async_step(context, "s", [&] { ++unprotected; });
  };
  for (int i = 0; i < 2; ++i) {
    play([&]() -> asio::awaitable<void> { co_await once::async_run(off, off.request("d", {}), work); });
  }
  EXPECT_EQ(unprotected, 2);
}

TEST_F(AsioTest, ALoopThatIsDestroyedDropsWorkThatAwaitsAStep) {
  const auto slow = std::make_shared<ScriptStore>(store);
  const auto own = engine_on(slow);
  auto loop = std::make_unique<asio::io_context>();
  const auto kept = std::make_shared<int>();
  bool went_on = false;
  const auto work = [&, kept](once::Context& context) -> asio::awaitable<void> {
    co_await once::async_step(context, "charge", [this] { ++runs; });
    went_on = true;
  };
  Ended<Outcome> ended;
  slow->script({ScriptStore::Next::carry_out, ScriptStore::Next::stall});
  once::async_run(*own, own->request("17", {}), work, asio::bind_executor(*loop, ended.handler()));
  loop->poll();
  EXPECT_EQ(slow->stalled(), 1U);
  loop.reset();
  slow->answer_stalled();
  EXPECT_FALSE(ended.called);
  EXPECT_FALSE(went_on);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(kept.use_count(), 2) << "a call is left";
  const once::RecordPtr record = once::blocking::get(*store, once::Key("shop", "17").stored()).record;
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->state, once::State::in_progress) << "it lapses";
  EXPECT_EQ(record->steps.size(), 1U) << "and the step is kept for whoever takes over";
}

TEST_F(AsioTest, ACallWithoutAKeyThatIsCancelledTooEndsOnce) {
  const auto charge = charging();
  asio::cancellation_signal signal;
  Ended<Receipt> ended;
  charge({""}, asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, ended.handler())));
  signal.emit(asio::cancellation_type::terminal);
  io.run();
  EXPECT_TRUE(ended.error);
  EXPECT_FALSE(ended.aborted()) << "it was over before";
  EXPECT_EQ(runs, 0);
}

TEST_F(AsioTest, ArgumentsAreKeptForTheCall) {
  const auto join = once::idempotent(
      engine,
      {.name = "join",
       .key = [](const std::unique_ptr<int>& a, const std::string& b, const int&) { return b + std::to_string(*a); }},
      [&](std::unique_ptr<int> a, const std::string& b, int& calls) -> asio::awaitable<std::string> {
        co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
        ++calls;
        co_return b + std::to_string(*a);
      });
  Ended<std::string> ended;
  int calls = 0;
  join(std::make_unique<int>(7), std::string("a long text that is not kept in the string itself"), calls,
       asio::bind_executor(io, ended.handler()));
  io.run();
  EXPECT_EQ(ended.value, "a long text that is not kept in the string itself7");
  EXPECT_EQ(calls, 1) << "what is taken by reference reaches the callable";
}

// Boost 1.81's own yield_context cannot take an exception together with a value.
TEST_F(AsioTest, AStackfulCoroutineAwaitsTheOneResult) {
  const auto charge = charging();
  const auto fail =
      once::idempotent(engine, {.name = "fail", .key = &Order::id}, [](const Order&) -> asio::awaitable<Receipt> {
        throw std::runtime_error("declined");
        co_return Receipt{};
      });
  const auto mail = once::idempotent(engine, {.name = "mail", .key = &Order::id},
                                     [](const Order&) -> asio::awaitable<void> { co_return; });
  bool over = false;
  asio::spawn(
      io,
      [&](asio::yield_context yield) {
        EXPECT_EQ(charge({"17"}, yield).charge, "17 run 1");
        EXPECT_EQ(charge.outcome({"17"}, yield).kind, Outcome::Kind::replayed);
        mail({"17"}, yield);
        EXPECT_THROW(fail({"17"}, yield), std::runtime_error);
        EXPECT_EQ(once::async_run(
                      engine, engine.request("k", {}), [] { return std::string("x"); }, yield)
                      .result.bytes,
                  "x");
        over = true;
      },
      [](std::exception_ptr error) { EXPECT_FALSE(error); });
  io.run();
  EXPECT_TRUE(over);
}

// By then its work may have acted, so it is neither released nor failed.
TEST_F(AsioTest, AStackfulCoroutineDestroyedInItsWorkLapses) {
  auto loop = std::make_unique<asio::io_context>();
  store = once::stores::make_memory_store(clock);
  const auto on_clock = engine_on(store);
  once::Request request = on_clock->request("k", {});
  request.policy = once::Policy{.lease = once::Millis{30'000}, .on_conflict = once::OnConflict::fail};
  bool begun = false;
  asio::spawn(
      *loop,
      [&](asio::yield_context yield) {
        on_clock->run(request, [&] {
          asio::steady_timer timer(yield.get_executor(), std::chrono::hours(24));
          begun = true;
          timer.async_wait(yield);
          ADD_FAILURE() << "the work went on";
        });
      },
      asio::detached);
  loop->poll();
  ASSERT_TRUE(begun);
  loop.reset();
  const auto left = once::blocking::get(*store, request.key.stored()).record;
  ASSERT_NE(left, nullptr) << "released";
  EXPECT_EQ(left->state, once::State::in_progress);
  EXPECT_EQ(on_clock->run(request, [] { ADD_FAILURE() << "ran within the lease"; }).kind, Outcome::Kind::conflict);
  timers->advance(once::Millis{31'000});
  std::uint32_t attempt = 0;
  EXPECT_EQ(on_clock->run(request, [&](once::Context& context) { attempt = context.attempt(); }).kind,
            Outcome::Kind::executed);
  EXPECT_EQ(attempt, 2U);
}

}  // namespace asio_test
