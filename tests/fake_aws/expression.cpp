#include "fake_aws/expression.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <compare>
#include <utility>

#include "fake_aws/decimal.hpp"
#include "fake_aws/refusal.hpp"

namespace once::testing::fake {
namespace {

using nlohmann::json;

constexpr std::array reserved_words = std::to_array<std::string_view>({
#include "fake_aws/reserved_words.inc"
});

constexpr std::size_t longest_expression_bytes = 4096;
constexpr std::size_t most_operators =
    300;  // Functions and parentheses included here: it bounds the recursion as well.

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string show(const Path& path) {
  std::string out;
  for (const auto& part : path) {
    if (!out.empty()) out += ", ";
    if (const auto* name = std::get_if<std::string>(&part)) {
      out += *name;
    } else {
      out += '[' + std::to_string(std::get<std::size_t>(part)) + ']';
    }
  }
  return '[' + out + ']';
}

struct Token {
  enum class Kind { word, name, value, number, symbol, end };
  Kind kind = Kind::end;
  std::string text = {};
  std::size_t from = 0;
  std::size_t to = 0;
};

const std::set<std::string, std::less<>> condition_functions = {"attribute_exists", "attribute_not_exists",
                                                                "attribute_type", "begins_with", "contains"};

// A recursive descent over the tokens of one expression.
class Parser {
 public:
  Parser(std::string_view text, std::string_view parameter, Placeholders& placeholders)
      : text_(text), parameter_(parameter), placeholders_(placeholders) {
    if (text.empty()) fail("The expression can not be empty;");
    if (text.size() > longest_expression_bytes) {
      fail("Expression size has exceeded the maximum allowed size; expression size: " + std::to_string(text.size()));
    }
    split();
  }

  Condition condition() {
    Condition out = either();
    expect_end();
    return out;
  }

  Update update() {
    Update out;
    std::set<std::string> seen;
    while (peek().kind != Token::Kind::end) {
      const std::string section = upper(peek().text);
      if (section != "SET" && section != "REMOVE" && section != "ADD" && section != "DELETE") unexpected();
      if (!seen.insert(section).second) {
        fail("The \"" + section + "\" section can only be used once in an update expression;");
      }
      ++at_;
      do {
        out.steps.push_back(step(section));
      } while (take(","));
    }
    refuse_overlaps(out);
    return out;
  }

