#include "text/json.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <once/error.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::text::json {

Value Value::member(std::string_view name) const noexcept {
  if (kind() == Kind::object) {
    for (const Member& m : members()) {
      if (m.name == name) return m.value;
    }
  }
  return {};
}

namespace {

template <class T>
std::span<const T> copy_to(std::span<const T> items, Arena& arena) {
  if (items.empty()) return {};
  static_assert(std::is_trivially_copyable_v<T>);
  void* const out = arena.allocate(items.size_bytes(), alignof(T));
  std::memcpy(out, items.data(), items.size_bytes());
  return {static_cast<const T*>(out), items.size()};
}

// A bit for each special byte of a step: quotes, backslashes, control characters and non-ASCII. Between them a string
// is plain.
#ifdef __SSE2__
constexpr std::ptrdiff_t step_bytes = 16;
constexpr int bits_per_byte = 1;
using Mask = std::uint32_t;

Mask specials(const char* bytes) {
  const __m128i step = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  // As signed numbers, non-ASCII bytes are below a blank too.
  const __m128i found = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(step, _mm_set1_epi8('"')),  //
                                                  _mm_cmpeq_epi8(step, _mm_set1_epi8('\\'))),
                                     _mm_cmplt_epi8(step, _mm_set1_epi8(' ')));
  return static_cast<Mask>(_mm_movemask_epi8(found));
}
#else
constexpr std::ptrdiff_t step_bytes = 8;
constexpr int bits_per_byte = 8;
using Mask = std::uint64_t;

Mask specials(const char* bytes) {
  constexpr std::uint64_t ones = 0x0101010101010101U;
  constexpr std::uint64_t low = ones * 0x7FU;
  std::uint64_t step = 0;
  for (unsigned i = 0; i < step_bytes; ++i) step |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  // Sets the high bit of each byte that is not 0; no byte carries into its neighbour.
  const auto others = [&](std::uint64_t v) { return ((v & low) + low) | v; };
  const std::uint64_t plain = others(step ^ ones * '"') & others(step ^ ones * '\\') & others(step & ones * 0xE0U);
  return (~plain | step) & ~low;
}
#endif

// How many plain bytes come before the first special one.
std::ptrdiff_t plain_before(Mask mask) { return mask == 0 ? step_bytes : std::countr_zero(mask) / bits_per_byte; }

struct Failure {
  const char* at;
  std::string problem;
};

// The value of a short escape, by the character after the backslash; NUL: not a short escape.
constexpr auto short_escapes = [] {
  std::array<char, 256> table{};
  table['"'] = '"';
  table['\\'] = '\\';
  table['/'] = '/';
  table['b'] = '\b';
  table['f'] = '\f';
  table['n'] = '\n';
  table['r'] = '\r';
  table['t'] = '\t';
  return table;
}();

// Its functions take and return the reading place, so that it stays in a register.
class Parser {
 public:
  Parser(std::string_view text, const Rules& rules, Arena& arena)
      : begin_(text.data()), end_(begin_ + text.size()), rules_(rules), arena_(arena), open_(&arena) {}

  Value document() {
    if (static_cast<std::size_t>(end_ - begin_) > max_bytes) fail(begin_, "longer than 256 MiB");
    open_.reserve(48);
    Value value;
    const char* const p = skip_blanks(any(begin_, 0, value));
    if (p != end_) fail(p, "something follows the end of the JSON value");
    return value;
  }

 private:
  [[noreturn]] static void fail(const char* at, std::string problem) { throw Failure{at, std::move(problem)}; }

  [[nodiscard]] const char* skip_blanks(const char* p) const {
    if (p != end_ && *p > ' ') return p;  // Usually there are none.
    while (p != end_ && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) ++p;
    return p;
  }

  [[nodiscard]] bool has(const char* p, std::string_view word) const {
    return static_cast<std::size_t>(end_ - p) >= word.size() && std::memcmp(p, word.data(), word.size()) == 0;
  }

  // Reads a literal name.
  [[nodiscard]] const char* word(const char* p, std::string_view expected, Value meaning, Value& out) const {
    if (!has(p, expected)) fail(p, "expected a value");
    out = meaning;
    return p + expected.size();
  }

