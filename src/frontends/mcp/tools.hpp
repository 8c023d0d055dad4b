// The tools of a server, as it lists them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/mcp/message.hpp"

namespace once::mcp {

inline constexpr std::size_t max_tools = 10'000;
inline constexpr std::size_t max_pages = 1'000;  // Of one list.

// An argument of a tool, as its schema has it.
struct Argument {
  std::string name = {};
  std::string type = {};  // "string"; empty: the schema does not say it in one word.
  bool is_required = false;
  std::string usual = {};  // What it is if it is left out, as JSON. Empty: the schema does not say.
};

struct Tool {
  std::string name = {};
  std::string pin = {};  // pin_of()
  std::string description = {};
  bool has_output_schema = false;  // Clients refuse a result that has another form, unless it is an error.
  bool says_read_only = false;     // readOnlyHint. The server says so; it may be wrong.
  std::vector<Argument> arguments = {};
  std::vector<std::string> required = {};
  // The arguments are all that the schema has at its top, so that another name in a rule is a mistake.
  bool has_all_arguments = false;
};

// What a rule was written for: "sha256:" and the digest of the tool's name, description, schemas and annotations, as 64
// hexadecimal digits. Order and blanks in its JSON make no difference. Titles and icons do not count.
std::string pin_of(const json::Value& tool);

// A tool of a list. Empty if it has no name.
std::optional<Tool> tool_of(const json::Value& tool);

// Why the schema refuses these arguments, as far as that is plain: one is missing, or is of another type than the one
// that the schema names. Empty: no reason is seen. A call that is refused before it is claimed can be corrected; an
// error of the tool for the same reason may be its stored result.
std::string misfit(const Tool& tool, const json::Value& arguments);

// The arguments, with what the schema says of those that are left out: a model that names them means the same call.
json::Value with_usual(const Tool& tool, const json::Value& arguments, json::Arena& arena);

// By name. A name that is listed twice has a pin that no rule has.
class Tools {
 public:
  // Adds the tools of a result of tools/list. Throws Exception(misuse) if it has none, or with them there are too many.
  void add(const json::Value& list_result);
  // Replaces those of the same names.
  void update(const json::Value& list_result);
  [[nodiscard]] const Tool* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, Tool, std::less<>>& all() const noexcept { return tools_; }

 private:
  std::map<std::string, Tool, std::less<>> tools_;
};

}  // namespace once::mcp
