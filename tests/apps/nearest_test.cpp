#include "output/nearest.hpp"

#include <gtest/gtest.h>

namespace once::cli {
namespace nearest_test {

TEST(Nearest, MistypedWords) {
  const std::vector<std::string> commands = {"run", "resolve", "release", "ls", "show", "sweep"};
  EXPECT_EQ(nearest("rnu", commands), "run");
  EXPECT_EQ(nearest("runn", commands), "run");
  EXPECT_EQ(nearest("relase", commands), "release");
  EXPECT_EQ(nearest("reslove", commands), "resolve");
  EXPECT_EQ(nearest("shwo", commands), "show");
  EXPECT_EQ(nearest("x", commands), "");
  EXPECT_EQ(nearest("", commands), "");
  EXPECT_EQ(nearest("run", {}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'r'), commands), "");
}

}  // namespace nearest_test
}  // namespace once::cli
