// The world as a whole: its processes' lives, operators, sweeps, and what is told of it.
#include "parts.hpp"
#include "real_store.hpp"

#include <algorithm>
#include <array>

#include <once/operate.hpp>

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
      "offload_loses_results",
      "store_commits_displaced",
      "store_commits_rows_apart",
      "store_forgets_transactions",
      "store_finishes_released",
      "store_writes_back_record",
      "store_tells_wrong_time",
      "clock_runs_slow",
      "engine_declines_in_doubt",
      "engine_ignores_payload",
      "engine_resets_attempt",
      "engine_loses_fingerprint",
      "engine_serves_expired",
      "engine_ignores_refusals",
      "clock_sleeps",
      "engine_adopts_copies",
      "copy_repeats_draws",
      "engine_looks_before_sleep",
      "engine_loses_sleeping_claims",
      "engine_tries_for_ever",
      "engine_forgets_loss",
      "engine_believes_renewals",
      "engine_attaches_anew",
      "dynamodb_puts_unconditionally",
      "dynamodb_compares_no_revision",
      "dynamodb_transacts_unconditionally",
      "dynamodb_encodes_no_steps",
      "dynamodb_reads_inconsistently",
      "dynamodb_sends_no_token",
      "dynamodb_believes_lost_answers",
      "dynamodb_ignores_status",
      "sqlite_syncs_late",
      "sqlite_skips_syncs",
      "sqlite_copies_unsynced",
      "sqlite_believes_failed_syncs",
      "sqlite_loses_pages",
      "sqlite_compares_no_revision",
      "sqlite_reads_stale",
      "sqlite_swaps_answers",
      "sqlite_believes_doubts"};
  return names.at(static_cast<std::size_t>(bug));
}

const char* to_string(Which store) {
  static constexpr std::array names = {"simulated", "dynamodb", "sqlite"};
  return names.at(static_cast<std::size_t>(store));
}

Which store_of(Bug bug) {
  for (const Which store : {Which::dynamodb, Which::sqlite}) {
    if (std::string_view(to_string(bug)).starts_with(std::string(to_string(store)) + "_")) return store;
  }
  return Which::simulated;
}

Simulation::Simulation(const Options& options)
    : options_(options),
      world_(options.seed * 0x9E3779B97F4A7C15U + 1),
      config_(Config::draw(world_, options.seed, options.bug, options.store)),
      auditor_(rules()) {}

Simulation::~Simulation() = default;

Report Simulation::run() {
  try {
    return play();
  } catch (Violation& violation) {
    violation.operations = calls_;
    if (copy_ != nullptr) processes_.push_back(std::move(copy_->processes_.front()));
    for (auto& process : processes_) {
      try {
        stop(*process);
      } catch (const Violation&) {  // What follows from the first one.
      }
    }
    throw;
  }
}

void Simulation::begin() {
  describe();
  if (options_.store == Which::dynamodb) real_ = make_dynamodb(*this);
  if (options_.store == Which::sqlite) real_ = make_sqlite(*this);
  for (std::size_t i = 0; i < config_.processes; ++i) {
    auto drift = static_cast<std::int64_t>(world_.below(401)) - 200;
    if (options_.bug == Bug::clock_runs_slow) drift = -333'333;
    processes_.push_back(std::make_unique<Process>(world_, drift, draw_offset()));
    processes_.back()->host.set_sleeps(options_.bug == Bug::clock_sleeps);
    start(*processes_.back());
  }
  arrive();
  every(config_.between_crashes, [this] { crash(); });
  every(config_.between_pauses, [this] { pause(); });
  every(config_.between_outages, [this] { outage(); });
  every(config_.between_operators, [this] { operate(); });
  if (config_.jumps) every(Instant(config_.lease) * 3, [this] { jump(); });
  every(Instant(config_.lease) * (config_.ghosts ? 1 : 20), [this] { sweep(); });
  if (config_.copies) {
    testing::SeededRandom when(options_.seed ^ 0x7768656EU);
    const auto part = static_cast<std::int64_t>(1 + when.below(options_.operations));
    world_.at(world_.now() + config_.between_calls * part / 2, nullptr, [this] { copy(); });
  }
}

