// A compiled JMESPath expression.
//
// Functions follow the dialect where the languages differ: the text of to_string(), whether a sum of integers is an
// integer (Python) or a double, the length of a string (JavaScript and Java count UTF-16 units). "||" and "&&" evaluate
// the right side only if needed. Every wrong argument is an error.
#pragma once

#include <once/keys/key_deriver.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "keys/jmespath/expression.hpp"
#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

// Null, or a container of only such values; an empty container does not count.
bool only_nulls(const json::Value& v);
// The same, or "" or a container of nothing but nulls and empty containers.
bool is_nothing(const json::Value& v);

class Selector {
 public:
  // `what` names the expression in messages ("the key expression"). Throws Exception(misuse) for an invalid expression,
  // or one whose result in the dialect's library is not reproduced.
  Selector(std::string_view expression, Dialect dialect, std::string_view what);

  // Throws Exception(misuse) if the expression fails. Thread-safe. The result is valid as long as this, event and
  // arena.
  [[nodiscard]] json::Value operator()(const json::Value& event, json::Arena& arena) const {
    return select(event, arena).value;
  }

  struct Selection {
    json::Value value;
    // The result, or a condition on the way to it, has something of the event that is not null. Also true for an
    // expression of constants only. False for "kind || 'x'" and "['x', kind]" over an event without kind.
    bool found = false;
    // native: the expression itself built the result from parts, "[user.uid, id]", and one of them is null, or empty.
    // See part_mark() in selector.cpp.
    bool null_part = false;
    bool empty_part = false;
  };
  // The same, and whether the event contributed to it. In doubt it did: functions of its values, and values that a
  // condition selects, count.
  [[nodiscard]] Selection select(const json::Value& event, json::Arena& arena) const;

  [[nodiscard]] bool reads_event() const noexcept { return reads_event_; }
  // The parts of the event that the result may depend on, in any event: each is a path of names, with all that is below
  // it. The empty path is the whole event.
  using Path = std::vector<std::string>;
  [[nodiscard]] std::vector<Path> reads() const;
  // Whether a number of the event comes out with its text, and is compared with nothing: "[id, not_null(a, b)]". False
  // for "to_string(id)", which works with a double.
  [[nodiscard]] bool keeps_numbers() const;
  // The likely mistake if it selects nothing, as the end of a sentence. Empty: none known.
  [[nodiscard]] std::string hint() const;

 private:
  Dialect dialect_;
  Expression expression_;
  bool reads_event_;
};

}  // namespace once::keys
