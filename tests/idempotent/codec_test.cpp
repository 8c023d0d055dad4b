#include <once/codec.hpp>

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <once/codec_json.hpp>

namespace codec_test {

template <class T>
T there_and_back(const T& value) {
  return once::Codec<T>::decode(once::Codec<T>::encode(value));
}

template <class T>
once::ErrorKind refusal(std::string_view bytes) {
  try {
    static_cast<void>(once::Codec<T>::decode(bytes));
  } catch (const once::Exception& error) {
    return error.kind();
  }
  ADD_FAILURE() << "decoded '" << bytes << "'";
  return once::ErrorKind::misuse;
}

TEST(Codec, KeepsStringsAndBytesAsTheyAre) {
  const std::string text("a\0\xff\n", 4);
  EXPECT_EQ(once::Codec<std::string>::encode(text), text);
  EXPECT_EQ(there_and_back(text), text);
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{0xFF}, std::byte{'a'}};
  EXPECT_EQ(once::Codec<std::vector<std::byte>>::encode(bytes), std::string("\0\xff"
                                                                            "a",
                                                                            3));
  EXPECT_EQ(there_and_back(bytes), bytes);
  EXPECT_EQ(there_and_back(std::vector<std::byte>{}), std::vector<std::byte>{});
}

TEST(Codec, WritesNumbersAsExactJson) {
  EXPECT_EQ(once::Codec<int>::encode(-5), "-5");
  EXPECT_EQ(once::Codec<bool>::encode(true), "true");
  EXPECT_EQ(once::Codec<double>::encode(0.5), "0.5");
  for (const std::int64_t value :
       {std::numeric_limits<std::int64_t>::min(), std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(there_and_back(value), value);
    EXPECT_EQ(nlohmann::json::parse(once::Codec<std::int64_t>::encode(value)).get<std::int64_t>(), value);
  }
  for (const double value : {std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max(), 0.1, -0.0,
                             1e300, 123456789.125}) {
    EXPECT_EQ(there_and_back(value), value);
    EXPECT_EQ(nlohmann::json::parse(once::Codec<double>::encode(value)).get<double>(), value);
  }
  EXPECT_EQ(there_and_back<std::uint8_t>(255), 255);
  EXPECT_TRUE(there_and_back(true));
  EXPECT_FALSE(there_and_back(false));
}

TEST(Codec, ReadsToNearestInEveryRoundingMode) {
  const int before = std::fegetround();
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const double number = once::Codec<double>::decode("1234567.89");
    const auto json = once::Codec<std::vector<double>>::decode("[1234567.89, 2.675]");
    const std::string text = once::Codec<double>::encode(1234567.89);
    const int after = std::fegetround();
    std::fesetround(before);
    EXPECT_EQ(number, 1234567.89);
    EXPECT_EQ(json, (std::vector<double>{1234567.89, 2.675}));
    EXPECT_EQ(text, "1234567.89");
    EXPECT_EQ(after, mode) << "the caller's";
  }
}

TEST(Codec, RefusesWhatIsNoNumber) {
  EXPECT_EQ(refusal<int>(""), once::ErrorKind::corrupt);
  EXPECT_EQ(refusal<int>("12x"), once::ErrorKind::corrupt);
  EXPECT_EQ(refusal<int>(" 1"), once::ErrorKind::corrupt);
  EXPECT_EQ(refusal<std::uint8_t>("256"), once::ErrorKind::corrupt);
  EXPECT_EQ(refusal<bool>("1"), once::ErrorKind::corrupt);
  EXPECT_THROW(once::Codec<double>::encode(std::numeric_limits<double>::infinity()), once::Exception);
  EXPECT_THROW(once::Codec<double>::encode(std::numeric_limits<double>::quiet_NaN()), once::Exception);
}

TEST(Codec, WritesOtherTypesAsJson) {
  using Map = std::map<std::string, std::vector<int>>;
  EXPECT_EQ(once::Codec<Map>::encode({{"b", {1, 2}}, {"a", {}}}), R"({"a":[],"b":[1,2]})");
  EXPECT_EQ(there_and_back(Map{{"b", {1, 2}}}), (Map{{"b", {1, 2}}}));
  EXPECT_EQ(once::Codec<Map>::content_type, "application/json");
  EXPECT_EQ(refusal<Map>("[1"), once::ErrorKind::corrupt);
  EXPECT_EQ(refusal<Map>("[1]"), once::ErrorKind::corrupt);
  EXPECT_THROW(once::Codec<Map>::encode({{"\xff", {}}}), once::Exception);
  EXPECT_EQ(there_and_back(nlohmann::json{{"a", 1}}), (nlohmann::json{{"a", 1}}));
}

}  // namespace codec_test
