#include "keys/jmespath/expression.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <utility>

#include "text/ascii.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

using Op = Node::Op;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// The text after Python's str.lstrip().
std::string_view without_leading_blanks(std::string_view text) {
  static constexpr std::array<std::string_view, 29> blanks{
      " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",   "\x1f",
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
      "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (;;) {
    const auto* const blank = std::ranges::find_if(blanks, [&](std::string_view one) { return text.starts_with(one); });
    if (blank == blanks.end()) return text;
    text.remove_prefix(blank->size());
  }
}

class Reader {
 public:
  Reader(std::string_view text, Dialect dialect, std::string_view what)
      : text_(text), dialect_(dialect), rules_(rules_of(dialect)), what_(what) {
    rules_.exact_numbers = false;  // Literals are the author's, not a caller's.
  }

  Expression read() {
    if (text_.size() > max_expression_bytes) {
      fail_whole("is longer than " + std::to_string(max_expression_bytes) + " bytes");
    }
    if (!text::valid_utf8(text_)) fail_whole("is not UTF-8");
    if (peek() == '\0' && at_ == text_.size()) fail_whole("is blank: leave it out or give a JMESPath");
    out_.root = pipe();
    peek();
    if (at_ != text_.size()) fail("expected the end or an operator");
    return std::move(out_);
  }

 private:
  static NodePtr make(Node node) { return std::make_unique<const Node>(std::move(node)); }

  // A node of a kind whose .NET results are not reproduced.
  NodePtr rich(Node node) {
    out_.plain = false;
    return make(std::move(node));
  }

  static std::vector<NodePtr> list_of(NodePtr a, NodePtr b = nullptr, NodePtr c = nullptr) {
    std::vector<NodePtr> out;
    out.push_back(std::move(a));
    if (b) out.push_back(std::move(b));
    if (c) out.push_back(std::move(c));
    return out;
  }

  [[noreturn]] void fail_whole(const std::string& problem) const {
    throw Exception(ErrorKind::misuse, std::string(what_) + " " + text::quoted(text_) + " " + problem);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    fail_whole("is not a JMESPath expression: at column " + std::to_string(at_ + 1) + ": " + problem);
  }

