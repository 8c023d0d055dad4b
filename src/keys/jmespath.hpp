// JMESPath by jsoncons, whose headers stay in jmespath.cpp.
#pragma once

#include <memory>
#include <once/keys/key_deriver.hpp>
#include <string_view>
#include <vector>

#include "keys/json.hpp"

namespace once::keys {

class JmesPath {
 public:
  JmesPath(std::string_view expression, Dialect dialect, std::string_view what);  // Throws Exception(misuse).
  JmesPath(JmesPath&&) noexcept;
  JmesPath& operator=(JmesPath&&) noexcept;
  ~JmesPath();

  [[nodiscard]] json::Value search(const json::Value& event, json::Arena& arena) const;  // Throws Exception(misuse).

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// Function calls in an expression: name and where it begins. Throws Exception(misuse) if the expression is too long,
// nested too deep, blank, or no UTF-8.
struct Call {
  std::string_view name;
  std::size_t offset;
};
std::vector<Call> calls_in(std::string_view expression, std::string_view what);

}  // namespace once::keys
