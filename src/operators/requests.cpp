#include "operators/requests.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <once/fingerprint.hpp>

#include "operators/answers.hpp"
#include "operators/words.hpp"
#include "text/netstring.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

// "%2Fa+b" is "/a b".
std::string decoded(std::string_view part) {
  std::string blanks(part);
  std::ranges::replace(blanks, '+', ' ');
  auto text = text::percent_decoded(blanks);
  if (!text) throw wrong("a '%' in the query is not followed by two hexadecimal digits");
  return *std::move(text);
}

// "a, b and c"
std::string listed(const std::set<std::string>& names) {
  std::string text;
  std::size_t left = names.size();
  for (const std::string& name : names) {
    --left;
    text += name;
    if (left > 0) text += left == 1 ? " and " : ", ";
  }
  return text;
}

}  // namespace

Query::Query(std::string_view text) {
  for (const std::string& part : split(text, '&')) {
    if (part.empty()) continue;
    const auto equals = part.find('=');
    const std::string name = decoded(part.substr(0, equals));
    std::string value = equals == std::string::npos ? std::string() : decoded(part.substr(equals + 1));
    if (!values_.emplace(name, std::move(value)).second) throw wrong(escaped(name) + " is given more than once");
  }
}

std::optional<std::string> Query::take(const std::string& name) {
  known_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t Query::take_limit() {
  constexpr std::size_t usual = 100;
  constexpr std::size_t largest = 500;
  const auto text = take("limit");
  if (!text) return usual;
  const std::size_t limit = text::parse_whole<std::size_t>(*text).value_or(0);
  if (limit < 1 || limit > largest) {
    throw wrong("limit is '" + escaped(*text) + "'; it must be a number from 1 to " + std::to_string(largest));
  }
  return limit;
}

void Query::end() const {
  for (const auto& [name, value] : values_) {
    if (known_.contains(name)) continue;
    if (known_.empty()) throw wrong("this path takes no query");
    throw wrong("unknown parameter '" + escaped(name) +
                (known_.size() == 1 ? "'; the parameter is " : "'; the parameters are ") + listed(known_));
  }
}

std::string Query::digest_without(const std::set<std::string>& names) const {
  std::string all;
  for (const auto& [name, value] : values_) {
    if (names.contains(name)) continue;
    text::append_netstring(all, name);
    text::append_netstring(all, value);
  }
  constexpr std::size_t digits = 16;
  return to_hex(sha256(all)).substr(0, digits);
}

namespace {

// Refuses what no operator sends: many levels, as a copy of the JSON recurses; many members, as each name is looked for
// among those before it; and a name twice, because what checks a request before us may read the other one.
Json parsed(std::string_view body) {
  constexpr int most_levels = 16;
  constexpr std::size_t most_members = 100;
  std::size_t members = 0;
  std::vector<std::set<std::string>> names;  // Of the objects around this place.
  const auto check = [&](int level, Json::parse_event_t event, const Json& part) {
    if (level > most_levels) throw wrong("the body has more than 16 levels");
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(part.get<std::string>()).second) {
      throw wrong("the body has the member '" + escaped(part.get<std::string>()) + "' twice in one object");
    }
    if (event == Json::parse_event_t::key && ++members > most_members) {
      throw wrong("the body has more than 100 members");
    }
    return true;
  };
  return Json::parse(body, check, false);
}

}  // namespace

Members::Members(std::string_view body) : json_(parsed(body)) {
  if (!json_.is_object()) throw wrong("the body is not a JSON object");
}

Members::Members(Json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {
  if (!json_.is_object()) throw wrong(where_ + " is not a JSON object");
}

std::optional<std::string> Members::text(const char* name) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong(where_ + name + " must be a string");
  return value->get<std::string>();
}

bool Members::flag(const char* name) {
  const Json* const value = find(name);
  if (value != nullptr && !value->is_boolean()) throw wrong(where_ + name + " must be true or false");
  return value != nullptr && value->get<bool>();
}

bool Members::has(const char* name) { return find(name) != nullptr; }

bool Members::is_text(const char* name) {
  const Json* const value = find(name);
  return value != nullptr && value->is_string();
}

std::optional<std::uint64_t> Members::number(const char* name) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned()) throw wrong(where_ + name + " must be a whole number");
  return value->get<std::uint64_t>();
}

