#include "settings/proxy_file.hpp"
#include "output/nearest.hpp"
#include "platform/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

// toml++ 3.3 has assertions that bad input breaks ("[1, }"), and is undefined there with NDEBUG. Here it is an error.
namespace {
struct BrokenAssertion {};
[[noreturn]] void break_off() { throw BrokenAssertion(); }
}  // namespace
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : break_off())
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace once::cli {

namespace {

// The parser recurses for each bracket and each dot, and does not limit the dots. Our files have two of each.
constexpr std::size_t most_bytes = std::size_t{1024} * 1024;
constexpr int most_depth = 16;

// Skips quoted text and comments, where brackets and dots mean nothing.
class Outline {
 public:
  explicit Outline(std::string& text) : text_(text) {}

  struct Fault {
    unsigned line = 0;
    std::string text;
  };
  // toml++ 3.3 tests letters from U+00A1 on for blanks, which is undefined for most of them. Where it does so depends
  // on earlier errors, so there must be none: they are overwritten in comments, and refused elsewhere.
  std::optional<Fault> fault() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_quoted(c);
        continue;
      }
      if (c == '#') {
        for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
          if (is_letter(text_[at_])) text_[at_] = '?';
        }
        continue;
      }
      ++at_;
      if (c == '\n') {
        ++line_;
        dots_ = 0;
      }
      if (c == '.') ++dots_;
      if (c == '[' || c == '{') ++open_;
      if ((c == ']' || c == '}') && open_ > 0) --open_;
      if (open_ > most_depth || dots_ > most_depth) {
        return Fault{line_, "more than " + std::to_string(most_depth) + " nested brackets or dots"};
      }
    }
    if (const auto letter = std::ranges::find_if(text_, is_letter); letter != text_.end()) {
      const auto line = static_cast<unsigned>(std::count(text_.begin(), letter, '\n')) + 1;
      return Fault{line, "a character that is not ASCII: write it in quotes, as in \"\\u00E9\""};
    }
    return std::nullopt;
  }

 private:
  static bool is_letter(char c) noexcept { return static_cast<unsigned char>(c) >= 0x80; }

  void skip_quoted(char quote) {
    const std::string thrice(3, quote);
    const bool is_long = text_.compare(at_, 3, thrice) == 0;
    at_ += is_long ? 3 : 1;
    while (at_ < text_.size()) {
      if (is_long ? text_.compare(at_, 3, thrice) == 0 : text_[at_] == quote) {
        at_ += is_long ? 3 : 1;
        return;
      }
      // A line end closes it too. The parser reports an error there, which must not hide the rest from us.
      if (text_[at_] == '\n' && !is_long) return;
      if (text_[at_] == '\\' && quote == '"') ++at_;
      if (at_ < text_.size() && text_[at_] == '\n') ++line_;
      ++at_;
    }
  }

  std::string& text_;
  std::size_t at_ = 0;
  unsigned line_ = 1;
  int open_ = 0;
  int dots_ = 0;
};

std::string_view type_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number with a point";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or a time";
  }
}

// Text; whole numbers too, for sizes and counts.
std::optional<std::string> word_of(const toml::node& node) {
  if (const auto* const text = node.as_string()) return text->get();
  if (const auto* const number = node.as_integer()) return std::to_string(number->get());
  return std::nullopt;
}

class Reader {
 public:
  Reader(const std::string& name, std::vector<Complaint>& complaints) : name_(name), complaints_(complaints) {}

  ProxyFile read(const toml::table& table) {
    ProxyFile file;
    std::vector<std::string> known;
    for (const Setting& setting : proxy_settings()) known.push_back(setting.key());
    known.emplace_back("route");
    for (const auto& [key, node] : table) {
      if (key.str() == "route") {
        read_routes(node, file.routes);
        continue;
      }
      const Setting* const setting = find_setting(key.str());
      if (setting == nullptr) {
        complain_unknown(key, known);
      } else {
        read_value(*setting, node, file.settings);
      }
    }
    return file;
  }