bool Simulation::step() {
  if (copy_ == nullptr) return world_.step();
  const Instant next = std::min(world_.next(), copy_->world_.next());
  if (next == Instant::max()) return false;
  const bool is_copys = copy_->world_.next() < world_.next();
  world_.advance(next);
  copy_->world_.advance(next);
  if (!is_copys) return world_.step();
  const bool counts = std::exchange(coverage().on, false);
  const bool stepped = copy_->world_.step();
  coverage().on = counts;
  return stepped;
}

Report Simulation::play() {
  coverage().begin_world();
  begin();
  const std::uint64_t most = 1'000'000 + options_.operations * 2'000;
  while (step() && violation_ == nullptr) {
    if (world_.events > most) throw Violation("answers: the world does not come to rest");
  }
  if (violation_ != nullptr) std::rethrow_exception(violation_);
  auditor_.end();
  if (real_ != nullptr) real_->check();
  for (auto& process : processes_) stop(*process);
  if (copy_ != nullptr) copy_->stop(*copy_->processes_.front());
  report_.events = world_.events;
  report_.totals = auditor_.totals();
  return report_;
}

void Simulation::keep(const std::string& location, std::string bytes) {
  if (main_ != nullptr) return main_->keep(location, std::move(bytes));
  blobs_[location] = std::move(bytes);
  auditor_.offloaded(location);
}

void Simulation::drop(const std::string& location) {
  if (main_ != nullptr) return main_->drop(location);
  blobs_.erase(location);
  auditor_.at(world_.utc());
  auditor_.dropped(location);
}

Rules Simulation::rules() const {
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
  if (options_.store == Which::dynamodb && config_.jumps) rules.clock = "InvalidSignatureException: Signature ";
  if (config_.forbids) rules.misuse = forbidden, rules.unfit = unfit;
  return rules;
}

