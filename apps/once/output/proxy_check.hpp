// once proxy --check: what the settings come to, without a proxy.
#pragma once

#include <string>
#include <vector>

#include "settings/proxy_settings.hpp"

namespace once::cli {

// A file with the same effect: settings that were given, and the usual values of the others.
std::string settings_text(const Given& given, const std::vector<GivenRoute>& routes);

// {"valid": true, "settings": {...}, "routes": [...]}; {"valid": false, "complaints": [...]} if there are any. Routes
// have all their rules, also those from outside.
std::string settings_json(const Given& given, const std::vector<GivenRoute>& routes,
                          const std::vector<Complaint>& complaints);

}  // namespace once::cli
