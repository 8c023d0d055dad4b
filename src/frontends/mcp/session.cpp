#include "frontends/mcp/session.hpp"

#include <algorithm>
#include <array>
#include <memory_resource>
#include <utility>

#include <once/error.hpp>

#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::mcp {

namespace {

constexpr std::string_view client_capabilities = "io.modelcontextprotocol/clientCapabilities";
constexpr std::string_view tasks_extension = "io.modelcontextprotocol/tasks";

// What each request says of its client, since 2026-07-28.
constexpr std::array own_meta{std::string_view("io.modelcontextprotocol/protocolVersion"), client_capabilities,
                              std::string_view("io.modelcontextprotocol/clientInfo")};

// Errors whose code says that the request was not carried out: what is wrong is the request, its version, or what its
// client can do. -32042 is "URL elicitation required" of 2025-11-25.
constexpr std::array nothing_done{parse_error, invalid_request, method_not_found, invalid_params,
                                  -32020,      -32021,          -32022,           -32042};

bool says_nothing_done(const json::Value& error) {
  const json::Value code = error.kind() == json::Kind::object ? error.member("code") : json::Value();
  const auto number = code.kind() == json::Kind::number ? text::parse_whole<int>(code.text()) : std::nullopt;
  return number && std::ranges::find(nothing_done, *number) != nothing_done.end();
}

std::string error_text(const json::Value& error) {
  const std::string_view text =
      error.kind() == json::Kind::object ? error.member("message").string_or_empty() : std::string_view();
  return text.empty() ? "an error without a text" : std::string(text);
}

json::Value object_member(const json::Value& object, std::string_view name) {
  return object.kind() == json::Kind::object ? object.member(name) : json::Value();
}

bool has_object(const json::Value& object, std::string_view name) {
  return object_member(object, name).kind() == json::Kind::object;
}

bool is_false_or_absent(const json::Value& value) {
  return value.is_null() || (value.kind() == json::Kind::boolean && !value.truth());
}

// A result, and not something that goes on: a request for input, or a task.
bool is_final(const json::Value& result) {
  const json::Value type = result.member("resultType");
  return (type.is_null() || type.string_or_empty() == "complete") && object_member(result, "task").is_null();
}

}  // namespace

Session::Session(const Rules& rules, SessionOptions options) : rules_(rules), options_(std::move(options)) {}

void Session::add(Action::Kind kind, CallNumber call, std::string text) {
  actions_.push_back({.kind = kind, .call = call, .text = std::move(text)});
}

void Session::note(LogLevel level, std::string text) {
  actions_.push_back({.kind = Action::Kind::note, .text = std::move(text), .level = level});
}

void Session::to_client(std::string line) {
  if (!client_is_gone_) add(Action::Kind::to_client, 0, std::move(line));
}

void Session::set_line(Call& call, std::string line) {
  waiting_bytes_ -= call.line.size();
  call.line = std::move(line);
  waiting_bytes_ += call.line.size();
}

// ---- from the client

void Session::from_client(std::string line) {
  if (client_is_gone_ || text::trim(line, " \t\r").empty()) return;
  Message message;
  try {
    message = read_message(line, From::client);
  } catch (const Exception& error) {
    note(LogLevel::warning, std::string("refused a message of the client: ") + error.what());
    return answer_error({}, invalid_request, error.what());
  }
  switch (message.kind) {
    case Message::Kind::request:
      return on_request(message, std::move(line));
    case Message::Kind::notification:
      return on_client_notification(message, std::move(line));
    case Message::Kind::response:
      if (message.id.empty()) return;
      return add(Action::Kind::to_server, 0, line_for_server(message, std::move(line), false));
  }
}

void Session::too_long_from_client(const std::string& id, std::uint64_t bytes) {
  if (client_is_gone_) return;
  note(LogLevel::warning, "refused a message of the client of " + std::to_string(bytes) + " bytes");
  if (!pending_.contains(id)) answer_error(id, invalid_request, "the message is too long. Nothing was done");
}

// A carriage return is a blank between the parts of a message, and to some servers the end of a line: what stands
// between two of them would be a message of its own, which was not looked at.
std::string Session::line_for_server(Message& message, std::string line, bool is_protected) {
  if (is_protected) {
    // A task would go on when its call has ended, out of our sight.
    const json::Value extensions =
        object_member(object_member(object_member(message.params, "_meta"), client_capabilities), "extensions");
    if (!object_member(extensions, tasks_extension).is_null()) {
      json::Arena& arena = *message.arena;
      return one_line(with_path(message.whole, {"params", "_meta", client_capabilities, "extensions"},
                                without_member(extensions, tasks_extension, arena), arena));
    }
  }
  if (line.find('\r') != std::string::npos) return one_line(message.whole);
  return line;
}

