// A row of the SQLite store's table after a manual edit or a disk error: reading it gives a record or corrupt, by get
// and by list.
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/sqlite.hpp>

namespace {

constexpr std::array<const char*, 23> columns = {
    "state",           "revision",     "attempt",     "token",    "lease_until_ms", "expires_at_ms", "created_at_ms",
    "finished_at_ms",  "owner",        "fingerprint", "key",      "holder",         "note",          "steps",
    "result",          "content_type", "placement",   "location", "result_bytes",   "result_sha256", "failure_code",
    "failure_message", "sweep_at_ms"};

// Bytes of the input, until there are none.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint8_t byte() {
    const std::string_view one = take(1);
    return one.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(one.front());
  }
  std::int64_t number() {
    std::int64_t value = 0;
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

 private:
  std::string_view rest_;
};

void need(bool condition) {
  if (!condition) std::abort();
}

// One file with one row, and the row as it was kept aside.
class File {
 public:
  File() {
    std::string pattern = (std::filesystem::temp_directory_path() / "once-fuzz-XXXXXX").string();
    need(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    once::stores::SqliteOptions options;
    options.path = (folder_ / "once.db").string();
    store = once::stores::make_sqlite_store(options);
    once::Record record;
    record.key = once::Key("fuzz", "k").stored();
    record.owner.bytes.fill(7);
    record.token = record.attempt = 1;
    record.revision = once::next_revision(0, 0);
    record.steps = {{"first", "1"}, {"second", "22"}};
    record.result = once::Result::inlined("result", "text/plain");
    key = record.key;
    need(once::blocking::insert(*store, record).status == once::AnswerStatus::done);
    need(sqlite3_open(options.path.c_str(), &raw) == SQLITE_OK);
    run("PRAGMA synchronous = OFF; CREATE TEMP TABLE kept AS SELECT * FROM records");
  }
  ~File() {
    sqlite3_close(raw);
    store.reset();
    std::error_code ignored;  // Left behind in the temporary directory at the worst.
    std::filesystem::remove_all(folder_, ignored);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void run(const char* sql) const { need(sqlite3_exec(raw, sql, nullptr, nullptr, nullptr) == SQLITE_OK); }

  std::unique_ptr<once::Store> store;
  sqlite3* raw = nullptr;
  std::string key;

 private:
  std::filesystem::path folder_;
};

void spoil(const File& file, Input& input) {
  const std::string sql =
      std::string("UPDATE OR IGNORE records SET ") + columns[input.byte() % columns.size()] + " = ?";
  sqlite3_stmt* statement = nullptr;
  need(sqlite3_prepare_v2(file.raw, sql.c_str(), -1, &statement, nullptr) == SQLITE_OK);
  const std::uint8_t type = input.byte();
  std::string_view bytes;
  switch (type % 4) {
    case 0:
      sqlite3_bind_null(statement, 1);
      break;
    case 1:
      sqlite3_bind_int64(statement, 1, input.number());
      break;
    default:
      bytes = input.take(input.byte());
      if (type % 4 == 2)
        sqlite3_bind_text64(statement, 1, bytes.data(), bytes.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
      else
        sqlite3_bind_blob64(statement, 1, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
  }
  sqlite3_step(statement);  // NOT NULL columns keep what they have.
  sqlite3_finalize(statement);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const File file;
  file.run("BEGIN; DELETE FROM records; INSERT INTO records SELECT * FROM kept");
  Input input(data, size);
  while (!input.empty()) spoil(file, input);
  file.run("COMMIT");

  const once::Answer answer = once::blocking::get(*file.store, file.key);
  if (answer.status == once::AnswerStatus::failed) need(answer.error.kind == once::ErrorKind::corrupt);
  if (answer.record) need(answer.record->key == file.key);
  const once::ListPage page = once::blocking::list(*file.store, {});
  if (page.error) need(page.error->kind == once::ErrorKind::corrupt);
  if (answer.record) need(!page.error && page.records.size() == 1 && page.records.front() == *answer.record);
  return 0;
}
