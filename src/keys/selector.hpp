// A compiled JMESPath expression.
//
// What idempotency keys are made of in practice (names, indices, powertools functions, lists and hashes of them, "||"
// and "&&") is evaluated here, straight on the parsed event: copying an event into the library's own tree costs more
// than all the rest of deriving a key, the library evaluates both sides of "||" even if only one can be, and .NET reads
// members by rules of its own. Everything else is left to jsoncons (jmespath.hpp), which also judges the syntax of all.
#pragma once

#include <memory>
#include <once/keys/key_deriver.hpp>
#include <string_view>

#include "keys/json.hpp"

namespace once::keys {

class Selector {
 public:
  // `what` names the expression in messages ("the key expression"). Throws Exception(misuse).
  Selector(std::string_view expression, Dialect dialect, std::string_view what);
  Selector(Selector&&) noexcept;
  Selector& operator=(Selector&&) noexcept;
  ~Selector();

  // Throws Exception(misuse) if the expression fails. Thread-safe. The answer lives as long as event and arena.
  [[nodiscard]] json::Value operator()(const json::Value& event, json::Arena& arena) const;

  // Was it compiled to the subset above?
  [[nodiscard]] bool is_plain() const noexcept;

  // Not to be called but by tests: leaves the evaluation to jsoncons, plain or not.
  [[nodiscard]] json::Value by_library(const json::Value& event, json::Arena& arena) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace once::keys
