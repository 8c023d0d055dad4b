// A file or standard input, whole.
#pragma once

#include <cstddef>
#include <string>

namespace once::cli {

// All of the file, or of standard input for "-". Reads little more than `limit` bytes: whoever gets more than that has
// to refuse it. Throws Exception(misuse) if it cannot be read.
std::string read_input(const std::string& name, std::size_t limit);

}  // namespace once::cli
