#include "text/rfc3339.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace once::text {
namespace rfc3339_test {

TEST(Rfc3339, Writes) {
  EXPECT_EQ(rfc3339(Time{}), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(rfc3339(Time{Millis{1'709'210'096'789}}), "2024-02-29T12:34:56.789Z");
  EXPECT_EQ(rfc3339(Time{Millis{-1}}), "1969-12-31T23:59:59.999Z");
  EXPECT_EQ(rfc3339(never), "9999-12-31T23:59:59.999Z");
}

TEST(Rfc3339, ReadsWhatServicesWrite) {
  const Time start{Millis{1'767'225'600'000}};
  for (const auto& [text, time] : std::vector<std::pair<std::string, Time>>{
           {"2026-01-01T00:00:00Z", start},
           {"2026-01-01t00:00:00z", start},
           {"2026-01-01T00:00:00.999Z", start},
           {"2026-01-01T00:00:00+00:00", start},
           {"2026-01-01T02:00:00+0200", start},
           {"2025-12-31T19:30:00-04:30", start},
           {"2024-02-29T23:59:60Z", Time(std::chrono::sys_days(std::chrono::March / 1 / 2024))},
       }) {
    EXPECT_EQ(from_rfc3339(text), time) << text;
  }
  for (const char* text : {"", "2026", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z",
                           "2026-02-29T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z",
                           "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00Zx", "2026-01-01T00:00:00+1",
                           "2026-01-01T00:00:00+24:00", "x026-01-01T00:00:00Z", "20260101T000000Z", "1767225600"}) {
    EXPECT_EQ(from_rfc3339(text), std::nullopt) << text;
  }
}

}  // namespace rfc3339_test
}  // namespace once::text
