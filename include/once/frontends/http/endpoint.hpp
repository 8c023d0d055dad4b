// HTTP requests through an engine: who may run, what the others get, and what becomes of the answer. For proxies and
// servers of any kind, by completion or blocking:
//
//   once::http::Endpoint endpoint(engine, {.route = "/charges"});
//   endpoint.open(request, [](once::http::Opening opening) {
//     if (!opening.runs()) return send(std::move(opening.answer));   // a replay, a conflict, a refusal ...
//     // Ours to run. Whoever has the answer, on whatever thread:
//     opening.execution.finish(std::move(answer), [](once::http::Answer answer) { send(std::move(answer)); });
//   });
//
// Ready for Boost.Beast and cpp-httplib: once/frontends/http/beast.hpp and httplib.hpp.
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

// What finish_told() has come to.
struct Finished {
  Answer answer;                // What the client is to be sent.
  bool left_tombstone = false;  // The answer was too large to be kept, for Options or for the store.
  bool is_another = false;      // It is not the one that was finished with: the claim was lost, or nothing was stored.
};

// The right to run one request, and the duty to end it by one of the finishes. Movable; an empty one, and one that was
// finished, may only be tested, assigned to or destroyed. Methods may be called from any thread, one at a time.
//
// Destroyed without a finish, the operation counts as one that may have acted: its lease runs out, then it is what
// Options::ambiguous says. A client that has gone changes nothing: finish all the same.
//
// A finish gives what the client is to be sent once it is durable: the answer itself; or, if the claim was lost
// meanwhile and another answer is what counts, that one, marked as a replay; or a problem, if there is none.
// Completions come before the call returns, or from a thread of the store or of the timers, or from one that is waiting
// in another blocking call; they must not block and must not throw.
class Execution {
 public:
  class State;

  Execution() noexcept;
  explicit Execution(std::unique_ptr<State> state) noexcept;
  Execution(Execution&&) noexcept;
  Execution& operator=(Execution&&) noexcept;
  ~Execution();

  explicit operator bool() const noexcept { return state_ != nullptr; }

  // Null if it runs unprotected. For the fencing token and notes; finish through here, not through the claim.
  [[nodiscard]] Claim* claim() const noexcept;
  [[nodiscard]] bool is_protected() const noexcept { return claim() != nullptr; }
  // What to send as the key to a service downstream: the same for every attempt. Without a key it is random.
  [[nodiscard]] std::string derived_key(std::string_view name) const;
  // Runs fn once per operation, as Context::step() does (once/engine/engine.hpp): what it returned is kept in the
  // record, and the attempt that takes over (Options::ambiguous: takeover) gets it from there. Unprotected, it just
  // runs. Throws what fn throws, and ClaimLost.
  template <class F>
  auto step(std::string_view name, F&& fn) -> std::invoke_result_t<F> {
    return once::detail::run_step(claim(), name, std::forward<F>(fn));
  }
  // Whether nobody else can have begun it, at this moment: look just before the first thing that acts, and if it is
  // false, do nothing and finish_unbegun(). Always, if unprotected.
  [[nodiscard]] bool may_begin() const noexcept;
  // Set when the claim was lost, or may have been: somebody else may run it now. Never, if unprotected.
  [[nodiscard]] std::stop_token stop_token() const;

  // What becomes of the claim is told by the status (Rules::fate_of), or by who knows better: a proxy that could not
  // connect knows that nothing was done (release), one whose connection broke does not (ambiguous). A status outside
  // 100 to 599 is ambiguous, whatever is said. A body over Options::max_answer_bytes leaves a tombstone.
  void finish(Answer answer, Callback<void(Answer)> done);
  void finish(Answer answer, Fate fate, Callback<void(Answer)> done);
  void finish_told(Answer answer, Fate fate, Callback<void(Finished)> done);  // For those who log what became of it.
  [[nodiscard]] Answer finish(Answer answer);                                 // These two block. Not from a completion.
  [[nodiscard]] Answer finish(Answer answer, Fate fate);

