// A once::Codec for every type that nlohmann::json converts: results and arguments of your own types as JSON.
//
//   struct Receipt { std::string id; std::int64_t cents; };
//   NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, id, cents)
//
// Needs nlohmann::json 3.11 or later; the component is once::json. Strings, bytes, bool and numbers keep the codecs of
// once/codec.hpp. A specialisation of once::Codec for a type of your own is preferred to this one.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <once/codec.hpp>
#include <once/error.hpp>

namespace once {

namespace detail {
template <class T>
concept ToJson = !Number<T> && requires(const T& value) { nlohmann::json(value); };
template <class T>
concept FromJson = requires(const nlohmann::json& json) {
  { json.get<T>() } -> std::same_as<T>;
};
}  // namespace detail

template <detail::ToJson T>
struct Codec<T> {
  static constexpr std::string_view content_type = "application/json";

  // Throws Exception(misuse) for strings that are not UTF-8, and what to_json throws.
  static std::string encode(const T& value) {
    const nlohmann::json json(value);
    try {
      return json.dump();
    } catch (const nlohmann::json::exception& error) {
      throw Exception(ErrorKind::misuse, std::string("cannot be written as JSON: ") + error.what());
    }
  }

  // Throws Exception(corrupt) for what is no JSON or does not fit the type.
  static T decode(std::string_view bytes)
    requires detail::FromJson<T>
  {
    try {
      return nlohmann::json::parse(bytes).get<T>();
    } catch (const nlohmann::json::exception& error) {
      throw Exception(ErrorKind::corrupt, std::string("the stored result does not fit its type: ") + error.what());
    }
  }
};

}  // namespace once
