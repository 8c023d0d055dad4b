// Patterns of keys.
#include "frontends/http/key_pattern.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once::http {
namespace key_pattern_test {

using ::testing::HasSubstr;

TEST(KeyPattern, MatchesWholeKeys) {
  struct Case {
    std::string_view pattern;
    std::vector<std::string_view> yes;
    std::vector<std::string_view> no;
  };
  for (const Case& c : std::vector<Case>{
           {"", {""}, {"a"}},
           {"abc", {"abc"}, {"ab", "abcd", "xabc", "ABC", ""}},
           {"^abc$", {"abc"}, {"ab", "abcd"}},
           {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
           {"(a|b)*c", {"c", "abbac"}, {"ab", "cc"}},
           {"(?:ab)+", {"ab", "abab"}, {"", "aba"}},
           {"a?b{2}c{1,}d{0,2}", {"bbc", "abbccdd"}, {"abc", "bbd", "bbcddd"}},
           {"[0-9a-f]{8}-[0-9a-f]{4}", {"0123abcd-ef01"}, {"0123ABCD-ef01", "0123abcdef01"}},
           {"[^a-c]", {"d", "-"}, {"a", "b", "c"}},
           {"[a\\]\\-]+", {"a]-"}, {"\\"}},
           {"[a-]+", {"a-"}, {"b"}},
           {R"(\w+\.\d{3})", {"a_B9.123"}, {"a-b.123", "ab.12"}},
           {"a.c", {"abc", "a.c", "a c"}, {"ac"}},
           {"(a*)*", {"", "aaaa"}, {"b"}},
           {"ord_[0-9]+|inv_[0-9]+", {"ord_1", "inv_22"}, {"ord_", "x_1"}},
       }) {
    SCOPED_TRACE(c.pattern);
    const KeyPattern pattern(c.pattern);
    for (const std::string_view key : c.yes) EXPECT_TRUE(pattern.matches(key)) << key;
    for (const std::string_view key : c.no) EXPECT_FALSE(pattern.matches(key)) << key;
  }
}

// An engine that tries one way after another would need longer than the universe has.
TEST(KeyPattern, TimeIsProportionalToTheKey) {
  const std::string key(254, 'a');
  EXPECT_FALSE(KeyPattern("(a+)+b").matches(key));
  EXPECT_FALSE(KeyPattern("(a|a)*b").matches(key));
  EXPECT_FALSE(KeyPattern("(a?){255}a{255}").matches(key));
  EXPECT_TRUE(KeyPattern("((a*)*)*").matches(key));
}

TEST(KeyPattern, RefusesWithThePlace) {
  struct Case {
    std::string pattern;
    const char* says;
  };
  for (const Case& c : std::vector<Case>{{"a(b", "expected ')' at character 4"},
                                         {"a)b", "unexpected ')' at character 2"},
                                         {"*a", "unexpected '*'"},
                                         {"a**", "second repetition"},
                                         {"a{", "expected a number"},
                                         {"a{2", "expected '}'"},
                                         {"a{3,2}", "less than the least"},
                                         {"a{256}", "255 repetitions"},
                                         {"[a", "expected ']'"},
                                         {"[z-a]", "ends before it begins at character 2"},
                                         {"[\\d-z]", "not one character"},
                                         {"a\\", "ends too early"},
                                         {"\\b", "not known"},
                                         {"(?=a)", "expected ':'"},
                                         {"a^b", "unexpected '^'"},
                                         {"a$b", "unexpected '$'"},
                                         {"caf\xC3\xA9", "no key has"},
                                         {std::string(256, 'a'), "longer than 255"},
                                         {"((a{255}){255}){255}", "too many repetitions"}}) {
    SCOPED_TRACE(c.pattern);
    try {
      const KeyPattern pattern(c.pattern);
      ADD_FAILURE() << "was taken";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr(c.says));
    }
  }
}

}  // namespace key_pattern_test
}  // namespace once::http
