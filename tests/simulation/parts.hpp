// The simulated world's parts: processes with an engine each, their network, the store and a bucket, and those who
// call. Only for the files of this folder.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/offload.hpp>
#include <once/store.hpp>
#include <once/stores/sql.hpp>

#include "auditor.hpp"
#include "config.hpp"
#include "coverage.hpp"
#include "simulation.hpp"
#include "world.hpp"

namespace once::simulation {

// What an engine draws: owners, jitter, and four bytes for each revision, which the planted bug makes none.
class EngineRandom final : public Random {
 public:
  EngineRandom(std::uint64_t seed, bool bare_revisions)
      : random_(std::in_place, seed), bare_revisions_(bare_revisions) {}
  void fill(std::span<std::uint8_t> out) noexcept override {
    random_->fill(out);
    if (bare_revisions_ && out.size() == sizeof(Stamp::random)) std::fill(out.begin(), out.end(), std::uint8_t{0});
  }
  // The kernel draws other bytes for a copy of the process.
  void draw_anew(std::uint64_t seed) { random_.emplace(seed); }

 private:
  std::optional<testing::SeededRandom> random_;
  const bool bare_revisions_;
};

// The world's auditor. Another world, in which a copy of a process lives on (copies.cpp), reports to it too: under the
// number of the copy, and of its calls.
class Watch {
 public:
  explicit Watch(Rules rules) : own_(std::move(rules)) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void follow(const Watch& other, ProcessId original, ProcessId copy, CallId last) {
    auditor_ = other.auditor_;
    original_ = original;
    copy_ = copy;
    last_ = last;
  }
  [[nodiscard]] ProcessId of(ProcessId id) const noexcept { return id != operators && id == original_ ? copy_ : id; }
  [[nodiscard]] CallId call(CallId id) const noexcept { return id <= last_ ? id + copied_calls : id; }
  [[nodiscard]] Auditor& auditor() noexcept { return *auditor_; }

  void at(Time now) { auditor_->at(now); }
  void landed(ProcessId by, Wrote how, const std::string& key, const Seen& seen, const Record* next) {
    auditor_->landed(of(by), how, key, seen, next);
  }
  void swept(const std::string& key) { auditor_->swept(key); }
  void offloaded(const std::string& location) { auditor_->offloaded(location); }
  void dropped(const std::string& location) { auditor_->dropped(location); }
  void built(ProcessId by, const Record& next) { auditor_->built(of(by), next); }
  void sent(ProcessId by, bool reads, const std::string& key) { auditor_->sent(of(by), reads, key); }
  void got(ProcessId by, bool reads, const std::string& key) { auditor_->got(of(by), reads, key); }
  void asked(CallId id, Auditor::Asked what) {
    what.process = of(what.process);
    auditor_->asked(call(id), what);
  }
  void answered(CallId id, const Begin& begin) { auditor_->answered(call(id), begin); }
  void attaches(CallId id, CallId earlier, const Owner& owner, Auditor::Asked what) {
    what.process = of(what.process);
    auditor_->attaches(call(id), call(earlier), owner, what);
  }
  void attached(CallId id, const Attached& answer) { auditor_->attached(call(id), answer); }
  void work_started(CallId id, const Claim& claim) { auditor_->work_started(call(id), claim); }
  void refused(ProcessId by, const Owner& holder) { auditor_->refused(of(by), holder); }
  void renewed(ProcessId by, const Record& record) { auditor_->renewed(of(by), record); }
  void woke(ProcessId process) { auditor_->woke(of(process)); }
  void told_to_stop(CallId id) { auditor_->told_to_stop(call(id)); }
  void told_of_loss(CallId id) { auditor_->told_of_loss(call(id)); }
  void about_to_act(CallId id, bool is_ours) { auditor_->about_to_act(call(id), is_ours); }
  void acts(CallId id) { auditor_->acts(call(id)); }
  void not_renewed(ProcessId by, const Owner& holder) { auditor_->not_renewed(of(by), holder); }
  void finish_asked(CallId id, FinishKind kind, const Result& result, const Failure& failure) {
    auditor_->finish_asked(call(id), kind, result, failure);
  }
  void step_asked(CallId id, const std::string& name, const std::string& result) {
    auditor_->step_asked(call(id), name, result);
  }
  void charges(CallId id) { auditor_->charges(call(id)); }
  void charged(CallId id) { auditor_->charged(call(id)); }
  void finish_answered(CallId id, FinishKind kind, const Finish& finish, const std::string& step = {}) {
    auditor_->finish_answered(call(id), kind, finish, step);
  }
  void handed_out(CallId id, const Result& result) { auditor_->handed_out(call(id), result); }
  void not_handed_out(CallId id) { auditor_->not_handed_out(call(id)); }
  void rows_committed(CallId id) { auditor_->rows_committed(call(id)); }
  void transaction_landed(CallId id, const Record& next) { auditor_->transaction_landed(call(id), next); }
  void outcome_told(CallId id, bool rolled_back) { auditor_->outcome_told(call(id), rolled_back); }
  void hand_out_forgotten(CallId id) { auditor_->hand_out_forgotten(call(id)); }
  void taken_back(CallId id) { auditor_->taken_back(call(id)); }
  void told(ProcessId by, EventKind kind) { auditor_->told(of(by), kind); }
  void copied(ProcessId original, ProcessId copy) { auditor_->copied(original, copy); }
  void died(ProcessId process) { auditor_->died(of(process)); }
  void end() { auditor_->end(); }
  [[nodiscard]] const Auditor::Totals& totals() const noexcept { return auditor_->totals(); }
  [[nodiscard]] const Record* shadow(const std::string& key) const { return auditor_->shadow(key); }

