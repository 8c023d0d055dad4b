#include "keys/dialects/write.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "keys/dialects/java_number.hpp"
#include "keys/dialects/lower_case.hpp"
#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

using json::Kind;
using json::Member;
using json::Style;
using json::Value;
using Members = std::span<const Member*>;

void append_python_number(std::string_view text, std::string& out) {
  if (text::is_integer_text(text)) {
    out += text == "-0" ? "0" : text;
  } else {
    text::append_python(text::to_double(text), out);
  }
}

void append_java_number(std::string_view text, std::string& out) {
  if (text::is_integer_text(text)) {
    out += text == "-0" ? "0" : text;
  } else if (const double d = text::to_double(text); std::isfinite(d)) {
    append_java(d, out);
  } else {
    out += '"';
    append_java(d, out);
    out += '"';
  }
}

void append_as_it_is(std::string_view text, std::string& out) { out += text; }

// By code point, which in UTF-8 is by byte, surrogates included.
Members sort_python(Members members) {
  std::ranges::sort(members, {}, &Member::name);
  return members;
}

// By lower-cased name, stable; then as in any ECMAScript object: array indices first, by number, and __proto__ makes no
// member.
Members sort_typescript(Members members) {
  const auto ascii = [](const Member* m) {
    return std::ranges::all_of(m->name, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  };
  if (std::ranges::all_of(members, ascii)) {
    const auto lower = [](char c) { return text::lower(c); };
    std::ranges::stable_sort(members, [&](const Member* a, const Member* b) {
      return std::ranges::lexicographical_compare(a->name, b->name, {}, lower, lower);
    });
  } else {
    std::vector<std::pair<std::string, const Member*>> lowered;
    lowered.reserve(members.size());
    for (const Member* m : members) lowered.emplace_back(to_lower(m->name), m);
    std::ranges::stable_sort(lowered, [](const auto& a, const auto& b) { return text::utf16_less(a.first, b.first); });
    std::ranges::transform(lowered, members.begin(), [](const auto& entry) { return entry.second; });
  }
  const auto index = [](const Member* m) { return text::array_index(m->name); };
  const auto has_index = [&](const Member* m) { return index(m).has_value(); };
  if (std::ranges::any_of(members, has_index)) {
    const auto rest = std::ranges::stable_partition(members, has_index);
    std::ranges::sort(members.first(members.size() - rest.size()), {}, [&](const Member* m) { return *index(m); });
  }
  const auto proto = std::ranges::remove(members, std::string_view("__proto__"), &Member::name);
  return members.first(members.size() - proto.size());
}

constexpr Style python_style{.ascii = true, .spaced = true, .number = append_python_number, .order = sort_python};
constexpr Style typescript_style{.order = sort_typescript};
constexpr Style java_style{
    .digits = text::upper_digits, .surrogate = "?", .number = append_java_number, .order = nullptr};
// JavaScriptEncoder.Default of System.Text.Json, which keeps only characters that are safe inside HTML.
constexpr Style dotnet_style{.digits = text::upper_digits,
                             .also = "&'+<>`",
                             .ascii = true,
                             .short_quote = false,
                             .surrogate = "\\uFFFD",
                             .number = append_as_it_is,
                             .order = nullptr};

const Style& style_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::powertools_python:
      return python_style;
    case Dialect::powertools_typescript:
      return typescript_style;
    case Dialect::powertools_java:
      return java_style;
    case Dialect::powertools_dotnet:
      return dotnet_style;
    case Dialect::native:
      break;
  }
  return json::canonical_style;
}

// A string that is hashed unchanged, without quotes.
std::string bare(std::string_view text, std::string_view surrogate) {
  std::string out;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char* const start = p;
    const char32_t c = text::next_code_point(p);
    if (c >= 0xD800 && c < 0xE000) {
      out += surrogate;
    } else {
      out.append(start, p);
    }
  }
  return out;
}

}  // namespace

std::string hashed_text(const Value& value, Dialect dialect) {
  if (dialect == Dialect::powertools_java) {
    if (value.kind() == Kind::string) return bare(value.text(), "?");
    if (value.kind() == Kind::number && !text::is_integer_text(value.text())) {
      std::string out;
      append_java(text::to_double(value.text()), out);  // Infinity has no quotes here.
      return out;
    }
  }
  if (dialect == Dialect::powertools_dotnet) {
    if (value.kind() == Kind::string) return bare(value.text(), "\xEF\xBF\xBD");
    if (value.is_null()) return {};
    if (value.kind() == Kind::boolean) return value.truth() ? "True" : "False";
  }
  return json::written(value, style_of(dialect));
}

std::string json_text(const Value& value, Dialect dialect) {
  if (dialect == Dialect::native) return json::written(value);
  Style style = style_of(dialect);
  style.spaced = false;
  style.order = nullptr;
  return json::written(value, style);
}

}  // namespace once::keys
