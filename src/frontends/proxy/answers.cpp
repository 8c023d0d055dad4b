#include "frontends/proxy/answers.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include <once/fingerprint.hpp>

#include "frontends/http/headers.hpp"
#include "frontends/proxy/head.hpp"

namespace once::proxy {

using http::Answer;
using http::Opening;

RequestOutcome outcome_of(Opening::Kind kind) noexcept {
  switch (kind) {
    case Opening::Kind::passed:
      return RequestOutcome::passed;
    case Opening::Kind::unprotected:
      return RequestOutcome::unprotected;
    case Opening::Kind::claimed:
      return RequestOutcome::executed;
    case Opening::Kind::replayed:
      return RequestOutcome::replayed;
    case Opening::Kind::conflict:
      return RequestOutcome::conflict;
    case Opening::Kind::mismatch:
      return RequestOutcome::mismatch;
    case Opening::Kind::unknown:
      return RequestOutcome::unknown;
    case Opening::Kind::refused:
      return RequestOutcome::refused;
    case Opening::Kind::error:
      return RequestOutcome::error;
  }
  return RequestOutcome::error;
}

Answer head_of(const Incoming& answer) {
  Answer head{.status = answer.status(), .reason = std::string(answer.reason()), .headers = {}, .body = {}};
  const Forwarding forwarding(answer.headers());
  head.headers.reserve(answer.headers().size());
  for (const http::HeaderView& header : answer.headers()) {
    if (!forwarding.takes(header) || http::is_about_claim(header.name)) continue;
    head.headers.push_back({std::string(header.name), std::string(header.value)});
  }
  return head;
}

Answer malformed(unsigned status, std::string_view detail) {
  if (status == 501) return problem("not-supported", status, "Not supported", detail);
  if (status == 505) return problem("version-not-supported", status, "HTTP version is not supported", detail);
  if (status == 431) return problem("head-too-large", status, "Request head is too large", detail);
  return problem("malformed-request", status, "Request is malformed", detail);
}

Answer overloaded() {
  Answer answer = problem("overloaded", 503, "The proxy is overloaded",
                          "This request was not carried out. Send it again after the time in Retry-After.");
  answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

Answer answer_to(Trouble trouble, Millis retry_after) {
  switch (trouble) {
    case Trouble::unreachable:
    case Trouble::aside:
    case Trouble::connect_late:
    case Trouble::no_tls: {
      Answer answer = problem("upstream-unreachable", 503, "The service cannot be reached",
                              "Nothing was carried out. Send the same request again after the time in Retry-After.");
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(retry_after).count();
      answer.headers.push_back({"Retry-After", std::to_string(std::max<std::int64_t>(1, seconds))});
      return answer;
    }
    case Trouble::lease_over: {
      Answer answer = problem("lease-over", 503, "The proxy was delayed for too long",
                              "This request was not carried out. Send it again after the time in Retry-After.");
      answer.headers.push_back({"Retry-After", "1"});
      return answer;
    }
    case Trouble::late:
      return problem("upstream-timeout", 504, "The service did not answer in time",
                     "It is not known whether the request was carried out.");
    case Trouble::client_late:
      return problem("request-timeout", 408, "Request took too long", "Its body did not arrive in time.");
    case Trouble::client_bad:
      return malformed(400, "The chunked body cannot be read.");
    case Trouble::large_head:
      return problem("upstream-failed", 502, "The service gave no answer",
                     "The head of its answer is over the limit of the proxy. The request may have been carried out.");
    default:
      return problem("upstream-failed", 502, "The service gave no answer",
                     "Its connection broke, or its answer is not HTTP. It is not known whether the request was carried "
                     "out.");
  }
}

std::optional<http::Headers> readable_by_page(const Answer& answer, std::span<const http::HeaderView> request,
                                              const std::vector<std::string>& origins) {
  if (origins.empty()) return std::nullopt;
  const auto origin = std::ranges::find_if(
      request, [](const http::HeaderView& header) { return http::same_name(header.name, "Origin"); });
  if (origin == request.end()) return std::nullopt;
  const bool is_listed = std::ranges::find(origins, origin->value) != origins.end();
  if (!is_listed && std::ranges::find(origins, "*") == origins.end()) return std::nullopt;
  const auto has_allowed = [](const http::Header& header) {
    return http::same_name(header.name, "Access-Control-Allow-Origin");
  };
  http::Headers headers = answer.headers;
  if (answer.is_problem) {
    headers.push_back({"Access-Control-Allow-Origin", is_listed ? std::string(origin->value) : "*"});
    if (is_listed) headers.push_back({"Access-Control-Allow-Credentials", "true"});
    headers.push_back({"Vary", "Origin"});
  } else if (std::ranges::none_of(headers, has_allowed)) {
    return std::nullopt;  // Whether a page may read the service's answers is the service's to say.
  }
  headers.push_back({"Access-Control-Expose-Headers", "Retry-After, Idempotent-Replayed"});
  return headers;
}

}  // namespace once::proxy
