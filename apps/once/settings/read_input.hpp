// Reads a whole file or standard input.
#pragma once

#include <cstddef>
#include <string>

namespace once::cli {

// Like read_file() (platform/file.hpp), and reads standard input for "-".
int read_input(const std::string& name, std::size_t limit, std::string& text);

// The same, but little more than `limit` bytes: refuse a longer result. Throws Exception(misuse) if it cannot be read.
std::string read_input(const std::string& name, std::size_t limit);

}  // namespace once::cli
