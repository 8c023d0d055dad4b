// A JSON text as a tree that keeps everything keys depend on: the text of numbers, the order of members, and lone
// surrogates where a dialect allows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>

namespace once::text::json {

// Of a parsed text.
inline constexpr std::size_t max_bytes = std::size_t{1} << 28;
inline constexpr std::size_t max_depth = 512;  // Nested arrays and objects.

using Arena = std::pmr::memory_resource;  // Owns everything that a tree points to, except the input text.

enum class Kind : std::uint8_t { null, boolean, number, string, array, object };

struct Member;

// Trivially copyable; points into the arena or the input. Two words, each written and read as a whole, because the
// processor stalls when it reads a word that was written in pieces.
class Value {
 public:
  Value() = default;
  static Value boolean(bool value) noexcept { return {Kind::boolean, value ? 1U : 0U, nullptr}; }
  // The text of a JSON number, or NaN, Infinity, -Infinity.
  static Value number(std::string_view text) noexcept { return {Kind::number, text.size(), text.data()}; }
  // UTF-8; lone surrogates as the three bytes that UTF-8 would have for them.
  static Value string(std::string_view bytes) noexcept { return {Kind::string, bytes.size(), bytes.data()}; }
  static Value array(std::span<const Value> elements) noexcept {
    return {Kind::array, elements.size(), elements.data()};
  }
  static Value object(std::span<const Member> members) noexcept;

  [[nodiscard]] Kind kind() const noexcept { return static_cast<Kind>(head_ % 8); }
  [[nodiscard]] bool is_null() const noexcept { return kind() == Kind::null; }
  [[nodiscard]] bool truth() const noexcept { return size() != 0; }  // boolean
  [[nodiscard]] std::string_view text() const noexcept {
    return {static_cast<const char*>(data_), size()};
  }  // number, string
  [[nodiscard]] std::string_view string_or_empty() const noexcept {
    return kind() == Kind::string ? text() : std::string_view();
  }
  [[nodiscard]] std::span<const Value> elements() const noexcept { return {static_cast<const Value*>(data_), size()}; }
  [[nodiscard]] std::span<const Member> members() const noexcept;

  // The member of that name; a null value if there is none or this is not an object.
  [[nodiscard]] Value member(std::string_view name) const noexcept;

  // What the program notes about a value, 0 to 31. Copies keep it; parsed and new values have 0.
  [[nodiscard]] unsigned mark() const noexcept { return static_cast<unsigned>(head_ / 8 % 32); }
  [[nodiscard]] Value marked(unsigned mark) const noexcept {
    Value copy = *this;
    copy.head_ = (head_ & ~std::uint64_t{31 * 8}) | std::uint64_t{mark % 32} * 8;
    return copy;
  }

 private:
  Value(Kind kind, std::size_t size, const void* data) noexcept
      : head_(static_cast<std::uint64_t>(kind) | std::uint64_t{size} << 8U), data_(data) {}
  [[nodiscard]] std::size_t size() const noexcept { return head_ >> 8U; }

  std::uint64_t head_ = 0;  // The kind, above it the mark, and the size; null is 0.
  const void* data_ = nullptr;
};

struct Member {
  std::string_view name;
  Value value;
};

inline Value Value::object(std::span<const Member> members) noexcept {
  return {Kind::object, members.size(), members.data()};
}
inline std::span<const Member> Value::members() const noexcept { return {static_cast<const Member*>(data_), size()}; }

struct Rules {
  bool unique_names = true;      // Otherwise the last of two members is used, in the place of the first.
  bool exact_numbers = true;     // Numbers that a double would change are refused: see check_exact() in number.hpp.
  bool lone_surrogates = false;  // Allowed as \ud800 escapes.
  bool nan_and_infinity = false;
  bool index_names_first = false;  // Members named 0 to 4294967294 come first, by number, as in ECMAScript.
};

// Throws Exception(misuse) with the place; `what` names the text in the message ("the event").
Value parse(std::string_view text, const Rules& rules, Arena& arena, std::string_view what);

// False instead of an exception, for asking whether a text is JSON.
bool try_parse(std::string_view text, const Rules& rules, Arena& arena, Value& value);

// Applies Rules::index_names_first to a new object.
void index_names_first(std::span<Member> members);

// A copy in the arena.
std::string_view keep(std::string_view text, Arena& arena);
std::span<const Value> keep(std::span<const Value> values, Arena& arena);
std::span<const Member> keep(std::span<const Member> members, Arena& arena);

}  // namespace once::text::json
