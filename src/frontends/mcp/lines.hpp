// Splits a stream of bytes into lines, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace once::mcp {

// The id of a JSON-RPC message that is too long to be kept. It reads the text in pieces, and remembers only the `id` of
// the outermost object.
class IdScanner {
 public:
  void take(std::string_view piece);
  // As id_text(). Empty: none was found, or it is none.
  [[nodiscard]] std::string id() const;

 private:
  void byte(char c);

  enum class In : std::uint8_t { value, string, escape };
  In in_ = In::value;
  std::size_t depth_ = 0;
  bool is_name_ = false;   // The present string, or the one that ended last, is a name of the outermost object.
  bool is_id_ = false;     // The value of "id" is being read.
  bool is_cut_ = false;    // What is being read is longer than a name or an id.
  std::string text_ = {};  // The present name, or the id, as JSON.
  std::string name_ = {};  // The last name of the outermost object, as JSON.
  std::string id_text_ = {};
};

struct LineOptions {
  std::size_t max_bytes = std::size_t{10} * 1024 * 1024;  // Of a line, without its newline.
};

class LineReader {
 public:
  // `line`: each line, without its newline, also an empty one. `too_long`: instead of a line that is longer than the
  // limit, whose bytes are dropped as they arrive: the id of the message, or empty, and how long it was.
  struct Sink {
    std::function<void(std::string&& line)> line;
    std::function<void(const std::string& id, std::uint64_t bytes)> too_long;
  };
  explicit LineReader(LineOptions options) : options_(options) {}

  void take(std::string_view bytes, const Sink& sink);
  [[nodiscard]] bool has_part() const noexcept { return !line_.empty() || is_dropping_; }  // A line has begun.

 private:
  const LineOptions options_;
  std::string line_ = {};
  bool is_dropping_ = false;  // The line is too long, and this much of it was dropped.
  std::uint64_t dropped_ = 0;
  IdScanner scanner_ = {};
};

}  // namespace once::mcp
