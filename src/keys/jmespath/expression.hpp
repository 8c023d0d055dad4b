// Expressions in JMESPath (jmespath.org/specification.html): the grammar, and the tree that is evaluated
// (selector.hpp).
//
// Precedence is that of the reference implementation, jmespath.py, from weak to strong: | || && comparators [] the rest
// of the projections, ".", "!", "[". So "!a.b" is "(!a).b", and "a[*].b[]" flattens everything left of "[]".
#pragma once

#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "keys/jmespath/functions.hpp"
#include "text/json.hpp"

namespace once::keys {

namespace json = text::json;

struct Node;
using NodePtr = std::unique_ptr<const Node>;

struct Node {
  enum class Op : std::uint8_t {
    current,     // @
    field,       // text
    index,       // [index]
    literal,     // 'raw' and `json`: value
    call,        // function; children are the arguments
    reference,   // &expression, an argument: children[0]
    list,        // [a, b]
    hash,        // {x: a, y: b}: names, children
    chain,       // children one after the other: a.b, a[0], a | b
    either,      // ||
    both,        // &&
    negation,    // !
    comparison,  // text is the operator
    // Projections: children[0] gives the elements, children[1] is applied to each, nulls are omitted.
    elements,  // [*]
    members,   // *
    flatten,   // []
    filter,    // [?children[2]]
    slice,     // [start:stop:step]
  };
  Op op = Op::current;
  std::string text = {};
  long index = 0;
  json::Value value = {};
  Function function = Function::abs;
  std::optional<long> start = {};
  std::optional<long> stop = {};
  long step = 1;
  std::vector<std::string> names = {};
  std::vector<NodePtr> children = {};
};

struct Expression {
  std::unique_ptr<std::pmr::monotonic_buffer_resource> arena;  // Owns the literals.
  NodePtr root = {};
  bool plain =
      true;  // Without projections, filters, comparisons, literals in ``, and functions other than powertools_*.
};

// Throws Exception(misuse) with the place; `what` names the expression ("the key expression").
Expression parse_expression(std::string_view text, Dialect dialect, std::string_view what);

}  // namespace once::keys
