#include "text/number.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace once::text {
namespace number_test {

TEST(Numbers, Read) {
  EXPECT_EQ(to_double("1e400"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_double("-1e400"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_double("1e-400"), 0);
  EXPECT_EQ(to_double("-Infinity"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(to_double("NaN")));
  EXPECT_EQ(to_double("0.000000e99999"), 0);
  EXPECT_EQ(to_double("123456789e-5"), 1234.56789);
}

TEST(Numbers, Whole) {
  EXPECT_EQ(parse_whole<std::uint8_t>("255"), 255);
  EXPECT_EQ(parse_whole<int>("-1"), -1);
  EXPECT_EQ(parse_whole<unsigned>("fF", 16), 255U);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "1.0", "1e2", "0x1", "256", "99999999999999999999"}) {
    EXPECT_EQ(parse_whole<std::uint8_t>(text), std::nullopt) << text;
  }
}

TEST(Numbers, ArrayIndices) {
  EXPECT_EQ(array_index("0"), 0U);
  EXPECT_EQ(array_index("4294967294"), 4294967294U);
  for (const std::string name : {"", "4294967295", "01", "-1", "1.0", "+1", "99999999999", "1a"}) {
    EXPECT_FALSE(array_index(name)) << name;
  }
}

}  // namespace number_test
}  // namespace once::text
