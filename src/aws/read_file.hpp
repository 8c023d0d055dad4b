// Reads small files.
#pragma once

#include <cstddef>
#include <string>

namespace once::aws {

// 0 and the file's bytes in `out`, or errno; EFBIG if it has more than `max_bytes`. Blocks.
int read_file(const std::string& path, std::size_t max_bytes, std::string& out);

}  // namespace once::aws
