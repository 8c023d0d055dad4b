#include "keys/jmespath.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <jsoncons/json.hpp>
#include <jsoncons_ext/jmespath/jmespath.hpp>
#include <limits>
#include <once/error.hpp>
#include <optional>
#include <string>
#include <utility>

#include "keys/functions.hpp"
#include "keys/number.hpp"
#include "keys/text.hpp"
#include "keys/write.hpp"

namespace once::keys {

namespace {

namespace jp = jsoncons::jmespath;
using json::Arena;
using json::Kind;
using json::Member;
using json::Value;
using Tree = jsoncons::ojson;  // Keeps the order of members.

[[noreturn]] void refuse(const std::string& message) { throw Exception(ErrorKind::misuse, message); }

bool counts_in_doubles(Dialect dialect) {
  return dialect == Dialect::native || dialect == Dialect::powertools_typescript;
}

// Between the two trees. A number goes as int64 if it is one, as double, or, in the dialects with integers of any
// size, as a string with the tag that makes it a number for jsoncons.

Tree to_tree(const Value& v, Dialect dialect) {
  switch (v.kind()) {
    case Kind::null:
      return Tree::null();
    case Kind::boolean:
      return Tree(v.truth());
    case Kind::string:
      return Tree(v.text());
    case Kind::number: {
      const std::string_view text = v.text();
      if (!is_integer_text(text)) return Tree(to_double(text));
      std::int64_t integer = 0;
      const bool fits = std::from_chars(text.data(), text.data() + text.size(), integer).ec == std::errc();
      constexpr std::int64_t last_safe = 9007199254740991;
      if (counts_in_doubles(dialect)) {
        if (fits && integer >= -last_safe && integer <= last_safe) return Tree(integer);
        return Tree(to_double(text));
      }
      return fits ? Tree(integer) : Tree(text, jsoncons::semantic_tag::bigint);
    }
    case Kind::array: {
      Tree out(jsoncons::json_array_arg);
      out.reserve(v.elements().size());
      for (const Value& element : v.elements()) out.push_back(to_tree(element, dialect));
      return out;
    }
    case Kind::object: {
      // All at once: one by one, each costs a search.
      std::vector<std::pair<std::string, Tree>> members;
      members.reserve(v.members().size());
      for (const Member& m : v.members()) members.emplace_back(m.name, to_tree(m.value, dialect));
      return {jsoncons::json_object_arg, std::make_move_iterator(members.begin()),
              std::make_move_iterator(members.end())};
    }
  }
  return Tree::null();
}

Value from_tree(const Tree& t, Dialect dialect, Arena& arena) {
  const auto number = [&](const std::string& text) { return Value::number(json::keep(text, arena)); };
  switch (t.type()) {
    case jsoncons::json_type::null_value:
      return {};
    case jsoncons::json_type::bool_value:
      return Value::boolean(t.as<bool>());
    case jsoncons::json_type::int64_value:
      return number(std::to_string(t.as<std::int64_t>()));
    case jsoncons::json_type::uint64_value:
      return number(std::to_string(t.as<std::uint64_t>()));
    case jsoncons::json_type::half_value:
    case jsoncons::json_type::double_value: {
      const auto d = t.as<double>();
      if (dialect == Dialect::native && !std::isfinite(d))
        refuse("the expression computed a number outside double range");
      std::string text;
      append_python(d, text);  // Marks what is no integer.
      return number(text);
    }
    case jsoncons::json_type::string_value: {
      const std::string_view text = json::keep(t.as_string_view(), arena);
      return t.is_number() ? Value::number(text) : Value::string(text);
    }
    case jsoncons::json_type::array_value: {
      std::vector<Value> elements;
      elements.reserve(t.size());
      for (const Tree& element : t.array_range()) elements.push_back(from_tree(element, dialect, arena));
      return Value::array(json::keep(elements, arena));
    }
    case jsoncons::json_type::object_value: {
      std::vector<Member> members;
      members.reserve(t.size());
      for (const auto& m : t.object_range()) {
        members.push_back({json::keep(m.key(), arena), from_tree(m.value(), dialect, arena)});
      }
      return Value::object(json::keep(std::span<const Member>(members), arena));
    }
    default:
      refuse("the expression gave something that is not JSON");
  }
}

// Functions of JMESPath whose results the languages write differently. They are registered under names that begin with
// a capital letter, because jsoncons looks for its own first, and the calls in the expression are renamed.

using Arguments = jsoncons::span<const jp::parameter<Tree>>;

bool is_string(const Tree& t) { return t.is_string() && !t.is_number(); }
bool is_integer(const Tree& t) { return t.is_int64() || t.is_uint64() || (t.is_string() && t.is_number()); }

[[noreturn]] void bad_argument(std::string_view function, std::string_view wanted) {
  refuse(std::string(function) + "() needs " + std::string(wanted));
}

const Tree& argument(Arguments arguments, std::string_view function) {
  if (!arguments[0].is_value()) bad_argument(function, "a value, not an expression");
  return arguments[0].value();
}

double number_argument(Arguments arguments, std::string_view function) {
  const Tree& t = argument(arguments, function);
  if (!t.is_number()) bad_argument(function, "a number");
  return t.as<double>();
}

// Exact as long as int64 suffices: the languages with big integers would go on, and a wrong number must not get out.
std::optional<std::int64_t> exact_sum(const Tree& numbers) {
  std::int64_t sum = 0;
  for (const Tree& t : numbers.array_range()) {
    if (!t.is_int64() || __builtin_add_overflow(sum, t.as<std::int64_t>(), &sum)) return std::nullopt;
  }
  return sum;
}

const Tree& numbers_argument(Arguments arguments, std::string_view function) {
  const Tree& t = argument(arguments, function);
  if (!t.is_array() || !std::ranges::all_of(t.array_range(), [](const Tree& e) { return e.is_number(); })) {
    bad_argument(function, "an array of numbers");
  }
  return t;
}

Tree python_integer(double d, std::string_view function) {
  if (!(std::fabs(d) < 9.2e18)) refuse(std::string(function) + "(): the result is too large");
  return Tree(static_cast<std::int64_t>(d));
}

double float_sum(const Tree& numbers) {
  double sum = 0;
  for (const Tree& t : numbers.array_range()) sum += t.as<double>();
  return sum;
}

Tree sum(Arguments arguments, Dialect dialect) {
  const Tree& numbers = numbers_argument(arguments, "sum");
  if (dialect == Dialect::powertools_python && std::ranges::all_of(numbers.array_range(), is_integer)) {
    const auto exact = exact_sum(numbers);
    if (!exact) refuse("sum(): the integers are too large");
    return Tree(*exact);
  }
  return Tree(float_sum(numbers));
}

Tree avg(Arguments arguments, Dialect dialect) {
  const Tree& numbers = numbers_argument(arguments, "avg");
  // JavaScript divides 0 by 0, and JSON.stringify makes null of that.
  if (numbers.empty()) return Tree::null();
  if (dialect == Dialect::powertools_python && std::ranges::all_of(numbers.array_range(), is_integer)) {
    const auto exact = exact_sum(numbers);
    if (!exact || std::llabs(*exact) > 9007199254740991) refuse("avg(): the integers are too large");
    return Tree(static_cast<double>(*exact) / static_cast<double>(numbers.size()));
  }
  return Tree(float_sum(numbers) / static_cast<double>(numbers.size()));
}

Tree rounded(Arguments arguments, Dialect dialect, std::string_view function, double (*round)(double)) {
  const double d = number_argument(arguments, function);
  const Tree& t = argument(arguments, function);
  if (dialect == Dialect::powertools_python) {
    if (!is_integer(t)) {
      return function == "abs" ? Tree(std::fabs(d)) : python_integer(round(d), function);
    }
    if (function != "abs") return t;
    if (!t.is_int64() || t.as<std::int64_t>() == std::numeric_limits<std::int64_t>::min()) {
      refuse("abs(): the integer is too large");
    }
    return Tree(std::llabs(t.as<std::int64_t>()));
  }
  return Tree(round(d));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// [+-] digits [. digits] [e [+-] digits], digits missing on one side of the point; what all languages read.
bool is_decimal(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
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

Tree to_number(Arguments arguments, Dialect dialect) {
  const Tree& t = argument(arguments, "to_number");
  if (t.is_number()) return t;
  if (!is_string(t)) return Tree::null();
  std::string_view text = t.as_string_view();
  if (dialect != Dialect::native) text = trimmed(text);
  if (text.empty()) return dialect == Dialect::powertools_typescript ? Tree(0) : Tree::null();
  if (!is_decimal(text)) {
    // Names of infinities, 0x10, 1_000: read by one language or another, and nobody's key.
    return Tree::null();
  }
  if (text.starts_with('+')) {
    if (dialect == Dialect::native) return Tree::null();
    text.remove_prefix(1);
  }
  if (dialect == Dialect::native) {
    if (!inexact(text).empty()) refuse("to_number(): " + inexact(text));
    return Tree(to_double(text));
  }
  const std::string_view unsigned_text = text.starts_with('-') ? text.substr(1) : text;
  if (dialect == Dialect::powertools_python && all_digits(unsigned_text)) {
    std::int64_t integer = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), integer).ec == std::errc()) return Tree(integer);
    std::string digits(unsigned_text.substr(std::min(unsigned_text.find_first_not_of('0'), unsigned_text.size() - 1)));
    if (text.starts_with('-')) digits.insert(0, 1, '-');
    return Tree(digits, jsoncons::semantic_tag::bigint);
  }
  return Tree(to_double(text));
}

Tree to_string_of(Arguments arguments, Dialect dialect) {
  const Tree& t = argument(arguments, "to_string");
  if (is_string(t)) return t;
  std::pmr::monotonic_buffer_resource arena;
  return Tree(json_text(from_tree(t, dialect, arena), dialect));
}

Tree length(Arguments arguments, Dialect dialect) {
  const Tree& t = argument(arguments, "length");
  if (is_string(t)) {
    // Java's String.length() counts units as JavaScript does.
    const bool units = dialect == Dialect::powertools_typescript || dialect == Dialect::powertools_java;
    return Tree(units ? utf16_length(t.as_string_view()) : code_point_length(t.as_string_view()));
  }
  if (!t.is_array() && !t.is_object()) bad_argument("length", "a string, an array or an object");
  return Tree(t.size());
}

Tree type(Arguments arguments) {
  const Tree& t = argument(arguments, "type");
  return Tree(t.is_null()     ? "null"
              : t.is_bool()   ? "boolean"
              : t.is_number() ? "number"
              : t.is_string() ? "string"
              : t.is_array()  ? "array"
                              : "object");
}

double negative_free(double d) { return std::fabs(d); }
double up(double d) { return std::ceil(d); }
double down(double d) { return std::floor(d); }

constexpr std::array<std::string_view, 17> library_functions{
    "contains", "ends_with", "join",    "keys", "map",     "max",         "max_by",   "merge", "min",
    "min_by",   "not_null",  "reverse", "sort", "sort_by", "starts_with", "to_array", "values"};
constexpr std::array<std::string_view, 9> own_functions{"abs", "avg",  "ceil",      "floor",    "length",
                                                        "sum", "type", "to_number", "to_string"};

std::string capitalised(std::string_view name) {
  std::string out(name);
  out.front() = static_cast<char>(out.front() - ('a' - 'A'));
  return out;
}

jp::custom_functions<Tree> functions_for(Dialect dialect) {
  jp::custom_functions<Tree> functions;
  const auto add = [&](std::string_view name, auto body) {
    functions.register_function(
        std::string(name), 1U,
        [body](Arguments arguments, jp::eval_context<Tree>&, std::error_code&) { return body(arguments); });
  };
  for (const std::string_view name : {"powertools_json", "powertools_base64", "powertools_base64_gzip"}) {
    add(name, [dialect, function = *powertools_function(name), name](Arguments arguments) {
      std::pmr::monotonic_buffer_resource arena;
      const Value value = from_tree(argument(arguments, name), dialect, arena);
      return to_tree(call(function, value, dialect, arena), dialect);
    });
  }
  add("Abs", [dialect](Arguments a) { return rounded(a, dialect, "abs", negative_free); });
  add("Avg", [dialect](Arguments a) { return avg(a, dialect); });
  add("Ceil", [dialect](Arguments a) { return rounded(a, dialect, "ceil", up); });
  add("Floor", [dialect](Arguments a) { return rounded(a, dialect, "floor", down); });
  add("Length", [dialect](Arguments a) { return length(a, dialect); });
  add("Sum", [dialect](Arguments a) { return sum(a, dialect); });
  add("Type", [](Arguments a) { return type(a); });
  add("To_number", [dialect](Arguments a) { return to_number(a, dialect); });
  add("To_string", [dialect](Arguments a) { return to_string_of(a, dialect); });
  return functions;
}

bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word_part(char c) { return is_word_start(c) || (c >= '0' && c <= '9'); }

}  // namespace

