#include "stores/sqlite/log_state.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace once::stores::sqlite {

namespace {

// Of the log (sqlite.org/walformat.html, "WAL File Format").
constexpr std::size_t log_header_bytes = 32;
constexpr std::size_t frame_header_bytes = 24;
constexpr std::uint32_t magic = 0x377F0682;  // Plus 1: the checksum is over big-endian numbers.

// SQLite's unix VFS takes the length of a read or write modulo 128 KiB (seekAndRead, seekAndWriteFd in os_unix.c).
constexpr std::size_t most_bytes = std::size_t{124} * 1024;

std::uint32_t big_endian(const char* at) noexcept {
  std::uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = (number << 8U) | static_cast<unsigned char>(at[i]);
  return number;
}

std::uint32_t native(const char* at) noexcept {
  std::uint32_t number = 0;
  std::memcpy(&number, at, sizeof number);
  return number;
}

std::uint64_t both(std::uint32_t first, std::uint32_t second) noexcept {
  return (std::uint64_t{first} << 32U) | second;
}

// The mapped first page of SQLite's index of the log, or null.
const volatile char* mapped_index(Connection& connection) {
  constexpr std::uint32_t version = 3'007'000;
  sqlite3_file* const file = open_file(connection);
  void volatile* header = nullptr;
  if (file == nullptr || file->pMethods->xShmMap(file, 0, index_part_bytes, 0, &header) != SQLITE_OK ||
      header == nullptr || *static_cast<const volatile std::uint32_t*>(header) != version) {
    return nullptr;
  }
  return static_cast<const volatile char*>(header);
}
std::uint32_t number_at(const volatile char* index, std::size_t at) noexcept {
  return *reinterpret_cast<const volatile std::uint32_t*>(index + at);
}

// 65,536 is kept as 1, and nothing before the log's first commit.
std::uint32_t page_bytes_at(const volatile char* index, std::size_t at) noexcept {
  const std::uint32_t kept = *reinterpret_cast<const volatile std::uint16_t*>(index + at);
  return kept == 1 ? 65'536 : kept;
}

// Reads the log through a connection's open file, in order: its header, then its frames, each with a page.
class LogReader {
 public:
  explicit LogReader(Connection& connection) noexcept {
    if (sqlite3_file_control(connection.raw(), "main", SQLITE_FCNTL_JOURNAL_POINTER, static_cast<void*>(&file_)) !=
            SQLITE_OK ||
        file_ == nullptr || file_->pMethods == nullptr) {
      file_ = nullptr;
    }
  }
  [[nodiscard]] sqlite3_file* file() const noexcept { return file_; }

  // Reads the header, which has the page size.
  int read_header() {
    const int code = read(header_, 0);
    page_bytes_ = big_endian(&header_[8]);
    const bool is_right = page_bytes_ >= 512 && page_bytes_ <= 65'536 && (big_endian(header_.data()) & ~1U) == magic;
    return code != SQLITE_OK || is_right ? code : SQLITE_IOERR_DATA;
  }
  [[nodiscard]] std::span<char> header() noexcept { return header_; }
  [[nodiscard]] std::size_t frame_bytes() const noexcept { return frame_header_bytes + page_bytes_; }
  [[nodiscard]] std::int64_t place_of(std::uint64_t frame) const noexcept {  // `frame`: from 0.
    return static_cast<std::int64_t>(header_.size() + frame * frame_bytes());
  }
  int read(std::span<char> bytes, std::int64_t at) const {
    return file_->pMethods->xRead(file_, bytes.data(), static_cast<int>(bytes.size()), at);
  }
  int write(std::span<const char> bytes, std::int64_t at) const {
    return file_->pMethods->xWrite(file_, bytes.data(), static_cast<int>(bytes.size()), at);
  }

 private:
  sqlite3_file* file_ = nullptr;
  std::array<char, log_header_bytes> header_{};
  std::size_t page_bytes_ = 0;
};

// Checks the parts of a log against its index, by SQLite's own rules.
class LogCheck {
 public:
  explicit LogCheck(std::span<const char> header) noexcept
      : is_big_endian_((big_endian(header.data()) & 1U) != 0), salts_(&header[16], 8) {
    add(header.first(24));
  }
  // Call it in the order of the frames. False: SQLite would end the log before this frame.
  bool take(std::span<const char> frame) noexcept {
    add(frame.first(8));
    add(frame.subspan(frame_header_bytes));
    return std::string_view(&frame[8], 8) == salts_ && both(big_endian(&frame[16]), big_endian(&frame[20])) == sum();
  }
  [[nodiscard]] std::uint64_t sum() const noexcept { return both(first_, second_); }
  [[nodiscard]] std::uint64_t salts() const noexcept { return both(native(&salts_[0]), native(&salts_[4])); }

 private:
  void add(std::span<const char> bytes) noexcept {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      first_ += number(&bytes[at]) + second_;
      second_ += number(&bytes[at + 4]) + first_;
    }
  }
  [[nodiscard]] std::uint32_t number(const char* at) const noexcept {
    return is_big_endian_ ? big_endian(at) : __builtin_bswap32(big_endian(at));
  }

  const bool is_big_endian_;
  const std::string_view salts_;
  std::uint32_t first_ = 0;
  std::uint32_t second_ = 0;
};

}  // namespace

