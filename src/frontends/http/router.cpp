#include <once/frontends/http/router.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include <once/error.hpp>

#include "frontends/http/headers.hpp"
#include "frontends/http/readings.hpp"
#include "frontends/http/target.hpp"
#include "text/ascii.hpp"

namespace once::http {

namespace {

constexpr std::size_t most_routes = 1'000;  // Every pair is compared.
constexpr std::size_t most_path_bytes = 1024;
constexpr char foreign = '\x80';  // Stands for non-ASCII characters in a segment.

struct Pattern {
  std::vector<std::string> segments;  // Lower case. Empty: any.
  bool has_tail = false;              // "/*"
};

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> segments;
  for (std::size_t at = 1; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    segments.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return segments;  // Without the empty segment after a final slash.
}

// `why` gets the fault of the path.
std::optional<Pattern> pattern_of(std::string_view path, std::string& why) {
  const auto bad = [&](const std::string& text) {
    why = "the path '" + std::string(path) + "' " + text;
    return std::nullopt;
  };
  if (path.size() > most_path_bytes) {
    why = "a path must be at most 1024 bytes long";
    return std::nullopt;
  }
  if (!path.starts_with('/')) return bad("must begin with a slash, as in /charges or /v1/*");
  Pattern pattern;
  const auto segments = split(path);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::string_view segment = segments[i];
    if (segment.empty()) return bad("has two slashes in a row");
    if (segment == "*") {
      if (i + 1 != segments.size()) return bad("has a * before its end: write {name} for one segment of any name");
      pattern.has_tail = true;
      break;
    }
    if (segment.starts_with('{') && segment.ends_with('}') && segment.size() > 2 &&
        std::ranges::all_of(segment.substr(1, segment.size() - 2),
                            [](char c) { return text::is_letter_or_digit(c) || c == '_' || c == '-'; })) {
      pattern.segments.emplace_back();
      continue;
    }
    constexpr std::string_view others = "-._~!$&'(),=:@";
    const auto strange = std::ranges::find_if(
        segment, [&](char c) { return !text::is_letter_or_digit(c) && others.find(c) == std::string_view::npos; });
    if (strange != segment.end()) {
      return bad("has a segment '" + std::string(segment) +
                 "', which is neither {name} nor * nor made of letters, digits and " + std::string(others));
    }
    if (segment.ends_with('.')) return bad("has a segment that ends with a dot, which some servers drop");
    pattern.segments.push_back(text::lower(segment));
  }
  return pattern;
}

// How the sets of paths of two patterns relate. Here "/*" needs at least one segment.
enum class Relation : std::uint8_t { apart, equal, nested, crossed };

Relation relation(const Pattern& a, const Pattern& b) {
  bool narrower = false;  // a is narrower than b in some segment.
  bool wider = false;
  const std::size_t common = std::min(a.segments.size(), b.segments.size());
  for (std::size_t i = 0; i < common; ++i) {
    const std::string& x = a.segments[i];
    const std::string& y = b.segments[i];
    if (x == y) continue;
    if (!x.empty() && !y.empty()) return Relation::apart;
    (y.empty() ? narrower : wider) = true;
  }
  if (a.segments.size() > common) {
    if (!b.has_tail) return Relation::apart;
    narrower = true;
  } else if (b.segments.size() > common) {
    if (!a.has_tail) return Relation::apart;
    wider = true;
  } else if (a.has_tail != b.has_tail) {
    return Relation::apart;
  }
  if (narrower && wider) return Relation::crossed;
  return narrower || wider ? Relation::nested : Relation::equal;
}

// A path that both match.
std::string common_path(const Pattern& a, const Pattern& b) {
  const Pattern& longer = a.segments.size() > b.segments.size() ? a : b;
  std::string path;
  for (std::size_t i = 0; i < longer.segments.size(); ++i) {
    const auto at = [&](const Pattern& pattern) { return i < pattern.segments.size() ? pattern.segments[i] : ""; };
    path += '/' + (!at(a).empty() ? at(a) : !at(b).empty() ? at(b) : "x");
  }
  return longer.has_tail ? path + "/x" : path;
}

// "/v1/*" is "/v1" and all paths below it.
std::optional<std::string> crossing(const Pattern& a, const Pattern& b) {
  const auto halves = [](const Pattern& whole) {
    std::vector<Pattern> parts{{.segments = whole.segments, .has_tail = false}};
    if (whole.has_tail) parts.push_back(whole);
    return parts;
  };
  for (const Pattern& x : halves(a)) {
    for (const Pattern& y : halves(b)) {
      if (relation(x, y) == Relation::crossed) return common_path(x, y);
    }
  }
  return std::nullopt;
}

bool shares_a_method(const Options& a, const Options& b) {
  return !a.protect || !b.protect ||
         std::ranges::any_of(a.methods, [&](const std::string& method) { return names_contain(b.methods, method); });
}

// Whether `segment` may be `literal`, if each run of foreign characters in it may be anything.
bool may_be(std::string_view segment, std::string_view literal) {
  const auto mark = segment.find(foreign);
  if (mark == std::string_view::npos) return segment == literal;
  if (!literal.starts_with(segment.substr(0, mark))) return false;
  literal.remove_prefix(mark);
  segment.remove_prefix(mark + 1);
  // Finds the text between two runs at its first place, and the last text at the end.
  for (auto next = segment.find(foreign); next != std::string_view::npos; next = segment.find(foreign)) {
    const auto at = literal.find(segment.substr(0, next));
    if (at == std::string_view::npos) return false;
    literal.remove_prefix(at + next);
    segment.remove_prefix(next + 1);
  }
  return literal.ends_with(segment);
}

// The form for look-ups.
std::string folded(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x80) {
      out += text::lower(c);
    } else if (!out.ends_with(foreign)) {
      out += foreign;
    }
  }
  return out;
}

}  // namespace

