#include "serve/claims.hpp"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stop_token>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <once/clock.hpp>
#include <once/decide.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/operate.hpp>
#include <once/store.hpp>

#include "engine/tenant.hpp"
#include "operators/answers.hpp"
#include "operators/requests.hpp"
#include "operators/store_access.hpp"
#include "output/report.hpp"
#include "platform/thread.hpp"
#include "serve/claim_id.hpp"
#include "serve/description.hpp"
#include "serve/sessions.hpp"
#include "text/base64.hpp"
#include "text/missing_value.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::cli {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view claims_path = "/v1/claims";
constexpr std::chrono::milliseconds tick{250};
constexpr std::size_t most_derived = 16;
constexpr std::size_t most_holder_bytes = 255;
constexpr std::size_t most_request_bytes = 128;
constexpr std::size_t least_request_bytes = 16;

// ---- answers

http::Answer problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail,
                     ordered_json members = ordered_json::object()) {
  ordered_json json = problem_json(name, status, title, detail);
  json.update(members);
  http::Answer answer = json_answer(status, json, "application/problem+json");
  if (status == 503) answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

http::Answer told(std::string_view answer, ordered_json members = ordered_json::object()) {
  ordered_json json{{"answer", answer}};
  json.update(members);
  http::Answer out = json_answer(200, json);
  out.headers.push_back({"Once-Answer", std::string(answer)});
  return out;
}

// The word of a holder that tells whose call made the claim.
constexpr std::string_view call_word = "request:";
constexpr std::size_t call_tag_bytes = 32;

// For other clients: without the host and process of a server, and without that word.
std::string holder_for_people(const Record& record) {
  constexpr std::string_view server = " once serve";  // As the holder of each server ends.
  const std::size_t at = record.holder.find(server);
  if (at == std::string::npos) return record.holder;
  std::string_view rest = std::string_view(record.holder).substr(at + server.size());
  const auto skip = [&](std::size_t bytes) { rest.remove_prefix(std::min(bytes, rest.size())); };
  skip(1);
  if (rest.starts_with(call_word)) skip(call_word.size() + call_tag_bytes + 1);
  return rest.empty() ? "a client of once serve" : std::string(rest);
}

// What people want to know of a record that is in the way.
ordered_json members_of(const Record& record, Time now) {
  ordered_json members{{"attempt", record.attempt}, {"holder", holder_for_people(record)}};
  if (record.state == State::unknown) members["reason"] = record.failure.message;
  if (record.state == State::in_progress && record.expected_until != Time{}) {
    members["expected_in_ms"] = (record.expected_until - now).count();
  }
  return members;
}

http::Answer lost(const Record* record) {
  const ordered_json members{{"state", record == nullptr ? "none" : to_string(record->state)}};
  return problem("claim-lost", 409, "The claim is lost",
                 "Its lease ended and another call took over, or an operator did. What the work has done is not "
                 "recorded: begin again to learn what is",
                 members);
}

// `record`: what a finish has stored. Null: nothing is.
http::Answer recorded(const Record* record) {
  ordered_json members{{"state", record == nullptr ? "none" : to_string(record->state)}};
  if (record != nullptr && record->result.placement == Placement::dropped) members["result_kept"] = false;
  return told("recorded", members);
}

http::Answer finished_otherwise(const Record& record) {
  return problem("already-finished", 409, "The claim was finished already, and otherwise",
                 "The first finish counts: begin again to get it", {{"state", to_string(record.state)}});
}

http::Answer not_recorded(const Error& error) {
  if (error.kind == ErrorKind::misuse) {
    return problem("too-large", 413, "The record cannot keep this", error.message);
  }
  return problem("not-recorded", 503, "It could not be written yet", error.message + ". Send the same request again");
}

http::Answer ending() {
  http::Answer answer = stopping();
  answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

// A stored result, as its bytes.
http::Answer result_answer(std::string_view answer, const Record& record) {
  const std::string holder = holder_for_people(record);
  if (record.result.placement == Placement::dropped) {
    return problem("answer-not-kept", 410, "The result was not kept",
                   "The operation ran. Its result was too large, or had no room. It is not run again",
                   {{"size", record.result.size}, {"holder", holder}});
  }
  const std::string& type = record.result.content_type;
  http::Answer out{.status = 200,
                   .reason = {},
                   .headers = {{"Content-Type", type.empty() ? "application/octet-stream" : type},
                               {"Cache-Control", "no-store"},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Once-Answer", std::string(answer)},
                               {"Once-Attempt", std::to_string(record.attempt)},
                               {"Once-Finished-At", text::rfc3339(record.finished_at)}},
                   .body = record.result.bytes};
  if (!holder.empty()) {
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7f && c != '%'; };
    out.headers.push_back({"Once-Holder", text::percent_encoded(holder, is_plain)});
  }
  return out;
}

http::Answer failure_answer(const Record& record) {
  ordered_json members{{"code", record.failure.code},
                       {"message", record.failure.message},
                       {"holder", holder_for_people(record)},
                       {"finished_at", text::rfc3339(record.finished_at)}};
  if (record.result.placement != Placement::dropped && !record.result.bytes.empty()) {
    members["result"] = text::encode_base64(record.result.bytes);
    members["content_type"] = record.result.content_type;
  }
  return told("failed", members);
}

http::Answer key_reused(const Record& record, Time now) {
  return problem("key-reused", 422, "The key was used with another payload", "Each operation has a key of its own",
                 {{"holder", holder_for_people(record)}, {"standing", to_string(operate::standing(record, now))}});
}

http::Answer unreadable(const Error& error) {
  return problem("record-unreadable", 500, "The result cannot be read", error.message);
}

http::Answer store_failed(const Error& error) {
  http::Answer answer = store_problem(error);
  if (answer.status == 503) answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

http::Answer begin_problem(const Begin& begin, Time now) {
  switch (begin.kind) {
    case Begin::Kind::replayed:
      return result_answer("replayed", *begin.record);
    case Begin::Kind::stored_failure:
      return failure_answer(*begin.record);
    case Begin::Kind::conflict: {
      ordered_json members{{"retry_after_ms", begin.retry_after.count()}};
      members.update(members_of(*begin.record, now));
      http::Answer answer = problem("in-progress", 409, "Another call with this key is running",
                                    "Begin again after Retry-After, or wait for it with wait_ms", members);
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(begin.retry_after).count();
      answer.headers.push_back({"Retry-After", std::to_string(std::max<std::int64_t>(seconds, 1))});
      return answer;
    }
    case Begin::Kind::mismatch:
      return key_reused(*begin.record, now);
    case Begin::Kind::unknown:
      return problem("outcome-unknown", 409, "The operation began, and its outcome is not known",
                     "It is not run again until an operator, or the service, has said what became of it",
                     members_of(*begin.record, now));
    case Begin::Kind::claimed:
    case Begin::Kind::error:
      break;
  }
  if (!begin.is_unreadable) return store_failed(begin.error);
  return begin.record != nullptr && begin.record->result.placement == Placement::dropped
             ? result_answer("replayed", *begin.record)
             : unreadable(begin.error);
}

// ---- requests

// The session that a request is sent in. Number 0: none.
struct Sender {
  std::string session = {};
  std::uint64_t number = 0;
};

// An answer that somebody waits for.
struct Reply {
  Callback<void(proxy::OperatorsAnswer)> done;
  ClaimsClient client = {};
  Sender sender = {};  // Set before the request is begun.
};
using ReplyPtr = std::shared_ptr<Reply>;

enum class Op : std::uint8_t { renew, complete, fail, release, hold, step };

std::optional<Op> op_from_string(std::string_view word) {
  static constexpr std::pair<std::string_view, Op> words[] = {{"renew", Op::renew},
                                                              {"complete", Op::complete},
                                                              {"fail", Op::fail},
                                                              {"release", Op::release},
                                                              {"hold", Op::hold}};
  for (const auto& [name, op] : words) {
    if (name == word) return op;
  }
  return std::nullopt;
}

// What a client asks of its claim.
struct Asked {
  Op op = Op::renew;
  bool is_failure = false;  // complete: the result tells of one, and is kept as long as failures are.
  Result result;            // complete, fail, step.
  Failure failure;          // fail.
  std::string text;         // release, hold: the reason. step: the name. renew: a note.
  int tries = 0;            // How often the claim was taken up again for it.

  // Two requests with one digest ask for the same.
  [[nodiscard]] std::string digest() const {
    std::string all;
    for (const std::string* const part :
         {&result.bytes, &result.content_type, &failure.code, &failure.message, &text}) {
      all += std::to_string(part->size()) + ":" + *part;
    }
    return std::to_string(static_cast<int>(op)) + (is_failure ? "f" : "") + to_hex(sha256(all));
  }
  // Writes of one name take turns: a step, or the finish.
  [[nodiscard]] std::string name() const { return op == Op::step ? text : std::string(); }
};

Asked read_asked(Op op, const http::Request& request) {
  Asked asked{.op = op, .result = {}, .failure = {}, .text = {}};
  const std::string_view* const type = header_of(request, "Content-Type");
  if (op == Op::complete) {
    asked.result = Result::inlined(std::string(request.body), type == nullptr ? std::string() : std::string(*type));
    check(asked.result);
    return asked;
  }
  if (request.body.empty()) {
    if (op == Op::renew || op == Op::release) return asked;
    throw wrong("the body is missing: JSON, as docs/serve.md has it");
  }
  Members members(request.body);
  if (op == Op::fail) {
    const auto code = members.text("code");
    if (!code || code->empty()) throw wrong("'code' is missing: a short word for programs, such as card_declined");
    asked.failure = {.code = *code, .message = members.text("message").value_or("")};
    if (code->size() > Failure::max_code_bytes || asked.failure.message.size() > Failure::max_message_bytes) {
      throw wrong("'code' has at most 255 bytes, 'message' 4096");  // Cut, it would not be what is repeated.
    }
    const auto type_of_result = members.text("content_type");
    if (const auto bytes = members.text("result")) {
      std::string why;
      auto decoded = text::decode_base64(*bytes, {}, &why);
      if (!decoded) throw wrong("'result' is not Base64: " + why);
      asked.result = Result::inlined(std::move(*decoded), type_of_result.value_or(""));
      check(asked.result);
    } else if (type_of_result) {
      throw wrong("'content_type' is the type of 'result', which is missing");
    }
  } else {
    asked.text = members.text(op == Op::renew ? "note" : "reason").value_or("");
    if (op == Op::hold && asked.text.empty()) throw wrong("'reason' is missing: what an operator should know");
  }
  members.end();
  return asked;
}

std::string word_of(const std::string& tag) { return std::string(call_word) + tag; }

// As the record has it, behind the server's own.
std::string holder_of(const ClaimId& id) {
  if (id.tag.empty()) return id.holder;
  return id.holder.empty() ? word_of(id.tag) : word_of(id.tag) + " " + id.holder;
}

// POST /v1/claims
struct Wanted {
  Request request;
  Millis wait{0};
  ClaimId id;  // Without its owner.
  std::vector<std::string> derive;
};

Millis millis_of(Members& members, const char* name, Millis usual) {
  const auto number = members.number(name);
  if (!number) return usual;
  if (*number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / 2)) {
    throw wrong(std::string("'") + name + "' is too large");
  }
  return Millis{static_cast<std::int64_t>(*number)};
}

// A number, or the word "never".
Millis retention_of(Members& members, const char* name, Millis usual) {
  if (!members.is_text(name)) return millis_of(members, name, usual);
  if (members.text(name) != "never") throw wrong(std::string("'") + name + "' must be a whole number, or never");
  return keep_forever;
}

// What is compared, in one of three forms: a text, JSON, or the record's own bytes.
Fingerprint fingerprint_of(const std::optional<std::string>& text, const std::optional<std::string>& json,
                           const std::optional<std::string>& hex) {
  if ((text ? 1 : 0) + (json ? 1 : 0) + (hex ? 1 : 0) > 1) {
    throw wrong("'fingerprint', 'payload_json' and 'fingerprint_hex' all say what is compared: give one of them");
  }
  if ((text && text->empty()) || (hex && hex->empty())) {
    throw wrong("'fingerprint' is empty: nothing would be compared. Leave it out to say so");
  }
  if (hex) return Fingerprint(parse_hex(*hex, "'fingerprint_hex'"));
  if (json) return Fingerprint::of(keys::canonical_text(*json));
  return text ? Fingerprint::of(*text) : Fingerprint();
}

// It would be the same for all calls of a client with that bug.
void refuse_bug(const std::string& text, const char* name) {
  if (!text::is_missing_value(text)) return;
  throw wrong(std::string("'") + name + "' is the text of a missing value, as a program with a bug sends it");
}

std::string key_name(const std::optional<std::string>& name) {
  if (!name || name->empty()) throw wrong("'key' is missing: what names the operation, such as order-17");
  refuse_bug(*name, "key");
  return *name;
}

// The engine makes the tenant the last part of the scope, so a client's own scope must not end with one.
Key key_of(const std::string& scope, const std::string& name) {
  Key key(scope, name);
  if (has_tenant(key)) throw wrong("'scope' must not end with a tenant, as in /@tenant=blue: the server adds it");
  return key;
}

// For calls of the engine, which refuses keys of a tenant otherwise.
class WithinTenant {
 public:
  explicit WithinTenant(const std::string& tenant) {
    if (!tenant.empty()) within_.emplace(InvocationFacts{.tenant = tenant});
  }

 private:
  std::optional<WithinInvocation> within_;
};

Wanted read_wanted(const http::Request& request, const Engine& engine, Millis max_wait, const std::string& tenant) {
  Members members(request.body);
  members.refuse_nulls();
  const std::string scope = members.text("scope").value_or("");
  const std::string name = key_name(members.text("key"));
  const EffectivePolicy usual = effective(engine.options().policy);
  Policy policy;
  policy.lease = millis_of(members, "lease_ms", usual.lease);
  policy.retention = retention_of(members, "retention_ms", usual.retention);
  if (members.has("failure_retention_ms")) {
    policy.failure_retention = retention_of(members, "failure_retention_ms", Millis{0});
  }
  if (members.has("expected_ms")) policy.expected = millis_of(members, "expected_ms", Millis{0});
  const Millis wait = millis_of(members, "wait_ms", Millis{0});
  if (wait > max_wait) throw wrong("'wait_ms' is over " + std::to_string(max_wait.count()));
  if (const auto word = members.text("on_lapse")) {
    if (*word != "takeover" && *word != "hold") throw wrong("'on_lapse' must be takeover or hold");
    policy.on_lapse = *word == "hold" ? OnLapse::hold : OnLapse::takeover;
  }
  if (members.flag("retry_failures")) policy.on_stored_failure = OnStoredFailure::execute;
  check(policy);
  Key key = key_of(scope, name);
  const Fingerprint fingerprint =
      fingerprint_of(members.text("fingerprint"), members.text("payload_json"), members.text("fingerprint_hex"));
  Wanted wanted{.request = {.key = key, .fingerprint = fingerprint, .policy = policy},
                .wait = wait,
                .id = {.owner = {},
                       .lease = *policy.lease,
                       .retention = *policy.retention,
                       .failure_retention = policy.failure_retention,
                       .fingerprint = fingerprint,
                       .tag = {},
                       .holder = members.text("holder").value_or(""),
                       .key = key,
                       .tenant = tenant},
                .derive = members.texts("derive").value_or(std::vector<std::string>())};
  wanted.request.key = wanted.id.stored_key();
  wanted.request.label = members.text("label").value_or(name);
  if (wanted.id.holder.size() > most_holder_bytes) throw wrong("'holder' has more than 255 bytes");
  if (const auto id = members.text("request_id")) {
    if (id->size() < least_request_bytes || id->size() > most_request_bytes) {
      throw wrong("'request_id' must have 16 to 128 characters, drawn at random for each call");
    }
    refuse_bug(*id, "request_id");
    wanted.id.tag = to_hex(sha256(request.body)).substr(0, 32);
  }
  wanted.request.holder = holder_of(wanted.id);
  if (wanted.derive.size() > most_derived) throw wrong("'derive' has more than 16 names");
  members.end();
  return wanted;
}

// A word of a holder.
bool has_word(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  const std::size_t end = at + word.size();
  return at != std::string_view::npos && (at == 0 || text[at - 1] == ' ') && (end == text.size() || text[end] == ' ');
}

bool is_same_result(const Result& stored, const Result& asked) {
  if (stored.content_type != asked.content_type) return false;
  if (stored.placement == Placement::inlined) return stored.bytes == asked.bytes;
  return stored.size == asked.bytes.size() && stored.digest == sha256(asked.bytes);
}

// Whether the record is as the finish that is asked for would leave it.
bool is_as_asked(const Record& record, const Asked& asked) {
  switch (asked.op) {
    case Op::complete:
      return record.state == State::completed && is_same_result(record.result, asked.result);
    case Op::fail:
      return record.state == State::failed && record.failure == asked.failure &&
             is_same_result(record.result, asked.result);
    case Op::hold:
      return record.state == State::unknown &&
             record.failure.message == clean_text(asked.text, Failure::max_message_bytes);
    case Op::release:
      return is_released(record);
    case Op::renew:
    case Op::step:
      return false;
  }
  return false;
}

}  // namespace

