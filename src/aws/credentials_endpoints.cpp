// Credentials from a local endpoint: containers and instances.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include <once/error.hpp>

#include "aws/credentials_search.hpp"
#include "aws/endpoint.hpp"
#include "aws/signer.hpp"
#include "text/ascii.hpp"

namespace once::aws {

namespace {

HttpRequest request_to(const Endpoint& endpoint, std::string method, std::string target, Millis timeout) {
  HttpRequest request;
  request.method = std::move(method);
  request.tls = endpoint.tls;
  request.host = endpoint.host;
  request.port = endpoint.port;
  request.target = std::move(target);
  request.timeout = timeout;
  request.headers.emplace_back("Host", host_header(request));
  return request;
}

std::string what_came(const HttpAnswer& answer) {
  return answer.error ? answer.error->message : "HTTP status " + std::to_string(answer.status);
}

// For errors of a reachable endpoint.
ErrorKind kind_of(const HttpAnswer& answer) {
  if (answer.error) return answer.error->kind == ErrorKind::misuse ? ErrorKind::misuse : ErrorKind::unavailable;
  return answer.status == 429 || answer.status >= 500 ? ErrorKind::unavailable : ErrorKind::misuse;
}

// A token is sent over plain HTTP only to this host, or to the agents of ECS and EKS:
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
bool is_near(const std::string& host) {
  if (host == "localhost" || host == "169.254.170.2" || host == "169.254.170.23") return true;
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return bytes[0] == 127;
  if (inet_pton(AF_INET6, host.c_str(), bytes.data()) != 1) return false;
  std::array<unsigned char, 16> eks{0xfd, 0x00, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x23};  // fd00:ec2::23
  std::array<unsigned char, 16> loopback{};
  loopback.back() = 1;
  return bytes == eks || bytes == loopback;
}

}  // namespace

std::optional<Credentials> from_container(Search& search) {
  const std::string relative = search.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = search.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) {
    search.tried.emplace_back(
        "container (neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor AWS_CONTAINER_CREDENTIALS_FULL_URI is set)");
    return {};
  }
  const std::string variable =
      relative.empty() ? "AWS_CONTAINER_CREDENTIALS_FULL_URI" : "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
  if (!relative.empty() && !relative.starts_with('/')) {
    throw Exception(ErrorKind::misuse, variable + " does not begin with '/'");
  }
  const std::string url = relative.empty() ? full : "http://169.254.170.2" + relative;
  const std::size_t host = url.find("://");
  const std::size_t path = host == std::string::npos ? host : url.find_first_of("/?#", host + 3);
  const Endpoint endpoint = parse_endpoint(std::string_view(url).substr(0, path), variable);
  std::string target = path == std::string::npos ? "/" : url.substr(path, url.find('#') - path);
  if (!target.starts_with('/')) target.insert(0, 1, '/');
  if (std::any_of(target.begin(), target.end(), [](char c) { return c <= ' ' || c >= '\x7F'; })) {
    throw Exception(ErrorKind::misuse, variable + " has characters that are not encoded");
  }
  if (!endpoint.tls && !is_near(endpoint.host)) {
    throw Exception(ErrorKind::misuse, variable + " names " + endpoint.url() +
                                           ": credentials come over plain http only from this host or from the agents "
                                           "of ECS and EKS. Use https");
  }

  HttpRequest request = request_to(endpoint, "GET", std::move(target), Millis(2'000));
  request.headers.emplace_back("Accept", "application/json");
  const std::string token_file = search.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  std::string token = token_file.empty() ? search.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN")
                                         : read_token(token_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (token.find_first_of("\r\n") != std::string::npos) {
    throw Exception(ErrorKind::misuse, "AWS_CONTAINER_AUTHORIZATION_TOKEN has more than one line");
  }
  if (!token.empty()) request.headers.emplace_back("Authorization", std::move(token));

  const std::string place = "container endpoint " + endpoint.url();
  const HttpAnswer answer = search.fetch(request);
  if (answer.error || answer.status != 200) {
    throw Exception(kind_of(answer), place + " (" + variable + ") gave none: " + what_came(answer));
  }
  return parse_credentials(answer.body, "Token", place);
}

// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
std::optional<Credentials> from_instance(Search& search) {
  if (text::lower(search.variable("AWS_EC2_METADATA_DISABLED")) == "true") {
    search.tried.emplace_back("EC2 instance metadata (AWS_EC2_METADATA_DISABLED is true)");
    return {};
  }
  std::string mode = search.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
  std::string url = search.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (url.empty()) url = mode == "IPv6" || mode == "ipv6" ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
  const Endpoint endpoint = parse_endpoint(url, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  const std::string place = "EC2 instance metadata " + endpoint.url();
  const auto nothing = [&](const std::string& why) -> std::optional<Credentials> {
    search.tried.push_back(place + " (" + why + ")");
    return {};
  };

  // Asked once: without such a service usually nothing answers, and that takes the whole timeout.
  HttpRequest ask = request_to(endpoint, "PUT", endpoint.path + "/latest/api/token", Millis(1'000));
  ask.headers.emplace_back("X-aws-ec2-metadata-token-ttl-seconds", "21600");
  HttpAnswer token = Cancellation::exchange(search.cancellation, *search.ports.http, ask);
  if (!token.error && kind_of(token) == ErrorKind::unavailable) token = search.fetch(ask);
  if (token.error) return nothing(token.error->message);
  if (token.status != 200) {
    if (kind_of(token) == ErrorKind::misuse) return nothing("no token for IMDSv2: " + what_came(token));
    throw Exception(ErrorKind::unavailable, place + " gave no token: " + what_came(token));
  }
  if (token.body.empty() || token.body.find_first_of(" \r\n") != std::string::npos) {
    return nothing("its token is none: something else answers there");
  }

  const auto get = [&](const std::string& path) {
    HttpRequest request = request_to(endpoint, "GET", endpoint.path + path, Millis(1'000));
    request.headers.emplace_back("X-aws-ec2-metadata-token", token.body);
    return search.fetch(request);
  };
  const std::string roles = "/latest/meta-data/iam/security-credentials/";
  const HttpAnswer list = get(roles);
  if (!list.error && list.status == 404) return nothing("the instance has no role: attach an instance profile");
  if (list.error || list.status != 200) {
    throw Exception(kind_of(list), place + " did not name the instance's role: " + what_came(list));
  }
  const std::string role = list.body.substr(0, list.body.find_first_of("\r\n"));
  const bool sound = !role.empty() && std::all_of(role.begin(), role.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_+=,.@-").find(static_cast<char>(c)) != std::string_view::npos;
  });  // https://docs.aws.amazon.com/IAM/latest/APIReference/API_Role.html
  if (!sound) return nothing("what it calls a role is none: something else answers there");
  const HttpAnswer answer = get(roles + role);
  if (answer.error || answer.status != 200) {
    throw Exception(kind_of(answer), place + " gave none for the role " + role + ": " + what_came(answer));
  }
  return parse_credentials(answer.body, "Token", place + " (role " + role + ")");
}

}  // namespace once::aws