 private:
  Auditor own_;
  Auditor* auditor_ = &own_;
  ProcessId original_ = operators;
  ProcessId copy_ = operators;
  CallId last_ = 0;
};

class Simulation;
class RealStore;

// What a process reaches of the offload: shared by all, and durable.
class Bucket final : public Offload {
 public:
  Bucket(Simulation& simulation, Host& host) : simulation_(simulation), host_(host), life_(host.life()) {}
  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override;
  void get(std::string location, Callback<void(OffloadAnswer)> done) override;
  void remove(std::string location, Callback<void(OffloadAnswer)> done) override;

 private:
  void answer(OffloadAnswer with, Callback<void(OffloadAnswer)> done);
  Simulation& simulation_;
  Host& host_;
  const std::uint64_t life_;
};

struct Asking {
  Wrote how = Wrote::insert;
  bool reads = false;
  std::string key = {};
  std::optional<Record> next = {};
  Seen seen = {};
  std::shared_ptr<const Companion> companion = {};
};

// Writes of the work's own: what they are does not matter, only whether they were committed.
struct Charge final : Companion {
  Charge(CallId of, bool refused) : call(of), impossible(refused) {}
  const CallId call;
  const bool impossible;
};

// The store as one life of a process reaches it.
class Front final : public Store {
 public:
  Front(Simulation& simulation, Host& host, ProcessId id)
      : simulation_(simulation), host_(host), life_(host.life()), id_(id) {}

  void insert(RecordPtr record, Done done) override {
    std::string key = record->key;
    ask({.how = Wrote::insert, .key = std::move(key), .next = *record}, std::move(done));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    std::string key = record->key;
    ask({.how = Wrote::replace, .key = std::move(key), .next = *record, .seen = seen}, std::move(done));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    std::string key = record->key;
    ask({.how = Wrote::replace,
         .key = std::move(key),
         .next = *record,
         .seen = seen,
         .companion = std::move(companion)},
        std::move(done));
  }
  void remove(std::string key, Seen seen, Done done) override {
    ask({.how = Wrote::remove, .key = std::move(key), .next = std::nullopt, .seen = seen}, std::move(done));
  }
  stores::SqlStatement finish_statement(const Record& record, std::uint64_t place) override;
  void get(std::string key, Done done) override {
    ask({.reads = true, .key = std::move(key), .next = std::nullopt}, std::move(done));
  }
  void list(ListQuery, Callback<void(ListPage)>) override { throw Violation("answers: an engine lists records"); }
  void sweep(Time, std::size_t, Callback<void(SweepAnswer)>) override { throw Violation("answers: an engine sweeps"); }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override;
  [[nodiscard]] Capabilities capabilities() const noexcept override;
  [[nodiscard]] std::string name() const override { return "simulated:"; }

 private:
  void ask(Asking asking, Done done);
  Simulation& simulation_;
  Host& host_;
  const std::uint64_t life_;
  const ProcessId id_;
};

class Simulation {
 public:
  explicit Simulation(const Options& options);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  Report run();
  Report play();
  void ask(Host& host, std::uint64_t life, ProcessId id, Asking asking, Done done);
  void misuse_after_decline(ProcessId id, const Asking& asking);
  void strike(ProcessId id, const std::string& key);
  static std::string request_name(const Asking& asking);
  Instant late() { return world_.span(Instant(config_.lease) * (config_.ghosts && world_.chance(500) ? 10 : 1)); }

  World& world() noexcept { return world_; }
  const Config& config() const noexcept { return config_; }
  bool calm() const noexcept { return calm_; }
  const std::map<std::string, std::string>& blobs() const noexcept { return main_ != nullptr ? main_->blobs_ : blobs_; }
  void keep(const std::string& location, std::string bytes);
  void drop(const std::string& location);