  // The next character that is not blank; NUL at the end (and for a NUL, which is never valid).
  char peek() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view symbol) {
    peek();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!take(symbol)) fail("expected '" + std::string(symbol) + "'");
  }

  // Every recursion goes through a bracket or a "!".
  class Deeper {
   public:
    explicit Deeper(Reader& reader) : reader_(reader) {
      if (++reader_.depth_ > max_expression_depth) reader_.fail("nested too deeply");
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --reader_.depth_; }

   private:
    Reader& reader_;
  };

  static NodePtr joined(Op op, std::vector<NodePtr> parts) {
    if (parts.size() == 1) return std::move(parts.front());
    return make({.op = op, .children = std::move(parts)});
  }

  NodePtr pipe() {
    std::vector<NodePtr> parts;
    do parts.push_back(either());  // either() has taken every "||".
    while (take("|"));
    return joined(Op::chain, std::move(parts));
  }
  NodePtr either() {
    std::vector<NodePtr> parts;
    do parts.push_back(both());
    while (take("||"));
    return joined(Op::either, std::move(parts));
  }
  NodePtr both() {
    std::vector<NodePtr> parts;
    do parts.push_back(comparison());
    while (take("&&"));
    return joined(Op::both, std::move(parts));
  }
  NodePtr comparison() {
    NodePtr left = chain();
    for (;;) {
      std::string_view found;
      for (const std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (found.empty() && take(symbol)) found = symbol;
      }
      if (found.empty()) return left;
      NodePtr right = chain();
      left = rich(
          {.op = Op::comparison, .text = std::string(found), .children = list_of(std::move(left), std::move(right))});
    }
  }

  NodePtr chain() { return links(negation(), false); }

  NodePtr negation() {
    if (peek() != '!') return first_link();
    const Deeper deeper(*this);
    ++at_;
    NodePtr operand = negation();
    // As in jmespath.py, '[' binds tighter than '!', but "[]" and "[?" do not.
    while (peek() == '[' && !flatten_follows() && !filter_follows()) operand = bracket(std::move(operand));
    return rich({.op = Op::negation, .children = list_of(std::move(operand))});
  }

  static NodePtr then(NodePtr left, NodePtr right) {
    if (left->op == Op::current) return right;
    return make({.op = Op::chain, .children = list_of(std::move(left), std::move(right))});
  }

  // Everything linked to `left`; inside a projection only up to the next "[]".
  NodePtr links(NodePtr left, bool in_projection) {
    for (;;) {
      const char c = peek();
      if (c == '.') {
        ++at_;
        if (peek() == '*') {
          ++at_;
          left = members_of(std::move(left));
        } else {
          left = then(std::move(left), link_behind_point());
        }
      } else if (c == '[') {
        if (in_projection && flatten_follows()) return left;
        left = bracket(std::move(left));
      } else {
        return left;
      }
    }
  }

  // The expression that a projection applies to each element.
  NodePtr projected() {
    const Deeper deeper(*this);
    if (peek() == '.') {
      const std::size_t start = at_++;
      const char next = peek();
      // As in jmespath.py: after a list or hash right after the projection, the rest applies to the whole result.
      if (next == '[' || next == '{') return link_behind_point();
      at_ = start;
    }
    return links(make({.op = Op::current}), true);
  }

  NodePtr members_of(NodePtr left) {
    NodePtr right = projected();
    return rich({.op = Op::members, .children = list_of(std::move(left), std::move(right))});
  }

  // The character after the next "[", and its place.
  char behind_bracket(std::size_t& place) const {
    place = text_.find_first_not_of(" \t\r\n", at_ + 1);
    return place == std::string_view::npos ? '\0' : text_[place];
  }
  bool flatten_follows() const {
    std::size_t place = 0;
    return behind_bracket(place) == ']';
  }
  bool filter_follows() const {
    std::size_t place = 0;
    return behind_bracket(place) == '?';
  }
  // "[" as in [0], [1:], [*], [], [?x], and not the beginning of a list.
  bool bracket_follows() const {
    std::size_t place = 0;
    const char next = behind_bracket(place);
    if (next == '*') {
      const std::size_t after = text_.find_first_not_of(" \t\r\n", place + 1);
      return after != std::string_view::npos && text_[after] == ']';
    }
    return next == ']' || next == '?' || next == ':' || next == '-' || text::is_digit(next);
  }

  NodePtr first_link() {
    const char c = peek();
    switch (c) {
      case '@':
        ++at_;
        return make({.op = Op::current});
      case '\'':
        return raw_string();
      case '`':
        return literal();
      case '(': {
        const Deeper deeper(*this);
        ++at_;
        NodePtr inner = pipe();
        expect(")");
        return inner;
      }
      case '[':
        return bracket_follows() ? bracket(make({.op = Op::current})) : list();
      case '*':
        ++at_;
        return members_of(make({.op = Op::current}));
      case '&':
        fail("'&' is allowed only before a function's argument");
      default:
        return name_like();
    }
  }

  NodePtr link_behind_point() {
    if (peek() != '[') return name_like();
    if (bracket_follows()) fail("expected a name or a list of expressions");
    return list();
  }

  NodePtr name_like() {
    const char c = peek();
    if (is_name_start(c)) return name_or_call();
    if (c == '"') return make({.op = Op::field, .text = quoted_name()});
    if (c == '{') return hash();
    fail(at_ == text_.size() ? "the expression is incomplete" : "expected a name, a function, a list or a hash");
  }

  std::string_view name() {
    const std::size_t start = at_;
    while (at_ < text_.size() && (is_name_start(text_[at_]) || text::is_digit(text_[at_]))) ++at_;
    return text_.substr(start, at_ - start);
  }

  NodePtr name_or_call() {
    const std::size_t start = at_;
    const std::string_view word = name();
    if (peek() != '(') return make({.op = Op::field, .text = std::string(word)});
    const Deeper deeper(*this);
    const Signature* const known = signature_of(word);
    if (known == nullptr) {
      at_ = start;
      fail("unknown function " + std::string(word) + "()");
    }
    ++at_;
    Node node{.op = Op::call, .function = known->function};
    if (peek() != ')') {
      do {
        const bool reference = node.children.size() == known->reference;
        if (take("&") != reference) {
          fail("argument " + std::to_string(node.children.size() + 1) + " of " + std::string(word) + "() " +
               (reference ? "must begin with '&'" : "must not begin with '&'"));
        }
        NodePtr argument = reference ? make({.op = Op::reference, .children = list_of(pipe())}) : pipe();
        node.children.push_back(std::move(argument));
      } while (take(","));
    }
    if (node.children.size() < known->least || node.children.size() > known->most) {
      fail(std::string(word) + "() takes " + (known->most > known->least ? "at least " : "") +
           std::to_string(known->least) + (known->least == 1 ? " argument" : " arguments"));
    }
    expect(")");
    return is_powertools(known->function) ? make(std::move(node)) : rich(std::move(node));
  }

  // Reads a JSON string; returns its value.
  std::string quoted_name() {
    const std::size_t start = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) {
      at_ = start;
      fail("a closing quotation mark is missing");
    }
    ++at_;
    return std::string(json_in(text_.substr(start, at_ - start), "the name").text());
  }

  json::Value json_in(std::string_view json_text, std::string_view of) {
    return json::parse(json::keep(json_text, *out_.arena), rules_, *out_.arena,
                       std::string(of) + " in " + std::string(what_));
  }

  // The text before the next `end`. A backslash escapes the character after it, and is removed only before an `end`; in
  // Powertools for TypeScript only the first one is removed.
  std::string until(char end, const std::string& what) {
    const std::size_t start = at_++;
    std::string text;
    bool unescape = true;
    while (at_ < text_.size() && text_[at_] != end) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        const bool escaped = unescape && text_[at_ + 1] == end;
        if (escaped) unescape = dialect_ != Dialect::powertools_typescript;
        if (!escaped) text += '\\';
        ++at_;
      }
      text += text_[at_++];
    }
    if (at_ >= text_.size()) {
      at_ = start;
      fail(what + " does not end");
    }
    ++at_;
    return text;
  }

  NodePtr raw_string() {
    const std::string text = until('\'', "the raw string");
    return make({.op = Op::literal, .value = json::Value::string(json::keep(text, *out_.arena))});
  }

  NodePtr literal() {
    std::string text = until('`', "the literal");
    if (dialect_ == Dialect::powertools_python && is_bare_text(text)) {
      text = '"' + std::string(without_leading_blanks(text)) + '"';
    }
    return rich({.op = Op::literal, .value = json_in(text, "the literal")});
  }

  // jmespath.py reads text that is not JSON as a string without quotation marks. (Too deep nesting is refused.)
  bool is_bare_text(std::string_view text) {
    json::Value value;
    const auto brackets = std::ranges::count_if(text, [](char c) { return c == '[' || c == '{'; });
    return static_cast<std::size_t>(brackets) <= max_event_depth &&
           !json::try_parse(json::keep(text, *out_.arena), rules_, *out_.arena, value);
  }

  long number() {
    const std::size_t start = at_;
    if (text_[at_] == '-') ++at_;
    const std::size_t digits = at_;
    while (at_ < text_.size() && text::is_digit(text_[at_])) ++at_;
    if (at_ == digits) fail("expected a digit");
    long value = 0;
    const auto result = std::from_chars(text_.data() + start, text_.data() + at_, value);
    constexpr long far = 1'000'000'000;
    if (result.ec != std::errc() || value > far || value < -far) fail("the index is out of range");
    return value;
  }

  bool number_follows() {
    const char c = peek();
    return c == '-' || text::is_digit(c);
  }

  NodePtr bracket(NodePtr left) {
    const Deeper deeper(*this);
    ++at_;
    switch (peek()) {
      case ']': {
        ++at_;
        NodePtr right = projected();
        return rich({.op = Op::flatten, .children = list_of(std::move(left), std::move(right))});
      }
      case '*': {
        ++at_;
        expect("]");
        NodePtr right = projected();
        return rich({.op = Op::elements, .children = list_of(std::move(left), std::move(right))});
      }
      case '?': {
        ++at_;
        NodePtr condition = pipe();
        expect("]");
        NodePtr right = projected();
        return rich({.op = Op::filter, .children = list_of(std::move(left), std::move(right), std::move(condition))});
      }
      default:
        break;
    }
    Node node{.op = Op::slice};
    if (number_follows()) {
      node.start = number();
    } else if (peek() != ':') {
      fail("expected an index, a slice, '*' or '?'");
    }
    if (take("]")) return then(std::move(left), make({.op = Op::index, .index = *node.start}));
    expect(":");
    if (number_follows()) node.stop = number();
    if (take(":") && number_follows()) node.step = number();
    if (node.step == 0) fail("the step of a slice cannot be 0");
    expect("]");
    NodePtr right = projected();
    node.children = list_of(std::move(left), std::move(right));
    return rich(std::move(node));
  }

  NodePtr list() {
    const Deeper deeper(*this);
    ++at_;
    Node node{.op = Op::list};
    do node.children.push_back(pipe());
    while (take(","));
    expect("]");
    return make(std::move(node));
  }

  NodePtr hash() {
    const Deeper deeper(*this);
    ++at_;
    Node node{.op = Op::hash};
    do {
      std::string key;
      if (peek() == '"') {
        key = quoted_name();
      } else if (is_name_start(peek())) {
        key = name();
      } else {
        fail("expected a name");
      }
      if (std::ranges::find(node.names, key) != node.names.end())
        fail("the name " + text::quoted(key) + " occurs twice");
      expect(":");
      node.names.push_back(std::move(key));
      node.children.push_back(pipe());
    } while (take(","));
    expect("}");
    return make(std::move(node));
  }

  std::string_view text_;
  Dialect dialect_;
  json::Rules rules_;
  std::string_view what_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  Expression out_{.arena = std::make_unique<std::pmr::monotonic_buffer_resource>()};
};

}  // namespace

Expression parse_expression(std::string_view text, Dialect dialect, std::string_view what) {
  return Reader(text, dialect, what).read();
}

}  // namespace once::keys
