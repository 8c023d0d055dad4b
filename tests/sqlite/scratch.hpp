// Shared by the tests of the SQLite store: a temporary directory, and access to the file from outside.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "scratch_directory.hpp"

namespace once::testing {

// Another program at the same file, such as the sqlite3 shell. Throws std::runtime_error.
class Shell {
 public:
  // What the last program at the file does when it closes it: leaves the log, or copies and deletes it, as is usual.
  enum class Close { leave_log, tidy };

  explicit Shell(const std::string& path, Close close = Close::leave_log) {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) throw std::runtime_error("open " + path);
    sqlite3_busy_timeout(db_, 10'000);
    if (close == Close::leave_log) sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  }
  ~Shell() { sqlite3_close(db_); }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  // Runs the statements; the first column of the last row, as text.
  std::string run(const std::string& sql) {
    std::string out;
    char* message = nullptr;
    const auto keep = [](void* to, int count, char** values, char**) {
      *static_cast<std::string*>(to) = count > 0 && values[0] != nullptr ? values[0] : "";
      return 0;
    };
    if (sqlite3_exec(db_, sql.c_str(), keep, &out, &message) != SQLITE_OK) {
      const std::string text = message == nullptr ? "?" : message;
      sqlite3_free(message);
      throw std::runtime_error(sql + ": " + text);
    }
    return out;
  }

  // .backup and .restore of the shell.
  void save(const std::string& copy) { copy_between(copy, false); }
  void put_back(const std::string& copy) { copy_between(copy, true); }

  [[nodiscard]] sqlite3* raw() const noexcept { return db_; }

 private:
  void copy_between(const std::string& copy, bool back) {
    sqlite3* other = nullptr;
    int code = sqlite3_open(copy.c_str(), &other);
    if (code == SQLITE_OK) {
      sqlite3_backup* const backup =
          back ? sqlite3_backup_init(db_, "main", other, "main") : sqlite3_backup_init(other, "main", db_, "main");
      while (backup != nullptr && ((code = sqlite3_backup_step(backup, -1)) == SQLITE_BUSY || code == SQLITE_LOCKED)) {
        sqlite3_sleep(1);
      }
      code = sqlite3_backup_finish(backup);
    }
    sqlite3_close(other);
    if (code != SQLITE_OK) throw std::runtime_error((back ? "restore " : "backup ") + copy);
  }

  sqlite3* db_ = nullptr;
};

}  // namespace once::testing
