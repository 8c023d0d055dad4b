// Characters and numbers, against facts from the languages themselves.
#include "keys/text.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "keys/number.hpp"

namespace once::keys {
namespace {

// "x".toLowerCase() of Node.js 20.
TEST(Text, LowerCase) {
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

TEST(Text, Utf16Order) {
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

TEST(Text, ReplacesWhatIsNoUtf8) {
  const std::string r = "\xEF\xBF\xBD";
  // The table in the Unicode standard, section 3.9, "U+FFFD substitution of maximal subparts".
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("h\xC3\xA9\xF0\x9F\x98\x80"), "h\xC3\xA9\xF0\x9F\x98\x80");
}

TEST(Text, ArrayIndices) {
  EXPECT_EQ(array_index("0"), 0U);
  EXPECT_EQ(array_index("4294967294"), 4294967294U);
  for (const std::string name : {"", "4294967295", "01", "-1", "1.0", "+1", "99999999999", "1a"}) {
    EXPECT_FALSE(array_index(name)) << name;
  }
}

std::string python(double d) {
  std::string out;
  append_python(d, out);
  return out;
}
std::string java(double d) {
  std::string out;
  append_java(d, out);
  return out;
}

// repr() of CPython 3.11; Double.toString() of JDK 17.
TEST(Numbers, OfPythonAndJava) {
  struct Row {
    double value;
    std::string python;
    std::string java;
  };
  const std::vector<Row> table{
      {0.0, "0.0", "0.0"},
      {-0.0, "-0.0", "-0.0"},
      {1.0, "1.0", "1.0"},
      {10.5, "10.5", "10.5"},
      {0.001, "0.001", "0.001"},
      {0.0001, "0.0001", "1.0E-4"},
      {0.00001, "1e-05", "1.0E-5"},
      {1.5e-7, "1.5e-07", "1.5E-7"},
      {9999999.0, "9999999.0", "9999999.0"},
      {10000000.0, "10000000.0", "1.0E7"},
      {1e15, "1000000000000000.0", "1.0E15"},
      {1e16, "1e+16", "1.0E16"},
      {1.2345678901234567e19, "1.2345678901234567e+19", "1.2345678901234567E19"},
      {1e22, "1e+22", "1.0E22"},
      {1e100, "1e+100", "1.0E100"},
      {5e-324, "5e-324", "4.9E-324"},
      {1e23, "1e+23", "9.999999999999999E22"},
      {2e23, "2e+23", "1.9999999999999998E23"},
      {8.41e21, "8.41e+21", "8.409999999999999E21"},
      {51659784942405424.0, "5.165978494240542e+16", "5.1659784942405424E16"},
      {4503599627370498.0, "4503599627370498.0", "4.503599627370498E15"},
      {0x1p-44, "5.684341886080802e-14", "5.6843418860808015E-14"},
      {3.3469832882503343e25, "3.3469832882503343e+25", "3.3469832882503342E25"},
      {9999999.999999998, "9999999.999999998", "9999999.999999998"},
      {99.99, "99.99", "99.99"},
      {2e-323, "2e-323", "2.0E-323"},
      {1.7976931348623157e308, "1.7976931348623157e+308", "1.7976931348623157E308"},
      {2.2250738585072014e-308, "2.2250738585072014e-308", "2.2250738585072014E-308"},
      {std::numeric_limits<double>::infinity(), "Infinity", "Infinity"},
      {-std::numeric_limits<double>::infinity(), "-Infinity", "-Infinity"},
      {std::numeric_limits<double>::quiet_NaN(), "NaN", "NaN"},
  };
  for (const Row& row : table) {
    EXPECT_EQ(python(row.value), row.python);
    EXPECT_EQ(java(row.value), row.java);
  }
}

TEST(Numbers, Read) {
  EXPECT_EQ(to_double("1e400"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_double("-1e400"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_double("1e-400"), 0);
  EXPECT_EQ(to_double("-Infinity"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(to_double("NaN")));
  EXPECT_EQ(to_double("0.000000e99999"), 0);
  EXPECT_EQ(to_double("123456789e-5"), 1234.56789);
}

}  // namespace
}  // namespace once::keys
