#include "settings/proxy_check.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <once/error.hpp>
#include <once/platform/environment.hpp>
#include <once/seal.hpp>

#include "operators/admin_token.hpp"
#include "output/report.hpp"
#include "stores/url.hpp"
#include "tls/context.hpp"

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

void check_files(const Given& given, const ProxySettings& settings, std::vector<Complaint>& complaints) {
  const auto complain = [&](const std::string& setting, const std::string& text) {
    const auto found = given.find(setting);
    complaints.push_back({found == given.end() ? Place{} : found->second.place, setting + ": " + text});
  };
  const auto attempt = [&](const std::string& setting, const auto& action) {
    try {
      action();
    } catch (const Exception& error) {
      complain(setting, error.what());
    }
  };
  const auto require = [&](const std::string& setting, const std::string& path, int mode, const char* cannot) {
    if (!path.empty() && access(path.c_str(), mode) != 0) complain(setting, path + cannot + std::strerror(errno));
  };
  const auto require_file = [&](const std::string& setting, const std::string& path) {
    require(setting, path, R_OK, " cannot be read: ");
  };
  // Of a file that is made if it is missing.
  const auto require_folder = [&](const std::string& setting, const std::filesystem::path& file) {
    const std::string folder = file.parent_path().string();
    require(setting, folder.empty() ? "." : folder, W_OK | X_OK, " is no directory that this user can write to: ");
  };
  for (const auto& [setting, files] : {std::pair("tls-cert", &settings.proxy.certificate),
                                       std::pair("admin-tls-cert", &settings.proxy.admin_certificate)}) {
    if (!*files) continue;
    attempt(setting, [&pair = **files] { const tls::ServerContext context(pair.file, pair.key_file); });
  }
  if (const auto& files = settings.proxy.upstream_certificate) {
    require_file("upstream-cert", files->file);
    require_file("upstream-key", files->key_file);
  }
  require_file("client-ca", settings.proxy.client_ca_file);
  require_file("upstream-ca", settings.proxy.upstream_ca_file);
  attempt("admin-token-file", [&] { const AdminToken token(settings.admin_token_file, "--admin-token-file"); });
  attempt("metrics-token-file", [&] { const AdminToken token(settings.metrics_token_file, "--metrics-token-file"); });
  if (!settings.proxy.listen.socket.empty()) require_folder("listen", settings.proxy.listen.socket);
  if (settings.access_log != "-" && settings.access_log != "none") require_folder("access-log", settings.access_log);
  if (!settings.audit_log.empty()) require_folder("audit-log", settings.audit_log);
  const std::string url = settings.store.url.empty() ? variable("ONCE_STORE") : settings.store.url;
  attempt("store", [&] {
    if (url.empty()) return;  // The file of this user is made at the start.
    stores::Url store(url);
    if (store.scheme() == "sqlite" && !store.flag("create_directories").value_or(false)) {
      require_folder("store", store.path());
    }
    // A key service is not asked.
    const auto unasked = [](const WrappedSealKey& wrapped) { return SealKey{.id = wrapped.id, .bytes = {1}}; };
    if (const auto keys = store.take_text("seal")) read_seal_keys(*keys, unasked);
  });
  const bool finishes =
      settings.rules.otherwise.service_finish ||
      std::ranges::any_of(settings.rules.routes, [](const http::Route& route) { return route.options.service_finish; });
  if (finishes && !url.starts_with("postgresql:") && !url.starts_with("postgres:") && !is_disabled_by_environment()) {
    complain("service-finish", "only a service that shares a PostgreSQL store can finish a record: see --store");
  }
}

}  // namespace once::cli
