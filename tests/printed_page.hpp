// Pages of docs/ that a test prints.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace once {

// The page at `path` must be `text`. With ONCE_WRITE_DOCS=1 it is written first.
inline void expect_page(const std::string& path, const std::string& text) {
  const char* const write = std::getenv("ONCE_WRITE_DOCS");
  if (write != nullptr && std::string_view(write) == "1") {
    std::ofstream file(path, std::ios::binary);
    file << text;
    ASSERT_TRUE(file.flush()) << "cannot write " << path;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), text) << path << " is not what this test prints; ONCE_WRITE_DOCS=1 writes it anew";
}

}  // namespace once
