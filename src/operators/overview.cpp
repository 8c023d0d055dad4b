#include "operators/overview.hpp"

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include <once/operate.hpp>

#include "operators/answers.hpp"
#include "text/rfc3339.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

Json time_or_null(std::optional<Time> time) { return time ? Json(text::rfc3339(*time)) : Json(nullptr); }

Json gauge(std::uint64_t count, bool is_all, std::optional<Time> oldest) {
  return {{"count", count}, {"bounded", !is_all}, {"oldest", time_or_null(oldest)}};
}

// The names are the words of `standing` in a list, which has the same records.
Json gauges_json(const std::optional<StoreFigures>& figures) {
  if (!figures) {
    return {{"unknown", nullptr}, {"failed", nullptr},   {"lapsed", nullptr},     {"overdue", nullptr},
            {"running", nullptr}, {"released", nullptr}, {"in_progress", nullptr}};
  }
  const operate::Counts& counts = figures->counts;
  using operate::Standing;
  const bool all = figures->all_in_progress;
  return {
      {"unknown", gauge(counts.of(Standing::unknown), figures->all_unknown, counts.oldest_unknown)},
      {"failed", gauge(counts.of(Standing::failed), figures->all_failed, counts.oldest_failed)},
      {"lapsed", gauge(counts.of(Standing::lapsed), all, counts.oldest_lapsed)},
      {"overdue", gauge(counts.overdue, all, counts.oldest_overdue)},
      {"running", gauge(counts.of(Standing::running), all, figures->oldest_running)},
      {"released", gauge(counts.of(Standing::released), all, figures->oldest_released)},
      {"in_progress", gauge(counts.of(Standing::running) + counts.of(Standing::lapsed) + counts.of(Standing::released),
                            all, figures->oldest_in_progress)}};
}

Json store_json(const std::string& name, const StoreHealth& health) {
  constexpr double ms_per_ns = 1e-6;
  Json json{{"name", name}};
  json["answers"] = health.asked_at ? Json(!health.error) : Json(nullptr);
  json["asked_at"] = time_or_null(health.asked_at);
  json["latency_ms"] = health.latency ? Json(static_cast<double>(health.latency->count()) * ms_per_ns) : Json(nullptr);
  json["clock_ahead_ms"] = health.clock_ahead ? Json(health.clock_ahead->count()) : Json(nullptr);
  json["clock_error_ms"] = health.clock_ahead ? Json(health.clock_error.count()) : Json(nullptr);
  json["about_records"] = health.about_records ? Json(*health.about_records) : Json(nullptr);
  json["bytes"] = health.bytes ? Json(*health.bytes) : Json(nullptr);
  json["free_bytes"] = health.free_bytes ? Json(*health.free_bytes) : Json(nullptr);
  json["refusal"] = health.refusal ? Json(health.refusal->message) : Json(nullptr);
  json["error"] = health.error ? Json(health.error->message) : Json(nullptr);
  return json;
}

}  // namespace

OverviewSources overview_sources(StoreLook* look, const RecentEvents* recent) {
  OverviewSources sources;
  if (look != nullptr) {
    sources.figures = [look] { return look->figures(); };
    sources.health = [look] { return look->health(); };
    sources.refresh = [look] { look->refresh(); };
  }
  if (recent != nullptr) sources.recent = [recent] { return recent->counts(); };
  return sources;
}

nlohmann::ordered_json overview_json(const std::string& store, const OverviewSources& sources) {
  const std::optional<StoreFigures> figures = sources.figures ? sources.figures() : std::nullopt;
  Json json{{"as_of", figures ? time_or_null(figures->as_of) : Json(nullptr)}, {"gauges", gauges_json(figures)}};
  json["rates"] = nullptr;
  if (sources.recent) {
    const RecentEvents::Counts recent = sources.recent();
    json["rates"] = {{"seconds", recent.span.count()},
                     {"ran", recent.ran},
                     {"replayed", recent.replayed},
                     {"unprotected", recent.unprotected},
                     {"unrecorded", recent.unrecorded}};
  }
  json["stores"] = Json::array({store_json(store, sources.health ? sources.health() : StoreHealth{})});
  return json;
}

http::Answer overview(const StoreAccess& access, const OverviewSources& sources) {
  if (sources.refresh) sources.refresh();
  return json_answer(200, overview_json(access.store->name(), sources));
}

}  // namespace once::operators
