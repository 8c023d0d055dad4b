#include "stores/dynamodb/powertools_result.hpp"

#include <array>
#include <cmath>
#include <memory_resource>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "keys/dialects/write.hpp"
#include "stores/dynamodb/item_format.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"

namespace once::stores::dynamodb {

namespace {

using keys::Dialect;
using text::json::Kind;
using text::json::Member;
using text::json::Rules;
using text::json::Value;
using Type = AttributeValue::Type;

constexpr double max_safe_integer = 9007199254740991;  // Number.MAX_SAFE_INTEGER
constexpr double min_number = 1e-130;  // docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html
constexpr int max_levels = 31;         // The attribute itself is the first of DynamoDB's 32.

[[noreturn]] void refuse(const std::string& why) {
  throw Exception(ErrorKind::misuse, why + ", which this dialect's records cannot hold");
}

// Memory for one tree.
class Tree {
 public:
  text::json::Arena& arena() { return arena_; }

 private:
  std::array<std::byte, 4096> first_;  // NOLINT(cppcoreguidelines-pro-type-member-init): memory for the arena
  std::pmr::monotonic_buffer_resource arena_{first_.data(), first_.size()};
};

// Every reader reads such a number as a double.
double number_of(const Value& value) {
  const double number = text::to_double(value.text());
  const std::string_view mantissa = value.text().substr(0, value.text().find_first_of("eE"));
  const bool zero = mantissa.find_first_of("123456789") == std::string_view::npos;
  if (!std::isfinite(number) || (number == 0 && !zero)) {
    refuse("the result has the number " + std::string(value.text().substr(0, 40)));
  }
  return number;
}

void check_numbers(const Value& value) {
  switch (value.kind()) {
    case Kind::number:
      if (!text::is_integer_text(value.text())) number_of(value);
      return;
    case Kind::array:
      for (const Value& element : value.elements()) check_numbers(element);
      return;
    case Kind::object:
      for (const Member& member : value.members()) check_numbers(member.value);
      return;
    default:
      return;
  }
}

bool is_false_in_python(const Value& value) {
  switch (value.kind()) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !value.truth();
    case Kind::number:
      return text::to_double(value.text()) == 0;
    case Kind::string:
      return value.text().empty();
    case Kind::array:
      return value.elements().empty();
    case Kind::object:
      return value.members().empty();
  }
  return false;
}

// marshall() of @aws-sdk/util-dynamodb.
AttributeValue marshalled(const Value& value, int level) {
  if (level > max_levels) refuse("the result is nested deeper than " + std::to_string(max_levels) + " levels");
  switch (value.kind()) {
    case Kind::null:
      return {};
    case Kind::boolean:
      return AttributeValue::boolean(value.truth());
    case Kind::string:
      return AttributeValue::s(std::string(value.text()));
    case Kind::number: {
      const double size = std::abs(number_of(value));
      if (size > max_safe_integer || (size != 0 && size < min_number)) {
        refuse("the result has the number " + std::string(value.text().substr(0, 40)));
      }
      return AttributeValue::n(keys::json_text(value, Dialect::powertools_typescript));
    }
    case Kind::array: {
      std::vector<AttributeValue> list;
      list.reserve(value.elements().size());
      for (const Value& element : value.elements()) list.push_back(marshalled(element, level + 1));
      return AttributeValue::l(std::move(list));
    }
    case Kind::object:
      break;
  }
  Item map;
  map.reserve(value.members().size());
  for (const Member& member : value.members()) {
    if (member.name == "__proto__") refuse("the result has a member named __proto__");
    map.add(std::string(member.name), marshalled(member.value, level + 1));
  }
  return AttributeValue::m(std::move(map));
}

[[noreturn]] void unreadable(const std::string& why) { throw Exception(ErrorKind::corrupt, why); }

void append_number(std::string& out, const std::string& text) {
  Tree tree;
  Value value;
  if (!text::json::try_parse(text, {.exact_numbers = false}, tree.arena(), value) || value.kind() != Kind::number) {
    unreadable("the number '" + text::printable(text) + "'");
  }
  out += text;
}

// unmarshall(), and then JSON.stringify() where that changes the result.
void append_unmarshalled(std::string& out, const AttributeValue& value) {
  const auto set = [&](const auto& append) {
    out += '[';
    for (const std::string& element : value.set) {
      if (&element != value.set.data()) out += ',';
      append(element);
    }
    out += ']';
  };
  const auto base64 = [&](const std::string& bytes) {
    out += '"';
    text::append_base64(out, bytes);
    out += '"';
  };
  switch (value.type) {
    case Type::null:
      out += "null";
      return;
    case Type::boolean:
      out += value.flag ? "true" : "false";
      return;
    case Type::s:
      text::json::append_quoted(out, value.text);
      return;
    case Type::n:
      append_number(out, value.text);
      return;
    case Type::b:
      base64(value.text);
      return;
    case Type::ss:
      set([&](const std::string& element) { text::json::append_quoted(out, element); });
      return;
    case Type::ns:
      set([&](const std::string& element) { append_number(out, element); });
      return;
    case Type::bs:
      set(base64);
      return;
    case Type::l:
      out += '[';
      for (const AttributeValue& element : value.list) {
        if (&element != value.list.data()) out += ',';
        append_unmarshalled(out, element);
      }
      out += ']';
      return;
    case Type::m:
      break;
  }
  out += '{';
  bool first = true;
  for (const auto& [name, member] : value.map) {
    if (!std::exchange(first, false)) out += ',';
    text::json::append_quoted(out, name);
    out += ':';
    append_unmarshalled(out, member);
  }
  out += '}';
}

}  // namespace

