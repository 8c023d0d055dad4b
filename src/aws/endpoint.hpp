// Where a service is: region and endpoint, found where AWS's own tools find them.
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html, feature-region.html
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <once/aws/credentials.hpp>

namespace once::aws {

struct Endpoint {
  bool tls = true;
  std::string host;  // A name in lower case or an address, without brackets.
  std::uint16_t port = 443;
  std::string path;  // Before every target: "/base", or empty.

  [[nodiscard]] std::string url() const;  // "https://[::1]:8443/base", without the scheme's default port.

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "http://127.0.0.1:8000". `origin` is for the error: "AWS_ENDPOINT_URL". Throws Exception(misuse), which quotes the
// text without the part before an '@', which may be a password.
Endpoint parse_endpoint(std::string_view url, std::string_view origin);

// AWS_REGION, AWS_DEFAULT_REGION, or `region` of the profile (empty: the default one). Reads the shared config if
// needed. Throws Exception(misuse) if the region is missing or invalid.
std::string find_region(const Environment& environment, std::string_view profile = {});

// Throws Exception(misuse) unless it looks like a region: lower case letters, digits and '-'.
void check_region(std::string_view region, std::string_view origin);

// One that the caller was given. `origin` is for errors: "the option endpoint". An empty URL: none was given.
struct GivenEndpoint {
  std::string_view url;
  std::string_view origin;
};

// The given one, AWS_ENDPOINT_URL_<SERVICE>, AWS_ENDPOINT_URL, the profile's endpoint_url for the service, or AWS's own
// in the region. AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true leaves out those between. AWS's own is the one for FIPS or
// dual stack if that is asked for: AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT, or the profile. Reads the shared
// config. Throws Exception(misuse), also for what cannot be honoured: FIPS or dual stack together with a named
// endpoint, or an account's own endpoint that is required.
Endpoint find_endpoint(std::string_view service, std::string_view region, const Environment& environment,
                       std::string_view profile = {}, GivenEndpoint given = {});

// The region of a host of AWS's own: "eu-central-1" of "sqs-fips.eu-central-1.amazonaws.com". Empty: it is none.
std::string region_of_host(std::string_view service, std::string_view host);

// The partition of a region, as ARNs have it: "aws-us-gov".
std::string partition_of(std::string_view region);

// Whether a host is below a domain of AWS's.
bool is_of_aws(std::string_view host) noexcept;

}  // namespace once::aws
