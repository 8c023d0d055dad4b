// The engine: claims, keeps leases alive, runs the work, finishes. Three levels of use:
//
//   once::idempotent(engine, options, fn)   a callable made idempotent (once/idempotent.hpp)
//   engine.run(key, payload, work)          the work gets an execution context
//   engine.begin(request)                   the handle, blocking or by completion
//
// The first two by completion, with co_await for one: once/engine/asio.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <once/clock.hpp>
#include <once/codec.hpp>
#include <once/decide.hpp>
#include <once/engine/claim.hpp>
#include <once/engine/event.hpp>
#include <once/fingerprint.hpp>
#include <once/key.hpp>
#include <once/offload.hpp>
#include <once/policy.hpp>
#include <once/store.hpp>

namespace once {

class Context;
class EngineCore;

namespace detail {
class AsyncRun;
struct RunInto;
}  // namespace detail

// Which policy an exception gets; empty: Policy::on_throw. Must not throw.
using ThrowRule = std::function<std::optional<OnThrow>(const std::exception_ptr&)>;

// Exceptions of type E (and derived ones) get `what`; chain with `otherwise`.
template <class E>
ThrowRule on_exception(OnThrow what, ThrowRule otherwise = {}) {
  return [what, otherwise = std::move(otherwise)](const std::exception_ptr& error) -> std::optional<OnThrow> {
    try {
      std::rethrow_exception(error);
    } catch (const E&) {
      return what;
    } catch (...) {  // Not E: the question was only the type.
      return otherwise ? otherwise(error) : std::nullopt;
    }
  };
}

struct EngineOptions {
  std::shared_ptr<Store> store;  // Required.
  Policy policy;                 // For what requests leave open.
  std::string scope;             // For keys that are given as plain names.
  std::string holder;            // Record::holder. Empty: "host:pid".
  Observer observer;
  ThrowRule throw_rule;
  std::shared_ptr<Offload> offload;

  // Completed records kept in this process, least recently used out first. A hit costs no round trip, and does not
  // notice that an operator removed the record from the store. 0: off.
  std::size_t cache_records = 0;
  std::size_t cache_bytes = 64 * 1024 * 1024;

  std::shared_ptr<Clock> clock;    // Empty: the host's.
  std::shared_ptr<Random> random;  // Empty: the host's.
  std::shared_ptr<Timers> timers;  // Empty: a thread of the engine's own, started when first needed.
};

// One call of an operation.
struct Request {
  Key key;
  Fingerprint fingerprint;       // Empty: payloads are not compared.
  std::optional<Policy> policy;  // What it leaves open is the engine's.
  std::string holder;            // Added to the engine's: a request id, say.
};

// What begin() found or did.
struct Begin {
  enum class Kind : std::uint8_t {
    claimed,   // `claim` is ours: run the operation and finish the claim. If time may have passed since (a queue or a
               // connection came first), check Claim::deadline() before, and release the claim if it is over.
    replayed,  // `record` has the result.
    stored_failure,  // `record` has a stored failure.
    conflict,        // `record` is another attempt's live claim; try again after retry_after.
    mismatch,        // The key was used with another payload: `record` is what it was used for.
    unknown,         // `record` was started and its outcome is not known: an operator decides.
    error,  // `error` says what failed. Nothing may be run. A `record` is one that the store had returned before the
            // failure.
  };
  Kind kind = Kind::error;
  Claim claim;
  Verdict verdict = Verdict::execute;    // claimed: execute, resume, retry or take_over.
  std::shared_ptr<const Record> record;  // Offloaded result bytes are fetched already.
  Millis retry_after{0};
  Error error;
};

// What run() did. Outcomes are values; value() turns those without a result into exceptions.
struct Outcome {
  enum class Kind : std::uint8_t {
    executed,        // The work ran, its result is durable.
    replayed,        // An earlier result.
    superseded,      // The work ran but had lost its claim; this is another attempt's result, stored first.
    unrecorded,      // The work ran, its result could not be written yet.
    unprotected,     // The work ran without a claim, because policy says so.
    stored_failure,  // A stored failure, replayed.
    conflict,        // As in Begin; the same for the rest.
    mismatch,
    unknown,
    lost,  // The work ran and lost its claim, and no result is stored.
    error,
  };
  Kind kind = Kind::error;
  Result result;                         // Of the first five kinds.
  std::shared_ptr<const Record> record;  // Where there is one.
  Millis retry_after{0};
  Error error;