class Router::Impl {
 public:
  explicit Impl(Routes routes) : routes_(std::move(routes)) {
    if (const auto all = faults(routes_.routes); !all.empty()) throw Exception(ErrorKind::misuse, all.front().text);
    std::vector<const Options*> kinds;
    const auto kind_of = [&](const Options& options) {
      const auto found = std::ranges::find_if(kinds, [&](const Options* other) { return *other == options; });
      if (found != kinds.end()) return static_cast<std::size_t>(found - kinds.begin());
      kinds.push_back(&options);
      return kinds.size() - 1;
    };
    std::string ignored;
    for (std::size_t i = 0; i < routes_.routes.size(); ++i) {
      const Route& route = routes_.routes[i];
      add(*pattern_of(route.path, ignored), i);
      kinds_.push_back(kind_of(route.options));
    }
    kinds_.push_back(kind_of(routes_.otherwise));
    is_uniform_ = kinds.size() == 1;
  }

  [[nodiscard]] std::optional<std::size_t> find(std::string_view method, std::string_view target) const {
    if (routes_.routes.empty()) return 0;  // The same rules for all.
    const std::string_view path = path_of(target);
    // "*" is the whole server. Anything else without a slash is not a path.
    if (!path.starts_with('/')) return path == "*" || is_uniform_ ? std::optional(routes_.routes.size()) : std::nullopt;
    const std::string written = folded(path);
    Search search{.impl = *this, .method = method, .found = {}};
    search.look_up(written);
    const std::size_t first = search.found.front();
    if (is_uniform_) return first;
    // Some servers know no fragments: for them it is part of the path.
    const bool has_fragment = target.find('#') != std::string_view::npos;
    if (search.found.size() == 1 && !has_fragment && (has_one_reading(path) || is_literal(first, written)))
      return first;
    std::optional<std::vector<std::string>> readings;
    if (!has_fragment) readings = readings_of(path);
    if (!readings) {
      search.found.resize(1);
      for (std::size_t i = 0; i < kinds_.size(); ++i) search.found.push_back(i);
    } else {
      for (const std::string& reading : *readings) search.look_up(folded(reading));
    }
    const auto kind = effective(first, method);
    const bool same = std::ranges::all_of(search.found, [&](std::size_t i) { return effective(i, method) == kind; });
    return same ? std::optional(first) : std::nullopt;
  }

  [[nodiscard]] const Routes& routes() const noexcept { return routes_; }

 private:
  struct Node {
    std::map<std::string, std::unique_ptr<Node>, std::less<>> literals;
    std::unique_ptr<Node> any;
    std::vector<std::size_t> here;
    std::vector<std::size_t> below;  // "/*"
  };

  struct Search {
    const Impl& impl;
    std::string_view method;
    std::vector<std::size_t> found;

    // Adds the routes that the path may match, the most specific first if that is certain.
    void look_up(std::string_view path) {
      const auto segments = split(path);
      if (!descend(impl.root_, segments, 0)) add({impl.routes_.routes.size()});
    }

