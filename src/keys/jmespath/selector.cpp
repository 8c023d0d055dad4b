#include "keys/jmespath/selector.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <once/error.hpp>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "keys/dialects/write.hpp"
#include "keys/jmespath/functions.hpp"
#include "keys/refuse.hpp"
#include "text/ascii.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

using json::Arena;
using json::Kind;
using json::Member;
using json::Value;
using Op = Node::Op;

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

bool is_number(const Value& v) { return v.kind() == Kind::number; }
bool is_string(const Value& v) { return v.kind() == Kind::string; }
bool is_integer(const Value& v) { return is_number(v) && text::is_integer_text(v.text()); }

bool all_digits(std::string_view text) { return !text.empty() && std::ranges::all_of(text, text::is_digit); }

// Digits, with an optional point and exponent; digits may be missing on one side of the point. Without sign.
bool is_decimal(std::string_view text) {
  if (const auto e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view exponent = text.substr(e + 1);
    if (exponent.starts_with('-') || exponent.starts_with('+')) exponent.remove_prefix(1);
    if (!all_digits(exponent)) return false;
    text = text.substr(0, e);
  }
  const auto dot = text.find('.');
  if (dot == std::string_view::npos) return all_digits(text);
  const std::string_view whole = text.substr(0, dot);
  const std::string_view fraction = text.substr(dot + 1);
  return (whole.empty() || all_digits(whole)) && (fraction.empty() || all_digits(fraction)) &&
         !(whole.empty() && fraction.empty());
}

bool nothing_but_nulls(const Value& v) {
  switch (v.kind()) {
    case Kind::null:
      return true;
    case Kind::array:
      return std::ranges::all_of(v.elements(), nothing_but_nulls);
    case Kind::object:
      return std::ranges::all_of(v.members(), nothing_but_nulls, &Member::value);
    default:
      return false;
  }
}

// Marks of values. A list or object that the expression builds is marked with what it knows of its parts. So is what it
// makes of them. 1. "[uid, id]" over {"id": 7} is [null,7], built with a null part. 2. "to_string([uid, id])" is a text
// with a null part. 3. "[uid, id][1]" is 7, without a mark. Values of the event have none, whatever is in them.
constexpr unsigned built = 1;
constexpr unsigned null_part = 2;
constexpr unsigned empty_part = 4;
constexpr unsigned parts_missing = null_part | empty_part;
constexpr unsigned written = 8;  // `null` of the expression: "[id, version || `null`]" says that it may be missing.

// The mark of something that is built with `v` as a part.
unsigned part_mark(const Value& v) {
  unsigned mark = v.mark() & parts_missing;
  if ((v.mark() & written) != 0) return mark;
  if (only_nulls(v)) {
    mark |= null_part;
  } else if (is_nothing(v)) {
    mark |= empty_part;
  }
  return mark;
}

unsigned built_mark(std::span<const Value> parts) {
  unsigned mark = built;
  for (const Value& part : parts) mark |= part_mark(part);
  return mark;
}

class Evaluation {
 public:
  Evaluation(Dialect dialect, Arena& arena) : dialect_(dialect), arena_(arena) {}

  Value operator()(const Node& node, const Value& current) {
    switch (node.op) {
      case Op::current:
        return seen(current);
      case Op::field:
        return seen(field(current, node.text));
      case Op::index:
        return seen(element(current, node.index));
      case Op::literal:
        return node.value.is_null() ? node.value.marked(written) : node.value;
      case Op::call:
        return call(node, current);
      case Op::reference:
        break;  // Only as an argument, which call() evaluates itself.
      case Op::list:
        return current.is_null() ? Value() : built_array(arguments(node, current));
      case Op::hash:
        return current.is_null() ? Value() : hash(node, current);
      case Op::chain: {
        Value value = current;
        const bool before = found_;
        const bool of_event = of_event_;
        for (const NodePtr& child : node.children) {
          found_ = false;
          value = (*this)(*child, value);
          of_event_ = found_;
        }
        of_event_ = of_event;
        found_ = found_ || before;
        return value;
      }
      case Op::either:
      case Op::both: {
        Value value;
        for (const NodePtr& child : node.children) {
          value = (*this)(*child, current);
          if (is_true(value) == (node.op == Op::either)) break;
        }
        return value;
      }
      case Op::negation:
        return Value::boolean(!is_true((*this)(*node.children[0], current)));
      case Op::comparison:
        return comparison(node.text, (*this)(*node.children[0], current), (*this)(*node.children[1], current));
      case Op::elements:
      case Op::members:
      case Op::flatten:
      case Op::filter:
      case Op::slice:
        return projection(node, current);
    }
    return {};
  }

