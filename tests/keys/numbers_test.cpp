// Numbers, against facts from the languages themselves.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "keys/dialects/java_number.hpp"
#include "text/number.hpp"

namespace once::keys {
namespace numbers_test {

std::string python(double d) {
  std::string out;
  text::append_python(d, out);
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

}  // namespace numbers_test
}  // namespace once::keys
