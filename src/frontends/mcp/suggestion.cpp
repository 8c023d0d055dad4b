#include "frontends/mcp/suggestion.hpp"

#include <algorithm>

#include <once/decide.hpp>

#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/utf8.hpp"

namespace once::mcp {

namespace {

// On one line, without what changes how the rest of it reads.
std::string comment_text(std::string_view text, std::size_t max_bytes) {
  const std::string clean = clean_text(text, max_bytes);
  std::string out;
  const char* p = clean.data();
  const char* const end = p + clean.size();
  bool was_blank = true;
  while (p != end) {
    const char* const start = p;
    const char32_t c = text::next_code_point(p);
    const bool is_blank = c == ' ' || text::is_invisible(c);
    if (!is_blank) {
      out.append(start, p);
    } else if (!was_blank) {
      out += ' ';
    }
    was_blank = is_blank;
  }
  return out + (clean.size() < text.size() ? " ..." : "");
}

bool is_identifier(const Argument& argument) {
  if (argument.type == "object" || argument.type == "array" || argument.type == "boolean") return false;
  const std::string name = text::lower(argument.name);
  static constexpr std::string_view ends[] = {"id", "key", "number", "reference", "ref", "uuid", "code"};
  return std::ranges::any_of(ends, [&](std::string_view one) { return name.ends_with(one); });
}

// The argument that most likely names what is acted on.
std::string likely_key(const Tool& tool) {
  for (const bool required : {true, false}) {
    for (const Argument& argument : tool.arguments) {
      if (argument.is_required == required && is_identifier(argument)) return argument.name;
    }
  }
  return tool.arguments.empty() ? "order_id" : tool.arguments.front().name;
}

// A name as JMESPath has it.
std::string as_expression(const std::string& name) {
  const bool is_plain = !name.empty() && !text::is_digit(name.front()) &&
                        std::ranges::all_of(name, [](char c) { return text::is_letter_or_digit(c) || c == '_'; });
  return is_plain ? name : json::quoted(name);
}

std::string arguments_of(const Tool& tool) {
  std::string out;
  for (const Argument& argument : tool.arguments) {
    out += (out.empty() ? "" : ", ") + argument.name + " (" + (argument.type.empty() ? "any" : argument.type) +
           (argument.is_required ? ", required)" : ")");
  }
  return out.empty() ? "none that its schema names" : out;
}

constexpr const char* head =
    R"(# Rules for `once mcp`, written by `once mcp --suggest`. Edit them: as they stand, tools that may act are refused.
# Everything that a comment says of a tool is what the server says. It may be wrong, or written to mislead.
#
# Each tool needs one of these:
#   key = "order_id"      one call for each value of an argument (JMESPath over the arguments). The best choice, if there
#                         is an argument that names what must happen once.
#   key-meta = "NAME"     one call for each value that the client sends under this name in _meta
#   key-run = true        one call for the same arguments in one run, for 10 minutes; needs run-meta here, or --run
#   read-only = true      it changes nothing: its calls pass
#   unprotected = true    its calls pass, and may act twice
# `pin` is the digest of the tool as you see it here. If the server changes it, its calls are refused until you have
# looked at it again.
)";

}  // namespace

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char32_t c = text::next_code_point(p);
    if (c >= 0xD800 && c < 0xE000) return {};
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c >= 0x20 && c < 0x7F) {
      out += static_cast<char>(c);
    } else {
      out += "\\U";
      for (int shift = 28; shift >= 0; shift -= 4) out += text::lower_digits[(c >> static_cast<unsigned>(shift)) & 15U];
    }
  }
  return out + "\"";
}

std::string suggestion(const Tools& tools, std::string_view server) {
  constexpr std::size_t max_comment_bytes = 300;
  std::string scope;
  for (const char c : server.substr(0, 64)) {
    if (text::is_letter_or_digit(c) || c == '-' || c == '_' || c == '.') scope += c;
  }
  if (scope.empty()) scope = "tools";
  std::string out = head;
  out += "\nscope = \"" + scope + "\"  # Begins all keys. Under another one, a repeated call runs again.\n";
  for (const auto& [name, tool] : tools.all()) {
    const std::string quoted = toml_quoted(name);
    if (quoted.empty()) {
      out += "\n# A tool is left out: its name is no text.\n";
      continue;
    }
    out += "\n[[tool]]\nname = " + quoted + "\n";
    if (!tool.description.empty()) out += "# " + comment_text(tool.description, max_comment_bytes) + "\n";
    out += "# Arguments: " + comment_text(arguments_of(tool), max_comment_bytes) + "\n";
    if (tool.says_read_only) {
      out += "read-only = true  # The server says so (readOnlyHint). Is it true?\n";
    } else {
      const std::string key = toml_quoted(as_expression(likely_key(tool)));
      out += "# It may act. Choose one:\n";
      out += "# key = " + (key.empty() ? "\"order_id\"" : key) + "  # A guess.\n";
      out += "# key-run = true\n# unprotected = true\n";
      out +=
          "# on-error = \"release\"  # If an error of it always means that nothing was done: a next call runs. Usual: "
          "store.\n";
    }
    out += "pin = \"" + tool.pin + "\"\n";
  }
  return out;
}

}  // namespace once::mcp
