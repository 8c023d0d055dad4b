// Doubles as Java prints them.
#pragma once

#include <string>

namespace once::keys {

// Java's Double.toString up to JDK 18: 1.0E10, 100.0, NaN, Infinity. Not always the shortest decimal that reads back:
// 2.0E23 comes out as 1.9999999999999998E23. JDK 19 and newer print the shortest one (JDK-4511638); the two differ for
// about one in four hundred doubles of 16 or 17 digits, and for no number of up to 15 digits and common size. Compared
// with JDK 17 over millions of doubles of all sizes.
void append_java(double value, std::string& out);

}  // namespace once::keys