std::optional<std::map<std::string, std::string>> Members::texts_by_name(const char* name) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) throw wrong(where_ + name + " is not a JSON object");
  std::map<std::string, std::string> texts;
  for (const auto& [member, text] : value->items()) {
    if (!text.is_string()) throw wrong(where_ + name + "." + escaped(member) + " must be a string");
    texts.emplace(member, text.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<std::string>> Members::texts(const char* name) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  const bool fits = value->is_array() && std::ranges::all_of(*value, [](const Json& one) { return one.is_string(); });
  if (!fits) throw wrong(where_ + name + " must be an array of strings");
  for (const Json& text : *value) texts.push_back(text.get<std::string>());
  return texts;
}

std::optional<Members> Members::object(const char* name) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  return Members(*value, std::string(name) + ".");
}

void Members::end() const {
  for (const auto& [name, value] : json_.items()) {
    if (!known_.contains(name)) {
      throw wrong("unknown member '" + escaped(where_ + name) +
                  (known_.empty() ? "'; there are none" : "'; the members are " + listed(known_)));
    }
  }
}

void Members::refuse_nulls() const {
  for (const auto& [name, value] : json_.items()) {
    if (value.is_null()) throw wrong("'" + escaped(where_ + name) + "' is null: leave it out, or give it a value");
  }
}

const Json* Members::find(const char* name) {
  known_.insert(name);
  const auto found = json_.find(name);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<Result> result_of(Members& members) {
  std::optional<Members> result = members.object("result");
  if (!result) return std::nullopt;
  const auto text = result->text("text");
  const auto bytes = result->text("text_base64");
  const std::string type = result->text("content_type").value_or("");
  result->end();
  if (text && bytes) throw wrong("give text or text_base64 in result, not both");
  return Result::inlined(bytes ? parse_base64(*bytes, "result.text_base64") : text.value_or(""), type);
}

std::optional<Tag> tag_of(std::string_view text) {
  constexpr std::size_t owner_digits = 32;
  if (text.size() < owner_digits + 4 || !text.starts_with('"') || !text.ends_with('"')) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  const auto owner = Owner::from_hex(text.substr(0, owner_digits));
  const std::string_view digits = text.substr(owner_digits + 1);
  const auto revision = text::parse_whole<std::uint64_t>(digits);
  if (!owner || text[owner_digits] != '-' || !revision) return std::nullopt;
  return Tag{.owner = *owner, .revision = *revision};
}

std::vector<std::string_view> values_of(const http::Request& request, std::string_view name) {
  std::vector<std::string_view> found;
  for (const http::HeaderView& header : request.headers) {
    if (http::same_name(header.name, name)) found.push_back(header.value);
  }
  return found;
}

bool is_read(const http::Request& request) { return request.method == "GET" || request.method == "HEAD"; }

bool is_loopback_host(std::string_view host) {
  if (host.starts_with("[::1]")) return host.size() == 5 || host[5] == ':';
  host = host.substr(0, host.find(':'));
  if (http::same_name(host, "localhost")) return true;
  constexpr std::string_view digits_and_dots = "0123456789.";
  return host.starts_with("127.") && host.find_first_not_of(digits_and_dots) == std::string_view::npos;
}

std::optional<http::Answer> refuse_foreign_host(const http::Request& request) {
  const auto hosts = values_of(request, "Host");
  if (hosts.size() == 1 && is_loopback_host(hosts[0])) return std::nullopt;
  return operators_problem("forbidden", 403, "Not under this name",
                           "This port is on a loopback address: use localhost or that address as the host's name.");
}

void refuse_long(const http::Request& request) {
  constexpr std::size_t most_bytes = 4096;
  if (request.body.size() > most_bytes) throw wrong("the body has more than 4096 bytes");
}

std::optional<http::Answer> refuse_other_than_json(const http::Request& request) {
  const std::string_view* const type = header_of(request, "Content-Type");
  if (type != nullptr && http::same_name(type->substr(0, type->find_first_of("; ")), "application/json")) {
    return std::nullopt;
  }
  return operators_problem("unsupported-media-type", 415, "The body must be JSON",
                           "Send Content-Type: application/json.");
}

const std::string_view* header_of(const http::Request& request, std::string_view name) {
  for (const http::HeaderView& line : request.headers) {
    if (http::same_name(line.name, name)) return &line.value;
  }
  return nullptr;
}

}  // namespace once::operators