Millis Simulation::draw_offset() {
  if (options_.bug == Bug::clock_far_off) return Millis{static_cast<std::int64_t>(world_.below(4)) * 3'000};
  if (config_.tells == Tells::never) return Millis{static_cast<std::int64_t>(world_.below(121)) - 60};
  if (!config_.jumps) return Millis{static_cast<std::int64_t>(world_.below(11)) - 5};
  return Millis{(static_cast<std::int64_t>(world_.below(3)) - 1) * 3'600'000};
}

void Simulation::arrive() {
  if (calls_ >= options_.operations) return become_calm();
  // Mostly one, sometimes a crowd with one key.
  const std::uint64_t crowd = world_.chance(60) ? 2 + world_.below(8) : 1;
  const std::size_t key = world_.below(config_.keys);
  for (std::uint64_t i = 0; i < crowd && calls_ < options_.operations; ++i) {
    if (copy_ != nullptr && world_.chance(300)) {
      call_copy(key);
      continue;
    }
    Process& process = *processes_.at(world_.below(processes_.size()));
    if (process.engine == nullptr || process.host.stopped()) continue;
    call(process, key);
  }
  if (world_.chance(config_.storms ? 400 : 20)) ++generation_[key];
  world_.at(world_.now() + world_.span(config_.between_calls), nullptr, [this] {
    auditor_.at(world_.utc());
    arrive();
  });
}

// No more faults: every caller must get an answer now.
void Simulation::become_calm() {
  calm_ = true;
  down_until_ = Instant{0};
  for (auto& process : processes_) {
    if (process->host.stopped()) wake(*process);
  }
  if (copy_ != nullptr) copy_->become_calm();
}

void Simulation::start(Process& process) {
  process.id = ++last_process_;
  EngineOptions options;
  if (real_ == nullptr) {
    options.store = std::make_shared<Front>(*this, process.host, process.id);
  } else {
    options.store = std::make_shared<RealFront>(*this, *real_, process.host, process.id);
  }
  options.policy.lease = config_.lease;
  options.policy.retention = config_.retention;
  options.policy.max_inline_bytes = 200;
  options.policy.compress_over_bytes = 50;
  options.scope = "s";
  options.holder = "p" + std::to_string(process.id);
  options.clock = process.host.clock();
  options.timers = process.host.timers();
  process.random = std::make_shared<EngineRandom>(world_.random.next(), options_.bug == Bug::engine_repeats_revisions);
  options.random = process.random;
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

void Simulation::stop(Process& process) {
  const bool counts = std::exchange(coverage().on, false);  // What its handles do in their destructors is no event.
  process.host.kill();
  // A claim that is handed out keeps itself until it is known how that ended, which nobody will learn here.
  for (auto& [id, work] : process.works) {
    if (work->transaction != nullptr) static_cast<void>(work->transaction->handed.take_back());
  }
  process.works.clear();
  for (Callback<void()>& answer : std::exchange(owed_[process.id], {})) answer();
  owed_.erase(process.id);
  process.engine.reset();
  if (real_ != nullptr) real_->close(process.id);
  coverage().on = counts;
}

void Simulation::hit(const Process& process, Blow blow) {
  if (!coverage().on) return;
  for (const auto& [id, work] : process.works) coverage().met(blow, work->claim.owner());
}

void Simulation::crash(Process& process) {
  if (process.engine == nullptr) return;
  ++report_.crashes;
  hit(process, Blow::killed);
  trace(process.id, "crash", "", [] { return std::string(); });
  leave_claims(process);
  stop(process);
  auditor_.died(process.id);
  world_.at(world_.now() + world_.span(Instant(config_.lease) / 2), nullptr, [this, &process] {
    auditor_.at(world_.utc());
    start(process);
    for (const Left& left : process.left) attach(process, left);
  });
}

void Simulation::crash(ProcessId id) {
  const auto found = std::ranges::find(processes_, id, &Process::id);
  if (found != processes_.end()) crash(**found);
}

void Simulation::power_is_cut() {
  ++report_.power_cuts;
  trace(0, "power cut", "", [] { return std::string(); });
  for (auto& process : processes_) crash(*process);
}

void Simulation::pause(Process& process) {
  if (process.engine == nullptr || process.host.stopped()) return;
  ++report_.pauses;
  hit(process, Blow::stopped);
  trace(process.id, "stop", "", [] { return std::string(); });
  process.host.stop();
  const std::uint64_t life = process.host.life();
  world_.at(world_.now() + world_.span(config_.lease), nullptr, [this, &process, life] {
    if (process.host.life() != life || !process.host.stopped()) return;
    wake(process);
  });
}

void Simulation::wake(Process& process) {
  trace(process.id, "continue", "", [] { return std::string(); });
  auditor_.at(world_.utc());
  auditor_.woke(process.id);
  process.host.resume();
}

void Simulation::outage() {
  down_until_ = world_.now() + world_.span(Instant(config_.lease) / 2);
  trace(0, "store down", "", [] { return std::string(); });
}

void Simulation::jump(Process& process) {
  ++report_.jumps;
  hit(process, Blow::clock_jumps);
  process.host.jump(Millis{process.host.offset() > Millis{0} ? -3'600'000 : 3'600'000});
  trace(process.id, "clock jumps", "", [] { return std::string(); });
}

void Simulation::sweep() {
  if (real_ != nullptr) return real_->sweep();
  for (auto it = records_.begin(); it != records_.end();) {
    if (!is_expired(it->second.expires_at, world_.utc()) || world_.chance(300) || locks_.contains(it->first)) {
      ++it;
      continue;
    }
    erase_swept(it);
  }
}

void Simulation::erase_swept(std::map<std::string, Record>::iterator& at) {
  trace(0, "sweep", at->first, [] { return std::string(); });
  coverage().met(Act::sweep, at->second, world_.utc());
  auditor_.swept(at->first);
  const Result& result = at->second.result;
  if (result.placement == Placement::offloaded) {
    world_.at(world_.now() + world_.span(config_.latency), nullptr,
              [this, location = result.location] { drop(location); });
  }
  at = records_.erase(at);
}

void Simulation::operate() {
  if (records_.empty()) return;
  auto it = records_.begin();
  for (int tries = config_.storms ? 6 : 1; tries > 0; --tries) {
    it = std::next(records_.begin(), static_cast<std::ptrdiff_t>(world_.below(records_.size())));
    if (it->second.state == State::in_progress) break;
  }
  operate(it->second);
}

void Simulation::operate(const Record& stands) {
  const Record seen = stands;
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
  const bool holds = plan.next->on_lapse == OnLapse::hold;
  coverage().met(what == 0   ? Act::release
                 : what == 1 ? Act::extend
                 : what == 2 ? Act::resolve_completed
                 : what == 3 ? Act::resolve_failed
                 : holds     ? Act::hold
                             : Act::take_over,
                 seen, world_.utc());
  Asking asking{.how = Wrote::replace, .key = seen.key, .next = *plan.next, .seen = {seen.owner, seen.revision, 0}};
  world_.at(world_.now() + (world_.chance(500) ? Instant{0} : world_.span(config_.latency * 5)), nullptr,
            [this, asking = std::move(asking)]() mutable {
              std::string key = asking.key;
              when_free(key, [this, asking = std::move(asking)] {
                trace(0, "operator", asking.key, [&] { return text_of(*asking.next); });
                if (real_ != nullptr) return real_->carry_out(asking);
                carry_out(operators, asking);
              });
            });
}

std::string Simulation::text_of(const Record& record) {
  return std::string(once::to_string(record.state)) + " owner=" + record.owner.hex().substr(0, 8) +
         " revision=" + std::to_string(record.revision) + " attempt=" + std::to_string(record.attempt) +
         " token=" + std::to_string(record.token) +
         " lease=" + std::to_string((record.lease_until - testing::manual_start).count()) +
         " expires=" + std::to_string((record.expires_at - testing::manual_start).count()) +
         " steps=" + std::to_string(record.steps.size());
}

std::string Simulation::describe(const Answer& answer) {
  if (answer.status == AnswerStatus::failed) return answer.error.message;
  return std::string(answer.status == AnswerStatus::done ? "done" : "refused") +
         (answer.record ? " " + text_of(*answer.record) : "");
}

std::string Simulation::describe(const Finish& finish) {
  static constexpr std::array names = {"recorded", "superseded", "lost", "unrecorded", "declined"};
  return std::string(names.at(static_cast<std::size_t>(finish.kind))) +
         (finish.record ? " " + text_of(*finish.record) : "") + " " + finish.error.message;
}

void Simulation::describe() {
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
                  << (config_.hands_out ? ", hand-outs" : "") << (config_.forbids ? ", refusals as misuse" : "")
                  << (config_.misuses ? ", misuse" : "") << (config_.storms ? ", storms" : "")
                  << (config_.differing ? ", differing callers" : "") << (config_.copies ? ", a copy" : "")
                  << (config_.sleeps ? ", sleeps" : "") << (config_.attaches ? ", attaches" : "") << '\n';
}

void Simulation::digest(const std::string& text, std::uint64_t a, std::uint64_t b) {
  const auto mix = [&](std::uint64_t word) { report_.digest = (report_.digest ^ word) * 0x100000001B3U; };
  mix(static_cast<std::uint64_t>(world_.now().count()));
  for (const char c : text) mix(static_cast<unsigned char>(c));
  mix(a);
  mix(b);
}

Report run(const Options& options) { return Simulation(options).run(); }
}  // namespace once::simulation