  [[nodiscard]] bool has_result() const noexcept {
    return kind == Kind::executed || kind == Kind::replayed || kind == Kind::superseded || kind == Kind::unrecorded ||
           kind == Kind::unprotected;
  }
  // The result's bytes. Throws the exception of once/engine/exceptions.hpp that the kind stands for if there is none.
  [[nodiscard]] const std::string& value() const;
};

std::string_view to_string(Outcome::Kind kind) noexcept;

// Thread-safe; one per store and policy in a process is usual, because calls with one key share their store
// conversation only within one engine. Destroying it while claims live is allowed: they keep what they need and are
// renewed until they are finished or dropped, and running calls are answered.
class Engine {
 public:
  // Throws Exception(misuse) without a store or with a policy out of range.
  explicit Engine(EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // Level 3. The asynchronous form completes from any thread, or before it returns; see Claim for completions. If
  // another attempt's claim is in the way, both wait, unless policy says otherwise: the asynchronous one by timer, so
  // that it blocks no thread. A caller with a claim from begin() must not block on its key before it is finished. The
  // engine cannot know whose work that is, and the call ends as a conflict when the wait is over.
  void begin(Request request, Callback<void(Begin)> done);
  [[nodiscard]] Begin begin(Request request);
  [[nodiscard]] Begin begin(std::string_view key, std::string_view payload = {});

  // Level 2. `work` is called as work(Context&) or work() on this thread if the claim is ours; it returns a Result, or
  // any type that Codec knows, or void. Its exceptions pass through, after the claim was released, stored or held as
  // policy says. So do the codec's, but then the work has acted: the operation is completed with its result dropped.
  // run() itself throws Exception(misuse) for a policy out of range, and for work that calls its own key on its own
  // thread: it would wait for itself. begin() throws the same. Work that waits for another thread or engine that calls
  // the key is not detected: it gets a conflict when the wait is over.
  template <class Work>
  Outcome run(Request request, Work&& work);
  // The key is a name in EngineOptions::scope; the payload is fingerprinted unless it is empty.
  template <class Work>
  Outcome run(std::string_view key, std::string_view payload, Work&& work) {
    return run(request(key, payload), std::forward<Work>(work));
  }
  // Runs without a claim, for OnMissingKey::run_unprotected. Reports it to the observer or, without one, to standard
  // error once for each `operation`: its name for people.
  template <class Work>
  Outcome run_unprotected(std::string_view operation, Work&& work);
  // Only reports it: for frontends that run the work themselves. `key`: the stored one, or empty.
  void tell_unprotected(std::string_view operation, std::string_view key);

  [[nodiscard]] Request request(std::string_view key, std::string_view payload) const;
  [[nodiscard]] const EngineOptions& options() const noexcept;

 private:
  // Work without its type. It is called while run() lasts, so nothing needs to be kept.
  class ErasedWork {
   public:
    template <class F>
    ErasedWork(F& work) noexcept  // NOLINT(google-explicit-constructor)
        : work_(&work), call_([](void* f, Context& context) -> Result { return (*static_cast<F*>(f))(context); }) {}
    Result operator()(Context& context) const { return call_(work_, context); }

   private:
    void* work_;
    Result (*call_)(void*, Context&);
  };
  [[nodiscard]] std::shared_ptr<const Attempt> attempt_of(Request&& request) const;
  void begin_elsewhere(Request&& request, Callback<void(Begin)> done);
  void begin_attempt(std::shared_ptr<const Attempt> attempt, const EffectivePolicy& policy, Callback<void(Begin)> done);
  // These fill an outcome that is as it was made: it has too many members to be moved from hand to hand.
  void run_work(Request&& request, ErasedWork work, Outcome& outcome);
  void run_work_without_claim(ErasedWork work, std::string_view operation, const std::string* key, Outcome& outcome);

  friend class detail::AsyncRun;
  friend struct detail::RunInto;

  std::shared_ptr<EngineCore> core_;
};

// What the work of Engine::run is given. Belongs to one attempt; its methods may be called from any thread while the
// work runs.
class Context {
 public:
  [[nodiscard]] std::uint32_t attempt() const noexcept;  // From 1; 1 if unprotected.
  [[nodiscard]] std::uint64_t token() const noexcept;    // 0 if unprotected.
  [[nodiscard]] bool is_protected() const noexcept { return claim_ != nullptr; }

  // The idempotency key to send to the service downstream: the same for every attempt. Unprotected and without a key it
  // is random.
  [[nodiscard]] std::string derived_key(std::string_view name) const;

  // Runs fn once per operation: its result is kept in the record, and an attempt that takes over gets it from there.
  // The result is any type that Codec knows, or void. Throws ClaimLost, before running fn, when the claim is lost.
  template <class F>
  auto step(std::string_view name, F&& fn) -> std::invoke_result_t<F>;

  // Asked to stop when the claim is lost; by completion also when the caller cancels its wait.
  [[nodiscard]] std::stop_token stop_token() const;
  [[nodiscard]] std::optional<Uptime> deadline() const;  // Claim::deadline(); empty if unprotected.
  void heartbeat(std::string_view note = {});

