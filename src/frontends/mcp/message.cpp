#include "frontends/mcp/message.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "text/number.hpp"

namespace once::mcp {

namespace {

void append_as_it_was(std::string_view text, std::string& out) { out += text; }

constexpr json::Style in_their_order{.number = append_as_it_was, .order = nullptr};
constexpr json::Style sorted_by_name{.number = append_as_it_was};

[[noreturn]] void refuse_message(const std::string& why) { throw Exception(ErrorKind::misuse, why); }

bool has_member(const json::Value& object, std::string_view name) noexcept {
  return std::ranges::any_of(object.members(), [&](const json::Member& member) { return member.name == name; });
}

}  // namespace

std::string id_text(const json::Value& id) {
  constexpr std::size_t max_digits = 16;  // More cannot be kept by a client whose numbers are doubles.
  std::string out;
  if (id.kind() == json::Kind::string) {
    if (id.text().size() <= max_id_bytes) out = json::quoted(id.text());
  } else if (id.kind() == json::Kind::number && text::is_integer_text(id.text()) && id.text() != "-0") {
    if (id.text().size() <= max_digits + 1) out = id.text();
  }
  return out.size() > max_id_bytes ? std::string() : out;
}

Message read_message(std::string_view line, From from) {
  const json::Rules rules{.unique_names = from == From::client,
                          .exact_numbers = false,
                          .lone_surrogates = true,
                          .nan_and_infinity = from == From::server};
  Message message;
  message.arena = std::make_unique<std::pmr::monotonic_buffer_resource>(std::max<std::size_t>(line.size(), 1024));
  message.whole = json::parse(line, rules, *message.arena, "the message");
  const json::Value& whole = message.whole;
  if (whole.kind() == json::Kind::array) refuse_message("a batch: MCP has none since its revision 2025-06-18");
  if (whole.kind() != json::Kind::object) refuse_message("the message is no object");
  if (whole.member("jsonrpc").string_or_empty() != "2.0") refuse_message("the message is not JSON-RPC 2.0");
  const json::Value id = whole.member("id");
  message.id = id_text(id);
  if (has_member(whole, "id") && !id.is_null() && message.id.empty()) {
    refuse_message("the id is neither a string of at most " + std::to_string(max_id_bytes) +
                   " bytes nor a whole number of at most 16 digits");
  }
  message.params = whole.member("params");
  message.result = whole.member("result");
  message.error = whole.member("error");
  const bool answers = has_member(whole, "result") || has_member(whole, "error");
  if (!has_member(whole, "method")) {
    if (!answers) refuse_message("the message has neither a method nor a result");
    message.kind = Message::Kind::response;
    return message;
  }
  if (answers) refuse_message("the message has both a method and a result");
  if (whole.member("method").kind() != json::Kind::string) refuse_message("the method is no string");
  message.method = whole.member("method").text();
  if (has_member(whole, "id") && message.id.empty()) refuse_message("the id is null");
  message.kind = message.id.empty() ? Message::Kind::notification : Message::Kind::request;
  return message;
}

std::string one_line(const json::Value& value) { return json::written(value, in_their_order); }
std::string sorted_text(const json::Value& value) { return json::written(value, sorted_by_name); }

json::Value with_member(const json::Value& object, std::string_view name, const json::Value& value,
                        json::Arena& arena) {
  std::vector<json::Member> members(object.members().begin(), object.members().end());
  const auto found = std::ranges::find(members, name, &json::Member::name);
  if (found != members.end()) {
    found->value = value;
  } else {
    members.push_back({json::keep(name, arena), value});
  }
  return json::Value::object(json::keep(std::span<const json::Member>(members), arena));
}

json::Value without_member(const json::Value& object, std::string_view name, json::Arena& arena) {
  std::vector<json::Member> members(object.members().begin(), object.members().end());
  std::erase_if(members, [&](const json::Member& member) { return member.name == name; });
  return json::Value::object(json::keep(std::span<const json::Member>(members), arena));
}

json::Value with_path(const json::Value& object, std::initializer_list<std::string_view> path, const json::Value& value,
                      json::Arena& arena) {
  std::vector<json::Value> above{object};
  for (const std::string_view name : path) {
    const json::Value next = above.back().kind() == json::Kind::object ? above.back().member(name) : json::Value();
    above.push_back(next);
  }
  json::Value made = value;
  for (auto name = std::rbegin(path); name != std::rend(path); ++name) {
    above.pop_back();
    const json::Value& parent = above.back();
    made = with_member(parent.kind() == json::Kind::object ? parent : json::Value::object({}), *name, made, arena);
  }
  return made;
}

std::string result_line(std::string_view id, std::string_view result) {
  std::string line = R"({"jsonrpc":"2.0","id":)";
  line.append(id).append(R"(,"result":)").append(result).append("}");
  return line;
}

std::string error_line(std::string_view id, int code, std::string_view message) {
  std::string line = R"({"jsonrpc":"2.0",)";
  if (!id.empty()) line.append(R"("id":)").append(id).append(",");
  line.append(R"("error":{"code":)").append(std::to_string(code)).append(R"(,"message":)");
  json::append_quoted(line, message);
  return line + "}}";
}

std::string_view own_version(const json::Value& params) noexcept {
  return params.member("_meta").member("io.modelcontextprotocol/protocolVersion").string_or_empty();
}

}  // namespace once::mcp
