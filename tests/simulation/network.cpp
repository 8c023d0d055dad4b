// The network, and what a process reaches by it: requests, their fates, the bucket.
#include "parts.hpp"

#include <algorithm>
#include <array>

#include <once/operate.hpp>

namespace once::simulation {

using namespace std::chrono_literals;

// The network: a request of a process, its fate, its answer.
void Simulation::ask(Host& host, std::uint64_t life, ProcessId id, Asking asking, Done done) {
  if (host.life() != life) return;  // The process is dead; no caller waits for the answer.
  if (main_ != nullptr) {
    Done uncounted = [done = std::move(done)](Answer&& answer) mutable {
      const bool counts = std::exchange(coverage().on, false);
      done(std::move(answer));
      coverage().on = counts;
    };
    return main_->ask(host, life, auditor_.of(id), std::move(asking), std::move(uncounted));
  }
  plant_in_request(asking);
  asks(id, asking);
  auto flight = std::make_shared<Flight>(Flight{.by = id, .asking = std::move(asking), .done = std::move(done)});
  if (config_.copies && copy_ == nullptr) flights_.push_back(flight);
  if (forgets_) {
    owed_[id].push_back([flight] {
      if (!flight->is_answered) flight->done(Answer::fail(ErrorKind::in_doubt, "the process ends"));
    });
  }
  const auto answer = [this, &host, life, id, flight](Instant at, Answer with) {
    if (host.life() != life) return;
    world_.at(at, &host, [this, id, flight, with = std::move(with)]() mutable {
      if (flight->is_cut) return;
      if (options_.bug == Bug::engine_swallows_answers && world_.chance(3)) return;
      flight->is_answered = true;
      answers(id, flight->asking, std::move(with), flight->done);
    });
  };
  const auto land = [this, &host, life, id, flight](Instant at, auto then) {
    world_.at(at, nullptr, [this, &host, life, id, flight, then = std::move(then)]() mutable {
      // What a dead process had sent may be on its way or not.
      if (host.life() != life && world_.chance(500)) return;
      if (flight->asking.reads) return then(carry_out(id, flight->asking));
      when_free(flight->asking.key,
                [this, id, flight, then = std::move(then)]() mutable { then(carry_out(id, flight->asking)); });
    });
  };
  const bool reads = flight->asking.reads;
  const auto lost = [reads] {
    return Answer::fail(reads ? ErrorKind::unavailable : ErrorKind::in_doubt, "no answer came");
  };
  const Instant there = world_.now() + world_.span(config_.latency);
  const Instant timeout = there + world_.span(200ms);
  const auto met = [request = coverage().on ? request_name(flight->asking) : std::string()](Mishap mishap) {
    coverage().met(mishap, request);
  };
  if (down_until_ > world_.now()) {
    const bool refused = world_.chance(700);
    met(refused ? Mishap::refused : Mishap::lost);
    if (refused) return answer(there, Answer::fail(ErrorKind::unavailable, "the store is down"));
    return answer(timeout, lost());
  }
  const auto back = [this] { return world_.now() + world_.span(config_.latency); };
  if (calm_ || !world_.chance(config_.trouble)) {
    return land(there, [answer, back](Answer with) { answer(back(), std::move(with)); });
  }
  ++report_.lost_answers;
  // A store sends companions once, and says that it is in doubt otherwise: a second copy could find a condition true
  // that the first was declined for.
  const std::uint64_t what = world_.below(flight->asking.companion ? 5 : 6);
  met(static_cast<Mishap>(what));
  switch (what) {
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

// Its claim may not be known to be declined yet: an earlier try is barred first.
void Simulation::misuse_after_decline(ProcessId id, const Asking& asking) {
  const auto* charge = dynamic_cast<const Charge*>(asking.companion.get());
  const auto same = [&](const auto& process) { return process->id == id && process->engine != nullptr; };
  const auto found = std::find_if(processes_.begin(), processes_.end(), same);
  if (charge == nullptr || found == processes_.end()) return;
  const auto work = (*found)->works.find(charge->call);
  if (work != (*found)->works.end()) misuse(*work->second);
}

// In a storm one fault draws another: on a claim that waits for its next try.
void Simulation::strike(ProcessId id, const std::string& key) {
  world_.at(world_.now() + world_.span(1ms), nullptr, [this, id, key] {
    if (calm_) return;
    auditor_.at(world_.utc());
    const auto same = [&](const auto& process) { return process->id == id && process->engine != nullptr; };
    const auto found = std::find_if(processes_.begin(), processes_.end(), same);
    const std::uint64_t what = world_.below(10);
    if (what >= 4) {
      const auto record = records_.find(key);
      if (record != records_.end()) operate(record->second);
    } else if (found == processes_.end()) {
      return;
    } else if (what == 0) {
      crash(**found);
    } else if (what == 1) {
      pause(**found);
    } else if (config_.jumps) {
      jump(**found);
    }
  });
}

std::string Simulation::request_name(const Asking& asking) {
  if (asking.reads) return "read";
  if (std::string of_claim = coverage().take_sending(); !of_claim.empty()) {
    return asking.how == Wrote::remove ? "removal" : of_claim;
  }
  if (asking.how == Wrote::insert) return "insert";
  if (!(asking.next->owner == asking.seen.owner)) return "claim over another";
  return asking.next->state == State::unknown ? "mark unknown" : "claim counted anew";
}

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

stores::SqlStatement Front::finish_statement(const Record& record, std::uint64_t /*place*/) {
  return {.text = "finish", .values = {stores::SqlValue(simulation_.prepare(record))}};
}

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
          .keeps_compressed = simulation_.config().compresses,
          .hands_out = simulation_.config().hands_out};
}
}  // namespace once::simulation
