// Fields that are left out of an input before it is stored (Policy::keep_input).
//
//   once::keys::InputFilter filter({"card.number", "items[*].secret"});
//   filter(R"({"order":17,"card":{"number":"4111"}})")   {"order":17,"card":{"number":"(left out)"}}
//
// It protects by name: it cannot know a secret that stands somewhere else.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <once/decide.hpp>

namespace once::keys {

// What stands in place of a field that was left out: a JSON string.
inline constexpr std::string_view left_out = "(left out)";

// Immutable: any number of threads may use one at once. Copies share their parts. An InputRule.
class InputFilter {
 public:
  InputFilter() = default;  // Leaves nothing out.

  // Each expression is a path of JMESPath: names ("card"), indexes ([0], [-1]), all elements ([*], []) and all members
  // (*), linked by points. It selects the whole value: "card" leaves out all that is in it. Throws Exception(misuse),
  // with the expression, for one that is not JMESPath or has anything else, as a function, a filter or a pipe.
  //
  // `names`: all members that inputs can have at the top; an expression that begins with another one is refused. Empty:
  // not known.
  explicit InputFilter(const std::vector<std::string>& expressions, const std::vector<std::string>& names = {});

  // The input without these fields. Members keep their order and numbers their text; blanks between them are lost.
  // - A path that finds nothing, or null, changes nothing: an input need not have the field.
  // - A path that meets another type than it needs leaves all of that value out: for "card.number", a `card` that is a
  //   string or an array.
  //
  // Null, so that nothing is kept, if there are expressions and the input is not JSON (RFC 8259, UTF-8), has a name
  // twice in an object, is longer than max_event_bytes or deeper than max_event_depth (key_deriver.hpp). Without
  // expressions a copy of any input.
  [[nodiscard]] InputPtr operator()(std::string_view input) const;

  [[nodiscard]] bool empty() const noexcept { return parts_ == nullptr; }  // It leaves nothing out.

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;  // Null: no expressions.
};

}  // namespace once::keys
