#include <once/move.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "platform/wait.hpp"
#include "text/ascii.hpp"

namespace once {

namespace {

using ChangedKind = StoreGate::Changed::Kind;

constexpr std::size_t move_page = 500;                            // Records that are read …
constexpr std::size_t most_batch = std::size_t{8} * 1024 * 1024;  // … and bytes that are written at once.
constexpr Millis look_every{1'000};                               // While claims are live.
constexpr std::size_t most_named = 5;                             // Live claims that are named.

[[noreturn]] void refuse(const std::string& what) { throw Exception(ErrorKind::misuse, what); }

// One of the two stores. Sealed records are moved as they are, so below any wrap.
struct Side {
  Store& store;
  StoreGate& gate;

  explicit Side(Store& given) : store(innermost(given)), gate(gate_of(store)) {}

  [[nodiscard]] std::string name() const { return store.name(); }

  static StoreGate& gate_of(Store& store) {
    StoreGate* const gate = store.gate();
    if (gate == nullptr) {
      refuse(store.name() +
             " cannot be moved, or moved into, while programs use it: only stores in SQLite and PostgreSQL "
             "can. Nothing was changed");
    }
    return *gate;
  }
};

template <class Each>
void for_each_page(Store& store, Each each) {
  ListQuery query;
  query.limit = move_page;
  do {
    ListPage found = blocking::list(store, query);
    if (found.error) throw Exception(*found.error);
    if (!found.unreadable.empty()) throw Exception(found.unreadable.front());
    query.cursor = std::move(found.cursor);
    each(std::move(found.records));
  } while (!query.cursor.empty());
}

// The records with these keys, in their order: all asked for at once.
std::vector<Answer> get_all(Store& store, const std::vector<Record>& records) {
  struct State {
    std::mutex mutex;
    std::vector<Answer> answers;
    std::size_t left = 0;
    Callback<void(std::vector<Answer>)> done;
  };
  if (records.empty()) return {};
  return wait_for<std::vector<Answer>>([&](Callback<void(std::vector<Answer>)> done) {
    const auto state = std::make_shared<State>();
    state->answers.resize(records.size());
    state->left = records.size();
    state->done = std::move(done);
    for (std::size_t at = 0; at < records.size(); ++at) {
      store.get(records[at].key, [state, at](Answer answer) {
        std::unique_lock lock(state->mutex);
        state->answers[at] = std::move(answer);
        if (--state->left > 0) return;
        lock.unlock();
        state->done(std::move(state->answers));
      });
    }
  });
}

class Move {
 public:
  Move(Store& from, Store& to, const MoveOptions& options) : from_(from), to_(to), options_(options) {
    if (from_.name() == to_.name()) refuse(from_.name() + " is both the source and the target. Nothing was changed");
  }

  MovePlan plan() {
    MovePlan plan{.from = from_.gate.mark(), .to = to_.gate.mark()};
    const bool is_over =
        plan.from.gate == Gate::closed && plan.to.gate == Gate::filled && plan.to.move == plan.from.move;
    if (is_over) return plan;
    check_marks(plan.from, plan.to);
    plan.clocks_apart = compare_clocks();
    const Time now = time_of(from_).now;
    const Capabilities can = to_.store.capabilities();
    for_each_page(from_.store, [&](const std::vector<Record>& records) {
      for (const Record& record : records) {
        const std::size_t bytes = record_bytes(record);
        const bool is_packed =
            record.result.placement == Placement::compressed || record.result.placement == Placement::sealed;
        if (bytes > can.max_record_bytes || (is_packed && !can.keeps_compressed)) {
          refuse(to_.name() + " cannot keep the record '" + text::printable(record.key) + "' of " +
                 std::to_string(bytes) + " bytes. Nothing was changed");
        }
        ++plan.records;
        plan.bytes += bytes;
        if (operate::standing(record, now) == operate::Standing::running) ++plan.live;
      }
      tell(MoveStep::counting, plan.records);
    });
    if (takes_claims(plan.from) && takes_claims(plan.to) && !blocking::list(to_.store, {.limit = 1}).records.empty())
      occupied();
    return plan;
  }

  Moved run() {
    const MovePlan plan = this->plan();
    Moved moved{.records = plan.records, .bytes = plan.bytes};
    GateMark from = plan.from;
    GateMark to = plan.to;
    if (to.gate == Gate::filled && from.gate == Gate::closed) {
      moved.kind = Moved::Kind::was;
      return moved;
    }
    if (takes_claims(from)) {
      // Who has named the move in the source last is the only one who can name it in the target and then drain. The
      // target is shut before the source is, so that nobody goes from the one to the other in between.
      if (from.gate != Gate::announced || to.gate != Gate::filling || to.move != from.move) {
        step(from_, from, {.gate = Gate::announced, .move = fresh_name(from), .other = to_.name()});
        step(to_, to, {.gate = Gate::filling, .move = from.move, .other = from_.name()});
      }
      step(from_, from, {.gate = Gate::draining, .move = from.move, .other = to_.name()});
    }
    if (from.gate == Gate::draining && !drain(from, moved)) return moved;
    // Nothing changes in the source from here on. Every token that it gave out is at most this.
    const Time closed_at = latest(from_);
    copy(to);
    compare(moved);
    // So that a token of the target's is greater than any of the source's, also for a key without a record.
    while (earliest(to_) <= closed_at)
      options_.pause(std::min(look_every, Millis(closed_at - earliest(to_)) + Millis{1}));
    GateMark filled = to;
    filled.gate = Gate::filled;
    if (to_.gate.change(to, filled, {}).kind != ChangedKind::done && !(to_.gate.mark() == filled)) interfered();
    return moved;
  }

  void undo() {
    constexpr int most_tries = 5;
    for (int tried = 0; tried < most_tries; ++tried) {
      const GateMark from = from_.gate.mark();
      // Only a move out of the source ends with a mark of its own in the target, and only after it was closed.
      if (from.gate == Gate::draining) {
        // The target stays shut: a program that was told of it already must not begin there. The next move knows it.
        const GateMark back{.gate = Gate::announced, .move = fresh_name(from), .other = from.other};
        if (from_.gate.change(from, back, {}).kind == ChangedKind::done) return;
        continue;
      }
      if (from.gate != Gate::closed) {
        // Also after an undo whose answer was lost.
        refuse(from_.name() + (takes_claims(from) ? " takes claims: it" : "") +
               " is in no move that could be undone. Nothing was changed");
      }
      const GateMark to = to_.gate.mark();
      if (to.move != from.move || to.gate == Gate::draining) not_its_target(from);
      if (to.gate == Gate::filled) {
        refuse("the move is over, and " + to_.name() + " takes claims: " + from_.name() +
               " stays closed. Nothing was changed");
      }
      // First here: then nobody can open it.
      const GateMark closed{.gate = Gate::closed, .move = to.move, .other = from_.name()};
      if (to.gate == Gate::filling && to_.gate.change(to, closed, {}).kind != ChangedKind::done) continue;
      if (from_.gate.change(from, {}, {}).kind == ChangedKind::done) return;
    }
    interfered();
  }

 private:
  void tell(MoveStep step, std::uint64_t done) const {
    if (options_.progress) options_.progress(step, done);
  }

  [[nodiscard]] StoreTime time_of(const Side& side) const { return operate::learn_now(side.store, *options_.clock); }
  [[nodiscard]] Time earliest(const Side& side) const {
    const StoreTime time = time_of(side);
    return time.now - time.error;
  }
  [[nodiscard]] Time latest(const Side& side) const {
    const StoreTime time = time_of(side);
    return time.now + time.error;
  }

  // Leases and expiries are kept as times of day, and the target's clock is to judge them.
  [[nodiscard]] Millis compare_clocks() const {
    const StoreTime from = time_of(from_);
    const StoreTime to = time_of(to_);
    const Millis apart = to.now - from.now;
    if (std::chrono::abs(apart) - from.error - to.error > most_clocks_apart) {
      refuse("the clock of " + to_.name() + " is " + std::to_string(std::chrono::abs(apart).count() / 1'000) + " s " +
             (apart > Millis{0} ? "ahead of" : "behind") + " that of " + from_.name() +
             ", and 60 s is the most: results would expire at other times. Set the clocks right. Nothing was changed");
    }
    return apart;
  }

  // A move's name, 32 digits. The first half stays until a move out of the source is over, or undone when it was
  // closed: it tells that a target was marked by this source, also if another `once copy` has named the move anew
  // since.
  static constexpr std::size_t source_digits = 16;
  [[nodiscard]] std::string fresh_name(const GateMark& from) const {
    Owner name;
    options_.random->fill(name.bytes);
    const std::string fresh = name.hex();
    const bool is_named = from.gate == Gate::announced || from.gate == Gate::draining;
    return is_named ? from.move.substr(0, source_digits) + fresh.substr(source_digits) : fresh;
  }
  static bool same_source(const GateMark& a, const GateMark& b) {
    return a.move.substr(0, source_digits) == b.move.substr(0, source_digits);
  }

  [[noreturn]] void occupied() const {
    refuse(to_.name() + " has records of its own: a move needs an empty store. Nothing was changed there");
  }
  [[noreturn]] static void interfered() {
    throw Exception(ErrorKind::unavailable, "another once copy changes the same stores. Run it again");
  }
  [[noreturn]] void not_its_target(const GateMark& from) const {
    const bool was_replaced = from.other == to_.name();  // Emptied, or made anew under its name.
    refuse(from_.name() + " moves to another store, " +
           (was_replaced ? "which had the name " + from.other + " and is no longer there"
                         : from.other + ", and not to " + to_.name()) +
           ". Nothing was changed");
  }

  void check_marks(const GateMark& from, const GateMark& to) const {
    if (from.gate == Gate::filling) {
      refuse(from_.name() + " waits for the records of " + from.other + " itself. Nothing was changed");
    }
    if (!takes_claims(from)) {
      if (to.gate == Gate::closed && to.move == from.move) {
        refuse("the move to " + to_.name() + " is being undone: end that with --undo. Nothing was changed");
      }
      if (to.gate != Gate::filling || to.move != from.move) not_its_target(from);
      return;
    }
    if (to.gate == Gate::closed || to.gate == Gate::draining) {
      refuse(to_.name() + " has moved, or moves, to " + to.other +
             ", or a move into it was undone: use a new store. Nothing was changed");
    }
    if (to.gate == Gate::filling && (from.gate != Gate::announced || !same_source(to, from))) {
      refuse(to_.name() + " waits for the records of another move, from " + to.other +
             ". Use a new store. Nothing was changed");
    }
  }

  void step(const Side& side, GateMark& mark, const GateMark& next) const {
    switch (side.gate.change(mark, next, {}).kind) {
      case ChangedKind::done:
        mark = next;
        return;
      case ChangedKind::occupied:
        occupied();
      case ChangedKind::other:
      case ChangedKind::live:
        interfered();
    }
  }

  // False: claims are left.
  bool drain(GateMark& from, Moved& moved) const {
    GateMark closed = from;
    closed.gate = Gate::closed;
    for (Millis waited{0};; waited += look_every) {
      const auto changed = from_.gate.change(from, closed, earliest(from_));
      if (changed.kind == ChangedKind::other && !(from_.gate.mark() == closed)) interfered();
      if (changed.kind != ChangedKind::live) {
        from = closed;
        return true;
      }
      tell(MoveStep::draining, changed.live);
      if (waited >= options_.wait) {
        moved.kind = Moved::Kind::running;
        moved.live_count = changed.live;
        operate::Filter filter;
        filter.standing = operate::Standing::running;
        const auto error = operate::for_each(from_.store, filter, time_of(from_).now, [&](const Record& record) {
          moved.live.push_back(record);
          return moved.live.size() < most_named;
        });
        if (error) throw Exception(*error);
        return false;
      }
      options_.pause(look_every);
    }
  }

  void copy(const GateMark& to) const {
    std::uint64_t copied = 0;
    std::vector<RecordPtr> batch;
    std::size_t bytes = 0;
    const auto write = [&] {
      if (!batch.empty()) to_.gate.fill(to, batch);
      copied += batch.size();
      batch.clear();
      bytes = 0;
      tell(MoveStep::copying, copied);
    };
    for_each_page(from_.store, [&](std::vector<Record> records) {
      for (Record& record : records) {
        bytes += record_bytes(record);
        batch.push_back(share(std::move(record)));
        if (bytes >= most_batch) write();
      }
      write();
    });
  }

  // Every record of the source is in the target as it is here, and the target has no other.
  void compare(Moved& moved) const {
    moved.records = moved.bytes = 0;
    for_each_page(from_.store, [&](const std::vector<Record>& records) {
      const std::vector<Answer> answers = get_all(to_.store, records);
      for (std::size_t at = 0; at < records.size(); ++at) {
        const Answer& answer = answers[at];
        if (answer.status == AnswerStatus::failed) throw Exception(answer.error);
        if (answer.record == nullptr || !(*answer.record == records[at])) {
          throw Exception(ErrorKind::corrupt, "the record '" + text::printable(records[at].key) +
                                                  "' is not the same in " + to_.name() +
                                                  ": it stays shut. Undo the move, and report this");
        }
        moved.bytes += record_bytes(records[at]);
      }
      moved.records += records.size();
      tell(MoveStep::comparing, moved.records);
    });
    std::uint64_t there = 0;
    for_each_page(to_.store, [&](const std::vector<Record>& records) { there += records.size(); });
    if (there != moved.records) {
      throw Exception(ErrorKind::corrupt, to_.name() + " has " + std::to_string(there) + " records, and " +
                                              from_.name() + " " + std::to_string(moved.records) +
                                              ": it stays shut. Undo the move, and report this");
    }
  }

  const Side from_;
  const Side to_;
  const MoveOptions& options_;
};

}  // namespace

MovePlan plan_move(Store& from, Store& to, const MoveOptions& options) { return Move(from, to, options).plan(); }

Moved move_records(Store& from, Store& to, const MoveOptions& options) { return Move(from, to, options).run(); }

void undo_move(Store& from, Store& to) {
  const MoveOptions options{.pause = {}, .progress = {}, .clock = {}, .random = system_random()};
  Move(from, to, options).undo();
}

}  // namespace once
