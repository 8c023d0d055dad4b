// What `once run` keeps of a command: the bytes of Result::bytes for the content type below.
//
//   "once-run" 0x01          magic and version
//   then, any number of      'o' or 'e', length (4 bytes, big endian, 1 …), bytes: standard output or error, in the
//   frames                   order they came; two frames of one stream never follow each other
//   or one frame             'd', bytes of standard output, of standard error (8 bytes each, big endian): there was too
//                            much to keep
//   and last                 'x', exit code (1 byte), or 's', signal (1 byte, 1 to 64)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/result.hpp>

namespace once::operators {

inline constexpr std::string_view run_content_type = "application/vnd.once.run";

enum class Stream : std::uint8_t { output, error };

// How a command ended.
struct CommandEnd {
  bool signaled = false;
  std::uint8_t code = 0;  // Exit code, or the signal's number.

  // As shells have it: the exit code, or 128 + signal.
  [[nodiscard]] int exit_code() const noexcept { return signaled ? 128 + code : code; }
  [[nodiscard]] std::string text() const { return (signaled ? "signal " : "exit ") + std::to_string(code); }
  friend bool operator==(const CommandEnd&, const CommandEnd&) = default;
};

struct RunResult {
  struct Chunk {
    Stream stream;
    std::string_view bytes;  // A view into the decoded bytes.
  };
  std::vector<Chunk> chunks;
  bool dropped = false;  // The output was too large to keep. `chunks` is empty.
  std::uint64_t output_bytes = 0;
  std::uint64_t error_bytes = 0;
  CommandEnd end;

  [[nodiscard]] std::string of(Stream stream) const;  // All of one stream.
};

// Throws Exception(corrupt) for anything that Recorder did not write. The result has views into `bytes`.
RunResult decode_run_result(std::string_view bytes);
// Of a record's result. Empty: it is another one, or its bytes are not at hand. Throws the same.
std::optional<RunResult> run_result_of(const Result& result);

// Collects a command's output in encoded form.
class Recorder {
 public:
  // Above `limit` bytes of encoded output, all is dropped, and only counted.
  explicit Recorder(std::uint64_t limit);

  void add(Stream stream, std::string_view bytes);
  [[nodiscard]] bool dropped() const noexcept { return dropped_; }
  [[nodiscard]] bool empty() const noexcept { return output_bytes_ == 0 && error_bytes_ == 0; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return output_bytes_ + error_bytes_; }

  // The encoded result. Call it once.
  [[nodiscard]] std::string finish(CommandEnd end);
  // The same with the output dropped.
  [[nodiscard]] std::string finish_without_output(CommandEnd end);

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  std::uint64_t limit_;
  std::string encoded_;
  std::size_t frame_ = none;  // Where the last frame begins.
  bool dropped_ = false;
  std::uint64_t output_bytes_ = 0;
  std::uint64_t error_bytes_ = 0;
};

}  // namespace once::operators
