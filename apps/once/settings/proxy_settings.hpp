// The settings of `once proxy`: one table, from which its flags come, and whatever else names them.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/rules.hpp>
#include <once/frontends/jwt.hpp>
#include <once/frontends/proxy.hpp>
#include <once/time.hpp>

#include "settings/access.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace once::cli {

// What they all come to.
struct ProxySettings {
  StoreOptions store;
  proxy::ProxyOptions proxy;
  http::Routes rules{http::Options{.principal = http::Principal::unsaid()}};  // With policies.
  http::JwtOptions jwt;       // With a file: what `rules.otherwise` has as its principal.
  std::string upstream_urls;  // As they were given.
  std::string access_log;
  std::string accepted_key_change;  // KeyChange::word
  std::string admin_token_file;
  std::string metrics_token_file;
  Millis drain{0};
};

struct Setting {
  enum class Kind : std::uint8_t {
    text,
    list,    // Of texts.
    toggle,  // "true" or "false", which is the usual one.
  };
  using Words = std::vector<std::string>;  // One, if it is no list.

  std::string name;  // "idle-timeout": the flag is --idle-timeout, and so is the key in a file.
  Kind kind = Kind::text;
  std::string usual;  // Of a list: its words with blanks between them. Empty: nothing is done when it is not given.
  std::string help;
  // Throws Exception(misuse) that begins with `what`, as the user knows the setting.
  std::function<void(ProxySettings&, const Words&, const std::string& what)> apply;
  bool required = false;
  bool is_rule = false;       // Of http::Options, so that it may differ from route to route.
  Words choices = {};         // Empty: any text.
  bool is_flag = true;        // false: only a file has it.
  bool can_change = false;    // Without a restart. Rules can.
  bool in_pair = false;       // Only right together with another one.
  bool is_principal = false;  // One of those of which exactly one counts: it takes the place of others from outside.
  char separator = 0;         // Of a list that may be written as one flag. 0: none.
  std::string file_key = {};  // In a file, if it is not `name`.

  [[nodiscard]] const std::string& key() const noexcept { return file_key.empty() ? name : file_key; }
};

// In the order in which they are shown and applied.
const std::vector<Setting>& proxy_settings();

struct Place {
  std::string file;     // Or variable. Empty: the command line.
  unsigned line = 0;    // From 1. 0: the file as a whole.
  unsigned column = 0;  // From 1, in characters.

  friend auto operator<=>(const Place&, const Place&) = default;
};

struct Complaint {
  Place place;
  std::string text;  // What is wrong, and what was expected.

  friend bool operator==(const Complaint&, const Complaint&) = default;
};
std::string to_string(const Complaint& complaint);  // "proxy.toml:3:9: lease must be ..."

// What settings were given, by their names.
struct Value {
  Setting::Words words;
  Place place = {};
};
using Given = std::map<std::string, Value, std::less<>>;

// What ONCE_LEASE, ONCE_RETENTION and ONCE_WAIT say; each is its Place::file.
Given given_by_environment();
// Those of them that count: "ONCE_LEASE=5m, ONCE_WAIT=5s".
std::string told_variables(const Given& given);

// Where both have a setting, what is in `above` counts. Where both say who a client is, only that.
Given merged(Given below, const Given& above);

// The words that count for a setting: what was given, else the usual ones. Null: none.
std::optional<Setting::Words> words_for(const Setting& setting, const Given& given);

// A [[route]] of a file: rules, over those that hold for all.
struct GivenRoute {
  std::string path;
  Place place;
  Given rules;
};

// All that is wrong goes to `complaints`; what it gives then must not be used.
ProxySettings settle(const Given& given, const std::vector<GivenRoute>& routes, std::vector<Complaint>& complaints);

// Settings that only a restart would change from `before` to `after`, by their names.
std::vector<std::string> needing_restart(const Given& before, const Given& after);

// The flags. Lives as long as the parser.
class ProxyFlags {
 public:
  explicit ProxyFlags(CLI::App& command);
  [[nodiscard]] Given given() const;  // Those that stood on the command line.

 private:
  struct Flag {
    const Setting* setting = nullptr;
    CLI::Option* option = nullptr;
    std::string text;
    std::vector<std::string> list;
    bool on = false;
  };
  std::deque<Flag> flags_;  // The parser has pointers into them.
};

}  // namespace once::cli
