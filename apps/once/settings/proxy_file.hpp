// The file of `once proxy`: TOML 1.0, with the names of the flags as keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "settings/proxy_settings.hpp"

namespace once::cli {

struct ProxyFile {
  bool read = true;  // False: not TOML, or unreadable.
  Given settings;
  std::vector<GivenRoute> routes;
};

// Adds all errors to `complaints`; then do not use the result. `name`: for their texts.
ProxyFile parse_proxy_file(const std::string& name, std::string text, std::vector<Complaint>& complaints);
ProxyFile read_proxy_file(const std::string& name, std::vector<Complaint>& complaints);

// A file without tables, of other commands: "key" = a string, or true or false as a text.
struct FlatSetting {
  std::string key;
  std::string text;
  bool is_toggle = false;
  Place place;
};
std::vector<FlatSetting> read_flat_file(const std::string& name, std::vector<Complaint>& complaints);

// A file with one kind of tables, of other commands: settings, and [[TABLE]] with settings.
struct TableSetting {
  std::string key;
  Setting::Kind kind = Setting::Kind::text;
  Setting::Words words;  // As in Value. A number is a text.
  Place place;
};
struct TablesFile {
  struct Table {
    Place place;
    std::vector<TableSetting> settings;
  };
  std::vector<TableSetting> settings;
  std::vector<Table> tables;
};
// Adds all errors to `complaints`; then do not use the result. `table`: the name of its tables.
TablesFile parse_tables_file(const std::string& name, std::string text, std::string_view table,
                             std::vector<Complaint>& complaints);
TablesFile read_tables_file(const std::string& name, std::string_view table, std::vector<Complaint>& complaints);

}  // namespace once::cli