  // For an answer whose body goes straight to the client, because it is too large or made on the way: what is stored is
  // a tombstone. `body_bytes`: 0 if not known. `done` gets what is to be sent instead, if something is.
  void finish_streamed(const Answer& head, std::uint64_t body_bytes, Callback<void(std::optional<Answer>)> done);
  [[nodiscard]] std::optional<Answer> finish_streamed(const Answer& head, std::uint64_t body_bytes);

  // Nothing was done, as may_begin() was false: gives the claim up. Gives the answer that another has stored by now, or
  // a problem, 409 in-progress.
  void finish_unbegun(Callback<void(Answer)> done);
  [[nodiscard]] Answer finish_unbegun();

  // The handler threw: see Options::on_throw. Gives a problem, 500.
  void finish_thrown(const std::exception_ptr& error, Callback<void(Answer)> done);
  [[nodiscard]] Answer finish_thrown(const std::exception_ptr& error);

 private:
  std::unique_ptr<State> state_;
};

// What a request has come to.
struct Opening {
  enum class Kind : std::uint8_t {
    passed,       // Not one of the methods. Run it; finishing changes nothing.
    unprotected,  // No key, or no store, and policy says to run all the same. The observer was told.
    claimed,      // Ours to run.
    replayed,     // `answer` for the rest: of an earlier request,
    conflict,     // 409,
    mismatch,     // 422,
    unknown,      // 409,
    refused,      // 400 or 413,
    error,        // 503 or 500: the store, or the record.
  };
  Kind kind = Kind::refused;
  Execution execution;  // passed, unprotected, claimed.
  Answer answer;        // The others.

  [[nodiscard]] bool runs() const noexcept {
    return kind == Kind::passed || kind == Kind::unprotected || kind == Kind::claimed;
  }
};

std::string_view to_string(Opening::Kind kind) noexcept;  // For logs and counters.

// One per route, or one for many routes with the same options. Thread-safe. The engine must outlive it and every
// Execution; the Endpoint itself may go before them.
class Endpoint {
 public:
  // Throws Exception(misuse) for options that cannot be.
  Endpoint(Engine& engine, Options options);

  [[nodiscard]] const Rules& rules() const noexcept { return *rules_; }

  // Looks at the request before it returns, and keeps nothing of it.
  void open(const Request& request, Callback<void(Opening)> done);
  // For those who have called Rules::examine() themselves.
  void open(Examination examination, Callback<void(Opening)> done);
  [[nodiscard]] Opening open(const Request& request);  // These two block. Not from a completion.
  [[nodiscard]] Opening open(Examination examination);

  // The whole life of a request, for servers whose handlers block: opens it, calls the handler on this thread if it is
  // to run and its lease is not over by then, and gives what the client is to be sent. What the handler throws passes
  // through, after finish_thrown(); but for the ClaimLost of a step that came too late, which is the answer that counts
  // by then, or 409 claim-lost.
  [[nodiscard]] Answer run(const Request& request, const std::function<Answer(Execution&)>& handler);
  // For those who have called Rules::examine() themselves, and changed the operation's policy, say.
  [[nodiscard]] Answer run(Examination examination, const std::function<Answer(Execution&)>& handler);

 private:
  Engine& engine_;
  std::shared_ptr<const Rules> rules_;
};

// An endpoint for each route of a service, and one for all other paths. Thread-safe. The engine must outlive it and
// every Execution; this may go before them.
class Endpoints {
 public:
  // Throws Exception(misuse) for routes and options that cannot be.
  Endpoints(Engine& engine, Routes routes);

  // The one for a request. Null: answer it with unclear(), because servers may read its path in ways that different
  // rules are for (Router::find).
  [[nodiscard]] Endpoint* find(const Request& request);
  [[nodiscard]] Answer unclear() const;  // 400 path-unclear
  // Route::path of one that find() gave, as it was written. Empty: it is for all paths without a route.
  [[nodiscard]] std::string_view path_of(const Endpoint& endpoint) const noexcept;

  [[nodiscard]] const Router& router() const noexcept { return router_; }

 private:
  Router router_;
  std::vector<Endpoint> endpoints_;  // By the router's indices.
};

}  // namespace once::http
