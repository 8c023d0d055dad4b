// Converts values to the bytes of a result, and back.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include <once/error.hpp>
#include <once/rounding.hpp>

namespace once {

// Specialise for your own types:
//
//   template <>
//   struct once::Codec<Receipt> {
//     static constexpr std::string_view content_type = "application/x-receipt";
//     static std::string encode(const Receipt&);
//     static Receipt decode(std::string_view bytes);
//     static constexpr std::string_view names = "id, cents";
//   };
//
// encode() throws Exception(misuse) for a value that has no encoding. decode() throws Exception(corrupt) for bytes that
// encode() did not return.
//
// `names` is optional. It lists all member names that the JSON of any value can have at the top level. An expression of
// once::Operation with another name there is refused when the idempotent object is made. Leave it out if the names
// depend on the value (maps, variants, optional members). Names below the top level are checked when it is called.
//
// <once/codec_json.hpp> has one for every type that nlohmann::json can convert.
template <class T>
struct Codec;

// Strings and bytes as they are.
template <>
struct Codec<std::string> {
  static constexpr std::string_view content_type = "";                              // Plain bytes.
  static std::string encode(std::string value) { return value; }                    // The string itself.
  static std::string decode(std::string_view bytes) { return std::string(bytes); }  // A copy.
};

// The same bytes as for a std::string.
template <>
struct Codec<std::vector<std::byte>> {
  static constexpr std::string_view content_type = "";  // Plain bytes.
  // Copies the bytes.
  static std::string encode(const std::vector<std::byte>& value) {
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  // Accepts any bytes.
  static std::vector<std::byte> decode(std::string_view bytes) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    return {first, first + bytes.size()};
  }
};

// As JSON.
template <>
struct Codec<bool> {
  static constexpr std::string_view content_type = "application/json";  // An argument is read as JSON.
  // The word true or false.
  static std::string encode(bool value) { return value ? "true" : "false"; }
  // Throws Exception(corrupt) for other text than these two words.
  static bool decode(std::string_view bytes) {
    if (bytes != "true" && bytes != "false") throw Exception(ErrorKind::corrupt, "the stored result is no bool");
    return bytes == "true";
  }
};

namespace detail {
template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
                 !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
                 !std::is_same_v<T, char32_t> && !std::is_same_v<T, long double>;
}  // namespace detail

// Numbers as JSON, exact to the last bit. Infinities and NaN have no JSON: Exception(misuse).
template <detail::Number T>
struct Codec<T> {
  static constexpr std::string_view content_type = "application/json";  // An argument is read as JSON.
  // The shortest text that decode() reads as the same number, whatever the locale.
  static std::string encode(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      constexpr T most = std::numeric_limits<T>::max();  // std::isfinite() without <cmath>, which is slow to compile.
      if (!(value >= -most && value <= most)) throw Exception(ErrorKind::misuse, "infinity and NaN cannot be encoded");
    }
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }
  // Throws Exception(corrupt) for other text, blanks around the number, and one that is out of T's range.
  static T decode(std::string_view bytes) {
    const detail::RoundToNearest rounding;
    T value{};
    const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), value);
    if (error != std::errc{} || end != bytes.data() + bytes.size()) {
      throw Exception(ErrorKind::corrupt, "the stored result is no number of the expected type");
    }
    return value;
  }
};

// What an argument needs that a key is taken from: only encoding.
template <class T>
concept Encodable = requires(const T& value) {
  { Codec<T>::encode(value) } -> std::convertible_to<std::string>;
  { Codec<T>::content_type } -> std::convertible_to<std::string_view>;
};

// What a result needs: both directions.
template <class T>
concept Codable = requires(const T& value, std::string_view bytes) {
  { Codec<T>::encode(value) } -> std::convertible_to<std::string>;
  { Codec<T>::decode(bytes) } -> std::convertible_to<T>;
  { Codec<T>::content_type } -> std::convertible_to<std::string_view>;
};

}  // namespace once
