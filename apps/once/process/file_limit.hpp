// How many files this process may open.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace once::cli {

// Raises the limit as far as it goes, and returns it. The default is lower only for programs that use select(2).
inline std::uint64_t raise_file_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return RLIM_INFINITY;
  const rlimit all{.rlim_cur = files.rlim_max, .rlim_max = files.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &all) == 0 ? all.rlim_cur : files.rlim_cur;
}

}  // namespace once::cli
