// The connection that writes, with its statements.
#pragma once

#include <cstdint>
#include <optional>

#include "stores/sqlite/companions.hpp"
#include "stores/sqlite/connection.hpp"
#include "stores/sqlite/file_lock.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/outside_writes.hpp"
#include "stores/sqlite/rows.hpp"
#include "stores/sqlite/store_file.hpp"

namespace once::stores::sqlite {

// Used by one thread, inside the lock between processes. Methods throw SqlError.
class WriterConnection {
 public:
  // Makes the tables if the file has none. Throws Exception.
  WriterConnection(const StoreFile& file, RecentKeys& recent);
  WriterConnection(const WriterConnection&) = delete;
  WriterConnection& operator=(const WriterConnection&) = delete;

  void begin(FileLock& lock);
  // True if anything was written; then the lock file notes what is on the disk. `log`: the log's inode.
  bool commit(FileLock& lock, std::uint64_t log);
  // In a transaction: reads rows that others have written. True if everything was read again.
  bool learn_keys() { return rows_->keys().begin(outside_writes_); }
  // In a transaction: whether the file is marked as sealed (schema.hpp), and marking it.
  [[nodiscard]] bool is_sealed();
  void seal();
  void forget_seal() noexcept { sealed_.reset(); }  // A savepoint was rolled back, perhaps with the mark.
  [[nodiscard]] bool has_changed() const noexcept;  // Whether anything changed since begin().
  [[nodiscard]] std::uint32_t log_pages() const noexcept { return log_pages_; }  // After the last commit that wrote.

  [[nodiscard]] Connection& connection() noexcept { return connection_; }
  [[nodiscard]] Rows& rows() noexcept { return *rows_; }
  [[nodiscard]] Companions& companions() noexcept { return *companions_; }

 private:
  Connection connection_;
  std::optional<Companions> companions_;
  std::optional<Rows> rows_;  // Made when there are tables.
  std::optional<Statement> begin_;
  std::optional<Statement> commit_;
  OutsideWrites outside_;
  std::uint64_t outside_writes_ = 0;  // At the last begin().
  std::optional<bool> sealed_;        // The mark, unless another program may have set it since.
  bool committed_ = false;            // The last transaction was not rolled back.
  int changes_ = 0;                   // The same.
  bool wrote_ = false;                // Whether the commit wrote, as SQLite reports it.
  std::uint32_t log_pages_ = 0;
};

}  // namespace once::stores::sqlite
