// The audit log of operators' acts: one JSON object a line. docs/console.md has the fields.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include <once/frontends/http/message.hpp>

#include "platform/file.hpp"

namespace once::operators {

// Thread-safe.
class AuditLog {
 public:
  // Appends to the file, which is made if it is not there, for this user alone. Throws Exception(unavailable).
  explicit AuditLog(std::string file);

  // Opens the file again, by its name: after a rotation. Throws as the constructor, and then keeps the old file.
  void reopen();

  // False: not written as a whole. `line`: an object.
  [[nodiscard]] bool write(const nlohmann::ordered_json& line);

  // What is written, to be read. A file that was renamed is still the same one.
  class Written {
   public:
    explicit Written(Fd file) : file_(std::move(file)) {}
    [[nodiscard]] std::uint64_t size() const;
    [[nodiscard]] std::string read(std::uint64_t at, std::uint64_t bytes) const;  // Shorter if it fails.

   private:
    Fd file_;
  };
  // Empty: it is no file, or may not be read.
  [[nodiscard]] std::optional<Written> open_again() const;

 private:
  struct File;
  [[nodiscard]] std::shared_ptr<File> present() const;

  const std::string name_;
  mutable std::mutex mutex_;
  std::shared_ptr<File> file_;  // Guarded by it. What is being written keeps its file.
};

// A request that must not be answered because its line could not be written: 503.
http::Answer not_audited();

}  // namespace once::operators
