#include "keys/jmespath/functions.hpp"

#include <algorithm>
#include <array>
#include <once/error.hpp>
#include <string>

#include "keys/dialects/decode.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

using json::Kind;
using json::Value;

// In the order of the enumeration.
constexpr std::array<Signature, 29> signatures{{{"abs", Function::abs},
                                                {"avg", Function::avg},
                                                {"ceil", Function::ceil},
                                                {"contains", Function::contains, 2, 2},
                                                {"ends_with", Function::ends_with, 2, 2},
                                                {"floor", Function::floor},
                                                {"join", Function::join, 2, 2},
                                                {"keys", Function::keys},
                                                {"length", Function::length},
                                                {"map", Function::map, 2, 2, 0},
                                                {"max", Function::max},
                                                {"max_by", Function::max_by, 2, 2, 1},
                                                {"merge", Function::merge, 1, Signature::any_number},
                                                {"min", Function::min},
                                                {"min_by", Function::min_by, 2, 2, 1},
                                                {"not_null", Function::not_null, 1, Signature::any_number},
                                                {"powertools_base64", Function::powertools_base64},
                                                {"powertools_base64_gzip", Function::powertools_base64_gzip},
                                                {"powertools_json", Function::powertools_json},
                                                {"reverse", Function::reverse},
                                                {"sort", Function::sort},
                                                {"sort_by", Function::sort_by, 2, 2, 1},
                                                {"starts_with", Function::starts_with, 2, 2},
                                                {"sum", Function::sum},
                                                {"to_array", Function::to_array},
                                                {"to_number", Function::to_number},
                                                {"to_string", Function::to_string},
                                                {"type", Function::type},
                                                {"values", Function::values}}};

std::string text_of(const std::string& bytes, Function function, Dialect dialect) {
  switch (dialect) {
    case Dialect::powertools_typescript: {
      std::string text = text::replace_invalid_utf8(bytes);
      // TextDecoder removes a byte order mark; Buffer.toString, which the gzip function uses, does not.
      if (function == Function::powertools_base64 && text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
      return text;
    }
    case Dialect::powertools_java:
      return text::replace_invalid_utf8(bytes);
    default:
      if (!text::valid_utf8(bytes)) {
        throw Exception(ErrorKind::misuse, std::string(name_of(function)) + "(): the decoded bytes are not UTF-8");
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

const Signature* signature_of(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(signatures, name, &Signature::name);
  return found == signatures.end() ? nullptr : found;
}

std::string_view name_of(Function function) noexcept { return signatures[static_cast<std::size_t>(function)].name; }

bool is_powertools(Function function) noexcept {
  return function == Function::powertools_base64 || function == Function::powertools_base64_gzip ||
         function == Function::powertools_json;
}

std::string_view kind_name(Kind kind) noexcept {
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

json::Value call_powertools(Function function, const json::Value& argument, Dialect dialect, json::Arena& arena) {
  const bool dotnet = dialect == Dialect::powertools_dotnet;
  if (dotnet && function == Function::powertools_json) return argument;  // Reading the member has parsed it.
  const std::string_view name = name_of(function);
  if (argument.kind() != Kind::string) {
    throw Exception(ErrorKind::misuse,
                    std::string(name) + "() needs a string and was given " + std::string(kind_name(argument.kind())));
  }
  const json::Rules rules = rules_of(dialect);
  if (function == Function::powertools_json) {
    return json::parse(argument.text(), rules, arena, "the text given to powertools_json()");
  }
  const std::string bytes = decode_base64(argument.text(), dialect);
  std::string text;
  if (function == Function::powertools_base64) {
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
