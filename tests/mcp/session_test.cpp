// The session as a machine: transcripts of it (transcripts/*.txt, ../transcript.hpp). A line is an event:
//
//   rules NAME                 at the start: one of the sets of rules below
//   client JSON · server JSON  a line of one of them. $META and $TOOLS: see below. $CR: a carriage return
//   opens                      the client of 2025-11-25 opens the session, and the server lists its tools
//   claimed N · replayed N JSON · failed N TEXT · dropped N · conflict N · mismatch N · unknown N · down N
//                              what the claim of call N led to
//   sends N [late]             its line is about to be sent; late: its lease has ended
//   recorded N · lost N · unrecorded N · superseded N JSON
//                              how the end of its claim was written
//   asks N                     the question about the unknown call N is due
//   found N completed JSON · found N released · found N nothing
//                              what became of it
//   long-client ID · long-server ID    a line over the limit; - : no id was found
//   at MS                      the time
//   server-gone · client-gone
//
// What it led to is printed as `> client`, `> server` (with [N] if it is a call), `> begin N KEY`, `> complete N`, ...
#include "frontends/mcp/session.hpp"

#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <once/clock.hpp>

#include "../transcript.hpp"
#include "text/ascii.hpp"

namespace once {
namespace mcp_session_test {

using namespace std::chrono_literals;
using mcp::Action;
using mcp::Session;
using mcp::ToolRule;

constexpr const char* tool_list =
    R"([{"name":"refund","description":"Refunds an order.","inputSchema":{"type":"object","properties":{"order_id":{"type":"string"},"cents":{"type":"integer"}},"required":["order_id"]}},)"
    R"({"name":"get_order","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object"}},)"
    R"({"name":"mail","inputSchema":{"type":"object"}},)"
    R"({"name":"note","inputSchema":{"type":"object"}}])";

// What each request says of its client since 2026-07-28.
constexpr const char* modern_meta =
    R"("_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}})";

std::string pin_in(const std::string& list, const std::string& name) {
  std::pmr::monotonic_buffer_resource arena;
  mcp::Tools tools;
  const std::string result = "{\"tools\":" + list + "}";
  tools.add(mcp::json::parse(result, {}, arena, "the list"));
  return tools.find(name)->pin;
}

ToolRule rule(const std::string& name, ToolRule::Kind kind) {
  ToolRule rule;
  rule.name = name;
  rule.kind = kind;
  rule.pin = pin_in(tool_list, name);
  return rule;
}

mcp::RuleOptions rules_named(const std::string& name) {
  mcp::RuleOptions options{.scope = "shop"};
  ToolRule refund = rule("refund", ToolRule::Kind::argument);
  refund.expression = "order_id";
  options.tools = {rule("get_order", ToolRule::Kind::read_only)};
  if (name == "on-error-release") refund.on_error = mcp::OnError::release;
  if (name == "on-error-hold") refund.on_error = mcp::OnError::hold;
  if (name == "quiet") refund.tells_model = false;
  if (name == "old-pin") refund.pin = "sha256:old";
  if (name == "trusting") options.trusts_read_only_hint = true, options.tools.clear();
  if (name == "unknown-tool") refund.name = "refnud";
  if (name == "unknown-argument") refund.expression = "order";
  if (name == "meta") refund.kind = ToolRule::Kind::meta, refund.meta = "example.com/key";
  if (name == "run") refund.kind = ToolRule::Kind::run, options.run_meta = "example.com/run";
  if (name == "asking") {
    refund.ask_tool = "get_order";
    refund.ask_arguments = "{id: order_id}";
    refund.ask_done = "result.structuredContent.refunds > `0`";
  }
  if (name == "unprotected") options.tools.push_back(rule("mail", ToolRule::Kind::unprotected));
  options.tools.push_back(refund);
  return options;
}