LogState log_state(Connection& connection) {
  const volatile char* const index = mapped_index(connection);
  if (index == nullptr) return {};
  const auto pair = [&](std::size_t at) { return both(number_at(index, at), number_at(index, at + 4)); };
  return {.commits = number_at(index, 8),
          .sum = pair(40),
          .salts = pair(32),
          .frames = number_at(index, 16),
          .frames_sum = pair(24),
          .page_bytes = page_bytes_at(index, 14),
          .pages = number_at(index, 20)};
}

std::uint64_t end_of_log(const LogState& state) noexcept {
  return log_header_bytes + state.frames * (frame_header_bytes + state.page_bytes);
}

sqlite3_file* open_file(Connection& connection) noexcept {
  sqlite3_file* file = nullptr;
  const int code = sqlite3_file_control(connection.raw(), "main", SQLITE_FCNTL_FILE_POINTER, static_cast<void*>(&file));
  const bool has_index = code == SQLITE_OK && file->pMethods != nullptr && file->pMethods->iVersion >= 2;
  return has_index ? file : nullptr;
}

// The first part has less room for frames, because of its header (sqlite.org/walformat.html, "Hash Tables").
std::uint64_t index_part_of(std::uint64_t frame) noexcept {
  constexpr std::uint64_t frames = 4096;
  constexpr std::uint64_t header_bytes = 136;
  return (frame - 1 + header_bytes / 4) / frames;
}

int make_index_part(sqlite3_file* database, std::uint64_t part) noexcept {
  void volatile* mapped = nullptr;
  return database->pMethods->xShmMap(database, static_cast<int>(part), index_part_bytes, 1, &mapped);
}

bool overwrites_log(Connection& connection, std::uint64_t file_bytes) {
  const volatile char* const index = mapped_index(connection);
  if (index == nullptr) return true;
  const std::uint32_t frames = number_at(index, 16);
  const std::uint32_t copied = number_at(index, 96);  // nBackfill: if it is all of them, the log begins anew.
  return file_bytes > (copied >= frames ? log_header_bytes : end_of_log(log_state(connection)));
}

int write_log_again(Connection& connection, const LogState& state) {
  LogReader log(connection);
  if (log.file() == nullptr || state.sum == 0) return SQLITE_IOERR;
  if (state.frames > 0) {
    int code = log.read_header();
    if (code == SQLITE_OK) code = log.write(log.header(), 0);
    if (code != SQLITE_OK) return code;
    LogCheck check(log.header());
    std::vector<char> bytes(most_bytes / log.frame_bytes() * log.frame_bytes());
    for (std::uint64_t frame = 0; frame < state.frames;) {
      const auto count = std::min<std::uint64_t>(bytes.size() / log.frame_bytes(), state.frames - frame);
      const auto part = std::span(bytes).first(count * log.frame_bytes());
      code = log.read(part, log.place_of(frame));
      for (std::size_t at = 0; at < part.size() && code == SQLITE_OK; at += log.frame_bytes()) {
        if (!check.take(part.subspan(at, log.frame_bytes()))) code = SQLITE_IOERR_DATA;
      }
      if (code == SQLITE_OK) code = log.write(part, log.place_of(frame));
      if (code != SQLITE_OK) return code;
      frame += count;
    }
    if (check.sum() != state.frames_sum || check.salts() != state.salts) return SQLITE_IOERR_DATA;
  }
  return log.file()->pMethods->xSync(log.file(), SQLITE_SYNC_NORMAL);
}

FirstPage::Copies FirstPage::copies(Connection& connection) {
  const volatile char* const index = mapped_index(connection);
  if (index == nullptr) return {};
  return {.salts = log_state(connection).salts, .copied = number_at(index, 96), .begun = number_at(index, 128)};
}

bool FirstPage::is_as_before(Connection& connection) {
  sqlite3_file* file = nullptr;
  if (sqlite3_file_control(connection.raw(), "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK) return true;
  // In this order: a shell that copies the log changes `copies` first.
  const Copies before = copies(connection);
  Head head{};
  const int code = file->pMethods->xRead(file, head.data(), static_cast<int>(head.size()), 0);
  if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ) return true;  // The next reader of the page gets the error.
  if (is_known_ && head != head_ && copies(connection) == copies_ && !is_in_log(connection, head)) return false;
  head_ = head;
  copies_ = before;
  is_known_ = true;
  return true;
}

// A failed copy that is retried may leave only the page.
bool FirstPage::is_in_log(Connection& connection, const Head& head) {
  LogReader log(connection);
  const std::uint64_t frames = log_state(connection).frames;
  if (log.file() == nullptr || frames == 0 || log.read_header() != SQLITE_OK) return false;
  std::array<char, frame_header_bytes + std::tuple_size_v<Head>> begin{};
  for (std::uint64_t frame = 0; frame < frames; ++frame) {
    if (log.read(begin, log.place_of(frame)) != SQLITE_OK) return false;
    if (big_endian(begin.data()) == 1 && std::ranges::equal(std::span(begin).subspan(frame_header_bytes), head)) {
      return true;
    }
  }
  return false;
}

}  // namespace once::stores::sqlite
