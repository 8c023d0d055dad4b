#include "output/metrics_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"

namespace once::cli {

bool write_metrics_file(const std::string& path, std::string_view text) {
  const std::string unfinished = path + "." + std::to_string(getpid());  // In the same directory; not *.prom.
  const auto failed = [&](int error) {
    say("cannot write the metrics file " + escaped(path) + ": " + std::strerror(error), LogLevel::err);
    return false;
  };
  constexpr mode_t for_all_to_read = 0644;
  Fd file(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, for_all_to_read));
  if (!file) return failed(errno);
  const bool written = write_all(file.get(), text) && fchmod(file.get(), for_all_to_read) == 0;
  if (written && std::rename(unfinished.c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  unlink(unfinished.c_str());
  return failed(error);
}

}  // namespace once::cli
