// Transactions of the callers' own, in their process and at the server.
#include "parts.hpp"

#include <algorithm>
#include <array>

#include <once/operate.hpp>

namespace once::simulation {

using namespace std::chrono_literals;

void Simulation::hand_out(Process& process, CallId id) {
  Work& work = *process.works.at(id);
  Result result = Result::inlined("result of call " + std::to_string(id) + " for " + work.key);
  if (work.declined > 0) result.bytes += ", tried " + std::to_string(work.declined) + " times";
  if (work.big) result.bytes.append(300, 'x');
  auto transaction = std::make_unique<Transaction>();
  transaction->by_command = world_.chance(250);
  auditor_.handed_out(id, result);
  try {
    transaction->handed = transaction->by_command ? work.claim.hand_out() : work.claim.hand_out(result);
  } catch (const Exception& error) {  // A step is being written, or the result is too large.
    if (error.kind() != ErrorKind::misuse) throw Violation(std::string("hand-out: ") + error.what());
    auditor_.not_handed_out(id);
    if (work.big) work.big = work.hands = false;
    return later(process, id);
  }
  trace(process.id, "call " + std::to_string(id), work.key, [&] { return std::string("hands out"); });
  auto session = std::make_shared<Session>();
  session->call = id;
  session->by = process.id;
  if (transaction->by_command) {
    session->completion = work.claim.record();
    EffectivePolicy policy;
    policy.retention = config_.retention;
    complete(session->completion, std::move(result), policy,
             Stamp(world_.utc(), static_cast<std::uint32_t>(world_.random.next())));
  } else {
    session->completion = prepared_.at(
        static_cast<std::size_t>(std::get<std::int64_t>(transaction->handed.finish_statement().values.at(0).value())));
  }
  transaction->session = std::move(session);
  work.transaction = std::move(transaction);
  work.finishes = true;
  misuse_later(process, id);
  if (work.transaction->by_command) return run_command(process, id);
  if (world_.chance(50)) return tell_outcome(process, id, Outcome::rolled_back);  // The rows could not be written.
  if (world_.chance(300)) return commit(process, id);                             // In one trip.
  execute(process, id);
}

// The statement, under which the row is locked until the end of the transaction.
void Simulation::execute(Process& process, CallId id) {
  const std::uint64_t life = process.host.life();
  std::shared_ptr<Session> session = process.works.at(id)->transaction->session;
  Instant there = world_.now() + world_.span(config_.latency);
  bool answers = true;
  if (!calm_ && world_.chance(config_.trouble)) {
    static constexpr std::array what = {Mishap::refused, Mishap::lost, Mishap::answer_lost, Mishap::slow};
    const Mishap mishap = what.at(world_.below(what.size()));
    coverage().met(mishap, "statement of a transaction");
    if (mishap == Mishap::slow) there += late();
    if (mishap == Mishap::refused) return roll_back(process, id);
    if (mishap == Mishap::lost || mishap == Mishap::answer_lost) {
      answers = false;  // Then he gives up, and the server finds out later.
      reply_at(there + world_.span(200ms), process, life, id, [this, &process, id] { roll_back(process, id); });
    }
    if (mishap == Mishap::lost) return;
  }
  world_.at(there, nullptr, [this, &process, life, session, answers] {
    if (process.host.life() != life && world_.chance(500)) return;
    when_free(session->completion.key, [this, &process, life, session, answers] {
      auditor_.at(world_.utc());
      if (session->over) return;
      const bool stands = may_finish(*session);
      if (stands) {
        session->locks = true;
        locks_[session->completion.key];
        // Whoever vanishes in a transaction is rolled back: idle_in_transaction_session_timeout.
        world_.at(world_.now() + world_.span(Instant(config_.lease) * 2), nullptr,
                  [this, session] { end_session(*session); });
      } else {
        refuse(*session);
      }
      if (!answers) return;
      reply(process, life, session->call, [this, &process, id = session->call, stands] {
        if (!stands) return tell_outcome(process, id, Outcome::unknown);  // As HandedOut::commit().
        const std::uint64_t what = world_.below(100);
        if (what < 10) {
          roll_back(process, id);
        } else if (what < 14) {
          forget(process, id);
        } else {
          world_.at(world_.now() + world_.span(config_.latency), &process.host, [this, &process, id] {
            if (process.works.contains(id)) commit(process, id);
          });
        }
      });
    });
  });
}

void Simulation::roll_back(Process& process, CallId id) {
  std::shared_ptr<Session> session = process.works.at(id)->transaction->session;
  if (world_.chance(800)) {  // Otherwise the server finds out later.
    world_.at(world_.now() + world_.span(config_.latency), nullptr, [this, session] { end_session(*session); });
  }
  tell_outcome(process, id, Outcome::rolled_back);
}

// Of a transaction whose row is locked, or of all of it in one trip.
void Simulation::commit(Process& process, CallId id) {
  const std::uint64_t life = process.host.life();
  std::shared_ptr<Session> session = process.works.at(id)->transaction->session;
  const Instant there = world_.now() + world_.span(config_.latency);
  const Instant timeout = there + world_.span(200ms);
  const auto lands = [this, &process, life, session, id](Instant at, bool answers) {
    world_.at(at, nullptr, [this, &process, life, session, id, answers] {
      if (process.host.life() != life && world_.chance(500)) return;
      const auto carry = [this, &process, life, session, id, answers] {
        auditor_.at(world_.utc());
        const bool stood = !session->over && may_finish(*session);
        if (stood) {
          land(*session);
        } else if (!session->over) {
          refuse(*session);
        }
        if (!answers) return;
        reply(process, life, id, [this, &process, id, stood] {
          tell_outcome(process, id, stood ? Outcome::committed : Outcome::unknown);
        });
      };
      if (session->locks) return carry();
      when_free(session->completion.key, carry);
    });
  };
  const auto in_doubt = [this, &process, life, id](Instant at) {
    reply_at(at, process, life, id, [this, &process, id] { tell_outcome(process, id, Outcome::unknown); });
  };
  const bool down = down_until_ > world_.now();
  if (!down && (calm_ || !world_.chance(config_.trouble))) {
    lands(there, true);
    if (world_.chance(20)) forget(process, id);
    return;
  }
  ++report_.lost_answers;
  const std::uint64_t what = down ? world_.below(2) : world_.below(5);
  coverage().met(static_cast<Mishap>(what), "commit");
  switch (what) {
    case 0:  // Never sent: the connection was gone.
      return roll_back(process, id);
    case 1:
      return in_doubt(timeout);
    case 2:
      lands(there, false);
      return in_doubt(timeout);
    case 4:
      return lands(there + late(), true);
    default:
      ++report_.late_writes;
      lands(timeout + late(), false);
      return in_doubt(timeout);
  }
}

// As `once run`: a command commits somewhere, or not, and afterwards the claim is finished in the usual way.
void Simulation::run_command(Process& process, CallId id) {
  const std::uint64_t life = process.host.life();
  std::shared_ptr<Session> session = process.works.at(id)->transaction->session;
  if (world_.chance(700)) {
    const Instant when = world_.now() + (world_.chance(100) ? late() : world_.span(config_.latency * 4));
    world_.at(when, nullptr, [this, session] {
      when_free(session->completion.key, [this, session] {
        auditor_.at(world_.utc());
        if (may_finish(*session)) {
          land(*session);
        } else {
          refuse(*session);
        }
      });
    });
  }
  reply_at(world_.now() + world_.span(config_.latency * 8), process, life, id,
           [this, &process, id] { take_back(process, id); });
}

void Simulation::take_back(Process& process, CallId id) {
  Work& work = *process.works.at(id);
  const std::unique_ptr<Transaction> transaction = std::move(work.transaction);
  const std::optional<Finish> known = transaction->handed.take_back();
  trace(process.id, "call " + std::to_string(id), work.key,
        [&] { return "takes back" + (known ? ", known: " + describe(*known) : std::string()); });
  auditor_.taken_back(id);
  if (known) {
    auditor_.outcome_told(id, false);
    auditor_.finish_answered(id, FinishKind::hand_out, *known);
    process.works.erase(id);
    return;
  }
  work.hands = work.finishes = false;
  const std::uint64_t end = world_.below(4);
  work.end = end == 0   ? FinishKind::release
             : end == 1 ? FinishKind::fail
             : end == 2 ? FinishKind::hold
                        : FinishKind::complete;
  if (world_.chance(500)) work.steps = work.next_step + 1;
  later(process, id);
}

void Simulation::tell_outcome(Process& process, CallId id, Outcome outcome) {
  Work& work = *process.works.at(id);
  auditor_.outcome_told(id, outcome == Outcome::rolled_back);
  trace(process.id, "call " + std::to_string(id), work.key, [&] {
    static constexpr std::array names = {"committed", "rolled back", "does not know"};
    return std::string(names.at(static_cast<std::size_t>(outcome)));
  });
  auto done = [this, &process, id](Finish finish) {
    auditor_.at(world_.utc());
    trace(process.id, "call " + std::to_string(id), "transaction", [&] { return describe(finish); });
    digest("transaction", id, static_cast<std::uint64_t>(finish.kind));
    auditor_.finish_answered(id, FinishKind::hand_out, finish);
    const auto mine = process.works.find(id);
    if (mine == process.works.end()) return;
    if (finish.kind == Finish::Kind::declined) mine->second->finishes = false;
    // Not here: the handle is in use.
    world_.at(world_.now(), &process.host, [this, &process, id, kind = finish.kind] { learn(process, id, kind); });
  };
  HandedOut& handed = work.transaction->handed;
  if (outcome == Outcome::committed) return handed.committed(done);
  const bool takes_for = options_.bug == Bug::engine_declines_in_doubt;
  if (outcome == Outcome::rolled_back || takes_for) return handed.rolled_back(done);
  handed.unknown(done);
}

void Simulation::learn(Process& process, CallId id, Finish::Kind kind) {
  const auto found = process.works.find(id);
  if (found == process.works.end()) return;
  Work& work = *found->second;
  if (kind == Finish::Kind::declined) {
    work.transaction.reset();
    work.hands = ++work.declined < 3 && world_.chance(700);
    if (world_.chance(300)) work.end = FinishKind::release;
    return later(process, id);
  }
  if (kind != Finish::Kind::unrecorded) {
    process.works.erase(found);
    return;
  }
  if (++work.transaction->asked >= 6) return forget(process, id);
  reply_at(world_.now() + world_.span(Instant(config_.lease) / 4), process, process.host.life(), id,
           [this, &process, id] {
             const std::uint64_t what = world_.below(10);
             if (what == 0) return forget(process, id);
             if (what == 1) return take_back(process, id);
             tell_outcome(process, id, Outcome::unknown);
           });
}

// The handles go, in either order, and nobody tells how the transaction ended.
void Simulation::forget(Process& process, CallId id) {
  const auto found = process.works.find(id);
  trace(process.id, "call " + std::to_string(id), found->second->key, [] { return std::string("forgets"); });
  auditor_.hand_out_forgotten(id);
  std::unique_ptr<Work> work = std::move(found->second);
  process.works.erase(found);
  if (world_.chance(500)) work->claim = Claim();
  forgets_ = true;
  work.reset();
  forgets_ = false;
}

// What the finish's statement demands.
bool Simulation::may_finish(const Session& session) {
  const auto found = records_.find(session.completion.key);
  if (found == records_.end()) return false;
  const Record& stands = found->second;
  if (options_.bug == Bug::store_commits_displaced && stands.state == State::in_progress) return true;
  return stands.owner == session.completion.owner && stands.state == State::in_progress &&
         (!is_released(stands) || options_.bug == Bug::store_finishes_released);
}

void Simulation::land(Session& session) {
  if (options_.bug == Bug::store_forgets_transactions && world_.chance(100)) return end_session(session);
  Record& stands = records_.at(session.completion.key);
  Record next = stands;
  const Record& completion = session.completion;
  if (options_.bug == Bug::store_writes_back_record) next = completion;
  next.state = State::completed;
  next.revision = next_revision(stands.revision, static_cast<std::uint32_t>(completion.revision));
  next.lease_until = Time{};
  next.finished_at = world_.utc();
  next.expires_at = world_.utc() + (completion.expires_at - completion.finished_at);
  next.result = completion.result;
  next.failure = {};
  trace(session.by, "commits", next.key, [&] { return text_of(next); });
  digest(next.key, next.revision, next.token);
  auditor_.rows_committed(session.call);
  auditor_.transaction_landed(session.call, next);
  first_result_.try_emplace(next.key, next);
  previous_.insert_or_assign(next.key, stands);
  stands = std::move(next);
  end_session(session);
}

void Simulation::refuse(Session& session) {
  if (options_.bug == Bug::store_commits_rows_apart) auditor_.rows_committed(session.call);
  auditor_.at(world_.utc());
  end_session(session);
}

void Simulation::end_session(Session& session) {
  if (std::exchange(session.over, true) || !session.locks) return;
  const auto found = locks_.find(session.completion.key);
  std::vector<Callback<void()>> waiting = std::move(found->second);
  locks_.erase(found);
  for (Callback<void()>& next : waiting) {
    world_.at(world_.now(), nullptr, [this, key = session.completion.key, next = std::move(next)]() mutable {
      when_free(key, std::move(next));
    });
  }
}

// Whoever writes waits for the end of a transaction that has the row.
void Simulation::when_free(const std::string& key, Callback<void()> what) {
  const auto found = locks_.find(key);
  if (found == locks_.end()) return what();
  found->second.push_back(std::move(what));
}
}  // namespace once::simulation
