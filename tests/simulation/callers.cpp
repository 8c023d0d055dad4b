// Those who call: what they ask for, what their works do, and how they end.
#include "parts.hpp"

#include <algorithm>
#include <array>

#include <once/operate.hpp>

namespace once::simulation {

using namespace std::chrono_literals;

// A statement of a transaction: which of the records it writes.
std::int64_t Simulation::prepare(const Record& completion) {
  prepared_.push_back(completion);
  return static_cast<std::int64_t>(prepared_.size()) - 1;
}

void Simulation::call(Process& process, std::size_t index) {
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
  const bool heartbeat = world_.chance(800);
  const bool fixed_lease = !heartbeat && index % 2 == 0;
  policy.heartbeat = heartbeat;
  policy.fixed_lease = fixed_lease;
  policy.on_conflict = OnConflict::fail;
  if (world_.chance(500)) {
    policy.on_conflict = OnConflict::wait;
    policy.wait = std::chrono::floor<Millis>(world_.span(Instant(config_.lease)));
  }
  Fingerprint fingerprint;
  const std::uint64_t payload = world_.below(100);
  if (payload < 85) fingerprint = print_of(name);
  if (payload >= 93) fingerprint = print_of("another payload");
  Request request{.key = Key("s", name), .fingerprint = fingerprint, .policy = policy, .holder = {}};
  Auditor::Asked asked;
  asked.process = process.id;
  asked.key = request.key.stored();
  asked.fingerprint = fingerprint;
  asked.retries_failures = config_.retries_failures;
  asked.holds = policy.on_lapse == OnLapse::hold;
  if (heartbeat) asked.heartbeats = policy.lease;
  auditor_.asked(id, asked);
  trace(process.id, "call " + std::to_string(id), asked.key, [&] {
    return std::string(policy.on_conflict == OnConflict::wait ? "waits" : "fails") + (asked.holds ? " holds" : "") +
           (heartbeat ? "" : " without heartbeat") + (fixed_lease ? " under a fixed lease" : "");
  });
  // In the process's own time, so that a stopped one does not ask.
  world_.at(world_.now(), &process.host, [this, &process, id, key = asked.key, request = std::move(request)]() mutable {
    auditor_.at(world_.utc());
    process.engine->begin(std::move(request),
                          [this, &process, id, key](Begin begin) { answered(process, id, key, std::move(begin)); });
  });
}

// Many calls have the same payload, and a digest takes longer than the rest of a call.
const Fingerprint& Simulation::print_of(const std::string& payload) {
  const auto [found, fresh] = prints_.try_emplace(payload);
  if (fresh) found->second = Fingerprint::of(payload);
  return found->second;
}

void Simulation::answered(Process& process, CallId id, const std::string& key, Begin begin) {
  auditor_.at(world_.utc());
  digest(key, id, static_cast<std::uint64_t>(begin.kind));
  trace(process.id, "call " + std::to_string(id), key, [&] {
    static constexpr std::array names = {"claimed", "replayed", "failed", "conflict", "mismatch", "unknown", "error"};
    return std::string("-> ") + names.at(static_cast<std::size_t>(begin.kind)) +
           (begin.record ? " " + text_of(*begin.record) : " " + begin.error.message);
  });
  auditor_.answered(id, begin);
  if (options_.bug == Bug::engine_answers_twice && world_.chance(5)) auditor_.answered(id, begin);
  if (begin.kind == Begin::Kind::claimed) begin_work(process, id, key, std::move(begin.claim));
}

// The process is about to die. The next one knows of some of its claims.
void Simulation::leave_claims(Process& process) {
  process.left.clear();
  if (!config_.attaches) return;
  for (const auto& [id, work] : process.works) {
    if (work->hands || !world_.chance(700)) continue;
    process.left.push_back({id, work->key.substr(work->key.find('#') + 1), work->claim.owner()});
  }
}

void Simulation::attach(Process& process, const Left& left) {
  const CallId id = ++calls_;
  Request request{.key = Key("s", left.name)};
  request.policy.emplace();
  request.policy->lease = config_.lease;
  request.policy->retention = config_.retention;
  Auditor::Asked asked;
  asked.process = process.id;
  asked.key = request.key.stored();
  asked.heartbeats = config_.lease;
  auditor_.attaches(id, left.call, left.owner, asked);
  world_.at(world_.now() + world_.span(Instant(config_.lease) / 4), &process.host,
            [this, &process, id, key = asked.key, owner = left.owner, request = std::move(request)]() mutable {
              auditor_.at(world_.utc());
              process.engine->attach(std::move(request), owner, [this, &process, id, key](Attached answer) {
                auditor_.at(world_.utc());
                digest(key, id, answer.claim ? 100 : static_cast<std::uint64_t>(answer.finish.kind));
                trace(process.id, "attach " + std::to_string(id), key,
                      [&] { return answer.claim ? text_of(answer.claim.record()) : describe(answer.finish); });
                auditor_.attached(id, answer);
                if (answer.claim) begin_work(process, id, key, std::move(answer.claim));
              });
            });
}

void Simulation::begin_work(Process& process, CallId id, const std::string& key, Claim claim) {
  auto work = std::make_unique<Work>();
  work->call = id;
  work->key = key;
  work->claim = std::move(claim);
  work->steps = static_cast<unsigned>(world_.below(4));
  work->obeys = world_.chance(500);
  work->big = world_.chance(100);
  work->charges = config_.companions && world_.chance(config_.storms ? 800 : 500);
  work->hands = config_.hands_out && world_.chance(500);
  const std::uint64_t end = config_.storms ? 50 + world_.below(50) : world_.below(100);
  const std::uint64_t complete_below = config_.storms ? 75 : 80;
  work->end = end < complete_below ? FinishKind::complete
              : end < 86           ? FinishKind::fail
              : end < 92           ? FinishKind::release
              : end < 95           ? FinishKind::hold
                                   : FinishKind::complete;
  work->abandons = end >= 95;
  work->pause = world_.chance(300) ? Instant(config_.lease) : Instant(config_.lease) / 50;
  auditor_.work_started(id, work->claim);
  listen(*work);
  work->looks = config_.sleeps && id % 2 == 0;
  work->was_ours = work->claim.is_ours();
  auditor_.about_to_act(id, work->was_ours);
  const std::string derived = work->claim.derived_key("charge");
  if (const auto [kept, fresh] = derived_.try_emplace(key, derived); !fresh && kept->second != derived) {
    throw Violation("replay: the derived key of " + key + " changed");
  }
  process.works.emplace(id, std::move(work));
  later(process, id);
}

void Simulation::later(Process& process, CallId id) {
  const Work& work = *process.works.at(id);
  world_.at(world_.now() + world_.span(work.pause), &process.host, [this, &process, id] {
    auditor_.at(world_.utc());
    go_on(process, id);
  });
}

void Simulation::go_on(Process& process, CallId id) {
  const auto found = process.works.find(id);
  if (found == process.works.end()) return;
  Work& work = *found->second;
  const bool ours = is_ours(process, work);
  auditor_.about_to_act(id, ours);
  if (work.looks && !ours && work.next_step < work.steps) {
    if (!work.claim.loss_token().stop_requested() && !calm_) return later(process, id);
    work.abandons = true;
    return finish(process, work);
  }
  if (work.obeys && work.claim.stop_token().stop_requested()) {
    work.abandons = world_.chance(300);
    work.end = world_.chance(500) ? FinishKind::release : FinishKind::complete;
    return finish(process, work);
  }
  if (world_.chance(100)) work.claim.heartbeat("going on");
  while (work.next_step < work.steps) {
    const std::string name = "step" + std::to_string(work.next_step++);
    if (work.claim.step(name)) continue;  // Done by an attempt before this one.
    std::string result = name + " of call " + std::to_string(auditor_.call(id));
    if (config_.small && world_.chance(200)) result.append(length_of_step(work), 'x');
    if (work.looks) auditor_.acts(id);
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
std::size_t Simulation::length_of_step(const Work& work) {
  if (world_.chance(500)) return world_.below(9'000);
  const std::size_t taken = record_bytes(work.claim.record());
  return max_record_bytes() - std::min(max_record_bytes(), taken + world_.below(3'000));
}

// What its claim says of the end of its lease, at the moment when it is said.
void Simulation::listen(Work& work) {
  const bool at_once = options_.bug == Bug::engine_loses_sleeping_claims;
  const bool never_told = options_.bug == Bug::engine_tries_for_ever;
  const CallId id = work.call;
  work.on_stop.emplace(work.claim.stop_token(), [this, id, at_once] {
    guarded([&] {
      auditor_.at(world_.utc());
      auditor_.told_to_stop(id);
      if (at_once) auditor_.told_of_loss(id);
    });
  });
  if (at_once || never_told) return;
  work.on_loss.emplace(work.claim.loss_token(), [this, id] {
    guarded([&] {
      auditor_.at(world_.utc());
      auditor_.told_of_loss(id);
    });
  });
}

// Whether it takes its claim for its own: before it acts.
bool Simulation::is_ours(Process& process, Work& work) {
  switch (options_.bug) {
    case Bug::engine_looks_before_sleep:
      return std::exchange(work.was_ours, work.claim.is_ours());
    case Bug::engine_forgets_loss:
      return process.host.clock()->now() < work.claim.record().lease_until;
    default:
      return work.claim.is_ours();
  }
}

void Simulation::act(const Work& work) {
  ++report_.effects;
  if (!done_.insert(work.key + std::to_string(work.next_step)).second) ++report_.doubled_effects;
}

void Simulation::finish(Process& process, Work& work) {
  const CallId id = work.call;
  if (work.abandons) {
    trace(process.id, "call " + std::to_string(id), work.key, [] { return std::string("abandons"); });
    process.works.erase(id);
    return;
  }
  if (work.hands && work.end == FinishKind::complete) return hand_out(process, id);
  if (work.end != FinishKind::release) act(work);
  Result result;
  if (work.end == FinishKind::complete) {
    result = Result::inlined("result of call " + std::to_string(auditor_.call(id)) + " for " + work.key);
    if (work.declined > 0) result.bytes += ", tried " + std::to_string(work.declined) + " times";
  }
  if (work.big && (work.end == FinishKind::complete || work.end == FinishKind::fail)) {
    result.bytes.append(config_.small ? 300 + world_.below(16'000) : 300, 'x');
  }
  const Failure failure = work.end == FinishKind::fail
                              ? Failure{.code = "declined", .message = "call " + std::to_string(auditor_.call(id))}
                              : Failure{};
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
      declined.finishes = false;
      declined.charges = ++declined.declined < 3 && world_.chance(500);
      if (world_.chance(300)) declined.end = FinishKind::release;
      return later(process, id);
    }
    digest("finish", id, static_cast<std::uint64_t>(finish.kind));
    trace(process.id, "call " + std::to_string(id), "finish", [&] { return describe(finish); });
    auditor_.finish_answered(id, kind, finish);
    if (mine != process.works.end() && config_.misuses && world_.chance(100)) misuse(*mine->second);
    process.works.erase(id);
  };
  work.finishes = true;
  misuse_later(process, id);
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
    case FinishKind::hand_out:
      return work.claim.hold("nobody knows", done);
  }
}

// Whatever else he asks for now is refused, and changes nothing.
void Simulation::misuse(Work& work) {
  if (!config_.misuses || !work.finishes) return;
  Claim& claim = work.claim;
  const auto never = [](const Finish&) { throw Violation("answers: misuse was answered"); };
  const std::uint64_t what = world_.below(4);
  try {
    static constexpr std::array names = {"step", "complete", "release", "hand-out"};
    coverage().calls(names.at(what));
    if (what == 0) claim.add_step("too late", "x", never);
    if (what == 1) claim.complete(Result::inlined("too late"), never);
    if (what == 2) claim.release("too late", never);
    if (what == 3) static_cast<void>(claim.hand_out());
  } catch (const Exception& error) {
    if (error.kind() == ErrorKind::misuse) return;
    throw;
  }
  throw Violation("answers: a call after the finish was let pass");
}

// From now until its finish is answered, at any time.
void Simulation::misuse_later(Process& process, CallId id) {
  if (!config_.misuses || !world_.chance(700)) return;
  world_.at(world_.now() + world_.span(world_.chance(500) ? config_.latency : Instant(config_.lease) / 4),
            &process.host, [this, &process, id] {
              const auto found = process.works.find(id);
              if (found != process.works.end()) misuse(*found->second);
            });
}
}  // namespace once::simulation
