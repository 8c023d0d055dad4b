#include <once/keys/input_filter.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <optional>
#include <span>
#include <utility>

#include "keys/jmespath/expression.hpp"
#include "keys/refuse.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::keys {

namespace {

using json::Arena;
using json::Kind;
using json::Member;
using json::Value;
using Op = Node::Op;

// One link of a path.
struct Link {
  enum class Kind : std::uint8_t {
    member,     // name
    element,    // [index]
    elements,   // [*]
    members,    // *
    flattened,  // The second half of []: the elements of an array, or else the value itself.
  };
  Kind kind = Kind::member;
  std::string name = {};
  long index = 0;
};
using Path = std::vector<Link>;

// An expression as a path. A path says where something stands, which JMESPath in general does not: its results may be
// new values. What follows a list that a projection made ("a[*].b | [0]" is the first of all b) is no path either.
class PathOf {
 public:
  explicit PathOf(std::string_view expression) : expression_(expression) {}

  Path path() && {
    const Expression parsed = parse_expression(expression_, Dialect::native, what);
    append(*parsed.root);
    if (path_.empty()) fail("selects all of it: to keep no input, leave keep_input off");
    return std::move(path_);
  }

 private:
  static constexpr std::string_view what = "the expression of what to leave out";

  [[noreturn]] void fail(const std::string& why) const {
    refuse(std::string(what) + " " + json::quoted(expression_) + " " + why);
  }

  // Whether the node gives a list of its own.
  bool append(const Node& node) {
    switch (node.op) {
      case Op::current:
        return false;
      case Op::field:
        path_.push_back({.kind = Link::Kind::member, .name = node.text});
        return false;
      case Op::index:
        path_.push_back({.kind = Link::Kind::element, .name = {}, .index = node.index});
        return false;
      case Op::chain: {
        bool is_list = false;
        for (const NodePtr& child : node.children) {
          if (is_list) refuse_rest();
          is_list = append(*child);
        }
        return is_list;
      }
      case Op::elements:
      case Op::members:
        if (append(*node.children[0])) refuse_rest();
        path_.push_back({.kind = node.op == Op::elements ? Link::Kind::elements : Link::Kind::members});
        append(*node.children[1]);
        return true;
      case Op::flatten:
        // It flattens the list that stands before it, or that an array is.
        if (!append(*node.children[0])) path_.push_back({.kind = Link::Kind::elements});
        path_.push_back({.kind = Link::Kind::flattened});
        append(*node.children[1]);
        return true;
      default:
        refuse_rest();
    }
  }

  [[noreturn]] void refuse_rest() const {
    fail(
        "does not say where a field stands: write a path of names, [0], [*], [] and *, as in card.number or "
        "items[*].secret");
  }

  std::string_view expression_;
  Path path_;
};

// A path that meets a string where it expects an object may have met the secret itself: all of that is left out.
Value without(const Value& value, std::span<const Link> path, Arena& arena) {
  const Value nothing_of_it = value.is_null() ? value : Value::string(left_out);
  if (path.empty()) return nothing_of_it;
  const Link& link = path.front();
  const std::span<const Link> rest = path.subspan(1);
  const auto in_elements = [&](const auto& is_meant) {
    std::vector<Value> elements(value.elements().begin(), value.elements().end());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (is_meant(i)) elements[i] = without(elements[i], rest, arena);
    }
    return Value::array(json::keep(std::span<const Value>(elements), arena));
  };
  const auto in_members = [&](const auto& is_meant) {
    std::vector<Member> members(value.members().begin(), value.members().end());
    for (Member& member : members) {
      if (is_meant(member)) member.value = without(member.value, rest, arena);
    }
    return Value::object(json::keep(std::span<const Member>(members), arena));
  };
  const bool is_array = value.kind() == Kind::array;
  const bool is_object = value.kind() == Kind::object;
  switch (link.kind) {
    case Link::Kind::member:
      return is_object ? in_members([&](const Member& member) { return member.name == link.name; }) : nothing_of_it;
    case Link::Kind::element: {
      if (!is_array) return nothing_of_it;
      const auto size = static_cast<long>(value.elements().size());
      const long index = link.index < 0 ? size + link.index : link.index;
      return in_elements([&](std::size_t i) { return static_cast<long>(i) == index; });
    }
    case Link::Kind::elements:
      return is_array ? in_elements([](std::size_t) { return true; }) : nothing_of_it;
    case Link::Kind::members:
      return is_object ? in_members([](const Member&) { return true; }) : nothing_of_it;
    case Link::Kind::flattened:
      return is_array ? in_elements([](std::size_t) { return true; }) : without(value, rest, arena);
  }
  return nothing_of_it;
}

// Any JSON, since only what was read is written again; but no name twice, as readers differ on which counts.
constexpr json::Rules input_rules{.exact_numbers = false, .lone_surrogates = true};

void append_number_text(std::string_view number, std::string& out) { out += number; }

constexpr json::Style input_style{.number = append_number_text, .order = nullptr};

}  // namespace

struct InputFilter::Parts {
  std::vector<Path> paths;
};

InputFilter::InputFilter(const std::vector<std::string>& expressions, const std::vector<std::string>& names) {
  if (expressions.empty()) return;
  auto parts = std::make_shared<Parts>();
  for (const std::string& expression : expressions) {
    Path path = PathOf(expression).path();
    const Link& first = path.front();
    if (!names.empty() && first.kind == Link::Kind::member && std::ranges::find(names, first.name) == names.end()) {
      refuse("the expression of what to leave out " + json::quoted(expression) + " begins with " +
             json::quoted(first.name) + ", which does not exist");
    }
    parts->paths.push_back(std::move(path));
  }
  parts_ = std::move(parts);
}

InputPtr InputFilter::operator()(std::string_view input) const {
  if (parts_ == nullptr) return std::make_shared<const std::string>(input);
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  Value value;
  if (!json::try_parse(input, input_rules, arena, value)) return nullptr;
  for (const Path& path : parts_->paths) value = without(value, path, arena);
  return std::make_shared<const std::string>(json::written(value, input_style));
}

}  // namespace once::keys