  // Whether the event contributed to the result: see Selector::Selection.
  [[nodiscard]] bool found() const noexcept { return found_; }

 private:
  using Values = std::vector<Value>;

  Value seen(const Value& value) {
    found_ = found_ || (of_event_ && !value.is_null());
    return value;
  }

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

  Values arguments(const Node& node, const Value& current) {
    Values values;
    values.reserve(node.children.size());
    for (const NodePtr& child : node.children) values.push_back((*this)(*child, current));
    return values;
  }

  Value array(const Values& values) { return Value::array(json::keep(std::span<const Value>(values), arena_)); }

  Value built_array(const Values& parts) { return array(parts).marked(built_mark(parts)); }

  Value object(std::vector<Member> members) {
    if (rules_of(dialect_).index_names_first) json::index_names_first(members);
    return Value::object(json::keep(std::span<const Member>(members), arena_));
  }

  Value hash(const Node& node, const Value& current) {
    std::vector<Member> members;
    members.reserve(node.children.size());
    unsigned mark = built;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      members.push_back({node.names[i], (*this)(*node.children[i], current)});
      mark |= part_mark(members.back().value);
    }
    return object(std::move(members)).marked(mark);
  }

  Value projection(const Node& node, const Value& current) {
    const bool before = found_;
    const bool of_event = of_event_;
    found_ = false;
    const Value base = (*this)(*node.children[0], current);
    of_event_ = found_;
    found_ = before;
    const Value value = projected(node, base);
    of_event_ = of_event;
    return value;
  }

  // Elements left out of a projection do not contribute, but those that a condition read do. An empty projection also
  // comes from the event.
  //
  // Parts of what the expression built stay parts, also those that are left out because they are null: "[uid, id][]"
  // over {"id": 7} is [7], and has a null part. Elements of the event are data.
  Value projected(const Node& node, const Value& base) {
    const bool of_parts = (base.mark() & built) != 0;
    unsigned mark = base.mark() & built;
    Values elements;
    if (node.op == Op::members) {
      if (base.kind() != Kind::object) return {};
      for (const Member& m : base.members()) elements.push_back(m.value);
    } else {
      if (base.kind() != Kind::array) return {};
      const auto all = base.elements();
      if (node.op == Op::slice) {
        elements = slice(node, all);
      } else if (node.op == Op::filter) {
        std::ranges::copy_if(all, std::back_inserter(elements),
                             [&](const Value& v) { return is_true((*this)(*node.children[2], v)); });
        if (of_parts) mark |= base.mark() & parts_missing;
        if (!all.empty() && elements.empty()) return array({}).marked(mark);
      } else if (node.op == Op::flatten) {
        for (const Value& v : all) {
          if (v.kind() == Kind::array) {
            mark |= v.mark() & parts_missing;
            elements.insert(elements.end(), v.elements().begin(), v.elements().end());
          } else {
            elements.push_back(v);
          }
        }
      } else {
        elements.assign(all.begin(), all.end());
      }
    }
    if (elements.empty()) found_ = found_ || of_event_;
    Values results;
    for (const Value& v : elements) {
      const bool before = found_;
      const Value result = (*this)(*node.children[1], v);
      mark |= of_parts ? part_mark(result) : result.mark() & parts_missing;
      if (result.is_null()) {
        found_ = before;
      } else {
        results.push_back(result);
      }
    }
    return array(results).marked(mark);
  }

  static Values slice(const Node& node, std::span<const Value> all) {
    const auto count = static_cast<long>(all.size());
    const bool down = node.step < 0;
    const long lowest = down ? -1 : 0;
    const long highest = down ? count - 1 : count;
    const auto bound = [&](std::optional<long> given, long otherwise) {
      if (!given) return otherwise;
      return std::clamp(*given < 0 ? *given + count : *given, lowest, highest);
    };
    const long stop = bound(node.stop, down ? lowest : highest);
    Values out;
    for (long i = bound(node.start, down ? highest : lowest); down ? i > stop : i < stop; i += node.step) {
      out.push_back(all[static_cast<std::size_t>(i)]);
    }
    return out;
  }

  // Order and equality.

  static int compare_numbers(const Value& a, const Value& b) {
    if (is_integer(a) && is_integer(b)) {
      // Exact for any size: JSON integers have no leading zeros.
      const auto split = [](std::string_view text) {
        const bool negative = text.starts_with('-') && text != "-0";
        return std::pair(negative, text.starts_with('-') ? text.substr(1) : text);
      };
      const auto [a_negative, a_digits] = split(a.text());
      const auto [b_negative, b_digits] = split(b.text());
      if (a_negative != b_negative) return a_negative ? -1 : 1;
      const int magnitude = a_digits.size() != b_digits.size() ? (a_digits.size() < b_digits.size() ? -1 : 1)
                                                               : a_digits.compare(b_digits);
      return a_negative ? -magnitude : magnitude;
    }
    const double x = text::to_double(a.text());
    const double y = text::to_double(b.text());
    return x < y ? -1 : x > y ? 1 : 0;
  }

  [[nodiscard]] bool in_doubles() const {
    return dialect_ == Dialect::native || dialect_ == Dialect::powertools_typescript;
  }

  [[nodiscard]] int order_numbers(const Value& a, const Value& b) const {
    if (!in_doubles()) return compare_numbers(a, b);
    const double x = text::to_double(a.text());
    const double y = text::to_double(b.text());
    return x < y ? -1 : x > y ? 1 : 0;
  }

  [[nodiscard]] bool less(const Value& a, const Value& b) const {
    if (is_number(a)) return order_numbers(a, b) < 0;
    // By code point, which is by byte in UTF-8; JavaScript and Java compare UTF-16 units.
    const bool units = dialect_ == Dialect::powertools_typescript || dialect_ == Dialect::powertools_java;
    return units ? text::utf16_less(a.text(), b.text()) : a.text() < b.text();
  }

  // In Python False is 0 and True is 1 where the language itself compares: inside arrays and objects, and in
  // contains(). jmespath.py distinguishes them only at the top of == and !=.
  [[nodiscard]] bool equal_inside(const Value& a, const Value& b) const {
    if (dialect_ == Dialect::powertools_python) {
      if (a.kind() == Kind::boolean && is_number(b)) return equal(Value::number(a.truth() ? "1" : "0"), b);
      if (b.kind() == Kind::boolean && is_number(a)) return equal(a, Value::number(b.truth() ? "1" : "0"));
    }
    return equal(a, b);
  }

  [[nodiscard]] bool equal(const Value& a, const Value& b) const {
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
      case Kind::null:
        return true;
      case Kind::boolean:
        return a.truth() == b.truth();
      case Kind::number:
        return a.text() != "NaN" && b.text() != "NaN" && order_numbers(a, b) == 0;
      case Kind::string:
        return a.text() == b.text();
      case Kind::array:
        return std::ranges::equal(a.elements(), b.elements(),
                                  [this](const Value& x, const Value& y) { return equal_inside(x, y); });
      case Kind::object:
        return equal_members(a.members(), b.members());
    }
    return false;
  }

  [[nodiscard]] bool equal_members(std::span<const Member> a, std::span<const Member> b) const {
    if (a.size() != b.size()) return false;
    std::unordered_map<std::string_view, const Value*> others;
    for (const Member& m : b) others.emplace(m.name, &m.value);
    return std::ranges::all_of(a, [&](const Member& m) {
      const auto other = others.find(m.name);
      return other != others.end() && equal_inside(m.value, *other->second);
    });
  }

  [[nodiscard]] Value comparison(std::string_view symbol, const Value& a, const Value& b) const {
    if (symbol == "==") return Value::boolean(equal(a, b));
    if (symbol == "!=") return Value::boolean(!equal(a, b));
    // jmespath.py orders strings too. Comparing a number with a string raises in Python.
    const bool python = dialect_ == Dialect::powertools_python;
    if (python && ((is_number(a) && is_string(b)) || (is_string(a) && is_number(b)))) {
      refuse("'" + std::string(symbol) + "' compares a number with a string");
    }
    const bool strings = python && is_string(a) && is_string(b);
    if (!(is_number(a) && is_number(b)) && !strings) return {};
    const bool nan = !strings && (a.text() == "NaN" || b.text() == "NaN");
    if (symbol == "<") return Value::boolean(!nan && less(a, b));
    if (symbol == ">") return Value::boolean(!nan && less(b, a));
    if (symbol == "<=") return Value::boolean(!nan && !less(b, a));
    return Value::boolean(!nan && !less(a, b));
  }

  // Results.

  Value text(std::string_view bytes) { return Value::string(json::keep(bytes, arena_)); }
  Value number_text(std::string_view digits) { return Value::number(json::keep(digits, arena_)); }
  Value count(std::size_t n) { return number_text(std::to_string(n)); }

  Value real(double d) {
    if (dialect_ == Dialect::native && !std::isfinite(d))
      refuse("the expression computes a number outside double range");
    std::string digits;
    text::append_python(d, digits);  // Marks a number that is not an integer.
    return number_text(digits);
  }

  // `value || null` in JavaScript.
  [[nodiscard]] Value or_null(const Value& v) const {
    if (dialect_ != Dialect::powertools_typescript) return v;
    if (is_number(v)) {
      const double d = text::to_double(v.text());
      return d == 0 || std::isnan(d) ? Value() : v;
    }
    const bool container = v.kind() == Kind::array || v.kind() == Kind::object;
    return container || is_true(v) ? v : Value();
  }

  // Arguments.

  [[noreturn]] static void bad(Function f, std::string_view wanted, const Value& given) {
    refuse(std::string(name_of(f)) + "() needs " + std::string(wanted) + " and was given " +
           std::string(kind_name(given.kind())));
  }

  static std::string_view string_of(Function f, const Value& v) {
    if (!is_string(v)) bad(f, "a string", v);
    return v.text();
  }
  static const Value& number_of(Function f, const Value& v) {
    if (!is_number(v)) bad(f, "a number", v);
    return v;
  }
  static std::span<const Value> elements_of(Function f, const Value& v) {
    if (v.kind() != Kind::array) bad(f, "an array", v);
    return v.elements();
  }
  static std::span<const Member> members_of(Function f, const Value& v) {
    if (v.kind() != Kind::object) bad(f, "an object", v);
    return v.members();
  }
  static std::span<const Value> numbers_of(Function f, const Value& v) {
    const auto all = elements_of(f, v);
    for (const Value& one : all) {
      if (!is_number(one)) bad(f, "an array of numbers", one);
    }
    return all;
  }
  // All numbers or all strings.
  static std::span<const Value> sortable(Function f, std::span<const Value> all) {
    for (const Value& one : all) {
      if ((!is_number(one) && !is_string(one)) || one.kind() != all.front().kind()) {
        bad(f, "nothing but numbers or nothing but strings", one);
      }
    }
    return all;
  }

  // Functions.

  Value call(const Node& node, const Value& current) {
    unsigned given = 0;
    const Value result = call(node, current, given);
    switch (node.function) {
      // One of the arguments or of their elements, with its own mark.
      case Function::max:
      case Function::max_by:
      case Function::min:
      case Function::min_by:
      case Function::not_null:
      // They mark their results.
      case Function::map:
      case Function::merge:
      case Function::to_array:
      // Not made of the parts.
      case Function::contains:
      case Function::ends_with:
      case Function::starts_with:
      case Function::type:
        return result;
      case Function::reverse:
      case Function::sort:
      case Function::sort_by:
      case Function::values:
        return result.marked(result.mark() | (given & (built | parts_missing)));
      default:
        return result.marked(result.mark() | (given & parts_missing));
    }
  }

  // `given`: with the marks of the arguments.
  Value call(const Node& node, const Value& current, unsigned& given) {
    const Function f = node.function;
    const auto argument = [&](std::size_t i) {
      const Value v = (*this)(*node.children[i], current);
      given |= v.mark();
      return v;
    };
    if (is_powertools(f)) return call_powertools(f, argument(0), dialect_, arena_);
    switch (f) {
      case Function::abs:
      case Function::ceil:
      case Function::floor:
        return rounded(f, number_of(f, argument(0)));
      case Function::avg:
        return avg(numbers_of(f, argument(0)));
      case Function::sum:
        return sum(numbers_of(f, argument(0)));
      case Function::contains:
        return contains(argument(0), argument(1));
      case Function::ends_with:
      case Function::starts_with:
        return ends_or_starts(f, argument(0), argument(1));
      case Function::join:
        return join(argument(0), argument(1));
      case Function::keys: {
        Values names;
        const Value v = argument(0);
        for (const Member& m : members_of(f, v)) names.push_back(Value::string(m.name));
        return array(names);
      }
      case Function::values: {
        Values all;
        const Value v = argument(0);
        for (const Member& m : members_of(f, v)) all.push_back(m.value);
        return array(all);
      }
      case Function::length:
        return length(argument(0));
      case Function::map: {
        Values results;
        const Value v = argument(1);
        for (const Value& one : elements_of(f, v))
          results.push_back(or_null((*this)(*node.children[0]->children[0], one)));
        return built_array(results);
      }
      case Function::max:
      case Function::min: {
        const Value v = argument(0);
        const auto all = sortable(f, elements_of(f, v));
        return extreme(f == Function::max, all, all);
      }
      case Function::max_by:
      case Function::min_by: {
        const Value v = argument(0);
        const Values by = sort_keys(f, elements_of(f, v), *node.children[1]);
        return extreme(f == Function::max_by, v.elements(), by);
      }
      case Function::sort: {
        const Value v = argument(0);
        const auto all = sortable(f, elements_of(f, v));
        return sorted(all, all);
      }
      case Function::sort_by: {
        const Value v = argument(0);
        const Values by = sort_keys(f, elements_of(f, v), *node.children[1]);
        return sorted(v.elements(), by);
      }
      case Function::merge:
        return merge(arguments(node, current));
      case Function::not_null: {
        Value v;
        for (std::size_t i = 0; i < node.children.size() && v.is_null(); ++i) v = argument(i);
        return v.is_null() ? v : or_null(v);
      }
      case Function::reverse:
        return reverse(argument(0));
      case Function::to_array: {
        const Value v = argument(0);
        return v.kind() == Kind::array ? v : built_array({v});
      }
      case Function::to_number:
        return to_number(argument(0));
      case Function::to_string: {
        const Value v = argument(0);
        return is_string(v) ? v : text(json_text(v, dialect_)).marked(part_mark(v));
      }
      case Function::type:
        return type(argument(0));
      case Function::powertools_base64:
      case Function::powertools_base64_gzip:
      case Function::powertools_json:
        break;  // Above.
    }
    return {};
  }

  Value rounded(Function f, const Value& v) {
    const bool python = dialect_ == Dialect::powertools_python;
    if (python && is_integer(v)) {
      const bool negative = f == Function::abs && v.text().starts_with('-');
      return negative ? Value::number(v.text().substr(1)) : v;
    }
    const double d = text::to_double(v.text());
    if (f == Function::abs) return real(std::fabs(d));
    const double whole = f == Function::ceil ? std::ceil(d) : std::floor(d);
    if (!python) return real(whole);
    if (!(std::fabs(whole) < 9.2e18)) refuse(std::string(name_of(f)) + "(): the result is too large");
    return number_text(std::to_string(static_cast<long long>(whole)));
  }

  // Python's integers have no limit; beyond 64 bits this is an error, not another number.
  static std::optional<long long> integer_sum(std::span<const Value> numbers) {
    long long sum = 0;
    for (const Value& v : numbers) {
      long long one = 0;
      const std::string_view digits = v.text();
      const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), one);
      if (result.ec != std::errc() || __builtin_add_overflow(sum, one, &sum)) return std::nullopt;
    }
    return sum;
  }

  static double real_sum(std::span<const Value> numbers) {
    double sum = 0;
    for (const Value& v : numbers) sum += text::to_double(v.text());
    return sum;
  }

  Value sum(std::span<const Value> numbers) {
    if (dialect_ != Dialect::powertools_python || !std::ranges::all_of(numbers, is_integer)) {
      return real(real_sum(numbers));
    }
    const auto sum = integer_sum(numbers);
    if (!sum) refuse("sum(): the integers are too large");
    return number_text(std::to_string(*sum));
  }

  Value avg(std::span<const Value> numbers) {
    if (numbers.empty()) {
      // JavaScript divides 0 by 0. JSON.stringify writes null for that, but as a key it is not missing.
      if (dialect_ == Dialect::powertools_typescript) return real(std::numeric_limits<double>::quiet_NaN());
      return {};
    }
    const auto n = static_cast<double>(numbers.size());
    if (dialect_ != Dialect::powertools_python || !std::ranges::all_of(numbers, is_integer)) {
      return real(real_sum(numbers) / n);
    }
    const auto sum = integer_sum(numbers);
    constexpr long long last_safe = 9007199254740991;
    if (!sum || *sum > last_safe || *sum < -last_safe) refuse("avg(): the integers are too large");
    return real(static_cast<double>(*sum) / n);
  }

  Value contains(const Value& in, const Value& what) {
    if (is_string(in)) {
      return Value::boolean(in.text().find(string_of(Function::contains, what)) != std::string_view::npos);
    }
    if (in.kind() != Kind::array) bad(Function::contains, "an array or a string", in);
    // JavaScript compares arrays and objects by identity, which is not known here.
    const bool container = what.kind() == Kind::array || what.kind() == Kind::object;
    if (dialect_ == Dialect::powertools_typescript && container) {
      refuse("contains(): looks for arrays and objects by identity in TypeScript, which is not reproduced");
    }
    return Value::boolean(std::ranges::any_of(in.elements(), [&](const Value& v) { return equal_inside(v, what); }));
  }

  static Value ends_or_starts(Function f, const Value& in, const Value& what) {
    const std::string_view whole = string_of(f, in);
    const std::string_view part = string_of(f, what);
    return Value::boolean(f == Function::ends_with ? whole.ends_with(part) : whole.starts_with(part));
  }

  Value join(const Value& separator, const Value& parts) {
    const std::string_view between = string_of(Function::join, separator);
    std::string out;
    bool first = true;
    for (const Value& part : elements_of(Function::join, parts)) {
      if (!first) out += between;
      first = false;
      out += string_of(Function::join, part);
    }
    return text(out);
  }

  Value length(const Value& v) {
    switch (v.kind()) {
      case Kind::string: {
        const bool units = dialect_ == Dialect::powertools_typescript || dialect_ == Dialect::powertools_java;
        return count(units ? text::utf16_length(v.text()) : text::code_point_length(v.text()));
      }
      case Kind::array:
        return count(v.elements().size());
      case Kind::object:
        return count(v.members().size());
      default:
        bad(Function::length, "a string, an array or an object", v);
    }
  }

  Values sort_keys(Function f, std::span<const Value> all, const Node& reference) {
    Values keys;
    keys.reserve(all.size());
    for (const Value& one : all) keys.push_back((*this)(*reference.children[0], one));
    sortable(f, keys);
    return keys;
  }

  // The first of the largest or smallest.
  [[nodiscard]] Value extreme(bool largest, std::span<const Value> all, std::span<const Value> by) const {
    if (all.empty()) return {};
    std::size_t best = 0;
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (largest ? less(by[best], by[i]) : less(by[i], by[best])) best = i;
    }
    return all[best];
  }

  Value sorted(std::span<const Value> all, std::span<const Value> by) {
    std::vector<std::size_t> order(all.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return less(by[a], by[b]); });
    Values out;
    out.reserve(order.size());
    for (const std::size_t i : order) out.push_back(all[i]);
    return array(out);
  }

  Value merge(const Values& objects) {
    std::vector<Member> out;
    std::vector<unsigned> marks;  // Of the object as a result of each member.
    std::unordered_map<std::string_view, std::size_t> places;
    unsigned mark = built;
    for (const Value& one : objects) {
      const bool of_parts = (one.mark() & built) != 0;
      if (!of_parts) mark = 0;
      for (const Member& m : members_of(Function::merge, one)) {
        const unsigned member_mark = of_parts ? part_mark(m.value) : m.value.mark() & parts_missing;
        const auto [place, added] = places.try_emplace(m.name, out.size());
        if (added) {
          out.push_back(m);
          marks.push_back(member_mark);
        } else {
          out[place->second].value = m.value;
          marks[place->second] = member_mark;
        }
      }
    }
    for (const unsigned member_mark : marks) mark |= member_mark;
    return object(std::move(out)).marked(mark);
  }

  Value reverse(const Value& v) {
    if (v.kind() == Kind::array) {
      Values out(v.elements().rbegin(), v.elements().rend());
      return array(out);
    }
    const std::string_view forward = string_of(Function::reverse, v);
    std::string backward;
    for (std::size_t end = forward.size(); end > 0;) {
      std::size_t begin = end - 1;
      while (begin > 0 && (static_cast<unsigned char>(forward[begin]) & 0xC0U) == 0x80U) --begin;
      backward += forward.substr(begin, end - begin);
      end = begin;
    }
    return text(backward);
  }

  // Strings that are plain decimal numbers. Forms of only one language (0x10, 1_000, names of infinities) are null.
  Value to_number(const Value& v) {
    if (is_number(v)) return v;
    if (!is_string(v)) return {};
    const bool native = dialect_ == Dialect::native;
    std::string_view digits = native ? v.text() : text::trim(v.text(), " \t\n\r\f\v");
    if (digits.empty()) return dialect_ == Dialect::powertools_typescript ? count(0) : Value();
    const bool negative = digits.starts_with('-');
    if (negative || (!native && digits.starts_with('+'))) digits.remove_prefix(1);
    if (!is_decimal(digits)) return {};
    if (dialect_ == Dialect::powertools_python && all_digits(digits)) {
      digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
      return number_text((negative ? "-" : "") + std::string(digits));
    }
    const std::string whole = (negative ? "-" : "") + std::string(digits);
    if (native) {
      if (const std::string problem = text::inexact(whole); !problem.empty()) refuse("to_number(): " + problem);
    }
    return real(text::to_double(whole));
  }

  static Value type(const Value& v) {
    switch (v.kind()) {
      case Kind::null:
        return Value::string("null");
      case Kind::boolean:
        return Value::string("boolean");
      case Kind::number:
        return Value::string("number");
      case Kind::string:
        return Value::string("string");
      case Kind::array:
        return Value::string("array");
      case Kind::object:
        return Value::string("object");
    }
    return {};
  }

  Dialect dialect_;
  Arena& arena_;
  bool of_event_ = true;  // The current value comes from the event.
  bool found_ = false;    // The result so far contains something of the event.
};

