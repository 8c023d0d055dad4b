#include "operators/audit_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/error.hpp>

#include "operators/answers.hpp"
#include "operators/record_json.hpp"
#include "platform/line_sink.hpp"

namespace once::operators {

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

struct AuditLog::File {
  explicit File(const std::string& name) : file(open_to_append(name)), sink(file.get()) {}

  const Fd file;
  LineSink sink;
};

AuditLog::AuditLog(std::string file) : name_(std::move(file)), file_(std::make_shared<File>(name_)) {
  std::signal(SIGXFSZ, SIG_IGN);  // A line beyond the limit of a file's size is refused, and ends nobody.
}

void AuditLog::reopen() {
  auto opened = std::make_shared<File>(name_);
  const std::lock_guard lock(mutex_);
  file_ = std::move(opened);
}

std::shared_ptr<AuditLog::File> AuditLog::present() const {
  const std::lock_guard lock(mutex_);
  return file_;
}

bool AuditLog::write(const Json& line) { return present()->sink.write(json_line(line) + "\n"); }

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
  const std::shared_ptr<File> now = present();
  Fd file(open(("/proc/self/fd/" + std::to_string(now->file.get())).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return Written(std::move(file));
}

http::Answer not_audited() {
  return operators_problem("not-audited", 503, "The audit log cannot be written",
                           "Nothing was shown or changed: the file of --audit-log cannot be written.");
}

}  // namespace once::operators
