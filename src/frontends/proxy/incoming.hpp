// Reads an HTTP/1.x message: its head, then its body without the framing. Has no socket. scan_head() has checked the
// line structure of the head; this checks the contents of the lines strictly (RFC 9112, sections 3, 4, 5 and 7.1). A
// lenient reader would read something else than the next server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::proxy {

class Incoming {
 public:
  Incoming() = default;
  Incoming(const Incoming&) = delete;  // It has views into itself.
  Incoming& operator=(const Incoming&) = delete;

  // Begin a message with its complete head, of which a copy is kept until the next one. False: invalid.
  [[nodiscard]] bool read_request(std::string_view head);
  [[nodiscard]] bool read_answer(std::string_view head,
                                 bool to_head);  // `to_head`: the answer to a HEAD request, without a body.

  // The limits of lines, and of names in Connection or Trailer; more is invalid. nginx has 1000 lines (max_headers),
  // Node.js 2000, Envoy, Apache and HAProxy about 100.
  static constexpr std::size_t most_lines = 1'000;
  static constexpr std::size_t most_listed = 100;
  [[nodiscard]] bool has_too_many() const noexcept { return has_too_many_; }

  [[nodiscard]] std::string_view method() const noexcept { return method_; }
  [[nodiscard]] std::string_view target() const noexcept { return target_; }
  [[nodiscard]] unsigned version() const noexcept { return version_; }  // 10 or 11
  [[nodiscard]] unsigned status() const noexcept { return status_; }    // 100 to 999
  [[nodiscard]] std::string_view reason() const noexcept { return reason_; }
  [[nodiscard]] const std::vector<http::HeaderView>& headers() const noexcept { return headers_; }

  // False: the framing is ambiguous. Then ignore everything below.
  [[nodiscard]] bool is_framed_well() const noexcept { return framing_fault_.empty(); }
  [[nodiscard]] std::string_view framing_fault() const noexcept { return framing_fault_; }  // A sentence, or empty.
  [[nodiscard]] bool chunked() const noexcept { return chunked_; }
  [[nodiscard]] std::optional<std::uint64_t> content_length() const noexcept { return length_; }
  // Whether this message and its sender allow another message on the connection.
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }

  [[nodiscard]] bool is_done() const noexcept { return state_ == State::done; }

  // Continues the body with the bytes after those taken before. Nothing skipped and no piece: it needs more bytes, or
  // is done.
  struct Step {
    std::size_t skipped = 0;  // How many of `bytes` are framing, before the piece.
    std::string_view piece;   // Follows them.
    bool malformed = false;
  };
  [[nodiscard]] Step take(std::string_view bytes);
  // The connection has ended. True: that completes the body.
  [[nodiscard]] bool end_with_connection() noexcept;

  // After a chunked body, when it is done.
  [[nodiscard]] const http::Headers& trailers() const noexcept { return trailers_; }

 private:
  enum class State : std::uint8_t { done, length, to_end, chunk_size, chunk_data, chunk_end, trailers };

  void begin(std::string_view head);
  [[nodiscard]] bool read_version(std::string_view text) noexcept;
  [[nodiscard]] bool read_fields(std::string_view lines);
  [[nodiscard]] bool note(const http::HeaderView& field);
  void settle_framing();

  std::string text_;
  std::string_view method_;
  std::string_view target_;
  std::string_view reason_;
  std::string_view framing_fault_;
  std::vector<http::HeaderView> headers_;
  http::Headers trailers_;
  std::optional<std::uint64_t> length_;
  std::uint64_t left_ = 0;  // Bytes left of the body or chunk.
  std::size_t trailer_bytes_ = 0;
  unsigned version_ = 11;
  unsigned status_ = 0;
  unsigned lengths_ = 0;  // Lines that frame the body.
  unsigned codings_ = 0;
  std::size_t options_ = 0;    // Names in Connection.
  std::size_t announced_ = 0;  // In Trailer.
  bool has_too_many_ = false;
  State state_ = State::done;
  bool chunked_ = false;
  bool says_close_ = false;
  bool says_keep_alive_ = false;
  bool keep_alive_ = false;
};

}  // namespace once::proxy
