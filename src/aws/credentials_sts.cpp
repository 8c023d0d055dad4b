// The two calls of the Security Token Service that give a role's credentials:
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
#include "aws/signer.hpp"

namespace once::aws {

namespace {

// The text of the one element of that name without attributes, if there is exactly one and it holds only text or, for
// the outer one, other elements. Not unescaped.
std::optional<std::string_view> element(std::string_view xml, const std::string& name) {
  const std::string open = "<" + name + ">";
  const std::string close = "</" + name + ">";
  const std::size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const std::size_t end = xml.find(close, begin);
  if (end == std::string_view::npos || xml.find(open, begin + 1) != std::string_view::npos ||
      xml.find(close, end + 1) != std::string_view::npos) {
    return {};
  }
  return xml.substr(begin + open.size(), end - begin - open.size());
}

// The five entities that every XML has; others do not come up in what is read here.
std::optional<std::string> unescaped(std::string_view text) {
  constexpr std::pair<std::string_view, char> entities[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string out;
  while (!text.empty()) {
    if (text.front() == '<') return {};
    if (text.front() != '&') {
      out += text.front();
      text.remove_prefix(1);
      continue;
    }
    const auto* const found = std::find_if(std::begin(entities), std::end(entities),
                                           [&](const auto& each) { return text.starts_with(each.first); });
    if (found == std::end(entities)) return {};
    out += found->second;
    text.remove_prefix(found->first.size());
  }
  return out;
}

std::string text_of(std::string_view xml, const std::string& name) {
  const auto found = element(xml, name);
  return found ? unescaped(*found).value_or("") : std::string{};
}

struct Service {
  Endpoint endpoint;
  std::string region;  // Of signatures.
};

// STS is in every region; without one there is the first, which answers for all: its own name, us-east-1's signatures.
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
  request.body = "Action=" + std::string(action) + "&Version=2011-06-15&RoleArn=" + uri_encode(role.arn) +
                 "&RoleSessionName=" + uri_encode(role.session_name.empty() ? "once-" + now : role.session_name);
  if (!role.duration_seconds.empty()) request.body += "&DurationSeconds=" + uri_encode(role.duration_seconds);
  return request;
}

// The service's time, if an answer says that the signature's was another one. That a signature is wrong may have other
// reasons as well; up to a minute its time certainly is none, as the service allows five.
std::optional<Time> told_time(const HttpAnswer& answer, Time signed_at) {
  if (answer.error || answer.status < 400) return {};
  const std::string code = text_of(answer.body, "Code");
  const bool clock = code == "RequestExpired" || code == "RequestTimeTooSkewed" || code == "RequestInTheFuture";
  const bool signature = code == "SignatureDoesNotMatch" || code == "InvalidSignatureException";
  if (!clock && !signature) return {};
  const std::optional<Time> date = parse_http_date(answer.header("date"));
  const Millis tolerable = clock ? Millis{1'000} : Millis{60'000};
  return date && std::chrono::abs(*date - signed_at) > tolerable ? date : std::nullopt;
}

Credentials credentials_in(const HttpAnswer& answer, const Service& service, const std::string& place) {
  const std::string where = place + ": STS at " + service.endpoint.url();
  if (answer.error) {
    throw Exception(answer.error->kind == ErrorKind::misuse ? ErrorKind::misuse : ErrorKind::unavailable,
                    where + " gave no answer: " + answer.error->message);
  }
  if (answer.status == 200) return parse_sts_answer(answer.body, place);
  const std::string code = text_of(answer.body, "Code");
  const std::string message = text_of(answer.body, "Message");
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
    throw Exception(ErrorKind::misuse,
                    place + ": STS gave an answer that is not to be understood: " + std::string(what));
  };
  const auto inside = element(xml, "Credentials");
  if (!inside) refuse("it has not exactly one <Credentials>");
  Credentials found;
  found.access_key_id = text_of(*inside, "AccessKeyId");
  found.secret_access_key = text_of(*inside, "SecretAccessKey");
  found.session_token = text_of(*inside, "SessionToken");
  found.expires_at = parse_time(text_of(*inside, "Expiration"));
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
  if (!role.external_id.empty()) request.body += "&ExternalId=" + uri_encode(role.external_id);
  const HttpRequest plain = request;
  Signer signer("sts", service.region);
  const Time now = search.ports.clock->now();
  signer.sign(request, source, now);
  HttpAnswer answer = search.fetch(request);
  if (const auto told = told_time(answer, now)) {
    request = plain;
    signer.sign(request, source, *told);
    answer = search.fetch(request);
  }
  return credentials_in(answer, service, place);
}

Credentials assume_role_with_token(const Search& search, const Role& role, const std::string& token_file,
                                   std::string_view profile, const std::string& place) {
  const std::string token = read_token(token_file, "the web identity");
  const Service service = find_service(search, profile);
  HttpRequest request = make_request(service, search, role, "AssumeRoleWithWebIdentity");
  request.body += "&WebIdentityToken=" + uri_encode(token);
  return credentials_in(search.fetch(request), service, place);
}

}  // namespace once::aws
