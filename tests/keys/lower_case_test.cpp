#include "keys/dialects/lower_case.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace once::keys {
namespace lower_case_test {

// "x".toLowerCase() of Node.js 20.
TEST(LowerCase, AsInNode) {
  const std::vector<std::pair<std::string, std::string>> table{
      {"ABC_xyz-09", "abc_xyz-09"},
      {"\u00C9\u00D7\u00DE", "\u00E9\u00D7\u00FE"},
      {"\u0130", "i\u0307"},
      {"I\u0131", "i\u0131"},
      {"\u0100\u0101\u0178\u1E9E", "\u0101\u0101\u00FF\u00DF"},
      {"\u212A\u2126\u212B", "k\u03C9\u00E5"},
      {"\u01C4\u01C5\u01C6", "\u01C6\u01C6\u01C6"},
      {"\u03A3", "\u03C3"},
      {"\u0391\u03A3", "\u03B1\u03C2"},
      {"\u0391\u03A3\u0391", "\u03B1\u03C3\u03B1"},
      {"\u0391\u03A3 b", "\u03B1\u03C2 b"},
      {"a\u0301\u03A3.", "a\u0301\u03C2."},
      {"a.\u03A3", "a.\u03C2"},
      {"a\u03A3.b", "a\u03C3.b"},
      {"1\u03A3", "1\u03C3"},
      {"\u0410\u042F\u0416", "\u0430\u044F\u0436"},
      {"\u10A0\u13A0\u1C90", "\u2D00\uAB70\u10D0"},
      {"\uFF21\U00010400\U0001E900", "\uFF41\U00010428\U0001E922"},
  };
  for (const auto& [upper, lower] : table) EXPECT_EQ(to_lower(upper), lower) << upper;
}

}  // namespace lower_case_test
}  // namespace once::keys