  const char* any(const char* p, std::size_t depth, Value& out) {
    p = skip_blanks(p);
    if (p == end_) fail(p, begin_ == end_ ? "empty: expected a JSON value" : "ends where a value is expected");
    switch (*p) {
      case '"': {
        std::string_view text;
        p = string(p, text);
        out = Value::string(text);
        return p;
      }
      case '{':
        return object(p, depth, out);
      case '[':
        return array(p, depth, out);
      case 't':
        return word(p, "true", Value::boolean(true), out);
      case 'f':
        return word(p, "false", Value::boolean(false), out);
      case 'n':
        return word(p, "null", {}, out);
      case '-':
        if (rules_.nan_and_infinity && has(p, "-Infinity")) {
          return word(p, "-Infinity", Value::number("-Infinity"), out);
        }
        return number(p, out);
      case 'N':
        if (rules_.nan_and_infinity) return word(p, "NaN", Value::number("NaN"), out);
        break;
      case 'I':
        if (rules_.nan_and_infinity) return word(p, "Infinity", Value::number("Infinity"), out);
        break;
      case '/':
        fail(p, "expected a value (JSON has no comments)");
      default:
        if (is_digit(*p)) return number(p, out);
    }
    fail(p, "expected a value");
  }

  static void enter(const char* p, std::size_t depth) {
    if (depth >= max_depth) {
      fail(p, "arrays and objects more than " + std::to_string(max_depth) + " deep");
    }
  }

  const char* array(const char* p, std::size_t depth, Value& out) {
    enter(p, depth);
    const std::size_t first = open_.size();
    p = skip_blanks(p + 1);
    if (p != end_ && *p == ']') {
      out = Value::array({});
      return p + 1;
    }
    for (;;) {
      Value value;
      p = skip_blanks(any(p, depth + 1, value));
      open_.push_back({{}, value});
      if (p == end_) fail(p, "ends inside an array");
      const char c = *p++;
      if (c == ']') break;
      if (c != ',') fail(p - 1, "expected ',' or ']'");
    }
    const std::size_t count = open_.size() - first;
    auto* elements = static_cast<Value*>(arena_.allocate(count * sizeof(Value), alignof(Value)));
    for (std::size_t i = 0; i < count; ++i) new (elements + i) Value(open_[first + i].value);
    open_.resize(first);
    out = Value::array({elements, count});
    return p;
  }

  const char* object(const char* p, std::size_t depth, Value& out) {
    enter(p, depth);
    const std::size_t first = open_.size();
    std::uint64_t seen = 0;  // A bit for each name so far; several may share one.
    p = skip_blanks(p + 1);
    if (p != end_ && *p == '}') {
      out = Value::object({});
      return p + 1;
    }
    for (;;) {
      p = skip_blanks(p);
      if (p == end_) fail(p, "ends inside an object");
      if (*p != '"') fail(p, "expected a name in quotes");
      const char* const name_at = p;
      std::string_view name;
      p = skip_blanks(string(p, name));
      if (p == end_ || *p != ':') fail(p, "expected ':'");
      Value value;
      p = skip_blanks(any(p + 1, depth + 1, value));
      const std::uint64_t bit = bit_of(name);
      if ((seen & bit) == 0 || !replaces(first, name, value, name_at)) open_.push_back({name, value});
      seen |= bit;
      if (p == end_) fail(p, "ends inside an object");
      const char c = *p++;
      if (c == '}') break;
      if (c != ',') fail(p - 1, "expected ',' or '}'");
    }
    std::span<Member> members = std::span(open_).subspan(first);
    if (members.size() > few) members = members.first(unite(members, p));
    if (rules_.index_names_first) json::index_names_first(members);
    out = Value::object(keep(std::span<const Member>(members), arena_));
    open_.resize(first);
    return p;
  }

  // Up to this many members are compared as they come; more are sorted at the object's end.
  static constexpr std::size_t few = 16;

  static std::uint64_t bit_of(std::string_view name) noexcept {
    if (name.empty()) return 1;
    const auto byte = [](char c) { return static_cast<std::size_t>(static_cast<unsigned char>(c)); };
    return std::uint64_t{1} << ((name.size() * 7 + byte(name.front()) * 3 + byte(name.back()) * 5) % 64);
  }

  [[noreturn]] static void twice(const char* at, std::string_view name) {
    fail(at, "the name " + text::quoted(name) + " occurs twice in one object; which of the two counts is not defined");
  }

  // If the object, whose members begin at `first`, has the name already, replaces its value, if allowed.
  bool replaces(std::size_t first, std::string_view name, Value value, const char* at) {
    const std::span<Member> earlier = std::span(open_).subspan(first);
    if (earlier.size() >= few) return false;  // Handled at the end.
    for (Member& other : earlier) {
      if (other.name != name) continue;
      if (rules_.unique_names) twice(at, name);
      other.value = value;
      return true;
    }
    return false;
  }