 private:
  void read_routes(const toml::node& node, std::vector<GivenRoute>& routes) {
    const auto* const array = node.as_array();
    for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
      if (const auto* const table = array->get(i)->as_table()) read_route(*table, routes);
    }
    if (array != nullptr && std::ranges::all_of(*array, [](const toml::node& each) { return each.is_table(); })) return;
    complain(node.source(),
             "routes are tables, each under [[route]]; the setting of the flag --route is called `operation` here");
  }

  void read_route(const toml::table& table, std::vector<GivenRoute>& routes) {
    GivenRoute route{.path = {}, .place = place_of(table.source()), .rules = {}};
    std::vector<std::string> known{"path"};
    for (const Setting& setting : proxy_settings()) {
      if (setting.is_rule) known.push_back(setting.key());
    }
    for (const auto& [key, node] : table) {
      if (key.str() == "path") {
        if (const auto* const path = node.as_string()) {
          route.path = path->get();
          route.place = place_of(node.source());
        } else {
          complain(node.source(), "path must be a string, as in \"/v1/*\", not " + std::string(type_of(node)));
        }
        continue;
      }
      const Setting* const setting = find_setting(key.str());
      if (setting == nullptr) {
        complain_unknown(key, known);
      } else if (!setting->is_rule) {
        complain(key.source(), setting->key() + " is a setting of the whole proxy, not of a route");
      } else {
        read_value(*setting, node, route.rules);
      }
    }
    if (!table.contains("path")) {
      complain(table.source(), "a route needs a path, as in path = \"/v1/*\"");
    } else if (table.get("path")->is_string()) {
      routes.push_back(std::move(route));
    }
  }

  [[nodiscard]] Place place_of(const toml::source_region& region) const {
    return {.file = name_, .line = region.begin.line, .column = region.begin.column};
  }

  void complain(const toml::source_region& region, std::string text) {
    complaints_.push_back({.place = place_of(region), .text = std::move(text)});
  }

  static const Setting* find_setting(std::string_view key) {
    const auto& settings = proxy_settings();
    const auto found = std::ranges::find_if(settings, [&](const Setting& setting) { return setting.key() == key; });
    return found == settings.end() ? nullptr : &*found;
  }

  void complain_unknown(const toml::key& key, const std::vector<std::string>& known) {
    const std::string near = nearest(key.str(), known);
    complain(key.source(), "unknown setting '" + std::string(key.str()) + "'" +
                               (near.empty() ? std::string() : ": did you mean '" + near + "'?"));
  }

  void expected(const Setting& setting, const toml::node& node, const std::string& what) {
    complain(node.source(), setting.key() + " must be " + what + ", not " + std::string(type_of(node)));
  }

  void read_value(const Setting& setting, const toml::node& node, Given& given) {
    Setting::Words words;
    switch (setting.kind) {
      case Setting::Kind::toggle: {
        const auto* const on = node.as_boolean();
        if (on == nullptr) return expected(setting, node, "true or false");
        words = {on->get() ? "true" : "false"};
        break;
      }
      case Setting::Kind::text: {
        auto word = word_of(node);
        if (!word) {
          const std::string& usual = setting.usual;
          return expected(setting, node, "a string" + (usual.empty() ? usual : ", as in \"" + usual + "\""));
        }
        words.push_back(std::move(*word));
        break;
      }
      case Setting::Kind::list: {
        if (auto only = word_of(node)) {
          words.push_back(std::move(*only));
          break;
        }
        const auto* const array = node.as_array();
        if (array == nullptr) return expected(setting, node, "an array of strings");
        for (const toml::node& element : *array) {
          auto word = word_of(element);
          if (!word) return expected(setting, element, "an array of strings");
          words.push_back(std::move(*word));
        }
        break;
      }
    }
    given[setting.name] = {.words = std::move(words), .place = place_of(node.source())};
  }

  const std::string& name_;
  std::vector<Complaint>& complaints_;
};

}  // namespace

namespace {

// Calls `read` with the table. False: it is not TOML, and why is among the complaints.
template <class Read>
bool parse(const std::string& name, std::string text, std::vector<Complaint>& complaints, Read&& read) {
  if (text.size() > most_bytes) {
    complaints.push_back({.place = {.file = name}, .text = "the file is larger than 1 MiB, the limit for settings"});
    return false;
  }
  if (const auto fault = Outline(text).fault()) {
    complaints.push_back({.place = {.file = name, .line = fault->line, .column = 1}, .text = fault->text});
    return false;
  }
  try {
    const toml::parse_result result = toml::parse(text, name);
    if (result) {
      read(result.table());
      return true;
    }
    const toml::source_position at = result.error().source().begin;
    complaints.push_back({.place = {.file = name, .line = at.line, .column = at.column},
                          .text = std::string(result.error().description())});
  } catch (const BrokenAssertion&) {
    complaints.push_back(
        {.place = {.file = name}, .text = "the file is not TOML: a bracket or a comma stands in place of a value"});
  }
  return false;
}

// False: it cannot be read, and why is among the complaints.
bool read_settings(const std::string& name, std::string& text, std::vector<Complaint>& complaints) {
  const int error = read_file(name, most_bytes, text);
  if (error == 0 || error == EFBIG) return true;
  complaints.push_back({.place = {.file = name}, .text = "cannot be read: " + std::system_category().message(error)});
  return false;
}

}  // namespace