bool reads_input(const Node& node) {
  return node.op == Op::current || node.op == Op::field || node.op == Op::index ||
         std::ranges::any_of(node.children, [](const NodePtr& child) { return reads_input(*child); });
}

bool keeps_text_of_numbers(const Node& node) {
  const bool keeps = node.op != Node::Op::call || is_powertools(node.function) || node.function == Function::not_null ||
                     node.function == Function::join || node.function == Function::starts_with ||
                     node.function == Function::ends_with;
  return keeps && node.op != Node::Op::comparison &&
         std::ranges::all_of(node.children, [](const NodePtr& child) { return keeps_text_of_numbers(*child); });
}

// Finds what an expression reads. While only names are selected, their path grows; whatever else uses a value reads all
// of it. "[id, powertools_json(body).order]" reads id and body.
class Reads {
 public:
  using Path = Selector::Path;

  explicit Reads(const Node& root) { all_of(root, {Path()}); }
  std::vector<Path> take() { return std::move(found_); }

 private:
  // `input`: where the value that the node is applied to may be. Returns where the result is; nowhere if it is made of
  // what was read already.
  std::vector<Path> where(const Node& node, std::vector<Path> input) {
    switch (node.op) {
      case Op::current:
        return input;
      case Op::field:
        for (Path& path : input) path.push_back(node.text);
        return input;
      case Op::chain:
        for (const NodePtr& child : node.children) input = where(*child, std::move(input));
        return input;
      case Op::index:
        add(std::move(input));
        return {};
      case Op::elements:
      case Op::members:
      case Op::flatten:
      case Op::filter:
      case Op::slice:  // The others are applied to the elements.
        all_of(*node.children[0], std::move(input));
        return {};
      case Op::reference:  // As above.
        return {};
      default:
        for (const NodePtr& child : node.children) all_of(*child, input);
        return {};
    }
  }

