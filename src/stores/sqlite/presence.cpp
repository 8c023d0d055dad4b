#include "stores/sqlite/presence.hpp"

#include <fcntl.h>

namespace once::stores::sqlite {

namespace {

struct flock byte_as(short type) noexcept {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = 512;  // After the file's contents; a lock needs no bytes.
  range.l_len = 1;
  return range;
}

}  // namespace

Presence::Presence(const std::string& lock_path) {
  file_.open([&] { return ::open(lock_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW); });
  struct flock ours = byte_as(F_RDLCK);
  if (file_.get() >= 0 && fcntl(file_.get(), F_OFD_SETLK, &ours) != 0) file_.close();
}

bool Presence::is_alone() const noexcept {
  struct flock all = byte_as(F_WRLCK);
  return file_.get() >= 0 && fcntl(file_.get(), F_OFD_GETLK, &all) == 0 && all.l_type == F_UNLCK;
}

}  // namespace once::stores::sqlite