  // For real stores: what is asked and answered, what has happened below them, …
  void asks(ProcessId id, const Asking& asking);
  void answers(ProcessId id, const Asking& asking, Answer answer, Done& done);
  void stored(ProcessId by, const Asking& asking, const Record* next);
  void swept(const std::string& key);
  // In a completion of a store, which must not throw: the violation is thrown when the event is over.
  template <class F>
  void guarded(F what) {
    try {
      what();
    } catch (const Violation&) {
      std::exception_ptr& first = main_ != nullptr ? main_->violation_ : violation_;
      if (first == nullptr) first = std::current_exception();
    }
  }
  void in_trouble(bool late) {
    ++report_.lost_answers;
    if (late) ++report_.late_writes;
  }
  // … and what that depends on.
  [[nodiscard]] Bug bug() const noexcept { return options_.bug; }
  [[nodiscard]] bool is_down() const noexcept { return down_until_ > world_.now(); }
  [[nodiscard]] const std::map<std::string, Record>& records() const noexcept { return records_; }
  Auditor& auditor() {
    auditor_.at(world_.utc());
    return auditor_.auditor();
  }
  void crash(ProcessId id);
  void power_is_cut();  // Of all processes.

 private:
  // At the server: it may live on when its process is dead.
  struct Session {
    CallId call = 0;
    ProcessId by = 0;
    Record completion;  // What its statement writes.
    bool locks = false;
    bool over = false;
  };
  struct Transaction {
    HandedOut handed;
    std::shared_ptr<Session> session;
    bool by_command = false;  // A command of the work's makes it, and its process does not see it.
    unsigned asked = 0;
  };
  struct Work {
    CallId call = 0;
    std::string key;
    Claim claim;
    unsigned steps = 0;
    unsigned next_step = 0;
    bool obeys = false;     // Stops when it is asked to.
    bool looks = false;     // Acts only while its claim is its own; waits while that may come back.
    bool was_ours = false;  // When it looked last.
    bool ended = false;
    FinishKind end = FinishKind::complete;
    bool abandons = false;
    bool big = false;
    bool charges = false;
    bool finishes = false;  // Has asked for its finish, and not been told that it was declined.
    bool hands = false;     // Its result is committed by a transaction of its own.
    unsigned declined = 0;
    Instant pause{};
    std::unique_ptr<Transaction> transaction;
    using Listener = std::optional<std::stop_callback<Callback<void()>>>;
    Listener on_stop, on_loss;
  };
  struct Flight {
    ProcessId by = 0;
    Asking asking;
    Done done;
    bool is_answered = false;
    bool is_cut = false;  // In a copy of its process: its answer goes to the other.
  };
  // A claim of a process that died.
  struct Left {
    CallId call = 0;
    std::string name;  // Of the key, in its scope.
    Owner owner;
  };
  struct Process {
    Process(World& world, std::int64_t drift, Millis offset) : host(world, drift, offset) {}
    Host host;
    ProcessId id = 0;
    std::shared_ptr<EngineRandom> random;
    std::unique_ptr<Engine> engine;
    std::map<CallId, std::unique_ptr<Work>> works;
    std::vector<Left> left;  // By its life before.
  };

  void begin();
  bool step();

  // A process is doubled
  void copy();
  void live_on_as_copy(Simulation& other, ProcessId original, ProcessId copy);
  void call_copy(std::size_t index);

  Rules rules() const;
  Millis draw_offset();

  // what happens by itself
  template <class F>
  void every(Instant mean, F what) {
    if (mean <= Instant{0}) return;
    world_.at(world_.now() + world_.span(mean), nullptr, [this, mean, what] {
      if (calm_) return;
      auditor_.at(world_.utc());
      what();
      every(mean, what);
    });
  }

  void arrive();
  void become_calm();
  void start(Process& process);
  void stop(Process& process);
  static void hit(const Process& process, Blow blow);
  void crash() { crash(*processes_.at(world_.below(processes_.size()))); }
  void crash(Process& process);
  void pause() { pause(*processes_.at(world_.below(processes_.size()))); }
  void pause(Process& process);
  void wake(Process& process);
  void outage();
  void jump() { jump(*processes_.at(world_.below(processes_.size()))); }
  void jump(Process& process);
  void sweep();
  void operate();
  void operate(const Record& stands);

  // the store
  Answer carry_out(ProcessId by, const Asking& asking);
  void lands(ProcessId by, const Asking& asking, const Seen& seen, const Record* next);
  void erase_swept(std::map<std::string, Record>::iterator& at);

 public:
  [[nodiscard]] std::size_t max_record_bytes() const noexcept { return config_.small ? 16 * 1024 : 1'000'000; }

