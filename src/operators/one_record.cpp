#include "operators/one_record.hpp"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/record.hpp>

#include "operators/answers.hpp"
#include "operators/record_json.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"

namespace once::operators {

namespace {

// "result,input". Empty: none.
Payloads payloads_of(const std::string& include) {
  Payloads payloads;
  for (const std::string& part : split(include, ',')) {
    if (part == "result") {
      payloads.result = true;
    } else if (part == "steps") {
      payloads.steps = true;
    } else if (part == "input") {
      payloads.input = true;
    } else if (!part.empty()) {
      throw wrong("include has '" + escaped(part) + "'; its words are result, input and steps, with commas between");
    }
  }
  return payloads;
}

http::Answer no_payload(const std::string& detail) {
  return operators_problem("no-payload", 404, "The record has no such payload", detail);
}

http::Answer unreadable_payload(const std::string& detail) {
  return operators_problem("payload-unreadable", 500, "The payload cannot be read", detail);
}

// No browser shows it, whatever it is: it may be a page with a script, from whoever sent the request.
http::Answer file_answer(const Record& record, std::string_view part, std::string bytes) {
  return {.status = 200,
          .reason = {},
          .headers = {{"Content-Type", "application/octet-stream"},
                      {"Content-Disposition",
                       "attachment; filename=\"" + key_hash(record.key) + "-" + std::string(part) + "\""},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Content-Security-Policy", "default-src 'none'; sandbox"},
                      {"Cache-Control", "no-store"},
                      {"ETag", etag(record)}},
          .body = std::move(bytes)};
}

http::Answer raw_result(const StoreAccess& access, Record record) {
  if (record.state != State::completed && record.state != State::failed) {
    return no_payload("it is " + std::string(to_string(record.state)) + ", and has no result");
  }
  const std::vector<std::string> problems = fetch_result(access, record);
  if (!problems.empty()) return unreadable_payload(problems.front());
  if (record.result.placement == Placement::dropped) {
    return no_payload(record.result.size == 0 ? "its result could not be encoded"
                                              : "its result was too large to keep, or had no room");
  }
  if (record.result.placement == Placement::offloaded && !access.offload) {
    return no_payload("its result is at " + escaped(record.result.location) + ", and --offload is none");
  }
  std::string bytes = std::move(record.result.bytes);
  return file_answer(record, "result", std::move(bytes));
}

http::Answer raw_input(Record record) {
  if (is_sealed(record)) return unreadable_payload(sealed_error(record).message);
  if (record.input_bytes == 0) return no_payload("its input was not kept");
  std::string bytes = std::move(record.input);
  return file_answer(record, "input", std::move(bytes));
}

bool note_show(const Caller& caller, const std::string& stored_key, const std::string& parts) {
  return caller.note({{"event", "show"}, {"stored_key_hex", to_hex(stored_key)}, {"parts", parts}});
}

}  // namespace

http::Answer show_record(const StoreAccess& access, const Service& service, const Caller& caller,
                         const std::string& stored_key, std::string_view text) {
  Query query(text);
  const auto include = query.take("include");
  query.end();
  const Payloads payloads = include ? payloads_of(*include) : Payloads{.result = true, .steps = true, .input = true};
  if ((payloads.result || payloads.steps || payloads.input) &&
      !note_show(caller, stored_key, include.value_or("result,input,steps"))) {
    return not_audited();
  }
  const Answer found = blocking::get(*access.store, stored_key);
  if (found.status == AnswerStatus::failed) return store_problem(found.error);
  if (!found.record) return no_record(stored_key);
  Record record = *found.record;
  std::vector<std::string> problems;
  if (payloads.result) {
    problems = fetch_result(access, record);
  } else if (is_sealed(record) && (payloads.steps || payloads.input)) {
    problems.push_back(sealed_error(record).message);
  }
  nlohmann::ordered_json json = record_json(record, operate::now(*access.store, *system_clock()), payloads);
  if (!problems.empty()) json["problems"] = problems;
  if (record.state == State::unknown) json["service"] = service_json(service, record);
  http::Answer answer = json_answer(200, json);
  answer.headers.push_back({"ETag", etag(record)});
  return answer;
}

http::Answer raw_payload(const StoreAccess& access, const Caller& caller, const std::string& stored_key,
                         std::string_view text) {
  Query query(text);
  const std::string part = query.take("part").value_or("");
  query.end();
  if (part != "result" && part != "input") throw wrong("part must be result or input");
  if (!note_show(caller, stored_key, part)) return not_audited();
  const Answer found = blocking::get(*access.store, stored_key);
  if (found.status == AnswerStatus::failed) return store_problem(found.error);
  if (!found.record) return no_record(stored_key);
  return part == "result" ? raw_result(access, *found.record) : raw_input(*found.record);
}

}  // namespace once::operators
