#include "frontends/http/key_pattern.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/frontends/http/rules.hpp>

#include "text/ascii.hpp"

namespace once::http {

namespace {

using Set = KeyPattern::Set;
using Step = KeyPattern::Step;

constexpr std::size_t max_steps = 4'000;
constexpr std::size_t no_limit = ~std::size_t{0};

// A pattern as it is written: "a(b|c){2}" is a sequence of 'a' and a repetition of a choice of two sequences.
struct Node {
  enum class Kind : std::uint8_t { character, sequence, choice, repetition };
  Kind kind = Kind::sequence;
  Set set = {};                  // character
  std::vector<Node> parts = {};  // The others; a repetition has one.
  std::size_t min = 0;
  std::size_t max = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(pattern) {}

  Node whole() {
    if (at('^')) ++at_;
    Node node = choice();
    if (at('$') && at_ + 1 == text_.size()) ++at_;
    if (at_ != text_.size()) refuse("unexpected '" + std::string(1, text_[at_]) + "'");
    return node;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Exception(ErrorKind::misuse,
                    "key_pattern '" + std::string(text_) + "': " + what + " at character " + std::to_string(at_ + 1));
  }
  [[nodiscard]] bool at(char c) const noexcept { return at_ < text_.size() && text_[at_] == c; }
  [[nodiscard]] bool at_digit() const noexcept { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }
  bool skip(char c) noexcept {
    if (!at(c)) return false;
    ++at_;
    return true;
  }

  Node choice() {
    Node node{.kind = Node::Kind::choice};
    do {
      node.parts.push_back(sequence());
    } while (skip('|'));
    if (node.parts.size() != 1) return node;
    Node only = std::move(node.parts.front());  // Not in place: it is a part of what it would replace.
    return only;
  }

  Node sequence() {
    Node node;
    while (at_ < text_.size() && !at('|') && !at(')') && !(at('$') && at_ + 1 == text_.size())) {
      node.parts.push_back(repeated());
    }
    return node;
  }

  Node repeated() {
    Node node = atom();
    Node out{.kind = Node::Kind::repetition};
    if (skip('*')) {
      out.max = no_limit;
    } else if (skip('+')) {
      out.min = 1;
      out.max = no_limit;
    } else if (skip('?')) {
      out.max = 1;
    } else if (skip('{')) {
      out.min = out.max = number();
      if (skip(',')) out.max = at('}') ? no_limit : number();
      if (!skip('}')) refuse("expected '}'");
      if (out.max < out.min) refuse("the most is less than the least");
    } else {
      return node;
    }
    if (at('*') || at('+') || at('?') || at('{')) refuse("a second repetition; write ( ) around the first");
    out.parts.push_back(std::move(node));
    return out;
  }

  std::size_t number() {
    if (!at_digit()) refuse("expected a number (write \\{ for the character)");
    std::size_t value = 0;
    while (at_digit()) {
      value = value * 10 + static_cast<std::size_t>(text_[at_++] - '0');
      if (value > max_client_key_bytes) refuse("more than 255 repetitions");
    }
    return value;
  }

  Node atom() {
    if (skip('(')) {
      if (skip('?') && !skip(':')) refuse("expected ':'");
      Node node = choice();
      if (!skip(')')) refuse("expected ')'");
      return node;
    }
    Node node{.kind = Node::Kind::character};
    if (skip('[')) {
      node.set = bracket();
    } else if (skip('.')) {
      node.set.set();
    } else {
      for (const char c : {'*', '+', '?', '{', '}', ']', '^', '$'}) {
        if (at(c)) refuse("unexpected '" + std::string(1, c) + "' (write a backslash before it)");
      }
      node.set = escaped_or_one();
    }
    return node;
  }

  Set escaped_or_one() {
    Set set;
    const bool is_escaped = skip('\\');
    if (at_ == text_.size()) refuse("the pattern ends too early");
    const char c = text_[at_];
    if (c < 0x20 || c > 0x7E) refuse("a character that no key has");
    ++at_;
    if (!is_escaped || !text::is_letter_or_digit(c)) {
      set.set(static_cast<std::size_t>(c));
    } else if (c == 'd' || c == 'w') {
      for (char other = 0x20; other < 0x7F; ++other) {
        const bool is_digit = other >= '0' && other <= '9';
        if (is_digit || (c == 'w' && (text::is_letter_or_digit(other) || other == '_'))) {
          set.set(static_cast<std::size_t>(other));
        }
      }
    } else {
      refuse("an escape that is not known");
    }
    return set;
  }

