#include "keys/json.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <vector>

#include "keys/number.hpp"
#include "keys/text.hpp"

namespace once::keys::json {

Value Value::boolean(bool value) noexcept {
  Value v;
  v.kind_ = Kind::boolean;
  v.truth_ = value;
  return v;
}

Value Value::number(std::string_view text) noexcept {
  Value v = string(text);
  v.kind_ = Kind::number;
  return v;
}

Value Value::string(std::string_view bytes) noexcept {
  Value v;
  v.kind_ = Kind::string;
  v.size_ = static_cast<std::uint32_t>(bytes.size());
  v.data_.chars = bytes.data();
  return v;
}

Value Value::array(std::span<const Value> elements) noexcept {
  Value v;
  v.kind_ = Kind::array;
  v.size_ = static_cast<std::uint32_t>(elements.size());
  v.data_.elements = elements.data();
  return v;
}

Value Value::object(std::span<const Member> members) noexcept {
  Value v;
  v.kind_ = Kind::object;
  v.size_ = static_cast<std::uint32_t>(members.size());
  v.data_.members = members.data();
  return v;
}

Value Value::member(std::string_view name) const noexcept {
  if (kind_ == Kind::object) {
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
  T* out = static_cast<T*>(arena.allocate(items.size_bytes(), alignof(T)));
  std::uninitialized_copy(items.begin(), items.end(), out);
  return {out, items.size()};
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Where the plain part of a string may end among the bytes of one step: at a quote, a backslash, a control character,
// or anything outside ASCII. step_bytes: nowhere.
#ifdef __SSE2__
constexpr std::ptrdiff_t step_bytes = 16;

std::ptrdiff_t first_special(const char* bytes) {
  const __m128i step = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  // Compared as signed numbers, what is outside ASCII is below a blank as well.
  const __m128i found = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(step, _mm_set1_epi8('"')),  //
                                                  _mm_cmpeq_epi8(step, _mm_set1_epi8('\\'))),
                                     _mm_cmplt_epi8(step, _mm_set1_epi8(' ')));
  return std::countr_zero(static_cast<unsigned>(_mm_movemask_epi8(found)) | 1U << step_bytes);
}
#else
constexpr std::ptrdiff_t step_bytes = 8;

// Each test sets the high bit of the bytes it finds, and perhaps of bytes above those: the lowest is always right.
std::ptrdiff_t first_special(const char* bytes) {
  constexpr std::uint64_t ones = 0x0101010101010101U;
  constexpr std::uint64_t high = 0x8080808080808080U;
  std::uint64_t step = 0;
  for (unsigned i = 0; i < step_bytes; ++i) step |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  const std::uint64_t quote = step ^ (ones * '"');
  const std::uint64_t backslash = step ^ (ones * '\\');
  return std::countr_zero(((quote - ones) | (backslash - ones) | (step - ones * 0x20U) | step) & high) / 8;
}
#endif

struct Failure {
  const char* at;
  std::string problem;
};

class Parser {
 public:
  Parser(std::string_view text, const Rules& rules, Arena& arena)
      : begin_(text.data()), p_(begin_), end_(begin_ + text.size()), rules_(rules), arena_(arena), open_(&arena) {}

  Value document() {
    if (static_cast<std::size_t>(end_ - begin_) > max_event_bytes) fail(begin_, "longer than 256 MiB");
    open_.reserve(48);
    const Value value = any(0);
    skip_blanks();
    if (p_ != end_) fail(p_, "something follows the end of the JSON value");
    return value;
  }

 private:
  [[noreturn]] static void fail(const char* at, std::string problem) { throw Failure{at, std::move(problem)}; }