class Claims::Shared : public std::enable_shared_from_this<Shared> {
 public:
  Shared(std::shared_ptr<Engine> engine, ClaimsOptions options)
      : engine_(std::move(engine)),
        options_(std::move(options)),
        clock_(engine_->options().clock),
        used_at_(clock_->uptime()),
        sessions_(clock_, engine_->options().random,
                  {.most_open = std::min<std::size_t>(ClaimSessionsOptions().most_open, options_.most_open)},
                  [this](const std::string& id) { session_ended(id); }) {}

  void answer(const http::Request& request, ClaimsClient client, Callback<void(proxy::OperatorsAnswer)> done) {
    auto reply = std::make_shared<Reply>(Reply{.done = std::move(done), .client = std::move(client)});
    bool is_ending = false;
    {
      const std::lock_guard lock(mutex_);
      is_ending = ending_;
      if (!is_ending) replies_.insert(reply);
      used_at_ = clock_->uptime();
    }
    if (is_ending) return reply->done(ending());
    try {
      if (auto at_once = route(request, reply)) give(reply, std::move(*at_once));
    } catch (const Exception& error) {
      give(reply, error.kind() == ErrorKind::misuse ? bad_request(error.what()) : store_problem(error.error()));
    } catch (const std::exception& error) {  // A mistake here, or no memory. It must not end the process.
      say(std::string("the claims API failed: ") + error.what());
      give(reply,
           problem("internal", 500, "The request could not be answered", "Standard error of the server says why"));
    }
  }

