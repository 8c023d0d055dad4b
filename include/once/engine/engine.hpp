// The engine claims keys, keeps leases alive, runs the work and finishes claims. Three levels of use:
//
//   once::idempotent(engine, options, fn)   a callable made idempotent (once/idempotent.hpp)
//   engine.run(key, payload, work)          the work gets an execution context
//   engine.begin(request)                   the handle, blocking or by completion
//
// The first two as asynchronous calls, for example with co_await: once/engine/asio.hpp.
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
#include <once/trace.hpp>

namespace once {

class Context;
class Tracer;
// These are private: src/engine has them.
class EngineCore;
class Handing;
struct EngineAttempt;

namespace detail {
class AsyncRun;
struct LocalRun;
struct RunInto;

// What work commits together with its result. For Context and http::Execution, whose methods of these names say more.
// Thread-safe.
class OwnWrites {
 public:
  // Both throw Exception(misuse). `claim` null: the work runs unprotected.
  void commit_with(const Claim* claim, std::shared_ptr<const Companion> writes);
  [[nodiscard]] HandedOut hand_out(Claim* claim, Result result);

  [[nodiscard]] std::shared_ptr<const Companion> take_companion();
  [[nodiscard]] bool was_handed_out() const;
  // A transaction has finished the claim, or may still do so: it was not declined.
  [[nodiscard]] bool may_be_committed() const;
  // was_handed_out(): how the last transaction ended, by a read of the record unless that is known.
  void read_outcome(FinishDone done) const;

 private:
  mutable std::mutex mutex_ = {};
  std::shared_ptr<const Companion> companion_ = {};
  std::shared_ptr<Handing> handing_ = {};  // The last.
};
}  // namespace detail

// What to do for an exception. Empty: Policy::on_throw. Must not throw.
using ThrowRule = std::function<std::optional<OnThrow>(const std::exception_ptr&)>;

// `what` for exceptions of type E and derived ones; `otherwise` decides for all others.
template <class E>
ThrowRule on_exception(OnThrow what, ThrowRule otherwise = {}) {
  return [what, otherwise = std::move(otherwise)](const std::exception_ptr& error) -> std::optional<OnThrow> {
    try {
      std::rethrow_exception(error);
    } catch (const E&) {
      return what;
    } catch (...) {  // Not E. Only the type matters here.
      return otherwise ? otherwise(error) : std::nullopt;
    }
  };
}

// What may be stored of an input, or null: nothing. Called for each input of an engine before it is stored or sealed,
// by several threads at once. Must not throw. keys::InputFilter (once/keys/input_filter.hpp) is one.
using InputRule = std::function<InputPtr(std::string_view input)>;

// What an engine works with.
struct EngineOptions {
  std::shared_ptr<Store> store = {};  // Required.
  Policy policy = {};                 // The defaults of requests.
  std::string scope = {};             // The scope of keys that are plain names.
  std::string holder = {};            // Record::holder. Empty: "host:pid".
  Observer observer = {};             // Gets each event. Empty: none does.
  ThrowRule throw_rule = {};          // Chooses by exception. Empty: Policy::on_throw.
  InputRule input_rule = {};  // Empty: inputs are stored as they are given. Applies after an operation's own filter.
  std::shared_ptr<Offload> offload = {};      // Keeps results that are too large. Null: they are dropped.
  std::shared_ptr<const Tracer> tracer = {};  // once/engine/tracer.hpp. Null: no spans.

  // Completed records kept in this process; the least recently used is dropped first. A hit costs no round trip, and
  // does not notice that an operator removed the record from the store. 0: off.
  std::size_t cache_records = 0;
  std::size_t cache_bytes = 64 * 1024 * 1024;  // record_bytes() of these together, at most.

  // Nothing is claimed and nothing is stored: all work runs, also twice, and each run is reported (unprotected). The
  // store is not used. Empty: as ONCE_DISABLED in the environment says, see once/platform/environment.hpp.
  std::optional<bool> disabled = {};

