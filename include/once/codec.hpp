// How a value becomes the bytes of a result, and comes back from them.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace once {

// Specialise for your own types:
//
//   template <>
//   struct once::Codec<Receipt> {
//     static constexpr std::string_view content_type = "application/x-receipt";
//     static std::string encode(const Receipt&);
//     static Receipt decode(std::string_view bytes);  // Throw Exception(corrupt) for bytes that encode() did not give.
//   };
//
// <once/codec_json.hpp> has one for every type that nlohmann::json can convert.
template <class T>
struct Codec;

// Strings and bytes as they are.
template <>
struct Codec<std::string> {
  static constexpr std::string_view content_type = "";
  static std::string encode(std::string value) { return value; }
  static std::string decode(std::string_view bytes) { return std::string(bytes); }
};

template <class T>
concept Codable = requires(const T& value, std::string_view bytes) {
  { Codec<T>::encode(value) } -> std::convertible_to<std::string>;
  { Codec<T>::decode(bytes) } -> std::convertible_to<T>;
  { Codec<T>::content_type } -> std::convertible_to<std::string_view>;
};

}  // namespace once
