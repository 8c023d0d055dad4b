#include "aws/endpoint.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <system_error>
#include <utility>

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

// Settings as AWS's tools have them: a variable, or a line of the profile.
struct Settings {
  struct Found {
    std::string value;   // Empty: not set.
    std::string origin;  // For errors.
  };

  Settings(const Environment& its_environment, std::string_view its_profile)
      : environment(its_environment),
        config(SharedConfig::read(its_environment)),
        profile(effective_profile(its_environment, its_profile)) {}

  [[nodiscard]] std::string place(std::string_view name) const {
    return "`" + std::string(name) + "` of the profile '" + profile + "' in " + config.places();
  }

  // "use_fips_endpoint" is the variable AWS_USE_FIPS_ENDPOINT. Nested ones have no variable.
  [[nodiscard]] Found find(std::string_view name) const {
    std::string its_variable = "AWS_";
    for (const char c : name) its_variable += text::upper(c);
    if (auto value = variable(environment, its_variable)) return {std::move(*value), std::move(its_variable)};
    return {config.get(profile, name), place(name)};
  }

  [[nodiscard]] bool flag(std::string_view name) const {
    const auto [value, origin] = find(name);
    const std::string said = text::lower(value);
    if (said != "true" && said != "false" && !said.empty()) {
      throw Exception(ErrorKind::misuse, origin + " is '" + value + "': write true or false");
    }
    return said == "true";
  }

  const Environment& environment;
  const SharedConfig config;
  const std::string profile;
};

// https://docs.aws.amazon.com/whitepapers/latest/aws-fault-isolation-boundaries/partitions.html; the domains are those
// of botocore's partitions.json: tests/aws/data/endpoints.json.
struct Partition {
  std::string_view prefix;  // Of its regions.
  std::string_view id;      // In ARNs.
  std::string_view suffix;
  std::string_view dual_stack_suffix;
};
constexpr std::array<Partition, 8> partitions{{
    {"cn-", "aws-cn", ".amazonaws.com.cn", ".api.amazonwebservices.com.cn"},
    {"eusc-", "aws-eusc", ".amazonaws.eu", ".api.amazonwebservices.eu"},
    {"us-iso-", "aws-iso", ".c2s.ic.gov", ".api.aws.ic.gov"},
    {"us-isob-", "aws-iso-b", ".sc2s.sgov.gov", ".api.aws.scloud"},
    {"eu-isoe-", "aws-iso-e", ".cloud.adc-e.uk", ".api.cloud-aws.adc-e.uk"},
    {"us-isof-", "aws-iso-f", ".csp.hci.ic.gov", ".api.aws.hci.ic.gov"},
    {"us-gov-", "aws-us-gov", ".amazonaws.com", ".api.aws"},
    {"", "aws", ".amazonaws.com", ".api.aws"},
}};

const Partition& partition_with(std::string_view region) noexcept {
  return *std::find_if(partitions.begin(), partitions.end(),
                       [&](const Partition& each) { return region.starts_with(each.prefix); });
}

struct Variant {
  bool fips = false;
  bool dual_stack = false;
};

// Empty: there is none.
std::string host_of(std::string_view service, std::string_view region, Variant variant) {
  const Partition& partition = partition_with(region);
  std::string out(service);
  if (service == "s3") {
    if (variant.fips && partition.prefix == "cn-") return {};
    if (variant.fips) out += "-fips";
    if (variant.dual_stack) out += ".dualstack";
    return out.append(".").append(region).append(partition.suffix);
  }
  const bool plain_is_fips = partition.prefix == "us-gov-" && !variant.dual_stack && service != "kms";
  if (variant.fips && !plain_is_fips) out += "-fips";
  return out.append(".").append(region).append(variant.dual_stack ? partition.dual_stack_suffix : partition.suffix);
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
                       std::string_view profile, GivenEndpoint given) {
  const Settings settings(environment, profile);
  Variant variant{.fips = settings.flag("use_fips_endpoint"), .dual_stack = settings.flag("use_dualstack_endpoint")};
  if (service == "s3") variant.dual_stack = variant.dual_stack || settings.flag("s3.use_dualstack_endpoint");
  const auto named = [&](std::string_view url, std::string_view origin) {
    if (variant.fips || variant.dual_stack) {
      throw Exception(ErrorKind::misuse,
                      std::string(origin) + " names an endpoint, and " +
                          (variant.fips ? "use_fips_endpoint asks for AWS's own for FIPS"
                                        : "use_dualstack_endpoint asks for AWS's own for dual stack") +
                          ": name none, or set that to false");
    }
    return parse_endpoint(url, origin);
  };
  if (!given.url.empty()) return named(given.url, given.origin);
  if (!settings.flag("ignore_configured_endpoint_urls")) {
    std::string name = "AWS_ENDPOINT_URL_";
    for (const char c : service) {
      // The service's identifier in upper case, with '_' for characters that a variable cannot have.
      name += text::is_letter_or_digit(c) ? text::upper(c) : '_';
    }
    for (const std::string& each : {name, std::string("AWS_ENDPOINT_URL")}) {
      if (const auto url = variable(environment, each)) return named(*url, each);
    }
    if (const std::string url = settings.config.endpoint_url(settings.profile, service); !url.empty()) {
      return named(url, settings.place("endpoint_url"));
    }
  }
  check_region(region, "the region");
  if (service == "dynamodb") {
    if (region == "local") {
      throw Exception(ErrorKind::misuse,
                      "the region is 'local': name a table on this machine by its endpoint, as in "
                      "endpoint=http://localhost:8000, and any region of AWS");
    }
    if (const auto [mode, origin] = settings.find("account_id_endpoint_mode"); text::lower(mode) == "required") {
      throw Exception(ErrorKind::misuse, origin +
                                             " requires an endpoint of the account's own, which is not supported: " +
                                             "set it to preferred or disabled");
    }
  }
  Endpoint endpoint;
  endpoint.host = host_of(service, region, variant);
  if (endpoint.host.empty()) {
    throw Exception(ErrorKind::misuse,
                    "AWS has no endpoint for FIPS of " + std::string(service) + " in " + std::string(region));
  }
  return endpoint;
}

std::string region_of_host(std::string_view service, std::string_view host) {
  if (!host.starts_with(service)) return {};
  host.remove_prefix(service.size());
  for (const std::string_view end : {".", "-fips.", ".dualstack.", "-fips.dualstack."}) {
    if (!host.starts_with(end)) continue;
    const std::string_view region = host.substr(end.size(), host.find('.', end.size()) - end.size());
    for (const Variant variant : {Variant{}, Variant{.dual_stack = true}, Variant{.fips = true}, Variant{true, true}}) {
      const std::string own = host_of(service, region, variant);
      if (!own.empty() && std::string_view(own).substr(service.size()) == host) return std::string(region);
    }
  }
  return {};
}

std::string partition_of(std::string_view region) { return std::string(partition_with(region).id); }

bool is_of_aws(std::string_view host) noexcept {
  return std::any_of(partitions.begin(), partitions.end(), [&](const Partition& partition) {
    return host.ends_with(partition.suffix) || host.ends_with(partition.dual_stack_suffix);
  });
}

}  // namespace once::aws
