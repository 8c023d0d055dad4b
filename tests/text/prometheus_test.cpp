#include "text/prometheus.hpp"

#include <string>

#include <gtest/gtest.h>

namespace once::text {
namespace prometheus_test {

using namespace std::chrono_literals;

constexpr std::array bounds{0.5, 1.0};

TEST(Exposition, FamiliesAndTheirSamples) {
  Exposition out;
  out.family("a_total", "counter", "How many.");
  out.sample({}, 3U);
  out.sample({{"x", "1"}, {"none", ""}, {"y", "2"}}, -4);
  out.family("b", "gauge", "Other.");
  out.sample({{"x", "1"}}, 0.25);
  EXPECT_EQ(std::move(out).take(),
            "# HELP a_total How many.\n# TYPE a_total counter\na_total 3\na_total{x=\"1\",y=\"2\"} -4\n"
            "# HELP b Other.\n# TYPE b gauge\nb{x=\"1\"} 0.25\n");
}

TEST(Exposition, AValueOfALabelCannotEndIt) {
  Exposition out;
  out.family("a", "gauge", "-");
  out.sample({{"x", "\"} 1\n\\"}}, 1);
  EXPECT_EQ(std::move(out).take(), "# HELP a -\n# TYPE a gauge\na{x=\"\\\"} 1\\n\\\\\"} 1\n");
}

TEST(Exposition, BucketsAddUp) {
  Histogram<bounds> histogram;
  for (const auto took : {500ms, 501ms, 1'000ms, 20'000ms}) histogram.add(took);
  Exposition out;
  out.family("h", "histogram", "-");
  histogram.write(out, {{"x", "1"}});
  Histogram<bounds>().write(out, {});
  EXPECT_EQ(std::move(out).take(),
            "# HELP h -\n# TYPE h histogram\n"
            "h_bucket{x=\"1\",le=\"0.5\"} 1\nh_bucket{x=\"1\",le=\"1\"} 3\nh_bucket{x=\"1\",le=\"+Inf\"} 4\n"
            "h_sum{x=\"1\"} 22.001\nh_count{x=\"1\"} 4\n"
            "h_bucket{le=\"0.5\"} 0\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n");
}

}  // namespace prometheus_test
}  // namespace once::text
