// Several `once copy` of the same stores at once, in every order of their steps with up to three changes of turn. The
// stores' gates are the test's own, so that each of their answers is a turn; move_test.cpp has the real ones.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/gate.hpp>
#include <once/move.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/moving.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"

namespace once::testing {
namespace {

using Kind = StoreGate::Changed::Kind;

// One store, as its server or file is.
struct Kept {
  std::string name;
  std::shared_ptr<Store> store;
  GateMark mark;
};

class TurnGate final : public StoreGate {
 public:
  TurnGate(Kept& kept, std::function<void()> turn) : kept_(kept), turn_(std::move(turn)) {}

  GateMark mark() override {
    turn_();
    return kept_.mark;
  }
  Changed change(const GateMark& seen, const GateMark& next, Time) override {
    turn_();
    if (!(kept_.mark == seen)) return {.kind = Kind::other};
    if (next.gate == Gate::filling && !blocking::list(*kept_.store, {.limit = 1}).records.empty()) {
      return {.kind = Kind::occupied};
    }
    kept_.mark = next;
    return {};
  }
  void fill(const GateMark& filling, const std::vector<RecordPtr>& records) override {
    turn_();
    if (!(kept_.mark == filling)) throw Exception(ErrorKind::misuse, kept_.name + fill_refusal);
    for (const RecordPtr& record : records) blocking::insert(*kept_.store, *record);
  }

 private:
  Kept& kept_;
  const std::function<void()> turn_;
};

// The store as one process has it open.
class Opened final : public ForwardingStore {
 public:
  Opened(Kept& kept, std::function<void()> turn)
      : ForwardingStore(kept.store), kept_(kept), turn_(turn), name_(kept.name), gate_(kept, std::move(turn)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] StoreGate* gate() noexcept override { return &gate_; }
  void insert(RecordPtr record, Done done) override {
    turn_();
    if (const std::string refusal = gate_refusal(kept_.mark); !refusal.empty()) {
      return done(Answer::fail(ErrorKind::misuse, refusal));
    }
    ForwardingStore::insert(std::move(record), std::move(done));
  }

 private:
  Kept& kept_;
  const std::function<void()> turn_;
  const std::string name_;
  TurnGate gate_;
};

// Threads that take turns. A turn ends where the next one of the same thread begins.
class Turns {
 public:
  // Thrown in a thread that has no turn any more: its process was killed.
  struct Killed {};

  void add(std::size_t who, std::function<void()> work) {
    threads_[who] = std::thread([this, who, work = std::move(work)] {
      try {
        wait(who);
        work();
      } catch (const Killed&) {  // NOLINT(bugprone-empty-catch): that was the end of it.
      }
      const std::lock_guard lock(mutex_);
      state_[who] = State::over;
      changed_.notify_all();
    });
  }

  void wait(std::size_t who) {
    std::unique_lock lock(mutex_);
    state_[who] = State::waits;
    changed_.notify_all();
    changed_.wait(lock, [&] { return state_[who] != State::waits; });
    if (state_[who] == State::killed) throw Killed();
  }

  // False: it is over.
  bool give(std::size_t who) {
    std::unique_lock lock(mutex_);
    const auto rests = [&] { return state_[who] == State::waits || state_[who] == State::over; };
    changed_.wait(lock, rests);
    if (state_[who] == State::over) return false;
    state_[who] = State::runs;
    changed_.notify_all();
    changed_.wait(lock, rests);
    return true;
  }

  void kill(std::size_t who) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_[who] == State::waits || state_[who] == State::over; });
    if (state_[who] == State::over) return;
    state_[who] = State::killed;
    changed_.notify_all();
    changed_.wait(lock, [&] { return state_[who] == State::over; });
  }

  void join() {
    for (auto& [who, thread] : threads_) thread.join();
  }

 private:
  enum class State { starts, waits, runs, over, killed };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, State> state_;
  std::map<std::size_t, std::thread> threads_;
};

// What a process does. The second source and the second target have the names of the first ones, as files of two hosts.
struct Deed {
  enum class Kind { move, undo, begin } kind;
  bool of_second_source = false;
  bool to_second_target = false;
};
constexpr Deed move{Deed::Kind::move};
constexpr Deed undo{Deed::Kind::undo};
// A program that has both stores begins the operation "three", if nobody else has.
constexpr Deed begin{Deed::Kind::begin};

