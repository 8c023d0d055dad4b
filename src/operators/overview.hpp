// GET /v1/overview: what waits for a person, and how the store is. It asks the store nothing: however many look at it,
// the store is looked at by one poller, process/store_look.hpp.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include <once/frontends/http/message.hpp>

#include "operators/recent_events.hpp"
#include "operators/store_access.hpp"
#include "operators/store_look.hpp"

namespace once::operators {

// What this process knows. Empty functions: it does not.
struct OverviewSources {
  std::function<std::optional<StoreFigures>()> figures = {};
  std::function<StoreHealth()> health = {};
  std::function<RecentEvents::Counts()> recent = {};
  std::function<void()> refresh = {};  // Somebody has come to look: count soon.
};
// Of these, either of which may be null. They must outlive it.
OverviewSources overview_sources(StoreLook* look, const RecentEvents* recent);

// `store`: its name.
nlohmann::ordered_json overview_json(const std::string& store, const OverviewSources& sources);
// Answers at once, with the last counts; what is counted for this viewer comes with the next answer or event.
http::Answer overview(const StoreAccess& access, const OverviewSources& sources);

}  // namespace once::operators
