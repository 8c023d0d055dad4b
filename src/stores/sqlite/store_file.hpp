// The file of a store: found or made, and what the store, its writer and its readers know of it.
#pragma once

#include <cstdint>
#include <string>

#include <once/clock.hpp>
#include <once/stores/sqlite.hpp>

#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/identity.hpp"
#include "stores/sqlite/schema.hpp"

namespace once::stores::sqlite {

std::uint64_t size_of(const std::string& path) noexcept;  // 0: it is not there.

// Nothing of it changes once the store is open, so all threads read it. Outlives all that SQLite has open.
class StoreFile {
 public:
  // Makes the file and its directories where that is asked for; the file's name is not on the disk then. Throws
  // Exception: unavailable, or misuse for what is no file, or one with several names.
  explicit StoreFile(SqliteOptions options);

  [[nodiscard]] const SqliteOptions& options() const noexcept { return options_; }  // With the file's real path.
  [[nodiscard]] const std::string& path() const noexcept { return options_.path; }
  [[nodiscard]] const std::string& asked_path() const noexcept { return asked_; }  // As it was given.
  [[nodiscard]] const std::string& vfs() const noexcept { return vfs_; }
  [[nodiscard]] bool is_forked() const noexcept { return fork_guard_.is_forked(); }

  // Throws Exception(unavailable) if it was deleted or replaced since.
  void check_identity() const;

  // Brings the names in its directory to the disk. SQLite does it too, but does not look whether it works. Throws
  // Exception(unavailable).
  void sync_directory() const;

  // For whoever opens it: reads what it says of its keys and of the store's time, which may write. Inside the lock.
  void learn(Connection& connection);
  [[nodiscard]] const HashKey& hash_key() const noexcept { return hash_key_; }
  [[nodiscard]] const StoredClock& clock() const noexcept { return clock_; }
  [[nodiscard]] StoreTime time() const noexcept;

 private:
  void check_identity(const std::string& path) const;

  const std::string asked_;
  const ForkGuard fork_guard_;
  const std::string vfs_;
  const SqliteOptions options_;
  const Identity identity_;
  HashKey hash_key_;
  StoredClock clock_;
};

}  // namespace once::stores::sqlite
