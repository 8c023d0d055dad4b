// What a record claims to be a compressed result, and bytes that are compressed and expanded again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <once/engine/compression.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const once::Result whole = once::Result::inlined(bytes);
  if (auto kept = once::compressed(whole, bytes.size())) {
    if (kept->bytes.size() > size - size / 10 || once::expand(*kept) || !(*kept == whole)) std::abort();
  }
  // Two bytes of its claimed size, and the stored bytes.
  if (size < 2) return 0;
  once::Result claimed = once::Result::inlined(bytes.substr(2));
  claimed.placement = once::Placement::compressed;
  claimed.size = data[0] | static_cast<unsigned>(data[1]) << 8U;
  const once::Result before = claimed;
  const auto error = once::expand(claimed);
  if (!error || error->kind != once::ErrorKind::corrupt || !(claimed == before)) std::abort();  // Its digest is zero.
  return 0;
}
