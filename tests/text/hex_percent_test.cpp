#include <gtest/gtest.h>

#include <string>

#include "text/hex.hpp"
#include "text/percent.hpp"

namespace once::text {
namespace hex_percent_test {

TEST(Hex, PairsOfDigits) {
  EXPECT_EQ(from_hex("00fF61"), std::string("\0\xff\x61", 3));
  EXPECT_EQ(from_hex(""), "");
  for (const char* text : {"0", "0g", "g0", "000", " 0", "0x", "+1"}) EXPECT_EQ(from_hex(text), std::nullopt) << text;
  std::string digits;
  append_hex(digits, '\xAF');
  append_hex(digits, '\xAF', upper_digits);
  EXPECT_EQ(digits, "afAF");
}

TEST(Percent, WritesCapitals) {
  EXPECT_EQ(percent_encoded("AZaz09-._~/% \x7F\xC3\xA9", is_unreserved), "AZaz09-._~%2F%25%20%7F%C3%A9");
  EXPECT_EQ(percent_encoded(std::string_view("\0\xFF", 2), is_unreserved), "%00%FF");
}

TEST(Percent, AnEscapeHasTwoDigits) {
  EXPECT_EQ(percent_decoded("%2fa%2F%25%00"), std::string("/a/%\0", 5));
  EXPECT_EQ(percent_decoded("%2541"), "%41") << "once";
  for (const char* text : {"%", "a%", "%2", "a%2", "%g0", "%0g", "%%41", "%+1", "% 1", "%2\n"}) {
    EXPECT_EQ(percent_decoded(text), std::nullopt) << text;
    EXPECT_TRUE(has_broken_percent(text)) << text;
  }
  EXPECT_EQ(percent_decoded("%2F%41%", [](char c) { return c != '/'; }), "%2FA%");
}

}  // namespace hex_percent_test
}  // namespace once::text
