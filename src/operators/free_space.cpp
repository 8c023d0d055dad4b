#include "operators/free_space.hpp"

#include <sys/statvfs.h>

namespace once::operators {

std::optional<FreeSpace> free_space(const std::string& path) {
  struct statvfs told {};
  if (statvfs(path.c_str(), &told) != 0) return std::nullopt;
  return FreeSpace{.free_bytes = std::uint64_t{told.f_bavail} * told.f_frsize,
                   .total_bytes = std::uint64_t{told.f_blocks} * told.f_frsize,
                   .free_files = told.f_favail,
                   .total_files = told.f_files};
}

}  // namespace once::operators