  std::vector<Path> projection() {
    std::vector<Path> out;
    do {
      out.push_back(path());
      for (std::size_t i = 0; i + 1 < out.size(); ++i) refuse_overlap(out[i], out.back());
    } while (take(","));
    expect_end();
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { invalid("Invalid " + std::string(parameter_) + ": " + what); }

  [[noreturn]] void unexpected() const {
    const Token& token = peek();
    const std::size_t from = at_ > 0 ? tokens_[at_ - 1].from : token.from;
    const std::size_t to = at_ + 1 < tokens_.size() ? tokens_[at_ + 1].to : token.to;
    fail("Syntax error; token: \"" + (token.kind == Token::Kind::end ? "<EOF>" : token.text) + "\", near: \"" +
         std::string(text_.substr(from, to - from)) + "\"");
  }

  void count_operator() {
    if (++operators_ > most_operators) {
      fail("The expression contains too many operators; operator count: " + std::to_string(operators_));
    }
  }

  void split() {
    std::size_t i = 0;
    while (true) {
      while (i < text_.size() && std::isspace(static_cast<unsigned char>(text_[i])) != 0) ++i;
      Token token{.from = i};
      if (i == text_.size()) {
        token.to = i;
        tokens_.push_back(token);
        return;
      }
      const char c = text_[i++];
      const auto rest = [&] {
        while (i < text_.size() && is_word(text_[i])) ++i;
      };
      if (is_letter(c)) {
        token.kind = Token::Kind::word;
        rest();
      } else if (c == '#' || c == ':') {
        token.kind = c == '#' ? Token::Kind::name : Token::Kind::value;
        rest();
      } else if (is_digit(c)) {
        token.kind = Token::Kind::number;
        while (i < text_.size() && is_digit(text_[i])) ++i;
      } else {
        token.kind = Token::Kind::symbol;
        const char next = i < text_.size() ? text_[i] : '\0';
        if ((c == '<' && (next == '=' || next == '>')) || (c == '>' && next == '=')) ++i;
      }
      token.to = i;
      token.text = text_.substr(token.from, i - token.from);
      const bool good = token.kind == Token::Kind::symbol
                            ? std::string_view("=<>()[],.+-").find(c) != std::string_view::npos
                            : token.text.size() > 1 || (c != '#' && c != ':');
      tokens_.push_back(token);
      if (!good) {
        at_ = tokens_.size() - 1;
        unexpected();
      }
    }
  }

  [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[nodiscard]] bool is_keyword(std::string_view keyword) const {
    return peek().kind == Token::Kind::word && upper(peek().text) == keyword;
  }
  bool take_keyword(std::string_view keyword) {
    if (!is_keyword(keyword)) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view symbol) {
    if (peek().kind != Token::Kind::symbol || peek().text != symbol) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view symbol) {
    if (!take(symbol)) unexpected();
  }
  void expect_end() const {
    if (peek().kind != Token::Kind::end) unexpected();
  }
  [[nodiscard]] bool at_call() const { return peek().kind == Token::Kind::word && peek(1).text == "("; }

  std::string name() {
    const Token token = peek();
    if (token.kind == Token::Kind::name) {
      ++at_;
      return placeholders_.name(token.text, parameter_);
    }
    if (token.kind != Token::Kind::word) unexpected();
    if (std::binary_search(reserved_words.begin(), reserved_words.end(), upper(token.text))) {
      fail("Attribute name is a reserved keyword; reserved keyword: " + token.text);
    }
    ++at_;
    return token.text;
  }

  Path path() {
    Path out;
    out.emplace_back(name());
    while (true) {
      if (take(".")) {
        out.emplace_back(name());
      } else if (take("[")) {
        if (peek().kind != Token::Kind::number) unexpected();
        if (peek().text.size() > 9) fail("List index is not within the allowable range; index: [" + peek().text + "]");
        out.emplace_back(static_cast<std::size_t>(std::stoul(peek().text)));
        ++at_;
        expect("]");
      } else {
        return out;
      }
    }
  }

  Operand operand() {
    const Token token = peek();
    if (token.kind == Token::Kind::value) {
      ++at_;
      return {.kind = Operand::Kind::value, .value = placeholders_.value(token.text, parameter_)};
    }
    if (!at_call()) return {.kind = Operand::Kind::path, .path = path()};
    if (token.text != "size") {
      if (condition_functions.contains(token.text) || token.text == "if_not_exists" || token.text == "list_append") {
        fail("The function is not allowed to be used this way in an expression; function: " + token.text);
      }
      fail("Invalid function name; function: " + token.text);
    }
    count_operator();
    at_ += 2;
    Operand out = operand();
    expect(")");
    if (out.kind == Operand::Kind::value) {
      const bool countable = out.value.as<Decimal>() == nullptr && out.value.as<bool>() == nullptr &&
                             out.value.as<std::nullptr_t>() == nullptr;
      if (!countable) wrong_type("operator or function: size", out.value);
    }
    return {.kind = Operand::Kind::size, .parts = {std::move(out)}};
  }

  // A condition's operand may stand in parentheses of its own.
  Operand compared() {
    if (!take("(")) return operand();
    count_operator();
    Operand out = compared();
    expect(")");
    return out;
  }

  [[noreturn]] void wrong_type(const std::string& what, const Value& value) const {
    fail("Incorrect operand type for operator or function; " + what + ", operand type: " + std::string(value.kind()));
  }

  Condition either() {
    Condition left = both();
    while (take_keyword("OR")) {
      Condition next{.comparison = "OR"};
      next.conditions.push_back(std::move(left));
      next.conditions.push_back(both());
      left = std::move(next);
    }
    return left;
  }

  Condition both() {
    Condition left = negated();
    while (take_keyword("AND")) {
      Condition next{.comparison = "AND"};
      next.conditions.push_back(std::move(left));
      next.conditions.push_back(negated());
      left = std::move(next);
    }
    return left;
  }

  Condition negated() {
    count_operator();
    if (!take_keyword("NOT")) return primary();
    Condition out{.comparison = "NOT"};
    out.conditions.push_back(negated());
    return out;
  }

  // Whether the "(" ahead encloses a condition, rather than an operand of one: what follows its ")" tells.
  [[nodiscard]] bool encloses_condition() const {
    std::size_t depth = 0;
    for (std::size_t i = at_; i < tokens_.size(); ++i) {
      if (tokens_[i].text == "(") ++depth;
      if (tokens_[i].text != ")" || --depth > 0) continue;
      const std::string next = i + 1 < tokens_.size() ? upper(tokens_[i + 1].text) : "";
      return next.empty() || next == "AND" || next == "OR" || next == ")";
    }
    return true;
  }

  Condition primary() {
    if (peek().text == "(" && encloses_condition()) {
      ++at_;
      Condition out = either();
      expect(")");
      if (out.in_parentheses) fail("The expression has redundant parentheses;");
      out.in_parentheses = true;
      return out;
    }
    if (at_call() && peek().text != "size") return function();

    Operand left = compared();
    Condition out;
    if (take_keyword("BETWEEN")) {
      out.comparison = "BETWEEN";
      out.operands.push_back(std::move(left));
      out.operands.push_back(compared());
      if (!take_keyword("AND")) unexpected();
      out.operands.push_back(compared());
    } else if (take_keyword("IN")) {
      out.comparison = "IN";
      out.operands.push_back(std::move(left));
      expect("(");
      do {
        out.operands.push_back(compared());
      } while (take(","));
      expect(")");
      if (out.operands.size() > 101) {
        fail("The IN operator is provided with too many operands; number of operands: " +
             std::to_string(out.operands.size() - 1));
      }
    } else {
      static const std::set<std::string, std::less<>> comparators = {"=", "<>", "<", "<=", ">", ">="};
      if (peek().kind != Token::Kind::symbol || !comparators.contains(peek().text)) unexpected();
      out.comparison = peek().text;
      ++at_;
      out.operands.push_back(std::move(left));
      out.operands.push_back(compared());
    }
    check(out);
    return out;
  }

  Condition function() {
    Condition out{.comparison = peek().text};
    if (!condition_functions.contains(out.comparison)) {
      if (out.comparison == "if_not_exists" || out.comparison == "list_append") {
        fail("The function is not allowed in a condition expression; function: " + out.comparison);
      }
      fail("Invalid function name; function: " + out.comparison);
    }
    at_ += 2;
    do {
      out.operands.push_back(compared());
    } while (take(","));
    expect(")");
    const std::size_t wanted = out.comparison.starts_with("attribute_") && out.comparison != "attribute_type" ? 1 : 2;
    count(out.comparison, out.operands.size(), wanted);
    check(out);
    return out;
  }

  void count(const std::string& function, std::size_t has, std::size_t wanted) const {
    if (has != wanted) {
      fail("Incorrect number of operands for operator or function; operator or function: " + function +
           ", number of operands: " + std::to_string(has));
    }
  }

  void check(const Condition& condition) const {
    const std::string& what = condition.comparison;
    const auto& operands = condition.operands;
    const std::string label = "operator or function: " + what;
    if (what.starts_with("attribute_") && operands[0].kind != Operand::Kind::path) {
      fail("Operator or function requires a document path; operator or function: " + what);
    }
    if (what == "attribute_type") {
      const auto* type = operands[1].kind == Operand::Kind::value ? operands[1].value.as<std::string>() : nullptr;
      if (type == nullptr) wrong_type(label, operands[1].value);
      static const std::set<std::string, std::less<>> types = {"S", "N", "B",  "BOOL", "NULL",
                                                               "M", "L", "SS", "NS",   "BS"};
      if (!types.contains(*type)) {
        fail("Invalid attribute type name found; type: " + *type + ", valid types: {B,NULL,SS,BOOL,L,BS,N,NS,S,M}");
      }
    }
    if (operands.size() >= 2 && operands[0].kind == Operand::Kind::path) {
      for (std::size_t i = 1; i < operands.size(); ++i) {
        if (operands[i].kind == Operand::Kind::path && operands[i].path == operands[0].path) {
          fail(
              "The first operand must be distinct from the remaining operands for this operator or function; "
              "operator: " +
              what + ", first operand: " + show(operands[0].path));
        }
      }
    }
    const bool ordered = what == "<" || what == "<=" || what == ">" || what == ">=" || what == "BETWEEN";
    for (const auto& operand : operands) {
      if (operand.kind != Operand::Kind::value) continue;
      const Value& value = operand.value;
      const bool text = value.as<std::string>() != nullptr || value.as<Bytes>() != nullptr;
      if (ordered && !text && value.as<Decimal>() == nullptr) wrong_type(label, value);
      if (what == "begins_with" && !text) wrong_type(label, value);
    }
    if (what == "BETWEEN" && operands[1].kind == Operand::Kind::value && operands[2].kind == Operand::Kind::value) {
      const auto order = compare(operands[1].value, operands[2].value);
      if (!order) {
        fail("The BETWEEN operator requires same data type for lower and upper bounds; lower bound operand: " +
             show(operands[1].value) + ", upper bound operand: " + show(operands[2].value));
      }
      if (std::is_gt(*order)) {
        fail(
            "The BETWEEN operator requires upper bound to be greater than or equal to lower bound; lower bound "
            "operand: " +
            show(operands[1].value) + ", upper bound operand: " + show(operands[2].value));
      }
    }
  }

  static std::string show(const Value& value) {
    const json shown = to_json(value);
    const json& held = shown.begin().value();
    return "AttributeValue: {" + shown.begin().key() + ":" +
           (held.is_string() ? held.get<std::string>() : held.dump()) + "}";
  }
  static std::string show(const Path& path) { return fake::show(path); }

  // The right side of a SET: sums of operands.
  Operand assigned() {
    Operand left = assigned_operand();
    if (peek().text != "+" && peek().text != "-") return left;
    const std::string sign = peek().text;
    ++at_;
    Operand right = assigned_operand();
    for (const Operand* side : {&left, &right}) {
      if (side->kind == Operand::Kind::value && side->value.as<Decimal>() == nullptr) {
        wrong_type("operator or function: " + sign, side->value);
      }
    }
    Operand out{.kind = sign == "+" ? Operand::Kind::plus : Operand::Kind::minus};
    out.parts.push_back(std::move(left));
    out.parts.push_back(std::move(right));
    return out;
  }

  Operand assigned_operand() {
    count_operator();
    if (take("(")) {
      Operand out = assigned();
      expect(")");
      return out;
    }
    if (!at_call()) return operand();
    const std::string function = peek().text;
    if (function != "if_not_exists" && function != "list_append") {
      if (function == "size" || condition_functions.contains(function)) {
        fail("The function is not allowed in an update expression; function: " + function);
      }
      fail("Invalid function name; function: " + function);
    }
    at_ += 2;
    Operand out{.kind = function == "list_append" ? Operand::Kind::list_append : Operand::Kind::if_not_exists};
    do {
      out.parts.push_back(assigned());
    } while (take(","));
    expect(")");
    count(function, out.parts.size(), 2);
    if (out.kind == Operand::Kind::if_not_exists && out.parts[0].kind != Operand::Kind::path) {
      fail("Operator or function requires a document path; operator or function: if_not_exists");
    }
    if (out.kind == Operand::Kind::list_append) {
      for (const auto& part : out.parts) {
        if (part.kind == Operand::Kind::value && part.value.as<List>() == nullptr) {
          wrong_type("operator or function: list_append", part.value);
        }
      }
    }
    return out;
  }

  Update::Step step(const std::string& section) {
    Update::Step out;
    out.path = path();
    if (section == "SET") {
      expect("=");
      out.operand = assigned();
      return out;
    }
    if (section == "REMOVE") {
      out.action = Update::Action::remove;
      return out;
    }
    out.action = section == "ADD" ? Update::Action::add : Update::Action::erase;
    if (peek().kind != Token::Kind::value) unexpected();
    out.operand = operand();
    const std::string_view kind = out.operand.value.kind();
    const bool is_set = kind == "SS" || kind == "NS" || kind == "BS";
    if (!is_set && (section == "DELETE" || kind != "N")) {
      fail("Incorrect operand type for operator or function; operator: " + section +
           ", operand type: " + std::string(kind) + ", typeSet: ALLOWED_FOR_" + section + "_OPERAND");
    }
    return out;
  }

  void refuse_overlap(const Path& one, const Path& two) const {
    const auto shared = std::min(one.size(), two.size());
    std::size_t i = 0;
    while (i < shared && one[i] == two[i]) ++i;
    const std::string paths = "path one: " + show(one) + ", path two: " + show(two);
    if (i == shared) {
      fail("Two document paths overlap with each other; must remove or rewrite one of these paths; " + paths);
    }
    if (one[i].index() != two[i].index()) {
      fail("Two document paths conflict with each other; must remove or rewrite one of these paths; " + paths);
    }
  }

  void refuse_overlaps(const Update& update) const {
    for (std::size_t i = 0; i < update.steps.size(); ++i) {
      for (std::size_t j = i + 1; j < update.steps.size(); ++j) {
        refuse_overlap(update.steps[i].path, update.steps[j].path);
      }
    }
  }

  std::string_view text_;
  std::string_view parameter_;
  Placeholders& placeholders_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::size_t operators_ = 0;
};

[[noreturn]] void wrong_data_type() { invalid("An operand in the update expression has an incorrect data type"); }

[[noreturn]] void wrong_path() { invalid("The document path provided in the update expression is invalid for update"); }

// The value at a path, to be changed; null where its last part does not exist yet. Throws where an earlier one does
// not.
struct Place {
  Item* map = nullptr;
  List* list = nullptr;
  const std::string* name = nullptr;
  std::size_t index = 0;

