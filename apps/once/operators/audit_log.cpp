#include "operators/audit_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include <once/error.hpp>

#include "operators/answers.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

Fd open_to_append(const std::string& file) {
  constexpr mode_t for_this_user = 0600;
  Fd opened(open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, for_this_user));
  if (!opened) {
    throw Exception(ErrorKind::unavailable, "cannot open the audit log " + file + ": " + std::strerror(errno));
  }
  return opened;
}

}  // namespace

AuditLog::AuditLog(const std::string& file) : file_(open_to_append(file)), sink_(file_.get()) {}

bool AuditLog::write(const Json& line) {
  return sink_.write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::uint64_t AuditLog::Written::size() const {
  struct stat status {};
  return fstat(file_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::string AuditLog::Written::read(std::uint64_t at, std::uint64_t bytes) const {
  std::string out(bytes, '\0');
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t some = pread(file_.get(), out.data() + got, bytes - got, static_cast<off_t>(at + got));
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) break;
    got += static_cast<std::size_t>(some);
  }
  out.resize(got);
  return out;
}

std::optional<AuditLog::Written> AuditLog::open_again() const {
  Fd file(open(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return Written(std::move(file));
}

http::Answer not_audited() {
  return operators_problem("not-audited", 503, "The audit log cannot be written",
                           "Nothing was shown or changed: the file of --audit-log cannot be written.");
}

}  // namespace once::cli