std::vector<Call> calls_in(std::string_view expression, std::string_view what) {
  const auto fail = [&](const std::string& problem) {
    refuse(std::string(what) + " " + quoted(expression) + " " + problem);
  };
  if (expression.size() > max_expression_bytes) {
    fail("is longer than " + std::to_string(max_expression_bytes) + " bytes");
  }
  if (trimmed(expression).empty()) fail("is blank: leave it out or give a JMESPath");
  if (!valid_utf8(expression) || expression.find('\0') != std::string_view::npos) fail("is not UTF-8 text");
  std::vector<Call> calls;
  std::size_t depth = 0;
  for (std::size_t i = 0; i < expression.size();) {
    const char c = expression[i];
    if (c == '\'' || c == '"' || c == '`') {
      for (++i; i < expression.size() && expression[i] != c; ++i) {
        if (expression[i] == '\\') ++i;
      }
      ++i;
    } else if (is_word_start(c)) {
      const std::size_t start = i;
      while (i < expression.size() && is_word_part(expression[i])) ++i;
      const auto next = expression.find_first_not_of(" \t\r\n", i);
      if (next != std::string_view::npos && expression[next] == '(') {
        calls.push_back({expression.substr(start, i - start), start});
      }
    } else {
      if ((c == '(' || c == '[' || c == '{') && ++depth > max_expression_depth) {
        fail("has brackets more than " + std::to_string(max_expression_depth) + " deep");
      }
      if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
      ++i;
    }
  }
  return calls;
}

