// What operators did, newest first: GET /v1/acts. It is in the audit log, if there is one, else in this process'
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <once/frontends/http/message.hpp>
#include <once/time.hpp>

#include "operators/audit_log.hpp"

namespace once::operators {

// Thread-safe.
class Notes {
 public:
  static constexpr std::size_t most_kept = 1000;       // Lines in memory. Their texts are cut to 2 KiB.
  static constexpr std::size_t most_read = 1U << 20U;  // Bytes of the audit log, for one request.

  // `audit`: null if there is none. It must outlive this.
  explicit Notes(AuditLog* audit);

  // `line`: an object; the time is put before its members. False: not written, so it must not be done.
  [[nodiscard]] bool write(const nlohmann::ordered_json& line);

  // GET /v1/acts. Blocks for a file. Throws Exception(misuse) for a wrong query.
  [[nodiscard]] http::Answer list(std::string_view query) const;

 private:
  AuditLog* const audit_;
  const Time began_;
  mutable std::mutex mutex_;  // Guards the following members.
  std::deque<nlohmann::ordered_json> kept_;
  std::uint64_t count_ = 0;  // Of all that were ever kept.
};

}  // namespace once::operators