  void stop() {
    std::unordered_set<ReplyPtr> replies;
    std::map<std::string, OpenPtr> open;
    std::map<std::string, Begun> begun;  // Handles are dropped without the mutex.
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      replies.swap(replies_);
      open.swap(open_);
      begun.swap(by_call_);
    }
    news_.notify_all();
    for (const ReplyPtr& reply : replies) reply->done(ending());
    sessions_.stop();
  }

  // Drops the handles of silent clients, until stop(), or until the server ends by itself.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      news_.wait_for(lock, tick);
      const Uptime now = clock_->uptime();
      std::vector<OpenPtr> silent;
      std::vector<OpenPtr> doubtful;
      for (const auto& [owner, open] : open_) {
        if (open->calls > 0) continue;
        const bool in_session = !in_sessions_.empty() && in_sessions_.contains(name_of(open->id));
        if (!in_session && open->silent_at <= now) silent.push_back(open);
        if (in_session && open->claim.loss_token().stop_requested()) doubtful.push_back(open);
      }
      std::vector<std::pair<ClaimId, Sender>> again;
      for (const OpenPtr& open : doubtful) {
        forget(*open);
        again.emplace_back(open->id, in_sessions_.at(name_of(open->id)));
      }
      for (const OpenPtr& open : silent) forget(*open);
      dropped_ += silent.size();
      const bool is_unused = is_idle(now);
      if (is_unused) ending_ = true;  // Nobody's request is under way, and none is begun.
      lock.unlock();
      silent.clear();
      doubtful.clear();  // Before: the newest handle has the claim.
      for (auto& [id, sender] : again) look_again(id, std::move(sender));
      sessions_.look();
      if (is_unused) return options_.on_end("nobody has used it for a while, and no claim is open");
      if (options_.is_store_gone && options_.is_store_gone()) {
        return options_.on_end("the store's file was deleted or replaced, so that this server can serve nobody");
      }
      lock.lock();
    }
  }

  std::string metrics() const {
    const std::lock_guard lock(mutex_);
    return "# HELP once_serve_claims_open Claims whose handles this server keeps.\n"
           "# TYPE once_serve_claims_open gauge\n"
           "once_serve_claims_open " +
           std::to_string(open_.size()) +
           "\n# HELP once_serve_claims_dropped_total Claims whose clients were silent for a lease.\n"
           "# TYPE once_serve_claims_dropped_total counter\n"
           "once_serve_claims_dropped_total " +
           std::to_string(dropped_) +
           "\n# HELP once_serve_sessions_open Clients that say by a stream that they live.\n"
           "# TYPE once_serve_sessions_open gauge\n"
           "once_serve_sessions_open " +
           std::to_string(sessions_.count()) + "\n";
  }

 private:
  // A write that is under way, and who waits for it.
  struct Writing {
    std::string digest;
    std::vector<ReplyPtr> waiting;
  };

  // A claim whose handle is here. All but `claim` and `id` is guarded by the mutex.
  struct Open {
    Claim claim;
    ClaimId id;
    Uptime silent_at{};                       // Its client must say something before.
    std::size_t calls = 0;                    // Under way.
    std::size_t promised = 0;                 // Answers with its ID that may have reached the client.
    bool is_new = false;                      // No other call has run for this key: it may be released unseen.
    bool is_used = false;                     // The client has used the ID.
    std::map<std::string, Writing> writes{};  // By Asked::name().
  };
  using OpenPtr = std::shared_ptr<Open>;
  // `open` null: `over` says why.
  using Taken = std::function<void(const OpenPtr& open, const Finish& over)>;

  Time now() const { return operate::now(*engine_->options().store, *clock_); }

  // With the mutex locked.
  bool is_idle(Uptime now) const {
    return options_.idle > Millis{0} && replies_.empty() && open_.empty() && attaching_.empty() && beginning_ == 0 &&
           sessions_.count() == 0 && used_at_ + options_.idle <= now;
  }

  // ---- answering

  void give(const ReplyPtr& reply, proxy::OperatorsAnswer answer) {
    {
      const std::lock_guard lock(mutex_);
      if (replies_.erase(reply) == 0) return;  // It was answered when the end came.
      used_at_ = clock_->uptime();
    }
    reply->done(std::move(answer));
  }

  std::optional<http::Answer> route(const http::Request& request, const ReplyPtr& reply) {
    const auto question = request.target.find('?');
    std::string_view path = request.target.substr(0, question);
    Query query(question == std::string_view::npos ? std::string_view() : request.target.substr(question + 1));
    if (path == claims_path && is_read(request)) {
      look(std::move(query), reply);
      return std::nullopt;
    }
    const bool completes = request.method == "POST" && path.ends_with("/complete");  // PUT: a step of that name.
    const std::optional<std::string> kept_as = completes ? query.take("kept_as") : std::nullopt;
    if (kept_as && *kept_as != "failure") throw wrong("'kept_as' must be failure");
    query.end();
    if (path == "/v1/version") {
      if (!is_read(request)) return not_allowed("GET, HEAD");
      return json_answer(200, {{"program", "once"}, {"version", ONCE_VERSION}, {"api", claims_api_version}});
    }
    if (path == "/v1/openapi.json") return is_read(request) ? serve::description() : not_allowed("GET, HEAD");
    const std::string_view* const session = header_of(request, "Once-Claim-Session");
    if (path == "/v1/sessions") {
      if (request.method != "POST") return not_allowed("POST");
      if (session != nullptr || !request.body.empty()) throw wrong("a session is opened without a body and a session");
      give(reply, sessions_.open(reply->client.process, reply->client.tenant));
      return std::nullopt;
    }
    if (session != nullptr) {
      const auto number = sessions_.number_of(std::string(*session), reply->client.tenant);
      if (!number) return no_session();
      reply->sender = {std::string(*session), *number};
    }
    if (path == claims_path) {
      if (request.method != "POST") return not_allowed("GET, HEAD, POST");
      if (auto refused = refuse_other_than_json(request)) return refused;
      begin(request, reply);
      return std::nullopt;
    }
    if (!path.starts_with(claims_path) || path[claims_path.size()] != '/') return not_found();
    path.remove_prefix(claims_path.size() + 1);
    const auto slash = path.find('/');
    if (slash == std::string_view::npos) return not_found();
    const std::string_view digits = path.substr(0, slash);
    std::string_view word = path.substr(slash + 1);
    if (word.starts_with("steps/")) {
      word.remove_prefix(6);
      if (request.method != "PUT") return not_allowed("PUT");
      if (text::has_broken_percent(word)) throw wrong("the step's name has a % without two digits");
      std::string name = text::percent_decoded(word, [](char) { return true; });
      if (name.empty() || name.size() > Step::max_name_bytes || !text::valid_utf8(name)) {
        throw wrong("a step's name has 1 to 255 bytes of UTF-8");
      }
      use(ClaimId::from_text(digits, reply->client.tenant),
          {.op = Op::step,
           .result = Result::inlined(std::string(request.body)),
           .failure = {},
           .text = std::move(name)},
          reply);
      return std::nullopt;
    }
    const std::optional<Op> op = op_from_string(word);
    if (!op) return not_found();
    if (request.method != "POST") return not_allowed("POST");
    if (*op != Op::complete && !request.body.empty()) {
      if (auto refused = refuse_other_than_json(request)) return refused;
    }
    Asked asked = read_asked(*op, request);
    asked.is_failure = kept_as.has_value();
    use(ClaimId::from_text(digits, reply->client.tenant), std::move(asked), reply);
    return std::nullopt;
  }

  static http::Answer not_found() {
    return operators_problem("not-found", 404, "There is nothing at this path",
                             "/v1/openapi.json describes all paths. Those of a claim are /v1/claims/CLAIM/WORD and "
                             "/v1/claims/CLAIM/steps/NAME, where WORD is renew, complete, fail, release or hold.");
  }

  // ---- sessions

  static http::Answer no_session() {
    return problem("no-session", 409, "The session is not open",
                   "Open one by POST /v1/sessions, and send the same request in that one");
  }

  // Of the call that made the claim. Empty: it has no tag. A tag has a fixed length.
  static std::string call_of(const ClaimId& id) { return id.tag.empty() ? std::string() : id.tag + id.tenant; }

  // Of a claim, also while no handle of it is here.
  static std::string name_of(const ClaimId& id) { return id.owner.hex() + id.stored_key().stored(); }

  // Its claims are not renewed any more, and lapse. A request in another session takes them up.
  void session_ended(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const Uptime now = clock_->uptime();
    std::erase_if(in_sessions_, [&](const auto& one) {
      if (one.second.session != id) return false;
      const auto at = open_.find(one.first.substr(0, 2 * sizeof Owner::bytes));
      if (at != open_.end()) at->second->silent_at = std::min(at->second->silent_at, now);
      return true;
    });
    displaced_.erase(id);
    used_at_ = now;
  }

  // A claim belongs to the newest session that it was used in. False: to another one than the sender's. One that was
  // displaced has lost it for good, also when the newer one has ended: its client was told to stop.
  bool join(const OpenPtr& open, const Sender& sender) {
    const std::string name = name_of(open->id);
    std::string older;
    {
      const std::lock_guard lock(mutex_);
      const auto at = in_sessions_.find(name);
      if (at != in_sessions_.end() && at->second.number > sender.number) return false;
      if (sender.number == 0) return true;
      const auto of_sender = displaced_.find(sender.session);
      if (of_sender != displaced_.end() && of_sender->second.contains(name)) return false;
      if (at != in_sessions_.end() && at->second.number < sender.number) {
        older = at->second.session;
        displaced_[older].insert(name);
      }
      in_sessions_[name] = sender;
    }
    // They may have ended since they were looked up.
    for (const std::string& session : {sender.session, older}) {
      if (!session.empty() && !sessions_.number_of(session, open->id.tenant)) session_ended(session);
    }
    if (!older.empty()) sessions_.tell(older, {{"event", "lost"}, {"claim", open->id.text()}});
    return true;
  }

  // The claim of a live session may be lost: the record says.
  void look_again(const ClaimId& id, Sender sender) {
    take_up(id, [self = shared_from_this(), id, sender = std::move(sender)](const OpenPtr& taken, const Finish& over) {
      if (taken) {
        static_cast<void>(self->join(taken, sender));
        return self->done_with(taken);
      }
      self->sessions_.tell(sender.session,
                           {{"event", is_known(over, id.owner) ? "lost" : "unconfirmed"}, {"claim", id.text()}});
    });
  }

  // Whether the record says that the claim is over.
  static bool is_known(const Finish& over, const Owner& owner) {
    if (over.kind == Finish::Kind::unrecorded || over.kind == Finish::Kind::declined) return false;
    return over.kind != Finish::Kind::lost || !is_still_of(over.record.get(), owner);
  }

  static bool is_still_of(const Record* record, const Owner& owner) {
    return record != nullptr && record->owner == owner && record->state == State::in_progress && !is_released(*record);
  }

  // ---- look: what is stored, without a claim

  void look(Query query, const ReplyPtr& reply) {
    const std::string scope = query.take("scope").value_or("");
    const std::string name = key_name(query.take("key"));
    auto attempt = std::make_shared<Attempt>();
    attempt->fingerprint =
        fingerprint_of(query.take("fingerprint"), query.take("payload_json"), query.take("fingerprint_hex"));
    query.end();
    attempt->key = with_tenant(key_of(scope, name), reply->client.tenant).stored();
    engine_->options().random->fill(attempt->owner.bytes);  // No record's.
    engine_->options().store->get(attempt->key, [self = shared_from_this(), attempt, reply](Answer&& answer) {
      if (answer.status == AnswerStatus::failed) return self->give(reply, store_failed(answer.error));
      self->looked(*attempt, std::move(answer.record), reply);
    });
  }

  void looked(const Attempt& attempt, std::shared_ptr<const Record> record, const ReplyPtr& reply) {
    const EngineOptions& options = engine_->options();
    if (record != nullptr && is_sealed(*record)) return give(reply, store_failed(sealed_error(*record)));
    const Time now = this->now();
    const bool is_open = record != nullptr && record->state == State::in_progress;
    const Decision decision = decide(record.get(), attempt, effective(options.policy), now);
    if (record == nullptr || is_expired(record->expires_at, now)) {
      return give(reply, problem("no-record", 404, "Nothing is stored for this key", "The next call would run"));
    }
    if (decision.verdict == Verdict::mismatch) return give(reply, key_reused(*record, now));
    if (is_open || decision.verdict == Verdict::unknown) {
      ordered_json members{{"standing", to_string(operate::standing(*record, now))}};
      members.update(members_of(*record, now));
      if (decision.verdict == Verdict::conflict) members["retry_after_ms"] = decision.retry_after.count();
      if (is_open && !record->note.empty()) members["note"] = record->note;
      return give(reply, told("seen", members));
    }
    fetch_result(options.offload, record->result, [self = shared_from_this(), record, reply](FetchedResult fetched) {
      if (fetched.error) return self->give(reply, unreadable(*fetched.error));
      Record whole = *record;
      whole.result = std::move(fetched.result);
      self->give(reply, whole.state == State::completed ? result_answer("replayed", whole) : failure_answer(whole));
    });
  }

  // ---- begin

  // One that is under way, or whose claim is open. The same request again gets the same answer.
  struct Begun {
    std::vector<ReplyPtr> waiting;
    OpenPtr open;
  };

  struct Beginning {
    Wanted wanted;
    ReplyPtr reply;  // Null: those of by_call_ wait.
    bool waits = false;
    bool has_taken_up = false;
  };
  using BeginningPtr = std::shared_ptr<Beginning>;

  void begin(const http::Request& request, const ReplyPtr& reply) {
    constexpr std::size_t most_bytes = std::size_t{64} * 1024;  // It is kept while the call waits.
    if (request.body.size() > most_bytes) throw wrong("the body is over 64 KiB: send a fingerprint, not the payload");
    const auto beginning = std::make_shared<Beginning>(
        Beginning{read_wanted(request, *engine_, options_.max_wait, reply->client.tenant), nullptr});
    const Wanted& wanted = beginning->wanted;
    const std::string call = call_of(wanted.id);
    OpenPtr given;  // The claim that this call was given before. Whether it stands, the store says.
    bool is_full = false;
    {
      const std::lock_guard lock(mutex_);
      const auto at = by_call_.find(call);
      if (at != by_call_.end() && !at->second.open) {
        at->second.waiting.push_back(reply);
        return;
      }
      if (at != by_call_.end()) {
        given = at->second.open;
        forget(*given);
      }
      if (open_.size() + beginning_ >= options_.most_open) {
        is_full = true;
      } else {
        ++beginning_;
        if (call.empty()) {
          beginning->reply = reply;
        } else {
          by_call_[call].waiting.push_back(reply);
        }
      }
    }
    if (is_full) {
      return give(reply, problem("too-many-claims", 503, "Too many claims are open",
                                 "Finish some, or raise --max-claims: " + std::to_string(options_.most_open)));
    }
    given.reset();  // Else the engine would answer by what it knows.
    // Its own claim of before a restart must not be waited for.
    start(beginning, call.empty() ? wanted.wait : Millis{0});
  }

  void start(const BeginningPtr& beginning, Millis wait) {
    Request request = beginning->wanted.request;
    request.policy->on_conflict = wait > Millis{0} ? OnConflict::wait : OnConflict::fail;
    request.policy->wait = wait;
    beginning->waits = wait > Millis{0};
    try {
      const WithinTenant within(beginning->wanted.id.tenant);
      engine_->begin(std::move(request), [self = shared_from_this(), beginning](Begin&& begin) {
        self->begun(beginning, std::move(begin));
      });
    } catch (const Exception& error) {
      Begin failed;
      failed.error = error.error();
      answer_all(*beginning, begin_problem(failed, now()));
    }
  }

  void begun(const BeginningPtr& beginning, Begin&& begin) {
    const Wanted& wanted = beginning->wanted;
    if (begin.kind == Begin::Kind::claimed) return claimed(*beginning, std::move(begin.claim), begin.verdict);
    const bool is_conflict = begin.kind == Begin::Kind::conflict && !wanted.id.tag.empty();
    if (is_conflict && has_word(begin.record->holder, word_of(wanted.id.tag)) &&
        !std::exchange(beginning->has_taken_up, true)) {
      // Its answer was lost, perhaps with the server that gave it.
      ClaimId id = wanted.id;
      id.owner = begin.record->owner;
      return take_up(id, [self = shared_from_this(), beginning](const OpenPtr& open, const Finish& over) {
        if (open) return self->resumed(beginning, open);
        if (over.kind == Finish::Kind::unrecorded) return self->answer_all(*beginning, not_recorded(over.error));
        self->start(beginning, beginning->wanted.wait);
      });
    }
    if (is_conflict && !beginning->waits && wanted.wait > Millis{0}) return start(beginning, wanted.wait);
    answer_all(*beginning, begin_problem(begin, now()));
  }

  // With the mutex locked. Who waits, and that the claim is theirs.
  std::vector<ReplyPtr> promised(Beginning& beginning, const OpenPtr& open) {
    --beginning_;
    std::vector<ReplyPtr> waiting;
    if (beginning.reply) {
      waiting.push_back(beginning.reply);
    } else if (const auto at = by_call_.find(call_of(open->id)); at != by_call_.end()) {
      waiting.swap(at->second.waiting);
      at->second.open = open;
    }
    std::erase_if(waiting, [this](const ReplyPtr& reply) { return !replies_.contains(reply); });
    for (std::size_t i = 0; i < waiting.size(); ++i) promise(*open);
    return waiting;
  }

  void claimed(Beginning& beginning, Claim claim, Verdict verdict) {
    auto open = std::make_shared<Open>(Open{.claim = std::move(claim), .id = beginning.wanted.id});
    open->id.owner = open->claim.owner();
    open->is_new = verdict == Verdict::execute;
    std::vector<ReplyPtr> waiting;
    bool is_given = false;
    {
      const std::lock_guard lock(mutex_);
      waiting = promised(beginning, open);
      is_given = !waiting.empty() && !ending_;
      if (is_given) {
        open_[open->id.owner.hex()] = open;
      } else {
        forget(*open);
      }
    }
    // The program ends: nobody was given the claim, and nothing has run.
    if (!is_given && open->is_new) open->claim.release("the server ended before it could answer", [](Finish&&) {});
    give_claim(open, verdict, beginning.wanted.derive, waiting);
  }

  // The client may have its claim already: it is never released here.
  void resumed(const BeginningPtr& beginning, const OpenPtr& open) {
    std::vector<ReplyPtr> waiting;
    bool is_forgotten = false;
    {
      const std::lock_guard lock(mutex_);
      is_forgotten = !has(*open);  // It was finished meanwhile.
      if (!is_forgotten) waiting = promised(*beginning, open);
    }
    if (!is_forgotten) give_claim(open, Verdict::resume, beginning->wanted.derive, waiting);
    done_with(open);
    if (is_forgotten) start(beginning, beginning->wanted.wait);
  }

  // The same call may have come in several sessions: the newest has the claim.
  void give_claim(const OpenPtr& open, Verdict verdict, const std::vector<std::string>& derive,
                  const std::vector<ReplyPtr>& waiting) {
    std::vector<bool> joined;
    joined.reserve(waiting.size());
    for (const ReplyPtr& reply : waiting) joined.push_back(join(open, reply->sender));
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (joined[i]) {
        give(waiting[i], claimed_answer(open, verdict, derive));
      } else {
        give(waiting[i], displaced());
      }
    }
  }

  void answer_all(Beginning& beginning, const http::Answer& answer) {
    std::vector<ReplyPtr> waiting;
    if (beginning.reply) waiting.push_back(beginning.reply);
    {
      const std::lock_guard lock(mutex_);
      --beginning_;
      if (const auto at = by_call_.find(call_of(beginning.wanted.id)); !beginning.reply && at != by_call_.end()) {
        waiting.swap(at->second.waiting);
        by_call_.erase(at);
      }
    }
    for (const ReplyPtr& reply : waiting) give(reply, answer);
  }

  proxy::OperatorsAnswer claimed_answer(const OpenPtr& open, Verdict verdict, const std::vector<std::string>& derive) {
    const Record record = open->claim.record();
    ordered_json json{{"claim", open->id.text()},           {"stored_key_hex", to_hex(open->claim.key())},
                      {"verdict", to_string(verdict)},      {"attempt", open->claim.attempt()},
                      {"token", open->claim.token()},       {"on_lapse", to_string(record.on_lapse)},
                      {"lease_ms", open->id.lease.count()}, {"valid_for_ms", valid_for(*open).count()},
                      {"steps", ordered_json::object()},    {"derived_keys", ordered_json::object()}};
    ordered_json& steps = json["steps"];
    for (const Step& step : record.steps) steps[step.name] = text::encode_base64(step.result);
    for (const std::string& name : derive) json["derived_keys"][name] = open->claim.derived_key(name);
    proxy::OperatorsAnswer answer(json_answer(201, json));
    answer.headers.push_back({"Once-Answer", "claimed"});
    answer.unsent = [self = shared_from_this(), open] { self->unsent(open); };
    return answer;
  }

  // With the mutex locked.
  void promise(Open& open) {
    ++open.promised;
    open.silent_at = clock_->uptime() + open.id.lease;
  }

  // The client had gone before its answer was sent, so it has never learnt of the claim: nothing has run.
  void unsent(const OpenPtr& open) {
    {
      const std::lock_guard lock(mutex_);
      // Of a claim that another call has run for, what stood there before is to stay. It lapses.
      if (--open->promised > 0 || open->is_used || !forget(*open) || !open->is_new) return;
      in_sessions_.erase(name_of(open->id));
    }
    open->claim.release("the client had gone before it was answered", [](Finish&&) {});
  }

  // ---- the claim's own requests

  static http::Answer displaced() {
    return problem("claim-lost", 409, "The claim is lost", "A newer session has it, which used its ID");
  }

  void use(const ClaimId& id, Asked asked, const ReplyPtr& reply) {
    auto kept = std::make_shared<Asked>(std::move(asked));
    const Owner owner = id.owner;
    take_up(id, [self = shared_from_this(), kept, owner, reply](const OpenPtr& open, const Finish& over) {
      if (!open) return self->give(reply, over_answer(*kept, owner, over));
      if (!self->join(open, reply->sender)) {
        self->done_with(open);
        return self->give(reply, displaced());
      }
      switch (kept->op) {
        case Op::renew:
          return self->renew(open, *kept, reply);
        case Op::step:
          return self->step(open, *kept, reply);
        case Op::complete:
        case Op::fail:
        case Op::release:
        case Op::hold:
          return self->finish(open, *kept, reply);
      }
    });
  }

  void attach(const ClaimId& id, Callback<void(Attached&&)> done) {
    auto kept = std::make_shared<Callback<void(Attached&&)>>(std::move(done));
    try {
      const WithinTenant within(id.tenant);
      engine_->attach(
          {.key = id.stored_key(), .fingerprint = id.fingerprint, .policy = id.policy(), .holder = holder_of(id)},
          id.owner, [kept](Attached&& attached) { (*kept)(std::move(attached)); });
    } catch (const Exception& error) {
      Attached failed;
      failed.finish = {.kind = Finish::Kind::unrecorded, .record = nullptr, .error = error.error()};
      (*kept)(std::move(failed));
    }
  }

  // Each `then` that gets a handle ends with done_with().
  void take_up(const ClaimId& id, const Taken& then) {
    const std::string owner = id.owner.hex();
    OpenPtr open;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = open_.find(owner);
          at != open_.end() && at->second->id.key == id.key && at->second->id.tenant == id.tenant) {
        open = at->second;
        open->is_used = true;
        ++open->calls;
      } else {
        auto& waiting = attaching_[name_of(id)];
        waiting.push_back(then);
        if (waiting.size() > 1) return;  // The newest handle has the claim: there must be one.
      }
    }
    if (open) return then(open, {});
    attach(id, [self = shared_from_this(), id](Attached&& attached) { self->taken_up(id, std::move(attached)); });
  }

  void taken_up(const ClaimId& id, Attached&& attached) {
    OpenPtr open;
    std::vector<Taken> waiting;
    if (attached.claim) {
      open = std::make_shared<Open>(Open{.claim = std::move(attached.claim), .id = id});
      open->is_used = true;
    }
    {
      const std::lock_guard lock(mutex_);
      const auto at = attaching_.find(name_of(id));
      waiting.swap(at->second);
      attaching_.erase(at);
      if (!open && is_known(attached.finish, id.owner)) in_sessions_.erase(name_of(id));
      if (open) {
        open->silent_at = clock_->uptime() + id.lease;
        open->calls = waiting.size();
        if (!ending_) open_[open->id.owner.hex()] = open;
      }
    }
    for (const Taken& then : waiting) then(open, attached.finish);
  }

  void done_with(const OpenPtr& open) {
    const std::lock_guard lock(mutex_);
    --open->calls;
    open->silent_at = clock_->uptime() + open->id.lease;
  }

  // With the mutex locked. Whether its handle is the one to use.
  bool has(const Open& open) const {
    const auto at = open_.find(open.id.owner.hex());
    return at != open_.end() && at->second.get() == &open;
  }

  // With the mutex locked. The handle lives as long as somebody has it. False: it was forgotten already.
  bool forget(const Open& open) {
    if (const auto at = by_call_.find(call_of(open.id)); at != by_call_.end() && at->second.open.get() == &open) {
      by_call_.erase(at);
    }
    const auto at = open_.find(open.id.owner.hex());
    if (at == open_.end() || at->second.get() != &open) return false;
    open_.erase(at);
    return true;
  }

  // How long the claim is certainly the client's, without another renewal.
  Millis valid_for(const Open& open) const {
    return std::max(Millis{0}, std::chrono::floor<Millis>(open.claim.deadline() - clock_->uptime()));
  }

  // The handle is no longer good. A read says whether the claim is: once more with a new handle.
  void again(const OpenPtr& open, const Asked& asked, const std::vector<ReplyPtr>& replies) {
    constexpr int most = 3;
    {
      const std::lock_guard lock(mutex_);
      forget(*open);
    }
    for (const ReplyPtr& reply : replies) {
      if (asked.tries >= most) {
        give(reply, not_recorded({ErrorKind::unavailable, "another server, or another request, has the claim too"}));
        continue;
      }
      Asked next = asked;
      ++next.tries;
      use(open->id, std::move(next), reply);
    }
  }

  void renew(const OpenPtr& open, const Asked& asked, const ReplyPtr& reply) {
    const Millis valid = valid_for(*open);
    if (valid == Millis{0} || open->claim.loss_token().stop_requested()) return again(open, asked, {reply});
    if (!asked.text.empty()) open->claim.heartbeat(asked.text);
    done_with(open);
    give(reply, told("renewed", {{"valid_for_ms", valid.count()}}));
  }

  // Whether to write: the first one for this name. Others wait for its end, if they ask for the same.
  bool is_first(const OpenPtr& open, const Asked& asked, const ReplyPtr& reply) {
    const std::string digest = asked.digest();
    bool is_forgotten = false;
    {
      const std::lock_guard lock(mutex_);
      is_forgotten = !has(*open);  // It was finished, or lost, since it was looked up.
      if (!is_forgotten) {
        const auto [at, first] = open->writes.try_emplace(asked.name(), Writing{digest, {}});
        if (at->second.digest == digest) {
          at->second.waiting.push_back(reply);
          if (!first) --open->calls;
          return first;
        }
      }
    }
    done_with(open);
    if (is_forgotten) {
      again(open, asked, {reply});
      return false;
    }
    give(reply, problem("already-finished", 409, "Another finish is on its way",
                        "The first one counts. Send the same request again to learn how it ended"));
    return false;
  }

  std::vector<ReplyPtr> end_writing(const OpenPtr& open, const std::string& name, bool forgets, bool is_over = false) {
    std::vector<ReplyPtr> waiting;
    {
      const std::lock_guard lock(mutex_);
      const auto at = open->writes.find(name);
      waiting.swap(at->second.waiting);
      open->writes.erase(at);
      if (forgets) forget(*open);
      if (is_over) in_sessions_.erase(name_of(open->id));
    }
    done_with(open);
    return waiting;
  }

  http::Answer step_recorded(const Open& open) const {
    return told("recorded", {{"valid_for_ms", valid_for(open).count()}});
  }

  void step(const OpenPtr& open, const Asked& asked, const ReplyPtr& reply) {
    if (!is_first(open, asked, reply)) return;
    if (const auto kept = open->claim.step(asked.text)) {
      const http::Answer answer = *kept == asked.result.bytes
                                      ? step_recorded(*open)
                                      : problem("already-finished", 409, "The step was finished already, and otherwise",
                                                "A step's name is used once: its first result counts");
      for (const ReplyPtr& one : end_writing(open, asked.name(), false)) give(one, answer);
      return;
    }
    write(open, asked, [&](FinishDone done) { open->claim.add_step(asked.text, asked.result.bytes, std::move(done)); });
  }

  void finish(const OpenPtr& open, const Asked& asked, const ReplyPtr& reply) {
    if (!is_first(open, asked, reply)) return;
    write(open, asked, [&](FinishDone done) {
      switch (asked.op) {
        case Op::complete:
          return asked.is_failure ? open->claim.complete_as_failure(asked.result, std::move(done))
                                  : open->claim.complete(asked.result, std::move(done));
        case Op::fail:
          return open->claim.fail(asked.failure, asked.result, std::move(done));
        case Op::release:
          return open->claim.release(asked.text, std::move(done));
        default:
          return open->claim.hold(asked.text, std::move(done));
      }
    });
  }

  template <class Start>
  void write(const OpenPtr& open, const Asked& asked, Start start) {
    try {
      start([self = shared_from_this(), open, asked](Finish&& finish) { self->written(open, asked, finish); });
    } catch (const Exception& error) {
      // After a finish whose client does not wait for it any more, or during one.
      const http::Answer answer =
          problem("already-finished", 409, "The claim is finished, or about to be", error.what());
      for (const ReplyPtr& one : end_writing(open, asked.name(), false)) give(one, answer);
    }
  }

  void written(const OpenPtr& open, const Asked& asked, const Finish& finish) {
    const bool is_step = asked.op == Op::step;
    const bool is_late = finish.kind == Finish::Kind::unrecorded && finish.error.kind != ErrorKind::misuse;
    // What could not be written yet may be written behind our back: the next handle reads the record.
    const bool forgets =
        is_step ? is_late || finish.kind == Finish::Kind::lost || finish.kind == Finish::Kind::superseded : true;
    const bool is_over = forgets && is_known(finish, open->id.owner);
    const std::vector<ReplyPtr> waiting = end_writing(open, asked.name(), forgets, is_over);
    if (finish.kind == Finish::Kind::lost && finish.error.message.empty() &&
        is_still_of(finish.record.get(), open->id.owner)) {
      return again(open, asked, waiting);  // Another handle of the same claim has written.
    }
    // Also what another handle of the same claim has finished.
    const bool is_kept_step = is_step && finish.kind == Finish::Kind::recorded;
    for (const ReplyPtr& one : waiting) {
      give(one, is_kept_step ? step_recorded(*open) : finish_answer(asked, open->id.owner, finish));
    }
    if (is_step && is_late) {  // Its client lives: the claim is renewed as before.
      take_up(open->id, [self = shared_from_this()](const OpenPtr& taken, const Finish&) {
        if (taken) self->done_with(taken);
      });
    }
  }

  static http::Answer finish_answer(const Asked& asked, const Owner& owner, const Finish& finish) {
    if (finish.kind == Finish::Kind::recorded) return recorded(finish.record.get());
    Finish over = finish;
    if (over.kind == Finish::Kind::superseded && over.record->owner == owner) over.kind = Finish::Kind::recorded;
    return over_answer(asked, owner, over);
  }

  // To a request about a claim that could not be taken up.
  static http::Answer over_answer(const Asked& asked, const Owner& owner, const Finish& over) {
    const Record* const record = over.record.get();
    switch (over.kind) {
      case Finish::Kind::recorded:
        return is_as_asked(*record, asked) ? recorded(record) : finished_otherwise(*record);
      case Finish::Kind::superseded:
        return result_answer("superseded", *record);
      case Finish::Kind::lost:
        if (!over.error.message.empty()) break;  // What is stored could not be read.
        if (record != nullptr && record->owner == owner && is_as_asked(*record, asked)) return recorded(record);
        if (record == nullptr && asked.op == Op::release) return recorded(nullptr);
        if (is_still_of(record, owner)) {
          return not_recorded({ErrorKind::unavailable, "another server, or another request, has the claim too"});
        }
        return asked.op == Op::hold && record != nullptr && record->owner == owner && record->state == State::unknown
                   ? finished_otherwise(*record)
                   : lost(record);
      case Finish::Kind::unrecorded:
      case Finish::Kind::declined:
        break;
    }
    return not_recorded(over.error);
  }

  const std::shared_ptr<Engine> engine_;
  const ClaimsOptions options_;
  const std::shared_ptr<Clock> clock_;
  mutable std::mutex mutex_;  // Guards the following members. The engine is never called under it.
  std::condition_variable news_;
  bool ending_ = false;
  std::unordered_set<ReplyPtr> replies_;
  std::map<std::string, OpenPtr> open_;                     // By owner.
  std::map<std::string, std::vector<Taken>> attaching_;     // By owner and stored key.
  std::map<std::string, Begun> by_call_;                    // By call_of().
  std::map<std::string, Sender> in_sessions_;               // By name_of(): the session that has the claim.
  std::map<std::string, std::set<std::string>> displaced_;  // By open session: the claims that newer ones have taken.
  std::size_t beginning_ = 0;                               // Begins under way.
  std::size_t dropped_ = 0;
  Uptime used_at_;
  ClaimSessions sessions_;  // Takes the mutex when one ends, and is called under it only to ask.
};

Claims::Claims(std::shared_ptr<Engine> engine, ClaimsOptions options)
    : shared_(std::make_shared<Shared>(std::move(engine), std::move(options))),
      silence_(start_thread<std::jthread>([shared = shared_] { shared->watch(); })) {}

Claims::~Claims() { stop(); }

void Claims::answer(const http::Request& request, ClaimsClient client, Callback<void(proxy::OperatorsAnswer)> done) {
  shared_->answer(request, std::move(client), std::move(done));
}

void Claims::stop() { shared_->stop(); }

std::string Claims::metrics() const { return shared_->metrics(); }

}  // namespace once::cli