  void all_of(const Node& node, std::vector<Path> input) { add(where(node, std::move(input))); }
  void add(std::vector<Path> paths) { std::ranges::move(paths, std::back_inserter(found_)); }

  std::vector<Path> found_;
};

// A name with a dot, which only quotes allow.
const std::string* dotted_name(const Node& node) {
  if (node.op == Op::field && node.text.find('.') != std::string::npos) return &node.text;
  for (const NodePtr& child : node.children) {
    if (const std::string* name = dotted_name(*child)) return name;
  }
  return nullptr;
}

bool calls(const Node& node, Function a, Function b) {
  return (node.op == Op::call && (node.function == a || node.function == b)) ||
         std::ranges::any_of(node.children, [&](const NodePtr& child) { return calls(*child, a, b); });
}

}  // namespace

bool only_nulls(const Value& v) {
  switch (v.kind()) {
    case Kind::null:
      return true;
    case Kind::array:
      return !v.elements().empty() && std::ranges::all_of(v.elements(), only_nulls);
    case Kind::object:
      return !v.members().empty() && std::ranges::all_of(v.members(), only_nulls, &Member::value);
    default:
      return false;
  }
}

bool is_nothing(const Value& v) { return (v.kind() == Kind::string && v.text().empty()) || nothing_but_nulls(v); }

