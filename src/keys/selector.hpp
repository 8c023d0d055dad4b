// A compiled JMESPath expression.
//
// The functions follow the dialect where the languages differ: what to_string() writes, whether a sum of integers is
// one (Python) or a double, what is longer than its characters (JavaScript and Java count UTF-16 units). "||" and "&&"
// evaluate the right side only if it is needed. Every wrong argument is an error.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>

#include "keys/expression.hpp"
#include "keys/json.hpp"

namespace once::keys {

class Selector {
 public:
  // `what` names the expression in messages ("the key expression"). Throws Exception(misuse) for what is no expression,
  // or is one whose result in the dialect's library is not reproduced.
  Selector(std::string_view expression, Dialect dialect, std::string_view what);

  // Throws Exception(misuse) if the expression fails. Thread-safe. The answer lives as long as this, event and arena.
  [[nodiscard]] json::Value operator()(const json::Value& event, json::Arena& arena) const;

 private:
  Dialect dialect_;
  Expression expression_;
};

}  // namespace once::keys
