#include "simulation.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/operate.hpp>

#include "world.hpp"

namespace once::simulation {

using namespace std::chrono_literals;

const char* to_string(Bug bug) {
  static constexpr std::array<const char*, static_cast<std::size_t>(last_bug) + 1> names = {
      "none",
      "store_ignores_revision",
      "store_inserts_over",
      "store_forgets_acknowledged",
      "store_answers_another_key",
      "engine_writes_regardless",
      "engine_takes_live_claims",
      "engine_deletes_claims",
      "engine_loses_steps",
      "engine_keeps_token",
      "engine_replays_stale",
      "engine_swallows_answers",
      "engine_answers_twice",
      "clock_far_off",
      "engine_repeats_revisions",
      "engine_forgets_hold",
      "engine_forgets_history",
      "engine_repeats_history",
      "store_reads_stale",
      "store_commits_apart",
      "offload_loses_results"};
  return names.at(static_cast<std::size_t>(bug));
}

namespace {

enum class Tells : std::uint8_t { by_call, in_answers, never };

// What kind of world a seed makes.
struct Config {
  std::size_t processes = 1;
  std::size_t keys = 4;
  Millis lease{1'000};
  Millis retention{60'000};
  Instant latency{2ms};
  Instant between_calls{50ms};
  Tells tells = Tells::by_call;
  Millis told_error{0};
  Millis skew{0};
  bool jumps = false;
  bool cached = false;
  bool offloads = false;
  bool compresses = false;
  bool retries_failures = false;
  bool ghosts = false;        // What is delivered late, or twice, may come very late, and records are soon swept.
  bool small = false;         // The store keeps only small records.
  bool companions = false;    // Some results are committed together with other writes.
  bool differing = false;     // Callers of a key do not agree about lease and retention.
  std::uint32_t trouble = 0;  // Of the network, in a thousand requests.
  Instant between_crashes{0}, between_pauses{0}, between_outages{0}, between_operators{0};  // 0: never.

  static Config draw(World& world, Bug bug) {
    Config c;
    const auto pick = [&](auto... values) {
      const std::array all{values...};
      return all.at(world.below(all.size()));
    };
    c.processes = 1 + world.below(4);
    c.keys = 1 + world.below(8);
    c.lease = pick(Millis{300}, Millis{1'000}, Millis{5'000}, Millis{20'000});
    c.retention = pick(Millis{500}, Millis{5'000}, Millis{60'000}, Millis{3'600'000});
    c.latency = pick(Instant{100us}, Instant{2ms}, Instant{30ms});
    c.between_calls = Instant(c.lease) / static_cast<std::int64_t>(pick(2, 10, 50));
    c.tells = pick(Tells::by_call, Tells::in_answers, Tells::in_answers, Tells::never);
    if (c.tells == Tells::in_answers) {
      c.told_error = pick(Millis{2}, Millis{40}, Millis{600});
      c.skew = pick(Millis{0}, Millis{200}, Millis{2'000});
      c.jumps = world.chance(500);
    } else if (c.tells == Tells::never) {
      c.skew = Millis{250};
    } else {
      c.jumps = world.chance(500);
    }
    c.cached = world.chance(300);
    c.offloads = world.chance(400);
    c.compresses = c.keys % 3 == 0;  // No draw of its own: the other worlds stay as they were.
    c.retries_failures = world.chance(300);
    c.trouble = pick(0U, 20U, 150U, 400U);
    c.ghosts = world.chance(300);
    c.small = world.chance(200);
    c.companions = world.chance(300);
    c.differing = world.chance(200);
    if (c.ghosts) c.retention = pick(Millis{20}, c.retention);
    const auto often = [&](int spans) { return world.chance(500) ? Instant(c.lease) * spans : Instant{0}; };
    c.between_crashes = often(10);
    c.between_pauses = often(6);
    c.between_outages = often(15);
    c.between_operators = often(4);
    if (bug != Bug::none) {  // A world in which it can show.
      c.processes = 3;
      c.keys = 3;
      c.lease = Millis{1'000};
      c.between_calls = Instant(20ms);
      c.between_crashes = Instant(5s);
      c.between_pauses = Instant(3s);
      c.cached = false;
    }
    if (bug == Bug::engine_repeats_revisions) {
      c.keys = 1;
      c.trouble = 400;
      c.ghosts = true;
      c.retention = Millis{20};
      c.between_calls = Instant(200ms);
    }
    if (bug == Bug::store_commits_apart) c.companions = true;
    if (bug == Bug::offload_loses_results) c.offloads = true;
    if (bug == Bug::engine_replays_stale) c.retention = Millis{5'000};
    if (bug == Bug::clock_far_off) {
      c.tells = Tells::never;
      c.skew = Millis{100};
      c.jumps = false;
    }
    return c;
  }
};

// What an engine draws: owners, jitter, and four bytes for each revision, which the planted bug makes none.
class EngineRandom final : public Random {
 public:
  EngineRandom(std::uint64_t seed, bool bare_revisions) : random_(seed), bare_revisions_(bare_revisions) {}
  void fill(std::span<std::uint8_t> out) noexcept override {
    random_.fill(out);
    if (bare_revisions_ && out.size() == sizeof(Stamp::random)) std::fill(out.begin(), out.end(), std::uint8_t{0});
  }

 private:
  testing::SeededRandom random_;
  const bool bare_revisions_;
};

class Simulation;

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
  std::string key;
  std::optional<Record> next;
  Seen seen;
  std::shared_ptr<const Companion> companion;
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
  explicit Simulation(const Options& options)
      : options_(options),
        world_(options.seed * 0x9E3779B97F4A7C15U + 1),
        config_(Config::draw(world_, options.bug)),
        auditor_(rules()) {}

  Report run() {
    describe();
    for (std::size_t i = 0; i < config_.processes; ++i) {
      const auto drift = static_cast<std::int64_t>(world_.below(401)) - 200;
      processes_.push_back(std::make_unique<Process>(world_, drift, draw_offset()));
      start(*processes_.back());
    }
    arrive();
    every(config_.between_crashes, [this] { crash(); });
    every(config_.between_pauses, [this] { pause(); });
    every(config_.between_outages, [this] { outage(); });
    every(config_.between_operators, [this] { operate(); });
    if (config_.jumps) every(Instant(config_.lease) * 3, [this] { jump(); });
    every(Instant(config_.lease) * (config_.ghosts ? 1 : 20), [this] { sweep(); });
    const std::uint64_t most = 1'000'000 + options_.operations * 2'000;
    while (world_.step()) {
      if (world_.events > most) throw Violation("answers: the world does not come to rest");
    }
    auditor_.end();
    for (auto& process : processes_) stop(*process);
    report_.events = world_.events;
    report_.totals = auditor_.totals();
    return report_;
  }

  // The network: a request of a process, its fate, its answer.
  void ask(Host& host, std::uint64_t life, ProcessId id, Asking asking, Done done) {
    if (host.life() != life) return;  // The process is dead; no caller waits for the answer.
    plant_in_request(asking);
    auditor_.at(world_.utc());
    const bool talk = asking.reads || asking.how == Wrote::insert;
    if (talk) auditor_.sent(id, asking.reads, asking.key);
    struct Flight {
      Asking asking;
      Done done;
    };
    auto flight = std::make_shared<Flight>(Flight{std::move(asking), std::move(done)});
    const auto answer = [this, &host, life, id, flight](Instant at, Answer with) {
      if (host.life() != life) return;
      world_.at(at, &host, [this, id, flight, with = std::move(with)]() mutable {
        if (options_.bug == Bug::engine_swallows_answers && world_.chance(3)) return;
        auditor_.at(world_.utc());
        if (flight->asking.reads || flight->asking.how == Wrote::insert) {
          auditor_.got(id, flight->asking.reads, flight->asking.key);
        }
        trace(id, "answer", flight->asking.key, [&] { return describe(with); });
        flight->done(std::move(with));
      });
    };
    const auto land = [this, &host, life, id, flight](Instant at, auto then) {
      world_.at(at, nullptr, [this, &host, life, id, flight, then = std::move(then)]() mutable {
        // What a dead process had sent may be on its way or not.
        if (host.life() != life && world_.chance(500)) return;
        then(carry_out(id, flight->asking));
      });
    };
    const bool reads = flight->asking.reads;
    const auto lost = [reads] {
      return Answer::fail(reads ? ErrorKind::unavailable : ErrorKind::in_doubt, "no answer came");
    };
    const Instant there = world_.now() + world_.span(config_.latency);
    const Instant timeout = there + world_.span(200ms);
    trace(id,
          reads                                  ? "read"
          : flight->asking.how == Wrote::insert  ? "insert"
          : flight->asking.how == Wrote::replace ? "replace"
                                                 : "remove",
          flight->asking.key, [&] { return flight->asking.next ? text_of(*flight->asking.next) : std::string(); });
    if (down_until_ > world_.now()) {
      if (world_.chance(700)) return answer(there, Answer::fail(ErrorKind::unavailable, "the store is down"));
      return answer(timeout, lost());
    }
    const auto back = [this] { return world_.now() + world_.span(config_.latency); };
    if (calm_ || !world_.chance(config_.trouble)) {
      return land(there, [answer, back](Answer with) { answer(back(), std::move(with)); });
    }
    ++report_.lost_answers;
    // A store sends companions once, and says that it is in doubt otherwise: a second copy could find a condition true
    // that the first was declined for.
    switch (world_.below(flight->asking.companion ? 5 : 6)) {
      case 0:
        return answer(there, Answer::fail(ErrorKind::unavailable, "connection refused"));
      case 1:
        return answer(timeout, lost());
      case 2:
        answer(timeout, lost());
        return land(there, [](const Answer&) {});
      case 3:
        ++report_.late_writes;
        answer(timeout, lost());
        return land(timeout + late(), [](const Answer&) {});
      case 4:
        return land(there + late(), [answer, back](Answer with) { answer(back(), std::move(with)); });
      default: {
        // Sent twice: the second may come at any time, and either answer may be the one that is read.
        const bool first = world_.chance(500);
        const Instant again = there + (first ? late() : world_.span(config_.latency));
        land(there, [answer, back, first](Answer with) {
          if (first) answer(back(), std::move(with));
        });
        return land(again, [answer, back, first](Answer with) {
          if (!first) answer(back(), std::move(with));
        });
      }
    }
  }

  Instant late() { return world_.span(Instant(config_.lease) * (config_.ghosts && world_.chance(500) ? 10 : 1)); }

  World& world() noexcept { return world_; }
  const Config& config() const noexcept { return config_; }
  bool calm() const noexcept { return calm_; }
  const std::map<std::string, std::string>& blobs() const noexcept { return blobs_; }
  void keep(const std::string& location, std::string bytes) {
    blobs_[location] = std::move(bytes);
    auditor_.offloaded(location);
  }
  void drop(const std::string& location) {
    blobs_.erase(location);
    auditor_.at(world_.utc());
    auditor_.dropped(location);
  }

 private:
  struct Work {
    CallId call = 0;
    std::string key;
    Claim claim;
    unsigned steps = 0;
    unsigned next_step = 0;
    bool obeys = false;  // Stops when it is asked to.
    bool ended = false;
    FinishKind end = FinishKind::complete;
    bool abandons = false;
    bool big = false;
    bool charges = false;
    unsigned declined = 0;
    Instant pause{};
  };
  struct Process {
    Process(World& world, std::int64_t drift, Millis offset) : host(world, drift, offset) {}
    Host host;
    ProcessId id = 0;
    std::unique_ptr<Engine> engine;
    std::map<CallId, std::unique_ptr<Work>> works;
  };

  Rules rules() const {
    Rules rules;
    const Millis uncertain = config_.told_error * 2 + config_.skew + 2'000ms;
    rules.token_slack = config_.tells == Tells::by_call ? Millis{0} : uncertain;
    // A claim that was counted on a wrong clock and never corrected keeps its token.
    if (config_.jumps && config_.tells != Tells::by_call) rules.token_slack += 2h;
    rules.expiry_slack = config_.tells == Tells::by_call ? Millis{0} : uncertain;
    rules.lease_slack = config_.skew;
    if (config_.tells == Tells::never) rules.early = 61ms;
    if (config_.tells == Tells::by_call) rules.late = config_.skew;
    rules.cached = config_.cached;
    return rules;
  }

  Millis draw_offset() {
    if (options_.bug == Bug::clock_far_off) return Millis{static_cast<std::int64_t>(world_.below(4)) * 3'000};
    if (config_.tells == Tells::never) return Millis{static_cast<std::int64_t>(world_.below(121)) - 60};
    if (!config_.jumps) return Millis{static_cast<std::int64_t>(world_.below(11)) - 5};
    return Millis{(static_cast<std::int64_t>(world_.below(3)) - 1) * 3'600'000};
  }

  // ---- what happens by itself

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

  void arrive() {
    if (calls_ >= options_.operations) return become_calm();
    // Mostly one, sometimes a crowd with one key.
    const std::uint64_t crowd = world_.chance(60) ? 2 + world_.below(8) : 1;
    const std::size_t key = world_.below(config_.keys);
    for (std::uint64_t i = 0; i < crowd && calls_ < options_.operations; ++i) {
      Process& process = *processes_.at(world_.below(processes_.size()));
      if (process.engine == nullptr || process.host.stopped()) continue;
      call(process, key);
    }
    if (world_.chance(20)) ++generation_[key];
    world_.at(world_.now() + world_.span(config_.between_calls), nullptr, [this] {
      auditor_.at(world_.utc());
      arrive();
    });
  }

  // No more faults: every caller must get an answer now.
  void become_calm() {
    calm_ = true;
    down_until_ = Instant{0};
    for (auto& process : processes_) {
      if (process->host.stopped()) process->host.resume();
    }
  }

  void start(Process& process) {
    process.id = ++last_process_;
    EngineOptions options;
    options.store = std::make_shared<Front>(*this, process.host, process.id);
    options.policy.lease = config_.lease;
    options.policy.retention = config_.retention;
    options.policy.max_inline_bytes = 200;
    options.policy.compress_over_bytes = 50;
    options.scope = "s";
    options.holder = "p" + std::to_string(process.id);
    options.clock = process.host.clock();
    options.timers = process.host.timers();
    options.random =
        std::make_shared<EngineRandom>(world_.random.next(), options_.bug == Bug::engine_repeats_revisions);
    if (config_.offloads) options.offload = std::make_shared<Bucket>(*this, process.host);
    if (config_.cached) options.cache_records = 20;
    options.observer = [this, id = process.id](const Event& event) {
      auditor_.told(id, event.kind);
      trace(id, "event", std::string(event.key), [&] {
        return std::string(once::to_string(event.kind)) + (event.error == nullptr ? "" : ": " + event.error->message);
      });
    };
    process.engine = std::make_unique<Engine>(std::move(options));
  }

  void stop(Process& process) {
    process.host.kill();
    process.works.clear();
    process.engine.reset();
  }

  void crash() {
    Process& process = *processes_.at(world_.below(processes_.size()));
    if (process.engine == nullptr) return;
    ++report_.crashes;
    trace(process.id, "crash", "", [] { return std::string(); });
    stop(process);
    auditor_.died(process.id);
    world_.at(world_.now() + world_.span(Instant(config_.lease) / 2), nullptr, [this, &process] {
      auditor_.at(world_.utc());
      start(process);
    });
  }

  void pause() {
    Process& process = *processes_.at(world_.below(processes_.size()));
    if (process.engine == nullptr || process.host.stopped()) return;
    ++report_.pauses;
    trace(process.id, "stop", "", [] { return std::string(); });
    process.host.stop();
    const std::uint64_t life = process.host.life();
    world_.at(world_.now() + world_.span(config_.lease), nullptr, [this, &process, life] {
      if (process.host.life() != life || !process.host.stopped()) return;
      auditor_.at(world_.utc());
      trace(process.id, "continue", "", [] { return std::string(); });
      process.host.resume();
    });
  }

  void outage() {
    down_until_ = world_.now() + world_.span(Instant(config_.lease) / 2);
    trace(0, "store down", "", [] { return std::string(); });
  }

  void jump() {
    Process& process = *processes_.at(world_.below(processes_.size()));
    ++report_.jumps;
    process.host.jump(Millis{process.host.offset() > Millis{0} ? -3'600'000 : 3'600'000});
    trace(process.id, "clock jumps", "", [] { return std::string(); });
  }

  void sweep() {
    for (auto it = records_.begin(); it != records_.end();) {
      if (!is_expired(it->second.expires_at, world_.utc()) || world_.chance(300)) {
        ++it;
        continue;
      }
      trace(0, "sweep", it->first, [] { return std::string(); });
      auditor_.swept(it->first);
      const Result& result = it->second.result;
      if (result.placement == Placement::offloaded) {
        world_.at(world_.now() + world_.span(config_.latency), nullptr,
                  [this, location = result.location] { drop(location); });
      }
      it = records_.erase(it);
    }
  }

  void operate() {
    if (records_.empty()) return;
    auto it = records_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(world_.below(records_.size())));
    const Record seen = it->second;
    const operate::Reason reason{.by = "simulation", .text = "at random"};
    Owner fresh;
    world_.random.fill(fresh.bytes);
    std::uint32_t random = 0;
    std::memcpy(&random, fresh.bytes.data(), sizeof random);
    const Stamp stamp(world_.utc(), random);
    operate::Plan plan;
    const std::uint64_t what = world_.below(5);
    if (what == 0) {
      plan = operate::plan_release(seen, {.retention = config_.retention, .force = world_.chance(500)}, reason, fresh,
                                   stamp);
    } else if (what == 1) {
      plan = operate::plan_extend(seen, config_.lease * 2, reason, stamp, config_.skew);
    } else if (what == 4) {
      const OnLapse on_lapse = world_.chance(500) ? OnLapse::hold : OnLapse::takeover;
      plan = operate::plan_on_lapse(seen, on_lapse, config_.retention, reason, stamp, config_.skew);
    } else {
      operate::Resolution resolution;
      resolution.as = what == 2 ? operate::As::completed : operate::As::failed;
      resolution.result = Result::inlined("resolved " + seen.key);
      resolution.failure = {.code = "operator", .message = "it did not take place"};
      resolution.retention = config_.retention;
      resolution.force = world_.chance(300);
      plan = operate::plan_resolve(seen, resolution, reason, fresh, stamp);
    }
    if (!plan.next) return;
    ++report_.operator_acts;
    Asking asking{.how = Wrote::replace, .key = seen.key, .next = *plan.next, .seen = {seen.owner, seen.revision, 0}};
    world_.at(world_.now() + (world_.chance(500) ? Instant{0} : world_.span(config_.latency * 5)), nullptr,
              [this, asking = std::move(asking)] {
                trace(0, "operator", asking.key, [&] { return text_of(*asking.next); });
                carry_out(operators, asking);
              });
  }

  // ---- the store

  Answer carry_out(ProcessId by, const Asking& asking) {
    auditor_.at(world_.utc());
    const Bug bug = by == operators ? Bug::none : options_.bug;
    const auto found = records_.find(asking.key);
    Record* stands = found == records_.end() ? nullptr : &found->second;
    Answer answer;
    if (asking.reads) {
      if (stands != nullptr) answer.record = share(*stands);
      if (bug == Bug::store_reads_stale && previous_.contains(asking.key)) {
        answer.record = share(previous_.at(asking.key));
      }
      return leave(by, asking, std::move(answer));
    }
    // As DynamoDB recognises the token of a transaction for ten minutes, which is longer than any world. Without it a
    // late copy would find its record again if the insert came twice too, after the first one expired and was swept.
    if (asking.companion != nullptr && committed_.contains({asking.next->owner.hex(), asking.next->revision})) {
      return leave(by, asking, std::move(answer));
    }
    bool holds = stands == nullptr;
    if (asking.how == Wrote::insert) {
      holds = holds || bug == Bug::store_inserts_over;
    } else {
      holds = stands != nullptr && (stands->owner == asking.seen.owner || bug == Bug::engine_writes_regardless) &&
              (stands->revision == asking.seen.revision || bug == Bug::store_ignores_revision ||
               bug == Bug::engine_writes_regardless);
    }
    if (!holds) {
      answer.status = Answer::Status::refused;
      const auto* const apart = dynamic_cast<const Charge*>(asking.companion.get());
      if (apart != nullptr && bug == Bug::store_commits_apart) auditor_.charged(apart->call);
      if (stands != nullptr) answer.record = share(*stands);
      return leave(by, asking, std::move(answer));
    }
    if (asking.next && record_bytes(*asking.next) > max_record_bytes()) {
      demand_room(by, asking);
      return leave(by, asking, Answer::cannot_keep("the record is too large"));
    }
    const auto* charge = dynamic_cast<const Charge*>(asking.companion.get());
    if (charge != nullptr && charge->impossible) {
      return leave(by, asking, Answer::decline(ErrorKind::misuse, "the writes can never be made"));
    }
    if (charge != nullptr && world_.chance(200)) {
      return leave(by, asking, Answer::decline(ErrorKind::unavailable, "a condition of the writes does not hold"));
    }
    if (bug == Bug::store_forgets_acknowledged && world_.chance(20)) return leave(by, asking, std::move(answer));
    Seen seen = asking.seen;
    std::optional<Record> next = asking.next;
    if (bug == Bug::engine_writes_regardless && asking.how == Wrote::replace) {
      // The engine would have read, and written over what it found.
      seen = {.owner = stands->owner, .revision = stands->revision, .place = 0};
      next->revision = next_revision(stands->revision, 0);
    }
    trace(by, "lands", asking.key, [&] { return next ? text_of(*next) : std::string("removed"); });
    digest(asking.key, next ? next->revision : 0, next ? next->token : 0);
    auditor_.landed(by, asking.how, asking.key, seen, next ? &*next : nullptr);
    if (charge != nullptr) {
      auditor_.charged(charge->call);
      committed_.insert({next->owner.hex(), next->revision});
    }
    if (next) {
      if (next->state == State::completed) first_result_.try_emplace(asking.key, *next);
      if (stands != nullptr) previous_.insert_or_assign(asking.key, *stands);
      if (bug == Bug::offload_loses_results && next->result.placement == Placement::offloaded) {
        drop(next->result.location);
      }
      records_.insert_or_assign(asking.key, *std::move(next));
    } else {
      records_.erase(asking.key);
    }
    return leave(by, asking, std::move(answer));
  }

 public:
  [[nodiscard]] std::size_t max_record_bytes() const noexcept { return config_.small ? 16 * 1024 : 1'000'000; }

 private:
  // Other callers would never get any further with that key.
  static void demand_room(ProcessId by, const Asking& asking) {
    if (by == operators || asking.how == Wrote::insert) return;
    if (asking.next->state == State::unknown || asking.next->owner != asking.seen.owner) {
      throw Violation("answers: a record of " + asking.key + " has no room to be ended: " + text_of(*asking.next));
    }
  }

  // Puts the store's time on the answer, and planted faults into it.
  Answer leave(ProcessId by, const Asking& asking, Answer answer) {
    if (config_.tells == Tells::in_answers) {
      const std::int64_t error = config_.told_error.count();
      const Millis off{static_cast<std::int64_t>(world_.below(static_cast<std::uint64_t>(2 * error - 1))) - error + 1};
      answer.time = StoreTime{world_.utc() + off, config_.told_error};
    } else if (config_.tells == Tells::by_call) {
      answer.time = StoreTime{world_.utc(), Millis{0}};
    }
    if (by == operators || !answer.record) return answer;
    if (options_.bug == Bug::store_answers_another_key && world_.chance(10)) {
      answer.record = share(records_.begin()->second);
    } else if (options_.bug == Bug::engine_takes_live_claims && answer.record->state == State::in_progress) {
      Record lapsed = *answer.record;
      lapsed.lease_until = Time{Millis{1}};
      answer.record = share(std::move(lapsed));
    } else if (options_.bug == Bug::engine_replays_stale && answer.record->state == State::completed) {
      Record first = first_result_.at(asking.key);
      first.expires_at = answer.record->expires_at;
      answer.record = share(std::move(first));
    }
    return answer;
  }

  void plant_in_request(Asking& asking) {
    if (asking.how != Wrote::replace || asking.reads) return;
    const bool claims = !(asking.next->owner == asking.seen.owner);
    switch (options_.bug) {
      case Bug::engine_deletes_claims:
        if (!claims && asking.next->state == State::in_progress && world_.chance(100)) {
          asking.how = Wrote::remove;
          asking.next.reset();
        }
        break;
      case Bug::engine_loses_steps:
        if (claims) asking.next->steps.clear();
        break;
      case Bug::engine_forgets_hold:
        if (claims) asking.next->on_lapse = OnLapse::takeover;
        break;
      case Bug::engine_forgets_history:
        if (claims && !asking.next->history.entries.empty()) asking.next->history.entries.pop_back();
        break;
      case Bug::engine_repeats_history:
        if (!claims && !asking.next->history.entries.empty()) {
          append(asking.next->history, asking.next->history.entries.back());
        }
        break;
      case Bug::engine_keeps_token:
        if (claims) asking.next->token = 1;
        break;
      default:
        break;
    }
  }

  // ---- the callers

  void call(Process& process, std::size_t index) {
    const CallId id = ++calls_;
    const std::string name = "k" + std::to_string(index) + "." + std::to_string(generation_[index]);
    Policy policy;
    policy.lease = config_.lease;
    policy.retention = config_.retention;
    policy.max_inline_bytes = 200;
    policy.compress_over_bytes = 50;
    if (config_.differing) {
      if (world_.chance(300)) policy.lease = config_.lease / 3;
      if (world_.chance(300)) policy.retention = Millis{1} + config_.retention / 3;
    }
    policy.on_lapse = index % 3 == 0 ? OnLapse::hold : OnLapse::takeover;
    if (config_.differing && world_.chance(200)) policy.on_lapse = OnLapse::takeover;  // The record keeps it held.
    policy.on_stored_failure = config_.retries_failures ? OnStoredFailure::execute : OnStoredFailure::replay;
    policy.heartbeat = world_.chance(800);
    policy.fixed_lease = !policy.heartbeat && index % 2 == 0;
    policy.on_conflict = OnConflict::fail;
    if (world_.chance(500)) {
      policy.on_conflict = OnConflict::wait;
      policy.wait = std::chrono::floor<Millis>(world_.span(Instant(config_.lease)));
    }
    Fingerprint fingerprint;
    const std::uint64_t payload = world_.below(100);
    if (payload < 85) fingerprint = Fingerprint::of(name);
    if (payload >= 93) fingerprint = Fingerprint::of("another payload");
    Request request{.key = Key("s", name), .fingerprint = fingerprint, .policy = policy, .holder = {}};
    Auditor::Asked asked;
    asked.process = process.id;
    asked.key = request.key.stored();
    asked.fingerprint = fingerprint;
    asked.retries_failures = config_.retries_failures;
    asked.holds = policy.on_lapse == OnLapse::hold;
    auditor_.asked(id, asked);
    trace(process.id, "call " + std::to_string(id), asked.key, [&] {
      return std::string(policy.on_conflict == OnConflict::wait ? "waits" : "fails") + (asked.holds ? " holds" : "") +
             (policy.heartbeat ? "" : " without heartbeat") + (policy.fixed_lease ? " under a fixed lease" : "");
    });
    // In the process's own time, so that a stopped one does not ask.
    world_.at(world_.now(), &process.host,
              [this, &process, id, key = asked.key, request = std::move(request)]() mutable {
                auditor_.at(world_.utc());
                process.engine->begin(std::move(request), [this, &process, id, key](Begin begin) {
                  answered(process, id, key, std::move(begin));
                });
              });
  }

  void answered(Process& process, CallId id, const std::string& key, Begin begin) {
    auditor_.at(world_.utc());
    digest(key, id, static_cast<std::uint64_t>(begin.kind));
    trace(process.id, "call " + std::to_string(id), key, [&] {
      static constexpr std::array names = {"claimed", "replayed", "failed", "conflict", "mismatch", "unknown", "error"};
      return std::string("-> ") + names.at(static_cast<std::size_t>(begin.kind)) +
             (begin.record ? " " + text_of(*begin.record) : " " + begin.error.message);
    });
    auditor_.answered(id, begin);
    if (options_.bug == Bug::engine_answers_twice && world_.chance(5)) auditor_.answered(id, begin);
    if (begin.kind != Begin::Kind::claimed) return;
    auto work = std::make_unique<Work>();
    work->call = id;
    work->key = key;
    work->claim = std::move(begin.claim);
    work->steps = static_cast<unsigned>(world_.below(4));
    work->obeys = world_.chance(500);
    work->big = world_.chance(100);
    work->charges = config_.companions && world_.chance(500);
    const std::uint64_t end = world_.below(100);
    work->end = end < 80   ? FinishKind::complete
                : end < 86 ? FinishKind::fail
                : end < 92 ? FinishKind::release
                : end < 95 ? FinishKind::hold
                           : FinishKind::complete;
    work->abandons = end >= 95;
    work->pause = world_.chance(300) ? Instant(config_.lease) : Instant(config_.lease) / 50;
    auditor_.work_started(id, work->claim);
    const std::string derived = work->claim.derived_key("charge");
    if (const auto [kept, fresh] = derived_.try_emplace(key, derived); !fresh && kept->second != derived) {
      throw Violation("replay: the derived key of " + key + " changed");
    }
    process.works.emplace(id, std::move(work));
    later(process, id);
  }

  void later(Process& process, CallId id) {
    const Work& work = *process.works.at(id);
    world_.at(world_.now() + world_.span(work.pause), &process.host, [this, &process, id] {
      auditor_.at(world_.utc());
      go_on(process, id);
    });
  }

  void go_on(Process& process, CallId id) {
    const auto found = process.works.find(id);
    if (found == process.works.end()) return;
    Work& work = *found->second;
    if (work.obeys && work.claim.stop_token().stop_requested()) {
      work.abandons = world_.chance(300);
      work.end = world_.chance(500) ? FinishKind::release : FinishKind::complete;
      return finish(process, work);
    }
    if (world_.chance(100)) work.claim.heartbeat("going on");
    while (work.next_step < work.steps) {
      const std::string name = "step" + std::to_string(work.next_step++);
      if (work.claim.step(name)) continue;  // Done by an attempt before this one.
      std::string result = name + " of call " + std::to_string(id);
      if (config_.small && world_.chance(200)) result.append(length_of_step(work), 'x');
      act(work);
      auditor_.step_asked(id, name, result);
      const bool waits = world_.chance(700);
      work.claim.add_step(name, result, [this, &process, id, name, waits](Finish finish) {
        auditor_.at(world_.utc());
        trace(process.id, "call " + std::to_string(id), name, [&] { return describe(finish); });
        auditor_.finish_answered(id, FinishKind::step, finish, name);
        if (waits && process.works.contains(id)) later(process, id);
      });
      if (waits) return;
    }
    finish(process, work);
  }

  // Of one that is meant to be long. Half of them leave the record little room to be ended, or none.
  std::size_t length_of_step(const Work& work) {
    if (world_.chance(500)) return world_.below(9'000);
    const std::size_t taken = record_bytes(work.claim.record());
    return max_record_bytes() - std::min(max_record_bytes(), taken + world_.below(3'000));
  }

  void act(const Work& work) {
    ++report_.effects;
    if (!done_.insert(work.key + std::to_string(work.next_step)).second) ++report_.doubled_effects;
  }

  void finish(Process& process, Work& work) {
    const CallId id = work.call;
    if (work.abandons) {
      trace(process.id, "call " + std::to_string(id), work.key, [] { return std::string("abandons"); });
      process.works.erase(id);
      return;
    }
    if (work.end != FinishKind::release) act(work);
    Result result;
    if (work.end == FinishKind::complete) {
      result = Result::inlined("result of call " + std::to_string(id) + " for " + work.key);
      if (work.declined > 0) result.bytes += ", tried " + std::to_string(work.declined) + " times";
    }
    if (work.big && (work.end == FinishKind::complete || work.end == FinishKind::fail)) {
      result.bytes.append(config_.small ? 300 + world_.below(16'000) : 300, 'x');
    }
    const Failure failure =
        work.end == FinishKind::fail ? Failure{.code = "declined", .message = "call " + std::to_string(id)} : Failure{};
    auditor_.finish_asked(id, work.end, result, failure);
    const FinishKind kind = work.end;
    auto done = [this, &process, id, kind](Finish finish) {
      auditor_.at(world_.utc());
      const auto mine = process.works.find(id);
      if (finish.kind == Finish::Kind::declined) {
        trace(process.id, "call " + std::to_string(id), "finish", [&] { return describe(finish); });
        auditor_.finish_answered(id, kind, finish);
        if (mine == process.works.end()) return;  // Its handle was dropped; it lapses.
        Work& declined = *mine->second;
        declined.charges = ++declined.declined < 3 && world_.chance(500);
        if (world_.chance(300)) declined.end = FinishKind::release;
        return later(process, id);
      }
      digest("finish", id, static_cast<std::uint64_t>(finish.kind));
      trace(process.id, "call " + std::to_string(id), "finish", [&] { return describe(finish); });
      auditor_.finish_answered(id, kind, finish);
      process.works.erase(id);
    };
    // The handle may go before the answer comes.
    std::unique_ptr<Work> dropped;
    const auto charge =
        work.charges && kind == FinishKind::complete ? std::make_shared<Charge>(id, world_.chance(50)) : nullptr;
    if (world_.chance(100)) {
      dropped = std::move(process.works.at(id));
      process.works.erase(id);
    }
    switch (kind) {
      case FinishKind::complete:
        if (charge != nullptr) auditor_.charges(id);
        return work.claim.complete(std::move(result), charge, done);
      case FinishKind::fail:
        return work.claim.fail(failure, std::move(result), done);
      case FinishKind::release:
        return work.claim.release("stopped", done);
      case FinishKind::hold:
      case FinishKind::step:
        return work.claim.hold("nobody knows", done);
    }
  }

  // ---- telling

  static std::string text_of(const Record& record) {
    return std::string(once::to_string(record.state)) + " owner=" + record.owner.hex().substr(0, 8) +
           " revision=" + std::to_string(record.revision) + " attempt=" + std::to_string(record.attempt) +
           " token=" + std::to_string(record.token) +
           " lease=" + std::to_string((record.lease_until - testing::manual_start).count()) +
           " expires=" + std::to_string((record.expires_at - testing::manual_start).count()) +
           " steps=" + std::to_string(record.steps.size());
  }
  static std::string describe(const Answer& answer) {
    if (answer.status == Answer::Status::failed) return answer.error.message;
    return std::string(answer.status == Answer::Status::done ? "done" : "refused") +
           (answer.record ? " " + text_of(*answer.record) : "");
  }
  static std::string describe(const Finish& finish) {
    static constexpr std::array names = {"recorded", "superseded", "lost", "unrecorded", "declined"};
    return std::string(names.at(static_cast<std::size_t>(finish.kind))) +
           (finish.record ? " " + text_of(*finish.record) : "") + " " + finish.error.message;
  }

  void describe() {
    if (options_.trace == nullptr) return;
    static constexpr std::array tells = {"by call", "in answers", "never"};
    *options_.trace << "seed " << options_.seed << ": " << config_.processes << " processes, " << config_.keys
                    << " keys, lease " << config_.lease.count() << " ms, retention " << config_.retention.count()
                    << " ms, time told " << tells.at(static_cast<std::size_t>(config_.tells)) << " up to "
                    << config_.told_error.count() << " ms, skew " << config_.skew.count() << " ms, trouble "
                    << config_.trouble << (config_.jumps ? ", jumps" : "") << (config_.cached ? ", cache" : "")
                    << (config_.offloads ? ", offload" : "") << (config_.compresses ? ", compression" : "")
                    << (config_.retries_failures ? ", retries failures" : "") << (config_.ghosts ? ", ghosts" : "")
                    << (config_.small ? ", small records" : "") << (config_.companions ? ", companions" : "")
                    << (config_.differing ? ", differing callers" : "") << '\n';
  }

  template <class F>
  void trace(ProcessId who, const std::string& what, const std::string& key, F details) {
    if (options_.trace == nullptr) return;
    std::string micros = std::to_string(std::chrono::floor<std::chrono::microseconds>(world_.now()).count());
    *options_.trace << std::string(micros.size() < 12 ? 12 - micros.size() : 0, ' ') << micros << " us  ";
    *options_.trace << (who == operators ? std::string("--") : "p" + std::to_string(who)) << "  " << what << "  " << key
                    << "  " << details() << '\n';
  }

  void digest(const std::string& text, std::uint64_t a, std::uint64_t b) {
    const auto mix = [&](std::uint64_t word) { report_.digest = (report_.digest ^ word) * 0x100000001B3U; };
    mix(static_cast<std::uint64_t>(world_.now().count()));
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(a);
    mix(b);
  }

  const Options options_;
  World world_;
  const Config config_;
  Auditor auditor_;
  Report report_;
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
  std::map<std::size_t, unsigned> generation_;
  std::map<std::string, std::string> derived_;
  std::set<std::string> done_;
};

void Bucket::answer(OffloadAnswer with, Callback<void(OffloadAnswer)> done) {
  if (host_.life() != life_) return;
  World& world = simulation_.world();
  const bool slow = !simulation_.calm() && world.chance(100);
  world.at(world.now() + world.span(slow ? Instant(simulation_.config().lease) : simulation_.config().latency * 4),
           &host_, [with = std::move(with), done = std::move(done)]() mutable { done(std::move(with)); });
}

void Bucket::put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) {
  World& world = simulation_.world();
  if (!simulation_.calm() && world.chance(simulation_.config().trouble)) {
    return answer({{}, Error{ErrorKind::unavailable, "the bucket cannot be reached"}}, std::move(done));
  }
  const std::string location = hint + "-" + std::to_string(world.random.next());
  simulation_.keep(location, std::move(bytes));
  answer({location, {}}, std::move(done));
}

void Bucket::get(std::string location, Callback<void(OffloadAnswer)> done) {
  World& world = simulation_.world();
  if (!simulation_.calm() && world.chance(simulation_.config().trouble)) {
    return answer({{}, Error{ErrorKind::unavailable, "the bucket cannot be reached"}}, std::move(done));
  }
  const auto found = simulation_.blobs().find(location);
  if (found == simulation_.blobs().end()) {
    return answer({{}, Error{ErrorKind::corrupt, location + " is gone"}}, std::move(done));
  }
  answer({found->second, {}}, std::move(done));
}

void Bucket::remove(std::string location, Callback<void(OffloadAnswer)> done) {
  World& world = simulation_.world();
  if (!simulation_.calm() && world.chance(simulation_.config().trouble)) {
    return answer({{}, Error{ErrorKind::unavailable, "the bucket cannot be reached"}}, std::move(done));
  }
  if (host_.life() == life_) simulation_.drop(location);
  answer({}, std::move(done));
}

void Front::ask(Asking asking, Done done) { simulation_.ask(host_, life_, id_, std::move(asking), std::move(done)); }

std::optional<StoreTime> Front::time() const noexcept {
  if (simulation_.config().tells != Tells::by_call) return std::nullopt;
  return StoreTime{simulation_.world().utc(), Millis{0}};
}

Capabilities Front::capabilities() const noexcept {
  return {.max_record_bytes = simulation_.max_record_bytes(),
          .durable = true,
          .shared = true,
          .tells_time = simulation_.config().tells != Tells::never,
          .default_skew = simulation_.config().skew,
          .keeps_compressed = simulation_.config().compresses};
}

}  // namespace

Report run(const Options& options) { return Simulation(options).run(); }

}  // namespace once::simulation
