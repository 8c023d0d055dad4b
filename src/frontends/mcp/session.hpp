// The life of a server's tools behind `once mcp`: what a client and a server send each other, and which of it runs
// once. Pure: lines and ends of claims come in, actions come out. It reads no clock, opens nothing, and starts nothing.
//
// A call of a tool with a key:
//
//   client      once                        server
//     │ tools/call │
//     ├───────────►│ begin (claim the key)
//     │            ├─ tools/call ─────────────►│   only if the claim is ours, just before the first byte
//     │            │◄────────── the result ────┤
//     │            │ complete (store it)
//     │◄───────────┤
//
// All else passes, with its own ids. A call that is not passed on is answered in words that a model understands, as the
// result of the call: an error of the protocol could be answered by a new call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/engine/log.hpp>
#include <once/finish.hpp>
#include <once/reconcile.hpp>
#include <once/time.hpp>

#include "frontends/mcp/message.hpp"
#include "frontends/mcp/rules.hpp"
#include "frontends/mcp/tools.hpp"
#include "frontends/mcp/words.hpp"

namespace once::mcp {

using CallNumber = std::uint64_t;  // From 1.

struct Action {
  enum class Kind : std::uint8_t {
    to_client,  // Send `text`, a line without its newline.
    to_server,  // The same. `call`, unless 0: ask Session::may_send() just before its first byte.
    begin,      // Claim `request` for `call`, and tell Session::began().
    complete,   // End the claim of `call` with the result `text`, and tell Session::ended() …
    complete_as_failure,
    complete_without_result,  // … with none, because it was too large.
    hold,                     // `text` is the reason.
    release,                  // The same. ended() is not told.
    reconcile,                // Ask about the unknown `record` of `call`: question() asks it, and reconciled() is told.
    found,                    // What was found out about `call`: `finding`.
    unprotected,              // Report that the tool `text` runs without a claim.
    note,                     // A line for the operator.
    refuse,                   // The rules do not fit the server: end. `text` says why, one mistake a line.
  };
  Kind kind;
  CallNumber call = 0;
  std::string text = {};
  std::optional<Request> request = {};
  LogLevel level = LogLevel::notice;
  RecordPtr record = {};
  Finding finding = {};
};

struct SessionOptions {
  // How long the server may take for a call with a claim. Later its outcome is unknown.
  Millis answer_timeout{600'000};
  std::size_t max_requests = 1'000;  // Requests of the client without their response. More are refused.
  // Bytes of lines that wait for the store or for the list of tools. More requests are refused.
  std::size_t max_waiting_bytes = std::size_t{64} * 1024 * 1024;
  std::string own_id = "once";  // Begins the ids of requests that once itself sends. Random: no client has the same.
};

// Not thread-safe.
class Session {
 public:
  Session(const Rules& rules, SessionOptions options);

  void from_client(std::string line);
  void from_server(std::string line);
  // A line that was longer than the limit. `id`: the message's, or empty.
  void too_long_from_client(const std::string& id, std::uint64_t bytes);
  void too_long_from_server(const std::string& id, std::uint64_t bytes);

  // What begin led to. If `kind` is claimed, the claim is the caller's to keep: `begin.claim` is not used.
  void began(CallNumber call, const Begin& begin);
  // What a completion or a hold led to.
  void ended(CallNumber call, const Finish& finish);
  // The question about `call` is due now: it leads to an action `found`, at once or later.
  void question(CallNumber call, Uptime now);
  // What became of it.
  void reconciled(CallNumber call, const Reconciled& reconciled);

  // The line of `call` is about to be sent. False: send nothing of it. `is_ours`: Claim::is_ours().
  bool may_send(CallNumber call, bool is_ours, Uptime now);

  void client_gone();  // It has closed its end, or we are to end: nothing new begins, and what runs may finish.
  // It sends nothing more, and what was sent may or may not have been done. `why`: "the server ended with ...".
  void server_gone(const std::string& why);

  // The first moment at which tick() has something to do.
  [[nodiscard]] std::optional<Uptime> deadline() const;
  void tick(Uptime now);

  [[nodiscard]] std::vector<Action> take() { return std::exchange(actions_, {}); }
  [[nodiscard]] bool has_calls() const noexcept { return !calls_.empty(); }  // With a claim, or about to have one.
  [[nodiscard]] std::size_t reply_bytes() const;  // Of answers that wait for the store: above a limit, read no more.
  [[nodiscard]] bool is_full() const noexcept { return waiting_bytes_ > options_.max_waiting_bytes; }

