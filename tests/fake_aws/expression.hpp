// Condition, filter, key condition, update and projection expressions: parsed, checked and carried out.
// Source: "Using expressions in DynamoDB" in its developer guide; texts of errors as the service writes them.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "fake_aws/value.hpp"

namespace once::testing::fake {

using Path = std::vector<std::variant<std::string, std::size_t>>;  // Names and indexes; the first is a name.

// The #names and :values of a request, and which of them its expressions used.
class Placeholders {
 public:
  // Throws Refusal for malformed ones, and for placeholders without an expression. `expressions` are the names of the
  // parameters that could have used values; empty for operations that have no values.
  Placeholders(const nlohmann::json& request, const std::vector<std::string_view>& expressions);

  const std::string& name(const std::string& placeholder, std::string_view expression);
  const Value& value(const std::string& placeholder, std::string_view expression);
  void check_all_used() const;  // Throws Refusal.

 private:
  std::map<std::string, std::string> names_;
  std::map<std::string, Value> values_;
  std::set<std::string> used_;
};

struct Operand {
  enum class Kind { path, value, size, if_not_exists, list_append, plus, minus };
  Kind kind = Kind::path;
  Path path = {};                   // path, size, if_not_exists
  Value value = {};                 // value
  std::vector<Operand> parts = {};  // What functions and + and - work on.

  // What it is for an item; empty if a path leads nowhere.
  [[nodiscard]] std::optional<Value> evaluate(const Item& item) const;
};

struct Condition {
  // What `comparison` says: a function by its name, or = <> < <= > >= BETWEEN IN AND OR NOT.
  std::string comparison = {};
  std::vector<Operand> operands = {};
  std::vector<Condition> conditions = {};
  bool in_parentheses = false;

  [[nodiscard]] bool holds(const Item& item) const;
};

// `parameter` is the name of the expression in the request, for errors.
Condition parse_condition(std::string_view text, std::string_view parameter, Placeholders& placeholders);

struct Update {
  enum class Action { set, remove, add, erase };
  struct Step {
    Action action = Action::set;
    Path path;
    Operand operand;
  };
  std::vector<Step> steps;

  // The item after it. Throws Refusal if it does not fit the item.
  [[nodiscard]] Item apply(const Item& item) const;
};

Update parse_update(std::string_view text, Placeholders& placeholders);

std::vector<Path> parse_projection(std::string_view text, Placeholders& placeholders);
Item project(const Item& item, const std::vector<Path>& paths);

const Value* find(const Item& item, const Path& path);

}  // namespace once::testing::fake
