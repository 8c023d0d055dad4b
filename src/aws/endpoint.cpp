#include "aws/endpoint.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <system_error>

#include <once/error.hpp>

#include "aws/shared_config.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::aws {

namespace {

// A name of labels as in RFC 1123, also with underscores, which local networks use.
bool is_host_name(std::string_view host) noexcept {
  if (host.empty() || host.size() > 253) return false;
  while (!host.empty()) {
    const std::string_view label = host.substr(0, host.find('.'));
    if (label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-') return false;
    if (!std::all_of(label.begin(), label.end(),
                     [](char c) { return text::is_letter_or_digit(c) || c == '-' || c == '_'; })) {
      return false;
    }
    host.remove_prefix(std::min(label.size() + 1, host.size()));
  }
  return true;
}

bool is_address(const std::string& host, int family) noexcept {
  unsigned char buffer[sizeof(in6_addr)];
  return inet_pton(family, host.c_str(), buffer) == 1;
}

std::string effective_profile(const Environment& environment, std::string_view profile) {
  return profile.empty() ? profile_name(environment) : std::string(profile);
}

std::optional<std::string> variable(const Environment& environment, const std::string& name) {
  auto value = environment(name);
  if (value && value->empty()) value.reset();  // As in AWS's tools: empty is not set.
  return value;
}

}  // namespace

std::string Endpoint::url() const {
  std::string out = tls ? "https://" : "http://";
  const bool v6 = host.find(':') != std::string::npos;
  if (v6) out += '[';
  out += host;
  if (v6) out += ']';
  if (port != (tls ? 443 : 80)) out += ':' + std::to_string(port);
  return out + path;
}

Endpoint parse_endpoint(std::string_view url, std::string_view origin) {
  const auto refuse = [&](std::string_view what) {
    // Hides a password before an '@'.
    const auto at = url.rfind('@');
    std::string shown(at == std::string_view::npos ? url : "…" + std::string(url.substr(at)));
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
    throw Exception(ErrorKind::misuse, std::string(origin) + " is '" + shown + "': " + std::string(what) +
                                           ". Write it as in https://dynamodb.eu-central-1.amazonaws.com or "
                                           "http://127.0.0.1:8000");
  };
  Endpoint endpoint;
  std::string_view rest = url;
  const std::string scheme = text::lower(rest.substr(0, rest.find("://")));
  if (scheme == "http") {
    endpoint.tls = false;
    endpoint.port = 80;
  } else if (scheme != "https") {
    refuse("an endpoint begins with http:// or https://");
  }
  rest.remove_prefix(scheme.size() + 3);
  if (rest.find_first_of("?#") != std::string_view::npos) refuse("an endpoint has no query and no fragment");
  const auto slash = std::min(rest.find('/'), rest.size());
  endpoint.path = rest.substr(slash);
  while (endpoint.path.ends_with('/')) endpoint.path.pop_back();
  if (std::any_of(endpoint.path.begin(), endpoint.path.end(), [](char c) {
        return static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f;
      })) {
    refuse("its path has bytes that are not encoded");
  }
  std::string_view authority = rest.substr(0, slash);
  if (authority.find('@') != std::string_view::npos) refuse("an endpoint has no user name: requests are signed");

  std::optional<std::string_view> port;
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) refuse("the ']' after the address is missing");
    endpoint.host = authority.substr(1, close - 1);
    if (!is_address(endpoint.host, AF_INET6)) refuse("an IPv6 address is expected between '[' and ']'");
    const std::string_view after = authority.substr(close + 1);
    if (!after.empty() && after.front() != ':') refuse("only a port may follow the address");
    if (!after.empty()) port = after.substr(1);
  } else {
    const auto colon = authority.find(':');
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
    endpoint.host = text::lower(authority.substr(0, colon));
    if (endpoint.host.empty()) refuse("the host is missing");
    if (port && port->find(':') != std::string_view::npos) refuse("an IPv6 address must be between '[' and ']'");
    const bool looks_like_address = endpoint.host.find_first_not_of("0123456789.") == std::string::npos;
    if (looks_like_address ? !is_address(endpoint.host, AF_INET) : !is_host_name(endpoint.host)) {
      refuse("the host is neither a name nor an address");
    }
  }
  if (port) {
    endpoint.port = text::parse_whole<std::uint16_t>(*port).value_or(0);
    if (endpoint.port == 0) refuse("a port is a number from 1 to 65535");
  }
  return endpoint;
}

void check_region(std::string_view region, std::string_view origin) {
  const bool good = !region.empty() && region.size() <= 63 && region.front() != '-' && region.back() != '-' &&
                    std::all_of(region.begin(), region.end(),
                                [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
  if (!good) {
    throw Exception(ErrorKind::misuse,
                    std::string(origin) + " does not name a region: write it as in eu-central-1, in lower case");
  }
}

std::string find_region(const Environment& environment, std::string_view profile) {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (auto region = variable(environment, name)) {
      check_region(*region, name);
      return *region;
    }
  }
  const SharedConfig config = SharedConfig::read(environment);
  const std::string name = effective_profile(environment, profile);
  std::string region = config.get(name, "region");
  if (region.empty()) {
    throw Exception(ErrorKind::misuse,
                    "no AWS region is set: name one (region=eu-central-1), or set AWS_REGION, or "
                    "`region` of the profile '" +
                        name + "' in " + config.places());
  }
  check_region(region, "`region` of the profile '" + name + "' in " + config.places());
  return region;
}

Endpoint find_endpoint(std::string_view service, std::string_view region, const Environment& environment,
                       std::string_view profile) {
  const auto ignore = variable(environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
  if (!ignore || text::lower(*ignore) != "true") {
    std::string name = "AWS_ENDPOINT_URL_";
    for (const char c : service) {
      // The service's identifier in upper case, with '_' for characters that a variable cannot have.
      name += text::is_letter_or_digit(c) ? text::upper(c) : '_';
    }
    for (const std::string& each : {name, std::string("AWS_ENDPOINT_URL")}) {
      if (const auto url = variable(environment, each)) return parse_endpoint(*url, each);
    }
    const SharedConfig config = SharedConfig::read(environment);
    const std::string profile_used = effective_profile(environment, profile);
    if (const std::string url = config.endpoint_url(profile_used, service); !url.empty()) {
      return parse_endpoint(url, "`endpoint_url` of the profile '" + profile_used + "' in " + config.places());
    }
  }
  check_region(region, "the region");
  Endpoint endpoint;
  endpoint.host = std::string(service) + '.' + std::string(region) + ".amazonaws.com";
  if (region.starts_with("cn-")) endpoint.host += ".cn";
  return endpoint;
}

}  // namespace once::aws
