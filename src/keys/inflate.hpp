// Decompression to a bounded size.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace once::keys {

class Inflater {
 public:
  enum class Format : std::uint8_t { gzip, zlib };  // RFC 1952, RFC 1950.

  Inflater(Format format, std::size_t max_bytes);
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater();

  // Decompresses one member from the front of `bytes`, and appends it to `out`. False: `problem` says why, for example
  // because `out` became larger than max_bytes.
  bool member(std::string_view& bytes, std::string& out, std::string& problem);

 private:
  z_stream stream_{};
  const std::size_t max_bytes_;
};

}  // namespace once::keys