  std::shared_ptr<Clock> clock = {};    // Empty: the host's.
  std::shared_ptr<Random> random = {};  // Empty: the host's.
  std::shared_ptr<Timers> timers = {};  // Empty: the engine's own thread, started when first needed.
};

// One call of an operation.
struct Request {
  Key key;                            // Has no default: give one.
  Fingerprint fingerprint = {};       // Empty: payloads are not compared.
  std::optional<Policy> policy = {};  // Empty members: the engine's.
  std::string holder = {};            // Added to the engine's: for example a request id.

  // Record::label: the key as people know it, cut to Record::max_text_bytes. Empty: none. Policy::label decides whether
  // it is stored.
  std::string label = {};
  bool label_from_payload = false;  // The label was taken from a payload or a message: stored only with Label::all.

  // The caller's, as trace_from() or trace_from_xray() make it: for the log and the record. Never part of the key or
  // the fingerprint, as a retry has another.
  TracePtr trace = {};

  // Record::input, stored only with Policy::keep_input. Null: none. Any bytes; the engine cuts it.
  InputPtr input = {};
  std::uint64_t input_bytes = 0;  // The size of the whole, if `input` is only its beginning. 0: the input's own.
};

// The answer of begin().
struct Begin {
  // What the record says, and so whether to run the operation.
  enum class Kind : std::uint8_t {
    claimed,         // `claim` is yours: run the operation and finish the claim. If time may have passed (a queue, a
                     // connection), check Claim::deadline() first. If it has passed, release the claim.
    replayed,        // `record` has the result.
    stored_failure,  // `record` has a stored failure.
    conflict,        // `record` is another attempt's live claim: try again after retry_after.
    mismatch,        // The key was used with another payload: `record` has it.
    unknown,         // The operation of `record` began, its outcome is not known: an operator decides.
    error,  // `error` says what failed. Do not run the operation. `record`: what the store had returned before, or
            // null.
  };
  Kind kind = Kind::error;                    // Says what the other members are.
  Claim claim = {};                           // Empty unless claimed.
  Verdict verdict = Verdict::execute;         // claimed: execute, resume, retry or take_over.
  std::shared_ptr<const Record> record = {};  // An offloaded result is fetched already.
  Millis retry_after{0};                      // conflict: until the other claim's lease ends.
  Error error = {};                           // Set for `error`.
  bool is_unreadable = false;  // error: because the record's result cannot be had. Trying again does not help.
};

// The answer of attach().
struct Attached {
  Claim claim = {};  // Yours, and renewed: go on. Empty: `finish` says why.
  // recorded: this owner has finished it, and `record` has the result or the failure.
  // superseded: another attempt's result is stored, which `record` has.
  // lost: neither. `record`: what is stored, or null.
  // unrecorded: the store did not answer, and `error` says why. The claim may be yours: try again until its lease ends.
  // recorded and lost have an `error` too if the result in `record` cannot be had.
  Finish finish = {};
};

// The answer of run(). value() turns outcomes without a result into exceptions.
struct Outcome {
  // How the call ended.
  enum class Kind : std::uint8_t {
    executed,        // The work ran, and its result is durable.
    replayed,        // An earlier result.
    superseded,      // The work ran but had lost its claim. `result` is another attempt's, stored first.
    unrecorded,      // The work ran, but its result could not be written yet.
    unprotected,     // The work ran without a claim, because policy says so.
    stored_failure,  // A stored failure, replayed.
    conflict,        // Another attempt has a live claim: try again after retry_after.
    mismatch,        // The key was used with another payload.
    unknown,         // The operation began, and its outcome is not known: an operator decides.
    lost,            // The work ran but lost its claim, and no result is stored.
    error,           // The work did not run, or a stored result cannot be read: see `error`.
  };
  Kind kind = Kind::error;                    // Says what the other members are.
  Result result = {};                         // For the first five kinds.
  std::shared_ptr<const Record> record = {};  // Where there is one.
  Millis retry_after{0};                      // conflict: until the other claim's lease ends.
  Error error = {};                           // error, unrecorded: why. lost: why the record could not be read, if so.

