#include "settings/reload_changes.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include <once/fingerprint.hpp>

#include "platform/file.hpp"

namespace once::cli {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{8} << 20U;  // Much more than all authorities of a system.

using FileKind = std::pair<std::string_view, std::string_view>;
constexpr std::array<FileKind, 11> file_kinds{{{"tls-cert", "certificates"},
                                               {"tls-key", "certificates"},
                                               {"client-ca", "certificates"},
                                               {"upstream-ca", "certificates"},
                                               {"upstream-cert", "certificates"},
                                               {"upstream-key", "certificates"},
                                               {"admin-tls-cert", "certificates"},
                                               {"admin-tls-key", "certificates"},
                                               {"admin-token-file", "tokens"},
                                               {"metrics-token-file", "tokens"},
                                               {"principal-jwt", "keys of JWTs"}}};

// Empty: it cannot be read, or is a pipe, whose contents are there once: `--tls-key <(vault read ...)`.
std::string sha256_of_file(const std::string& path) {
  struct stat kind {};
  if (stat(path.c_str(), &kind) != 0 || !S_ISREG(kind.st_mode)) return {};
  std::string text;
  if (read_file(path, max_file_bytes, text) != 0) return {};
  const Sha256 digest = sha256(text);
  return {digest.begin(), digest.end()};
}

bool routes_are_equal(const std::vector<GivenRoute>& one, const std::vector<GivenRoute>& other) {
  return std::ranges::equal(one, other, [](const GivenRoute& a, const GivenRoute& b) {
    return a.path == b.path && std::ranges::equal(a.rules, b.rules, [](const auto& x, const auto& y) {
             return x.first == y.first && x.second.words == y.second.words;
           });
  });
}

// "tokens (admin-token-file)"
void add_names(std::string& to, std::string_view what, const std::set<std::string>& names) {
  if (names.empty()) return;
  to += (to.empty() ? "" : ", ") + std::string(what);
  std::string_view before = " (";
  for (const std::string& name : names) to += std::string(std::exchange(before, ", ")) + name;
  to += ")";
}

}  // namespace

FileDigests digests_of_files(const Given& given, const std::vector<GivenRoute>& routes) {
  FileDigests digests;
  const auto add_from = [&](const Given& settings) {
    for (const auto& [name, kind] : file_kinds) {
      const auto found = settings.find(name);
      if (found == settings.end()) continue;
      const std::string& path = found->second.words.front();
      if (!path.empty()) digests[{std::string(name), path}] = sha256_of_file(path);
    }
  };
  add_from(given);
  for (const GivenRoute& route : routes) add_from(route.rules);
  return digests;
}

std::string changes(const ReloadInputs& before, const ReloadInputs& after) {
  std::map<std::string_view, std::set<std::string>> files;  // By kind.
  for (const auto& [file, digest] : after.files) {
    const auto old = before.files.find(file);
    const auto* const kind = std::ranges::find(file_kinds, std::string_view(file.setting), &FileKind::first);
    if (old != before.files.end() && old->second != digest) files[kind->second].insert(file.setting);
  }
  std::string text;
  for (const auto& [kind, settings] : files) add_names(text, kind, settings);
  if (!routes_are_equal(before.routes, after.routes)) text += text.empty() ? "routes" : ", routes";
  std::set<std::string> settings;
  for (const Setting& setting : proxy_settings()) {
    if (!setting.is_rule && !setting.can_change) continue;
    if (words_for(setting, before.given) != words_for(setting, after.given)) settings.insert(setting.key());
  }
  add_names(text, "settings", settings);
  return text;
}

}  // namespace once::cli
