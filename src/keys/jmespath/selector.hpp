// A compiled JMESPath expression.
//
// The functions follow the dialect where the languages differ: what to_string() writes, whether a sum of integers is
// one (Python) or a double, what is longer than its characters (JavaScript and Java count UTF-16 units). "||" and "&&"
// evaluate the right side only if it is needed. Every wrong argument is an error.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "keys/jmespath/expression.hpp"
#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

class Selector {
 public:
  // `what` names the expression in messages ("the key expression"). Throws Exception(misuse) for what is no expression,
  // or is one whose result in the dialect's library is not reproduced.
  Selector(std::string_view expression, Dialect dialect, std::string_view what);

  // Throws Exception(misuse) if the expression fails. Thread-safe. The answer lives as long as this, event and arena.
  [[nodiscard]] json::Value operator()(const json::Value& event, json::Arena& arena) const {
    return select(event, arena).value;
  }

  struct Selection {
    json::Value value;
    // Something in it, or in what was asked on the way to it, is of the event and not null; or it is of constants
    // alone, as the expression is. False for "kind || 'x'" and "['x', kind]" over an event without kind.
    bool found = false;
  };
  // The same, and whether the event had a part in it. When in doubt it had: what a function makes of its arguments, and
  // what a condition lets through, counts.
  [[nodiscard]] Selection select(const json::Value& event, json::Arena& arena) const;

  [[nodiscard]] bool reads_event() const noexcept { return reads_event_; }
  // The names that it looks for at the top of the event, but for those behind '&'.
  [[nodiscard]] std::vector<std::string> top_names() const;
  // What may be wrong if it selects nothing, as the end of a sentence. Empty: nothing that can be seen.
  [[nodiscard]] std::string hint() const;

 private:
  Dialect dialect_;
  Expression expression_;
  bool reads_event_;
};

}  // namespace once::keys