  // One of the first five kinds.
  [[nodiscard]] bool has_result() const noexcept {
    return kind == Kind::executed || kind == Kind::replayed || kind == Kind::superseded || kind == Kind::unrecorded ||
           kind == Kind::unprotected;
  }
  // The result's bytes. If there is none, throws the kind's exception of once/engine/exceptions.hpp.
  [[nodiscard]] const std::string& value() const;
};

std::string_view to_string(Outcome::Kind kind) noexcept;  // "executed" …

// Thread-safe. Usually a process has one per store and policy: calls with one key share their conversation with the
// store only within one engine. It may be destroyed while claims live. They are renewed until they are finished or
// dropped, and running calls are answered.
class Engine {
 public:
  // Throws Exception(misuse) if there is no store or the policy is out of range.
  explicit Engine(EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // Level 3. The asynchronous form completes from any thread, or before it returns; Claim has the rules for
  // completions. If another attempt's claim is in the way, both forms wait, unless the policy says otherwise. The
  // asynchronous form waits by timer and blocks no thread.
  // Do not block on a key whose claim you hold: the engine cannot detect it, and the call ends as a conflict after its
  // wait.
  void begin(Request request, Callback<void(Begin&&)> done);
  [[nodiscard]] Begin begin(Request request);  // Blocks.
  // Blocks. request(key, payload) says what these are.
  [[nodiscard]] Begin begin(std::string_view key, std::string_view payload = {});

  // Takes up a claim that another process or handle had, by its key and Claim::owner(): after a restart, for example.
  // Reads the record and renews it, under `holder`, if it is still in progress, this owner's, and not released; also
  // when its lease has ended, if no other call came since. Never makes a claim. Its token, attempt and steps stay. The
  // renewal gives the whole lease of the policy, also under Policy::fixed_lease. The fingerprint is compared only with
  // what another attempt has stored.
  // The handle that attaches last has the claim: an earlier one loses it at its next write. But a transaction to which
  // the earlier one has handed it out is not fenced. It finishes the claim if it commits while that is in progress.
  // Where protection is switched off (EngineOptions::disabled), every claim is lost.
  // Throws Exception(misuse) for a policy out of range, NoTimeLeft as begin(), and what Timers::make_ready() throws.
  void attach(Request request, Owner owner, Callback<void(Attached&&)> done);
  [[nodiscard]] Attached attach(Request request, Owner owner);  // Blocks, as begin().

  // Level 2. If the claim is ours, calls work(Context&) or work() on this thread. It returns a Result, void, or any
  // type with a Codec. Its exceptions pass through after the claim was released, stored or held, as the policy says. An
  // exception of the codec passes through too, but the work has acted: the operation is completed without its result.
  // run() and begin() throw Exception(misuse) for a policy out of range, and for work
  // that calls its own key on its own thread: it would wait for itself. If work waits for another thread or engine that
  // calls the key, that is not detected: the call ends as a conflict after its wait.
  template <class Work>
  Outcome run(Request request, Work&& work);
  // The key is a name in EngineOptions::scope. An empty payload has no fingerprint. The payload is the input too, if
  // the engine's policy keeps inputs.
  template <class Work>
  Outcome run(std::string_view key, std::string_view payload, Work&& work) {
    return run(request(key, payload), std::forward<Work>(work));
  }
  // Runs without a claim, for OnMissingKey::run_unprotected. Reports it to the observer or, without one, to standard
  // error once for each `operation`: its name for people.
  template <class Work>
  Outcome run_unprotected(std::string_view operation, Work&& work);
  // Only reports it, for frontends that run the work themselves. `key`: the stored key, or empty.
  void tell_unprotected(std::string_view operation, std::string_view key);

  // A request for a key in EngineOptions::scope, with the fingerprint of the payload; an empty payload has none.
  // Throws Exception(misuse) for an empty or too long key.
  [[nodiscard]] Request request(std::string_view key, std::string_view payload) const;
  // As they are in effect, with the defaults filled in.
  [[nodiscard]] const EngineOptions& options() const noexcept;

 private:
  // Work without its type. Called only during run(), so it holds a reference. Fills a new result.
  class ErasedWork {
   public:
    template <class F>
    ErasedWork(F& work) noexcept  // NOLINT(google-explicit-constructor)
        : work_(&work), call_([](void* f, Context& context, Result& into) { (*static_cast<F*>(f))(context, into); }) {}
    void operator()(Context& context, Result& into) const { call_(work_, context, into); }

   private:
    void* work_;
    void (*call_)(void*, Context&, Result&);
  };
  void begin_elsewhere(Request&& request, const EffectivePolicy& policy, Callback<void(Begin&&)>&& done);
  // These fill a new outcome in place, because it has many members to move.
  void run_work(Request&& request, ErasedWork work, Outcome& outcome);
  void run_work_without_claim(ErasedWork work, std::string_view operation, const std::string* key, Outcome& outcome);

  friend class detail::AsyncRun;
  friend struct detail::LocalRun;
  friend struct detail::RunInto;

  std::shared_ptr<EngineCore> core_;
};

// The argument of the work of Engine::run. Belongs to one attempt. Call its methods from any thread, while the work
// runs.
class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] std::uint32_t attempt() const noexcept;  // From 1; 1 if unprotected.
  [[nodiscard]] std::uint64_t token() const noexcept;    // 0 if unprotected.
  // False: the work runs without a claim.
  [[nodiscard]] bool is_protected() const noexcept { return claim_ != nullptr; }

