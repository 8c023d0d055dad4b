#include "keys/dialects/decode.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <once/error.hpp>

#include "keys/refuse.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

constexpr unsigned none = 64;
constexpr std::string_view base64_characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::uint8_t, 256> make_base64_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(none);
  std::uint8_t next = 0;
  for (const char c : base64_characters) {
    values[static_cast<unsigned char>(c)] = next++;
  }
  return values;
}
constexpr auto base64_values = make_base64_values();

unsigned value_of(char c) { return base64_values[static_cast<unsigned char>(c)]; }

// Collects six bits at a time.
class Bits {
 public:
  explicit Bits(std::size_t characters) { out_.reserve(characters / 4 * 3 + 3); }
  void add(unsigned six) {
    bits_ = (bits_ << 6U) | six;
    count_ += 6;
    if (count_ >= 8) {
      count_ -= 8;
      out_ += static_cast<char>((bits_ >> count_) & 0xFFU);
    }
  }
  [[nodiscard]] bool rest_is_zero() const { return (bits_ & ((1U << count_) - 1)) == 0; }
  std::string take() { return std::move(out_); }

 private:
  std::uint32_t bits_ = 0;
  unsigned count_ = 0;
  std::string out_;
};

std::string decode_python(std::string_view text) {
  Bits bits(text.size());
  std::size_t characters = 0;  // Of the alphabet.
  std::size_t pads = 0;        // Since the last of those.
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) refuse("powertools_base64: a character outside ASCII");
    if (c == '=') {
      // A complete group ends the data; what follows is not looked at.
      if (characters % 4 >= 2 && characters % 4 + ++pads >= 4) return bits.take();
      continue;
    }
    const unsigned six = value_of(c);
    if (six == none) continue;
    pads = 0;
    ++characters;
    bits.add(six);
  }
  if (characters % 4 != 0) refuse("powertools_base64: not Base64: padding is missing or characters are");
  return bits.take();
}

// Everyone else: the alphabet, then '='.
std::string decode_strict(std::string_view text, bool padding_required, bool zero_rest) {
  const auto padding = text.find('=');
  const std::string_view data = text.substr(0, padding);
  const std::size_t pads = text.size() - data.size();
  Bits bits(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    const unsigned six = value_of(data[i]);
    if (six == none) refuse("powertools_base64: not Base64: byte " + std::to_string(i + 1) + " is no character of it");
    bits.add(six);
  }
  const std::size_t wanted = data.size() % 4 == 2 ? 2 : data.size() % 4 == 3 ? 1 : 0;
  const bool unpadded = pads == 0 && !padding_required;
  if (data.size() % 4 == 1 || (pads != wanted && !unpadded) ||
      (pads != 0 && text.find_first_not_of('=', padding) != std::string_view::npos)) {
    refuse("powertools_base64: not Base64: wrong length or padding");
  }
  if (zero_rest && !bits.rest_is_zero()) {
    refuse("powertools_base64: not Base64: the last character has bits that belong to no byte");
  }
  return bits.take();
}

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  // One member from the front of `bytes`; false and a message if there is none. Appends to out.
  bool member(std::string_view& bytes, std::string& out, std::string& problem) {
    inflateReset(&stream_);
    // zlib does not write through it.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // NOLINT
    stream_.avail_in = static_cast<uInt>(bytes.size());
    std::array<char, 16384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): written by zlib
    for (;;) {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream_.avail_out = static_cast<uInt>(buffer.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      out.append(buffer.data(), buffer.size() - stream_.avail_out);
      if (out.size() > max_event_bytes) {
        problem = "inflates to more than 256 MiB";
        return false;
      }
      if (result == Z_STREAM_END) break;
      if (result != Z_OK) {
        problem = result == Z_BUF_ERROR ? "ends before its end" : stream_.msg != nullptr ? stream_.msg : "damaged";
        return false;
      }
    }
    bytes.remove_prefix(bytes.size() - stream_.avail_in);
    return true;
  }

 private:
  z_stream stream_{};
};

bool inflate_all(std::string_view bytes, Dialect dialect, std::string& out, std::string& problem) {
  Inflater inflater;
  if (bytes.empty()) {
    problem = "empty";
    // Python: gzip.decompress(b"") == b"".
    return dialect == Dialect::powertools_python;
  }
  do {
    if (!inflater.member(bytes, out, problem)) return false;
    if (dialect == Dialect::powertools_python) {
      const auto data = bytes.find_first_not_of('\0');
      bytes.remove_prefix(data == std::string_view::npos ? bytes.size() : data);
    } else if (dialect != Dialect::native && !bytes.starts_with("\x1f\x8b")) {
      return true;
    }
  } while (!bytes.empty());
  return true;
}

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = (group << 8U) | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? base64_characters[(group >> (18 - 6 * k)) & 63U] : '=';
    }
  }
  return out;
}

std::string decode_base64(std::string_view text, Dialect dialect) {
  switch (dialect) {
    case Dialect::powertools_python:
      return decode_python(text);
    case Dialect::native:
      return decode_strict(text, true, true);
    case Dialect::powertools_typescript:
      return decode_strict(text, true, false);
    case Dialect::powertools_java:
      return decode_strict(text, false, false);
    case Dialect::powertools_dotnet:
      break;
  }
  std::string compact;
  std::ranges::copy_if(text, std::back_inserter(compact),
                       [](char c) { return c != ' ' && c != '\t' && c != '\r' && c != '\n'; });
  return decode_strict(compact, true, false);
}

std::string gunzip(std::string_view bytes, Dialect dialect) {
  std::string out;
  std::string problem;
  if (!inflate_all(bytes, dialect, out, problem)) {
    refuse("powertools_base64_gzip: not gzip data: " + problem);
  }
  return out;
}

std::string java_gunzip_text(std::string_view bytes) {
  std::string out;
  std::string problem;
  if (!bytes.empty() && !inflate_all(bytes, Dialect::powertools_java, out, problem)) {
    return text::replace_invalid_utf8(bytes);
  }
  out = text::replace_invalid_utf8(out);
  std::erase_if(out, [](char c) { return c == '\n' || c == '\r'; });
  return out;
}

}  // namespace once::keys