ProxyFile parse_proxy_file(const std::string& name, std::string text, std::vector<Complaint>& complaints) {
  ProxyFile file;
  const bool is_toml = parse(name, std::move(text), complaints,
                             [&](const toml::table& table) { file = Reader(name, complaints).read(table); });
  return is_toml ? std::move(file) : ProxyFile{.read = false, .settings = {}, .routes = {}};
}

ProxyFile read_proxy_file(const std::string& name, std::vector<Complaint>& complaints) {
  std::string text;
  if (!read_settings(name, text, complaints)) return {.read = false, .settings = {}, .routes = {}};
  return parse_proxy_file(name, std::move(text), complaints);
}

std::vector<FlatSetting> read_flat_file(const std::string& name, std::vector<Complaint>& complaints) {
  std::vector<FlatSetting> settings;
  std::string text;
  if (!read_settings(name, text, complaints)) return settings;
  parse(name, std::move(text), complaints, [&](const toml::table& table) {
    for (const auto& [key, node] : table) {
      const auto& at = node.source().begin;
      const Place place{.file = name, .line = at.line, .column = at.column};
      if (const auto* const string = node.as_string()) {
        settings.push_back({.key = std::string(key.str()), .text = string->get(), .is_toggle = false, .place = place});
      } else if (const auto* const toggle = node.as_boolean()) {
        settings.push_back({.key = std::string(key.str()),
                            .text = toggle->get() ? "true" : "false",
                            .is_toggle = true,
                            .place = place});
      } else {
        complaints.push_back({.place = place,
                              .text = std::string(key.str()) + " must be a string, or true or false, not " +
                                      std::string(type_of(node))});
      }
    }
  });
  return settings;
}

namespace {

Place place_in(const std::string& name, const toml::node& node) {
  return {.file = name, .line = node.source().begin.line, .column = node.source().begin.column};
}

// Empty: it is no such value, which is among the complaints.
std::optional<TableSetting> table_setting(const std::string& name, std::string_view key, const toml::node& node,
                                          std::vector<Complaint>& complaints) {
  TableSetting setting{
      .key = std::string(key), .kind = Setting::Kind::text, .words = {}, .place = place_in(name, node)};
  if (const auto* const toggle = node.as_boolean()) {
    setting.kind = Setting::Kind::toggle;
    setting.words = {toggle->get() ? "true" : "false"};
    return setting;
  }
  if (auto word = word_of(node)) {
    setting.words = {std::move(*word)};
    return setting;
  }
  const auto* const array = node.as_array();
  setting.kind = Setting::Kind::list;
  bool is_list = array != nullptr;
  for (std::size_t i = 0; is_list && i < array->size(); ++i) {
    auto word = word_of(*array->get(i));
    is_list = word.has_value();
    if (word) setting.words.push_back(std::move(*word));
  }
  if (is_list) return setting;
  complaints.push_back({.place = setting.place,
                        .text = setting.key + " must be a string, true or false, or an array of strings, not " +
                                std::string(type_of(node))});
  return std::nullopt;
}

}  // namespace

TablesFile parse_tables_file(const std::string& name, std::string text, std::string_view table,
                             std::vector<Complaint>& complaints) {
  TablesFile file;
  parse(name, std::move(text), complaints, [&](const toml::table& whole) {
    for (const auto& [key, node] : whole) {
      if (key.str() != table) {
        if (auto setting = table_setting(name, key.str(), node, complaints))
          file.settings.push_back(std::move(*setting));
        continue;
      }
      const auto* const array = node.as_array();
      for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
        const auto* const one = array->get(i)->as_table();
        if (one == nullptr) continue;
        TablesFile::Table read{.place = place_in(name, *one), .settings = {}};
        for (const auto& [inner, value] : *one) {
          if (auto setting = table_setting(name, inner.str(), value, complaints))
            read.settings.push_back(std::move(*setting));
        }
        file.tables.push_back(std::move(read));
      }
      if (array != nullptr && std::ranges::all_of(*array, [](const toml::node& each) { return each.is_table(); }))
        continue;
      complaints.push_back(
          {.place = place_in(name, node),
           .text = std::string(table) + " is written as tables, each under [[" + std::string(table) + "]]"});
    }
  });
  return file;
}

TablesFile read_tables_file(const std::string& name, std::string_view table, std::vector<Complaint>& complaints) {
  std::string text;
  if (!read_settings(name, text, complaints)) return {};
  return parse_tables_file(name, std::move(text), table, complaints);
}

}  // namespace once::cli
