#include "frontends/mcp/tools.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "text/ascii.hpp"

namespace once::mcp {

namespace {

constexpr const char* listed_twice = "the tool is listed twice";  // Never a pin.

std::span<const json::Value> listed(const json::Value& list_result) {
  const json::Value tools = list_result.member("tools");
  if (tools.kind() != json::Kind::array) throw Exception(ErrorKind::misuse, "the list of tools has no tools");
  return tools.elements();
}

bool is_in(const json::Value& array, std::string_view name) {
  if (array.kind() != json::Kind::array) return false;
  return std::ranges::any_of(array.elements(), [&](const json::Value& one) { return one.string_or_empty() == name; });
}

bool is_of_type(const json::Value& value, std::string_view type) {
  switch (value.kind()) {
    case json::Kind::null:
      return type == "null";
    case json::Kind::boolean:
      return type == "boolean";
    case json::Kind::number:
      return type == "number" || type == "integer";
    case json::Kind::string:
      return type == "string";
    case json::Kind::array:
      return type == "array";
    case json::Kind::object:
      return type == "object";
  }
  return false;
}

void read_arguments(const json::Value& schema, Tool& tool) {
  if (schema.kind() != json::Kind::object) return;
  if (const json::Value required = schema.member("required"); required.kind() == json::Kind::array) {
    for (const json::Value& one : required.elements()) {
      if (one.kind() == json::Kind::string) tool.required.emplace_back(one.text());
    }
  }
  const json::Value properties = schema.member("properties");
  if (properties.kind() != json::Kind::object) return;
  for (const json::Member& property : properties.members()) {
    Argument argument{.name = std::string(property.name),
                      .is_required = is_in(schema.member("required"), property.name)};
    if (property.value.kind() == json::Kind::object) {
      argument.type = property.value.member("type").string_or_empty();
      const auto members = property.value.members();
      const auto usual = std::ranges::find(members, "default", &json::Member::name);
      if (usual != members.end()) argument.usual = one_line(usual->value);
    }
    tool.arguments.push_back(std::move(argument));
  }
  // With one of these, there may be arguments that `properties` does not have.
  static constexpr std::array<std::string_view, 9> others{
      "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "patternProperties"};
  tool.has_all_arguments = std::ranges::none_of(schema.members(), [](const json::Member& member) {
    return std::ranges::find(others, member.name) != others.end();
  });
}

}  // namespace

std::string pin_of(const json::Value& tool) {
  std::string text;
  for (const char* const name : {"annotations", "description", "inputSchema", "name", "outputSchema"}) {
    text += (text.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + sorted_text(tool.member(name));
  }
  return "sha256:" + to_hex(sha256(text + "}"));
}

std::optional<Tool> tool_of(const json::Value& tool) {
  if (tool.kind() != json::Kind::object) return std::nullopt;
  const std::string_view name = tool.member("name").string_or_empty();
  if (name.empty()) return std::nullopt;
  Tool out{.name = std::string(name), .pin = pin_of(tool)};
  out.description = tool.member("description").string_or_empty();
  const json::Value annotations = tool.member("annotations");
  if (annotations.kind() == json::Kind::object) {
    const json::Value hint = annotations.member("readOnlyHint");
    out.says_read_only = hint.kind() == json::Kind::boolean && hint.truth();
  }
  out.has_output_schema = !tool.member("outputSchema").is_null();
  read_arguments(tool.member("inputSchema"), out);
  return out;
}

std::string misfit(const Tool& tool, const json::Value& arguments) {
  const auto given = [&](std::string_view name) -> const json::Value* {
    const auto members = arguments.members();
    const auto found = std::ranges::find(members, name, &json::Member::name);
    return found == members.end() ? nullptr : &found->value;
  };
  for (const std::string& name : tool.required) {
    if (given(name) == nullptr) return "the argument " + text::quoted(name) + " is missing";
  }
  static constexpr std::array<std::string_view, 7> types{"null",   "boolean", "number", "integer",
                                                         "string", "array",   "object"};
  for (const Argument& argument : tool.arguments) {
    const json::Value* const value = given(argument.name);
    if (value == nullptr || std::ranges::find(types, argument.type) == types.end()) continue;
    if (!is_of_type(*value, argument.type)) {
      return "the argument " + text::quoted(argument.name) + " must be of the type " + argument.type;
    }
  }
  return {};
}

json::Value with_usual(const Tool& tool, const json::Value& arguments, json::Arena& arena) {
  json::Value out = arguments;
  for (const Argument& argument : tool.arguments) {
    const auto members = out.members();
    if (argument.usual.empty() || std::ranges::find(members, argument.name, &json::Member::name) != members.end())
      continue;
    json::Value usual;
    const std::string_view text = json::keep(argument.usual, arena);
    if (json::try_parse(text, {.exact_numbers = false, .lone_surrogates = true}, arena, usual)) {
      out = with_member(out, argument.name, usual, arena);
    }
  }
  return out;
}

void Tools::add(const json::Value& list_result) {
  for (const json::Value& one : listed(list_result)) {
    std::optional<Tool> tool = tool_of(one);
    if (!tool) continue;
    if (tools_.size() >= max_tools) {
      throw Exception(ErrorKind::misuse, "the server lists more than " + std::to_string(max_tools) + " tools");
    }
    const auto [at, is_new] = tools_.try_emplace(tool->name, std::move(*tool));
    if (!is_new) at->second.pin = listed_twice;
  }
}

void Tools::update(const json::Value& list_result) {
  if (list_result.member("tools").kind() != json::Kind::array) return;
  std::set<std::string_view> names;
  for (const json::Value& one : list_result.member("tools").elements()) {
    std::optional<Tool> tool = tool_of(one);
    if (!tool || (tools_.size() >= max_tools && !tools_.contains(tool->name))) continue;
    Tool& known = tools_[tool->name];
    known = std::move(*tool);
    if (!names.insert(one.member("name").text()).second) known.pin = listed_twice;
  }
}

const Tool* Tools::find(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : &found->second;
}

}  // namespace once::mcp
