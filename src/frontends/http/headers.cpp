#include "frontends/http/headers.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <once/frontends/http/rules.hpp>

#include "text/ascii.hpp"
#include "text/header.hpp"

namespace once::http {

namespace {

// Idempotent-Replayed is not part of the answer; a service behind several layers may send it.
constexpr std::array<std::string_view, 13> never_stored{
    "Connection",   "Keep-Alive", "Proxy-Connection", "TE",         "Trailer",          "Transfer-Encoding",
    "Upgrade",      "Date",       "Server",           "Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate",
    replayed_header};

}  // namespace

bool same_letters(std::string_view a, std::string_view b) noexcept {
  if (a == b) return true;  // Nearly all clients write these names in this form.
  return text::same_letters(a, b);
}

const std::string* find_header(const Headers& headers, std::string_view name) noexcept {
  const auto found = std::ranges::find_if(headers, [&](const Header& h) { return same_name(h.name, name); });
  return found == headers.end() ? nullptr : &found->value;
}

bool is_about_claim(std::string_view name) noexcept {
  return same_name(name.substr(0, claim_prefix.size()), claim_prefix);
}

bool names_contain(std::span<const std::string> names, std::string_view name) noexcept {
  return std::ranges::any_of(names, [&](const std::string& other) { return same_name(other, name); });
}

Storable storable(const Headers& headers, std::span<const std::string> never) {
  std::vector<std::string_view> named_by_connection;
  for (const Header& header : headers) {
    if (!same_name(header.name, "Connection")) continue;
    const std::vector<std::string_view> named = text::list_members(header.value);
    named_by_connection.insert(named_by_connection.end(), named.begin(), named.end());
  }
  const text::NameSet of_this_hop(std::move(named_by_connection));
  const auto is_never_stored = [](std::string_view name) {
    return is_about_claim(name) ||
           std::ranges::any_of(never_stored, [&](std::string_view other) { return same_name(other, name); });
  };
  Storable out;
  out.headers.reserve(headers.size());
  for (const Header& header : headers) {
    if (same_name(header.name, "Content-Length")) continue;
    const bool valid = text::is_token(header.name) && text::is_field_text(header.value);
    if (valid && !is_never_stored(header.name) && !of_this_hop.contains(header.name) &&
        !names_contain(never, header.name)) {
      out.headers.push_back({header.name, text::trim(header.value)});
      continue;
    }
    if (!out.not_stored.empty()) out.not_stored += ", ";
    out.not_stored += text::is_token(header.name) ? header.name : "?";
  }
  return out;
}

void mark_replayed(Headers& headers) {
  headers.push_back({std::string(replayed_header), "true"});
  constexpr std::string_view expose = "Access-Control-Expose-Headers";
  if (find_header(headers, "Access-Control-Allow-Origin") == nullptr) return;
  Header* last = nullptr;
  for (Header& header : headers) {
    if (!same_name(header.name, expose)) continue;
    last = &header;
    for (const std::string_view name : text::list_members(header.value)) {
      if (same_name(name, replayed_header)) return;
    }
  }
  // "*" means all headers only without credentials, so the name is added to it too.
  if (last == nullptr) {
    headers.push_back({std::string(expose), std::string(replayed_header)});
  } else {
    last->value += (text::trim(last->value).empty() ? "" : ", ") + std::string(replayed_header);
  }
}

}  // namespace once::http
