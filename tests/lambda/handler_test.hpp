// What the tests of Lambda's handlers share: processes (engines) that have a store and a clock in common.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

namespace once::lambda {

using namespace std::chrono_literals;

// One execution environment: an engine, and the wire between it and the store, which can be cut.
class Process {
 public:
  template <class Change>
  Process(std::shared_ptr<Store> shared, std::shared_ptr<once::testing::ManualClock> clock,
          std::shared_ptr<once::testing::ManualTimers> timers, std::uint64_t seed, Change change)
      : store(std::make_shared<once::testing::FaultyStore>(std::move(shared), once::testing::no_faults())) {
    EngineOptions options;
    options.store = store;
    options.scope = "shop";
    options.holder = "host:" + std::to_string(seed);
    options.clock = std::move(clock);
    options.timers = std::move(timers);
    options.random = std::make_shared<once::testing::SeededRandom>(seed);
    options.observer = [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      kinds_.push_back(event.kind);
    };
    change(options);
    engine = std::make_unique<Engine>(std::move(options));
  }

  // Nothing that it asks arrives any more: the process was killed, as far as the store can tell.
  void cut() {
    store->set_plan([](const auto&) { return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable}; });
  }
  void heal() { store->set_plan(once::testing::no_faults()); }

  [[nodiscard]] std::size_t told(EventKind kind) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count(kinds_.begin(), kinds_.end(), kind));
  }

  const std::shared_ptr<once::testing::FaultyStore> store;
  std::unique_ptr<Engine> engine;

 private:
  mutable std::mutex mutex_;
  std::vector<EventKind> kinds_;
};

class HandlerTest : public ::testing::Test {
 protected:
  template <class Change>
  Process& process(Change change) {
    processes.push_back(std::make_unique<Process>(shared, clock, timers, processes.size() + 1, change));
    return *processes.back();
  }
  Process& process() {
    return process([](EngineOptions&) {});
  }

  void TearDown() override {
    for (const auto& process : processes) process->heal();
    for (int i = 0; i < 1'000 && timers->run_next(); ++i) {
    }
    EXPECT_EQ(timers->pending(), 0U);
  }

  [[nodiscard]] Invocation invocation(Millis left = 30s, std::string request_id = "req-1") const {
    Invocation invocation;
    invocation.request_id = std::move(request_id);
    invocation.deadline = clock->now() + left;
    return invocation;
  }

  [[nodiscard]] std::vector<Record> records() const { return blocking::list(*shared, {}).records; }
  // The only record in the store.
  [[nodiscard]] Record record() const {
    const std::vector<Record> all = records();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? Record() : all.front();
  }

  static IdempotentOptions options(std::string key = "id") {
    IdempotentOptions options;
    options.key = std::move(key);
    options.environment = Environment{.function_name = "pay-fn", .handler = "bootstrap", .disabled = {}};
    return options;
  }

  // The type of the error that the call ends with, or "" and a failure.
  template <class Call>
  static std::string error_of(Call&& call) {
    try {
      const std::string response = call();
      ADD_FAILURE() << "a response in place of an error: " << response;
      return {};
    } catch (const FunctionError& error) {
      EXPECT_STRNE(error.what(), "");
      return error.type();
    }
  }

  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  std::shared_ptr<once::testing::ManualTimers> timers = std::make_shared<once::testing::ManualTimers>(clock);
  std::shared_ptr<Store> shared = stores::make_memory_store(clock);
  std::vector<std::unique_ptr<Process>> processes;
};

}  // namespace once::lambda
