#include "frontends/http/unstable.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory_resource>

#include <once/error.hpp>
#include <once/frontends/http/message.hpp>

#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"

namespace once::http {

namespace {

// Authentication schemes that are made for each request, from IANA's registry and others in use. Most vendors' schemes
// have HMAC in their names (AWS4-HMAC-SHA256, HMAC, EG1-HMAC-SHA256).
constexpr std::array<std::string_view, 14> made_anew{
    "AWS",   "AWS4-ECDSA-P256-SHA256", "Digest",    "DPoP",          "GNAP",     "Hawk", "HOBA", "Negotiate", "NTLM",
    "OAuth", "PrivateToken",           "SharedKey", "SharedKeyLite", "Signature"};

bool is_base64url(char c) noexcept { return text::is_letter_or_digit(c) || c == '-' || c == '_'; }

// The header of a JOSE object is a JSON object with the name of an algorithm (RFC 7515, section 4.1.1).
bool is_jose_header(std::string_view part) {
  if (!part.starts_with("ey")) return false;  // All that begin with {" do so.
  std::string base64(part);
  std::ranges::replace(base64, '-', '+');
  std::ranges::replace(base64, '_', '/');
  const auto header = text::decode_base64(base64, {.padding = false});
  if (!header) return false;
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value value;
  const text::json::Rules loose{.unique_names = false, .exact_numbers = false};
  return text::json::try_parse(*header, loose, arena, value) && !value.member("alg").is_null();
}

// Three parts (JWS), the signature of which may be empty, or five (JWE). A server that signs its cookies adds one.
bool is_compact_token(std::string_view word) {
  return std::ranges::count(word, '.') >= 2 && is_jose_header(word.substr(0, word.find('.')));
}

// `wanted` in lower case.
bool contains(std::string_view text, std::string_view wanted) noexcept {
  return !std::ranges::search(text, wanted, [](char a, char b) { return text::lower(a) == b; }).empty();
}

}  // namespace

bool is_unstable(std::string_view value) {
  const std::string_view scheme = value.substr(0, value.find(' '));
  if (scheme.size() < value.size() &&
      (contains(scheme, "hmac") ||
       std::ranges::any_of(made_anew, [&](std::string_view other) { return same_name(scheme, other); }))) {
    return true;
  }
  // Checks every word: a token may follow a scheme, or be in a cookie or a parameter. A cookie may have what is before
  // it in percent signs: "Bearer%20eyJ...".
  const auto in_word = [](char c) { return is_base64url(c) || c == '.'; };
  for (auto at = value.begin(); at != value.end();) {
    const auto end = std::find_if_not(at, value.end(), in_word);
    const bool escaped = at != value.begin() && *std::prev(at) == '%' && end - at > 2;
    if (is_compact_token({at, end}) || (escaped && is_compact_token({at + 2, end}))) return true;
    at = std::find_if(end, value.end(), in_word);
  }
  return false;
}

bool is_unstable_name(std::string_view name) noexcept {
  static constexpr std::array<std::string_view, 6> names{
      "DPoP", "Date", "X-Amz-Date", "X-Amz-Security-Token", "X-Request-Id", "traceparent"};
  return contains(name, "signature") ||  // Stripe-Signature, X-Hub-Signature-256, Signature-Input ...
         std::ranges::any_of(names, [&](std::string_view other) { return same_name(name, other); });
}

}  // namespace once::http
