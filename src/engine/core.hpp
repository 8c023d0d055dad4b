// What the parts of one engine share: ports, the store's time, heartbeats, flights, the cache, the observer.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>

#include "core/lease.hpp"
#include "engine/cache.hpp"
#include "engine/flights.hpp"
#include "engine/heartbeats.hpp"

namespace once {

class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  explicit EngineCore(EngineOptions engine_options);

  [[nodiscard]] Moment moment() const { return moment_at(uptime()); }
  [[nodiscard]] Moment moment_at(Uptime at) const;  // A moment ago.
  void learn(const Answer& answer, Uptime sent);
  // For one write at `now`.
  [[nodiscard]] Stamp stamp(Time now) const;

  [[nodiscard]] Uptime uptime() const noexcept { return options.clock->uptime(); }
  [[nodiscard]] Owner new_owner() const;
  // A delay that doubles from `first` with each try up to `most`, of which a random part between half and all is taken.
  [[nodiscard]] Millis backoff(unsigned tries, Millis first, Millis most) const;
  [[nodiscard]] EffectivePolicy policy_of(const Request& request) const;  // Throws Exception(misuse) if out of range.

  // Work of `operation` runs without a claim: the observer is told, each time. Without one standard error is, once for
  // each operation: the one place where a library prints.
  void tell_unprotected(std::string_view operation, std::string_view key);

  // Are the bytes elsewhere, or compressed?
  [[nodiscard]] static bool must_fetch(const Result& result) noexcept {
    return result.placement == Placement::compressed ||
           (result.placement == Placement::offloaded && result.bytes.empty());
  }
  // Gives the record with its bytes, decompressed, or fetched from where they were offloaded to, or the error that says
  // why not. The observer is told by whoever gives up for it.
  using Fetched = Callback<void(std::shared_ptr<const Record>, std::optional<Error>)>;
  void fetch(std::shared_ptr<const Record> record, Fetched done);

  void tell(const Event& event) const {
    if (options.observer) options.observer(event);
  }

  EngineOptions options;
  const EffectivePolicy usual_policy;  // Of requests that bring none, with nothing left open.
  const Capabilities capabilities;
  Heartbeats heartbeats;
  Cache cache;
  Flights flights;

 private:
  mutable std::mutex clock_mutex_;
  StoreClock store_clock_;

  std::mutex told_mutex_;
  std::set<std::string, std::less<>> told_unprotected_;  // Operations that were told on standard error.
};

}  // namespace once
