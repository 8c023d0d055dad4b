// Reads one HTTP/1.1 answer from bytes as they come (RFC 9112). Pure: no socket, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "aws/http.hpp"

namespace once::aws {

class HttpReader {
 public:
  enum class Status : std::uint8_t { more, done, failed };

  HttpReader(std::size_t max_head_bytes, std::size_t max_body_bytes) noexcept
      : max_head_bytes_(max_head_bytes), max_body_bytes_(max_body_bytes) {}

  // Call it before each answer.
  void begin();

  // Takes all of `bytes`. Bytes after the end of the answer make it not reusable().
  Status feed(std::string_view bytes);

  // The server has closed the connection, which may be the end of the answer.
  Status end();

  [[nodiscard]] Status status() const noexcept { return status_; }
  HttpAnswer take() { return std::move(answer_); }  // After done.
  [[nodiscard]] bool reusable() const noexcept { return reusable_; }
  [[nodiscard]] bool begun() const noexcept { return begun_; }  // At least one byte was fed.
  // After failed: the text that follows "the answer ".
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  enum class Stage : std::uint8_t { head, body, until_close, chunk_size, chunk_data, chunk_end, trailers, over };

  Status fail(std::string problem);
  bool refuse(std::string problem);  // fail(), and false.
  Status finish();
  bool read_head(std::string_view head);  // False: it failed.
  bool add_body(std::string_view bytes);
  bool take_line(std::string_view& bytes);  // Moves up to and with "\n" into line_. False: it is not all there yet.
  bool read_line();                         // What line_ means in this stage. False: fail() was called.

  const std::size_t max_head_bytes_;
  const std::size_t max_body_bytes_;
  Status status_ = Status::more;
  Stage stage_ = Stage::head;
  bool begun_ = false;
  bool reusable_ = false;
  std::uint64_t left_ = 0;         // Of the body, or of the chunk.
  std::size_t trailer_bytes_ = 0;  // Read so far.
  std::string line_;               // A head, or a line between chunks, of which only a part is here.
  std::string problem_;
  HttpAnswer answer_;
};

}  // namespace once::aws
