#include "stores/server/messages.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include <once/key.hpp>

#include "text/base64.hpp"
#include "text/hex.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::stores {

namespace {

using nlohmann::json;

constexpr std::string_view problem_prefix = "urn:once:problem:";
constexpr std::size_t max_holder_bytes = 255;
constexpr Millis max_retry_after{60'000};
constexpr Millis usual_retry_after{1'000};
constexpr std::string_view json_type = "application/json";

// Of records that are not the caller's claim.
Owner somebody() {
  Owner owner;
  owner.bytes.fill(0xff);
  return owner;
}

// What a text or number is read from. Anything but an object has no members.
class Members {
 public:
  explicit Members(const std::string& body) : json_(json::parse(body, nullptr, false)) {}

  [[nodiscard]] std::optional<std::string> text(const char* name) const {
    const json* const value = find(name);
    return value != nullptr && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::int64_t> number(const char* name) const {
    const json* const value = find(name);
    if (value == nullptr || !value->is_number_integer()) return std::nullopt;
    if (value->is_number_unsigned() && value->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      return std::nullopt;
    }
    return value->get<std::int64_t>();
  }
  [[nodiscard]] std::optional<Millis> millis(const char* name) const {
    constexpr std::int64_t most = std::int64_t{1} << 50U;  // Sums of it do not overflow.
    const auto value = number(name);
    if (!value || *value < -most || *value > most) return std::nullopt;
    return Millis{*value};
  }
  [[nodiscard]] const json* find(const char* name) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }

 private:
  json json_;
};

// The word of a problem of once. Empty: it is none.
std::string word_of(const Response& response, const Members& members) {
  if (response.status < 400) return {};
  std::string type = members.text("type").value_or("");
  return type.starts_with(problem_prefix) ? type.substr(problem_prefix.size()) : std::string();
}

std::string shown(std::string_view text) {
  constexpr std::size_t most = 300;
  return text::escape_invisible(clean_text(text, most));
}

// "answered 503 store-unavailable: …"
std::string what_was_said(const Response& response, const Members& members, const std::string& word) {
  std::string said = "the server answered " + std::to_string(response.status);
  if (word.empty()) return said + ", which is no answer of once serve: something else listens there, or a gateway does";
  said += " " + shown(word);
  if (auto detail = members.text("detail")) {
    if (detail->ends_with('.')) detail->pop_back();
    said += ": " + shown(*detail);
  }
  if (!response.token_file.empty()) said += ". Put a token that it knows into " + shown(response.token_file);
  return said;
}

// How long to wait before the same request is sent again. Empty: that is of no use.
std::optional<Millis> retry_after(const Response& response) {
  switch (response.status) {
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      break;
    default:
      return std::nullopt;
  }
  const auto seconds = text::parse_whole<std::uint64_t>(response.retry_after);
  if (!seconds) return usual_retry_after;
  return std::min(Millis{std::chrono::seconds{std::min<std::uint64_t>(*seconds, 3'600)}}, max_retry_after);
}

std::string checked_text(std::string_view text, const char* what) {
  if (text::valid_utf8(text)) return std::string(text);
  throw Exception(ErrorKind::misuse, std::string("the ") + what +
                                         " is not UTF-8, and a server takes texts only: use another, or open the "
                                         "server's own store");
}

json retention_of(Millis retention) { return retention == keep_forever ? json("never") : json(retention.count()); }

Result result_of(const Response& response) {
  if (response.content_type != not_kept_type) return Result::inlined(response.body, response.content_type);
  Result result;
  result.placement = Placement::dropped;
  return result;
}

// What is common to all records of somebody's.
Record record_of(std::string_view key, State state) {
  Record record;
  record.key = key;
  record.state = state;
  record.owner = somebody();
  record.attempt = 1;
  record.revision = next_revision(0, 0);
  return record;
}

std::uint32_t attempt_number(std::optional<std::int64_t> number) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(number.value_or(1), 1, std::numeric_limits<std::uint32_t>::max()));
}

// A result or a failure. Empty: the response has none.
std::optional<Record> finished_record(const Response& response, const Members& members, std::string_view key) {
  if (response.status == 200 && (response.answer == "replayed" || response.answer == "superseded")) {
    Record record = record_of(key, State::completed);
    record.result = result_of(response);
    record.attempt = attempt_number(text::parse_whole<std::int64_t>(response.attempt));
    record.holder = clean_text(text::percent_decoded(response.holder).value_or(""));
    record.finished_at = text::from_rfc3339(response.finished_at).value_or(Time{});
    return record;
  }
  if (response.status == 200 && response.answer == "failed") {
    Record record = record_of(key, State::failed);
    record.failure = {.code = clean_text(members.text("code").value_or(""), Failure::max_code_bytes),
                      .message = clean_text(members.text("message").value_or(""), Failure::max_message_bytes)};
    record.holder = clean_text(members.text("holder").value_or(""));
    record.finished_at = text::from_rfc3339(members.text("finished_at").value_or("")).value_or(Time{});
    const auto encoded = members.text("result");
    if (!encoded) return record;
    auto bytes = text::decode_base64(*encoded);
    if (!bytes) return std::nullopt;
    record.result = Result::inlined(std::move(*bytes), members.text("content_type").value_or(""));
    return record;
  }
  if (response.status == 410 && word_of(response, members) == "answer-not-kept") {
    Record record = record_of(key, State::completed);
    record.result.placement = Placement::dropped;
    record.result.size = static_cast<std::uint64_t>(std::max<std::int64_t>(members.number("size").value_or(0), 0));
    record.holder = clean_text(members.text("holder").value_or(""));
    return record;
  }
  return std::nullopt;
}

// In progress, or not known.
Record open_record(const Members& members, std::string_view key, std::string_view standing, Time now) {
  const bool is_unknown = standing == "unknown";
  Record record = record_of(key, is_unknown ? State::unknown : State::in_progress);
  record.attempt = attempt_number(members.number("attempt"));
  record.holder = clean_text(members.text("holder").value_or(""));
  record.note = clean_text(members.text("note").value_or(""));
  if (is_unknown) record.failure.message = clean_text(members.text("reason").value_or(""), Failure::max_message_bytes);
  if (standing == "running") {
    record.lease_until = now + std::max(members.millis("retry_after_ms").value_or(Millis{1}), Millis{1});
  } else if (standing != "released") {
    record.lease_until = Time{Millis{1}};
  }
  if (const auto expected = members.millis("expected_in_ms")) record.expected_until = now + *expected;
  return record;
}

bool is_claim(std::string_view id) {
  constexpr std::size_t most = 16'384;
  return !id.empty() && id.size() <= most && std::ranges::all_of(id, text::is_unreserved);
}

std::optional<Verdict> claiming_verdict(std::string_view word) {
  for (const Verdict verdict : {Verdict::execute, Verdict::resume, Verdict::retry, Verdict::take_over}) {
    if (to_string(verdict) == word) return verdict;
  }
  return std::nullopt;
}

// An ID begins with its version and the owner: docs/serve.md. Zeros: it is of another version.
Owner owner_of(const std::string& id) {
  constexpr std::string_view version = "01";
  constexpr std::size_t digits = 2 * sizeof Owner::bytes;
  if (!id.starts_with(version)) return {};
  return Owner::from_hex(std::string_view(id).substr(version.size(), digits)).value_or(Owner());
}

// 201
std::optional<BeginAnswer> claimed(const Members& members, const Attempt& attempt, Time now) {
  const auto id = members.text("claim");
  const auto token = members.number("token");
  const auto valid_for = members.millis("valid_for_ms");
  const auto lease = members.millis("lease_ms");
  const auto verdict = claiming_verdict(members.text("verdict").value_or(""));
  const auto key = text::from_hex(members.text("stored_key_hex").value_or(""));
  const json* const steps = members.find("steps");
  const bool is_whole = id && is_claim(*id) && token && *token > 0 && valid_for && *valid_for >= Millis{0} && lease &&
                        verdict && key && !key->empty() && steps != nullptr && steps->is_object();
  if (!is_whole) return std::nullopt;
  Record record = record_of(*key, State::in_progress);
  record.owner = owner_of(*id);
  record.token = static_cast<std::uint64_t>(*token);
  record.attempt = attempt_number(members.number("attempt"));
  record.lease_until = now + *lease;
  record.created_at = now;
  record.fingerprint = attempt.fingerprint;
  record.holder = attempt.holder;
  record.label = attempt.label;
  record.on_lapse = on_lapse_from_string(members.text("on_lapse").value_or("")).value_or(OnLapse::takeover);
  for (const auto& [name, encoded] : steps->items()) {
    auto result = encoded.is_string() ? text::decode_base64(encoded.get<std::string>()) : std::nullopt;
    if (!result) return std::nullopt;
    record.steps.push_back({name, std::move(*result)});
  }
  BeginAnswer answer;
  answer.claim = *id;
  answer.valid_for = *valid_for;
  answer.decision.verdict = *verdict;
  answer.record = share(std::move(record));
  return answer;
}

BeginAnswer seen(Record record, const Attempt& attempt, Decision decision) {
  BeginAnswer answer;
  record.label = attempt.label;
  answer.record = share(std::move(record));
  answer.decision = decision;
  return answer;
}

Error malformed(const char* what) {
  return {ErrorKind::corrupt, std::string("the server's ") + what +
                                  " cannot be read: it is of another version, or something on the way has changed it"};
}

Sending claim_request(const std::string& claim, std::string_view word, const json& members) {
  return {.target = "/v1/claims/" + claim + "/" + std::string(word),
          .body = members.empty() ? std::string() : members.dump(),
          .content_type = members.empty() ? std::string() : std::string(json_type)};
}

json reason_of(std::string_view reason) { return {{"reason", clean_text(reason)}}; }

std::string encoded(std::string_view text) {
  return text::percent_encoded(text, [](char c) { return text::is_unreserved(c) && c != '.'; });
}

}  // namespace

Sending begin_request(const Attempt& attempt, const EffectivePolicy& policy, Millis wait, std::string_view request_id) {
  const Key key = Key::from_stored(attempt.key);
  json members{{"scope", checked_text(key.scope(), "scope")},
               {"key", checked_text(key.name(), "key")},
               {"request_id", request_id},
               {"lease_ms", policy.lease.count()},
               {"retention_ms", retention_of(policy.retention)},
               {"on_lapse", to_string(policy.on_lapse)},
               {"label", attempt.label},  // Empty: none is kept.
               {"holder", clean_text(attempt.holder, max_holder_bytes)}};
  if (!attempt.fingerprint.empty()) members["fingerprint_hex"] = attempt.fingerprint.hex();
  if (wait > Millis{0}) members["wait_ms"] = wait.count();
  if (policy.failure_retention) members["failure_retention_ms"] = retention_of(*policy.failure_retention);
  if (policy.expected) members["expected_ms"] = policy.expected->count();
  if (policy.on_stored_failure == OnStoredFailure::execute) members["retry_failures"] = true;
  return {.target = "/v1/claims", .body = members.dump(), .content_type = std::string(json_type)};
}

BeginAnswer read_begin(const Response& response, const Attempt& attempt, Time now) {
  const Members members(response.body);
  if (response.status == 201 && response.answer == "claimed") {
    if (auto answer = claimed(members, attempt, now)) return *std::move(answer);
    BeginAnswer answer;
    answer.error = malformed("claim");
    return answer;
  }
  if (auto record = finished_record(response, members, attempt.key)) {
    record->fingerprint = attempt.fingerprint;
    const Verdict verdict = record->state == State::completed ? Verdict::replay : Verdict::replay_failure;
    return seen(*std::move(record), attempt, {verdict, Millis{0}});
  }
  const std::string word = word_of(response, members);
  if (word == "in-progress") {
    return seen(open_record(members, attempt.key, "running", now), attempt,
                {Verdict::conflict, std::max(members.millis("retry_after_ms").value_or(usual_retry_after), Millis{1})});
  }
  if (word == "outcome-unknown") {
    return seen(open_record(members, attempt.key, "unknown", now), attempt, {Verdict::unknown, Millis{0}});
  }
  if (word == "key-reused") {
    Record record = open_record(members, attempt.key, members.text("standing").value_or("lapsed"), now);
    record.fingerprint = Fingerprint::of("another payload");
    return seen(std::move(record), attempt, {Verdict::mismatch, Millis{0}});
  }
  BeginAnswer answer;
  answer.error = {ErrorKind::misuse, what_was_said(response, members, word)};
  answer.is_unreadable = word == "record-unreadable";
  answer.retry_after = answer.is_unreadable ? std::nullopt : retry_after(response);
  if (answer.is_unreadable) answer.error.kind = ErrorKind::corrupt;
  if (answer.retry_after) answer.error.kind = ErrorKind::unavailable;
  return answer;
}

Sending renew_request(const std::string& claim, std::string_view note) {
  json members = json::object();
  if (!note.empty()) members["note"] = clean_text(note);
  return claim_request(claim, "renew", members);
}

Sending step_request(const std::string& claim, const Step& step) {
  return {.method = "PUT",
          .target = "/v1/claims/" + claim + "/steps/" + encoded(checked_text(step.name, "step's name")),
          .body = step.result,
          .content_type = "application/octet-stream"};
}

Sending finish_request(const std::string& claim, const Record& record, bool is_failure) {
  const bool is_dropped = record.result.placement == Placement::dropped;
  switch (record.state) {
    case State::completed: {
      Sending sending{.target = "/v1/claims/" + claim + "/complete" + (is_failure ? "?kept_as=failure" : ""),
                      .body = record.result.bytes,
                      .content_type = record.result.content_type};
      if (is_dropped) {
        sending.body = "a result of " + std::to_string(record.result.size) + " bytes was too large to keep";
        sending.content_type = not_kept_type;
      }
      return sending;
    }
    case State::failed: {
      json members{{"code", record.failure.code.empty() ? "failed" : record.failure.code},
                   {"message", record.failure.message}};
      if (!is_dropped && !record.result.bytes.empty()) {
        members["result"] = text::encode_base64(record.result.bytes);
        if (!record.result.content_type.empty()) members["content_type"] = record.result.content_type;
      }
      return claim_request(claim, "fail", members);
    }
    case State::in_progress:
    case State::unknown:
      break;
  }
  return claim_request(claim, "hold", reason_of(record.failure.message.empty() ? "hold" : record.failure.message));
}

Sending release_request(const std::string& claim, std::string_view reason) {
  return claim_request(claim, "release", reason.empty() ? json::object() : reason_of(reason));
}

WriteAnswer read_write(const Response& response, std::string_view wanted, const Record& sent) {
  const Members members(response.body);
  WriteAnswer out;
  if (response.status == 200 && response.answer == wanted) {
    out.valid_for = members.millis("valid_for_ms");
    if (wanted == "renewed" && !out.valid_for) {
      const Error broken = malformed("renewal");
      out.answer = Answer::fail(ErrorKind::in_doubt, broken.message);
      return out;
    }
    Record stored = sent;
    const json* const kept = members.find("result_kept");
    if (kept != nullptr && *kept == false && sent.result.placement == Placement::inlined) {
      stored.result.size = stored.result.bytes.size();
      stored.result.bytes.clear();
      stored.result.placement = Placement::dropped;
    } else if (members.text("state") == "unknown" && sent.state == State::in_progress) {
      // An operator had set `hold`.
      stored.state = State::unknown;
      stored.on_lapse = OnLapse::hold;
      stored.failure.message = sent.note;
    } else {
      return out;
    }
    out.answer.record = share(std::move(stored));
    return out;
  }
  if (auto record = finished_record(response, members, sent.key)) {
    out.answer = Answer::refuse(share(*std::move(record)));
    return out;
  }
  const std::string word = word_of(response, members);
  const std::string said = what_was_said(response, members, word);
  if (word == "claim-lost") {
    out.answer = Answer::refuse(nullptr);
    out.must_look = members.text("state") != "none";
    return out;
  }
  if (word == "already-finished") {
    out.answer = Answer::refuse(nullptr);
    out.must_look = out.is_finished = true;
    return out;
  }
  if (response.status == 413) {
    out.answer = Answer::cannot_keep(said);
    return out;
  }
  const bool may_pass = retry_after(response) || response.status == 401;
  out.answer = Answer::fail(may_pass ? ErrorKind::in_doubt : ErrorKind::misuse, said);
  return out;
}

Sending look_request(std::string_view stored_key) {
  const Key key = Key::from_stored(stored_key);
  return {.method = "GET",
          .target = "/v1/claims?scope=" + encoded(checked_text(key.scope(), "scope")) +
                    "&key=" + encoded(checked_text(key.name(), "key"))};
}

Answer read_look(const Response& response, std::string_view stored_key, Time now) {
  const Members members(response.body);
  Answer answer;
  if (auto record = finished_record(response, members, stored_key)) {
    answer.record = share(*std::move(record));
    return answer;
  }
  const std::string word = word_of(response, members);
  if (word == "no-record") return answer;
  const std::string standing = members.text("standing").value_or("");
  const bool is_open = standing == "running" || standing == "lapsed" || standing == "released" || standing == "unknown";
  if (response.status == 200 && response.answer == "seen" && is_open) {
    answer.record = share(open_record(members, stored_key, standing, now));
    return answer;
  }
  const ErrorKind kind = word == "record-unreadable" ? ErrorKind::corrupt
                         : retry_after(response)     ? ErrorKind::unavailable
                                                     : ErrorKind::misuse;
  return Answer::fail(kind, what_was_said(response, members, word));
}

}  // namespace once::stores
