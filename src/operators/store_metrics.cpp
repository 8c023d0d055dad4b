#include "operators/store_metrics.hpp"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "operators/record_json.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::operators {

namespace {

constexpr std::array open_standings = {operate::Standing::running, operate::Standing::lapsed,
                                       operate::Standing::released, operate::Standing::failed,
                                       operate::Standing::unknown};

double seconds(Time time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

nlohmann::ordered_json optional_time(const std::optional<Time>& time) {
  return time ? nlohmann::ordered_json(text::rfc3339(*time)) : nlohmann::ordered_json(nullptr);
}

}  // namespace

nlohmann::ordered_json counts_json(const operate::Counts& counts) {
  nlohmann::ordered_json json;
  json["records"] = counts.records;
  json["bytes"] = counts.bytes;
  for (const operate::Standing standing : all_standings) {
    json[std::string(operate::to_string(standing))] = counts.of(standing);
  }
  json["overdue"] = counts.overdue;
  json["results_offloaded"] = counts.offloaded;
  json["results_offloaded_bytes"] = counts.offloaded_bytes;
  json["results_dropped"] = counts.dropped;
  json["oldest_created_at"] = optional_time(counts.oldest_created);
  json["oldest_failed_at"] = optional_time(counts.oldest_failed);
  json["oldest_lapsed_at"] = optional_time(counts.oldest_lapsed);
  json["oldest_overdue_at"] = optional_time(counts.oldest_overdue);
  json["oldest_unknown_at"] = optional_time(counts.oldest_unknown);
  return json;
}

StoreCounts::StoreCounts(std::size_t max_scopes, std::string scope) : max_scopes_(max_scopes) {
  together_.scope = std::move(scope);
  others_.overflow = "true";
}

StoreCounts::Group& StoreCounts::group_of(const Record& record) {
  if (max_scopes_ == 0) return together_;
  const std::string_view key = record.key;
  const std::size_t end = key.find('#');
  const std::string_view prefix = end == std::string_view::npos ? std::string_view() : key.substr(0, end);
  if (const auto found = by_scope_.find(prefix); found != by_scope_.end()) return found->second;
  if (by_scope_.size() == max_scopes_) return others_;
  std::string scope = key_parts(key).scope;
  if (!text::valid_utf8(scope)) return others_;
  Group& made = by_scope_[std::string(prefix)];
  made.scope = std::move(scope);
  return made;
}

void StoreCounts::add(const Record& record, Time now) { operate::count(record, now, group_of(record).counts); }

void StoreCounts::each(const std::function<void(const Group&)>& write) const {
  if (max_scopes_ == 0) write(together_);
  for (const auto& [prefix, group] : by_scope_) write(group);
  if (others_.counts.records > 0) write(others_);
}

void StoreCounts::write_open(text::Exposition& out) const { write(out, open_standings, false); }

void StoreCounts::write(text::Exposition& out, Time now) const {
  write(out, all_standings, true);
  out.family("once_stats_timestamp_seconds", "gauge", "When this was counted, since 1970.");
  out.sample({{"scope", together_.scope}}, seconds(now));
}

void StoreCounts::write(text::Exposition& out, std::span<const operate::Standing> standings, bool all) const {
  out.family("once_records", "gauge", "Records in the store, by state.");
  each([&](const Group& group) {
    for (const operate::Standing standing : standings) {
      out.sample(
          {{"scope", group.scope}, {"otel_metric_overflow", group.overflow}, {"state", operate::to_string(standing)}},
          group.counts.of(standing));
    }
  });
  const auto metric = [&](std::string_view name, std::string_view help, auto operate::Counts::*member) {
    out.family(name, "gauge", help);
    each([&](const Group& group) {
      out.sample({{"scope", group.scope}, {"otel_metric_overflow", group.overflow}}, group.counts.*member);
    });
  };
  metric("once_records_overdue", "Records whose work should have ended.", &operate::Counts::overdue);
  if (all) {
    metric("once_records_bytes", "Bytes of all records.", &operate::Counts::bytes);
    metric("once_results_offloaded", "Results that are kept outside the store.", &operate::Counts::offloaded);
    metric("once_results_offloaded_bytes", "Bytes of these.", &operate::Counts::offloaded_bytes);
    metric("once_results_dropped", "Results that were too large to keep, or had no room.", &operate::Counts::dropped);
  }
  out.family("once_oldest_timestamp_seconds", "gauge",
             "Since when the oldest record " + std::string(all ? "exists, " : "") +
                 "has failed, is lapsed, overdue or unknown, since 1970. Absent if there is none.");
  each([&](const Group& group) {
    const operate::Counts& counts = group.counts;
    const std::array<std::pair<std::string_view, std::optional<Time>>, 5> oldest{
        {{"created", all ? counts.oldest_created : std::nullopt},
         {"failed", counts.oldest_failed},
         {"lapsed", counts.oldest_lapsed},
         {"overdue", counts.oldest_overdue},
         {"unknown", counts.oldest_unknown}}};
    for (const auto& [of, time] : oldest) {
      if (!time) continue;
      out.sample({{"scope", group.scope}, {"otel_metric_overflow", group.overflow}, {"of", of}}, seconds(*time));
    }
  });
}

}  // namespace once::operators
