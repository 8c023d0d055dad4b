// Rows of CSV (RFC 4180) and of lines of JSON.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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
#include "text/utf8.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;

constexpr std::size_t block_bytes = std::size_t{256} * 1024;
constexpr std::size_t max_row_bytes = std::size_t{64} * 1024 * 1024;  // A larger one is a file of another kind.

// The bytes of a file, one at a time, with the line.
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
  }

  [[nodiscard]] std::string name() const { return path_ == "-" ? "standard input" : "'" + escaped(path_) + "'"; }
  // The file's whole path. Empty for standard input.
  [[nodiscard]] std::string source() const {
    return path_ == "-" ? path_.substr(1) : std::filesystem::absolute(path_).lexically_normal().string();
  }
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

 private:
  [[noreturn]] void fail() const {
    throw Exception(ErrorKind::unavailable, "cannot read " + name() + ": " + std::strerror(errno));
  }

  bool fill() {
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
  std::string block_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1;
};

class FileRows : public Rows {
 public:
  explicit FileRows(const std::string& path) : bytes_(path) {}

  [[nodiscard]] std::string name() const override { return bytes_.name(); }
  [[nodiscard]] std::string source() const override { return bytes_.source(); }

 protected:
  void read(std::vector<Row>& rows) override {
    std::size_t bytes = 0;
    while (rows.size() < rows_at_once && bytes < bytes_at_once) {
      std::optional<Row> row = read_row();
      if (!row) return;
      bytes += row->json.size();
      rows.push_back(std::move(*row));
    }
  }

  // Empty at the end.
  virtual std::optional<Row> read_row() = 0;

  void skip_byte_order_mark() {
    if (bytes_.peek() != 0xEF) return;
    for (int k = 0; k < 3; ++k) bytes_.take();
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
  explicit CsvRows(const std::string& path) : FileRows(path) {
    skip_byte_order_mark();
    std::vector<Field> head;
    if (!record(head)) misuse(bytes_.name() + " is empty: its first line must name the columns");
    for (const Field& field : head) {
      if (!field.problem.empty()) misuse("the first line of " + bytes_.name() + ": " + field.problem);
      if (field.text.empty() || !text::valid_utf8(field.text)) misuse("a column of " + bytes_.name() + " has no name");
      for (const std::string& other : names_) {
        if (other == field.text) misuse(bytes_.name() + " has two columns named '" + escaped(other) + "'");
      }
      names_.push_back(field.text);
    }
  }

 private:
  struct Field {
    std::string text = {};
    bool quoted = false;
    std::string problem = {};  // Not empty: it is not as RFC 4180 has it.
  };

  std::optional<Row> read_row() override {
    skip_line_ends();
    const std::uint64_t line = bytes_.line();
    std::vector<Field> fields;
    if (!record(fields)) return std::nullopt;
    Row row{.json = "{", .name = "line " + std::to_string(line), .problem = {}};
    if (fields.size() != names_.size()) {
      row.problem = "it has " + std::to_string(fields.size()) + " fields, and the first line names " +
                    std::to_string(names_.size());
    }
    for (const Field& field : fields) {
      if (!field.problem.empty()) row.problem = "a field " + field.problem;
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
        // As MySQL writes {"a": 1}: "{\"a\": 1}".
        if (field.text.ends_with('\\'))
          field.problem = "ends with a backslash before its quote: RFC 4180 doubles quotes";
      }
      for (int byte = bytes_.peek(); byte >= 0 && byte != ',' && byte != '\n' && byte != '\r'; byte = bytes_.peek()) {
        if (field.quoted && field.problem.empty())
          field.problem = "goes on behind its closing quote: RFC 4180 doubles quotes";
        if (byte == '"' && field.problem.empty()) field.problem = "has a quote, and does not begin with one";
        field.text += static_cast<char>(bytes_.take());
        check_size(++size);
      }
      if (!field.quoted && field.text == "\\N") field.problem = "is \\N: write nothing at all for NULL";
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
  LineRows(const std::string& path, bool is_export) : FileRows(path), export_(is_export) { skip_byte_order_mark(); }

 private:
  std::optional<Row> read_row() override {
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
      row.binary = binary_attributes(item);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      row.problem = error.what();
    }
    return row;
  }

  const bool export_;
};

}  // namespace

std::unique_ptr<Rows> open_file_rows(FileForm form, const std::string& path) {
  if (form == FileForm::csv) return std::make_unique<CsvRows>(path);
  return std::make_unique<LineRows>(path, form == FileForm::dynamodb_export);
}

}  // namespace once::cli::importing
