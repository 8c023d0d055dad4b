// HTTP requests through an engine: which request may run, what the others get, and how the answer is stored. For any
// proxy or server, asynchronous or blocking:
//
//   once::http::Endpoint endpoint(engine, {.principal = once::http::Principal::shared(), .route = "charges"});
//   // In a handler that may block:
//   send(endpoint.run(request, [](once::http::Execution& execution) { return charge(execution); }));
//   // By completion, which must not block:
//   endpoint.open(request, [send](once::http::Opening opening) {
//     if (!opening.runs()) return send(std::move(opening.answer));  // A replay, a conflict, a refusal ...
//     // Starts the work. When its answer is there, on any thread: execution.finish(std::move(answer), send).
//     start_charge(std::move(opening.execution), send);
//   });
//
// examples/http_endpoint.cpp does both in a whole program. Adapters for Boost.Beast and cpp-httplib:
// once/frontends/http/beast.hpp and httplib.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/router.hpp>
#include <once/frontends/http/rules.hpp>

namespace once::http {

// The result of finish_told().
struct Finished {
  Answer answer = {};           // Send this to the client.
  bool left_tombstone = false;  // The answer was too large for Options or for the store.
  bool is_another = false;  // `answer` is not the one passed to the finish: the claim was lost, or nothing was stored,
                            // or the service had stored another.
  bool by_service = false;  // Stored by a transaction of the service's: hand_out_to_service().
};

// The right to run one request, which must end by one of the finishes. Movable. Only test, assign or destroy an empty
// or finished one. Methods may be called from any thread, one at a time.
//
// Destroyed without a finish, the operation may have acted: its lease lapses, then Options::on_ambiguous decides.
// Finish also if the client has disconnected.
//
// A finish returns what to send to the client, once it is durable. That is the answer itself. If the claim was lost, it
// is the answer that another attempt has stored, marked as a replay, or otherwise a problem.
//
// Completions come before the call returns, or from a thread of the store or the timers, or from a thread that waits in
// another blocking call. They must not block and must not throw.
class Execution {
 public:
  class State;  // Private.

  Execution() noexcept;                                       // Empty.
  explicit Execution(std::unique_ptr<State> state) noexcept;  // For Endpoint.
  Execution(Execution&&) noexcept;
  Execution& operator=(Execution&&) noexcept;
  ~Execution();

  explicit operator bool() const noexcept { return state_ != nullptr; }  // False: empty or finished.

  // For the fencing token and notes. Null if unprotected. Finish and hand out the Execution, not the claim.
  [[nodiscard]] Claim* claim() const noexcept;
  [[nodiscard]] bool is_protected() const noexcept { return claim() != nullptr; }  // False: a finish stores nothing.
  // The key to send to a service downstream: the same for every attempt. Random if the request has no key.
  [[nodiscard]] std::string derived_key(std::string_view name) const;
  // Runs fn once per operation, as Context::step() does (once/engine/engine.hpp). Its result is kept in the record, and
  // an attempt that takes over (Options::on_ambiguous: takeover) reads it there. Unprotected, fn always runs. Throws
  // fn's exceptions, and ClaimLost.
  template <class F>
  auto step(std::string_view name, F&& fn) -> std::invoke_result_t<F> {
    return once::detail::run_step(claim(), name, std::forward<F>(fn));
  }
  // Adds the handler's own writes in the store's database, as Context::commit_with() does (once/engine/engine.hpp).
  // They commit together with the answer, by a finish that stores it. Any other finish drops them. If one of their
  // conditions does not hold, nothing is written, and the client gets `declined`, whose status decides about the claim:
  // for example 409 (released) or 422 (stored). Without it, it is as if the handler had thrown Declined: 500, and
  // Options::on_throw. Throws Exception(misuse) if unprotected, for a second call, and for null.
  void commit_with(std::shared_ptr<const Companion> writes, std::optional<Answer> declined = {});

