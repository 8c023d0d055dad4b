// The SQLite store, over a disk in memory.
//
// All of its code runs, and SQLite's: each process has a store of its own at the one file, whose writer's turns are
// events of the world (stores/sqlite/driven.hpp). What is asked between two turns is one group. What is below SQLite is
// simulated (disk.hpp), but for the lock file, which is a real one. After each turn the file is read by another
// connection, and the auditor is told of what has changed. A write that was acknowledged has to be there, also after a
// power cut, and a write that was refused must not be. One in doubt may come later, but only whole.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/stores/sqlite.hpp>

#include "disk.hpp"
#include "parts.hpp"
#include "platform/file.hpp"
#include "real_store.hpp"
#include "scratch_directory.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/driven.hpp"
#include "stores/sqlite/rows.hpp"
#include "stores/sqlite/wal_vfs.hpp"

namespace once::simulation {

namespace {

using namespace std::chrono_literals;
using stores::sqlite::Connection;
using stores::sqlite::Statement;

// Of the machine that all processes share. Its uptime begins anew at each boot.
class MachineClock final : public Clock {
 public:
  explicit MachineClock(const World& world) : world_(world) {}
  [[nodiscard]] Time now() const noexcept override { return world_.utc(); }
  [[nodiscard]] Uptime uptime() const noexcept override { return world_.now() - booted_; }
  void boot() { booted_ = std::chrono::floor<Millis>(world_.now()); }

 private:
  const World& world_;
  Instant booted_{0};
};

class Sqlite final : public RealStore {
 public:
  explicit Sqlite(Simulation& simulation);
  Store& open(Host& host, ProcessId id) override;
  void close(ProcessId id) override;
  std::shared_ptr<const Companion> companion_of(const Charge& charge) override;
  void carry_out(const Asking& asking) override;
  void sweep() override;
  void check() override;

 private:
  class Life;
  struct Answered {
    std::shared_ptr<const Asking> asking;
    Answer answer;
    Done done;
  };
  struct Doubt {
    ProcessId by;
    std::shared_ptr<const Asking> asking;
  };

  // By somebody who has no trouble, on an opened store.
  template <class Act>
  void operators_do(Act act);
  std::unique_ptr<Life> try_to_open(Host& host, ProcessId id, bool in_trouble);
  void meet_trouble();
  void no_trouble();
  void cut_power_now_and_then(Instant mean);
  void after_power_cut();

  // What a dead process goes on to write to the lock file, as its objects end, is taken back.
  void keep_lock_file();
  void restore_lock_file();

  void tell(ProcessId by, const std::vector<Answered>& answered, bool died);
  void look_at(Connection& connection, const std::string& key);
  void look_at_all(bool sweeps = false);
  void look_at_charges(Connection& connection);
  void compare(const std::string& key, const std::optional<Record>& there, bool sweeps);
  bool may_have_come(const std::string& key, const std::optional<Record>& there);
  template <class Look>
  void look(Look what);
  // Turns what the file's reader throws into a violation.
  template <class Read>
  void reading(Read read) const;
  [[nodiscard]] std::string cleaned(std::string text) const;  // Of the file's path, which is another one in each run.
  [[nodiscard]] Bug bug() const { return simulation_.bug(); }

  Simulation& simulation_;
  World& world_;
  const once::testing::Scratch scratch_;
  const std::string path_ = scratch_.file();
  const std::shared_ptr<MachineClock> clock_;
  Disk disk_;
  const stores::sqlite::WalVfs vfs_{Disk::vfs()};
  const Disk::ProgramPtr observers_ = std::make_shared<Disk::Program>();
  std::uint64_t boots_ = 1;
  bool power_will_fail_ = false;
  // How the store is set up, drawn for each world.
  std::uint32_t checkpoint_pages_ = 0;
  std::size_t recent_keys_ = 0;

