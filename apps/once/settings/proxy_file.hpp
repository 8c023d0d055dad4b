// The file of `once proxy`: TOML 1.0, with the names of the flags as keys.
#pragma once

#include <string>
#include <vector>

#include "settings/proxy_settings.hpp"

namespace once::cli {

struct ProxyFile {
  bool read = true;  // False: it is not TOML, or cannot be read at all.
  Given settings;
  std::vector<GivenRoute> routes;
};

// All that is wrong with it goes to `complaints`; what it gives then must not be used. `name`: for them.
ProxyFile parse_proxy_file(const std::string& name, std::string text, std::vector<Complaint>& complaints);
ProxyFile read_proxy_file(const std::string& name, std::vector<Complaint>& complaints);

}  // namespace once::cli