    // True: a route matches for every meaning of the foreign characters.
    bool descend(const Node& node, const std::vector<std::string_view>& segments, std::size_t at) {
      if (at == segments.size() && !node.here.empty()) {
        add(node.here);
        return true;
      }
      if (at < segments.size()) {
        const std::string_view segment = segments[at];
        if (segment.find(foreign) == std::string_view::npos) {
          const auto literal = node.literals.find(segment);
          if (literal != node.literals.end() && descend(*literal->second, segments, at + 1)) return true;
        } else {
          for (const auto& [literal, child] : node.literals) {
            if (may_be(segment, literal)) descend(*child, segments, at + 1);
          }
        }
        if (node.any && !segment.empty() && descend(*node.any, segments, at + 1)) return true;
      }
      if (node.below.empty()) return false;
      add(node.below);
      return true;
    }

    // Of several routes with one path, adds the one with the method. If none has it, the request passes through by any
    // of them.
    void add(const std::vector<std::size_t>& routes) {
      const auto own = std::ranges::find_if(routes, [&](std::size_t i) { return !impl.passes(i, method); });
      const std::size_t index = own == routes.end() ? routes.front() : *own;
      if (std::ranges::find(found, index) == found.end()) found.push_back(index);
    }
  };

  void add(const Pattern& pattern, std::size_t index) {
    Node* node = &root_;
    for (const std::string& segment : pattern.segments) {
      std::unique_ptr<Node>& next = segment.empty() ? node->any : node->literals[segment];
      if (!next) next = std::make_unique<Node>();
      node = next.get();
    }
    (pattern.has_tail ? node->below : node->here).push_back(index);
  }

  [[nodiscard]] const Options& options(std::size_t index) const {
    return index < routes_.routes.size() ? routes_.routes[index].options : routes_.otherwise;
  }

  [[nodiscard]] bool passes(std::size_t index, std::string_view method) const {
    const Options& own = options(index);
    return !own.protect || !names_contain(own.methods, method);  // Rules refuses methods that differ only in case.
  }

  // Equal for rules that treat a request with this method in the same way.
  [[nodiscard]] std::size_t effective(std::size_t index, std::string_view method) const {
    return passes(index, method) ? kinds_.size() : kinds_[index];
  }

  // If a pattern contains the path literally, its meaning is certain.
  [[nodiscard]] bool is_literal(std::size_t index, const std::string& written) const {
    if (index == routes_.routes.size()) return false;
    const std::string& path = routes_.routes[index].path;
    return path.find_first_of("{*") == std::string::npos && folded(path) == written;
  }

  Routes routes_;
  std::vector<std::size_t> kinds_;  // By index: equal for equal options.
  bool is_uniform_ = false;
  Node root_;
};

Router::Router(Routes routes) : impl_(std::make_unique<const Impl>(std::move(routes))) {}
Router::Router(Router&&) noexcept = default;
Router& Router::operator=(Router&&) noexcept = default;
Router::~Router() = default;

std::optional<std::size_t> Router::find(std::string_view method, std::string_view target) const {
  return impl_->find(method, target);
}

const Routes& Router::routes() const noexcept { return impl_->routes(); }

std::vector<Router::Fault> Router::faults(const std::vector<Route>& routes) {
  std::vector<Fault> found;
  if (routes.size() > most_routes) return {{most_routes, "there are more than 1000 routes"}};
  std::vector<std::pair<std::size_t, Pattern>> patterns;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    std::string why;
    const auto pattern = pattern_of(routes[i].path, why);
    if (!pattern) {
      found.push_back({i, why});
      continue;
    }
    for (const auto& [other, its] : patterns) {
      const std::string& path = routes[other].path;
      if (const auto both = crossing(*pattern, its)) {
        found.push_back({i, "the paths '" + routes[i].path + "' and '" + path + "' both match " + *both +
                                ", and neither is more specific"});
      } else if (relation(*pattern, its) == Relation::equal &&
                 shares_a_method(routes[i].options, routes[other].options)) {
        found.push_back({i, "the path '" + routes[i].path + "' is the same as '" + path +
                                "', an earlier route: two routes with one path need different methods"});
      } else {
        continue;
      }
      break;
    }
    patterns.emplace_back(i, *pattern);
  }
  return found;
}

}  // namespace once::http