void Session::on_request(Message& message, std::string line) {
  if (pending_.contains(message.id) || late_.contains(message.id) ||
      std::ranges::find(held_, message.id, &Held::id) != held_.end()) {
    // An error with this id would look like the response to the other one.
    note(LogLevel::warning, "refused a request whose id is that of a running one");
    return answer_error({}, invalid_request, "a request with this id is running");
  }
  if (server_is_gone_) return answer_error(message.id, internal_error, "the server has ended. Nothing was done");
  if (pending_.size() + held_.size() >= options_.max_requests || is_full()) {
    return answer_error(message.id, internal_error, "too many requests at once. Nothing was done");
  }
  if (message.method == "initialize") {
    if (!initialize_id_.empty()) {
      return answer_error(message.id, invalid_request, "the session is initialized already");
    }
    initialize_id_ = message.id;
    return pass(message, std::move(line), {.kind = Pending::Kind::initialize});
  }
  if (message.method == "server/discover" || message.method == "ping") {
    return pass(message, std::move(line), {});
  }
  if (listing_ == Listing::none) {
    if (own_version(message.params).empty()) {
      return answer_error(message.id, invalid_request, "the session is not initialized. Nothing was done");
    }
    list(object_member(message.params, "_meta"));
  }
  const bool waits = listing_ == Listing::running && (!was_listed_ || message.method == "tools/call");
  if (!waits) return dispatch(message, std::move(line));
  waiting_bytes_ += line.size();
  held_.push_back({.id = message.id, .line = std::move(line)});
}

void Session::dispatch(Message& message, std::string line) {
  if (message.method == "tools/call") return call_tool(message, std::move(line));
  const auto kind = message.method == "tools/list" ? Pending::Kind::list : Pending::Kind::passed;
  pass(message, std::move(line), {.kind = kind});
}

void Session::pass(const Message& message, std::string line, Pending pending) {
  pending_.emplace(message.id, std::move(pending));
  add(Action::Kind::to_server, 0, line.find('\r') == std::string::npos ? std::move(line) : one_line(message.whole));
}

void Session::call_tool(Message& message, std::string line) {
  const json::Value name = object_member(message.params, "name");
  json::Value arguments = object_member(message.params, "arguments");
  if (name.kind() != json::Kind::string) {
    return answer_error(message.id, invalid_params, "tools/call needs the name of a tool. Nothing was done");
  }
  if (arguments.is_null()) arguments = json::Value::object({});
  if (arguments.kind() != json::Kind::object) {
    return answer_error(message.id, invalid_params, "the arguments are no object. Nothing was done");
  }
  const std::string tool(name.text());
  const bool is_modern = !own_version(message.params).empty();
  const auto refuse = [&](const Told& told) { answer(message.id, result_of(told, {}, is_modern)); };
  const Tool* const known = tools_.find(tool);
  if (known == nullptr) return answer_error(message.id, invalid_params, "Unknown tool: " + text::printable(tool));
  const ToolRule* const rule = rules_.find(tool);
  const Pending passing{.kind = Pending::Kind::tool, .is_modern = is_modern, .tool = tool};
  if (rule == nullptr) {
    if (!rules_.options().trusts_read_only_hint || !known->says_read_only) return refuse(told_no_rule(tool));
    return pass(message, std::move(line), passing);
  }
  if (rule->kind == ToolRule::Kind::none) return refuse(told_no_rule(tool));
  if (rule->pin != known->pin) return refuse(told_changed(tool));
  if (rule->kind == ToolRule::Kind::read_only) return pass(message, std::move(line), passing);
  if (rule->kind == ToolRule::Kind::unprotected) {
    add(Action::Kind::unprotected, 0, tool);
    return pass(message, std::move(line), passing);
  }
  if (!object_member(message.params, "task").is_null()) {
    return answer_error(message.id, method_not_found, "this tool cannot be called as a task. Nothing was done");
  }
  if (const std::string why = misfit(*known, arguments); !why.empty()) return refuse(told_refused(tool, why));
  const json::Value meta = object_member(message.params, "_meta");
  const json::Value meant = with_usual(*known, arguments, *message.arena);
  CallKey key = rules_.key_of(*rule, meant, meta);
  if (!key.key) return refuse(told_refused(tool, key.refusal));

  const CallNumber number = ++last_call_;
  Call& call = calls_[number];
  call.id = message.id;
  call.rule = rule;
  call.stored_key = key.key->stored();
  call.progress = id_text(object_member(meta, "progressToken"));
  call.is_modern = is_modern;
  pending_.emplace(message.id, Pending{.kind = Pending::Kind::call, .call = number});
  Request request{.key = std::move(*key.key), .fingerprint = key.fingerprint, .policy = rule->policy};
  request.holder = "tool " + text::printable(tool) + (key.run.empty() ? "" : ", run " + text::printable(key.run));
  request.label = std::move(key.label);
  request.label_from_payload = key.label_from_payload;
  request.input = std::move(key.input);
  request.trace = trace_from(object_member(meta, "traceparent").string_or_empty(),
                             object_member(meta, "tracestate").string_or_empty());
  if (!rule->ask_tool.empty()) {
    call.question = rules_.question(*rule, meant);
    call.request = request;
  }
  set_line(call, line_for_server(message, std::move(line), true));  // Last: the message points into the line.
  actions_.push_back({.kind = Action::Kind::begin, .call = number, .request = std::move(request)});
}

