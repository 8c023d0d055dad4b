#include "frontends/mcp/lines.hpp"

#include <algorithm>
#include <memory_resource>
#include <utility>

#include "frontends/mcp/message.hpp"

namespace once::mcp {

namespace {

constexpr std::size_t max_scanned_bytes = max_id_bytes + 2;  // With its quotes.

bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void IdScanner::take(std::string_view piece) {
  for (const char c : piece) byte(c);
}

void IdScanner::byte(char c) {
  const auto keep = [&] {
    if (!is_name_ && !is_id_) return;
    if (text_.size() >= max_scanned_bytes) {
      is_cut_ = true;
    } else {
      text_ += c;
    }
  };
  if (in_ == In::escape || (in_ == In::string && c != '"')) {
    keep();
    in_ = in_ == In::string && c == '\\' ? In::escape : In::string;
    return;
  }
  if (in_ == In::string) {  // Its end.
    keep();
    in_ = In::value;
    if (is_name_) name_ = is_cut_ ? std::string() : std::exchange(text_, {});
    return;
  }
  switch (c) {
    case '"':
      in_ = In::string;
      keep();
      return;
    case '{':
    case '[':
      ++depth_;
      is_id_ = false;  // An id is neither.
      is_name_ = c == '{' && depth_ == 1;
      text_.clear();
      is_cut_ = false;
      return;
    case ':':
      if (depth_ != 1) return;
      is_id_ = is_name_ && name_ == "\"id\"";
      is_name_ = false;
      text_.clear();
      is_cut_ = false;
      return;
    case ',':
    case '}':
    case ']':
      if (depth_ == 1) {
        if (is_id_ && !is_cut_) id_text_ = text_;
        is_id_ = false;
        is_name_ = c == ',';
        text_.clear();
        is_cut_ = false;
      }
      if (c != ',' && depth_ > 0) --depth_;
      return;
    default:
      if (is_id_ && !is_blank(c)) keep();
      return;
  }
}

std::string IdScanner::id() const {
  std::pmr::monotonic_buffer_resource arena;
  json::Value value;
  if (!json::try_parse(id_text_, {.lone_surrogates = true}, arena, value)) return {};
  return mcp::id_text(value);
}

void LineReader::take(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (!is_dropping_ && line_.size() + piece.size() > options_.max_bytes) {
      is_dropping_ = true;
      scanner_ = {};
      scanner_.take(line_);
      dropped_ = line_.size();
      line_ = {};
    }
    if (is_dropping_) {
      scanner_.take(piece);
      dropped_ += piece.size();
    } else {
      line_ += piece;
    }
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    if (std::exchange(is_dropping_, false)) {
      sink.too_long(scanner_.id(), dropped_);
    } else {
      sink.line(std::exchange(line_, {}));
    }
  }
}

}  // namespace once::mcp
