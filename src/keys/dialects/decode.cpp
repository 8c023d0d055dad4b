#include "keys/dialects/decode.hpp"

#include <once/error.hpp>

#include "keys/inflate.hpp"
#include "keys/refuse.hpp"
#include "text/base64.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

// Other characters are skipped, and a complete group with its padding ends the data.
std::string python_data(std::string_view text) {
  std::string data;
  std::size_t pads = 0;  // Since the last character.
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) refuse("powertools_base64: a character outside ASCII");
    if (c == '=') {
      if (data.size() % 4 >= 2 && data.size() % 4 + ++pads >= 4) return data;
    } else if (text::is_base64_character(c)) {
      pads = 0;
      data += c;
    }
  }
  if (data.size() % 4 != 0) refuse("powertools_base64: not Base64: padding is missing or characters are");
  return data;
}

std::string decode(std::string_view text, text::Base64Rules rules) {
  std::string problem;
  auto bytes = text::decode_base64(text, rules, &problem);
  if (!bytes) refuse("powertools_base64: not Base64: " + problem);
  return *std::move(bytes);
}

bool inflate_all(std::string_view bytes, Dialect dialect, std::string& out, std::string& problem) {
  Inflater inflater(Inflater::Format::gzip, max_event_bytes);
  if (bytes.empty()) {
    problem = "empty";
    // Python: gzip.decompress(b"") == b"".
    return dialect == Dialect::powertools_python;
  }
  do {
    if (!inflater.member(bytes, out, problem)) return false;
    if (dialect == Dialect::powertools_python) {
      const auto data = bytes.find_first_not_of('\0');
      bytes.remove_prefix(data == std::string_view::npos ? bytes.size() : data);
    } else if (dialect != Dialect::native && !bytes.starts_with("\x1f\x8b")) {
      return true;
    }
  } while (!bytes.empty());
  return true;
}

}  // namespace

std::string decode_base64(std::string_view text, Dialect dialect) {
  switch (dialect) {
    case Dialect::powertools_python:
      return decode(python_data(text), {.padding = false, .zero_rest = false});
    case Dialect::native:
      break;
    case Dialect::powertools_typescript:
      return decode(text, {.zero_rest = false});
    case Dialect::powertools_java:
      return decode(text, {.padding = false, .zero_rest = false});
    case Dialect::powertools_dotnet: {
      std::string compact(text);
      std::erase_if(compact, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
      return decode(compact, {.zero_rest = false});
    }
  }
  return decode(text, {});
}

std::string gunzip(std::string_view bytes, Dialect dialect) {
  std::string out;
  std::string problem;
  if (!inflate_all(bytes, dialect, out, problem)) {
    refuse("powertools_base64_gzip: not gzip data: " + problem);
  }
  return out;
}

std::string java_gunzip_text(std::string_view bytes) {
  std::string out;
  std::string problem;
  if (!bytes.empty() && !inflate_all(bytes, Dialect::powertools_java, out, problem)) {
    return text::replace_invalid_utf8(bytes);
  }
  out = text::replace_invalid_utf8(out);
  std::erase_if(out, [](char c) { return c == '\n' || c == '\r'; });
  return out;
}

}  // namespace once::keys
