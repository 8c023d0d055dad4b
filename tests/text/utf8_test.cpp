#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
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

// "pay" and "pay" with a variation selector look the same, and are two keys.
TEST(Utf8, EscapesWhatShowsNothing) {
  const std::vector<std::pair<std::string, std::string>> hidden{{"\u0085", "\\u0085"},
                                                                {"\u00AD", "\\u00ad"},
                                                                {"\u034F", "\\u034f"},
                                                                {"\u115F", "\\u115f"},
                                                                {"\u17B4", "\\u17b4"},
                                                                {"\u180B", "\\u180b"},
                                                                {"\u200B", "\\u200b"},
                                                                {"\u2028", "\\u2028"},
                                                                {"\u202E", "\\u202e"},
                                                                {"\u2069", "\\u2069"},
                                                                {"\uFE0F", "\\ufe0f"},
                                                                {"\uFEFF", "\\ufeff"},
                                                                {"\uFFF0", "\\ufff0"},
                                                                {"\uFFFB", "\\ufffb"},
                                                                {"\U0001BCA0", "\\ud82f\\udca0"},
                                                                {"\U000E0100", "\\udb40\\udd00"},
                                                                {"\U000E0FFF", "\\udb43\\udfff"}};
  for (const auto& [character, shown] : hidden) {
    EXPECT_EQ(show_invisible("\"pay" + character + "\"\n"), "\"pay" + shown + "\"\n");
    EXPECT_EQ(escape_invisible("pay" + character), "pay" + shown);
  }
  EXPECT_EQ(escape_invisible("a\nb\x1b\x7f"), "a\\u000ab\\u001b\\u007f");
  for (const std::string shown : {"h\u00E9", "\u4F60", "\u0627", "\U0001F600", "\u2190", "\uFFFD", "\U000F0000"}) {
    EXPECT_EQ(escape_invisible(shown), shown);
    EXPECT_EQ(show_invisible(shown), shown);
  }
}

}  // namespace utf8_test
}  // namespace once::text
