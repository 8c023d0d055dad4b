#include "operators/answers.hpp"

#include <nlohmann/json.hpp>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "operators/record_json.hpp"

namespace once::operators {

http::Answer json_answer(unsigned status, const nlohmann::ordered_json& json, std::string_view type) {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", std::string(type)}, {"Cache-Control", "no-store"}},
          .body = json_text(json)};
}

nlohmann::ordered_json problem_json(std::string_view name, unsigned status, std::string_view title,
                                    std::string_view detail) {
  return {{"type", "urn:once:problem:" + std::string(name)}, {"title", title}, {"status", status}, {"detail", detail}};
}

http::Answer operators_problem(std::string_view name, unsigned status, std::string_view title,
                               std::string_view detail) {
  return json_answer(status, problem_json(name, status, title, detail), "application/problem+json");
}

http::Answer bad_request(std::string_view detail) {
  return operators_problem("bad-request", 400, "The request is not valid", detail);
}

Exception wrong(const std::string& detail) { return {ErrorKind::misuse, detail}; }

http::Answer unauthorized(std::string_view title, std::string_view detail) {
  http::Answer answer = operators_problem("unauthorized", 401, title, detail);
  answer.headers.push_back({"WWW-Authenticate", "Bearer realm=\"once\""});
  return answer;
}

http::Answer not_allowed(const std::string& allowed) {
  http::Answer answer = operators_problem("method-not-allowed", 405, "Method not allowed", "Allowed: " + allowed);
  answer.headers.push_back({"Allow", allowed});
  return answer;
}

http::Answer store_problem(const Error& error) {
  switch (error.kind) {
    case ErrorKind::corrupt:
      return operators_problem("record-unreadable", 500, "The record cannot be read", error.message);
    case ErrorKind::misuse:
      return operators_problem("store-unavailable", 503, "The store cannot be used", error.message);
    case ErrorKind::unavailable:
    case ErrorKind::in_doubt:
      break;
  }
  return operators_problem("store-unavailable", 503, "The store does not answer", error.message);
}

http::Answer stopping() {
  return operators_problem("stopping", 503, "The program is ending", "The request was not carried out.");
}

http::Answer no_record(const std::string& stored_key) {
  return operators_problem("no-record", 404, "There is no such record",
                           "there is no record for " + quoted_stored(stored_key));
}

std::string etag(const Record& record) {
  return '"' + record.owner.hex() + '-' + std::to_string(record.revision) + '"';
}

Time store_now(const StoreAccess& access) {
  try {
    return operate::learn_now(*access.store, *system_clock()).now;
  } catch (const Exception& error) {
    throw StoreFailed(error.error());
  }
}

}  // namespace once::operators
