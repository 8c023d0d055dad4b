#include "keys/selector.hpp"

#include <charconv>
#include <once/error.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "keys/functions.hpp"
#include "keys/jmespath.hpp"
#include "keys/text.hpp"

namespace once::keys {

namespace {

using json::Arena;
using json::Kind;
using json::Member;
using json::Value;

struct Node;
using NodePtr = std::unique_ptr<const Node>;

struct Node {
  enum class Op : std::uint8_t {
    current,  // @
    field,    // text
    index,
    raw,   // text
    call,  // function, children[0] is the argument
    list,
    hash,    // names, children
    chain,   // children one after the other: a.b, a[0], a | b
    either,  // ||
    both,    // &&
  };
  Op op = Op::current;
  std::string text;
  long index = 0;
  Powertools function = Powertools::json;
  std::vector<std::string> names;
  std::vector<NodePtr> children;
};

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

// Reads an expression whose syntax is known to be good. Null wherever it is more than the plain kind.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : text_(text) {}

  NodePtr read() {
    NodePtr node = pipe();
    return node && peek() == '\0' ? std::move(node) : nullptr;
  }

 private:
  static NodePtr make(Node node) { return std::make_unique<const Node>(std::move(node)); }

  char peek() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view symbol) {
    peek();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }

  // left <symbol> right <symbol> ..., all of one operation.
  template <class Next>
  NodePtr joined(std::string_view symbol, Node::Op op, const Next& next) {
    NodePtr first = next();
    if (!first || !take(symbol)) return first;
    Node node{.op = op};
    node.children.push_back(std::move(first));
    do {
      NodePtr another = next();
      if (!another) return nullptr;
      node.children.push_back(std::move(another));
    } while (take(symbol));
    return make(std::move(node));
  }

  NodePtr pipe() {
    NodePtr first = either();
    if (!first) return nullptr;
    Node node{.op = Node::Op::chain};
    node.children.push_back(std::move(first));
    while (peek() == '|') {
      ++at_;
      NodePtr next = either();
      if (!next) return nullptr;
      node.children.push_back(std::move(next));
    }
    if (node.children.size() > 1) return make(std::move(node));
    return std::move(node.children.front());
  }
  NodePtr either() {
    return joined("||", Node::Op::either, [this] { return both(); });
  }
  NodePtr both() {
    return joined("&&", Node::Op::both, [this] { return chain(); });
  }

  NodePtr chain() {
    NodePtr first = link(true);
    if (!first) return nullptr;
    Node node{.op = Node::Op::chain};
    node.children.push_back(std::move(first));
    for (;;) {
      NodePtr next;
      const char c = peek();
      if (c == '.') {
        ++at_;
        next = link(false);
      } else if (c == '[') {
        next = index();
      } else {
        break;
      }
      if (!next) return nullptr;
      node.children.push_back(std::move(next));
    }
    if (node.children.size() > 1) return make(std::move(node));
    return std::move(node.children.front());
  }

  // What may stand at the beginning of a chain, and what behind a point.
  NodePtr link(bool first) {
    const char c = peek();
    if (is_name_start(c)) return name_or_call();
    if (c == '"') return quoted_name();
    if (c == '{') return hash();
    if (c == '[') {
      if (first) {
        const std::size_t start = at_;
        if (NodePtr node = index()) return node;
        at_ = start;
      }
      return list();
    }
    if (!first) return nullptr;
    if (c == '@') {
      ++at_;
      return make({.op = Node::Op::current});
    }
    if (c == '\'') return raw_string();
    if (c == '(') {
      ++at_;
      NodePtr inner = pipe();
      return inner && take(")") ? std::move(inner) : nullptr;
    }
    return nullptr;
  }

