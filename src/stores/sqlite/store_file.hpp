// The file of a store, and what the store, its writer and its readers know about it.
#pragma once

#include <cstdint>
#include <string>

#include <once/clock.hpp>
#include <once/stores/sqlite.hpp>

#include "stores/sqlite/fork_guard.hpp"
#include "stores/sqlite/identity.hpp"
#include "stores/sqlite/schema.hpp"
#include "stores/sqlite/wal_vfs.hpp"

namespace once::stores::sqlite {

std::uint64_t size_of(const std::string& path) noexcept;  // 0: missing.

// Constant after the store was opened, so all threads may read it. Outlives all objects of SQLite.
class StoreFile {
 public:
  // Creates the file and its directories if the options say so; the file's name is not synced yet. Throws Exception:
  // unavailable; misuse if it is not a file, or has several names.
  explicit StoreFile(SqliteOptions options);

  [[nodiscard]] const SqliteOptions& options() const noexcept { return options_; }  // With the file's real path.
  [[nodiscard]] const std::string& path() const noexcept { return options_.path; }
  [[nodiscard]] const std::string& asked_path() const noexcept { return asked_; }  // As it was given.
  [[nodiscard]] const std::string& vfs() const noexcept { return vfs_.name(); }
  [[nodiscard]] bool is_forked() const noexcept { return fork_guard_.is_forked(); }

  // Throws Exception(unavailable) if it was deleted or replaced since.
  void check_identity() const;

  // SQLite maps <path>-shm while the file is open. If that was cut (as by truncate), to touch it would end the process
  // by SIGBUS. Throws Exception(unavailable) before. docs/decisions/sqlite-disks.md
  void check_index() const;

  // Syncs the names in its directory. SQLite does it too, but ignores errors. Throws Exception(unavailable).
  void sync_directory() const;

  // Called after opening: reads the hash key and the store's clock, which may write. Inside the lock. `is_alone`: no
  // other process has the store open. Throws Exception.
  void learn(Connection& connection, bool is_alone);
  [[nodiscard]] const HashKey& hash_key() const noexcept { return hash_key_; }
  [[nodiscard]] const StoredClock& clock() const noexcept { return clock_; }
  [[nodiscard]] StoreTime time() const noexcept;

 private:
  void check_identity(const std::string& path) const;

  const std::string asked_;
  const ForkGuard fork_guard_;
  const WalVfs vfs_;
  const SqliteOptions options_;
  const Identity identity_;
  HashKey hash_key_;
  StoredClock clock_;
};

// The file of a store from make_sqlite_store(), also below wraps. Null: another kind of store.
const StoreFile* file_of(const Store& store) noexcept;

}  // namespace once::stores::sqlite