void Session::on_client_notification(const Message& message, std::string line) {
  if (message.method == "notifications/cancelled") return cancel(message, std::move(line));
  if (message.method == "notifications/initialized" && !initialize_id_.empty()) {
    // The server has had ours.
    client_is_ready_ = true;
    for (std::string& later : std::exchange(for_later_, {})) {
      waiting_bytes_ -= later.size();
      to_client(std::move(later));
    }
    return;
  }
  if (!message.method.starts_with("notifications/")) {
    // Some servers carry out a request that has no id.
    return note(LogLevel::warning, "dropped a request without an id: " + text::quoted(message.method));
  }
  add(Action::Kind::to_server, 0, line.find('\r') == std::string::npos ? std::move(line) : one_line(message.whole));
}

void Session::cancel(const Message& message, std::string line) {
  const std::string id = id_text(object_member(message.params, "requestId"));
  if (const auto held = std::ranges::find(held_, id, &Held::id); held != held_.end()) {
    waiting_bytes_ -= held->line.size();
    held_.erase(held);
    return;
  }
  const auto found = pending_.find(id);
  if (found == pending_.end() || found->second.kind == Pending::Kind::initialize) return;
  if (found->second.kind != Pending::Kind::call) {
    pending_.erase(found);  // The server answers it no longer.
    return add(Action::Kind::to_server, 0,
               line.find('\r') == std::string::npos ? std::move(line) : one_line(message.whole));
  }
  // Not passed on: a server that stops in the middle would leave a call whose outcome is unknown. If it was not sent
  // yet, it never is. Otherwise it runs to its end, and a later call gets its result.
  const auto call = calls_.find(found->second.call);
  if (call != calls_.end()) call->second.is_cancelled = true;
}

// ---- claims

void Session::began(CallNumber number, const Begin& begin) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return;
  Call& call = found->second;
  const std::string& tool = call.rule->name;
  const std::string hash = key_hash(call.stored_key);
  const auto say_instead = [&](const Told& told) {
    if (!call.is_cancelled) answer(call.id, result_of(told, hash, call.is_modern));
    forget(number);
  };
  switch (begin.kind) {
    case Begin::Kind::claimed:
      if (call.is_cancelled) return release(number, "the client cancelled the call before it was sent", {});
      if (server_is_gone_ || client_is_gone_) {
        const char* const why = server_is_gone_ ? "the server has ended" : "the client has ended";
        return release(number, why, result_of(told_not_sent(tool, why), hash, call.is_modern));
      }
      call.state = Call::State::queued;
      return add(Action::Kind::to_server, number, call.line);
    case Begin::Kind::replayed:
    case Begin::Kind::stored_failure:
      if (!call.is_cancelled) answer(call.id, replayed(*begin.record, *call.rule, call.is_modern));
      return forget(number);
    case Begin::Kind::conflict:
      return say_instead(told_in_progress(*call.rule));
    case Begin::Kind::mismatch:
      return say_instead(told_mismatch(*call.rule));
    case Begin::Kind::unknown:
      if (call.question && !call.was_asked && !call.is_cancelled && may_ask(call)) {
        call.was_asked = true;
        call.state = Call::State::asking;
        actions_.push_back({.kind = Action::Kind::reconcile, .call = number, .record = begin.record});
        return;
      }
      return say_instead(told_unknown(tool, "an earlier call of it began, and how it ended is not known", hash));
    case Begin::Kind::error:
      if (begin.is_unreadable) return say_instead(told_not_kept(*call.rule));
      return say_instead(told_store_down(tool));
  }
}

