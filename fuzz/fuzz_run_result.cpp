// The form in which once run keeps what a command left: decoding either refuses as corrupt, or gives what encodes to
// the very same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <once/error.hpp>

#include "operators/run_result.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace once::operators;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  RunResult result;
  try {
    result = decode_run_result(bytes);
  } catch (const once::Exception& error) {
    if (error.kind() != once::ErrorKind::corrupt) std::abort();
    return 0;
  }
  if (result.dropped) return 0;  // The counts alone: there is nothing to encode from.
  Recorder recorder(size);
  for (const RunResult::Chunk& chunk : result.chunks) recorder.add(chunk.stream, chunk.bytes);
  if (recorder.finish(result.end) != bytes) std::abort();
  return 0;
}