  [[nodiscard]] Value* value() const {
    if (map != nullptr) {
      const auto found = map->find(*name);
      return found == map->end() ? nullptr : &found->second;
    }
    return index < list->size() ? &(*list)[index] : nullptr;
  }
  void set(Value value) const {
    if (map != nullptr) {
      map->insert_or_assign(*name, std::move(value));
    } else if (index < list->size()) {
      (*list)[index] = std::move(value);
    } else {
      list->push_back(std::move(value));
    }
  }
  void erase() const {
    if (map != nullptr) {
      map->erase(*name);
    } else if (index < list->size()) {
      list->erase(list->begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
};

Place place(Item& item, const Path& path) {
  Place out{.map = &item, .name = &std::get<std::string>(path.front())};
  for (std::size_t i = 1; i < path.size(); ++i) {
    Value* value = out.value();
    if (value == nullptr) wrong_path();
    out = {};
    if (const auto* name = std::get_if<std::string>(&path[i])) {
      out.map = value->as<Item>();
      out.name = name;
    } else {
      out.list = value->as<List>();
      out.index = std::get<std::size_t>(path[i]);
    }
    if (out.map == nullptr && out.list == nullptr) wrong_path();
  }
  return out;
}

template <class T>
void add_to_set(Value& value, const std::set<T>& more) {
  auto* set = value.as<std::set<T>>();
  if (set == nullptr) wrong_data_type();
  set->insert(more.begin(), more.end());
}

void add(const Place& target, const Value& operand) {
  Value* value = target.value();
  if (value == nullptr) return target.set(operand);
  if (const auto* number = operand.as<Decimal>()) {
    auto* old = value->as<Decimal>();
    if (old == nullptr) wrong_data_type();
    *old = *old + *number;
  } else if (const auto* texts = operand.as<std::set<std::string>>()) {
    add_to_set(*value, *texts);
  } else if (const auto* numbers = operand.as<std::set<Decimal>>()) {
    add_to_set(*value, *numbers);
  } else {
    add_to_set(*value, *operand.as<std::set<Bytes>>());
  }
}

template <class T>
bool erase_from_set(const Place& target, const Value& operand) {
  const auto* less = operand.as<std::set<T>>();
  if (less == nullptr) return false;
  auto* set = target.value()->as<std::set<T>>();
  if (set == nullptr) wrong_data_type();
  for (const auto& element : *less) set->erase(element);
  if (set->empty()) target.erase();
  return true;
}

// Values of a set or list that `contains` looks through.
bool contains(const Value& whole, const Value& part) {
  if (const auto* text = whole.as<std::string>()) {
    const auto* piece = part.as<std::string>();
    return piece != nullptr && text->find(*piece) != std::string::npos;
  }
  if (const auto* bytes = whole.as<Bytes>()) {
    const auto* piece = part.as<Bytes>();
    return piece != nullptr && bytes->bytes.find(piece->bytes) != std::string::npos;
  }
  if (const auto* list = whole.as<List>()) return std::find(list->begin(), list->end(), part) != list->end();
  if (const auto* texts = whole.as<std::set<std::string>>()) {
    const auto* piece = part.as<std::string>();
    return piece != nullptr && texts->contains(*piece);
  }
  if (const auto* numbers = whole.as<std::set<Decimal>>()) {
    const auto* piece = part.as<Decimal>();
    return piece != nullptr && numbers->contains(*piece);
  }
  if (const auto* several = whole.as<std::set<Bytes>>()) {
    const auto* piece = part.as<Bytes>();
    return piece != nullptr && several->contains(*piece);
  }
  return false;
}

std::optional<Value> count_of(const Value& value) {
  const auto number = [](std::size_t count) { return Value{Decimal::parse(std::to_string(count))}; };
  if (const auto* text = value.as<std::string>()) {
    // Characters: every byte that does not continue one.
    return number(static_cast<std::size_t>(std::count_if(
        text->begin(), text->end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; })));
  }
  if (const auto* bytes = value.as<Bytes>()) return number(bytes->bytes.size());
  if (const auto* map = value.as<Item>()) return number(map->size());
  if (const auto* list = value.as<List>()) return number(list->size());
  if (const auto* texts = value.as<std::set<std::string>>()) return number(texts->size());
  if (const auto* numbers = value.as<std::set<Decimal>>()) return number(numbers->size());
  if (const auto* several = value.as<std::set<Bytes>>()) return number(several->size());
  return std::nullopt;
}

}  // namespace

Placeholders::Placeholders(const json& request, const std::vector<std::string_view>& expressions) {
  const auto given = [&request](std::string_view parameter) { return request.contains(parameter); };
  const bool has_names = given("ExpressionAttributeNames");
  const bool has_values = given("ExpressionAttributeValues");
  const bool any = std::any_of(expressions.begin(), expressions.end(), given) || given("ProjectionExpression");
  if (has_names && !any) invalid("ExpressionAttributeNames can only be specified when using expressions");
  if (has_values && std::none_of(expressions.begin(), expressions.end(), given)) {
    std::string missing;
    for (const auto expression : expressions) missing.append(missing.empty() ? "" : " and ").append(expression);
    invalid("ExpressionAttributeValues can only be specified when using expressions: " + missing +
            (expressions.size() > 1 ? " are null" : " is null"));
  }
  const auto check_key = [](const std::string& key, char first, std::string_view parameter) {
    const bool good = key.size() > 1 && key[0] == first && std::all_of(key.begin() + 1, key.end(), is_word);
    if (!good) {
      invalid(std::string(parameter) + " contains invalid key: Syntax error; key: \"" + key + "\"");
    }
  };
  if (has_names) {
    const json& names = request.at("ExpressionAttributeNames");
    if (!names.is_object()) malformed("Expected an object as ExpressionAttributeNames");
    if (names.empty()) invalid("ExpressionAttributeNames must not be empty");
    for (const auto& [key, name] : names.items()) {
      check_key(key, '#', "ExpressionAttributeNames");
      if (!name.is_string()) malformed("Expected a text as name of an attribute");
      if (name.get_ref<const std::string&>().empty()) {
        invalid("ExpressionAttributeNames contains invalid value: Syntax error; key: " + key);
      }
      names_.emplace(key, name.get<std::string>());
    }
  }
  if (has_values) {
    const json& values = request.at("ExpressionAttributeValues");
    if (!values.is_object()) malformed("Expected an object as ExpressionAttributeValues");
    if (values.empty()) invalid("ExpressionAttributeValues must not be empty");
    for (const auto& [key, value] : values.items()) {
      check_key(key, ':', "ExpressionAttributeValues");
      try {
        values_.emplace(key, value_from_json(value));
      } catch (Refusal& refusal) {
        if (refusal.type.starts_with(validation_namespace)) {
          refusal.message = "ExpressionAttributeValues contains invalid value: " + refusal.message + " for key " + key;
        }
        throw;
      }
    }
  }
}

const std::string& Placeholders::name(const std::string& placeholder, std::string_view expression) {
  const auto found = names_.find(placeholder);
  if (found == names_.end()) {
    invalid("Invalid " + std::string(expression) +
            ": An expression attribute name used in the document path is not defined; attribute name: " + placeholder);
  }
  used_.insert(placeholder);
  return found->second;
}

const Value& Placeholders::value(const std::string& placeholder, std::string_view expression) {
  const auto found = values_.find(placeholder);
  if (found == values_.end()) {
    invalid("Invalid " + std::string(expression) +
            ": An expression attribute value used in expression is not defined; attribute value: " + placeholder);
  }
  used_.insert(placeholder);
  return found->second;
}

void Placeholders::check_all_used() const {
  const auto check = [this](const auto& given, std::string_view parameter) {
    std::string unused;
    for (const auto& entry : given) {
      if (!used_.contains(entry.first)) unused += (unused.empty() ? "" : ", ") + entry.first;
    }
    if (!unused.empty()) {
      invalid("Value provided in " + std::string(parameter) + " unused in expressions: keys: {" + unused + "}");
    }
  };
  check(names_, "ExpressionAttributeNames");
  check(values_, "ExpressionAttributeValues");
}

const Value* find(const Item& item, const Path& path) {
  const auto top = item.find(std::get<std::string>(path.front()));
  if (top == item.end()) return nullptr;
  const Value* value = &top->second;
  for (std::size_t i = 1; i < path.size(); ++i) {
    if (const auto* name = std::get_if<std::string>(&path[i])) {
      const auto* map = value->as<Item>();
      if (map == nullptr) return nullptr;
      const auto found = map->find(*name);
      if (found == map->end()) return nullptr;
      value = &found->second;
    } else {
      const auto index = std::get<std::size_t>(path[i]);
      const auto* list = value->as<List>();
      if (list == nullptr || index >= list->size()) return nullptr;
      value = &(*list)[index];
    }
  }
  return value;
}

std::optional<Value> Operand::evaluate(const Item& item) const {
  switch (kind) {
    case Kind::path: {
      const Value* found = find(item, path);
      if (found == nullptr) return std::nullopt;
      return *found;
    }
    case Kind::value:
      return value;
    case Kind::size: {
      const auto whole = parts[0].evaluate(item);
      return whole ? count_of(*whole) : std::nullopt;
    }
    case Kind::if_not_exists: {
      auto there = parts[0].evaluate(item);
      return there ? there : parts[1].evaluate(item);
    }
    case Kind::list_append:
    case Kind::plus:
    case Kind::minus:
      break;
  }
  const auto left = parts[0].evaluate(item);
  const auto right = parts[1].evaluate(item);
  if (!left || !right) return std::nullopt;
  if (kind == Kind::list_append) {
    const auto* first = left->as<List>();
    const auto* second = right->as<List>();
    if (first == nullptr || second == nullptr) wrong_data_type();
    List out = *first;
    out.insert(out.end(), second->begin(), second->end());
    return Value{std::move(out)};
  }
  const auto* a = left->as<Decimal>();
  const auto* b = right->as<Decimal>();
  if (a == nullptr || b == nullptr) wrong_data_type();
  return Value{kind == Kind::plus ? *a + *b : *a + b->negated()};
}

bool Condition::holds(const Item& item) const {
  if (comparison == "AND") return conditions[0].holds(item) && conditions[1].holds(item);
  if (comparison == "OR") return conditions[0].holds(item) || conditions[1].holds(item);
  if (comparison == "NOT") return !conditions[0].holds(item);

  const auto first = operands[0].evaluate(item);
  if (comparison == "attribute_exists") return first.has_value();
  if (comparison == "attribute_not_exists") return !first.has_value();
  const auto second = operands[1].evaluate(item);
  if (comparison == "<>") return !(first && second && *first == *second);
  if (!first) return false;
  if (comparison == "IN") {
    return std::any_of(operands.begin() + 1, operands.end(),
                       [&](const Operand& operand) { return operand.evaluate(item) == first; });
  }
  if (!second) return false;
  if (comparison == "=") return *first == *second;
  if (comparison == "attribute_type") return first->kind() == *second->as<std::string>();
  if (comparison == "contains") return contains(*first, *second);
  if (comparison == "begins_with") {
    const auto* text = first->as<std::string>();
    const auto* bytes = first->as<Bytes>();
    const auto* start = second->as<std::string>();
    const auto* start_bytes = second->as<Bytes>();
    return (text != nullptr && start != nullptr && text->starts_with(*start)) ||
           (bytes != nullptr && start_bytes != nullptr && bytes->bytes.starts_with(start_bytes->bytes));
  }
  const auto order = compare(*first, *second);
  if (!order) return false;
  if (comparison == "<") return std::is_lt(*order);
  if (comparison == "<=") return std::is_lteq(*order);
  if (comparison == ">") return std::is_gt(*order);
  if (comparison == ">=") return std::is_gteq(*order);
  const auto third = operands[2].evaluate(item);  // BETWEEN
  const auto upper_order = third ? compare(*first, *third) : std::nullopt;
  return std::is_gteq(*order) && upper_order && std::is_lteq(*upper_order);
}

Condition parse_condition(std::string_view text, std::string_view parameter, Placeholders& placeholders) {
  return Parser(text, parameter, placeholders).condition();
}

Update parse_update(std::string_view text, Placeholders& placeholders) {
  return Parser(text, "UpdateExpression", placeholders).update();
}

std::vector<Path> parse_projection(std::string_view text, Placeholders& placeholders) {
  return Parser(text, "ProjectionExpression", placeholders).projection();
}

Item Update::apply(const Item& item) const {
  Item out = item;
  std::vector<const Path*> removals;
  for (const auto& step : steps) {
    if (step.action == Action::remove) {
      removals.push_back(&step.path);
      continue;
    }
    auto operand = step.operand.evaluate(item);  // Against the item as it was before the whole update.
    if (!operand) invalid("The provided expression refers to an attribute that does not exist in the item");
    const Place target = place(out, step.path);
    if (step.action == Action::set) {
      target.set(std::move(*operand));
    } else if (step.action == Action::add) {
      add(target, *operand);
    } else if (target.value() != nullptr) {
      static_cast<void>(erase_from_set<std::string>(target, *operand) || erase_from_set<Decimal>(target, *operand) ||
                        erase_from_set<Bytes>(target, *operand));
    }
  }
  // Indexes mean the list as it was, so the later ones go first.
  std::sort(removals.begin(), removals.end(), [](const Path* left, const Path* right) { return *left > *right; });
  for (const Path* path : removals) place(out, *path).erase();
  return out;
}

Item project(const Item& item, const std::vector<Path>& paths) {
  // A tree of what is wanted; a leaf takes all below it.
  struct Node {
    std::map<std::variant<std::string, std::size_t>, Node> below;

    [[nodiscard]] std::optional<Value> take(const Value& value) const {
      if (below.empty()) return value;
      if (const auto* map = value.as<Item>()) {
        Item out = take_all(*map);
        if (!out.empty()) return Value{std::move(out)};
      } else if (const auto* list = value.as<List>()) {
        List out;
        for (const auto& [part, node] : below) {
          const auto* index = std::get_if<std::size_t>(&part);
          if (index == nullptr || *index >= list->size()) continue;
          if (auto taken = node.take((*list)[*index])) out.push_back(std::move(*taken));
        }
        if (!out.empty()) return Value{std::move(out)};
      }
      return std::nullopt;
    }
    [[nodiscard]] Item take_all(const Item& from) const {
      Item out;
      for (const auto& [part, node] : below) {
        const auto* name = std::get_if<std::string>(&part);
        const auto found = name == nullptr ? from.end() : from.find(*name);
        if (found == from.end()) continue;
        if (auto taken = node.take(found->second)) out.emplace(*name, std::move(*taken));
      }
      return out;
    }
  };
  Node root;
  for (const auto& path : paths) {
    Node* node = &root;
    for (const auto& part : path) node = &node->below[part];
  }
  return root.take_all(item);
}

}  // namespace once::testing::fake
