#include "keys/functions.hpp"

#include <array>
#include <once/error.hpp>
#include <string>

#include "keys/decode.hpp"
#include "keys/text.hpp"

namespace once::keys {

namespace {

using json::Kind;
using json::Value;

constexpr std::array<std::string_view, 3> names{"powertools_json", "powertools_base64", "powertools_base64_gzip"};

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "null (is the field missing?)";
    case Kind::boolean:
      return "a boolean";
    case Kind::number:
      return "a number";
    case Kind::string:
      return "a string";
    case Kind::array:
      return "an array";
    case Kind::object:
      return "an object";
  }
  return {};
}

std::string text_of(const std::string& bytes, Powertools function, Dialect dialect) {
  switch (dialect) {
    case Dialect::powertools_typescript: {
      std::string text = replace_invalid_utf8(bytes);
      // TextDecoder takes a byte order mark off; Buffer.toString, which the gzip function uses, does not.
      if (function == Powertools::base64 && text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
      return text;
    }
    case Dialect::powertools_java:
      return replace_invalid_utf8(bytes);
    default:
      if (!valid_utf8(bytes)) {
        throw Exception(ErrorKind::misuse,
                        std::string(names[static_cast<std::size_t>(function)]) + "(): the decoded bytes are not UTF-8");
      }
      return bytes;
  }
}

}  // namespace

json::Rules rules_of(Dialect dialect) noexcept {
  json::Rules rules;
  if (dialect == Dialect::native) return rules;
  rules.unique_names = false;
  rules.exact_numbers = false;
  rules.lone_surrogates = dialect != Dialect::powertools_dotnet;  // GetString() throws there.
  rules.nan_and_infinity = dialect == Dialect::powertools_python;
  rules.index_names_first = dialect == Dialect::powertools_typescript;
  return rules;
}

std::optional<Powertools> powertools_function(std::string_view name) noexcept {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Powertools>(i);
  }
  return std::nullopt;
}

json::Value call(Powertools function, const json::Value& argument, Dialect dialect, json::Arena& arena) {
  const bool dotnet = dialect == Dialect::powertools_dotnet;
  if (dotnet && function == Powertools::json) return argument;  // Reading the member has parsed it.
  const std::string_view name = names[static_cast<std::size_t>(function)];
  if (argument.kind() != Kind::string) {
    throw Exception(ErrorKind::misuse,
                    std::string(name) + "() needs a string and was given " + std::string(name_of(argument.kind())));
  }
  const json::Rules rules = rules_of(dialect);
  if (function == Powertools::json) {
    return json::parse(argument.text(), rules, arena, "the text given to powertools_json()");
  }
  const std::string bytes = decode_base64(argument.text(), dialect);
  std::string text;
  if (function == Powertools::base64) {
    text = text_of(bytes, function, dialect);
  } else if (dialect == Dialect::powertools_java) {
    text = java_gunzip_text(bytes);
  } else {
    text = text_of(gunzip(bytes, dialect), function, dialect);
  }
  const std::string_view kept = json::keep(text, arena);
  if (dotnet) return json::parse(kept, rules, arena, "the text that " + std::string(name) + "() decoded");
  return Value::string(kept);
}

json::Value dotnet_member(const json::Value& member, json::Arena& arena) {
  Value parsed;
  if (member.kind() != Kind::string ||
      !json::try_parse(member.text(), rules_of(Dialect::powertools_dotnet), arena, parsed)) {
    return member;
  }
  return parsed;
}

}  // namespace once::keys
