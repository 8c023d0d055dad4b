// Preloaded into a program (LD_PRELOAD), makes the kernel seem to refuse something.
//
//   ONCE_REFUSE_ERRNO   writes fail with this number (28 ENOSPC, 122 EDQUOT) …
//   ONCE_REFUSE_PATH    … to files whose path contains this text …
//   ONCE_REFUSE_WHEN    … while this file exists
//   ONCE_REFUSE_MAGIC   statfs() reports this type of file system, in hexadecimal
#include <dlfcn.h>
#include <sys/statfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool is_refused(int fd) {
  const char* const number = std::getenv("ONCE_REFUSE_ERRNO");
  const char* const path = std::getenv("ONCE_REFUSE_PATH");
  const char* const when = std::getenv("ONCE_REFUSE_WHEN");
  if (number == nullptr || path == nullptr || when == nullptr || access(when, F_OK) != 0) return false;
  std::array<char, 4096> name{};
  const ssize_t count = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name.data(), name.size());
  if (count <= 0 ||
      std::string_view(name.data(), static_cast<std::size_t>(count)).find(path) == std::string_view::npos) {
    return false;
  }
  errno = std::atoi(number);
  return true;
}

template <class Statfs>
int faked(int result, Statfs* found) {
  const char* const magic = std::getenv("ONCE_REFUSE_MAGIC");
  if (result == 0 && magic != nullptr) {
    found->f_type = static_cast<decltype(found->f_type)>(std::strtoul(magic, nullptr, 16));
  }
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return is_refused(fd) ? -1 : real(fd, bytes, count);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return is_refused(fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return is_refused(fd) ? -1 : real(fd, bytes, count, at);
}

int statfs(const char* path, struct statfs* found) {
  static auto* const real = next<int(const char*, struct statfs*)>("statfs");
  return faked(real(path, found), found);
}

int statfs64(const char* path, struct statfs64* found) {
  static auto* const real = next<int(const char*, struct statfs64*)>("statfs64");
  return faked(real(path, found), found);
}

}  // extern "C"
#pragma GCC visibility pop
