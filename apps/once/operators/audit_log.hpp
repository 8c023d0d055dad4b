// The audit log of the console: one JSON object a line. docs/console.md has the fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include <once/frontends/http/message.hpp>

#include "platform/file.hpp"
#include "platform/line_sink.hpp"

namespace once::cli {

// Thread-safe.
class AuditLog {
 public:
  // Appends to the file, which is made if it is not there, for this user alone. Throws Exception(unavailable).
  explicit AuditLog(const std::string& file);

  // False: not written as a whole. `line`: an object; the time is put before its members.
  [[nodiscard]] bool write(const nlohmann::ordered_json& line);

 private:
  const Fd file_;
  LineSink sink_;
};

// A request that must not be answered because its line could not be written: 503.
http::Answer not_audited();

}  // namespace once::cli
