// A once::Codec for every type that nlohmann::json converts: your own types as JSON.
//
//   struct Receipt { std::string id; std::int64_t cents; };
//   NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, id, cents)
//
// ONCE_JSON(Receipt, id, cents) does the same, and also lists the names. Then an expression with a mistyped name is
// refused when the idempotent object is made, not only when it is called. For a type with its own to_json, write a
// function
//   constexpr std::string_view once_json_names(std::type_identity<Receipt>) { return "id, cents"; }
// in its namespace. Without either, the names are not known: a to_json may give each value other names.
//
// Needs nlohmann::json 3.11 or later; the component is once::json. Strings, bytes, bool and numbers keep the codecs of
// once/codec.hpp. A specialisation of once::Codec for a type of your own is preferred to this one.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include <nlohmann/json.hpp>

#include <once/codec.hpp>
#include <once/error.hpp>
#include <once/rounding.hpp>

#define ONCE_JSON(Type, ...)                            \
  NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Type, __VA_ARGS__) \
  [[maybe_unused]] constexpr std::string_view once_json_names(std::type_identity<Type>) { return #__VA_ARGS__; }

namespace once {

namespace detail {
template <class T>
concept ToJson = !Number<T> && requires(const T& value) { nlohmann::json(value); };
template <class T>
concept FromJson = requires(const nlohmann::json& json) {
  { json.get<T>() } -> std::same_as<T>;
};

template <class T>
concept NamesKnown = requires(std::type_identity<T> type) {
  { once_json_names(type) } -> std::convertible_to<std::string_view>;
};

template <class T>
struct JsonNames {};
template <NamesKnown T>
struct JsonNames<T> {
  static constexpr std::string_view names = once_json_names(std::type_identity<T>{});
};
}  // namespace detail

template <detail::ToJson T>
struct Codec<T> : detail::JsonNames<T> {
  static constexpr std::string_view content_type = "application/json";

  // Throws Exception(misuse) for strings that are not UTF-8, and the exceptions of to_json.
  static std::string encode(const T& value) {
    const nlohmann::json json(value);
    try {
      return json.dump();
    } catch (const nlohmann::json::exception& error) {
      throw Exception(ErrorKind::misuse, std::string("cannot be written as JSON: ") + error.what());
    }
  }

  // Throws Exception(corrupt) for bytes that are not JSON or do not fit the type.
  static T decode(std::string_view bytes)
    requires detail::FromJson<T>
  {
    const detail::RoundToNearest rounding;
    try {
      return nlohmann::json::parse(bytes).get<T>();
    } catch (const nlohmann::json::exception& error) {
      throw Exception(ErrorKind::corrupt, std::string("the stored result does not fit its type: ") + error.what());
    }
  }
};

}  // namespace once
