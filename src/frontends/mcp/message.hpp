// One message of the Model Context Protocol: a JSON-RPC 2.0 request, notification or response.
//
// Facts about the protocol in this folder are from its revisions 2026-07-28 and 2025-11-25
// (modelcontextprotocol.io/specification).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>

#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::mcp {

namespace json = text::json;

enum class From : std::uint8_t { client, server };

// Errors of JSON-RPC and of MCP ("Error Codes").
inline constexpr int parse_error = -32700;
inline constexpr int invalid_request = -32600;
inline constexpr int method_not_found = -32601;
inline constexpr int invalid_params = -32602;
inline constexpr int internal_error = -32603;

inline constexpr std::size_t max_id_bytes = 256;  // Of an id or a progress token, as JSON.

struct Message {
  enum class Kind : std::uint8_t { request, notification, response };
  Kind kind = Kind::notification;
  std::string id = {};  // As JSON: 17, or "a" with its quotes. One id has one text. Empty: none, or null.
  std::string_view method = {};
  json::Value params = {};
  json::Value result = {};  // Of a response. Null, if it is an error …
  json::Value error = {};   // … or none of both.

  json::Value whole = {};
  std::unique_ptr<std::pmr::monotonic_buffer_resource> arena = {};  // Owns the values, but for the line.
};

// The values point into `line`. Throws Exception(misuse) for what is no single message of JSON-RPC 2.0. A client's
// message must also be one for every reader: it has no name twice. What a server sends is read as its clients would.
Message read_message(std::string_view line, From from);

// As JSON, the same for the same id: a string, or a whole number of at most 16 digits. Empty for any other value.
std::string id_text(const json::Value& id);

// JSON on one line, with members in their order and numbers as they were.
std::string one_line(const json::Value& value);
// The same with sorted names: one text for one value.
std::string sorted_text(const json::Value& value);

// A copy of the object, in which the member has this value; added at its end if there is none.
json::Value with_member(const json::Value& object, std::string_view name, const json::Value& value, json::Arena& arena);
json::Value without_member(const json::Value& object, std::string_view name, json::Arena& arena);
// The same for a member of a member … of the object; what is no object on the way is replaced by one.
json::Value with_path(const json::Value& object, std::initializer_list<std::string_view> path, const json::Value& value,
                      json::Arena& arena);

// `id` and `result` are JSON. Without a newline.
std::string result_line(std::string_view id, std::string_view result);
std::string error_line(std::string_view id, int code, std::string_view message);  // `id` empty: left out.

// The version that a request names itself, as each does since 2026-07-28. Empty: an earlier revision, or none.
std::string_view own_version(const json::Value& params) noexcept;

}  // namespace once::mcp