class Player {
 public:
  void play(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    std::string rest;
    std::getline(in >> std::ws, rest);
    if (what == "rules") {
      rules_name_ = rest;
      return;
    }
    if (what == "at") {
      now_ = Uptime(Millis(std::stol(rest)));
      if (session_) session_->tick(now_);
      return note_actions();
    }
    make();
    event(what, rest);
    note_actions();
  }

  std::string take() { return std::exchange(said_, {}); }

 private:
  void note_actions() {
    if (!session_) return;
    for (const Action& action : session_->take()) said_ += "> " + text_of(action) + "\n";
  }

  void make() {
    if (session_) return;
    rules_ = std::make_unique<mcp::Rules>(rules_named(rules_name_));
    mcp::SessionOptions options{.answer_timeout = 60s, .own_id = "once"};
    if (rules_name_ == "few") options.max_requests = 3;
    if (rules_name_ == "small") options.max_waiting_bytes = 300;
    session_.emplace(*rules_, options);
  }

  static std::string filled(std::string json) {
    for (const auto& [name, text] : {std::pair<std::string, std::string>{"$META", modern_meta},
                                     {"$TOOLS", tool_list},
                                     {"$CR", "\r"},
                                     {"$BAD", "\xff"}}) {
      for (std::size_t at = json.find(name); at != std::string::npos; at = json.find(name))
        json.replace(at, name.size(), text);
    }
    return json;
  }

