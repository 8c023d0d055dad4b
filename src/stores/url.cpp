#include "stores/url.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include <once/error.hpp>

#include "text/ascii.hpp"
#include "text/percent.hpp"

namespace once::stores {

namespace {

// A whole number and the text after it; empty without a number, or if it is too large.
std::optional<std::pair<std::uint64_t, std::string_view>> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  return std::pair(value, text.substr(static_cast<std::size_t>(end - text.data())));
}

// scheme://user:password@host, and the parameter password=. A URL in a parameter is left out as a whole: its own
// password may be written in many ways.
std::string without_password(std::string url) {
  for (const std::string_view name : {"moves_to=", "offload="}) {
    const std::size_t found = url.find(name);
    if (found == std::string::npos) continue;
    const std::size_t begin = found + name.size();
    url.replace(begin, std::min(url.find('&', begin), url.size()) - begin, "***");
  }
  const std::size_t slashes = url.find("://");
  if (slashes != std::string::npos) {
    const std::size_t user = slashes + 3;
    // A password may hold what should have been escaped: so it ends at the last '@'.
    const std::size_t at = url.rfind('@');
    const std::size_t colon = url.find(':', user);
    if (at != std::string::npos && colon < at) url.replace(colon + 1, at - colon - 1, "***");
  }
  for (const std::string_view name : {"?password=", "&password=", "?sslpassword=", "&sslpassword="}) {
    const std::size_t found = url.find(name);
    if (found == std::string::npos) continue;
    const std::size_t begin = found + name.size();
    url.replace(begin, std::min(url.find('&', begin), url.size()) - begin, "***");
  }
  return url;
}

}  // namespace

void Url::refuse(const std::string& what) const {
  throw Exception(ErrorKind::misuse, kind_ + " '" + without_password(text_) + "': " + what);
}

Url::Url(std::string_view text, std::string_view kind) : kind_(kind), text_(text) {
  const std::size_t colon = text.find(':');
  const std::string_view scheme = text.substr(0, colon);
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-'; };
  if (colon == std::string_view::npos || scheme.empty() || !std::all_of(scheme.begin(), scheme.end(), letter)) {
    refuse("it must begin with a scheme and a colon, as in sqlite:/var/lib/once/once.db");
  }
  scheme_ = scheme;
  const std::string_view rest = text.substr(colon + 1);
  if (rest.find('#') != std::string_view::npos) refuse("a '#' must be written %23");
  const std::size_t mark = rest.find('?');
  const auto path = text::percent_decoded(rest.substr(0, mark));
  if (!path) refuse("a '%' must be followed by two hexadecimal digits; a plain '%' is written %25");
  path_ = *path;
  before_parameters_ = scheme_ + ":" + std::string(rest.substr(0, mark));
  if (mark == std::string_view::npos) return;
  std::string_view query = rest.substr(mark + 1);
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view parameter = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const std::size_t equals = parameter.find('=');
    const std::string name(parameter.substr(0, equals));
    if (name.empty() || equals == std::string_view::npos) {
      refuse("'" + std::string(parameter) + "' is not a parameter: write name=value");
    }
    const auto value = text::percent_decoded(parameter.substr(equals + 1));
    if (!value) refuse("the value of '" + name + "' has a '%' without two hexadecimal digits");
    const auto same = [&](const auto& other) { return other.first == name; };
    if (std::any_of(parameters_.begin(), parameters_.end(), same))
      refuse("the parameter '" + name + "' is given twice");
    parameters_.emplace_back(name, *value);
  }
}

std::optional<std::string> Url::take_text(std::string_view name) {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& other) { return other.first == name; });
  if (found == parameters_.end()) return std::nullopt;
  std::string value = std::move(found->second);
  parameters_.erase(found);
  return value;
}

bool Url::has(std::string_view name) const {
  return std::any_of(parameters_.begin(), parameters_.end(), [&](const auto& other) { return other.first == name; });
}

std::optional<bool> Url::flag(std::string_view name) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& other) { return other.first == name; });
  if (found == parameters_.end()) return std::nullopt;
  const std::string& value = found->second;
  if (value != "0" && value != "1") refuse("the parameter '" + std::string(name) + "' must be 0 or 1");
  return value == "1";
}

std::optional<bool> Url::take_flag(std::string_view name) {
  const auto value = flag(name);
  take_text(name);
  return value;
}

std::optional<std::uint64_t> Url::take_number(std::string_view name) {
  const auto value = take_text(name);
  if (!value) return std::nullopt;
  const auto number = leading_number(*value);
  if (!number || !number->second.empty()) refuse("the parameter '" + std::string(name) + "' must be a whole number");
  return number->first;
}

std::optional<Millis> Url::take_duration(std::string_view name) {
  const auto value = take_text(name);
  if (!value) return std::nullopt;
  const auto number = leading_number(*value);
  const std::string_view unit = number ? number->second : std::string_view();
  const std::uint64_t factor = unit == "ms"  ? 1
                               : unit == "s" ? 1'000
                               : unit == "m" ? 60'000
                               : unit == "h" ? 3'600'000
                                             : 0;
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (factor == 0 || number->first > max / factor) {
    refuse("the parameter '" + std::string(name) + "' must be a time: a whole number and ms, s, m or h, as in 5s");
  }
  return Millis(static_cast<std::int64_t>(number->first * factor));
}

std::string Url::take_rest() {
  std::string url = before_parameters_;
  char before = '?';
  for (const auto& [name, value] : std::exchange(parameters_, {})) {
    url += before + name + "=" + text::percent_encoded(value, [](char c) { return text::is_letter_or_digit(c); });
    before = '&';
  }
  return url;
}

void Url::refuse_rest(std::string_view known) const {
  if (parameters_.empty()) return;
  refuse("unknown parameter '" + parameters_.front().first + "'; " +
         (known.empty() ? scheme_ + ": takes none" : scheme_ + ": takes " + std::string(known)));
}

}  // namespace once::stores