  std::size_t unite(std::span<Member> members, const char* p) {
    std::pmr::vector<std::uint32_t> order(members.size(), &arena_);
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
      const int c = members[a].name.compare(members[b].name);
      return c != 0 ? c < 0 : a < b;
    });
    // Equal names are adjacent, in the order of the text.
    std::pmr::vector<bool> dropped(members.size(), false, &arena_);
    bool any_dropped = false;
    for (std::size_t i = 0; i + 1 < order.size();) {
      std::size_t last = i;
      while (last + 1 < order.size() && members[order[last + 1]].name == members[order[i]].name) ++last;
      if (last != i) {
        if (rules_.unique_names) twice(p - 1, members[order[i]].name);
        members[order[i]].value = members[order[last]].value;
        for (std::size_t k = i + 1; k <= last; ++k) dropped[order[k]] = true;
        any_dropped = true;
      }
      i = last + 1;
    }
    if (!any_dropped) return members.size();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!dropped[i]) members[kept++] = members[i];
    }
    return kept;
  }

  const char* number(const char* p, Value& out) const {
    const char* const start = p;
    if (*p == '-') ++p;
    const char* const digits = p;
    while (p != end_ && is_digit(*p)) ++p;
    if (p == digits) fail(p, "expected a digit");
    if (*digits == '0' && p - digits > 1) fail(digits, "a number does not begin with 0");
    bool plain = true;
    if (p != end_ && *p == '.') {
      const char* const fraction = ++p;
      while (p != end_ && is_digit(*p)) ++p;
      if (p == fraction) fail(p, "expected a digit after the point");
    }
    if (p != end_ && (*p == 'e' || *p == 'E')) {
      plain = false;
      ++p;
      if (p != end_ && (*p == '+' || *p == '-')) ++p;
      const char* const exponent = p;
      while (p != end_ && is_digit(*p)) ++p;
      if (p == exponent) fail(p, "expected a digit in the exponent");
    }
    const std::string_view text(start, static_cast<std::size_t>(p - start));
    // Up to 15 digits without an exponent always survive as a double.
    if (rules_.exact_numbers && (!plain || text.size() > 15)) {
      if (std::string problem = inexact(text); !problem.empty()) fail(start, std::move(problem));
    }
    out = Value::number(text);
    return p;
  }

  // From its opening quote.
  const char* string(const char* p, std::string_view& out) {
    ++p;
    if (end_ - p >= step_bytes) {  // Most strings end in the first step.
      const std::ptrdiff_t plain = plain_before(specials(p));
      if (plain < step_bytes && p[plain] == '"') {
        out = {p, static_cast<std::size_t>(plain)};
        return p + plain + 1;
      }
    }
    return long_string(p, out);
  }

  [[gnu::noinline]] const char* long_string(const char* const start, std::string_view& out) {
    const char* p = start;
    for (;;) {
      for (std::ptrdiff_t plain = step_bytes; plain == step_bytes; p += plain) plain = plain_before(specials_from(p));
      const std::size_t length = other_character(p);
      if (length == 0) break;
      p += length;
    }
    if (*p == '\\') return escaped_string(start, p, out);
    out = {start, static_cast<std::size_t>(p - start)};
    return p + 1;
  }

  // specials() near the end of the text, which counts as special.
  [[nodiscard]] Mask specials_from(const char* p) const {
    if (end_ - p >= step_bytes) return specials(p);
    std::array<char, step_bytes> rest{};
    std::copy(p, end_, rest.begin());
    return specials(rest.data());
  }

  // The length of the character at a special place inside a string; 0 for a quote and a backslash.
  [[nodiscard]] std::size_t other_character(const char* p) const {
    if (p == end_) fail(p, "ends inside a string");
    if (*p == '"' || *p == '\\') return 0;
    if (static_cast<unsigned char>(*p) < 0x20) {
      fail(p, "a control character inside a string: it must be written as an escape");
    }
    const std::size_t length = utf8_sequence(p, end_);
    if (length == 0) fail(p, "invalid UTF-8");
    return length;
  }

  // The string that begins at `start` and has its first backslash at `p`.
  const char* escaped_string(const char* start, const char* p, std::string_view& out) {
    // A decoded escape is never longer than the escape. So each string has its own place in a buffer of the text's
    // size, and may write up to a step too far, into unused room.
    if (unescaped_ == nullptr) {
      unescaped_ = static_cast<char*>(arena_.allocate(static_cast<std::size_t>(end_ - begin_ + step_bytes), 1));
    }
    char* const first = unescaped_ + (start - begin_);
    char* o = std::copy(start, p, first);
    // Each step is examined once, for any number of escapes.
    const char* step = p;
    Mask mask = specials_from(step);
    for (;;) {
      const char* const special = step + plain_before(mask);
      if (end_ - p >= step_bytes) {
        std::memcpy(o, p, static_cast<std::size_t>(step_bytes));
      } else {
        std::copy(p, special, o);
      }
      o += special - p;
      p = special;
      if (mask != 0) {
        if (p == end_) fail(p, "ends inside a string");
        if (*p == '"') break;
        if (*p == '\\') {
          p = escape(p, o);
        } else {
          const std::size_t length = other_character(p);
          o = std::copy_n(p, length, o);
          p += length;
        }
        if (p - step < step_bytes) {
          mask &= ~Mask{0} << (p - step) * bits_per_byte;  // The rest of the step.
          continue;
        }
      }
      step = p;
      mask = specials_from(step);
    }
    out = {first, static_cast<std::size_t>(o - first)};
    return p + 1;
  }

  // Writes the value of the escape at p.
  const char* escape(const char* p, char*& o) const {
    const char* const at = p++;
    if (p == end_) fail(p, "ends inside a string");
    if (const char meant = short_escapes[static_cast<unsigned char>(*p)]; meant != 0) {
      *o++ = meant;
      return p + 1;
    }
    if (*p++ != 'u') fail(at, "unknown escape: the known ones are \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    std::uint32_t unit = hex4(p, at);
    p += 4;
    if (unit >= 0xD800 && unit < 0xDC00 && end_ - p >= 2 && p[0] == '\\' && p[1] == 'u') {
      const std::uint32_t low = hex4(p + 2, p);
      if (low >= 0xDC00 && low < 0xE000) {
        unit = 0x10000 + ((unit - 0xD800) << 10U) + (low - 0xDC00);
        p += 6;
      }
    }
    if (unit >= 0xD800 && unit < 0xE000 && !rules_.lone_surrogates) {
      fail(at, "half a surrogate pair: it stands for no character");
    }
    o = put_utf8(unit, o);
    return p;
  }

  [[nodiscard]] std::uint32_t hex4(const char* p, const char* at) const {
    if (end_ - p < 4) fail(at, "expected four hexadecimal digits after \\u");
    std::uint32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = digit_value(*p++);
      if (digit < 0) fail(at, "expected four hexadecimal digits after \\u");
      unit = unit << 4U | static_cast<std::uint32_t>(digit);
    }
    return unit;
  }

  const char* begin_;
  const char* end_;
  const Rules& rules_;
  Arena& arena_;
  char* unescaped_ = nullptr;      // Room for strings with escapes, made for the first of them.
  std::pmr::vector<Member> open_;  // The children of all open containers.
};

}  // namespace

