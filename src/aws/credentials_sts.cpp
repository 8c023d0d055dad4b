// The two calls of the Security Token Service that return a role's credentials:
// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html, API_AssumeRoleWithWebIdentity.html
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>

#include "aws/credentials_search.hpp"
#include "aws/endpoint.hpp"
#include "aws/service_error.hpp"
#include "aws/signed_client.hpp"
#include "aws/signer.hpp"
#include "text/percent.hpp"
#include "text/rfc3339.hpp"

namespace once::aws {

namespace {

struct Service {
  Endpoint endpoint;
  std::string region;  // Of signatures.
};

// STS is in every region. Without a region, uses the global endpoint with signatures for us-east-1.
Service find_service(const Search& search, std::string_view profile) {
  std::string region = search.variable("AWS_REGION");
  if (region.empty()) region = search.variable("AWS_DEFAULT_REGION");
  if (region.empty()) region = SharedConfig::read(search.options.environment).get(profile, "region");
  const bool anywhere = region.empty();
  if (anywhere) region = "us-east-1";
  Service service{find_endpoint("sts", region, search.options.environment, profile), region};
  if (anywhere && service.endpoint.host == "sts.us-east-1.amazonaws.com") service.endpoint.host = "sts.amazonaws.com";
  return service;
}

std::string form_encoded(std::string_view value) { return text::percent_encoded(value, text::is_unreserved); }

HttpRequest make_request(const Service& service, const Search& search, const Role& role, std::string_view action) {
  const auto now = std::to_string(search.ports.clock->now().time_since_epoch().count());
  HttpRequest request;
  request.method = "POST";
  request.tls = service.endpoint.tls;
  request.host = service.endpoint.host;
  request.port = service.endpoint.port;
  request.target = service.endpoint.path + "/";
  request.headers = {{"Host", host_header(request)},
                     {"Content-Type", "application/x-www-form-urlencoded"},
                     {"Accept", "application/xml"}};
  request.body = "Action=" + std::string(action) + "&Version=2011-06-15&RoleArn=" + form_encoded(role.arn) +
                 "&RoleSessionName=" + form_encoded(role.session_name.empty() ? "once-" + now : role.session_name);
  if (!role.duration_seconds.empty()) request.body += "&DurationSeconds=" + form_encoded(role.duration_seconds);
  return request;
}

// Only the clock is corrected. Every other error is for people.
Refusal read_refusal(const HttpAnswer& answer) {
  Remedy remedy = remedy_for(xml_text(answer.body, "Code"), answer.status);
  if (remedy != Remedy::clock && remedy != Remedy::signature) {
    remedy = answer.status == 429 || answer.status >= 500 ? Remedy::again : Remedy::none;
  }
  return {.remedy = remedy, .said = {}, .time = {}};
}

Credentials credentials_in(const HttpAnswer& answer, const Service& service, const std::string& place) {
  const std::string where = place + ": STS at " + service.endpoint.url();
  if (answer.status == 0) {
    throw Exception(answer.error->kind == ErrorKind::misuse ? ErrorKind::misuse : ErrorKind::unavailable,
                    where + " gave no answer: " + answer.error->message);
  }
  if (answer.status == 200) return parse_sts_answer(answer.body, place);
  const std::string code = xml_text(answer.body, "Code");
  const std::string message = xml_text(answer.body, "Message");
  std::string text = where + " refused with HTTP status " + std::to_string(answer.status);
  if (!code.empty()) text += ", " + clean_text(code, 100);
  if (!message.empty()) text += ": " + clean_text(message, 500);
  const bool later = answer.status == 429 || answer.status >= 500 || code == "Throttling" ||
                     code == "IDPCommunicationError" || code == "RequestExpired";
  throw Exception(later ? ErrorKind::unavailable : ErrorKind::misuse, text);
}

}  // namespace

Credentials parse_sts_answer(std::string_view xml, const std::string& place) {
  const auto refuse = [&](std::string_view what) {
    throw Exception(ErrorKind::misuse, place + ": STS gave an answer that cannot be understood: " + std::string(what));
  };
  const auto inside = xml_element(xml, "Credentials");
  if (!inside) refuse("it has not exactly one <Credentials>");
  Credentials found;
  found.access_key_id = xml_text(*inside, "AccessKeyId");
  found.secret_access_key = xml_text(*inside, "SecretAccessKey");
  found.session_token = xml_text(*inside, "SessionToken");
  found.expires_at = text::from_rfc3339(xml_text(*inside, "Expiration"));
  found.source = place;
  if (found.access_key_id.empty()) refuse("it has no AccessKeyId");
  if (found.secret_access_key.empty()) refuse("it has no SecretAccessKey");
  if (found.session_token.empty()) refuse("it has no SessionToken");
  if (!found.expires_at) refuse("it has no Expiration that is a time");
  return checked(std::move(found));
}

Credentials assume_role(const Search& search, const Role& role, const Credentials& source, std::string_view profile,
                        const std::string& place) {
  const Service service = find_service(search, profile);
  HttpRequest request = make_request(service, search, role, "AssumeRole");
  if (!role.external_id.empty()) request.body += "&ExternalId=" + form_encoded(role.external_id);
  SignedClient client({.service = "sts",
                       .region = service.region,
                       .credentials = static_credentials(source),
                       .max_attempts = Search::attempts,
                       .clock = search.ports.clock},
                      {.endpoint = service.endpoint, .read_refusal = read_refusal, .tells_doubt = false},
                      search.ports.http);
  const HttpAnswer answer = Cancellation::wait(search.cancellation, [&](Callback<void(HttpAnswer)> done) {
    client.call({.target = request.target, .headers = request.headers, .body = request.body},
                [done = std::move(done)](SignedAnswer got) mutable { done(std::move(got.http)); });
  });
  return credentials_in(answer, service, place);
}

Credentials assume_role_with_token(const Search& search, const Role& role, const std::string& token_file,
                                   std::string_view profile, const std::string& place) {
  const std::string token = read_token(token_file, "the web identity");
  const Service service = find_service(search, profile);
  HttpRequest request = make_request(service, search, role, "AssumeRoleWithWebIdentity");
  request.body += "&WebIdentityToken=" + form_encoded(token);
  return credentials_in(search.fetch(request), service, place);
}

}  // namespace once::aws