 private:
  static void demand_room(ProcessId by, const Asking& asking);
  Answer leave(ProcessId by, const Asking& asking, Answer answer);
  void plant_in_request(Asking& asking);

  // the callers
 public:
  std::int64_t prepare(const Record& completion);

 private:
  void call(Process& process, std::size_t index);
  const Fingerprint& print_of(const std::string& payload);
  void answered(Process& process, CallId id, const std::string& key, Begin begin);
  void begin_work(Process& process, CallId id, const std::string& key, Claim claim);
  void leave_claims(Process& process);
  void attach(Process& process, const Left& left);
  void later(Process& process, CallId id);
  void go_on(Process& process, CallId id);
  std::size_t length_of_step(const Work& work);
  void listen(Work& work);
  bool is_ours(Process& process, Work& work);
  void act(const Work& work);
  void finish(Process& process, Work& work);
  void misuse(Work& work);
  void misuse_later(Process& process, CallId id);

  // transactions of the callers' own
  void hand_out(Process& process, CallId id);
  enum class Outcome : std::uint8_t { committed, rolled_back, unknown };

  void execute(Process& process, CallId id);
  void roll_back(Process& process, CallId id);
  void commit(Process& process, CallId id);
  void run_command(Process& process, CallId id);
  void take_back(Process& process, CallId id);
  void tell_outcome(Process& process, CallId id, Outcome outcome);
  void learn(Process& process, CallId id, Finish::Kind kind);
  void forget(Process& process, CallId id);
  // What a process does when an answer comes, if the work is still there.
  template <class F>
  void reply_at(Instant at, Process& process, std::uint64_t life, CallId id, F then) {
    if (process.host.life() != life) return;
    world_.at(at, &process.host, [this, &process, id, then = std::move(then)] {
      const auto found = process.works.find(id);
      if (found == process.works.end() || found->second->transaction == nullptr) return;
      auditor_.at(world_.utc());
      then();
    });
  }
  template <class F>
  void reply(Process& process, std::uint64_t life, CallId id, F then) {
    reply_at(world_.now() + world_.span(config_.latency), process, life, id, std::move(then));
  }

  // the same at the server
  bool may_finish(const Session& session);
  void land(Session& session);
  void refuse(Session& session);
  void end_session(Session& session);
  void when_free(const std::string& key, Callback<void()> what);

  // telling
  static std::string text_of(const Record& record);
  static std::string describe(const Answer& answer);
  static std::string describe(const Finish& finish);
  void describe();
  template <class F>
  void trace(ProcessId who, const std::string& what, const std::string& key, F details) {
    if (options_.trace == nullptr) return;
    std::string micros = std::to_string(std::chrono::floor<std::chrono::microseconds>(world_.now()).count());
    *options_.trace << std::string(micros.size() < 12 ? 12 - micros.size() : 0, ' ') << micros << " us  ";
    const ProcessId told = auditor_.of(who);
    *options_.trace << (told == operators ? std::string("--") : "p" + std::to_string(told)) << "  " << what << "  "
                    << key << "  " << details() << '\n';
  }

  void digest(const std::string& text, std::uint64_t a, std::uint64_t b);

  Options options_;
  World world_;
  const Config config_;
  Watch auditor_;
  Report report_;
  std::unique_ptr<RealStore> real_;  // Null: the simulated store.
  std::exception_ptr violation_;
  std::unique_ptr<Simulation> copy_;            // Where the copy of a process lives on.
  Simulation* main_ = nullptr;                  // There: the world that it shares with all others.
  std::vector<std::weak_ptr<Flight>> flights_;  // Until a process was copied.
  std::vector<std::unique_ptr<Process>> processes_;
  ProcessId last_process_ = operators;
  std::uint64_t calls_ = 0;
  bool calm_ = false;
  Instant down_until_{0};
  std::map<std::string, Record> records_;
  std::map<std::string, Record> first_result_;
  std::map<std::string, Record> previous_;
  std::set<std::pair<std::string, std::uint64_t>> committed_;  // Owners and revisions of writes with companions.
  std::map<std::string, std::string> blobs_;
  // Requests about forgotten transactions, which must be answered even when their process is killed.
  std::map<ProcessId, std::vector<Callback<void()>>> owed_;
  bool forgets_ = false;
  std::vector<Record> prepared_;
  std::map<std::string, std::vector<Callback<void()>>> locks_;  // Rows that transactions have, and who waits for each.
  std::unordered_map<std::string, Fingerprint> prints_;
  std::map<std::size_t, unsigned> generation_;
  std::map<std::string, std::string> derived_;
  std::set<std::string> done_;
};

}  // namespace once::simulation