  void skip_blanks() {
    if (p_ != end_ && *p_ > ' ') return;  // Most often there are none.
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  bool take(std::string_view word) {
    if (static_cast<std::size_t>(end_ - p_) < word.size() || std::memcmp(p_, word.data(), word.size()) != 0) {
      return false;
    }
    p_ += word.size();
    return true;
  }

  Value any(std::size_t depth) {
    skip_blanks();
    if (p_ == end_) fail(p_, begin_ == end_ ? "empty: expected a JSON value" : "ends where a value is expected");
    switch (*p_) {
      case '"':
        return Value::string(string());
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case 't':
        if (take("true")) return Value::boolean(true);
        break;
      case 'f':
        if (take("false")) return Value::boolean(false);
        break;
      case 'n':
        if (take("null")) return {};
        break;
      case '-':
        if (rules_.nan_and_infinity && take("-Infinity")) return Value::number("-Infinity");
        return number();
      case 'N':
        if (rules_.nan_and_infinity && take("NaN")) return Value::number("NaN");
        break;
      case 'I':
        if (rules_.nan_and_infinity && take("Infinity")) return Value::number("Infinity");
        break;
      case '/':
        fail(p_, "expected a value (JSON has no comments)");
      default:
        if (is_digit(*p_)) return number();
    }
    fail(p_, "expected a value");
  }

  void enter(std::size_t depth) const {
    if (depth >= max_event_depth) {
      fail(p_, "arrays and objects more than " + std::to_string(max_event_depth) + " deep");
    }
  }

  Value array(std::size_t depth) {
    enter(depth);
    ++p_;
    const std::size_t first = open_.size();
    skip_blanks();
    if (p_ != end_ && *p_ == ']') {
      ++p_;
      return Value::array({});
    }
    for (;;) {
      const Value value = any(depth + 1);
      open_.push_back({{}, value});
      skip_blanks();
      if (p_ == end_) fail(p_, "ends inside an array");
      const char c = *p_++;
      if (c == ']') break;
      if (c != ',') fail(p_ - 1, "expected ',' or ']'");
    }
    const std::size_t count = open_.size() - first;
    auto* out = static_cast<Value*>(arena_.allocate(count * sizeof(Value), alignof(Value)));
    for (std::size_t i = 0; i < count; ++i) new (out + i) Value(open_[first + i].value);
    open_.resize(first);
    return Value::array({out, count});
  }

  Value object(std::size_t depth) {
    enter(depth);
    ++p_;
    const std::size_t first = open_.size();
    skip_blanks();
    if (p_ != end_ && *p_ == '}') {
      ++p_;
      return Value::object({});
    }
    for (;;) {
      skip_blanks();
      if (p_ == end_) fail(p_, "ends inside an object");
      if (*p_ != '"') fail(p_, "expected a name in quotes");
      const char* const name_at = p_;
      const std::string_view name = string();
      skip_blanks();
      if (p_ == end_ || *p_ != ':') fail(p_, "expected ':'");
      ++p_;
      const Value value = any(depth + 1);
      add(first, name, value, name_at);
      skip_blanks();
      if (p_ == end_) fail(p_, "ends inside an object");
      const char c = *p_++;
      if (c == '}') break;
      if (c != ',') fail(p_ - 1, "expected ',' or '}'");
    }
    std::span<Member> members = std::span(open_).subspan(first);
    if (members.size() > few) members = members.first(unite(members));
    if (rules_.index_names_first) json::index_names_first(members);
    const Value value = Value::object(keep(std::span<const Member>(members), arena_));
    open_.resize(first);
    return value;
  }

  // Up to this many members are compared with each other as they come; more are sorted when the object ends.
  static constexpr std::size_t few = 16;

  [[noreturn]] static void twice(const char* at, std::string_view name) {
    fail(at, "the name " + quoted(name) + " occurs twice in one object; which of the two counts is not defined");
  }

  void add(std::size_t first, std::string_view name, Value value, const char* at) {
    const std::span<Member> earlier = std::span(open_).subspan(first);
    if (earlier.size() < few) {
      for (Member& other : earlier) {
        if (other.name != name) continue;
        if (rules_.unique_names) twice(at, name);
        other.value = value;
        return;
      }
    }
    open_.push_back({name, value});
  }

  std::size_t unite(std::span<Member> members) {
    std::pmr::vector<std::uint32_t> order(members.size(), &arena_);
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
      const int c = members[a].name.compare(members[b].name);
      return c != 0 ? c < 0 : a < b;
    });
    // Equal names stand side by side, in the order of the text.
    std::pmr::vector<bool> dropped(members.size(), false, &arena_);
    bool any_dropped = false;
    for (std::size_t i = 0; i + 1 < order.size();) {
      std::size_t last = i;
      while (last + 1 < order.size() && members[order[last + 1]].name == members[order[i]].name) ++last;
      if (last != i) {
        if (rules_.unique_names) twice(p_ - 1, members[order[i]].name);
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

  Value number() {
    const char* const start = p_;
    if (*p_ == '-') ++p_;
    const char* const digits = p_;
    while (p_ != end_ && is_digit(*p_)) ++p_;
    if (p_ == digits) fail(p_, "expected a digit");
    if (*digits == '0' && p_ - digits > 1) fail(digits, "a number does not begin with 0");
    bool plain = true;
    if (p_ != end_ && *p_ == '.') {
      const char* const fraction = ++p_;
      while (p_ != end_ && is_digit(*p_)) ++p_;
      if (p_ == fraction) fail(p_, "expected a digit after the point");
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      plain = false;
      ++p_;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      const char* const exponent = p_;
      while (p_ != end_ && is_digit(*p_)) ++p_;
      if (p_ == exponent) fail(p_, "expected a digit in the exponent");
    }
    const std::string_view text(start, static_cast<std::size_t>(p_ - start));
    // Up to 15 digits without an exponent always survive as a double.
    if (rules_.exact_numbers && (!plain || text.size() > 15)) {
      if (std::string problem = inexact(text); !problem.empty()) fail(start, std::move(problem));
    }
    return Value::number(text);
  }

  std::string_view string() {
    const char* const start = ++p_;
    if (end_ - p_ >= step_bytes) {  // Most strings end within the first step.
      const std::ptrdiff_t plain = first_special(p_);
      if (plain < step_bytes && p_[plain] == '"') {
        p_ += plain + 1;
        return {start, static_cast<std::size_t>(plain)};
      }
    }
    plain_part();
    if (p_ != end_ && *p_ == '"') {
      const std::string_view text(start, static_cast<std::size_t>(p_ - start));
      ++p_;
      return text;
    }
    return escaped_string(start);
  }

  // To the next quote or backslash; checks what is in between.
  void plain_part() {
    for (;;) {
      while (end_ - p_ >= step_bytes) {
        const std::ptrdiff_t plain = first_special(p_);
        p_ += plain;
        if (plain < step_bytes) break;
      }
      if (p_ == end_) fail(p_, "ends inside a string");
      const auto c = static_cast<unsigned char>(*p_);
      if (c == '"' || c == '\\') return;
      if (c < 0x20) fail(p_, "a control character inside a string: it must be written as an escape");
      const std::size_t length = utf8_sequence(p_, end_);
      if (length == 0) fail(p_, "invalid UTF-8");
      p_ += length;
    }
  }

  std::string_view escaped_string(const char* start) {
    // What an escape stands for is never longer than the escape, so the rest of the string has room enough; its end
    // is looked for first, so that many strings do not each reserve the rest of the text.
    const char* close = p_;
    while (close != end_ && *close != '"') {
      const bool escape = *close == '\\';
      close += escape && end_ - close > 1 ? 2 : 1;
      while (end_ - close >= step_bytes) {
        const std::ptrdiff_t plain = first_special(close);
        close += plain;
        if (plain < step_bytes) break;
      }
    }
    const auto room = static_cast<std::size_t>(close - start);
    char* const out = static_cast<char*>(arena_.allocate(room == 0 ? 1 : room, 1));
    char* o = out;
    for (;;) {
      std::memcpy(o, start, static_cast<std::size_t>(p_ - start));
      o += p_ - start;
      if (p_ == end_) fail(p_, "ends inside a string");
      if (*p_++ == '"') return {out, static_cast<std::size_t>(o - out)};
      o = escape(o, p_ - 1);
      start = p_;
      plain_part();
    }
  }

  char* escape(char* o, const char* at) {
    if (p_ == end_) fail(p_, "ends inside a string");
    switch (*p_++) {
      case '"':
        *o++ = '"';
        return o;
      case '\\':
        *o++ = '\\';
        return o;
      case '/':
        *o++ = '/';
        return o;
      case 'b':
        *o++ = '\b';
        return o;
      case 'f':
        *o++ = '\f';
        return o;
      case 'n':
        *o++ = '\n';
        return o;
      case 'r':
        *o++ = '\r';
        return o;
      case 't':
        *o++ = '\t';
        return o;
      case 'u':
        break;
      default:
        fail(at, "unknown escape: the known ones are \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    }
    std::uint32_t unit = hex4(at);
    if (unit >= 0xD800 && unit < 0xDC00 && end_ - p_ >= 2 && p_[0] == '\\' && p_[1] == 'u') {
      const char* const second = p_;
      p_ += 2;
      const std::uint32_t low = hex4(second);
      if (low >= 0xDC00 && low < 0xE000) {
        unit = 0x10000 + ((unit - 0xD800) << 10U) + (low - 0xDC00);
      } else {
        p_ = second;
      }
    }
    if (unit >= 0xD800 && unit < 0xE000 && !rules_.lone_surrogates) {
      fail(at, "half a surrogate pair: it stands for no character");
    }
    return put_utf8(unit, o);
  }

  std::uint32_t hex4(const char* at) {
    if (end_ - p_ < 4) fail(at, "expected four hexadecimal digits after \\u");
    std::uint32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = *p_++;
      unit <<= 4U;
      if (is_digit(c)) {
        unit += static_cast<std::uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        unit += static_cast<std::uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        unit += static_cast<std::uint32_t>(c - 'A' + 10);
      } else {
        fail(at, "expected four hexadecimal digits after \\u");
      }
    }
    return unit;
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  const Rules& rules_;
  Arena& arena_;
  std::pmr::vector<Member> open_;  // The children of all containers that have not ended yet.
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

}  // namespace once::keys::json
