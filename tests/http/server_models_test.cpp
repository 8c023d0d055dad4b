// No path gets a request other rules than what its server takes the path for: hostile paths against models of how
// servers, frameworks and proxies read them. The models know nothing of the router's own readings.
#include <once/frontends/http/router.hpp>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "../thread_sanitizer.hpp"

namespace once::http {
namespace server_models_test {

using Change = std::string (*)(std::string);

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string decode(std::string path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned byte = 0;
    if (path[i] == '%' && i + 2 < path.size() && isxdigit(path[i + 1]) != 0 && isxdigit(path[i + 2]) != 0) {
      byte = static_cast<unsigned>(std::stoul(path.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      byte = static_cast<unsigned char>(path[i]);
    }
    out += static_cast<char>(byte);
  }
  return out;
}
std::string decode_keeping_slashes(std::string path) {
  for (const char* const kept : {"%2f", "%2F", "%5c", "%5C"})
    path = replaced(path, kept, std::string("%25") + &kept[1]);
  return decode(path);
}
std::string join_slashes(std::string path) {
  while (path.find("//") != std::string::npos) path = replaced(path, "//", "/");
  return path;
}
std::vector<std::string> segments_of(const std::string& path) {
  std::vector<std::string> segments;
  std::istringstream in(path.substr(std::min<std::size_t>(1, path.size())));
  for (std::string segment; std::getline(in, segment, '/');) segments.push_back(segment);
  return segments;
}
std::string joined(const std::vector<std::string>& segments) {
  std::string path;
  for (const std::string& segment : segments) path += '/' + segment;
  return path.empty() ? "/" : path;
}
std::string resolve(std::string path) {
  std::vector<std::string> kept;
  for (const std::string& segment : segments_of(path)) {
    if (segment == "..") {
      if (!kept.empty()) kept.pop_back();
    } else if (segment != ".") {
      kept.push_back(segment);
    }
  }
  return joined(kept);
}
std::string drop_parameters(std::string path) {
  auto segments = segments_of(path);
  for (std::string& segment : segments) segment = segment.substr(0, segment.find(';'));
  return joined(segments);
}
std::string cut_at_semicolon(std::string path) { return path.substr(0, path.find(';')); }
std::string cut_at_query(std::string path) { return path.substr(0, path.find('?')); }
std::string cut_at_nul(std::string path) { return path.substr(0, path.find('\0')); }
std::string cut_at_fragment(std::string path) { return path.substr(0, path.find('#')); }
std::string turn_backslashes(std::string path) { return replaced(std::move(path), "\\", "/"); }
std::string trim(std::string path) {
  auto segments = segments_of(path);
  for (std::string& segment : segments) {
    if (segment == "." || segment == "..") continue;
    while (segment.ends_with('.') || segment.ends_with(' ')) segment.pop_back();
  }
  return joined(segments);
}
std::string plus_is_blank(std::string path) { return replaced(std::move(path), "+", " "); }
std::string drop_extension(std::string path) {
  const auto dot = path.rfind('.');
  const auto slash = path.rfind('/');
  return dot == std::string::npos || dot <= slash + 1 ? path : path.substr(0, dot);
}
// What NFKC and tables of what fits best do, of the characters below.
std::string fold_unicode(std::string path) {
  path = replaced(path, "\xef\xbc\x8f", "/");
  path = replaced(path, "\xef\xbc\x8e", ".");
  path = replaced(path, "\xe2\x80\xa5", "..");
  path = replaced(path, "\xc5\xbf", "s");
  return replaced(path, "\xef\xbd\x83", "c");
}
std::string overlong(std::string path) { return replaced(replaced(path, "\xc0\xaf", "/"), "\xc0\xae", "."); }

struct Model {
  const char* name;
  std::vector<Change> changes;
};
const std::vector<Model> models{
    {"as it came (Express, Node)", {}},
    {"decoded (WSGI)", {decode}},
    {"decoded, resolved (Go's ServeMux, nginx without merging)", {decode, resolve}},
    {"nginx", {decode, join_slashes, resolve}},
    {"nginx, then a second decoding behind it", {decode, join_slashes, resolve, decode, resolve}},
    {"Apache, AllowEncodedSlashes NoDecode", {decode_keeping_slashes, join_slashes, resolve}},
    {"Tomcat", {drop_parameters, decode, join_slashes, resolve}},
    {"Tomcat with encoded parameters", {decode, drop_parameters, join_slashes, resolve}},
    {"Jetty", {drop_parameters, resolve, decode}},
    {"Spring with suffixes", {cut_at_semicolon, decode, join_slashes, drop_extension}},
    {"Rails", {join_slashes, decode, drop_extension}},
    {"IIS", {decode, turn_backslashes, join_slashes, resolve, trim}},
    {"IIS, decoding twice", {decode, decode, turn_backslashes, resolve, trim}},
    {"trims before it resolves", {decode, turn_backslashes, trim, join_slashes, resolve, trim}},
    {"ASP.NET, plus is a blank", {plus_is_blank, decode, trim, resolve}},
    {"C strings", {decode, cut_at_nul, resolve}},
    {"rewrites into a URL", {decode, cut_at_query, cut_at_fragment, resolve}},
    {"fragments cut off", {cut_at_fragment, resolve}},
    {"Unicode normalised", {decode, fold_unicode, resolve}},
    {"lenient UTF-8", {decode, overlong, resolve}},
    {"all of it", {decode, decode, turn_backslashes, drop_parameters, join_slashes, resolve, trim, drop_extension}},
};

// What docs/proxy.md says of patterns, written down the slow way.
bool matches(const std::string& pattern, const std::string& reading) {
  const auto wanted = segments_of(pattern);
  const auto got = segments_of(reading);
  const bool tail = !wanted.empty() && wanted.back() == "*";
  const std::size_t fixed = wanted.size() - (tail ? 1 : 0);
  if (tail ? got.size() < fixed : got.size() != fixed) return false;
  for (std::size_t i = 0; i < fixed; ++i) {
    if (wanted[i].starts_with('{') ? got[i].empty() : strcasecmp(wanted[i].c_str(), got[i].c_str()) != 0) return false;
  }
  return true;
}

// From the most specific one on.
const std::vector<std::string> patterns{"/charges", "/orders/{id}/pay", "/public/health", "/public/*"};

std::size_t deserved(const std::string& reading) {
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (matches(patterns[i], reading)) return i;
  }
  return patterns.size();
}

const Router& router() {
  static const Router made{[] {
    std::vector<Route> routes;
    for (const std::string& path : patterns) {
      Route route{.path = path, .options = {.principal = Principal::shared()}};
      route.options.scope = path;
      routes.push_back(std::move(route));
    }
    return Routes(Options{.principal = Principal::shared()}, std::move(routes));
  }()};
  return made;
}

// True: it has got a route.
bool holds(const std::string& path) {
  const auto index = router().find("POST", path);
  if (!index) return false;
  for (const Model& model : models) {
    std::string reading = path.substr(0, path.find('?'));  // In this all agree.
    for (const Change change : model.changes) reading = change(std::move(reading));
    EXPECT_EQ(*index, deserved(reading)) << path << " is " << reading << " for: " << model.name;
  }
  return true;
}

TEST(ServerModels, WellKnownTricks) {
  for (const std::string from : {"/public/x/", "/", "/else/"}) {
    for (const std::string up : {"../",           "..;/",
                                 "%2e%2e/",       ".%2e/",
                                 "%2e./",         "..%2f",
                                 "..%5c",         "..\\",
                                 "%2e%2e%2f",     "..%252f",
                                 "%252e%252e/",   "..;a=b/",
                                 "..%3b/",        "./../",
                                 ".//../",        "../../",
                                 "..%00/",        "..%20/",
                                 ".. /",          "..%c0%af",
                                 "%c0%ae%c0%ae/", "%ef%bc%8e%ef%bc%8e/",
                                 "%e2%80%a5/",    "..%ef%bc%8f",
                                 "../.;/",        "x/../../",
                                 "x;/..;/../",    ".../"}) {
      for (const std::string to : {"charges", "orders/1/pay", "public/health", "Charges", "%63harges", "charge%73",
                                   "charge\xc5\xbf", "charge%c5%bf", "%ef%bd%83harges"}) {
        for (const std::string end : {"",    "/",   "//",  "%2f",  ";",     ";a=b",    ".",   "%2e",    "..", " ",
                                      "%20", "+",   "%00", "%00x", ".json", "%2ejson", "?a",  "%3fa",   "#a", "%23a",
                                      "/.",  "/..", "/./", "\\",   "%5c",   "%",       "%zz", "%u002f", "%2", "%09"}) {
          holds(from + up + to + end);
        }
      }
    }
  }
}

TEST(ServerModels, RandomPaths) {
  const std::vector<std::string> pieces{
      "/",      "/",    "/",       "//",      "/./",   "/../",   "%2e",      "%2f",     "%5c",       "\\",
      ";",      ";x=1", "..;",     "%00",     ".",     "..",     " ",        "%20",     "+",         "%3b",
      "%3f",    "%23",  "charges", "CHARGES", "pub",   "public", "lic",      "health",  "orders",    "pay",
      "1",      "%63",  "harges",  "%2563",   ".json", "%25",    "%252f",    "%c3%a9",  "%ef%bc%8f", "%c0%af",
      "%c5%bf", "x",    "#",       "?",       "%2525", "%2e%2e", "/charges", "/public/"};
  std::mt19937 random(20'261'122);
  int clear = 0;
  for (int i = 0; i < testing::of_one_thread(20'000); ++i) {
    std::string path = i % 2 == 0 ? "/" : "/public/";
    for (auto left = 1 + random() % 6; left > 0; --left) path += pieces[random() % pieces.size()];
    clear += holds(path) ? 1 : 0;
  }
  EXPECT_GT(clear, testing::of_one_thread(2'000));
}

// What clients send for good reasons is not refused.
TEST(ServerModels, OrdinaryPaths) {
  for (const char* const path :
       {"/charges", "/charges/", "/Charges?next=/public/../x", "/charges/ch_1AbC", "/orders/17/pay",
        "/orders/a%20b/pay", "/orders/%E6%97%A5/pay", "/orders/a.b/pay", "/orders/urn:x:1,2@3/pay", "/orders/a+b/pay",
        "/public/health", "/public/styles/site.min.css", "/public/a%20b%C3%A9.pdf", "/public//x", "/public/x;v=2",
        "/else/x.y/%41", "/else/;jsessionid=1", "/else/100%25", "/"}) {
    EXPECT_TRUE(holds(path)) << path;
  }
}

}  // namespace server_models_test
}  // namespace once::http
