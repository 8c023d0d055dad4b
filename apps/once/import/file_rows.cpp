// Rows of CSV (RFC 4180) and of lines of JSON.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory_resource>
#include <optional>
#include <utility>

#include <once/error.hpp>

#include "import/rows.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "text/ascii.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;

constexpr std::size_t block_bytes = std::size_t{256} * 1024;
constexpr std::size_t rows_at_once = 500;                             // Returned by one call of next() …
constexpr std::size_t bytes_at_once = std::size_t{4} * 1024 * 1024;   // … and about so many bytes.
constexpr std::size_t max_row_bytes = std::size_t{64} * 1024 * 1024;  // A larger one is a file of another kind.

// The bytes of a file, one at a time, with the place and the line.
class Bytes {
 public:
  explicit Bytes(std::string path) : path_(std::move(path)) {
    if (path_ == "-") {
      fd_ = STDIN_FILENO;
      return;
    }
    file_.reset(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    fd_ = file_.get();
    struct stat found {};
    if (fd_ < 0 || fstat(fd_, &found) != 0) {
      throw Exception(ErrorKind::unavailable, "cannot open " + name() + ": " + std::strerror(errno));
    }
    if (S_ISDIR(found.st_mode)) misuse(name() + " is a directory");
    is_seekable_ = S_ISREG(found.st_mode);
    size_ = static_cast<std::uint64_t>(found.st_size);
  }

  [[nodiscard]] std::string name() const { return path_ == "-" ? "standard input" : "'" + escaped(path_) + "'"; }
  [[nodiscard]] bool is_file() const noexcept { return is_seekable_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t place() const noexcept { return begin_ + at_; }
  [[nodiscard]] std::uint64_t line() const noexcept { return line_; }

  // The next byte, or -1 at the end.
  int peek() {
    if (at_ == block_.size() && !fill()) return -1;
    return static_cast<unsigned char>(block_[at_]);
  }
  int take() {
    const int byte = peek();
    if (byte < 0) return byte;
    ++at_;
    if (byte == '\n') ++line_;
    return byte;
  }

  void go_to(std::uint64_t place, std::uint64_t line) {
    if (lseek(fd_, static_cast<off_t>(place), SEEK_SET) < 0) fail();
    begin_ = place;
    line_ = line;
    block_.clear();
    at_ = 0;
  }

 private:
  [[noreturn]] void fail() const {
    throw Exception(ErrorKind::unavailable, "cannot read " + name() + ": " + std::strerror(errno));
  }

  bool fill() {
    begin_ += block_.size();
    block_.resize(block_bytes);
    at_ = 0;
    ssize_t count = 0;
    do {
      count = read(fd_, block_.data(), block_.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) fail();
    block_.resize(static_cast<std::size_t>(count));
    return count > 0;
  }

  const std::string path_;
  Fd file_;
  int fd_ = -1;
  bool is_seekable_ = false;
  std::uint64_t size_ = 0;
  std::uint64_t begin_ = 0;  // Of block_.
  std::string block_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1;
};

class FileRows : public Rows {
 public:
  explicit FileRows(const std::string& path) : bytes_(path) {}

  std::vector<Row> next() override {
    std::vector<Row> rows;
    std::size_t bytes = 0;
    while (rows.size() < rows_at_once && bytes < bytes_at_once) {
      std::optional<Row> row = read();
      if (!row) break;
      bytes += row->json.size();
      rows.push_back(std::move(*row));
    }
    return rows;
  }

  // "size of the file, place, line".
  [[nodiscard]] std::string position() const override {
    if (!bytes_.is_file()) return {};
    return std::to_string(bytes_.size()) + " " + std::to_string(bytes_.place()) + " " + std::to_string(bytes_.line());
  }

  [[nodiscard]] std::string name() const override { return bytes_.name(); }

 protected:
  // Empty at the end.
  virtual std::optional<Row> read() = 0;

  void skip_byte_order_mark() {
    if (bytes_.peek() != 0xEF) return;
    for (int k = 0; k < 3; ++k) bytes_.take();
  }

  void go_to(const std::string& position) {
    if (position.empty()) return;
    const auto parts = split(position, ' ');
    const auto number = [&](std::size_t at) {
      const auto value = at < parts.size() ? text::parse_whole<std::uint64_t>(parts[at]) : std::nullopt;
      if (!value) misuse("the position in " + bytes_.name() + " is malformed");
      return *value;
    };
    if (!bytes_.is_file() || number(0) != bytes_.size()) {
      misuse(bytes_.name() + " is not the file that the import began with: its size differs. Import it from the start");
    }
    bytes_.go_to(number(1), number(2));
  }

  void check_size(std::size_t bytes) const {
    if (bytes > max_row_bytes) {
      misuse("the row at line " + std::to_string(bytes_.line()) + " of " + bytes_.name() + " is larger than " +
             show_size(max_row_bytes) + ": is a quote missing?");
    }
  }

  Bytes bytes_;
};

class CsvRows final : public FileRows {
 public:
  CsvRows(const std::string& path, const std::string& position) : FileRows(path) {
    skip_byte_order_mark();
    std::vector<Field> head;
    if (!record(head)) misuse(bytes_.name() + " is empty: its first line must name the columns");
    for (const Field& field : head) {
      if (field.text.empty() || !text::valid_utf8(field.text)) misuse("a column of " + bytes_.name() + " has no name");
      for (const std::string& other : names_) {
        if (other == field.text) misuse(bytes_.name() + " has two columns named '" + escaped(other) + "'");
      }
      names_.push_back(field.text);
    }
    go_to(position);
  }

 private:
  struct Field {
    std::string text;
    bool quoted = false;
  };

  std::optional<Row> read() override {
    skip_line_ends();
    const std::uint64_t line = bytes_.line();
    std::vector<Field> fields;
    if (!record(fields)) return std::nullopt;
    Row row{.json = "{", .name = "line " + std::to_string(line), .problem = {}};
    if (fields.size() != names_.size()) {
      row.problem = "it has " + std::to_string(fields.size()) + " fields, and the first line names " +
                    std::to_string(names_.size());
    }
    for (std::size_t at = 0; at < fields.size() && row.problem.empty(); ++at) {
      const Field& field = fields[at];
      if (!text::valid_utf8(field.text)) row.problem = "'" + escaped(names_[at]) + "' is not UTF-8";
      if (at > 0) row.json += ',';
      json::append_quoted(row.json, names_[at]);
      row.json += ':';
      if (field.text.empty() && !field.quoted) {
        row.json += "null";
      } else if (row.problem.empty()) {
        json::append_quoted(row.json, field.text);
      }
    }
    row.json += '}';
    if (!row.problem.empty()) row.json.clear();
    return row;
  }

  // Lines without any text between two records are left out.
  void skip_line_ends() {
    while (bytes_.peek() == '\n' || bytes_.peek() == '\r') bytes_.take();
  }

  // False at the end.
  bool record(std::vector<Field>& fields) {
    if (bytes_.peek() < 0) return false;
    std::size_t size = 0;
    for (;;) {
      Field field;
      if (bytes_.peek() == '"') {
        field.quoted = true;
        bytes_.take();
        quoted(field.text, size);
      }
      for (int byte = bytes_.peek(); byte >= 0 && byte != ',' && byte != '\n' && byte != '\r'; byte = bytes_.peek()) {
        field.text += static_cast<char>(bytes_.take());
        check_size(++size);
      }
      fields.push_back(std::move(field));
      const int end = bytes_.take();
      if (end == ',') continue;
      if (end == '\r' && bytes_.peek() == '\n') bytes_.take();
      return true;
    }
  }

  void quoted(std::string& text, std::size_t& size) {
    const std::uint64_t line = bytes_.line();
    for (;;) {
      const int byte = bytes_.take();
      if (byte < 0) misuse("the quote at line " + std::to_string(line) + " of " + bytes_.name() + " is not closed");
      if (byte == '"') {
        if (bytes_.peek() != '"') return;
        bytes_.take();
      }
      text += static_cast<char>(byte);
      check_size(++size);
    }
  }

  std::vector<std::string> names_;
};

class LineRows final : public FileRows {
 public:
  LineRows(const std::string& path, const std::string& position, bool is_export) : FileRows(path), export_(is_export) {
    skip_byte_order_mark();
    go_to(position);
  }

 private:
  std::optional<Row> read() override {
    for (;;) {
      const std::uint64_t number = bytes_.line();
      std::string line;
      if (bytes_.peek() < 0) return std::nullopt;
      for (int byte = bytes_.take(); byte >= 0 && byte != '\n'; byte = bytes_.take()) {
        line += static_cast<char>(byte);
        check_size(line.size());
      }
      if (text::trim(line, " \t\r").empty()) continue;
      return row_of(std::move(line), "line " + std::to_string(number));
    }
  }

  Row row_of(std::string line, std::string name) const {
    Row row{.json = {}, .name = std::move(name), .problem = {}};
    try {
      std::pmr::monotonic_buffer_resource arena;
      const json::Value value = json::parse(line, {.exact_numbers = false}, arena, "it");
      if (value.kind() != json::Kind::object) misuse("it is not a JSON object");
      if (!export_) {
        row.json = std::move(line);
        return row;
      }
      const json::Value item = value.member("Item");
      if (item.kind() != json::Kind::object) misuse("it has no \"Item\", as a line of an export has");
      row.json = plain_item(item);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      row.problem = error.what();
    }
    return row;
  }

  const bool export_;
};

}  // namespace

std::unique_ptr<Rows> open_file_rows(FileForm form, const std::string& path, const std::string& position) {
  if (form == FileForm::csv) return std::make_unique<CsvRows>(path, position);
  return std::make_unique<LineRows>(path, position, form == FileForm::dynamodb_export);
}

}  // namespace once::cli::importing
