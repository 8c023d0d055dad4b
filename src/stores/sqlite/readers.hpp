// All readers, each on its own connection.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <once/store.hpp>
#include <once/stores/sqlite.hpp>

#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/reading.hpp"
#include "stores/sqlite/store_file.hpp"

namespace once::stores::sqlite {

// Thread-safe. Methods throw as Reading's do.
class Readers {
 public:
  Readers(const StoreFile& file, const RecentKeys& recent) : file_(file), recent_(recent) {}
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  Reading::Found find(const std::string& key);
  ListPage list(const ListQuery& query);
  [[nodiscard]] std::vector<std::string> check(SqliteCheck how) const;
  // Calls `use(connection)`, on a connection of its own, for what is read seldom.
  template <class Use>
  void once(Use&& use) const {
    use(open()->connection());
  }

 private:
  class Lent;

  [[nodiscard]] std::unique_ptr<Reading> open() const;

  const StoreFile& file_;
  const RecentKeys& recent_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reading>> free_;
};

}  // namespace once::stores::sqlite