struct JmesPath::Parts {
  Dialect dialect;
  std::string what;
  jp::jmespath_expression<Tree> compiled;
};

JmesPath::JmesPath(std::string_view expression, Dialect dialect, std::string_view what) {
  std::string renamed(expression);
  for (const Call& one : calls_in(expression, what)) {
    if (std::ranges::find(own_functions, one.name) != own_functions.end()) {
      renamed.replace(one.offset, one.name.size(), capitalised(one.name));
    } else if (std::ranges::find(library_functions, one.name) == library_functions.end() &&
               !powertools_function(one.name)) {
      refuse(std::string(what) + " " + quoted(expression) + ": unknown function " + std::string(one.name) +
             "() at character " + std::to_string(one.offset + 1));
    } else if (dialect == Dialect::powertools_typescript && one.name == "sort") {
      refuse(std::string(what) + " " + quoted(expression) +
             ": sort() orders strings by the machine's locale in TypeScript, which is not reproduced; use sort_by()");
    }
  }
  try {
    parts_ = std::make_unique<const Parts>(
        Parts{dialect, std::string(what), jp::make_expression<Tree>(renamed, functions_for(dialect))});
  } catch (const jp::jmespath_error& error) {
    refuse(std::string(what) + " " + quoted(expression) + " cannot be compiled: " + error.what());
  } catch (const jsoncons::json_exception& error) {
    refuse(std::string(what) + " " + quoted(expression) + " cannot be compiled: " + error.what());
  }
}

JmesPath::JmesPath(JmesPath&&) noexcept = default;
JmesPath& JmesPath::operator=(JmesPath&&) noexcept = default;
JmesPath::~JmesPath() = default;

json::Value JmesPath::search(const json::Value& event, json::Arena& arena) const {
  try {
    return from_tree(parts_->compiled.evaluate(to_tree(event, parts_->dialect)), parts_->dialect, arena);
  } catch (const jp::jmespath_error& error) {
    refuse(parts_->what + " failed on this event: " + error.what());
  } catch (const jsoncons::json_exception& error) {
    refuse(parts_->what + " failed on this event: " + error.what());
  }
}

}  // namespace once::keys