  // The idempotency key to send to a service downstream: the same for every attempt. Random if unprotected without a
  // key.
  [[nodiscard]] std::string derived_key(std::string_view name) const;

  // Runs fn once per operation: its result is kept in the record, and an attempt that takes over reads it there. The
  // result is void or any type with a Codec. Throws ClaimLost if the claim was lost, before fn runs or after it.
  template <class F>
  auto step(std::string_view name, F&& fn) -> std::invoke_result_t<F>;

  // Set when the claim is lost. In asynchronous calls also when the caller cancels.
  [[nodiscard]] std::stop_token stop_token() const;
  [[nodiscard]] std::optional<Uptime> deadline() const;  // Claim::deadline(); empty if unprotected.
  void heartbeat(std::string_view note = {});            // Claim::heartbeat(); nothing if unprotected.
  [[nodiscard]] TraceContext trace() const;              // Claim::trace(); empty if unprotected.

  // Adds the work's own writes in the store's database. They commit together with the result when the work has
  // returned: all or nothing, even if a process dies, and never for an attempt that lost its claim. If the work throws,
  // they are not written. See Store::replace_with(), and the store for what it accepts. run() throws
  // - Declined if one of their conditions did not hold, or if they can never be written. Neither they nor the result
  //   were written. The policy for exceptions decides about the claim.
  // - Unrecorded, for either Policy::on_unrecorded, if it is not known yet whether both were committed.
  // Throws Exception(misuse) when unprotected (there is no record to commit with), for a second call, and for null.
  void commit_with(std::shared_ptr<const Companion> writes);

  // Leaves the completion, with this result, to a transaction of the work's own: see HandedOut. The result is a Result,
  // or of a type with a Codec: what the work returns afterwards. Once the transaction is over:
  // - committed: the work may return, and run() reports `executed`. Replays get the handed-out result.
  // - superseded or lost: so is the outcome, whatever the work does then.
  // - declined (rolled back): hand out again, or throw. If the work returns, run() throws Declined, so that it is not
  //   overlooked. Policies treat that as an exception of the work.
  // - not known: run() reads the record when the work ends, and throws Unrecorded if that does not tell.
  // If the work throws after it has committed, the operation is completed all the same, and the exception passes
  // through.
  // Throws Exception(misuse) as Claim::hand_out(), and when unprotected or after commit_with().
  template <class T>
  [[nodiscard]] HandedOut hand_out(const T& result);

