// once proxy --check: prints the effective settings, and starts no proxy.
#pragma once

#include <string>
#include <vector>

#include "settings/proxy_settings.hpp"

namespace once::cli {

// A file with the same effect: given settings, and the defaults of the others.
std::string settings_text(const Given& given, const std::vector<GivenRoute>& routes);

// {"valid": true, "settings": {...}, "routes": [...]}, or {"valid": false, "complaints": [...]}. Routes have all their
// rules, also inherited ones.
std::string settings_json(const Given& given, const std::vector<GivenRoute>& routes,
                          const std::vector<Complaint>& complaints);

// Complains of files and directories that valid settings name, and that are not there or cannot be used: tokens,
// certificates and their keys, and where the logs and the store's file would be. Opens and changes nothing else.
void check_files(const Given& given, const ProxySettings& settings, std::vector<Complaint>& complaints);

}  // namespace once::cli