 private:
  // A call of a tool with a key.
  struct Call {
    enum class State : std::uint8_t { claiming, queued, sent, ending, asking };
    State state = State::claiming;
    std::string id = {};  // The client's.
    const ToolRule* rule = nullptr;
    std::string line = {};  // To the server. Later: to the client.
    std::string stored_key = {};
    std::string progress = {};              // The client's progress token, as JSON. Empty: none.
    bool is_modern = false;                 // Of a revision since 2026-07-28.
    bool is_cancelled = false;              // The client wants no response.
    bool was_asked = false;                 // The server was asked about it.
    std::optional<Question> question = {};  // If the rule asks about unknown calls.
    std::optional<Request> request = {};    // To claim it again, if the rule asks.
    std::optional<Uptime> deadline = {};
  };
  // A request of the client without its response.
  struct Pending {
    enum class Kind : std::uint8_t { passed, initialize, list, tool, call };
    Kind kind = Kind::passed;
    CallNumber call = 0;
    bool is_modern = false;
    std::string tool = {};
  };
  enum class Listing : std::uint8_t { none, running, done };
  // Calls that the server did not answer in time: by their ids, the stored keys.
  using Late = std::map<std::string, std::string>;
  struct Held {
    std::string id;
    std::string line;
  };

  void add(Action::Kind kind, CallNumber call, std::string text);
  void note(LogLevel level, std::string text);
  void to_client(std::string line);
  void answer(const std::string& id, const std::string& result) { to_client(result_line(id, result)); }
  void answer_error(const std::string& id, int code, const std::string& text) { to_client(error_line(id, code, text)); }

  void on_request(Message& message, std::string line);
  void dispatch(Message& message, std::string line);
  void call_tool(Message& message, std::string line);
  void pass(const Message& message, std::string line, Pending pending);
  void on_client_notification(const Message& message, std::string line);
  void cancel(const Message& message, std::string line);
  [[nodiscard]] static std::string line_for_server(Message& message, std::string line, bool is_protected);

  void on_response(Message& message, std::string line);
  void on_call_response(CallNumber number, Message& message, std::string line);
  void on_error_response(CallNumber number, const Message& message, std::string line);
  void on_tool_error(CallNumber number, std::string result, std::string line);
  void on_progress(Message& message, std::string line);

  void initialized(Message& message, std::string line);
  void list(const json::Value& meta);
  void ask_for_page();
  void on_page(const Message& message);
  void listed();
  void listing_failed(const json::Value& error, const std::string& why);
  void release_held();

  void end_call(CallNumber number, Action::Kind how, std::string text, std::string line);
  [[nodiscard]] bool may_ask(const Call& call) const;
  void on_answer(std::map<std::string, CallNumber>::iterator question, const Message* response);
  void found_out(CallNumber call, Finding finding);
  [[nodiscard]] std::string next_own_id();
  void finish_unknown(CallNumber number, const std::string& why);
  void forget(CallNumber number);
  void release(CallNumber number, const std::string& why, const std::string& result);
  void set_line(Call& call, std::string line);

  const Rules& rules_;
  const SessionOptions options_;
  std::vector<Action> actions_ = {};
  std::map<CallNumber, Call> calls_ = {};
  std::unordered_map<std::string, Pending> pending_ = {};  // By id.
  Late late_ = {};
  bool has_forgotten_late_ = false;  // There were too many.
  CallNumber last_call_ = 0;
  std::size_t waiting_bytes_ = 0;
  bool client_is_gone_ = false;
  bool server_is_gone_ = false;

  // What the server offers, and how far we are in reading it.
  Tools tools_ = {};
  Tools new_tools_ = {};
  Listing listing_ = Listing::none;
  bool is_stale_ = false;       // The list has changed since it was asked for.
  bool was_listed_ = false;     // The rules were compared with a list.
  std::string list_meta_ = {};  // Of our own requests, as JSON. Empty: none.
  std::string cursor_ = {};
  std::size_t pages_ = 0;
  std::uint64_t own_requests_ = 0;
  std::string own_request_ = {};                      // Its id, while it has no response.
  std::map<std::string, CallNumber> questions_ = {};  // By the id of our request.
  std::deque<Held> held_ = {};                        // Requests that wait for the list.

  // Revisions before 2026-07-28 begin with a handshake.
  std::string initialize_id_ = {};          // Empty: none was seen.
  std::string initialize_response_ = {};    // Kept back until the tools are listed.
  bool client_is_ready_ = true;             // False from our `initialized` to the client's.
  std::deque<std::string> for_later_ = {};  // From the server, until the client is ready.
};

}  // namespace once::mcp
