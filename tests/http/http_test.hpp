// What the tests of once::http share.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/frontends/http/endpoint.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

#include "frontends/http/stored_answer.hpp"

namespace once::http {

inline void PrintTo(Opening::Kind kind, std::ostream* out) { *out << to_string(kind); }
inline void PrintTo(Fate fate, std::ostream* out) { *out << to_string(fate); }
inline void PrintTo(Problem problem, std::ostream* out) { *out << to_string(problem); }
inline void PrintTo(const Header& header, std::ostream* out) { *out << header.name << ": " << header.value; }
inline void PrintTo(Examination::Kind kind, std::ostream* out) {
  static constexpr const char* names[] = {"pass", "no_key", "refuse", "operation"};
  *out << names[static_cast<std::size_t>(kind)];
}
inline void PrintTo(const Answer& answer, std::ostream* out) {
  *out << answer.status << ' ' << answer.reason << '\n';
  for (const Header& header : answer.headers) *out << header.name << ": " << header.value << '\n';
  *out << '\n' << answer.body;
}

// Options that identify clients by the headers of post().
inline Options by_authorization() { return {.principal = Principal::header("Authorization")}; }

// A POST of /charges by alice, with a key unless it is empty.
inline Request post(std::string_view key, std::string_view body = "{}") {
  Request request{.method = "POST", .target = "/charges", .headers = {{"Authorization", "Bearer alice"}}, .body = body};
  if (!key.empty()) request.headers.push_back({"Idempotency-Key", key});
  return request;
}

inline Answer text_answer(unsigned status, std::string body = "done", Headers headers = {}) {
  return {.status = status, .reason = {}, .headers = std::move(headers), .body = std::move(body)};
}

// Runs it in a thread that it ends with pthread_exit(): the stack is unwound by what is no exception of C++.
inline void run_and_exit(std::function<void()> until_exit) {
  pthread_t thread{};
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* data) -> void* {
                  (*static_cast<std::function<void()>*>(data))();
                  return nullptr;
                },
                &until_exit),
            0);
  void* ended = nullptr;
  ASSERT_EQ(pthread_join(thread, &ended), 0);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
}

// The values of all lines of that name.
inline std::vector<std::string> values(const Answer& answer, std::string_view name) {
  std::vector<std::string> out;
  for (const Header& header : answer.headers) {
    if (same_name(header.name, name)) out.push_back(header.value);
  }
  return out;
}

inline bool is_replay(const Answer& answer) {
  return values(answer, replayed_header) == std::vector<std::string>{"true"};
}

// An engine over a memory store that can fail, with its own clock and timers.
class World {
 public:
  explicit World(Policy policy = {}) : World([&](EngineOptions& o) { o.policy = policy; }) {}

  template <class Change>
    requires std::invocable<Change, EngineOptions&>
  explicit World(Change change) {
    EngineOptions options;
    options.store = store;
    options.scope = "shop";
    options.holder = "host:1";
    options.clock = clock;
    options.timers = timers;
    options.random = std::make_shared<once::testing::SeededRandom>(1);
    options.observer = [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      kinds_.push_back(event.kind);
    };
    change(options);
    engine = std::make_unique<Engine>(std::move(options));
  }
  ~World() {
    heal();
    for (int i = 0; i < 1'000 && timers->run_next(); ++i) {
    }
  }

  // Each call of the store that this says so of fails as unavailable, until heal().
  void fail_if(std::function<bool(const once::testing::StoreCall&)> which,
               once::testing::Fault::Kind kind = once::testing::Fault::Kind::unavailable) {
    store->set_plan([which = std::move(which), kind](const once::testing::StoreCall& call) {
      return once::testing::Fault{.kind = which(call) ? kind : once::testing::Fault::Kind::none};
    });
  }
  void fail() {
    fail_if([](const auto&) { return true; });
  }
  void heal() { store->set_plan(once::testing::no_faults()); }

  [[nodiscard]] std::size_t told(EventKind kind) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count(kinds_.begin(), kinds_.end(), kind));
  }

  // The only record in the store.
  [[nodiscard]] Record record() const {
    const ListPage page = blocking::list(*store, {});
    EXPECT_EQ(page.records.size(), 1U);
    return page.records.empty() ? Record() : page.records.front();
  }
  [[nodiscard]] std::size_t records() const { return blocking::list(*store, {}).records.size(); }

  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  std::shared_ptr<once::testing::ManualTimers> timers = std::make_shared<once::testing::ManualTimers>(clock);
  std::shared_ptr<once::testing::FaultyStore> store = std::make_shared<once::testing::FaultyStore>(
      std::shared_ptr<Store>(stores::make_memory_store(clock)), once::testing::no_faults());
  std::unique_ptr<Engine> engine;

 private:
  mutable std::mutex mutex_;
  std::vector<EventKind> kinds_;
};

}  // namespace once::http
