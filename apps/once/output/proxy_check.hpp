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

}  // namespace once::cli