  // Leaves storing the answer to a transaction of the handler's own, as Context::hand_out() does: see HandedOut. Finish
  // the Execution all the same. What the client gets depends on the transaction:
  // - committed: this answer, whatever is passed to the finish; also from finish_thrown().
  // - superseded or lost: the answer that another attempt has stored, or a problem.
  // - declined (rolled back): hand out again, or finish with another fate than `store`, or by finish_thrown(). A finish
  //   that would store an answer ends as if the handler had thrown Declined: 500, and Options::on_throw.
  // - not known: the finish reads the record. If that does not tell: 503 not-recorded, for any Policy::on_unrecorded.
  // Throws Exception(misuse) as Claim::hand_out(), if unprotected, and after commit_with().
  [[nodiscard]] HandedOut hand_out(Answer answer);

  // The same for another process, which makes the statement itself from the claim's key and owner: the service behind a
  // proxy, with Options::service_finish. Its transaction may finish the record until this Execution is finished; finish
  // it as without. If the transaction has, that is what counts, whatever is passed to the finish, and the client gets
  // what it stored. False: it cannot, because the request is unprotected, the engine is switched off,
  // or its store is not PostgreSQL.
  [[nodiscard]] bool hand_out_to_service();

  // False: another attempt may have begun it. Check it just before the first action. If false, do nothing and call
  // finish_unbegun(). Always true if unprotected.
  [[nodiscard]] bool may_begin() const noexcept;
  // Set when the claim is lost, or may be: another attempt may run the request now. Never set if unprotected.
  [[nodiscard]] std::stop_token stop_token() const;

  // The status decides about the claim (Rules::fate_of), unless you pass a fate. For example, a proxy that could not
  // connect knows that nothing was done (release). A proxy whose connection broke does not know (ambiguous). A status
  // outside 100 to 599 is always ambiguous. A body over Options::max_answer_bytes leaves a tombstone.
  void finish(Answer answer, Callback<void(Answer)> done);
  // The same with a fate of your own.
  void finish(Answer answer, Fate fate, Callback<void(Answer)> done);
  // For logs. `reason`: why nothing is stored, for people, in the record's history. Empty: "answered 502".
  void finish_told(Answer answer, Fate fate, Callback<void(Finished)> done, std::string reason = {});
  // Both of these block. Do not call them from a completion.
  [[nodiscard]] Answer finish(Answer answer);
  [[nodiscard]] Answer finish(Answer answer, Fate fate);

  // For an answer whose body is streamed to the client: stores a tombstone. `body_bytes`: 0 if not known. `done` gets
  // an answer to send instead, or nothing. `reason`: as for finish_told().
  void finish_streamed(const Answer& head, std::uint64_t body_bytes, Callback<void(std::optional<Answer>)> done);
  // The same with a fate of your own.
  void finish_streamed(const Answer& head, std::uint64_t body_bytes, Fate fate,
                       Callback<void(std::optional<Answer>)> done, std::string reason = {});
  // Blocks. Do not call it from a completion.
  [[nodiscard]] std::optional<Answer> finish_streamed(const Answer& head, std::uint64_t body_bytes);

  // Nothing was done, because may_begin() was false: releases the claim. Returns the answer that another attempt has
  // stored, or a problem, 409 in-progress.
  void finish_unbegun(Callback<void(Answer)> done);
  [[nodiscard]] Answer finish_unbegun();  // Blocks. Do not call it from a completion.

  // The handler threw: see Options::on_throw. Returns a problem, 500.
  void finish_thrown(const std::exception_ptr& error, Callback<void(Answer)> done);
  // The same with the request's body: if it is malformed, as is_malformed() says, nothing was done. Then it returns 400
  // request-malformed, and releases the claim.
  void finish_thrown(const std::exception_ptr& error, std::string_view body, Callback<void(Answer)> done);
  // Both of these block. Do not call them from a completion.
  [[nodiscard]] Answer finish_thrown(const std::exception_ptr& error);
  [[nodiscard]] Answer finish_thrown(const std::exception_ptr& error, std::string_view body);
  // Whether the handler threw the parse error of nlohmann/json or Boost.JSON because `body`, the request's, is not
  // JSON, although its Content-Type says so, or it begins like JSON. The parse error of another text, such as the
  // response of a service that was called, says nothing about the request. False if EngineOptions::throw_rule decides
  // about the exception. A handler whose parser accepts more than JSON, such as comments, must catch its own parse
  // errors.
  [[nodiscard]] bool is_malformed(const std::exception_ptr& error, std::string_view body) const;

