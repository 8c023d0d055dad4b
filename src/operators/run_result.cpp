#include "operators/run_result.hpp"

#include <algorithm>

#include <once/error.hpp>

namespace once::operators {

namespace {

constexpr std::string_view magic{"once-run\x01", 9};
constexpr std::size_t frame_head_bytes = 5;
constexpr std::uint64_t max_frame_bytes = 0xFFFF'FFFF;
constexpr std::uint8_t max_signal = 64;

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xFF);
}

class FrameReader {
 public:
  explicit FrameReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) fail("it is cut off");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (const char c : take(static_cast<std::uint64_t>(bytes))) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }

  [[noreturn]] static void fail(const char* why) {
    throw Exception(ErrorKind::corrupt,
                    std::string("the stored result was not written by this version of `once run`: ") + why);
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string RunResult::of(Stream stream) const {
  std::string all;
  for (const Chunk& chunk : chunks) {
    if (chunk.stream == stream) all += chunk.bytes;
  }
  return all;
}

RunResult decode_run_result(std::string_view bytes) {
  FrameReader reader(bytes);
  if (reader.take(std::min(bytes.size(), magic.size())) != magic) FrameReader::fail("it begins with other bytes");
  RunResult result;
  for (;;) {
    const char kind = reader.take(1).front();
    switch (kind) {
      case 'o':
      case 'e': {
        const Stream stream = kind == 'o' ? Stream::output : Stream::error;
        if (result.dropped) FrameReader::fail("output after dropped output");
        if (!result.chunks.empty() && result.chunks.back().stream == stream) FrameReader::fail("a split frame");
        const std::uint64_t length = reader.number(4);
        if (length == 0) FrameReader::fail("an empty frame");
        result.chunks.push_back({stream, reader.take(length)});
        (stream == Stream::output ? result.output_bytes : result.error_bytes) += length;
        break;
      }
      case 'd':
        if (result.dropped || !result.chunks.empty()) FrameReader::fail("dropped output after output");
        result.dropped = true;
        result.output_bytes = reader.number(8);
        result.error_bytes = reader.number(8);
        break;
      case 'x':
      case 's':
        result.end.signaled = kind == 's';
        result.end.code = static_cast<std::uint8_t>(reader.number(1));
        if (result.end.signaled && (result.end.code == 0 || result.end.code > max_signal)) {
          FrameReader::fail("a signal that does not exist");
        }
        if (!reader.at_end()) FrameReader::fail("bytes after its end");
        return result;
      default:
        FrameReader::fail("an unknown frame");
    }
  }
}

std::optional<RunResult> run_result_of(const Result& result) {
  if (result.content_type != run_content_type || result.bytes.empty()) return std::nullopt;
  return decode_run_result(result.bytes);
}

Recorder::Recorder(std::uint64_t limit) : limit_(std::min(limit, max_frame_bytes)), encoded_(magic) {}

void Recorder::add(Stream stream, std::string_view bytes) {
  if (bytes.empty()) return;
  (stream == Stream::output ? output_bytes_ : error_bytes_) += bytes.size();
  if (dropped_) return;
  const char kind = stream == Stream::output ? 'o' : 'e';
  const bool new_frame = frame_ == none || encoded_[frame_] != kind;
  if (encoded_.size() + (new_frame ? frame_head_bytes : 0) + bytes.size() > limit_ + magic.size()) {
    dropped_ = true;
    encoded_ = std::string(magic);
    encoded_.shrink_to_fit();
    return;
  }
  if (new_frame) {
    frame_ = encoded_.size();
    encoded_ += kind;
    put(encoded_, 0, 4);
  }
  encoded_ += bytes;
  std::string length;
  put(length, encoded_.size() - frame_ - frame_head_bytes, 4);
  encoded_.replace(frame_ + 1, length.size(), length);
}

std::string Recorder::finish(CommandEnd end) {
  if (dropped_) return finish_without_output(end);
  encoded_ += end.signaled ? 's' : 'x';
  encoded_ += static_cast<char>(end.code);
  return std::move(encoded_);
}

std::string Recorder::finish_without_output(CommandEnd end) {
  std::string out(magic);
  out += 'd';
  put(out, output_bytes_, 8);
  put(out, error_bytes_, 8);
  out += end.signaled ? 's' : 'x';
  out += static_cast<char>(end.code);
  return out;
}

}  // namespace once::operators
