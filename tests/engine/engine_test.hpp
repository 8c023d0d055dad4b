// What the tests of the engine share: a world with one clock, one store and any number of engines (processes).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/blocking.hpp>
#include <once/testing/manual_time.hpp>

#include "script_store.hpp"

namespace once::testing {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Next = ScriptStore::Next;

struct Told {
  EventKind kind{};
  std::string key;
  std::chrono::nanoseconds took{0};
  bool coalesced = false;
  bool has_record = false;
  std::string error;
};

// The events of an engine, in their order.
struct Events {
  std::vector<Told> all;

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Told& told : all) out.emplace_back(to_string(told.kind));
    return out;
  }
  [[nodiscard]] std::size_t count(EventKind kind) const {
    std::size_t sum = 0;
    for (const Told& told : all) sum += told.kind == kind ? 1 : 0;
    return sum;
  }
  [[nodiscard]] const Told& last(EventKind kind) const {
    for (auto told = all.rbegin(); told != all.rend(); ++told) {
      if (told->kind == kind) return *told;
    }
    ADD_FAILURE() << "no event " << to_string(kind);
    static const Told none;
    return none;
  }
};

// An answer that has come or not.
template <class T>
struct Slot {
  std::shared_ptr<std::vector<T>> got = std::make_shared<std::vector<T>>();

  Callback<void(T)> fill() const {
    return [got = got](T value) { got->push_back(std::move(value)); };
  }
  [[nodiscard]] bool ready() const { return !got->empty(); }
  T& operator*() const {
    EXPECT_EQ(got->size(), 1U) << "answers";
    return got->at(0);
  }
  T* operator->() const { return &**this; }
};

inline std::string name_of(Begin::Kind kind) {
  static constexpr const char* names[] = {"claimed", "replayed", "failed", "conflict", "mismatch", "unknown", "error"};
  return names[static_cast<std::size_t>(kind)];
}
inline void PrintTo(Begin::Kind kind, std::ostream* out) { *out << name_of(kind); }

class EngineTest : public ::testing::Test {
 protected:
  struct Process {
    std::shared_ptr<Events> events = std::make_shared<Events>();
    std::unique_ptr<Engine> engine;
    Engine* operator->() const { return engine.get(); }
  };

  // A timer that waits keeps its engine, which keeps the timers: without claims and calls everything comes to rest.
  void TearDown() override {
    store->otherwise(Next::carry_out);
    store->answer_stalled();
    for (int i = 0; i < 1'000 && timers->run_next(); ++i) {
    }
    EXPECT_EQ(timers->pending(), 0U);
  }

  // 9 s, so that a renewal falls due every 3 s. A conflict at once, so that what is not answered stands out.
  static Policy policy() {
    Policy p;
    p.on_conflict = OnConflict::fail;
    p.lease = 9s;
    p.retention = 1h;
    return p;
  }
  static Policy waiting(Millis wait = 10s) {
    Policy p = policy();
    p.on_conflict = OnConflict::wait;
    p.wait = wait;
    return p;
  }

  EngineOptions options(Process& process) {
    EngineOptions o;
    o.store = store;
    o.policy = policy();
    o.scope = "test";
    o.holder = "host:1";
    o.clock = clock;
    o.timers = timers;
    o.random = std::make_shared<SeededRandom>(++seed);
    o.observer = [events = process.events](const Event& event) {
      events->all.push_back({.kind = event.kind,
                             .key = std::string(event.key),
                             .took = event.took,
                             .coalesced = event.coalesced,
                             .has_record = event.record != nullptr,
                             .error = event.error == nullptr ? "" : event.error->message});
    };
    return o;
  }
  Process process() {
    Process p;
    p.engine = std::make_unique<Engine>(options(p));
    return p;
  }
  template <class Change>
  Process process(Change change) {
    Process p;
    EngineOptions o = options(p);
    change(o);
    p.engine = std::make_unique<Engine>(std::move(o));
    return p;
  }

  static Request request(std::string_view key, std::optional<Policy> p = {}, std::string_view payload = {}) {
    return {.key = Key("test", key),
            .fingerprint = payload.empty() ? Fingerprint() : Fingerprint::of(payload),
            .policy = std::move(p),
            .holder = {}};
  }
  static Slot<Begin> begin(const Process& p, std::string_view key, std::optional<Policy> with = {},
                           std::string_view payload = {}) {
    Slot<Begin> slot;
    p.engine->begin(request(key, std::move(with), payload), slot.fill());
    return slot;
  }
  static Slot<Finish> complete(Claim& claim, std::string bytes) {
    Slot<Finish> slot;
    claim.complete(Result::inlined(std::move(bytes)), slot.fill());
    return slot;
  }
  std::optional<Record> stored(std::string_view key) {
    return copy_of(blocking::get(store->inner(), Key("test", key).stored()).record);
  }
  // What an operator does: changes the record under the condition that it is the one seen, and names both revisions in
  // the history.
  template <class Change>
  void operate(std::string_view key, Change change) {
    const Record seen = stored(key).value();
    Record next = change(seen);
    append(next.history, {.what = "changed", .who = "bob", .revision = next.revision, .replaced = seen.revision});
    ASSERT_EQ(blocking::replace(store->inner(), std::move(next), {seen.owner, seen.revision, 0}).status,
              AnswerStatus::done);
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<ScriptStore> store = std::make_shared<ScriptStore>(clock);
  std::uint64_t seed = 0;
};

}  // namespace once::testing
