// The claims API as a client speaks it: what to send, and what an answer means. Pure: docs/serve.md, and OpenAPI in
// apps/once/serve/openapi.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>
#include <once/store.hpp>

namespace once::stores {

// A result of this type stands for one that was too large to be sent: its bytes say why.
inline constexpr std::string_view not_kept_type = "application/vnd.once.not-kept";
// The largest result, so that it also fits into a failure, in Base64, in a body of 2 MiB.
inline constexpr std::size_t max_result_bytes = std::size_t{3} << 19U;

struct Sending {
  std::string method = "POST";
  std::string target;
  std::string body = {};
  std::string content_type = {};
};

struct Response {
  int status = 0;
  std::string answer = {};  // Once-Answer.
  std::string content_type = {};
  std::string retry_after = {};
  std::string attempt = {};      // Once-Attempt …
  std::string holder = {};       // … Once-Holder …
  std::string finished_at = {};  // … and Once-Finished-At.
  std::string body = {};
  std::string token_file = {};  // 401: what has the token that was refused. Empty: there is none.
};

// ---- begin

// Throws Exception(misuse) for what JSON cannot carry.
Sending begin_request(const Attempt& attempt, const EffectivePolicy& policy, Millis wait, std::string_view request_id);

struct BeginAnswer {
  // claim not empty: its ID, and `record` as the server has it, valid for so long since the request was sent.
  // Otherwise, with a record: that is in the way, and `decision` is the server's.
  // Neither: `error`. With `retry_after`, the same request may succeed then.
  std::string claim = {};
  Millis valid_for{0};
  RecordPtr record = {};
  Decision decision = {};
  Error error = {};
  bool is_unreadable = false;
  std::optional<Millis> retry_after = {};
};
// `now`: for the times of the record, of which the server tells how far away they are.
BeginAnswer read_begin(const Response& response, const Attempt& attempt, Time now);

// ---- the claim's own requests

Sending renew_request(const std::string& claim, std::string_view note);
Sending step_request(const std::string& claim, const Step& step);
// `record` is as the claim is to be left: completed, failed or unknown. `is_failure`: its result tells of a failure.
Sending finish_request(const std::string& claim, const Record& record, bool is_failure);
Sending release_request(const std::string& claim, std::string_view reason);

struct WriteAnswer {
  // done: `record`, if set, is what is stored in place of what was sent. refused: the claim is over.
  Answer answer = {};
  std::optional<Millis> valid_for = {};
  bool must_look = false;    // refused: a look says what is stored.
  bool is_finished = false;  // refused: because the claim was finished, with something else.
};
// `wanted`: "renewed", or "recorded" for all others. `sent`: what was to be stored.
WriteAnswer read_write(const Response& response, std::string_view wanted, const Record& sent);

// ---- look

// Throws Exception(misuse) as begin_request() does.
Sending look_request(std::string_view stored_key);
Answer read_look(const Response& response, std::string_view stored_key, Time now);

}  // namespace once::stores