  Set bracket() {
    Set set;
    const bool is_negated = skip('^');
    do {
      if (at_ == text_.size()) refuse("expected ']'");
      const std::size_t begin = at_;
      const Set first = escaped_or_one();
      set |= first;
      if (!at('-') || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') continue;
      ++at_;
      const Set last = escaped_or_one();
      if (first.count() != 1 || last.count() != 1) refuse("a range of what is not one character");
      const std::size_t from = lowest(first);
      const std::size_t to = lowest(last);
      if (to < from) {
        at_ = begin;
        refuse("a range that ends before it begins");
      }
      for (std::size_t c = from; c <= to; ++c) set.set(c);
    } while (!skip(']'));
    return is_negated ? ~set : set;
  }

  static std::size_t lowest(const Set& set) noexcept {
    std::size_t at = 0;
    while (!set.test(at)) ++at;
    return at;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class Compiler {
 public:
  Compiler(std::vector<Set>& sets, std::vector<Step>& steps) : sets_(sets), steps_(steps) {}

  void add(const Node& node) {
    switch (node.kind) {
      case Node::Kind::character:
        sets_.push_back(node.set);
        step({.kind = Step::Kind::character, .set = sets_.size() - 1});
        break;
      case Node::Kind::sequence:
        for (const Node& part : node.parts) add(part);
        break;
      case Node::Kind::choice:
        choice(node);
        break;
      case Node::Kind::repetition:
        repetition(node);
        break;
    }
  }

  std::size_t step(Step step) {
    if (steps_.size() == max_steps) {
      throw Exception(ErrorKind::misuse, "key_pattern has too many repetitions inside repetitions");
    }
    steps_.push_back(step);
    return steps_.size() - 1;
  }

 private:
  void choice(const Node& node) {
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < node.parts.size(); ++i) {
      const bool is_last = i + 1 == node.parts.size();
      const std::size_t fork = is_last ? 0 : step({.kind = Step::Kind::fork, .next = steps_.size() + 1});
      add(node.parts[i]);
      if (is_last) continue;
      ends.push_back(step({.kind = Step::Kind::jump}));
      steps_[fork].other = steps_.size();
    }
    for (const std::size_t end : ends) steps_[end].next = steps_.size();
  }

  void repetition(const Node& node) {
    const Node& part = node.parts.front();
    for (std::size_t i = 0; i < node.min; ++i) add(part);
    if (node.max == no_limit) {
      const std::size_t fork = step({.kind = Step::Kind::fork, .next = steps_.size() + 1});
      add(part);
      step({.kind = Step::Kind::jump, .next = fork});
      steps_[fork].other = steps_.size();
      return;
    }
    std::vector<std::size_t> forks;
    for (std::size_t i = node.min; i < node.max; ++i) {
      forks.push_back(step({.kind = Step::Kind::fork, .next = steps_.size() + 1}));
      add(part);
    }
    for (const std::size_t fork : forks) steps_[fork].other = steps_.size();
  }

  std::vector<Set>& sets_;
  std::vector<Step>& steps_;
};

}  // namespace

KeyPattern::KeyPattern(std::string_view pattern) {
  if (pattern.size() > max_key_pattern_bytes)
    throw Exception(ErrorKind::misuse, "key_pattern is longer than 255 bytes");
  Compiler compiler(sets_, steps_);
  compiler.add(Parser(pattern).whole());
  compiler.step({.kind = Step::Kind::end});
}

// All places that the pattern may have reached after each character, each of them once.
bool KeyPattern::matches(std::string_view key) const {
  std::vector<std::size_t> reached;
  std::vector<std::size_t> open{0};
  std::vector<bool> seen;
  bool is_end = false;
  const auto follow = [&] {
    seen.assign(steps_.size(), false);
    reached.clear();
    is_end = false;
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (seen[at]) continue;
      seen[at] = true;
      const Step& step = steps_[at];
      switch (step.kind) {
        case Step::Kind::character:
          reached.push_back(at);
          break;
        case Step::Kind::fork:
          open.push_back(step.other);
          [[fallthrough]];
        case Step::Kind::jump:
          open.push_back(step.next);
          break;
        case Step::Kind::end:
          is_end = true;
          break;
      }
    }
  };
  follow();
  for (const char c : key) {
    for (const std::size_t at : reached) {
      if (sets_[steps_[at].set].test(static_cast<unsigned char>(c) & 0x7FU)) open.push_back(at + 1);
    }
    follow();
  }
  return is_end;
}

}  // namespace once::http
