#include "keys/inflate.hpp"

#include <array>
#include <new>

namespace once::keys {

namespace {

constexpr int window_bits = 15;
constexpr int gzip_bits = 16;

}  // namespace

Inflater::Inflater(Format format, std::size_t max_bytes) : max_bytes_(max_bytes) {
  if (inflateInit2(&stream_, window_bits + (format == Format::gzip ? gzip_bits : 0)) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(&stream_); }

bool Inflater::member(std::string_view& bytes, std::string& out, std::string& problem) {
  inflateReset(&stream_);
  // zlib does not write to its input.
  stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // NOLINT
  stream_.avail_in = static_cast<uInt>(bytes.size());
  std::array<char, 16384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): written by zlib
  for (;;) {
    stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream_.avail_out = static_cast<uInt>(buffer.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    out.append(buffer.data(), buffer.size() - stream_.avail_out);
    if (out.size() > max_bytes_) {
      problem = "inflates to more than " + (max_bytes_ % (std::size_t{1} << 20U) == 0
                                                ? std::to_string(max_bytes_ >> 20U) + " MiB"
                                                : std::to_string(max_bytes_) + " bytes");
      return false;
    }
    if (result == Z_STREAM_END) break;
    if (result != Z_OK) {
      problem = result == Z_BUF_ERROR ? "is cut off" : stream_.msg != nullptr ? stream_.msg : "damaged";
      return false;
    }
  }
  bytes.remove_prefix(bytes.size() - stream_.avail_in);
  return true;
}

}  // namespace once::keys
