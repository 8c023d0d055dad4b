#include "stores/sqlite/file_system.hpp"

#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <new>

#include <once/error.hpp>

namespace once::stores::sqlite {

namespace {

struct SharedFileSystem {
  std::uint32_t magic;
  std::string_view name;
};

// linux/magic.h, and the sources of those that are not there.
constexpr std::array shared_ones = {
    SharedFileSystem{0x65735546, "FUSE (also sshfs, virtiofs, and the shared folders of Docker Desktop)"},
    SharedFileSystem{0x00006969, "NFS"},
    SharedFileSystem{0x0000517B, "SMB"},
    SharedFileSystem{0xFF534D42, "CIFS"},
    SharedFileSystem{0xFE534D42, "SMB"},
    SharedFileSystem{0x01021997, "9p"},
    SharedFileSystem{0x00C36400, "Ceph"},
    SharedFileSystem{0x5346414F, "AFS"},
    SharedFileSystem{0x6B414653, "AFS"},
    SharedFileSystem{0x73757245, "Coda"},
    SharedFileSystem{0x7461636F, "OCFS2"},
    SharedFileSystem{0x01161970, "GFS2"},
    SharedFileSystem{0x0BD00BD0, "Lustre"},
    SharedFileSystem{0x19830326, "BeeGFS"},
    SharedFileSystem{0x47504653, "GPFS"},
    SharedFileSystem{0x20030528, "OrangeFS"},
    SharedFileSystem{0xAAD7AAEA, "PanFS"},
    SharedFileSystem{0xBEEFDEAD, "StorNext"},
    SharedFileSystem{0x61636673, "ACFS"},
    SharedFileSystem{0x013111A8, "Ibrix"},
    SharedFileSystem{0x0000564C, "NetWare"},
    SharedFileSystem{0x786F4256, "a shared folder of VirtualBox"},
    SharedFileSystem{0xBACBACBC, "a shared folder of VMware"},
    SharedFileSystem{0x7C7C6673, "a shared folder of Parallels"},
};

}  // namespace

std::string_view shared_file_system(std::uint32_t magic) noexcept {
  const auto* const found = std::ranges::find(shared_ones, magic, &SharedFileSystem::magic);
  return found == shared_ones.end() ? std::string_view() : found->name;
}

std::string_view shared_file_system_of(const std::string& path) noexcept try {
  struct statfs found {};
  for (std::filesystem::path at = path;; at = at.parent_path()) {
    if (at.empty()) at = ".";
    if (statfs(at.c_str(), &found) == 0) return shared_file_system(static_cast<std::uint32_t>(found.f_type));
    if (errno != ENOENT || at == "." || at == at.parent_path()) return {};
  }
} catch (const std::bad_alloc&) {
  return {};
}

void refuse_shared_file_system(const std::string& path) {
  const std::string_view name = shared_file_system_of(path);
  if (name.empty()) return;
  throw Exception(
      ErrorKind::misuse,
      "sqlite store " + path + ": not opened: it is on " + std::string(name) +
          ". Programs on other hosts, or that reach the file by another path, would not see its claims, and "
          "would damage it. Use a local file system, or a store that a server keeps (postgresql:, "
          "dynamodb:). If all its programs run on one host and use this path, insist with "
          "allow_shared_file_system=1 in the store's URL");
}

}  // namespace once::stores::sqlite