  void event(const std::string& what, const std::string& rest) {
    if (what == "client") return session_->from_client(filled(rest));
    if (what == "server") return session_->from_server(filled(rest));
    if (what == "long-client") return session_->too_long_from_client(rest == "-" ? "" : rest, 20'000'000);
    if (what == "long-server") return session_->too_long_from_server(rest == "-" ? "" : rest, 20'000'000);
    if (what == "client-gone") return session_->client_gone();
    if (what == "server-gone") return session_->server_gone("the server ended with exit code 1");
    if (what == "opens") {
      session_->from_client(
          R"({"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}})");
      session_->from_server(
          R"({"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}})");
      session_->from_server(filled(R"({"jsonrpc":"2.0","id":"once-1","result":{"tools":$TOOLS}})"));
      session_->from_client(R"({"jsonrpc":"2.0","method":"notifications/initialized"})");
      for (const Action& action : session_->take()) {
        if (action.kind == Action::Kind::note || action.kind == Action::Kind::refuse)
          said_ += "> " + text_of(action) + "\n";
      }
      return;
    }
    std::istringstream in(rest);
    mcp::CallNumber call = 0;
    in >> call;
    std::string json;
    std::getline(in >> std::ws, json);
    if (what == "sends") {
      const bool may = session_->may_send(call, json != "late", now_);
      said_ += (may ? "> may send " : "> may not send ") + std::to_string(call) + "\n";
      return;
    }
    if (what == "asks") return session_->question(call, now_);
    if (what == "found") {
      Reconciled reconciled;
      const std::string word = json.substr(0, json.find(' '));
      if (word == "completed") reconciled = {.kind = Reconciled::Kind::completed, .record = record(json.substr(10))};
      if (word == "released") reconciled.kind = Reconciled::Kind::released;
      return session_->reconciled(call, reconciled);
    }
    Finish finish;
    if (what == "recorded" || what == "lost" || what == "unrecorded" || what == "superseded") {
      if (what == "lost") finish.kind = Finish::Kind::lost;
      if (what == "unrecorded") finish.kind = Finish::Kind::unrecorded;
      if (what == "superseded") finish.kind = Finish::Kind::superseded, finish.record = record(json);
      return session_->ended(call, finish);
    }
    Begin begin;
    if (what == "claimed") begin.kind = Begin::Kind::claimed;
    if (what == "replayed") begin = {.kind = Begin::Kind::replayed, .record = record(json)};
    if (what == "failed") begin = {.kind = Begin::Kind::stored_failure, .record = failure(json)};
    if (what == "dropped") begin = {.kind = Begin::Kind::replayed, .record = dropped()};
    if (what == "conflict") begin.kind = Begin::Kind::conflict;
    if (what == "mismatch") begin.kind = Begin::Kind::mismatch;
    if (what == "unknown") begin.kind = Begin::Kind::unknown;
    if (what != "down" && begin.kind == Begin::Kind::error) throw std::runtime_error("there is no event " + what);
    session_->began(call, begin);
  }
  static Record plain() {
    Record record;
    record.key = "shop/refund#1";
    record.state = State::completed;
    record.finished_at = Time{Millis{1'779'010'200'000}};
    return record;
  }
  static RecordPtr record(const std::string& json) {
    Record record = plain();
    record.result = Result::inlined(json, "application/json");
    return share(std::move(record));
  }
  static RecordPtr failure(const std::string& message) {
    Record record = plain();
    record.state = State::failed;
    record.failure.message = message;
    return share(std::move(record));
  }
  static RecordPtr dropped() {
    Record record = plain();
    record.result.placement = Placement::dropped;
    return share(std::move(record));
  }

  static std::string text_of(const Action& action) {
    const std::string call = action.call == 0 ? "" : " " + std::to_string(action.call);
    switch (action.kind) {
      case Action::Kind::to_client:
        return "client " + action.text;
      case Action::Kind::to_server:
        return "server" + (action.call == 0 ? "" : " [" + std::to_string(action.call) + "]") + " " + action.text;
      case Action::Kind::begin: {
        const Request& request = *action.request;
        return "begin" + call + " " + request.key.scope() + "#" + std::string(request.key.name()).substr(0, 8) +
               (request.fingerprint.empty() ? "" : " fingerprint " + request.fingerprint.hex().substr(0, 8)) +
               " label '" + request.label + "' by '" + request.holder + "'";
      }
      case Action::Kind::complete:
        return "complete" + call + " " + action.text;
      case Action::Kind::complete_as_failure:
        return "complete-as-failure" + call + " " + action.text;
      case Action::Kind::complete_without_result:
        return "complete-without-result" + call;
      case Action::Kind::hold:
        return "hold" + call + " " + action.text;
      case Action::Kind::release:
        return "release" + call + " " + action.text;
      case Action::Kind::reconcile:
        return "reconcile" + call;
      case Action::Kind::found: {
        static constexpr const char* kinds[] = {"not-known", "happened", "failed", "not-done"};
        return "found" + call + " " + kinds[static_cast<std::size_t>(action.finding.kind)] + ": " + action.finding.why +
               (action.finding.result.bytes.empty() ? "" : " " + action.finding.result.bytes);
      }
      case Action::Kind::unprotected:
        return "unprotected " + action.text;
      case Action::Kind::note:
        return "note " + std::string(to_string(action.level)) + " " + action.text;
      case Action::Kind::refuse:
        return "refuse " + action.text;
    }
    return {};
  }

  std::string rules_name_ = "usual";
  std::unique_ptr<mcp::Rules> rules_ = {};
  std::optional<Session> session_ = {};
  std::string said_ = {};
  Uptime now_{};
};

class McpSession : public testing::TestWithParam<std::string> {};

TEST_P(McpSession, FollowsItsTranscript) {
  auto player = std::make_unique<Player>();
  play_transcript(std::string(ONCE_MCP_TRANSCRIPTS) + "/" + GetParam() + ".txt",
                  {.play = [&](const std::string& line) { player->play(line); },
                   .take = [&] { return player->take(); },
                   .comment = [&] { player = std::make_unique<Player>(); }});
}

INSTANTIATE_TEST_SUITE_P(All, McpSession, testing::ValuesIn(transcripts_in(ONCE_MCP_TRANSCRIPTS)),
                         [](const auto& one) { return one.param; });

}  // namespace mcp_session_test
}  // namespace once
