// A process is doubled with all of its memory, as a snapshot of a machine or a function does.
//
// Everything in a world follows from its seed. So another world with the same seed is played up to the same event: it
// has the process with its memory. That one lives on there, and all else in the other world ends. Both worlds have one
// time, and the copy's requests go to the first world's network and store. For example:
//
// 1. Event 5000 of the world: process 2 is copied while it holds a claim, and a renewal is on its way.
// 2. Another world is played up to event 4999. Its processes 1 and 3 end, and process 2 becomes process 9.
// 3. The renewal's answer goes to process 2. The connection of process 9 is gone, so there the answer is lost.
// 4. Both renew the claim. The first one keeps it, and the other one is refused.
#include "parts.hpp"

#include <algorithm>
#include <memory>

namespace once::simulation {

using namespace std::chrono_literals;

void Simulation::copy() {
  if (main_ != nullptr || copy_ != nullptr || calm_) return;
  // One that is at work, if there is one.
  const auto busy = std::max_element(processes_.begin(), processes_.end(), [](const auto& a, const auto& b) {
    return a->works.size() + (a->engine != nullptr ? 1 : 0) < b->works.size() + (b->engine != nullptr ? 1 : 0);
  });
  if ((*busy)->engine == nullptr) return;
  ++report_.copies;
  const bool counts = std::exchange(coverage().on, false);
  Options same = options_;
  same.trace = nullptr;
  auto other = std::make_unique<Simulation>(same);
  other->begin();
  while (other->world_.events + 1 < world_.events) other->world_.step();
  const ProcessId copy = ++last_process_;
  trace((*busy)->id, "copied", "", [&] { return "to p" + std::to_string(copy); });
  auditor_.copied((*busy)->id, copy);
  other->live_on_as_copy(*this, (*busy)->id, copy);
  copy_ = std::move(other);
  // Half of the work that both have is given up at once by the first one, while the copy goes on.
  for (auto& [call, work] : (*busy)->works) {
    if (call % 2 != 0 || work->finishes) continue;
    work->end = FinishKind::release;
    work->next_step = work->steps;
  }
  flights_.clear();
  coverage().on = counts;
}

void Simulation::live_on_as_copy(Simulation& other, ProcessId original, ProcessId copy) {
  const auto found =
      std::find_if(processes_.begin(), processes_.end(), [&](const auto& process) { return process->id == original; });
  std::swap(*found, processes_.front());
  for (std::size_t i = 1; i < processes_.size(); ++i) stop(*processes_[i]);
  Process& process = *processes_.front();
  std::vector<std::shared_ptr<Flight>> cut;
  for (const auto& flight : flights_) {
    if (auto open = flight.lock(); open && open->by == original && !open->is_answered) cut.push_back(std::move(open));
  }
  flights_.clear();
  world_.keep_only(process.host);
  world_.advance(other.world_.now());
  std::destroy_at(&world_.random);
  std::construct_at(&world_.random, other.world_.random.next());
  if (options_.bug != Bug::copy_repeats_draws) process.random->draw_anew(world_.random.next());
  options_.trace = other.options_.trace;
  auditor_.follow(other.auditor_, original, copy, calls_);
  main_ = &other;
  for (auto& flight : cut) {
    flight->is_cut = true;
    world_.at(world_.now() + world_.span(200ms), &process.host, [this, flight = std::move(flight)] {
      const ErrorKind kind = flight->asking.reads ? ErrorKind::unavailable : ErrorKind::in_doubt;
      answers(flight->by, flight->asking, Answer::fail(kind, "the connection is gone"), flight->done);
    });
  }
  if (process.host.stopped()) wake(process);
  if (world_.chance(500)) pause(process);  // It is restored later.
}

void Simulation::call_copy(std::size_t index) {
  Process& process = *copy_->processes_.front();
  if (process.host.stopped()) return;
  copy_->generation_ = generation_;
  copy_->calls_ = calls_;
  copy_->call(process, index);
  calls_ = copy_->calls_;
}

}  // namespace once::simulation
