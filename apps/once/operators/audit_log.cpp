#include "operators/audit_log.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "operators/answers.hpp"
#include "text/rfc3339.hpp"

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
  Json whole{{"time", text::rfc3339(system_clock()->now())}};
  whole.update(line);
  return sink_.write(whole.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

http::Answer not_audited() {
  return operators_problem("not-audited", 503, "The audit log cannot be written",
                           "Nothing was shown or changed: the file of --audit-log cannot be written.");
}

}  // namespace once::cli