 private:
  friend class Engine;
  friend class detail::AsyncRun;
  Context(EngineCore& core, Claim* claim, const std::string* key) : core_(core), claim_(claim), key_(key) {}
  EngineCore& core_;
  Claim* claim_;                            // Null: unprotected.
  const std::string* key_;                  // Null: no key.
  const std::stop_source* stop_ = nullptr;  // Null: the claim's.
  detail::OwnWrites own_writes_ = {};
};

namespace detail {

// Makes `result`, which is new, of the value. If its codec throws, the work has acted and must not run again. So the
// result is dropped, and `failed` has the exception for the caller.
template <class Value, class V>
void encode_or_drop(V&& value, Result& result, std::exception_ptr& failed) {
  try {
    result.bytes = Codec<Value>::encode(std::forward<V>(value));
    const std::string_view type = Codec<Value>::content_type;
    if (!type.empty()) result.content_type = type;
  } catch (...) {  // Any codec's exception; rethrown after the record is finished.
    failed = std::current_exception();
    result = {};
    result.placement = Placement::dropped;
  }
}

// Calls the work, with the context if it takes one, and makes `result`, which is new, of what it returns.
template <class Work>
void call_work(Work& work, Context& context, Result& result, std::exception_ptr& encode_failed) {
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
  } else if constexpr (std::is_same_v<Value, Result>) {
    result = call();
  } else {
    static_assert(Codable<Value>,
                  "once: no once::Codec for the result of the work; return a string, void or a Result, include "
                  "<once/codec_json.hpp>, or specialise once::Codec");
    encode_or_drop<Value>(call(), result, encode_failed);
  }
}

// Engine::run() and run_unprotected() into an existing, new outcome. The work is called as work(Context&, Result&), and
// fills the result, which is new.
struct RunInto {
  template <class Work>
  static void run(Engine& engine, Outcome& outcome, Request&& request, Work& work) {
    engine.run_work(std::move(request), work, outcome);
  }
  template <class Work>
  static void run_unprotected(Engine& engine, Outcome& outcome, std::string_view operation, Work& work) {
    engine.run_work_without_claim(work, operation, nullptr, outcome);
  }
};

}  // namespace detail

template <class T>
HandedOut Context::hand_out(const T& result) {
  if constexpr (std::is_same_v<T, Result>) {
    return own_writes_.hand_out(claim_, result);
  } else if constexpr (!Codable<T> && std::is_convertible_v<const T&, std::string_view>) {
    return hand_out(std::string(std::string_view(result)));
  } else {
    static_assert(Codable<T>,
                  "once: no once::Codec for the result; hand out a string or a Result, include "
                  "<once/codec_json.hpp>, or specialise once::Codec");
    Result encoded;
    encoded.bytes = Codec<T>::encode(result);
    const std::string_view type = Codec<T>::content_type;
    if (!type.empty()) encoded.content_type = type;
    return own_writes_.hand_out(claim_, std::move(encoded));
  }
}

template <class Work>
Outcome Engine::run(Request request, Work&& work) {
  Outcome outcome;
  std::exception_ptr encode_failed;
  auto into = [&](Context& context, Result& result) { detail::call_work(work, context, result, encode_failed); };
  run_work(std::move(request), into, outcome);
  if (encode_failed) std::rethrow_exception(encode_failed);
  return outcome;
}

template <class Work>
Outcome Engine::run_unprotected(std::string_view operation, Work&& work) {
  Outcome outcome;
  std::exception_ptr encode_failed;
  auto into = [&](Context& context, Result& result) { detail::call_work(work, context, result, encode_failed); };
  run_work_without_claim(into, operation, nullptr, outcome);
  if (encode_failed) std::rethrow_exception(encode_failed);
  return outcome;
}

namespace detail {

// The two ends of a step. Without a claim they do nothing. Both throw ClaimLost.
std::optional<std::string> finished_step(Claim* claim, std::string_view name);
void keep_step(Claim* claim, std::string_view name, std::string result);
void check_step(const Claim& claim, std::string_view name, const Finish& finish);  // Throws ClaimLost.

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
