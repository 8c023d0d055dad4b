#include "output/proxy_check.hpp"

#include <nlohmann/json.hpp>

#include "output/report.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

Json value_json(const Setting& setting, const Setting::Words& words) {
  switch (setting.kind) {
    case Setting::Kind::toggle:
      return words.front() == "true";
    case Setting::Kind::list:
      return words;
    case Setting::Kind::text:
      break;
  }
  return words.front();
}

// Null: has none.
Json effective(const Setting& setting, const Given& given) {
  if (const auto words = words_for(setting, given)) return value_json(setting, *words);
  if (setting.kind == Setting::Kind::toggle) return false;
  return nullptr;
}

}  // namespace

std::string settings_text(const Given& given, const std::vector<GivenRoute>& routes) {
  std::string text;
  for (const Setting& setting : proxy_settings()) {
    const Json value = effective(setting, given);
    // Strings, arrays of strings and booleans are the same in JSON and in TOML.
    if (!value.is_null()) text += setting.key() + " = " + value.dump() + "\n";
  }
  for (const GivenRoute& route : routes) {
    text += "\n[[route]]\npath = " + Json(route.path).dump() + "\n";
    for (const Setting& setting : proxy_settings()) {
      const auto own = route.rules.find(setting.name);
      if (own == route.rules.end()) continue;
      text += setting.key() + " = " + value_json(setting, own->second.words).dump() + "\n";
    }
  }
  return text;
}

std::string settings_json(const Given& given, const std::vector<GivenRoute>& routes,
                          const std::vector<Complaint>& complaints) {
  Json json;
  json["valid"] = complaints.empty();
  if (!complaints.empty()) {
    for (const auto& [place, text] : complaints) {
      Json entry;
      entry["file"] = place.file.empty() ? Json(nullptr) : Json(place.file);
      entry["line"] = place.line == 0 ? Json(nullptr) : Json(place.line);
      entry["column"] = place.column == 0 ? Json(nullptr) : Json(place.column);
      entry["message"] = text;
      json["complaints"].push_back(std::move(entry));
    }
    return json_text(json);
  }
  for (const Setting& setting : proxy_settings()) json["settings"][setting.key()] = effective(setting, given);
  json["routes"] = Json::array();
  for (const GivenRoute& route : routes) {
    Json& entry = json["routes"].emplace_back();
    entry["path"] = route.path;
    for (const Setting& setting : proxy_settings()) {
      if (setting.is_rule) entry[setting.key()] = effective(setting, merged(given, route.rules));
    }
  }
  return json_text(json);
}

}  // namespace once::cli