Selector::Selector(std::string_view expression, Dialect dialect, std::string_view what)
    : dialect_(dialect),
      expression_(parse_expression(expression, dialect, what)),
      reads_event_(reads_input(*expression_.root)) {
  const auto unsupported = [&](const std::string& why) {
    refuse(std::string(what) + " " + text::quoted(expression) + ": " + why);
  };
  if (dialect == Dialect::powertools_dotnet && !expression_.plain) {
    unsupported(
        "for powertools-dotnet only names, indices, lists, hashes, ||, && and the powertools functions are supported; "
        "what .NET does with the rest is not reproduced");
  }
  if (dialect == Dialect::powertools_typescript && calls(*expression_.root, Function::sort, Function::reverse)) {
    unsupported(
        "sort() and reverse() change the event itself in Powertools for TypeScript, so that one event has several ids "
        "there; select something else, or use sort_by()");
  }
}

Selector::Selection Selector::select(const json::Value& event, json::Arena& arena) const {
  Evaluation evaluation(dialect_, arena);
  const Value value = evaluation(*expression_.root, event);
  const unsigned mark = dialect_ == Dialect::native ? value.mark() : 0;
  return {value, evaluation.found() || !reads_event_, (mark & null_part) != 0, (mark & empty_part) != 0};
}

std::vector<Selector::Path> Selector::reads() const { return Reads(*expression_.root).take(); }

bool Selector::keeps_numbers() const { return keeps_text_of_numbers(*expression_.root); }

std::string Selector::hint() const {
  const std::string* const name = dotted_name(*expression_.root);
  if (name == nullptr) return {};
  return ": \"" + *name + "\" in double quotes is one name; did you mean " + *name + " without quotes?";
}

}  // namespace once::keys
