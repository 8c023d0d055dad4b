// Claim, work and result in one transaction of your own, for short work whose only effects are rows of the store's
// database. docs/transactions.md says when to use it.
//
//   once::stores::PostgresqlLocal local(*store, connection);  // BEGIN
//   const once::Outcome outcome = once::run_local(engine, engine.request("order-17", payload), local, [&] {
//     transfer(connection, from, to, cents);
//     return receipt;
//   });                                                       // the result, then COMMIT
//
// - The claim is a row unseen by others before the commit, and whose key is locked until then. Duplicates wait for it,
//   then get the result. If the process or its host dies, the server rolls everything back, and the next caller runs at
//   once (after its TCP keepalives, if the host is gone): there is no lease to wait for.
// - So there is no lease, no renewal, no step, no attempt that people can see, and nothing to take over. The work must
//   not act outside of the database: if the transaction is rolled back, nothing remembers that it began.
// - The record that it leaves is as any other: an ordinary call replays it, and this call replays ordinary ones.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include <once/codec.hpp>
#include <once/engine/engine.hpp>
#include <once/local.hpp>

namespace once {

namespace detail {

Outcome run_local(EngineCore& core, Request&& request, LocalTransaction& transaction,
                  const std::function<Result()>& work);

struct LocalRun {
  static Outcome run(Engine& engine, Request&& request, LocalTransaction& transaction,
                     const std::function<Result()>& work) {
    return run_local(*engine.core_, std::move(request), transaction, work);
  }
};

}  // namespace detail

// Runs `work()` unless the request's key has a record that says otherwise, by the same decisions as Engine::run(). The
// work takes no argument, and returns a Result, void, or any type with a Codec. `transaction` has just been begun, and
// is over afterwards, also after an exception.
//
// Outcomes:
// - executed: the work ran; its writes and the result are committed.
// - replayed, stored_failure, mismatch, unknown: as in Engine::run(). The work did not run, and the transaction was
//   rolled back.
// - conflict: an ordinary claim is live, which is never waited for; or another local transaction with this key lasted
//   longer than Policy::wait (with OnConflict::fail: it was there). `record` may be null.
// - error: the store failed or refused before the work began. Policies never run it unprotected.
//
// Exceptions, after which nothing is committed and nothing is stored, unless it says otherwise:
// - the work's own, and those of its codec. Whatever its type, the next caller runs.
// - Declined: the result or the transaction was refused: a deferred constraint, a serialization failure, a result that
//   is too large (it is compressed, but not offloaded), or work that has ended the transaction itself. What such work
//   committed stays, and its claim lapses as if its process had died.
// - Unrecorded: the connection was lost while it committed, so either all is committed or nothing. Call again: it is
//   replayed, or runs.
// - Exception(misuse), before anything ran: a transaction of another store, a sealed store, a policy that has
//   no place here (Policy::on_throw other than release, EngineOptions::throw_rule), work that calls its own key.
//
// Policy::lease only counts if the work commits the transaction itself, which it must not. Policy::heartbeat and the
// engine's timers do not matter. Events: as of Engine::run(); `released` if the work threw.
//
// Others with the same key. An ordinary call (Engine::run(), once run, a proxy) waits for the lock, on a connection
// aside, up to its store's operation_timeout (10 s); after that it gets an error of kind unavailable and has run
// nothing. A store has PostgresqlOptions::side_connections of these (4), so keep local work much shorter than that.
template <class Work>
Outcome run_local(Engine& engine, Request request, LocalTransaction& transaction, Work&& work) {
  const std::function<Result()> erased = [&work]() -> Result {
    using Value = std::invoke_result_t<Work&>;
    if constexpr (std::is_void_v<Value>) {
      work();
      return {};
    } else if constexpr (std::is_same_v<std::remove_cvref_t<Value>, Result>) {
      return work();
    } else {
      using Type = std::remove_cvref_t<Value>;
      return Result::inlined(Codec<Type>::encode(work()), std::string(Codec<Type>::content_type));
    }
  };
  return detail::LocalRun::run(engine, std::move(request), transaction, erased);
}

}  // namespace once
