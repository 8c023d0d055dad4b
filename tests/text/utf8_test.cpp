#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace once::text {
namespace utf8_test {

TEST(Utf8, Utf16Order) {
  const std::vector<std::string> sorted{"",           "a",           "ab",           "b",
                                        "\u00E9",     "\uD7FF",      "\xED\xA0\xBC", "\U00010000",
                                        "\U0001F600", "\U0001F600a", "\xED\xA1\x80", "\xED\xBF\xBF",
                                        "\uE000",     "\uFFFF"};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t k = 0; k < sorted.size(); ++k) {
      // Between U+D83C and U+D840 lie the pairs of U+1F600; U+10000 begins with U+D800.
      if ((i == 6 && k == 7) || (i == 7 && k == 6)) continue;
      EXPECT_EQ(utf16_less(sorted[i], sorted[k]), i < k) << i << " " << k;
    }
  }
  EXPECT_TRUE(utf16_less("\U00010000", "\xED\xA0\xBC"));
}

TEST(Utf8, ReplacesWhatIsNoUtf8) {
  const std::string r = "\xEF\xBF\xBD";
  // The table in the Unicode standard, section 3.9, "U+FFFD substitution of maximal subparts".
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("h\xC3\xA9\xF0\x9F\x98\x80"), "h\xC3\xA9\xF0\x9F\x98\x80");
}

}  // namespace utf8_test
}  // namespace once::text
