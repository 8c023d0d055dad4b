#include "stores/sqlite/readers.hpp"

#include <cstddef>
#include <exception>
#include <utility>

#include <once/error.hpp>

#include "platform/file.hpp"
#include "stores/sqlite/schema.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::size_t kept_readers = 16;  // Connections that are kept open.

}  // namespace

// Lends a connection for as long as this lives.
class Readers::Lent {
 public:
  explicit Lent(Readers& readers) : readers_(readers) {
    if (!readers_.file_.options().read_only) readers_.file_.check_index();
    {
      const std::lock_guard lock(readers_.mutex_);
      if (!readers_.free_.empty()) {
        reading_ = std::move(readers_.free_.back());
        readers_.free_.pop_back();
      }
    }
    if (!reading_) reading_ = readers_.open();
  }
  ~Lent() {
    // After a failure it is not used again: a new one may work. Nor with read_only, where each is opened as the file
    // is at that moment.
    if (std::uncaught_exceptions() != exceptions_ || readers_.file_.options().read_only) return;
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

// For a reader alone: without a log, in a directory where SQLite cannot make its side files, the file is all there is.
std::unique_ptr<Reading> Readers::open() const {
  const Millis patience = file_.options().busy_timeout;
  if (!file_.options().read_only) {
    return std::make_unique<Reading>(file_.path(), file_.vfs(), patience, Connection::Mode::write);
  }
  const NoFileSizeSignal no_signal;  // SQLite may make its index of the log.
  const auto open_as = [&](Connection::Mode mode) {
    {
      Connection connection(file_.path(), file_.vfs(), patience, mode);
      if (!has_tables(connection)) {
        throw Exception(ErrorKind::unavailable,
                        "sqlite store " + file_.path() +
                            ": it has no records yet: the first program that claims a key makes "
                            "its tables");
      }
    }
    return std::make_unique<Reading>(file_.path(), file_.vfs(), patience, mode);
  };
  try {
    return open_as(Connection::Mode::read);
  } catch (const SqlError& error) {
    const bool no_side_files = error.primary() == SQLITE_CANTOPEN || error.primary() == SQLITE_READONLY;
    if (!no_side_files) throw;
    if (size_of(file_.path() + "-wal") == 0) return open_as(Connection::Mode::immutable);
    throw SqlError(error.kind(),
                   std::string(error.what()) +
                       "; to read it without these permissions, copy it and its -wal to a directory of your own",
                   error.code());
  }
}

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

std::vector<std::string> Readers::check(SqliteCheck how) const { return open()->check(file_.hash_key(), recent_, how); }

}  // namespace once::stores::sqlite
