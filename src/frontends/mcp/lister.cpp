#include "frontends/mcp/lister.hpp"

#include <utility>

#include <once/error.hpp>

#include "text/ascii.hpp"

namespace once::mcp {

namespace {

constexpr const char* handshake_version = "2025-11-25";
constexpr const char* later_version = "2026-07-28";

// A member of a member; null, if one of them is not there.
json::Value inner(const json::Value& object, std::string_view name, std::string_view below) {
  const json::Value one = object.kind() == json::Kind::object ? object.member(name) : json::Value();
  return one.kind() == json::Kind::object ? one.member(below) : json::Value();
}

// The newest version of an error that lists those that the server has. Empty: it lists none.
std::string supported_version(const json::Value& error) {
  const json::Value versions = inner(error, "data", "supported");
  std::string newest;
  if (versions.kind() != json::Kind::array) return newest;
  for (const json::Value& one : versions.elements()) {
    if (one.string_or_empty() > newest) newest = one.string_or_empty();
  }
  return newest;
}

}  // namespace

Lister::Lister(std::string version) : client_info_(R"({"name":"once","version":)" + json::quoted(version) + "}") {
  to_server_.push_back(R"({"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":")" +
                       std::string(handshake_version) + R"(","capabilities":{},"clientInfo":)" + client_info_ + "}}");
}

void Lister::fail(std::string why) {
  error_ = std::move(why);
  is_done_ = true;
}

void Lister::from_server(const std::string& line) {
  if (is_done_) return;
  Message message;
  try {
    message = read_message(line, From::server);
  } catch (const Exception&) {
    return;  // Some servers print a greeting.
  }
  if (message.kind == Message::Kind::request) {
    to_server_.push_back(error_line(message.id, method_not_found, "this client only lists tools"));
    return;
  }
  if (message.kind != Message::Kind::response) return;
  if (message.id == "1") return on_initialized(message);
  if (message.id == std::to_string(2 + pages_)) return on_page(message);
}

void Lister::on_initialized(const Message& message) {
  if (std::exchange(is_initialized_, true)) return;
  if (message.result.kind() == json::Kind::object) {
    server_ = inner(message.result, "serverInfo", "name").string_or_empty();
    to_server_.emplace_back(R"({"jsonrpc":"2.0","method":"notifications/initialized"})");
    if (inner(message.result, "capabilities", "tools").kind() != json::Kind::object)
      return fail("the server has no tools");
  } else {
    const std::string version = supported_version(message.error);
    meta_ = R"({"io.modelcontextprotocol/protocolVersion":)" + json::quoted(version.empty() ? later_version : version) +
            R"(,"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":)" + client_info_ +
            "}";
  }
  ask({});
}

void Lister::ask(const std::string& cursor) {
  std::string params = meta_.empty() ? "" : "\"_meta\":" + meta_;
  if (!cursor.empty()) params += (params.empty() ? "\"cursor\":" : ",\"cursor\":") + cursor;
  to_server_.push_back(R"({"jsonrpc":"2.0","id":)" + std::to_string(2 + pages_) +
                       R"(,"method":"tools/list","params":{)" + params + "}}");
}

void Lister::on_page(const Message& message) {
  if (message.result.kind() != json::Kind::object) {
    const json::Value text =
        message.error.kind() == json::Kind::object ? message.error.member("message") : json::Value();
    return fail("the server does not list its tools: " + text::printable(text.string_or_empty()));
  }
  try {
    tools_.add(message.result);
  } catch (const Exception& error) {
    return fail(error.what());
  }
  if (server_.empty()) {
    server_ = inner(message.result.member("_meta"), "io.modelcontextprotocol/serverInfo", "name").string_or_empty();
  }
  const json::Value next = message.result.member("nextCursor");
  if (next.kind() != json::Kind::string) {
    is_done_ = true;
    return;
  }
  if (++pages_ >= max_pages) return fail("the list of tools has too many pages");
  ask(json::quoted(next.text()));
}

}  // namespace once::mcp
