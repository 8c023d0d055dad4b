// The settings of `once proxy`: one table, from which flags, file keys and help are made.
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

#include <once/engine/log.hpp>
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

// The combined settings.
struct ProxySettings {
  StoreOptions store;
  bool unshared_store = false;
  proxy::ProxyOptions proxy;
  http::Routes rules{http::Options{.principal = http::Principal::unsaid()}};  // With policies.
  http::JwtOptions jwt;       // With a key file: the principal of `rules.otherwise`.
  std::string upstream_urls;  // As given.
  std::string access_log;
  std::optional<LogFormat> log;  // Empty: none.
  LogLevel log_level = LogLevel::info;
  std::string accepted_key_change;  // KeyChange::word
  std::string admin_token_file;
  std::string audit_log;       // Empty: none.
  std::string console_origin;  // See console_host().
  std::string metrics_token_file;
  Millis stats_interval{0};  // 0: the store is not looked at.
  Millis sweep_interval{0};  // 0: this removes no expired records.
  Millis watch_interval{0};  // 0: files of certificates, tokens and keys are read again at SIGHUP only.
  Millis stop_within{0};
};

struct Setting {
  enum class Kind : std::uint8_t {
    text,
    list,    // Of texts.
    toggle,  // "true" or "false", the default.
  };
  using Words = std::vector<std::string>;  // One word, unless it is a list.

  std::string name;  // "idle-timeout": the flag is --idle-timeout, and so is the key in a file.
  Kind kind = Kind::text;
  std::string usual;  // The default; for a list, its words with blanks between them. Empty: no default.
  std::string help;
  // Throws Exception(misuse), which begins with `what`, the user's name of the setting.
  std::function<void(ProxySettings&, const Words&, const std::string& what)> apply;
  bool required = false;
  bool is_rule = false;       // Of http::Options, so routes may have different values.
  Words choices = {};         // Empty: any text.
  bool is_flag = true;        // false: only a file has it.
  bool can_change = false;    // Can change without a restart. Rules can.
  bool in_pair = false;       // Valid only together with another one.
  bool is_principal = false;  // One of the settings of which exactly one is used: it replaces inherited ones.
  bool is_key_place = false;  // The same for these.
  bool adds = false;          // A list: what overrides it adds to it.
  char separator = 0;         // Of a list that may be written as one flag. 0: none.
  std::string file_key = {};  // In a file, if it is not `name`.

  [[nodiscard]] const std::string& key() const noexcept { return file_key.empty() ? name : file_key; }
};

// In the order of display and application.
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

// The given settings, by name.
struct Value {
  Setting::Words words;
  Place place = {};
};
using Given = std::map<std::string, Value, std::less<>>;

// The settings of ONCE_LEASE, ONCE_RETENTION, ONCE_FAILURE_RETENTION, ONCE_EXPECT and ONCE_WAIT; Place::file is the
// variable.
Given given_by_environment();
// Those that are used: "ONCE_LEASE=5m, ONCE_WAIT=5s".
std::string told_variables(const Given& given);

// `above` overrides `below`. If both set a principal, or the key's place, only that of `above` is used.
Given merged(Given below, const Given& above);

// With the settings that a preset stands for, unless they are given: of a file with its flags, or of a route.
Given with_preset(Given given);

// The words of a setting: given, otherwise the default. Empty: none.
std::optional<Setting::Words> words_for(const Setting& setting, const Given& given);

// A [[route]] of a file: rules that override the common ones.
struct GivenRoute {
  std::string path;
  Place place;
  Given rules;
};

// Adds all errors to `complaints`; then do not use the result.
ProxySettings settle(const Given& given, const std::vector<GivenRoute>& routes, std::vector<Complaint>& complaints);

// The names of settings that differ and need a restart.
std::vector<std::string> needing_restart(const Given& before, const Given& after);
// `after`, but with what needs a restart as `before` has it: what is in force after a reload.
Given in_force(const Given& before, Given after);

// The flags. Lives as long as the parser.
class ProxyFlags {
 public:
  explicit ProxyFlags(CLI::App& command);
  [[nodiscard]] Given given() const;  // The flags of the command line.

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