class World {
 public:
  World() {
    for (const char* const key : {"one", "two"}) {
      for (Kept& source : sources_) blocking::insert(*source.store, plain_record(key));
    }
  }

  void add(std::size_t who, Deed deed) {
    const auto turn = [this, who] { turns_.wait(who); };
    if (deed.kind == Deed::Kind::begin) return turns_.add(who, [this, turn, who] { begin_once(turn, who); });
    turns_.add(who, [this, turn, deed] {
      Opened from(sources_[deed.of_second_source ? 1 : 0], turn);
      Opened to(targets_[deed.to_second_target ? 1 : 0], turn);
      try {
        if (deed.kind == Deed::Kind::undo) return undo_move(from, to);
        move_records(from, to, options_);
      } catch (const Exception&) {  // NOLINT(bugprone-empty-catch): what may be said is move_test.cpp's.
      }
    });
  }

  // So many turns. False: it was over before, so that more would be the same.
  bool give(std::size_t who, int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      if (!turns_.give(who)) return false;
      look();
    }
    return true;
  }
  void kill(std::size_t who) { turns_.kill(who); }
  void end(std::size_t processes) {
    for (std::size_t who = 0; who < processes; ++who) {
      while (turns_.give(who)) look();
    }
    turns_.join();
  }

  // What an operator does who runs the command again, until it is through.
  void settle() {
    const auto now = [] {};
    for (int tries = 0; tries < 4; ++tries) {
      Opened from(sources_[0], now);
      Opened to(targets_[0], now);
      try {
        if (move_records(from, to, options_).kind != Moved::Kind::running) return look();
      } catch (const Exception& error) {
        said_ += std::string("; ") + error.what();
        if (error.kind() != ErrorKind::misuse) continue;
        if (!takes_claims(sources_[0].mark)) undo_move(from, to);  // Throws if there is no way back either.
        targets_[0] = Kept{.name = "new", .store = stores::make_memory_store(), .mark = {}};
      }
    }
    ADD_FAILURE() << "no way on: " << said_;
  }

  void expect_moved() {
    EXPECT_EQ(sources_[0].mark.gate, Gate::closed) << said_;
    EXPECT_EQ(targets_[0].mark.gate, Gate::filled) << said_;
    EXPECT_EQ(blocking::list(*targets_[0].store, {.limit = 10}).records.size(), 2U + (begun_ > 0 ? 1U : 0U)) << said_;
    EXPECT_LE(begun_, 1) << said_;
  }
  [[nodiscard]] const std::string& broken() const noexcept { return broken_; }
  [[nodiscard]] int begun() const noexcept { return begun_; }

 private:
  // As a caller that asks again when it was refused.
  void begin_once(const std::function<void()>& turn, std::size_t who) {
    Record record = plain_record("three");
    record.owner = owner_of(static_cast<std::uint8_t>(10 + who));
    for (int tries = 0; tries < 3; ++tries) {
      // It looks when it is made. Its thread looks too late to take part.
      const auto program = stores::make_moving_store(
          std::make_unique<Opened>(sources_[0], turn),
          [this, turn] { return std::make_unique<Opened>(targets_[0], turn); }, std::chrono::hours(1));
      const Answer answer = blocking::insert(*program, record);
      if (answer.status == AnswerStatus::done) ++begun_;
      if (answer.status != AnswerStatus::failed) return;
    }
  }

  // What must be true after each step.
  void look() {
    const auto same_move = [](const auto& places, const GateMark& mark) {
      return std::ranges::count_if(places, [&](const Kept& place) { return place.mark.move == mark.move; });
    };
    for (const Kept& source : sources_) {
      if (takes_claims(source.mark)) continue;
      if (same_move(targets_, source.mark) != 1) broken_ = "shut, and not one target is marked for the same move";
      if (same_move(sources_, source.mark) != 1) broken_ = "two sources are in one move";
    }
    for (const Kept& target : targets_) {
      if (target.mark.gate != Gate::filled) continue;
      const auto source = std::ranges::find(sources_, target.mark.move, [](const Kept& it) { return it.mark.move; });
      if (source == sources_.end() || source->mark.gate != Gate::closed) broken_ = "filled, and no source is closed";
    }
  }

  std::array<Kept, 2> sources_{Kept{.name = "from", .store = stores::make_memory_store(), .mark = {}},
                               Kept{.name = "from", .store = stores::make_memory_store(), .mark = {}}};
  std::array<Kept, 2> targets_{Kept{.name = "to", .store = stores::make_memory_store(), .mark = {}},
                               Kept{.name = "to", .store = stores::make_memory_store(), .mark = {}}};
  const std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  const MoveOptions options_{.wait = Millis{0},
                             .pause = [this](Millis time) { clock_->advance(time); },
                             .progress = {},
                             .clock = clock_,
                             .random = system_random()};
  Turns turns_;
  std::atomic<int> begun_{0};
  std::string broken_;
  std::string said_;
};