 private:
  std::unique_ptr<State> state_;
};

// The answer of Endpoint::open().
struct Opening {
  // Whether the request may run, and what its client gets otherwise.
  enum class Kind : std::uint8_t {
    passed,       // Not one of the methods. Run it; a finish stores nothing.
    unprotected,  // No key, or no store, and the policy says to run. Reported to the observer.
    claimed,      // Run it.
    replayed,     // `answer` is an earlier request's.
    conflict,     // 409: another request with the key is running.
    mismatch,     // 422: the key was used with another request.
    unknown,      // 409: the outcome of an earlier request is not known.
    refused,      // 400, 401 or 413: the request is wrong.
    error,        // 503 or 500: the store failed, or the record cannot be read.
  };
  Kind kind = Kind::refused;  // Says what the other members are.
  Execution execution = {};   // passed, unprotected, claimed.
  Answer answer = {};         // The other kinds.
  RecordPtr record = {};      // unknown: the record, to ask the service about it (once/reconcile.hpp).

  // One of the first three kinds: run the request, and finish `execution`.
  [[nodiscard]] bool runs() const noexcept {
    return kind == Kind::passed || kind == Kind::unprotected || kind == Kind::claimed;
  }
};

std::string_view to_string(Opening::Kind kind) noexcept;  // For logs and counters.

// One per route, or one for many routes with the same options. Thread-safe. The engine must outlive it and every
// Execution. The Endpoint may be destroyed before them.
class Endpoint {
 public:
  // Throws Exception(misuse) for invalid options.
  Endpoint(Engine& engine, Options options);

  [[nodiscard]] const Rules& rules() const noexcept { return *rules_; }  // Lives as long as the endpoint.

  // Reads the request before it returns, and keeps no view of it.
  void open(const Request& request, Callback<void(Opening)> done);
  // For callers of Rules::examine().
  void open(Examination examination, Callback<void(Opening)> done);
  // Both of these block. Do not call them from a completion.
  [[nodiscard]] Opening open(const Request& request);
  [[nodiscard]] Opening open(Examination examination);

  // The whole life of a request, for servers whose handlers block. Opens it, calls the handler on this thread if it may
  // run and its lease has not ended, and returns what to send to the client. The handler's exceptions pass through,
  // after finish_thrown(). Except: ClaimLost of a step returns the stored answer, or 409 claim-lost; and a malformed
  // body returns 400 (Execution::is_malformed).
  [[nodiscard]] Answer run(const Request& request, const std::function<Answer(Execution&)>& handler);
  // For callers of Rules::examine(), for example to change the operation's policy. `body`: for is_malformed().
  [[nodiscard]] Answer run(Examination examination, const std::function<Answer(Execution&)>& handler,
                           std::optional<std::string_view> body = {});

 private:
  Engine& engine_;
  std::shared_ptr<const Rules> rules_;
};

// An endpoint for each route of a service, and one for all other paths. Thread-safe. The engine must outlive it and
// every Execution. The Endpoints may be destroyed before them.
class Endpoints {
 public:
  // Throws Exception(misuse) for invalid routes and options.
  Endpoints(Engine& engine, Routes routes);

  // The endpoint of a request. Null: answer with unclear(), because servers may read its path in ways that have
  // different rules (Router::find).
  [[nodiscard]] Endpoint* find(const Request& request);
  [[nodiscard]] Answer unclear() const;  // 400 path-unclear
  // The endpoint whose operation this is, of those whose clients all share their keys. Null: none.
  [[nodiscard]] const Endpoint* find_shared(const Key& key) const;
  // Route::path of an endpoint from find(). Empty: the one for all paths without a route.
  [[nodiscard]] std::string_view path_of(const Endpoint& endpoint) const noexcept;

  [[nodiscard]] const Router& router() const noexcept { return router_; }  // Lives as long as the endpoints.

 private:
  Router router_;
  std::vector<Endpoint> endpoints_;  // By the router's indices.
};

}  // namespace once::http