  std::string lock_file_;  // Its notes, as a dead process left them. Empty: none did.
  std::map<std::string, std::deque<Doubt>> doubts_;
  std::map<CallId, std::uint64_t> charged_;
  std::map<std::string, Record> previous_;  // What each key had before its last write.
  std::map<ProcessId, std::unique_ptr<Life>> lives_;
};

// What one life of a process has for its store.
class Sqlite::Life final : public Store {
 public:
  // `host` null: of an operator, who runs the turns.
  Life(Sqlite& all, Host* host, ProcessId id) : all_(all), host_(host), id_(id) {
    const Disk::As as(all.disk_, program_);
    driven_ = stores::sqlite::make_driven_store({.path = all.path_,
                                                 .busy_timeout = Millis{1'000},
                                                 .checkpoint_pages = all.checkpoint_pages_,
                                                 .recent_keys = all.recent_keys_,
                                                 .clock = all.clock_,
                                                 .boot_id = "boot " + std::to_string(all.boots_),
                                                 .vfs = Disk::vfs()});
  }
  ~Life() override {
    const Disk::As as(all_.disk_, program_);
    driven_.store.reset();
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  void kill() { program_->is_dead = true; }
  [[nodiscard]] bool is_dead() const { return program_->is_dead || !all_.disk_.has_power(); }

  void insert(RecordPtr record, Done done) override {
    write(std::move(done), [&](Done then) { driven_.store->insert(std::move(record), std::move(then)); });
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    seen = planted(record->key, seen);
    write(std::move(done), [&](Done then) { driven_.store->replace(std::move(record), seen, std::move(then)); });
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    write(std::move(done), [&](Done then) {
      driven_.store->replace_with(std::move(record), seen, std::move(companion), std::move(then));
    });
  }
  void remove(std::string key, Seen seen, Done done) override {
    write(std::move(done), [&](Done then) { driven_.store->remove(std::move(key), seen, std::move(then)); });
  }
  // The calling thread reads, at once. It may be a while until it goes on.
  void get(std::string key, Done done) override {
    const std::string name = key;
    Answer answer;
    {
      const Disk::As as(all_.disk_, program_);
      if (host_ != nullptr && !all_.simulation_.calm() && all_.world_.chance(all_.simulation_.config().trouble)) {
        all_.simulation_.in_trouble(false);
        all_.disk_.trouble(Disk::Trouble::reads_fail, all_.world_.below(6));
      }
      driven_.store->get(std::move(key), [&](Answer got) { answer = std::move(got); });
      all_.no_trouble();
    }
    if (all_.bug() == Bug::sqlite_reads_stale && answer.record != nullptr && all_.previous_.contains(name)) {
      answer.record = share(all_.previous_.at(name));
    }
    if (all_.world_.chance(500)) return done(cleaned(std::move(answer)));
    hand_over({nullptr, std::move(answer), std::move(done)});
  }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    const Disk::As as(all_.disk_, program_);
    driven_.store->list(std::move(query), std::move(done));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    driven_.store->sweep(now, limit, std::move(done));
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return driven_.store->time(); }
  [[nodiscard]] Capabilities capabilities() const noexcept override { return driven_.store->capabilities(); }
  [[nodiscard]] std::string name() const override { return "sqlite:simulated"; }

  // Carries out all that was asked, and returns it.
  std::vector<Answered> run() {
    const Disk::As as(all_.disk_, program_);
    while (driven_.turn()) {
    }
    return std::exchange(answered_, {});
  }
  [[nodiscard]] std::vector<std::string> problems() const {
    const Disk::As as(all_.disk_, program_);
    return stores::check_sqlite(*driven_.store);
  }

 private:
  template <class Call>
  void write(Done done, Call&& call) {
    call([this, asking = all_.asking_, done = std::move(done)](Answer answer) mutable {
      answered_.push_back({asking, std::move(answer), std::move(done)});
    });
    if (host_ == nullptr || std::exchange(is_awaited_, true)) return;
    all_.world_.at(all_.world_.now() + all_.world_.span(all_.simulation_.config().latency), host_, [this] { turn(); });
  }

  // At the end of it this object may be gone.
  void turn() {
    is_awaited_ = false;
    all_.meet_trouble();
    std::vector<Answered> answered = run();
    all_.no_trouble();
    all_.tell(id_, answered, is_dead());
    if (!all_.disk_.has_power()) return all_.after_power_cut();
    if (is_dead()) return all_.simulation_.crash(id_);
    plant(answered);
    for (Answered& one : answered) hand_over(std::move(one));
  }

  void hand_over(Answered one) {
    all_.world_.at(
        all_.world_.now() + all_.world_.span(all_.simulation_.config().latency), host_,
        [answer = cleaned(std::move(one.answer)), done = std::move(one.done)]() mutable { done(std::move(answer)); });
  }

  [[nodiscard]] Answer cleaned(Answer answer) const {
    answer.error.message = all_.cleaned(std::move(answer.error.message));
    return answer;
  }

  [[nodiscard]] Seen planted(const std::string& key, Seen seen) const {
    const auto found = all_.simulation_.records().find(key);
    const bool is_there = found != all_.simulation_.records().end() && found->second.owner == seen.owner;
    if (all_.bug() == Bug::sqlite_compares_no_revision && is_there) seen.revision = found->second.revision;
    return seen;
  }
  void plant(std::vector<Answered>& answered) const {
    for (std::size_t i = 0; i < answered.size(); ++i) {
      Answer& answer = answered[i].answer;
      if (all_.bug() == Bug::sqlite_swaps_answers && i > 0) std::swap(answer, answered[i - 1].answer);
      const bool is_in_doubt = answer.status == AnswerStatus::failed && answer.error.kind == ErrorKind::in_doubt;
      if (all_.bug() == Bug::sqlite_believes_doubts && is_in_doubt) answer = Answer::ok();
    }
  }

  Sqlite& all_;
  Host* const host_;
  const ProcessId id_;
  const Disk::ProgramPtr program_ = std::make_shared<Disk::Program>();
  std::vector<Answered> answered_;  // Before the store, which completes in its destructor.
  stores::sqlite::DrivenStore driven_;
  bool is_awaited_ = false;  // A turn.
};

Sqlite::Sqlite(Simulation& simulation)
    : simulation_(simulation),
      world_(simulation.world()),
      clock_(std::make_shared<MachineClock>(world_)),
      disk_(world_) {
  static constexpr std::array<std::uint32_t, 3> pages = {100, 400, 4'000};
  static constexpr std::array<std::size_t, 3> keys = {1, 20, 32'768};
  checkpoint_pages_ = pages.at(world_.below(pages.size()));
  recent_keys_ = keys.at(world_.below(keys.size()));
  disk_.reverts(world_.chance(300));
  disk_.on_death([this] { keep_lock_file(); });
  operators_do([this](Life&) {
    look([](Connection& connection) {
      connection.run(
          "PRAGMA synchronous = FULL; CREATE TABLE charges (call INTEGER PRIMARY KEY, made INTEGER NOT NULL);"
          "INSERT INTO charges VALUES (-1, 0)");
    });
  });
  using Lie = Disk::Lie;
  switch (bug()) {
    case Bug::sqlite_syncs_late:
      disk_.lie(Lie::log_is_synced_late);
      break;
    case Bug::sqlite_skips_syncs:
      disk_.lie(Lie::log_is_never_synced);
      break;
    case Bug::sqlite_copies_unsynced:
      disk_.lie(Lie::file_is_never_synced);
      checkpoint_pages_ = 100;
      break;
    case Bug::sqlite_believes_failed_syncs:
      disk_.lie(Lie::failed_syncs_worked);
      break;
    case Bug::sqlite_loses_pages:
      disk_.lie(Lie::log_loses_pages);
      break;
    default:
      break;
  }
  const Instant mean = simulation.config().between_crashes;
  if (mean > Instant{0}) cut_power_now_and_then(mean);
}

template <class Act>
void Sqlite::operators_do(Act act) {
  reading([&] {
    Life life(*this, nullptr, operators);
    act(life);
  });
}

template <class Read>
void Sqlite::reading(Read read) const {
  try {
    read();
  } catch (const Exception& error) {
    throw Violation("store: the file cannot be used: " + cleaned(error.what()));
  }
}

std::string Sqlite::cleaned(std::string text) const {
  for (std::size_t at = 0; (at = text.find(path_, at)) != std::string::npos;) {
    text.replace(at, path_.size(), "once.db");
  }
  return text;
}

// Only while a store has the file open, and not for longer than it takes: an open connection keeps the log's index, and
// so what the stores have to keep by themselves.
template <class Look>
void Sqlite::look(Look what) {
  reading([&] {
    const Disk::As as(disk_, observers_);
    Connection connection(path_, vfs_.name(), Millis{0});
    what(connection);
  });
}

// --- Processes, and the machine ---

// Null: it ended before it could be used.
std::unique_ptr<Sqlite::Life> Sqlite::try_to_open(Host& host, ProcessId id, bool in_trouble) {
  std::unique_ptr<Life> life;
  if (in_trouble) meet_trouble();
  try {
    life = std::make_unique<Life>(*this, &host, id);
  } catch (const Exception& error) {
    const bool may_be = in_trouble && (error.kind() == ErrorKind::unavailable || error.kind() == ErrorKind::in_doubt);
    if (!may_be) throw Violation("store: it cannot be opened: " + cleaned(error.what()));
  }
  no_trouble();
  if (life != nullptr && life->is_dead()) life.reset();
  restore_lock_file();
  if (!disk_.has_power()) after_power_cut();
  return life;
}

Store& Sqlite::open(Host& host, ProcessId id) {
  std::unique_ptr<Life> life;
  for (int tries = 3; life == nullptr; --tries) life = try_to_open(host, id, tries > 0);
  Store& opened = *lives_.emplace(id, std::move(life)).first->second;
  look_at_all();
  return opened;
}

void Sqlite::close(ProcessId id) {
  const auto found = lives_.find(id);
  if (found == lives_.end()) return;
  if (!found->second->is_dead()) keep_lock_file();
  found->second->kill();
  lives_.erase(found);
  restore_lock_file();
}

void Sqlite::keep_lock_file() {
  const Fd file(::open((path_ + "-lock").c_str(), O_RDONLY | O_CLOEXEC));
  lock_file_.resize(512);
  const ssize_t got = pread(file.get(), lock_file_.data(), lock_file_.size(), 0);
  lock_file_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
}

void Sqlite::restore_lock_file() {
  const std::string kept = std::exchange(lock_file_, {});
  if (kept.empty()) return;
  const Fd file(::open((path_ + "-lock").c_str(), O_WRONLY | O_CLOEXEC));
  if (pwrite(file.get(), kept.data(), kept.size(), 0) != static_cast<ssize_t>(kept.size())) {
    throw std::runtime_error("cannot write the lock file");
  }
}

// What the disk does until no_trouble().
void Sqlite::meet_trouble() {
  using Trouble = Disk::Trouble;
  const Config& config = simulation_.config();
  if (simulation_.calm()) return;
  disk_.file_trouble(config.trouble);
  if (std::exchange(power_will_fail_, false)) return disk_.trouble(Trouble::power_fails, world_.below(4));
  if (simulation_.is_down()) return disk_.trouble(Trouble::full);
  if (!world_.chance(config.trouble)) return;
  simulation_.in_trouble(false);
  static constexpr std::array troubles = {
      Trouble::full,           Trouble::log_write_fails, Trouble::log_sync_fails,
      Trouble::log_sync_fails, Trouble::reads_fail,      Trouble::killed,
  };
  const Trouble what = troubles.at(world_.below(troubles.size()));
  const bool is_often_met = what == Trouble::log_sync_fails || what == Trouble::log_write_fails;
  disk_.trouble(what, world_.below(is_often_met ? 2 : 5));
}

void Sqlite::no_trouble() {
  disk_.trouble(Disk::Trouble::none);
  disk_.file_trouble(0);
}

void Sqlite::cut_power_now_and_then(Instant mean) {
  world_.at(world_.now() + world_.span(mean), nullptr, [this, mean] {
    if (simulation_.calm()) return;
    if (world_.chance(500)) {
      power_will_fail_ = true;
    } else {
      disk_.cut_power();
      after_power_cut();
    }
    cut_power_now_and_then(mean);
  });
}

void Sqlite::after_power_cut() {
  simulation_.power_is_cut();
  restore_lock_file();
  if (world_.chance(500)) ::unlink((path_ + "-lock").c_str());
  disk_.boot();
  clock_->boot();
  ++boots_;
}

// --- What is asked of it ---

std::shared_ptr<const Companion> Sqlite::companion_of(const Charge& charge) {
  auto sql = std::make_shared<stores::SqlStatements>();
  sql->add("INSERT INTO charges VALUES ($1, 1) ON CONFLICT (call) DO UPDATE SET made = made + 1", {charge.call});
  if (charge.impossible) sql->add("INSERT INTO refunds VALUES (1)");
  if (world_.chance(simulation_.config().declines)) {
    if (world_.chance(500)) {
      sql->add("SELECT 1 FROM charges WHERE call = -2", {}, stores::SqlRows::exactly(1));
    } else {
      sql->add("INSERT OR ROLLBACK INTO charges VALUES (-1, 0)");  // It ends the transaction of the whole group.
    }
  }
  return sql;
}

void Sqlite::carry_out(const Asking& asking) {
  operators_do([&](Life& life) {
    look_at_all();
    const auto before = asks(std::make_shared<const Asking>(asking));
    life.replace(share(*asking.next), asking.seen, [](const Answer&) {});
    asks(before);
    tell(operators, life.run(), false);
  });
}

void Sqlite::sweep() {
  operators_do([&](Life& life) {
    look_at_all();
    SweepAnswer swept;
    life.sweep(world_.utc(), 1 + world_.below(5), [&](SweepAnswer answer) { swept = std::move(answer); });
    life.run();
    if (swept.error) throw Violation("store: it cannot be swept: " + cleaned(swept.error->message));
    look_at_all(true);
  });
}

void Sqlite::check() {
  operators_do([&](Life& life) {
    look_at_all();
    check_list(simulation_, life);
    for (const std::string& problem : life.problems()) throw Violation("store: " + cleaned(problem));
  });
}

// --- What has happened in the file ---

// `died`: before it could answer.
void Sqlite::tell(ProcessId by, const std::vector<Answered>& answered, bool died) {
  bool charges = false;
  for (const Answered& one : answered) {
    const Asking& asking = *one.asking;
    const auto found = simulation_.records().find(asking.key);
    if (found != simulation_.records().end()) previous_.insert_or_assign(asking.key, found->second);
    charges = charges || asking.companion != nullptr;
    if (one.answer.status == AnswerStatus::done) {
      simulation_.stored(by, asking, asking.next ? &*asking.next : nullptr);
    } else if (one.answer.status == AnswerStatus::failed && (died || one.answer.error.kind == ErrorKind::in_doubt)) {
      doubts_[asking.key].push_back({by, one.asking});
    }
  }
  if (!disk_.has_power()) return;
  look([&](Connection& connection) {
    for (const Answered& one : answered) look_at(connection, one.asking->key);
    if (charges) look_at_charges(connection);
  });
}

void Sqlite::look_at(Connection& connection, const std::string& key) {
  Statement rows(connection, "SELECT " + std::string(stores::sqlite::row_columns) + " FROM records WHERE key = ?1");
  rows.bind_text(1, key);
  std::optional<Record> there;
  while (rows.step()) {
    if (there) throw Violation("store: " + key + " is there twice");
    there = stores::sqlite::read_row(rows, path_).record;
  }
  compare(key, there, false);
}

void Sqlite::look_at_all(bool sweeps) {
  std::map<std::string, std::optional<Record>> there;
  for (const auto& [key, record] : simulation_.records()) there[key];
  look([&](Connection& connection) {
    Statement rows(connection, "SELECT " + std::string(stores::sqlite::row_columns) + " FROM records");
    while (rows.step()) {
      Record record = stores::sqlite::read_row(rows, path_).record;
      const std::string key = record.key;
      there[key] = std::move(record);
    }
    for (const auto& [key, record] : there) compare(key, record, sweeps);
    look_at_charges(connection);
  });
}

void Sqlite::look_at_charges(Connection& connection) {
  Statement rows(connection, "SELECT call, made FROM charges WHERE made > 0");
  std::map<CallId, std::uint64_t> there;
  while (rows.step()) there[static_cast<CallId>(rows.integer(0))] = static_cast<std::uint64_t>(rows.integer(1));
  for (const auto& [call, made] : charged_) {
    if (there[call] < made) throw Violation("store: what call " + std::to_string(call) + " had charged is gone");
  }
  for (const auto& [call, made] : there) {
    for (; charged_[call] < made; ++charged_[call]) simulation_.auditor().charged(call);
  }
}

void Sqlite::compare(const std::string& key, const std::optional<Record>& there, bool sweeps) {
  const auto found = simulation_.records().find(key);
  const bool was_there = found != simulation_.records().end();
  if (there ? was_there && found->second == *there : !was_there) return;
  if (may_have_come(key, there)) return;
  if (sweeps && !there) return simulation_.swept(key);
  throw Violation("store: " + key + " has " + (there ? "another record" : "no record") + ", and nobody wrote that");
}

// Whether some of the writes in doubt, each on what the one before has left, lead there. Then they are told.
bool Sqlite::may_have_come(const std::string& key, const std::optional<Record>& there) {
  std::deque<Doubt>& doubts = doubts_[key];
  const auto known = simulation_.records().find(key);
  const std::optional<Record> now = known == simulation_.records().end() ? std::nullopt : std::optional(known->second);
  std::vector<const Doubt*> way;
  const auto leads = [&](const auto& self, const std::optional<Record>& from) -> bool {
    if (from == there) return true;
    for (const Doubt& doubt : doubts) {
      const Asking& asking = *doubt.asking;
      const bool holds = asking.how == Wrote::insert
                             ? !from
                             : from && from->owner == asking.seen.owner && from->revision == asking.seen.revision;
      if (!holds || std::ranges::find(way, &doubt) != way.end()) continue;
      way.push_back(&doubt);
      if (self(self, asking.next)) return true;
      way.pop_back();
    }
    return false;
  };
  if (!leads(leads, now)) return false;
  for (const Doubt* const doubt : way) {
    const Asking& asking = *doubt->asking;
    simulation_.in_trouble(true);
    simulation_.stored(doubt->by, asking, asking.next ? &*asking.next : nullptr);
  }
  return true;
}

}  // namespace

std::unique_ptr<RealStore> make_sqlite(Simulation& simulation) { return std::make_unique<Sqlite>(simulation); }

}  // namespace once::simulation