bool Session::may_ask(const Call& call) const {
  // The server is still at it, or may be: that it was not done yet says nothing.
  if (has_forgotten_late_ || std::ranges::find(late_, call.stored_key, &Late::value_type::second) != late_.end()) {
    return false;
  }
  const ToolRule* const asked = rules_.find(call.rule->ask_tool);
  const Tool* const tool = tools_.find(call.rule->ask_tool);
  return !server_is_gone_ && asked != nullptr && asked->kind == ToolRule::Kind::read_only && tool != nullptr &&
         tool->pin == asked->pin;
}

void Session::found_out(CallNumber number, Finding finding) {
  if (const auto call = calls_.find(number); call != calls_.end()) {
    call->second.deadline.reset();
    finding.settle = call->second.rule->settle.value_or(
        std::max({Millis{300'000}, options_.answer_timeout, call->second.rule->policy.lease.value_or(Millis{0})}));
    finding.retention = call->second.rule->policy.retention;
  }
  actions_.push_back({.kind = Action::Kind::found, .call = number, .finding = std::move(finding)});
}

void Session::question(CallNumber number, Uptime now) {
  constexpr Millis question_timeout{30'000};
  const auto found = calls_.find(number);
  if (found == calls_.end() || server_is_gone_) return found_out(number, Finding::not_known("the server has ended"));
  Call& call = found->second;
  const std::string id = next_own_id();
  questions_.emplace(id, number);
  call.deadline = now + std::min(question_timeout, options_.answer_timeout);
  std::string params = R"({"name":)" + json::quoted(call.rule->ask_tool) + R"(,"arguments":)" + call.question->to_ask;
  if (!list_meta_.empty()) params += ",\"_meta\":" + list_meta_;
  add(Action::Kind::to_server, 0,
      R"({"jsonrpc":"2.0","id":)" + id + R"(,"method":"tools/call","params":)" + params + "}}");
}

// `response`: null if there is none that can be read.
void Session::on_answer(std::map<std::string, CallNumber>::iterator question, const Message* response) {
  const CallNumber number = question->second;
  questions_.erase(question);
  const json::Value result = response == nullptr ? json::Value() : response->result;
  Finding finding = Finding::not_known("the server's answer does not say");
  const auto found = calls_.find(number);
  if (found != calls_.end() && result.kind() == json::Kind::object && is_final(result) &&
      is_false_or_absent(result.member("isError"))) {
    const std::optional<bool> done = rules_.was_done(*found->second.rule, *found->second.question, one_line(result));
    if (done && *done) {
      const ToolRule& rule = *found->second.rule;
      const Tool* const tool = tools_.find(rule.name);
      const bool has_schema = tool == nullptr || tool->has_output_schema;
      finding = Finding::happened(
          Result::inlined(found_result(result, rule.ask_tool, has_schema), std::string(tool_content_type)),
          "the server says that it was done");
    }
    if (done && !*done) finding = Finding::not_done("the server says that it was not done");
  }
  found_out(number, std::move(finding));
}

void Session::reconciled(CallNumber number, const Reconciled& reconciled) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return;
  Call& call = found->second;
  const bool has_result = reconciled.kind == Reconciled::Kind::completed || reconciled.kind == Reconciled::Kind::failed;
  if (has_result && reconciled.record != nullptr) {
    if (!call.is_cancelled) answer(call.id, replayed(*reconciled.record, *call.rule, call.is_modern));
    return forget(number);
  }
  if (reconciled.kind == Reconciled::Kind::released || reconciled.kind == Reconciled::Kind::changed) {
    call.state = Call::State::claiming;
    actions_.push_back({.kind = Action::Kind::begin, .call = number, .request = call.request});
    return;
  }
  const std::string hash = key_hash(call.stored_key);
  const std::string why = "an earlier call of it began, and how it ended is not known";
  if (!call.is_cancelled) answer(call.id, result_of(told_unknown(call.rule->name, why, hash), hash, call.is_modern));
  forget(number);
}

bool Session::may_send(CallNumber number, bool is_ours, Uptime now) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  Call& call = found->second;
  if (call.is_cancelled) {
    release(number, "the client cancelled the call before it was sent", {});
    return false;
  }
  if (!is_ours) {
    const char* const why = "once was delayed for longer than the lease before it could send the call";
    release(number, why, result_of(told_not_sent(call.rule->name, why), key_hash(call.stored_key), call.is_modern));
    return false;
  }
  call.state = Call::State::sent;
  set_line(call, {});
  call.deadline = now + options_.answer_timeout;
  return true;
}

// Nothing was done. `result`: for the client; empty: none.
void Session::release(CallNumber number, const std::string& why, const std::string& result) {
  add(Action::Kind::release, number, why);
  const Call& call = calls_.at(number);
  if (!result.empty() && !call.is_cancelled) answer(call.id, result);
  forget(number);
}

void Session::forget(CallNumber number) {
  Call& call = calls_.at(number);
  set_line(call, {});
  if (const auto pending = pending_.find(call.id); pending != pending_.end() && pending->second.call == number) {
    pending_.erase(pending);
  }
  calls_.erase(number);
}

// The claim ends, and then the client gets `line`.
void Session::end_call(CallNumber number, Action::Kind how, std::string text, std::string line) {
  Call& call = calls_.at(number);
  call.state = Call::State::ending;
  call.deadline.reset();
  set_line(call, std::move(line));
  add(how, number, std::move(text));
}

void Session::finish_unknown(CallNumber number, const std::string& why) {
  const Call& call = calls_.at(number);
  const std::string hash = key_hash(call.stored_key);
  end_call(number, Action::Kind::hold, why,
           result_line(call.id, result_of(told_unknown(call.rule->name, why, hash), hash, call.is_modern)));
}

void Session::ended(CallNumber number, const Finish& finish) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return;
  Call& call = found->second;
  if (finish.kind == Finish::Kind::lost || finish.kind == Finish::Kind::superseded) {
    note(LogLevel::err, "the claim of a call of " + text::quoted(call.rule->name) +
                            " was lost while it ran: another call may have run too (" + key_hash(call.stored_key) +
                            ")");
  }
  if (!call.is_cancelled) {
    if (finish.kind == Finish::Kind::superseded && finish.record != nullptr) {
      answer(call.id, superseded(*finish.record, *call.rule, call.is_modern));
    } else {
      to_client(finish.kind == Finish::Kind::lost ? with_loss(call.line, *call.rule) : call.line);
    }
  }
  forget(number);
}

// ---- from the server

void Session::from_server(std::string line) {
  if (server_is_gone_ || text::trim(line, " \t\r").empty()) return;
  Message message;
  try {
    message = read_message(line, From::server);
  } catch (const Exception& error) {
    return note(LogLevel::warning, std::string("dropped a line of the server: ") + error.what());
  }
  if (message.kind == Message::Kind::response) return on_response(message, std::move(line));
  if (message.method == "notifications/progress") return on_progress(message, std::move(line));
  if (message.method == "notifications/tools/list_changed" && listing_ != Listing::none) {
    is_stale_ = true;
    if (listing_ == Listing::done) list({});
  }
  if (message.method == "notifications/cancelled") {  // It ends a subscription.
    const auto found = pending_.find(id_text(object_member(message.params, "requestId")));
    if (found != pending_.end() && found->second.kind == Pending::Kind::passed) pending_.erase(found);
  }
  if (client_is_ready_) return to_client(std::move(line));
  if (is_full()) return note(LogLevel::warning, "dropped a message of the server: the client is not ready");
  waiting_bytes_ += line.size();
  for_later_.push_back(std::move(line));
}

void Session::on_response(Message& message, std::string line) {
  if (message.id.empty())
    return note(LogLevel::warning, "the server reports: " + text::printable(error_text(message.error)));
  if (message.id == own_request_) return on_page(message);
  if (const auto question = questions_.find(message.id); question != questions_.end()) {
    return on_answer(question, &message);
  }
  late_.erase(message.id);
  const auto found = pending_.find(message.id);
  if (found == pending_.end()) {
    return note(LogLevel::warning, "dropped a response that no request waits for: it is late, or was sent twice");
  }
  const Pending pending = found->second;
  switch (pending.kind) {
    case Pending::Kind::call:
      return on_call_response(pending.call, message, std::move(line));
    case Pending::Kind::initialize:
      pending_.erase(found);
      return initialized(message, std::move(line));
    case Pending::Kind::list: {
      pending_.erase(found);
      if (message.result.kind() != json::Kind::object) return to_client(std::move(line));
      tools_.update(message.result);
      // A call with the same arguments has no other effect: the rule takes the key from them.
      json::Arena& arena = *message.arena;
      std::vector<json::Value> tools;
      bool is_changed = false;
      const json::Value listed = message.result.member("tools");
      if (listed.kind() == json::Kind::array) tools.assign(listed.elements().begin(), listed.elements().end());
      for (json::Value& tool : tools) {
        const ToolRule* const rule = rules_.find(object_member(tool, "name").string_or_empty());
        if (rule == nullptr || rule->kind != ToolRule::Kind::argument || rule->pin != pin_of(tool)) continue;
        tool = with_path(tool, {"annotations", "idempotentHint"}, json::Value::boolean(true), arena);
        is_changed = true;
      }
      if (!is_changed) return to_client(std::move(line));
      const json::Value kept = json::Value::array(json::keep(std::span<const json::Value>(tools), arena));
      return to_client(one_line(with_path(message.whole, {"result", "tools"}, kept, arena)));
    }
    case Pending::Kind::passed:
    case Pending::Kind::tool:
      pending_.erase(found);
      return to_client(std::move(line));
  }
}

void Session::on_call_response(CallNumber number, Message& message, std::string line) {
  Call& call = calls_.at(number);
  if (call.state != Call::State::sent) {
    return note(LogLevel::warning, "dropped a response to a call that was not sent, or has ended");
  }
  if (!message.error.is_null()) return on_error_response(number, message, std::move(line));
  const json::Value& result = message.result;
  if (result.kind() != json::Kind::object) return finish_unknown(number, "the server's answer cannot be read");
  if (result.member("resultType").string_or_empty() == "input_required") {
    // Nothing is done yet: the client calls again, with the answers.
    add(Action::Kind::release, number, "the tool needs more input");
    if (!call.is_cancelled) to_client(std::move(line));
    return forget(number);
  }
  if (!is_final(result)) {
    return finish_unknown(number, "the server did not give a result, but something that goes on");
  }
  if (!is_false_or_absent(result.member("isError"))) {
    return on_tool_error(number, one_line(result), std::move(line));
  }
  end_call(number, Action::Kind::complete, one_line(result), std::move(line));
}

void Session::on_error_response(CallNumber number, const Message& message, std::string line) {
  const Call& call = calls_.at(number);
  const std::string text = error_text(message.error);
  if (says_nothing_done(message.error)) {
    add(Action::Kind::release, number, "the server refused the call: " + text);
    if (!call.is_cancelled) to_client(std::move(line));
    return forget(number);
  }
  // To the client it is a result, as it will be for later calls: an error of the protocol may be answered by a new
  // call.
  std::string result = R"({"content":[{"type":"text","text":)" + json::quoted("The tool failed: " + text) +
                       R"(}],"isError":true)" + (call.is_modern ? R"(,"resultType":"complete"})" : "}");
  std::string instead = result_line(call.id, result);
  on_tool_error(number, std::move(result), std::move(instead));
}

void Session::on_tool_error(CallNumber number, std::string result, std::string line) {
  const Call& call = calls_.at(number);
  switch (call.rule->on_error) {
    case OnError::store:
      return end_call(number, Action::Kind::complete_as_failure, std::move(result), std::move(line));
    case OnError::release:
      add(Action::Kind::release, number, "the tool failed");
      if (!call.is_cancelled) to_client(std::move(line));
      return forget(number);
    case OnError::hold: {
      std::pmr::monotonic_buffer_resource arena;
      const json::Rules lenient{
          .unique_names = false, .exact_numbers = false, .lone_surrogates = true, .nan_and_infinity = true};
      const json::Value read = json::parse(result, lenient, arena, "the result");
      const std::string hash = key_hash(call.stored_key);
      const std::string why = "it failed, and may have acted before";
      const Told told = told_unknown(call.rule->name, why, hash);
      std::string both = result_line(call.id, with_text(read, told.text, told.outcome, hash, arena));
      return end_call(number, Action::Kind::hold, "the tool failed, and may have acted before", std::move(both));
    }
  }
}

void Session::too_long_from_server(const std::string& id, std::uint64_t bytes) {
  const std::string size = std::to_string(bytes) + " bytes";
  note(LogLevel::warning, "dropped a message of the server of " + size);
  if (id.empty()) return;
  if (id == own_request_) return listing_failed({}, "the list of tools has " + size + " in one page");
  if (const auto question = questions_.find(id); question != questions_.end()) return on_answer(question, nullptr);
  late_.erase(id);
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // A request of the server: it gets no response.
  if (found->second.kind != Pending::Kind::call) {
    const Pending pending = found->second;
    pending_.erase(found);
    if (pending.kind != Pending::Kind::tool) return answer_error(id, internal_error, "the result is too long: " + size);
    return answer(id, result_of(told_too_long(pending.tool, size), {}, pending.is_modern));
  }
  const CallNumber number = found->second.call;
  const Call& call = calls_.at(number);
  if (call.state != Call::State::sent) return;
  // It may be an error; but the tool has ended, and its operator can read the log.
  const Told told = told_too_long(call.rule->name, size);
  end_call(number, Action::Kind::complete_without_result, {},
           result_line(call.id, result_of(told, key_hash(call.stored_key), call.is_modern)));
}

void Session::on_progress(Message& message, std::string line) {
  if (client_is_gone_) return;
  const std::string token = id_text(object_member(message.params, "progressToken"));
  const auto running = std::ranges::find_if(calls_, [&](const auto& entry) {
    return !token.empty() && entry.second.progress == token && entry.second.state == Call::State::sent;
  });
  if (running == calls_.end() || !running->second.is_cancelled) return to_client(std::move(line));
  // The client has given this call up. One that waits for the same result gets its progress.
  const auto waiting = std::ranges::find_if(calls_, [&](const auto& entry) {
    const Call& call = entry.second;
    return call.stored_key == running->second.stored_key && call.state == Call::State::claiming && !call.is_cancelled &&
           !call.progress.empty();
  });
  if (waiting == calls_.end()) return;
  json::Arena& arena = *message.arena;
  json::Value other;
  if (!json::try_parse(waiting->second.progress, {.lone_surrogates = true}, arena, other)) return;
  to_client(one_line(with_path(message.whole, {"params", "progressToken"}, other, arena)));
}

// ---- which tools there are

void Session::initialized(Message& message, std::string line) {
  if (message.result.kind() != json::Kind::object) {
    initialize_id_.clear();  // The client may try another version.
    return to_client(std::move(line));
  }
  initialize_response_ = std::move(line);
  client_is_ready_ = false;
  add(Action::Kind::to_server, 0, R"({"jsonrpc":"2.0","method":"notifications/initialized"})");
  if (has_object(object_member(message.result, "capabilities"), "tools")) return list({});
  listing_ = Listing::running;
  new_tools_ = {};
  listed();
}

// `meta`: of a client's request, whose version and capabilities are those of ours too. Null: as before.
void Session::list(const json::Value& meta) {
  listing_ = Listing::running;
  is_stale_ = false;
  new_tools_ = {};
  cursor_.clear();
  pages_ = 0;
  if (meta.kind() == json::Kind::object) {
    list_meta_ = "{";
    for (const std::string_view name : own_meta) {
      const json::Value value = meta.member(name);
      if (value.is_null()) continue;
      list_meta_ += (list_meta_.size() == 1 ? "" : ",") + json::quoted(name) + ":" + one_line(value);
    }
    list_meta_ += "}";
  }
  ask_for_page();
}

std::string Session::next_own_id() { return json::quoted(options_.own_id + "-" + std::to_string(++own_requests_)); }

void Session::ask_for_page() {
  own_request_ = next_own_id();
  std::string line = R"({"jsonrpc":"2.0","id":)" + own_request_ + R"(,"method":"tools/list","params":{)";
  if (!list_meta_.empty()) line += "\"_meta\":" + list_meta_;
  if (!cursor_.empty()) line += (list_meta_.empty() ? "\"cursor\":" : ",\"cursor\":") + cursor_;
  add(Action::Kind::to_server, 0, line + "}}");
}

void Session::on_page(const Message& message) {
  own_request_.clear();
  if (!message.error.is_null())
    return listing_failed(message.error, "the server does not list its tools: " + error_text(message.error));
  try {
    new_tools_.add(message.result);
  } catch (const Exception& error) {
    return listing_failed({}, error.what());
  }
  const json::Value next = object_member(message.result, "nextCursor");
  if (next.kind() != json::Kind::string) return listed();
  if (++pages_ >= max_pages) return listing_failed({}, "the list of tools has too many pages");
  cursor_ = json::quoted(next.text());
  ask_for_page();
}

void Session::listed() {
  tools_ = std::exchange(new_tools_, {});
  listing_ = Listing::done;
  const Fit found = fit(rules_, tools_);
  for (const std::string& changed : found.changed) note(LogLevel::warning, changed);
  std::string mistakes;
  for (const std::string& mistake : found.mistakes) mistakes += (mistakes.empty() ? "" : "\n") + mistake;
  const bool is_first = !std::exchange(was_listed_, true);
  if (!mistakes.empty() && is_first) {
    const std::string text = "once mcp: its rules do not fit this server: " + mistakes;
    if (!initialize_response_.empty()) answer_error(initialize_id_, internal_error, text);
    for (const Held& held : std::exchange(held_, {})) answer_error(held.id, internal_error, text);
    return add(Action::Kind::refuse, 0, mistakes);
  }
  if (!mistakes.empty()) note(LogLevel::warning, mistakes);
  if (!initialize_response_.empty()) to_client(std::exchange(initialize_response_, {}));
  if (is_stale_) return list({});
  release_held();
}

void Session::listing_failed(const json::Value& error, const std::string& why) {
  note(LogLevel::err, why);
  own_request_.clear();
  new_tools_ = {};
  if (was_listed_) {  // What was known may be wrong now: nothing is called until the list can be read.
    tools_ = {};
    listing_ = Listing::done;
    return release_held();
  }
  listing_ = Listing::none;
  const auto answer_it = [&](const std::string& id) {
    if (error.kind() != json::Kind::object) return answer_error(id, internal_error, why + ". Nothing was done");
    to_client(R"({"jsonrpc":"2.0","id":)" + id + R"(,"error":)" + one_line(error) + "}");
  };
  if (!initialize_response_.empty()) {
    initialize_response_.clear();
    answer_it(initialize_id_);
    return add(Action::Kind::refuse, 0, why);
  }
  for (const Held& held : std::exchange(held_, {})) {
    waiting_bytes_ -= held.line.size();
    answer_it(held.id);
  }
}

void Session::release_held() {
  for (Held& held : std::exchange(held_, {})) {
    waiting_bytes_ -= held.line.size();
    std::string line = std::move(held.line);
    Message message = read_message(line, From::client);
    dispatch(message, std::move(line));
  }
}

// ---- ends

void Session::client_gone() {
  client_is_gone_ = true;
  for_later_.clear();
  held_.clear();
  waiting_bytes_ = 0;
  for (const auto& [number, call] : calls_) waiting_bytes_ += call.line.size();
}

void Session::server_gone(const std::string& why) {
  if (std::exchange(server_is_gone_, true)) return;
  own_request_.clear();
  while (!questions_.empty()) on_answer(questions_.begin(), nullptr);
  std::vector<CallNumber> numbers;
  numbers.reserve(calls_.size());
  for (const auto& [number, call] : calls_) numbers.push_back(number);
  for (const CallNumber number : numbers) {
    const Call& call = calls_.at(number);
    if (call.state == Call::State::sent) finish_unknown(number, why + " before it answered");
    if (call.state != Call::State::queued) continue;
    release(number, why, result_of(told_not_sent(call.rule->name, why), key_hash(call.stored_key), call.is_modern));
  }
  const std::string text = why + " before it answered";
  for (auto at = pending_.begin(); at != pending_.end();) {
    const auto& [id, pending] = *at;
    if (pending.kind == Pending::Kind::call) {
      ++at;
      continue;
    }
    if (pending.kind == Pending::Kind::tool) {
      const Told told{"unavailable", "The tool " + text::quoted(pending.tool) + " gave no answer: " + text + "."};
      answer(id, result_of(told, {}, pending.is_modern));
    } else {
      answer_error(id, internal_error, text);
    }
    at = pending_.erase(at);
  }
  if (!initialize_response_.empty()) answer_error(initialize_id_, internal_error, text);
  initialize_response_.clear();
  for (const Held& held : std::exchange(held_, {})) {
    waiting_bytes_ -= held.line.size();
    answer_error(held.id, internal_error, text + ". Nothing was done");
  }
}

std::size_t Session::reply_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [number, call] : calls_) {
    if (call.state == Call::State::ending) bytes += call.line.size();
  }
  return bytes;
}

std::optional<Uptime> Session::deadline() const {
  std::optional<Uptime> first;
  for (const auto& [number, call] : calls_) {
    if (call.deadline && (!first || *call.deadline < *first)) first = call.deadline;
  }
  return first;
}

void Session::tick(Uptime now) {
  std::vector<CallNumber> late;
  for (const auto& [number, call] : calls_) {
    if (call.deadline && *call.deadline <= now) late.push_back(number);
  }
  for (const CallNumber number : late) {
    const auto question = std::ranges::find_if(questions_, [&](const auto& one) { return one.second == number; });
    if (question != questions_.end()) {
      on_answer(question, nullptr);
      continue;
    }
    const Call& call = calls_.at(number);
    if (late_.size() < options_.max_requests) {
      late_.emplace(call.id, call.stored_key);
    } else {
      has_forgotten_late_ = true;
    }
    // The outcome is recorded before the client has its words, so the server must not answer it meanwhile.
    finish_unknown(number, "the server did not answer in time");
  }
}

}  // namespace once::mcp
