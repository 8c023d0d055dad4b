#include "frontends/http/problem.hpp"

#include <array>
#include <cstddef>

namespace once::http {

namespace {

// In the order of Problem.
constexpr std::array<ProblemText, 21> texts{{
    {"key-missing", 400, "Idempotency key is missing",
     "This operation needs an idempotency key. Send a new one for each operation, such as a UUID, and the same one "
     "with "
     "every retry. Nothing was carried out."},
    {"key-invalid", 400, "Idempotency key is malformed", ""},
    {"keys-differ", 400, "More than one idempotency key",
     "The request has two different idempotency keys. Send one; a key that contains a comma must be quoted."},
    {"body-unreadable", 400, "Request body cannot be read",
     "The service takes the idempotency key from the body, but cannot read it. The body is not JSON or not a form, has "
     "a name twice in an object, or the key is a number over 9007199254740991. Send such a number as a string. Nothing "
     "was carried out."},
    {"body-too-large", 413, "Request body is too large",
     "The body is larger than this service allows with an idempotency key. The request was not carried out."},
    {"key-reused", 422, "Idempotency key is already used",
     "The key was used with another request. This request was not carried out. Retry the first request unchanged, or "
     "send this one with a new key."},
    {"in-progress", 409, "A request with this idempotency key is in progress",
     "It was sent before and has no answer yet. Retry after the time in Retry-After to get that answer."},
    {"outcome-unknown", 409, "The outcome of the operation is unknown",
     "The operation started, and it is not known whether it took effect. It does not run again until an operator "
     "decides. Contact the service, and name the idempotency key."},
    {"store-unavailable", 503, "Requests cannot be protected now",
     "The store of idempotency keys cannot be used, so nothing was carried out. Send the same request again after the "
     "time in Retry-After."},
    {"record-unreadable", 500, "The record of this idempotency key cannot be read",
     "This request was not carried out. Contact the service, and name the idempotency key."},
    {"answer-not-kept", 410, "The answer was too large to keep",
     "The operation was carried out earlier and does not run again. The first request got the answer, which is no "
     "longer available."},
    {"operation-failed", 500, "The operation has failed",
     "It ran earlier and is recorded as failed. It does not run again with this idempotency key."},
    {"handler-failed", 500, "The operation ended with an internal error", "It is not known whether it took effect."},
    {"claim-lost", 409, "Another request took over this operation",
     "This request lost its claim while it ran, and its answer was not kept. Send it again after the time in "
     "Retry-After "
     "to get the answer that counts."},
    {"not-recorded", 503, "The answer could not be recorded",
     "The operation was carried out, but its answer could not be recorded. Send the same request again after the time "
     "in "
     "Retry-After."},
    {"path-unclear", 400, "The path can be read in more than one way",
     "Servers read this path differently, and different rules apply to the readings. Nothing was carried out. Write it "
     "without dot segments, empty segments, semicolons, backslashes and needless percent-encoding."},
    {"method-unclear", 400, "The method is not written in capitals",
     "Methods are case-sensitive, but not all servers treat them so. Nothing was carried out. Write the method in "
     "capitals, as in PATCH."},
    {"principal-missing", 400, "The request does not say who its client is",
     "An idempotency key belongs to one client, and this request does not identify its client. Nothing was carried "
     "out. Send the request with your credentials."},
    {"principal-invalid", 401, "The credentials are not valid",
     "The client's credentials are wrong or have expired. Nothing was carried out. Send the same request again with "
     "new "
     "credentials."},
    {"principal-unstable", 400, "The client cannot be recognised in a retry",
     "The client's credentials are new in each request, so a retry would run a second time. Nothing was carried out."},
    {"request-malformed", 400, "The request body is not valid JSON",
     "The service could not parse the body, so nothing was carried out. Send a corrected request, with the same or a "
     "new key."},
}};

const ProblemText& text_of(Problem problem) noexcept { return texts[static_cast<std::size_t>(problem)]; }

// The error types of Stripe's API (stripe.com/docs/api/errors). Clients of it, and of similar services, detect an error
// only by a member `error`, not by the status. Without it they would take a refused charge for a charge.
std::string_view error_type(unsigned status) noexcept {
  if (status >= 500) return "api_error";
  return status == 409 || status == 422 ? "idempotency_error" : "invalid_request_error";
}

}  // namespace

std::string_view to_string(Problem problem) noexcept { return text_of(problem).name; }

unsigned status_of(Problem problem) noexcept { return text_of(problem).status; }

Answer problem_answer(const ProblemText& text, std::string_view docs_url, std::string_view members) {
  Answer answer;
  answer.status = text.status;
  answer.is_problem = true;
  answer.headers = {{"Content-Type", "application/problem+json"}, {"Content-Language", "en"}};
  std::string& body = answer.body;
  body.reserve(1024);
  body += R"({"type":")";
  body += docs_url.empty() ? std::string_view("urn:once:problem:") : docs_url;
  if (!docs_url.empty()) body += '#';
  body += text.name;
  body += R"(","title":")";
  body += text.title;
  body += R"(","status":)";
  body += std::to_string(text.status);
  body += R"(,"detail":")";
  body += text.detail;
  body += '"';
  body += members;
  body += R"(,"error":{"type":")";
  body += error_type(text.status);
  body += R"(","code":")";
  body += text.name;
  body += R"(","message":")";
  body += text.title;
  body += "\"}}\n";
  return answer;
}

Answer problem_answer(Problem problem, std::string_view docs_url, std::string_view detail, std::string_view members,
                      unsigned status) {
  ProblemText text = text_of(problem);
  if (status != 0) text.status = status;
  if (!detail.empty()) text.detail = detail;
  return problem_answer(text, docs_url, members);
}

}  // namespace once::http