constexpr int most_turns = 10;  // A move alone is over by then.

struct Play {
  bool dies = false;    // The first process, instead of coming to its end.
  bool settles = true;  // An operator can always end it by hand.
};

// Each order of two or three processes, which have so many turns, and then go on to their ends one after another. Of
// two the first has turns twice.
void play(const std::vector<Deed>& deeds, Play how = {}) {
  bool more_a = true;
  for (int a = 0; more_a && a <= most_turns; ++a) {
    bool more_b = true;
    for (int b = 0; more_b && b <= most_turns; ++b) {
      bool more_c = true;
      for (int c = 0; more_c && c <= most_turns; ++c) {
        SCOPED_TRACE(std::to_string(a) + ", " + std::to_string(b) + " and " + std::to_string(c) + " turns");
        World world;
        for (std::size_t who = 0; who < deeds.size(); ++who) world.add(who, deeds[who]);
        more_a = world.give(0, a);
        more_b = world.give(1, b);
        more_c = world.give(2 % deeds.size(), c);
        if (how.dies) world.kill(0);
        world.end(deeds.size());
        EXPECT_EQ(world.broken(), "");
        if (how.settles) {
          world.settle();
          world.expect_moved();
          EXPECT_EQ(world.broken(), "");
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(MoveRace, TheTurnsOfAMoveAreFewerThanThoseThatArePlayed) {
  World world;
  world.add(0, move);
  world.give(0, most_turns);
  world.expect_moved();
  world.end(1);
}

// A role that may not change the target's schema, or a target that is not there any more.
TEST(MoveRace, WhatCannotBeMarkedLeavesTheSourceAsItWas) {
  for (const ErrorKind kind : {ErrorKind::misuse, ErrorKind::unavailable, ErrorKind::in_doubt}) {
    Kept source{.name = "from", .store = stores::make_memory_store(), .mark = {}};
    Kept target{.name = "to", .store = stores::make_memory_store(), .mark = {}};
    int asked = 0;
    Opened from(source, [] {});
    Opened to(target, [&] {
      if (++asked == 2) throw Exception(kind, "not to be marked");  // It was read before.
    });
    EXPECT_THROW(
        move_records(
            from, to,
            MoveOptions{.pause = [](Millis) {}, .progress = {}, .clock = system_clock(), .random = system_random()}),
        Exception);
    EXPECT_TRUE(takes_claims(source.mark));
    EXPECT_EQ(target.mark, GateMark{});
  }
}

TEST(MoveRace, TwoMovesOneOfWhichMayDie) {
  play({move, move});
  play({move, move}, {.dies = true});
}

TEST(MoveRace, AMoveAndAnUndo) {
  play({move, undo});
  play({move, undo}, {.dies = true});
  play({undo, move});
}

TEST(MoveRace, TwoMovesAndAnUndo) {
  play({move, move, undo});
  play({move, undo, move});
  play({move, move, undo}, {.dies = true});
}

TEST(MoveRace, ProgramsThatHaveBothStoresBeginAnOperationOnce) {
  play({begin, move, begin});
  play({move, begin, undo});
}

TEST(MoveRace, TwoHostsWhoseStoresShareAName) {
  constexpr Deed to_another{.kind = Deed::Kind::move, .to_second_target = true};
  constexpr Deed from_another{.kind = Deed::Kind::move, .of_second_source = true};
  for (const Deed& other : {to_another, from_another}) {
    play({move, other}, {.settles = false});
    play({move, other}, {.dies = true, .settles = false});
    play({move, other, undo}, {.settles = false});
    play({move, other, move}, {.dies = true, .settles = false});
  }
}

}  // namespace
}  // namespace once::testing
