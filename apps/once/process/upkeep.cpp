#include "process/upkeep.hpp"

#include <utility>

#include "settings/access.hpp"

namespace once::cli {

Upkeep::Upkeep(const StoreAccess& access, Millis look_interval, Millis sweep_interval, std::string probes_as,
               std::size_t max_scopes) {
  if (look_interval > Millis{0}) {
    look_.emplace(StoreLookOptions{.store = access.store,
                                   .interval = look_interval,
                                   .max_scopes = max_scopes,
                                   .size = size_of_server(access.url),
                                   .probes_as = std::move(probes_as)});
  }
  if (sweep_interval > Millis{0}) {
    sweeper_.emplace(SweeperOptions{.store = access.store, .offload = access.offload, .interval = sweep_interval});
  }
}

std::string Upkeep::text() const {
  return (look_ ? look_->text() : std::string()) + (sweeper_ ? sweeper_->text() : std::string());
}

}  // namespace once::cli
