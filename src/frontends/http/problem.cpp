#include <once/frontends/http/problem.hpp>

#include <array>
#include <cstddef>

namespace once::http {

namespace {

// In the order of Problem.
constexpr std::array<ProblemText, 20> texts{{
    {"key-missing", 400, "Idempotency key is missing",
     "This operation needs an idempotency key. Send one that is new for each operation, such as a UUID, and the same "
     "one "
     "with every retry."},
    {"key-invalid", 400, "Idempotency key is malformed", ""},
    {"keys-differ", 400, "More than one idempotency key",
     "The request has two different idempotency keys. Send one; a key with a comma in it must be quoted."},
    {"body-unreadable", 400, "Request body cannot be read",
     "The idempotency key is to be taken from the body, and cannot: the body is no JSON, has a name twice in an "
     "object, "
     "or the key is a number over 9007199254740991, which not all programs can hold and which must be sent as a "
     "string."},
    {"body-too-large", 413, "Request body is too large",
     "A request with an idempotency key is limited in size here, and this one is over it. It was not carried out."},
    {"key-reused", 422, "Idempotency key is already used",
     "The key was used with another request. A key belongs to one request and its exact repetitions: send a new key "
     "with a new request."},
    {"in-progress", 409, "A request with this idempotency key is in progress",
     "It was sent before and has no answer yet. Send the same request again after the time in Retry-After."},
    {"outcome-unknown", 409, "The outcome of the operation is unknown",
     "It was started, and whether it took effect is not known. It is not carried out again until somebody has decided; "
     "contact the service with the idempotency key."},
    {"store-unavailable", 503, "Requests cannot be protected at the moment",
     "The store of idempotency keys cannot be used, so nothing was carried out. Send the same request again after the "
     "time in Retry-After."},
    {"record-unreadable", 500, "The record of this idempotency key cannot be read",
     "Nothing was carried out by this request. Contact the service with the idempotency key."},
    {"answer-not-kept", 410, "The answer was too large to keep",
     "The operation was carried out earlier, and is not carried out again. Its answer was given to the request that "
     "ran "
     "it, and is not available any more."},
    {"operation-failed", 500, "The operation has failed",
     "It was carried out earlier, is recorded as failed, and is not carried out again with this idempotency key."},
    {"handler-failed", 500, "The operation ended with an internal error", "Whether it took effect is not known."},
    {"claim-lost", 409, "Another request took this operation over",
     "This request ran for longer than it was entitled to, and its answer was not kept. Send the same request again "
     "after the time in Retry-After, for the answer that counts."},
    {"not-recorded", 503, "The answer could not be recorded",
     "The operation was carried out, but its answer could not be recorded. Send the same request again after the time "
     "in "
     "Retry-After."},
    {"path-unclear", 400, "The path can be read in more than one way",
     "Servers differ in what they take it for, and different rules hold for that here. Write it without dot segments, "
     "empty segments, semicolons, backslashes and needless percent-encoding."},
    {"method-unclear", 400, "The method is not written in capitals",
     "Upper and lower case differ in methods, and servers differ in whether they mind, so nothing was carried out. "
     "Write it in capitals, as in PATCH."},
    {"principal-missing", 400, "The request does not say who its client is",
     "An idempotency key belongs to one client, and the request lacks what tells clients apart here. Nothing was "
     "carried "
     "out. Send the request with your credentials."},
    {"principal-invalid", 401, "The credentials are not valid",
     "What the request says of its client is not true, or not any more. Nothing was carried out. Send the same request "
     "again with new credentials."},
    {"principal-unstable", 400, "The client cannot be known again",
     "What the request says of its client is made anew for each request, so that a retry would run a second time. "
     "Nothing was carried out."},
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
