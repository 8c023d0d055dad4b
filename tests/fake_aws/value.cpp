#include "fake_aws/value.hpp"

#include <array>
#include <cstdint>
#include <utility>

#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 10> kinds = {"S", "N", "B", "BOOL", "NULL", "M", "L", "SS", "NS", "BS"};
constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const std::string& text_of(const json& value) {
  if (!value.is_string()) malformed(std::string(value.type_name()) + " can not be converted to an String");
  return value.get_ref<const std::string&>();
}

Bytes bytes_of(const json& value) {
  const std::string& text = text_of(value);
  Bytes out;
  std::uint32_t bits = 0;
  int held = 0;
  std::size_t end = text.size();
  while (end > 0 && text.size() - end < 2 && text[end - 1] == '=') --end;
  if (text.size() % 4 != 0) malformed("Base64 encoded length is expected a multiple of 4 bytes but found: " + text);
  for (const char c : std::string_view(text).substr(0, end)) {
    const auto digit = base64_digits.find(c);
    if (digit == std::string_view::npos) malformed("Invalid Base64 character in: " + text);
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.bytes += static_cast<char>(bits >> held & 0xff);
    }
  }
  if (held > 0 && (bits & ((1U << held) - 1)) != 0) malformed("Invalid last non-zero bits in Base64 text: " + text);
  return out;
}

template <class T, class Read>
Value set_of(const json& value, std::string_view name, Read read) {
  if (!value.is_array()) malformed("Start of list expected for a set");
  if (value.empty()) {
    invalid("One or more parameter values were invalid: An " + std::string(name) + " set  may not be empty");
  }
  std::set<T> out;
  for (const auto& element : value) {
    if (!out.insert(read(element)).second) {
      std::string list;
      for (const auto& e : value) list += (list.empty() ? "" : ", ") + text_of(e);
      invalid(name == "number"
                  ? "Input collection contains duplicates"
                  : "One or more parameter values were invalid: Input collection [" + list + "] contains duplicates.");
    }
  }
  return {std::move(out)};
}

Value read(const json& value, std::size_t depth) {
  if (!value.is_object()) malformed("Expected an attribute value such as {\"S\": \"text\"}");
  if (value.empty()) invalid("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes");
  if (value.size() > 1) {
    invalid(
        "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes");
  }
  if (depth > 32) invalid("Nesting Levels have exceeded supported limits");
  const std::string& kind = value.begin().key();
  const json& held = value.begin().value();
  const auto number = [](const json& element) { return Decimal::parse(text_of(element)); };
  if (kind == "S") return {text_of(held)};
  if (kind == "N") return {number(held)};
  if (kind == "B") return {bytes_of(held)};
  if (kind == "BOOL") {
    if (!held.is_boolean()) malformed("Unexpected value type for BOOL");
    return {held.get<bool>()};
  }
  if (kind == "NULL") {
    if (!held.is_boolean()) malformed("Unexpected value type for NULL");
    if (!held.get<bool>()) {
      invalid("One or more parameter values were invalid: Null attribute value types must have the value of true");
    }
    return {nullptr};
  }
  if (kind == "M") {
    if (!held.is_object()) malformed("Expected an object as value of M");
    Item out;
    for (const auto& [name, element] : held.items()) out.emplace(name, read(element, depth + 1));
    return {std::move(out)};
  }
  if (kind == "L") {
    if (!held.is_array()) malformed("Expected a list as value of L");
    List out;
    out.reserve(held.size());
    for (const auto& element : held) out.push_back(read(element, depth + 1));
    return {std::move(out)};
  }
  if (kind == "SS") return set_of<std::string>(held, "string", text_of);
  if (kind == "NS") return set_of<Decimal>(held, "number", number);
  if (kind == "BS") return set_of<Bytes>(held, "binary", bytes_of);
  invalid("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes");
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

std::string base64(std::string_view bytes) {
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (held += 8; held >= 6;) {
      held -= 6;
      out += base64_digits[bits >> held & 63];
    }
  }
  if (held > 0) out += base64_digits[bits << (6 - held) & 63];
  out.append((4 - out.size() % 4) % 4, '=');
  return out;
}

std::string_view Value::kind() const noexcept { return kinds[held.index()]; }

bool operator==(const Value& left, const Value& right) { return left.held == right.held; }

Value value_from_json(const json& value) { return read(value, 0); }

Item item_from_json(const json& value, std::string_view what) {
  if (!value.is_object()) malformed("Expected an object as " + std::string(what));
  Item out;
  for (const auto& [name, element] : value.items()) out.emplace(name, value_from_json(element));
  return out;
}

json to_json(const Value& value) {
  json held = std::visit(
      Overloaded{[](const std::string& text) -> json { return text; },
                 [](const Decimal& number) -> json { return number.to_string(); },
                 [](const Bytes& bytes) -> json { return base64(bytes.bytes); }, [](bool flag) -> json { return flag; },
                 [](std::nullptr_t) -> json { return true; }, [](const Item& item) -> json { return to_json(item); },
                 [](const auto& collection) -> json {
                   json out = json::array();
                   for (const auto& element : collection) {
                     using T = std::remove_cvref_t<decltype(element)>;
                     if constexpr (std::is_same_v<T, Value>) {
                       out.push_back(to_json(element));
                     } else if constexpr (std::is_same_v<T, Decimal>) {
                       out.push_back(element.to_string());
                     } else if constexpr (std::is_same_v<T, Bytes>) {
                       out.push_back(base64(element.bytes));
                     } else {
                       out.push_back(element);
                     }
                   }
                   return out;
                 }},
      value.held);
  json out = json::object();
  out.emplace(std::string(value.kind()), std::move(held));
  return out;
}

json to_json(const Item& item) {
  json out = json::object();
  for (const auto& [name, value] : item) out.emplace(name, to_json(value));
  return out;
}

std::size_t size_bytes(const Value& value) {
  return std::visit(Overloaded{[](const std::string& text) { return text.size(); },
                               [](const Decimal& number) { return number.size_bytes(); },
                               [](const Bytes& bytes) { return bytes.bytes.size(); },
                               [](bool) { return std::size_t{1}; }, [](std::nullptr_t) { return std::size_t{1}; },
                               [](const Item& map) { return 3 + size_bytes(map) + map.size(); },
                               [](const List& list) {
                                 std::size_t sum = 3 + list.size();
                                 for (const auto& element : list) sum += size_bytes(element);
                                 return sum;
                               },
                               [](const auto& set) {
                                 std::size_t sum = 0;
                                 for (const auto& element : set) sum += size_bytes(Value{element});
                                 return sum;
                               }},
                    value.held);
}

std::size_t size_bytes(const Item& item) {
  std::size_t sum = 0;
  for (const auto& [name, value] : item) sum += name.size() + size_bytes(value);
  return sum;
}

std::optional<std::strong_ordering> compare(const Value& left, const Value& right) {
  if (left.held.index() != right.held.index()) return std::nullopt;
  if (const auto* text = left.as<std::string>()) return *text <=> *right.as<std::string>();
  if (const auto* number = left.as<Decimal>()) return *number <=> *right.as<Decimal>();
  if (const auto* bytes = left.as<Bytes>()) return *bytes <=> *right.as<Bytes>();
  return std::nullopt;
}

}  // namespace once::testing::fake
