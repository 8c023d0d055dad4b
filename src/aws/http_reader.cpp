#include "aws/http_reader.hpp"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "text/ascii.hpp"
#include "text/number.hpp"

namespace once::aws {

namespace {

constexpr std::size_t reserve_at_most = std::size_t{1} << 20U;  // The server's length may be wrong.

bool is_visible(char c) noexcept { return c > ' ' && c < 0x7f; }

// Whether a comma-separated list has this word.
bool has_word(std::string_view list, std::string_view word) noexcept {
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (text::same_letters(text::trim(list.substr(0, comma)), word)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

void HttpReader::begin() {
  status_ = Status::more;
  stage_ = Stage::head;
  begun_ = false;
  reusable_ = false;
  left_ = 0;
  trailer_bytes_ = 0;
  line_.clear();
  problem_.clear();
  answer_ = {};
}

HttpReader::Status HttpReader::fail(std::string problem) {
  problem_ = std::move(problem);
  reusable_ = false;
  stage_ = Stage::over;
  return status_ = Status::failed;
}

bool HttpReader::refuse(std::string problem) {
  fail(std::move(problem));
  return false;
}

HttpReader::Status HttpReader::finish() {
  stage_ = Stage::over;
  return status_ = Status::done;
}

HttpReader::Status HttpReader::feed(std::string_view bytes) {
  if (!bytes.empty()) begun_ = true;
  while (!bytes.empty() && status_ == Status::more) {
    switch (stage_) {
      case Stage::head: {
        // Usually the whole head comes at once, and is read in place.
        const std::size_t before = line_.size();
        std::string_view seen = bytes;
        if (before != 0) {
          line_ += bytes;
          seen = line_;
        }
        const auto end = seen.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        // Up to three bytes of the end may be there already.
        if ((end == std::string_view::npos ? seen.size() - std::min<std::size_t>(seen.size(), 3) : end) >
            max_head_bytes_) {
          return fail("has a head of more than " + std::to_string(max_head_bytes_) + " bytes");
        }
        if (end == std::string_view::npos) {
          if (before == 0) line_ = bytes;
          return status_;
        }
        bytes.remove_prefix(end + 4 - before);
        const bool good = read_head(seen.substr(0, end + 2));
        line_.clear();
        if (!good) return status_;
        break;
      }
      case Stage::body:
      case Stage::chunk_data: {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
        if (!add_body(bytes.substr(0, count))) return status_;
        bytes.remove_prefix(count);
        left_ -= count;
        if (left_ == 0) {
          if (stage_ == Stage::body) {
            finish();
          } else {
            stage_ = Stage::chunk_end;
          }
        }
        break;
      }
      case Stage::until_close:
        add_body(bytes);
        return status_;
      case Stage::chunk_size:
      case Stage::chunk_end:
      case Stage::trailers:
        if (!take_line(bytes) || !read_line()) return status_;
        line_.clear();
        break;
      case Stage::over:
        break;
    }
  }
  if (!bytes.empty()) reusable_ = false;
  return status_;
}

HttpReader::Status HttpReader::end() {
  reusable_ = false;
  if (status_ != Status::more) return status_;
  return stage_ == Stage::until_close ? finish() : fail("broke off");
}

bool HttpReader::read_head(std::string_view head) {
  const auto next_line = [&head] {
    const auto end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    return line;
  };
  // "HTTP/1.1 200 OK"
  const std::string_view first = next_line();
  const bool ours = first.size() >= 12 && first.starts_with("HTTP/1.") && (first[7] == '0' || first[7] == '1') &&
                    first[8] == ' ' && (first.size() == 12 || first[12] == ' ');
  const auto status = ours ? text::parse_whole<unsigned>(first.substr(9, 3), 10) : std::nullopt;
  if (!status || *status < 100) return refuse("is not HTTP/1.1");
  answer_.status = static_cast<int>(*status);
  answer_.headers.clear();
  answer_.headers.reserve(8);

  bool keep_alive = first[7] == '1';
  bool close = false;
  bool chunked = false;
  bool encoded = false;
  std::optional<std::uint64_t> length;
  while (!head.empty()) {
    const std::string_view line = next_line();
    const auto colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos ||
        !std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon), is_visible)) {
      return refuse("has a malformed header");
    }
    std::string name = text::lower(line.substr(0, colon));
    const std::string_view value = text::trim(line.substr(colon + 1));
    if (name == "content-length") {
      const auto told = text::parse_whole<std::uint64_t>(value, 10);
      if (!told || (length && *length != *told)) return refuse("has a malformed Content-Length");
      length = told;
    } else if (name == "transfer-encoding") {
      encoded = true;
      chunked = text::same_letters(value, "chunked");
    } else if (name == "connection") {
      close = close || has_word(value, "close");
      keep_alive = keep_alive || has_word(value, "keep-alive");
    }
    answer_.headers.emplace_back(std::move(name), value);
  }
  reusable_ = keep_alive && !close;

  if (*status < 200) {
    // Another answer follows (RFC 9110, 15.2); switching protocols was not requested.
    return *status != 101 || refuse("switches protocols");
  }
  if (*status == 204 || *status == 304) {
    finish();
  } else if (encoded) {
    if (!chunked) return refuse("has an encoding other than chunked");
    // Both together are used for request smuggling (RFC 9112, 6.3).
    if (length) return refuse("has both a length and chunks");
    stage_ = Stage::chunk_size;
  } else if (length) {
    if (*length > max_body_bytes_) {
      return refuse("has a body of more than " + std::to_string(max_body_bytes_) + " bytes");
    }
    left_ = *length;
    stage_ = Stage::body;
    answer_.body.reserve(std::min(static_cast<std::size_t>(left_), reserve_at_most));
    if (left_ == 0) finish();
  } else {
    reusable_ = false;
    stage_ = Stage::until_close;
  }
  return true;
}

bool HttpReader::add_body(std::string_view bytes) {
  if (bytes.size() > max_body_bytes_ - answer_.body.size()) {
    return refuse("has a body of more than " + std::to_string(max_body_bytes_) + " bytes");
  }
  answer_.body += bytes;
  return true;
}

bool HttpReader::take_line(std::string_view& bytes) {
  const auto end = bytes.find('\n');
  const auto count = std::min(end, bytes.size() - 1) + 1;
  if (line_.size() + count > max_head_bytes_) return refuse("has an endless line");
  line_ += bytes.substr(0, count);
  bytes.remove_prefix(count);
  return end != std::string_view::npos;
}

bool HttpReader::read_line() {
  std::string_view line = line_;
  if (!line.ends_with("\r\n")) return refuse("has a malformed chunk");
  line.remove_suffix(2);
  switch (stage_) {
    case Stage::chunk_size: {
      const auto size = text::parse_whole<std::uint64_t>(text::trim(line.substr(0, line.find(';'))), 16);
      if (!size) return refuse("has a malformed chunk");
      left_ = *size;
      stage_ = left_ == 0 ? Stage::trailers : Stage::chunk_data;
      return true;
    }
    case Stage::chunk_end:
      if (!line.empty()) return refuse("has a malformed chunk");
      stage_ = Stage::chunk_size;
      return true;
    default:  // A trailer, which is ignored, or the line that ends them.
      if (line.empty()) {
        finish();
        return true;
      }
      trailer_bytes_ += line_.size();
      if (trailer_bytes_ > max_head_bytes_) return refuse("has an endless trailer");
      return true;
  }
}

}  // namespace once::aws
