// What a service does with its store beside its work: looks at it for gauges, and removes expired records.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <once/time.hpp>

#include "operators/store_access.hpp"
#include "operators/store_look.hpp"
#include "output/names.hpp"
#include "process/sweeper.hpp"

namespace once::cli {

class Upkeep {
 public:
  // An interval of 0: never. `probes_as`, `max_scopes`: as in StoreLookOptions.
  Upkeep(const StoreAccess& access, Millis look_interval, Millis sweep_interval, std::string probes_as,
         std::size_t max_scopes = StoreCounts::usual_scopes);

  [[nodiscard]] StoreLook* look() noexcept { return look_ ? &*look_ : nullptr; }  // Null: there is none.
  [[nodiscard]] std::string text() const;                                         // Prometheus' text format.

 private:
  std::optional<StoreLook> look_;
  std::optional<Sweeper> sweeper_;
};

}  // namespace once::cli