Value parse(std::string_view text, const Rules& rules, Arena& arena, std::string_view what) {
  try {
    return Parser(text, rules, arena).document();
  } catch (const Failure& failure) {
    const auto offset = static_cast<std::size_t>(failure.at - text.data());
    const std::string_view before = text.substr(0, offset);
    const auto line = std::ranges::count(before, '\n') + 1;
    const std::size_t column = offset - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0.
    throw Exception(ErrorKind::misuse, std::string(what) + " is not acceptable JSON: line " + std::to_string(line) +
                                           ", byte " + std::to_string(column) + " of it: " + failure.problem);
  }
}

bool try_parse(std::string_view text, const Rules& rules, Arena& arena, Value& value) {
  try {
    value = Parser(text, rules, arena).document();
    return true;
  } catch (const Failure&) {
    return false;
  }
}

void index_names_first(std::span<Member> members) {
  const auto is_index = [](const Member& m) { return array_index(m.name).has_value(); };
  if (std::ranges::none_of(members, is_index)) return;
  const auto rest = std::ranges::stable_partition(members, is_index);
  std::ranges::sort(members.first(members.size() - rest.size()), {},
                    [](const Member& m) { return *array_index(m.name); });
}

std::string_view keep(std::string_view text, Arena& arena) {
  const auto kept = copy_to(std::span<const char>(text), arena);
  return {kept.data(), kept.size()};
}

std::span<const Value> keep(std::span<const Value> values, Arena& arena) { return copy_to(values, arena); }
std::span<const Member> keep(std::span<const Member> members, Arena& arena) { return copy_to(members, arena); }

}  // namespace once::text::json
