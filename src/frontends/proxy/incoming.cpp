#include "frontends/proxy/incoming.hpp"

#include <algorithm>
#include <system_error>

#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/number.hpp"

namespace once::proxy {

using http::HeaderView;
using http::same_name;

namespace {

constexpr std::size_t most_chunk_line_bytes = 4 * 1024;  // Including its extensions, which are dropped.
constexpr std::size_t most_trailer_bytes = 16 * 1024;    // All trailers together.
constexpr std::size_t most_size_digits = 16;             // Of a chunk, in hexadecimal.
constexpr std::string_view http_1 = "HTTP/1.";

// Takes the first line from `text`, without CR LF.
std::string_view take_line(std::string_view& text) noexcept {
  const std::string_view line = text.substr(0, text.find('\r'));
  text.remove_prefix(std::min(text.size(), line.size() + 2));
  return line;
}

// "Name: value", the value trimmed.
std::optional<HeaderView> field_of(std::string_view line) noexcept {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const HeaderView field{line.substr(0, colon), text::trim(line.substr(colon + 1))};
  if (!text::is_token(field.name) || !text::is_field_text(field.value)) return std::nullopt;
  return field;
}

// The size in a line before a chunk, "1a2b;name=value" without CR LF.
std::optional<std::uint64_t> chunk_size(std::string_view line) noexcept {
  const std::string_view digits = line.substr(0, line.find_first_not_of("0123456789abcdefABCDEF"));
  if (digits.empty() || digits.size() > most_size_digits) return std::nullopt;
  const std::string_view extensions = text::trim(line.substr(digits.size()));
  if (digits.size() != line.size() && !extensions.starts_with(';')) return std::nullopt;
  if (!text::is_field_text(extensions)) return std::nullopt;
  return text::parse_whole<std::uint64_t>(digits, 16);
}

}  // namespace

void Incoming::begin(std::string_view head) {
  text_.assign(head);
  method_ = target_ = reason_ = framing_fault_ = {};
  headers_.clear();
  trailers_.clear();
  length_.reset();
  left_ = trailer_bytes_ = 0;
  status_ = lengths_ = codings_ = 0;
  options_ = announced_ = 0;
  has_too_many_ = false;
  state_ = State::done;
  chunked_ = says_close_ = says_keep_alive_ = keep_alive_ = false;
}

bool Incoming::read_version(std::string_view text) noexcept {
  if (text.size() != http_1.size() + 1 || !text.starts_with(http_1)) return false;
  const char minor = text.back();
  version_ = minor == '0' ? 10 : 11;
  return minor == '0' || minor == '1';
}

bool Incoming::read_request(std::string_view head) {
  begin(head);
  std::string_view rest = text_;
  const std::string_view line = take_line(rest);
  const auto first = line.find(' ');
  const auto last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return false;
  method_ = line.substr(0, first);
  target_ = line.substr(first + 1, last - first - 1);
  // One space on each side, so the target has none.
  const bool plain =
      std::ranges::all_of(target_, [](char c) { return static_cast<unsigned char>(c) > 0x20 && c != 0x7F; });
  if (!text::is_token(method_) || target_.empty() || !plain) return false;
  if (!read_version(line.substr(last + 1)) || !read_fields(rest)) return false;
  settle_framing();
  if (chunked_) {
    state_ = State::chunk_size;
  } else if (length_.value_or(0) > 0) {
    state_ = State::length;
  }
  left_ = length_.value_or(0);
  return true;
}

bool Incoming::read_answer(std::string_view head, bool to_head) {
  begin(head);
  std::string_view rest = text_;
  const std::string_view line = take_line(rest);
  constexpr std::size_t digits_at = http_1.size() + 2;
  constexpr std::size_t digits_end = digits_at + 3;
  if (line.size() < digits_end || line[digits_at - 1] != ' ' || !read_version(line.substr(0, digits_at - 1)))
    return false;
  const auto status = text::parse_whole<std::uint64_t>(line.substr(digits_at, 3), 10);
  if (!status || *status < 100) return false;
  status_ = static_cast<unsigned>(*status);
  // The reason and its space may be missing.
  if (line.size() > digits_end && line[digits_end] != ' ') return false;
  reason_ = line.substr(std::min(line.size(), digits_end + 1));
  if (!text::is_field_text(reason_) || !read_fields(rest)) return false;
  settle_framing();
  if (to_head || status_ < 200 || status_ == 204 || status_ == 304) return true;
  if (chunked_) {
    state_ = State::chunk_size;
  } else if (length_) {
    if (*length_ > 0) state_ = State::length;
  } else {
    state_ = State::to_end;
    keep_alive_ = false;
  }
  left_ = length_.value_or(0);
  return true;
}

bool Incoming::read_fields(std::string_view lines) {
  for (;;) {
    const std::string_view line = take_line(lines);
    if (line.empty()) return true;
    const auto field = field_of(line);
    if (!field || !note(*field)) return false;
    has_too_many_ = headers_.size() == most_lines || options_ > most_listed || announced_ > most_listed;
    if (has_too_many_) return false;
    headers_.push_back(*field);
  }
}

// Reads the fields about the message itself.
bool Incoming::note(const HeaderView& field) {
  if (same_name(field.name, "Content-Length")) {
    ++lengths_;
    length_ = text::parse_whole<std::uint64_t>(field.value, 10);
  } else if (same_name(field.name, "Transfer-Encoding")) {
    ++codings_;
    chunked_ = same_name(field.value, "chunked");
  } else if (same_name(field.name, "Connection") || same_name(field.name, "Proxy-Connection")) {
    const auto members = text::list_members(field.value);
    options_ += members.size();
    for (const std::string_view option : members) {
      if (!text::is_token(option)) return false;
      says_close_ = says_close_ || same_name(option, "close");
      says_keep_alive_ = says_keep_alive_ || same_name(option, "keep-alive");
    }
  } else if (same_name(field.name, "Trailer")) {
    announced_ += text::list_members(field.value).size();
  }
  return true;
}

void Incoming::settle_framing() {
  if (codings_ > 0) {
    if (lengths_ > 0) {
      framing_fault_ = "The request has both Content-Length and Transfer-Encoding.";
    } else if (version_ == 10) {
      framing_fault_ = "HTTP/1.0 has no Transfer-Encoding.";
    } else if (codings_ > 1) {
      framing_fault_ = "The request has more than one Transfer-Encoding.";
    } else if (!chunked_) {
      framing_fault_ = "The only supported Transfer-Encoding is chunked.";
    }
  } else if (lengths_ > 1) {
    framing_fault_ = "The request has more than one Content-Length.";
  } else if (lengths_ == 1 && !length_) {
    framing_fault_ = "Content-Length is not a number.";
  }
  keep_alive_ = is_framed_well() && !says_close_ && (version_ == 11 || says_keep_alive_);
}

Incoming::Step Incoming::take(std::string_view bytes) {
  Step step;
  const auto malformed = [&] {
    step.malformed = true;
    return step;
  };
  for (;;) {
    const std::string_view rest = bytes.substr(step.skipped);
    switch (state_) {
      case State::done:
        return step;
      case State::to_end:
        step.piece = rest;
        return step;
      case State::length:
      case State::chunk_data:
        step.piece = rest.substr(0, left_);
        left_ -= step.piece.size();
        if (left_ == 0) state_ = state_ == State::length ? State::done : State::chunk_end;
        return step;
      case State::chunk_end:
        if (!std::string_view("\r\n").starts_with(rest.substr(0, 2))) return malformed();
        if (rest.size() < 2) return step;
        step.skipped += 2;
        state_ = State::chunk_size;
        break;
      case State::chunk_size:
      case State::trailers: {
        const std::size_t end = rest.find('\n');
        const std::string_view line = rest.substr(0, std::min(end, rest.size()));
        const bool is_size = state_ == State::chunk_size;
        const std::size_t most = is_size ? most_chunk_line_bytes : most_trailer_bytes - trailer_bytes_;
        if (line.size() > most) return malformed();
        if (end == std::string_view::npos) return step;
        if (!line.ends_with('\r')) return malformed();
        const std::string_view text = line.substr(0, line.size() - 1);
        step.skipped += end + 1;
        if (is_size) {
          const auto size = chunk_size(text);
          if (!size) return malformed();
          left_ = *size;
          state_ = left_ == 0 ? State::trailers : State::chunk_data;
        } else if (text.empty()) {
          state_ = State::done;
        } else {
          const auto field = field_of(text);
          if (!field) return malformed();
          trailer_bytes_ += line.size();
          trailers_.push_back({std::string(field->name), std::string(field->value)});
        }
        break;
      }
    }
  }
}

bool Incoming::end_with_connection() noexcept {
  if (state_ == State::to_end) state_ = State::done;
  return is_done();
}

}  // namespace once::proxy