  // The work's own writes in the store's database, which commit together with the result when the work has returned:
  // all or nothing, whatever dies when, and never those of an attempt that has lost its claim. See
  // Store::replace_with(), and the store for what it accepts. If the work throws they are not written. run() throws
  // - Declined if a condition of theirs did not hold or they can never be written. Neither they nor the result were
  //   written; the policy for exceptions decides about the claim.
  // - Unrecorded, whatever Policy::on_unrecorded, if it is not known yet whether both were committed.
  // Throws Exception(misuse) when unprotected, because there is no record to commit them with, for a second call, and
  // for null.
  void commit_with(std::shared_ptr<const Companion> writes);

 private:
  friend class Engine;
  friend class detail::AsyncRun;
  Context(EngineCore& core, Claim* claim, const std::string* key) : core_(core), claim_(claim), key_(key) {}
  EngineCore& core_;
  Claim* claim_;                            // Null: unprotected.
  const std::string* key_;                  // Null: there is none.
  const std::stop_source* stop_ = nullptr;  // Null: the claim's.
  std::mutex mutex_;                        // Of what follows.
  std::shared_ptr<const Companion> companion_;
};

namespace detail {

// The value as a Result. If its codec throws, the work has acted all the same and must not run again for that: the
// result is dropped, and what was thrown is left for the caller.
template <class Value, class V>
Result encode_or_drop(V&& value, std::exception_ptr& failed) {
  try {
    return Result::inlined(Codec<Value>::encode(std::forward<V>(value)), std::string(Codec<Value>::content_type));
  } catch (...) {  // Any codec's exception; it is thrown on once the record is finished.
    failed = std::current_exception();
    Result nothing;
    nothing.placement = Placement::dropped;
    return nothing;
  }
}

// Calls the work with the context if it takes one, and gives its result as a Result.
template <class Work>
Result call_work(Work& work, Context& context, std::exception_ptr& encode_failed) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::is_invocable_v<Work&, Context&>) {
      return work(context);
    } else {
      static_assert(std::is_invocable_v<Work&>, "once: the work must be callable as work(once::Context&) or work()");
      return work();
    }
  };
  using Value = std::remove_cvref_t<decltype(call())>;
  if constexpr (std::is_void_v<Value>) {
    call();
    return {};
  } else if constexpr (std::is_same_v<Value, Result>) {
    return call();
  } else {
    static_assert(Codable<Value>,
                  "once: no once::Codec for the result of the work; return a string, void or a Result, include "
                  "<once/codec_json.hpp>, or specialise once::Codec");
    return encode_or_drop<Value>(call(), encode_failed);
  }
}

// Engine::run() and run_unprotected() into an outcome that is there, and as it was made.
struct RunInto {
  template <class Work>
  static void run(Engine& engine, Outcome& outcome, Request&& request, Work& work) {
    std::exception_ptr encode_failed;
    auto erased = [&](Context& context) { return call_work(work, context, encode_failed); };
    engine.run_work(std::move(request), erased, outcome);
    if (encode_failed) std::rethrow_exception(encode_failed);
  }
  template <class Work>
  static void run_unprotected(Engine& engine, Outcome& outcome, std::string_view operation, Work& work) {
    std::exception_ptr encode_failed;
    auto erased = [&](Context& context) { return call_work(work, context, encode_failed); };
    engine.run_work_without_claim(erased, operation, nullptr, outcome);
    if (encode_failed) std::rethrow_exception(encode_failed);
  }
};

}  // namespace detail

template <class Work>
Outcome Engine::run(Request request, Work&& work) {
  Outcome outcome;
  detail::RunInto::run(*this, outcome, std::move(request), work);
  return outcome;
}

template <class Work>
Outcome Engine::run_unprotected(std::string_view operation, Work&& work) {
  Outcome outcome;
  detail::RunInto::run_unprotected(*this, outcome, operation, work);
  return outcome;
}

namespace detail {

// The two ends of a step; nothing and no work without a claim. Both throw ClaimLost.
std::optional<std::string> finished_step(Claim* claim, std::string_view name);
void keep_step(Claim* claim, std::string_view name, std::string result);

template <class F>
auto run_step(Claim* claim, std::string_view name, F&& fn) -> std::invoke_result_t<F> {
  using Value = std::invoke_result_t<F>;
  const std::optional<std::string> kept = finished_step(claim, name);
  if constexpr (std::is_void_v<Value>) {
    if (kept) return;
    std::forward<F>(fn)();
    keep_step(claim, name, {});
  } else {
    static_assert(Codable<std::remove_cvref_t<Value>>,
                  "once: no once::Codec for the result of the step; return a string or void, include "
                  "<once/codec_json.hpp>, or specialise once::Codec");
    using Coded = Codec<std::remove_cvref_t<Value>>;
    if (kept) return Coded::decode(*kept);
    Value value = std::forward<F>(fn)();
    keep_step(claim, name, Coded::encode(value));
    return value;
  }
}

}  // namespace detail

template <class F>
auto Context::step(std::string_view name, F&& fn) -> std::invoke_result_t<F> {
  return detail::run_step(claim_, name, std::forward<F>(fn));
}

}  // namespace once