  std::string_view name() {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_name_part(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  NodePtr name_or_call() {
    const std::string_view word = name();
    if (peek() != '(') return make({.op = Node::Op::field, .text = std::string(word)});
    const auto function = powertools_function(word);
    if (!function) return nullptr;
    ++at_;
    Node node{.op = Node::Op::call, .function = *function};
    NodePtr argument = pipe();
    if (!argument || !take(")")) return nullptr;
    node.children.push_back(std::move(argument));
    return make(std::move(node));
  }

  // Without escapes.
  std::optional<std::string> between(char quote) {
    const std::size_t close = text_.find_first_of(std::string{quote, '\\'}, at_ + 1);
    if (close == std::string_view::npos || text_[close] != quote) return std::nullopt;
    std::string out(text_.substr(at_ + 1, close - at_ - 1));
    at_ = close + 1;
    return out;
  }
  NodePtr quoted_name() {
    auto text = between('"');
    if (!text || peek() == '(') return nullptr;
    return make({.op = Node::Op::field, .text = std::move(*text)});
  }
  NodePtr raw_string() {
    auto text = between('\'');
    return text ? make({.op = Node::Op::raw, .text = std::move(*text)}) : nullptr;
  }

  NodePtr index() {
    ++at_;
    peek();
    long value = 0;
    const char* const end = text_.data() + text_.size();
    const auto result = std::from_chars(text_.data() + at_, end, value);
    if (result.ec != std::errc()) return nullptr;
    at_ = static_cast<std::size_t>(result.ptr - text_.data());
    return take("]") ? make({.op = Node::Op::index, .index = value}) : nullptr;
  }

  NodePtr list() {
    ++at_;
    Node node{.op = Node::Op::list};
    do {
      NodePtr element = pipe();
      if (!element) return nullptr;
      node.children.push_back(std::move(element));
    } while (take(","));
    return take("]") ? make(std::move(node)) : nullptr;
  }

  NodePtr hash() {
    ++at_;
    Node node{.op = Node::Op::hash};
    do {
      std::string key;
      if (peek() == '"') {
        auto text = between('"');
        if (!text) return nullptr;
        key = std::move(*text);
      } else if (is_name_start(peek())) {
        key = name();
      } else {
        return nullptr;
      }
      for (const std::string& other : node.names) {
        if (other == key) return nullptr;
      }
      if (!take(":")) return nullptr;
      NodePtr value = pipe();
      if (!value) return nullptr;
      node.names.push_back(std::move(key));
      node.children.push_back(std::move(value));
    } while (take(","));
    return take("}") ? make(std::move(node)) : nullptr;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool is_true(const Value& v) {
  switch (v.kind()) {
    case Kind::null:
      return false;
    case Kind::boolean:
      return v.truth();
    case Kind::number:
      return true;
    case Kind::string:
      return !v.text().empty();
    case Kind::array:
      return !v.elements().empty();
    case Kind::object:
      return !v.members().empty();
  }
  return false;
}

class Evaluation {
 public:
  Evaluation(Dialect dialect, Arena& arena) : dialect_(dialect), arena_(arena) {}

  Value operator()(const Node& node, const Value& current) {
    switch (node.op) {
      case Node::Op::current:
        return current;
      case Node::Op::field:
        return field(current, node.text);
      case Node::Op::index:
        return element(current, node.index);
      case Node::Op::raw:
        return Value::string(node.text);
      case Node::Op::call:
        return call(node.function, (*this)(*node.children.front(), current), dialect_, arena_);
      case Node::Op::list:
        return current.is_null() ? Value() : list(node, current);
      case Node::Op::hash:
        return current.is_null() ? Value() : hash(node, current);
      case Node::Op::chain: {
        Value value = current;
        for (const NodePtr& child : node.children) value = (*this)(*child, value);
        return value;
      }
      case Node::Op::either:
      case Node::Op::both: {
        Value value;
        for (const NodePtr& child : node.children) {
          value = (*this)(*child, current);
          if (is_true(value) == (node.op == Node::Op::either)) break;
        }
        return value;
      }
    }
    return {};
  }

 private:
  Value field(const Value& current, std::string_view name) {
    const Value value = current.member(name);
    return dialect_ == Dialect::powertools_dotnet ? dotnet_member(value, arena_) : value;
  }

  static Value element(const Value& current, long index) {
    if (current.kind() != Kind::array) return {};
    const auto elements = current.elements();
    const auto count = static_cast<long>(elements.size());
    if (index < 0) index += count;
    return index >= 0 && index < count ? elements[static_cast<std::size_t>(index)] : Value();
  }

  Value list(const Node& node, const Value& current) {
    std::vector<Value> values;
    values.reserve(node.children.size());
    for (const NodePtr& child : node.children) values.push_back((*this)(*child, current));
    return Value::array(json::keep(values, arena_));
  }

  Value hash(const Node& node, const Value& current) {
    std::vector<Member> members;
    members.reserve(node.children.size());
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      members.push_back({node.names[i], (*this)(*node.children[i], current)});
    }
    return Value::object(json::keep(std::span<const Member>(members), arena_));
  }

  Dialect dialect_;
  Arena& arena_;
};

}  // namespace

struct Selector::Parts {
  Dialect dialect;
  NodePtr plain;
  JmesPath library;
};

Selector::Selector(std::string_view expression, Dialect dialect, std::string_view what) {
  JmesPath library(expression, dialect, what);  // First: it finds what is wrong with the syntax.
  NodePtr plain = PlainReader(expression).read();
  if (!plain && dialect == Dialect::powertools_dotnet) {
    throw Exception(ErrorKind::misuse,
                    std::string(what) + " " + quoted(expression) +
                        ": for powertools-dotnet only names, indices, lists, hashes, ||, && and the powertools "
                        "functions are supported; what .NET does with the rest is not reproduced");
  }
  parts_ = std::make_unique<const Parts>(Parts{dialect, std::move(plain), std::move(library)});
}

Selector::Selector(Selector&&) noexcept = default;
Selector& Selector::operator=(Selector&&) noexcept = default;
Selector::~Selector() = default;

bool Selector::is_plain() const noexcept { return parts_->plain != nullptr; }

json::Value Selector::operator()(const json::Value& event, json::Arena& arena) const {
  if (!parts_->plain) return parts_->library.search(event, arena);
  return Evaluation(parts_->dialect, arena)(*parts_->plain, event);
}

json::Value Selector::by_library(const json::Value& event, json::Arena& arena) const {
  return parts_->library.search(event, arena);
}

}  // namespace once::keys
