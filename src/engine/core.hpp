// Shared by the parts of one engine: ports, the store's time, heartbeats, flights, the cache, the observer.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>

#include "core/lease.hpp"
#include "engine/cache.hpp"
#include "engine/engine_attempt.hpp"
#include "engine/flights.hpp"
#include "engine/heartbeats.hpp"
#include "platform/learnt_clock.hpp"

namespace once {

class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  explicit EngineCore(EngineOptions engine_options);

  [[nodiscard]] Moment moment() const { return moment_at(uptime()); }
  [[nodiscard]] Moment moment_at(Uptime at) const;  // A moment ago.
  void learn(const Answer& answer, Uptime sent);
  // For one write at `now`.
  [[nodiscard]] Stamp stamp(Time now) const;
  // For a claim at `now`, which must be sent at once. Gives the attempt an owner if it has none, in the same draw: each
  // is a system call, which costs more than its bytes.
  [[nodiscard]] Stamp claim_stamp(EngineAttempt& attempt, Time now) const;

  [[nodiscard]] Uptime uptime() const noexcept { return options.clock->uptime(); }
  [[nodiscard]] Owner new_owner() const;
  // The spans of a call. Null: there is no tracer, and its caller gave no context.
  [[nodiscard]] std::shared_ptr<const CallTrace> trace_of(const TracePtr& caller) const;
  // Without an owner.
  [[nodiscard]] std::shared_ptr<EngineAttempt> attempt_of(Request&& request, const EffectivePolicy& policy) const;
  // For Engine::attach().
  [[nodiscard]] std::shared_ptr<EngineAttempt> attaching(Request&& request, const Owner& owner,
                                                         const EffectivePolicy& policy) const;
  void keep_input(Attempt& attempt, Request& request) const;
  // The same, for another claim.
  [[nodiscard]] std::shared_ptr<EngineAttempt> again(const EngineAttempt& attempt) const;
  void begin(std::shared_ptr<EngineAttempt>&& attempt, Callback<void(Begin&&)>&& done);
  // A delay that doubles with each try from `first` to `most`; returns a random part of it, from half to all.
  [[nodiscard]] Millis backoff(unsigned tries, Millis first, Millis most) const;
  // Takes a request in: adds the invocation's tenant to its key, and returns its policy, bounded by the invocation's
  // deadline. Throws Exception(misuse) for a policy out of range, and NoTimeLeft. Call it once for each request, before
  // the thread waits.
  [[nodiscard]] EffectivePolicy take_in(Request& request) const;
  // The same for Engine::attach(). Also throws what Timers::make_ready() throws.
  [[nodiscard]] EffectivePolicy ready_to_attach(Request& request) const;

  // Reports that work of `operation` runs without a claim: to the observer each time, otherwise to standard error.
  // There it is once for each operation, or each time if protection is switched off.
  void tell_unprotected(std::string_view operation, std::string_view key);

  // Whether the bytes are offloaded, compressed or sealed.
  [[nodiscard]] static bool must_fetch(const Result& result) noexcept {
    return result.placement == Placement::compressed || result.placement == Placement::sealed ||
           (result.placement == Placement::offloaded && result.bytes.empty());
  }
  // Gives the record with its bytes decompressed or fetched from the offload, or an error. The caller reports the
  // error.
  using Fetched = Callback<void(std::shared_ptr<const Record>, std::optional<Error>)>;
  void fetch(std::shared_ptr<const Record> record, Fetched done);

  // A caller gets the error. For the tracer, as store_error was reported already.
  void tell_failed(const Attempt& attempt, const Error& error) const;

  // To the observer. Without one, what must not go unnoticed (unrecorded, finish_refused, unknown) goes to standard
  // error, once for each operation and kind. No other code of the library prints.
  void tell(const Event& event) const {
    if (options.observer) options.observer(event);
    if (!is_observed && is_signal(event.kind)) warn(event);
  }

  const bool is_observed;  // By the user. A tracer observes too, and reports to nobody.
  EngineOptions options;
  const KeyScope key_scope;            // EngineOptions::scope.
  const EffectivePolicy usual_policy;  // For requests without a policy.
  const Capabilities capabilities;
  ClaimsServer* const server;  // Null: this engine claims.
  Heartbeats heartbeats;
  Cache cache;
  Flights flights;

 private:
  static bool is_signal(EventKind kind) noexcept {
    return kind == EventKind::unrecorded || kind == EventKind::finish_refused || kind == EventKind::unknown;
  }
  void warn(const Event& event) const;
  // Writes "once: 'OPERATION' TEXT" to standard error, once for each operation and kind.
  void warn_once(EventKind kind, std::string_view operation, std::string_view text) const;

  LearntClock store_clock_;

  mutable std::mutex told_mutex_;
  mutable std::set<std::pair<EventKind, std::string>> told_;  // What was reported on standard error.
};

}  // namespace once
