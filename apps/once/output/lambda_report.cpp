#include "output/lambda_report.hpp"

#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "text/base64.hpp"
#include "text/utf8.hpp"

namespace once::cli {

int LambdaReport::show(const LambdaEnd& end) {
  const auto& [word, event, environment, cold, outcome] = end;
  responses_ += word == "response" ? 1 : 0;
  errors_ += word == "error" ? 1 : 0;
  deaths_ += word == "died" ? 1 : 0;
  timeouts_ += word == "timed_out" ? 1 : 0;
  kills_ += word == "killed" ? 1 : 0;
  if (json_) return show_json(end);
  if (word == "response") return print(outcome.body.ends_with('\n') ? outcome.body : outcome.body + "\n");
  const std::string name = escaped(event);
  if (word == "error") {
    say(name + ": error " + escaped(outcome.error_type) +
        (outcome.error_message.empty() ? "" : ": " + escaped(outcome.error_message)) +
        (outcome.given ? "" : " (during its init)"));
  } else if (word == "timed_out") {
    say(name + ": timed out after " + show_duration(timeout_) + "; the function was killed");
  } else if (word == "killed") {
    say(name + ": the function was killed, because of --kill-at");
  } else {
    say(name + ": no answer: " + escaped(outcome.error_message) +
        (outcome.given ? "" : ", and it had not received the event"));
  }
  return exit_ok;
}

int LambdaReport::show_json(const LambdaEnd& end) const {
  const lambda::InvocationOutcome& outcome = end.outcome;
  nlohmann::ordered_json json{{"event", escaped(end.event)},
                              {"request_id", outcome.request_id},
                              {"outcome", end.word},
                              {"took_ms", std::chrono::duration<double, std::milli>(outcome.took).count()},
                              {"environment", end.environment + 1},
                              {"cold", end.cold}};
  if (end.word == "response" || !outcome.body.empty()) {
    json["streamed"] = outcome.streamed;
    auto response = nlohmann::ordered_json::parse(outcome.body, nullptr, false);
    if (!response.is_discarded()) {
      json["response"] = std::move(response);
    } else if (text::valid_utf8(outcome.body)) {
      json["response_text"] = outcome.body;
    } else {
      json["response_base64"] = text::encode_base64(outcome.body);
    }
  }
  if (!outcome.error_type.empty()) json["error_type"] = escaped(outcome.error_type);
  if (!outcome.error_message.empty()) json["error_message"] = escaped(outcome.error_message);
  return print(json_line(json) + "\n");
}

void LambdaReport::sum_up(std::size_t starts, Millis took) const {
  if (responses_ + errors_ + timeouts_ + deaths_ + kills_ < 2) return;
  std::string text;
  const auto add = [&](std::size_t count, std::string_view one, std::string_view many) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += std::to_string(count) + ' ' + std::string(count == 1 ? one : many);
  };
  add(responses_, "response", "responses");
  add(errors_, "error", "errors");
  add(timeouts_, "timed out", "timed out");
  add(deaths_, "without an answer", "without an answer");
  add(kills_, "killed as planned", "killed as planned");
  say(text + "; " + std::to_string(starts) + (starts == 1 ? " start of the function, " : " starts of the function, ") +
      show_duration(took) + " in all");
}

int LambdaReport::exit_code() const {
  if (timeouts_ + deaths_ > 0) return exit_function_died;
  return errors_ > 0 ? exit_function_error : exit_ok;
}

}  // namespace once::cli
