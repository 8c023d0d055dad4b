#include "settings/key_change.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "core/digest.hpp"
#include "output/text.hpp"
#include "text/ascii.hpp"

namespace once::cli {

namespace {

// A segment that no route has as its own.
constexpr std::string_view any_segment = "~any~";
constexpr std::size_t word_digits = 12;

struct Pattern {
  std::vector<std::string> segments;  // Empty: any one.
  bool has_tail = false;
};

Pattern pattern_of(std::string_view path) {
  Pattern pattern;
  for (std::string& segment : split(path, '/')) {
    if (segment.empty()) continue;
    if (segment == "*") {
      pattern.has_tail = true;
    } else {
      pattern.segments.push_back(segment.front() == '{' ? std::string() : text::lower(segment));
    }
  }
  return pattern;
}

std::vector<Pattern> patterns_of(const http::Routes& rules) {
  std::vector<Pattern> patterns{{.segments = {}, .has_tail = true}};  // All other paths.
  for (const http::Route& route : rules.routes) patterns.push_back(pattern_of(route.path));
  return patterns;
}

// A path that both match, if any: it has one rule before and another after.
std::optional<std::string> common_path(const Pattern& a, const Pattern& b) {
  const Pattern& longer = a.segments.size() >= b.segments.size() ? a : b;
  const Pattern& shorter = &longer == &a ? b : a;
  if (longer.segments.size() != shorter.segments.size() && !shorter.has_tail) return std::nullopt;
  std::string path;
  for (std::size_t i = 0; i < longer.segments.size(); ++i) {
    std::string segment = longer.segments[i];
    if (i < shorter.segments.size() && !shorter.segments[i].empty()) {
      if (!segment.empty() && segment != shorter.segments[i]) return std::nullopt;
      segment = shorter.segments[i];
    }
    path += '/';
    path += segment.empty() ? any_segment : segment;
  }
  return path;
}

const http::Options& options_of(const http::Routes& rules, std::size_t index) {
  return index < rules.routes.size() ? rules.routes[index].options : rules.otherwise;
}

bool protects(const http::Options& options, const std::string& method) {
  return options.protect && std::ranges::find(options.methods, method) != options.methods.end();
}

std::string key_place(const http::Options& options) {
  if (!options.key_field.empty()) return "field " + options.key_field;
  if (!options.key_query.empty()) return "query " + options.key_query;
  if (!options.key_path.empty()) return "path " + options.key_path;
  if (!options.key_form.empty()) return "form field " + options.key_form;
  return "header " + text::lower(options.key_header);
}

// The parts of a key, by their settings' names.
std::vector<std::pair<std::string, std::string>> parts_of(const http::Options& options) {
  const auto quoted = [](const std::string& text, const char* none) { return text.empty() ? none : "'" + text + "'"; };
  return {{"scope", quoted(options.scope, "empty")},
          {"operation", quoted(options.route, "each path's own")},
          {"who a client is", options.principal.what()},
          {"the key's place", key_place(options)}};
}

class Comparison {
 public:
  Comparison(const http::Routes& before, const http::Routes& after)
      : before_(before), after_(after), old_router_(before), new_router_(after) {
    add_methods(before.otherwise);
    for (const http::Route& route : before.routes) add_methods(route.options);
  }

  void look_at(const std::string& path) {
    for (const std::string& method : methods_) {
      const auto old_index = old_router_.find(method, path);
      const auto new_index = new_router_.find(method, path);
      if (!old_index || !new_index) continue;  // No rule applied there.
      const http::Options& was = options_of(before_, *old_index);
      if (!protects(was, method)) continue;
      const std::string where =
          *old_index < before_.routes.size() ? "route " + before_.routes[*old_index].path : "paths without a route";
      const http::Options& will_be = options_of(after_, *new_index);
      if (!protects(will_be, method)) {
        lines_.insert(where + ": " + method + " was protected, and would not be");
        continue;
      }
      const auto old_parts = parts_of(was);
      const auto new_parts = parts_of(will_be);
      for (std::size_t i = 0; i < old_parts.size(); ++i) {
        if (old_parts[i] == new_parts[i]) continue;
        lines_.insert(where + ": " + old_parts[i].first + " was " + old_parts[i].second + ", and would be " +
                      new_parts[i].second);
      }
    }
  }

  [[nodiscard]] const std::set<std::string>& lines() const noexcept { return lines_; }

 private:
  void add_methods(const http::Options& options) { methods_.insert(options.methods.begin(), options.methods.end()); }

  const http::Routes& before_;
  const http::Routes& after_;
  const http::Router old_router_;
  const http::Router new_router_;
  std::set<std::string> methods_;
  std::set<std::string> lines_;
};

}  // namespace

KeyChange key_change(const http::Routes& before, const http::Routes& after) {
  Comparison comparison(before, after);
  const std::vector<Pattern> old_patterns = patterns_of(before);
  const std::vector<Pattern> new_patterns = patterns_of(after);
  std::set<std::string> paths;
  for (const Pattern& old_pattern : old_patterns) {
    for (const Pattern& new_pattern : new_patterns) {
      const auto path = common_path(old_pattern, new_pattern);
      if (!path) continue;
      paths.insert(path->empty() ? "/" : *path);
      if (old_pattern.has_tail && new_pattern.has_tail) paths.insert(*path + '/' + std::string(any_segment));
    }
  }
  for (const std::string& path : paths) comparison.look_at(path);
  KeyChange change{.lines = {comparison.lines().begin(), comparison.lines().end()}, .word = {}};
  if (change.lines.empty()) return change;
  std::string text;
  for (const std::string& line : change.lines) text += line + '\n';
  change.word = to_hex(sha256(text)).substr(0, word_digits);
  return change;
}

}  // namespace once::cli
