#include "stores/sqlite/readers.hpp"

#include <cstddef>
#include <exception>
#include <utility>

namespace once::stores::sqlite {

namespace {

constexpr std::size_t kept_readers = 16;  // Connections that are kept open.

}  // namespace

// Lends a connection for as long as this lives.
class Readers::Lent {
 public:
  explicit Lent(Readers& readers) : readers_(readers) {
    {
      const std::lock_guard lock(readers_.mutex_);
      if (!readers_.free_.empty()) {
        reading_ = std::move(readers_.free_.back());
        readers_.free_.pop_back();
      }
    }
    const StoreFile& file = readers_.file_;
    if (!reading_) reading_ = std::make_unique<Reading>(file.path(), file.vfs(), file.options().busy_timeout);
  }
  ~Lent() {
    // After a failure it is not used again: a new one may work.
    if (std::uncaught_exceptions() != exceptions_) return;
    const std::lock_guard lock(readers_.mutex_);
    if (readers_.free_.size() < kept_readers) readers_.free_.push_back(std::move(reading_));
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  Reading* operator->() noexcept { return reading_.get(); }

 private:
  Readers& readers_;
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<Reading> reading_;
};

Reading::Found Readers::find(const std::string& key) {
  file_.check_identity();
  Lent reading(*this);
  return reading->find(key, file_.hash_key(), recent_);
}

ListPage Readers::list(const ListQuery& query) {
  file_.check_identity();
  Lent reading(*this);
  return reading->list(query);
}

std::vector<std::string> Readers::check(SqliteCheck how) const {
  return Reading(file_.path(), file_.vfs(), file_.options().busy_timeout).check(file_.hash_key(), recent_, how);
}

}  // namespace once::stores::sqlite
