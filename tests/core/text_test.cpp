#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/testing/manual_time.hpp>

namespace once {
namespace text_test {

using namespace std::string_literals;

const std::string bad = "\xEF\xBF\xBD";  // U+FFFD

TEST(CleanText, leaves_utf8_as_it_is) {
  for (const std::string& text :
       {""s, "plain"s, "a\0b"s, "\xC3\xA9"s, "\xE2\x82\xAC"s, "\xF0\x9F\x98\x80"s, "\x7F"s, "\xC2\x80"s, "\xDF\xBF"s,
        "\xE0\xA0\x80"s, "\xED\x9F\xBF"s, "\xEE\x80\x80"s, "\xEF\xBF\xBF"s, "\xF0\x90\x80\x80"s, "\xF4\x8F\xBF\xBF"s}) {
    EXPECT_EQ(clean_text(text), text);
  }
}

// Unicode 15, table 3-7: what is not well formed.
TEST(CleanText, replaces_what_is_not_utf8) {
  EXPECT_EQ(clean_text("\xFF"), bad);
  EXPECT_EQ(clean_text("a\x80z"), "a" + bad + "z");
  EXPECT_EQ(clean_text("\xC0\xAF"), bad + bad) << "an overlong slash";
  EXPECT_EQ(clean_text("\xC1\xBF"), bad + bad);
  EXPECT_EQ(clean_text("\xE0\x9F\xBF"), bad + bad + bad) << "overlong";
  EXPECT_EQ(clean_text("\xED\xA0\x80"), bad + bad + bad) << "a surrogate";
  EXPECT_EQ(clean_text("\xF0\x8F\xBF\xBF"), bad + bad + bad + bad) << "overlong";
  EXPECT_EQ(clean_text("\xF4\x90\x80\x80"), bad + bad + bad + bad) << "beyond U+10FFFF";
  EXPECT_EQ(clean_text("\xF5\x80\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(clean_text("\xC3"), bad) << "cut off";
  EXPECT_EQ(clean_text("\xE2\x82"), bad + bad) << "cut off";
  EXPECT_EQ(clean_text("\xF0\x9F\x98"), bad + bad + bad) << "cut off";
  EXPECT_EQ(clean_text("\xC3z"), bad + "z");
}

TEST(CleanText, cuts_between_characters) {
  EXPECT_EQ(clean_text("abc", 2), "ab");
  EXPECT_EQ(clean_text("abc", 0), "");
  EXPECT_EQ(clean_text("a\xC3\xA9", 2), "a");
  EXPECT_EQ(clean_text("a\xC3\xA9", 3), "a\xC3\xA9");
  EXPECT_EQ(clean_text("\xF0\x9F\x98\x80", 3), "");
  EXPECT_EQ(clean_text("\xFF", 2), "") << "the replacement has three bytes";
  EXPECT_EQ(clean_text(std::string(5000, 'x')).size(), Record::max_text_bytes);
}

TEST(InputBeginning, cuts_between_characters_and_anything_else_where_it_must) {
  EXPECT_EQ(input_beginning("abc", 3), "abc");
  EXPECT_EQ(input_beginning("abc", 2), "ab");
  EXPECT_EQ(input_beginning("abc", 0), "");
  EXPECT_EQ(input_beginning("a\xC3\xA9", 2), "a");
  EXPECT_EQ(input_beginning("\xC3\xA9", 1), "");
  EXPECT_EQ(input_beginning("\xF0\x9F\x98\x80", 3), "");
  EXPECT_EQ(input_beginning("x\xF0\x9F\x98\x80", 4), "x");
  EXPECT_EQ(input_beginning("\x80\x80\x80\x80\x80\x80", 5), "\x80\x80\x80\x80\x80") << "no UTF-8";
}

TEST(CleanText, gives_utf8_within_the_limit_for_any_bytes) {
  testing::SeededRandom random(6);
  static const std::vector<std::string> pieces = {
      "a", "\xC3\xA9"s, "\xE2\x82\xAC"s, "\xF0\x9F\x98\x80"s, "\xFF"s, "\xC3"s, "\xE2\x82"s, "\xED\xA0\x80"s, "\0"s};
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (std::uint64_t n = random.below(12); n > 0; --n) text += random.pick(pieces);
    const std::size_t most = random.below(20);
    const std::string clean = clean_text(text, most);
    ASSERT_LE(clean.size(), most);
    ASSERT_EQ(clean_text(clean, most), clean) << "what is clean stays as it is";
    ASSERT_TRUE(clean_text(text, 1000).starts_with(clean)) << "a shorter limit only cuts";
  }
}

}  // namespace text_test
}  // namespace once