PowertoolsData write_powertools_data(Dialect dialect, std::string_view json) {
  const bool python = dialect == Dialect::powertools_python;
  Tree tree;
  // A lone surrogate is an escape in Python's text. In the others UTF-8 cannot represent it.
  const Rules rules{.unique_names = false, .exact_numbers = false, .lone_surrogates = python};
  const Value value = text::json::parse(json, rules, tree.arena(), "the result");
  if (dialect == Dialect::powertools_typescript) return {.value = marshalled(value, 0)};
  check_numbers(value);
  if (python) {
    if (is_false_in_python(value)) return {.value = AttributeValue::s("null"), .exact = value.is_null()};
    return {.value = AttributeValue::s(keys::hashed_text(value, dialect))};
  }
  if (dialect == Dialect::powertools_java && value.kind() == Kind::string) {
    std::string text(value.text());
    Value other;
    const bool ambiguous = text::json::try_parse(text, {}, tree.arena(), other);
    return {.value = AttributeValue::s(std::move(text)), .exact = !ambiguous};
  }
  return {.value = AttributeValue::s(std::string(json))};
}

std::string read_powertools_data(Dialect dialect, const AttributeValue* data) {
  if (data == nullptr) return "null";
  if (dialect == Dialect::powertools_typescript) {
    std::string out;
    append_unmarshalled(out, *data);
    return out;
  }
  if (data->type != Type::s) {
    unreadable("it is of type " + std::string(to_string(data->type)) + ", which " +
               std::string(keys::to_string(dialect)) + " does not write");
  }
  const bool python = dialect == Dialect::powertools_python;
  if (python && data->text.empty()) return "null";
  Tree tree;
  Value value;
  const Rules rules{.unique_names = false, .exact_numbers = false, .lone_surrogates = true, .nan_and_infinity = python};
  if (text::json::try_parse(data->text, rules, tree.arena(), value)) return data->text;
  if (dialect != Dialect::powertools_java) unreadable("it is not JSON");
  std::string quoted;
  text::json::append_quoted(quoted, data->text);
  return quoted;
}

AttributeValue unreadable_powertools_data(Dialect dialect) {
  // unmarshall() throws on a fraction beyond 2^53.
  if (dialect == Dialect::powertools_typescript) return AttributeValue::n("123456789012345678901234.5");
  return AttributeValue::s("{once: the result of this operation is not in its record");
}

}  // namespace once::stores::dynamodb
