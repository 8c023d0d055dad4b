#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <once/error.hpp>
#include <once/seal.hpp>

#include "platform/file.hpp"
#include "seal/sealing.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"

namespace once {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{64} << 10U;

bool is_id(std::string_view id) noexcept {
  return !id.empty() && id.size() <= SealKey::max_id_bytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

constexpr std::string_view blanks = " \t\r";

std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(blanks));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

namespace seals {

void check(const SealKeys& keys) {
  if (keys.empty()) throw Exception(ErrorKind::misuse, "there is no key to seal with");
  for (const SealKey& key : keys) {
    if (!is_id(key.id)) {
      throw Exception(ErrorKind::misuse, "the seal key's id '" + text::printable(key.id) +
                                             "' is not 1 to 64 letters, digits, '-', '_' or '.'");
    }
    if (find(keys, key.id) != &key) throw Exception(ErrorKind::misuse, "two seal keys have the id '" + key.id + "'");
    if (key.bytes == decltype(key.bytes){}) {
      throw Exception(ErrorKind::misuse, "the seal key '" + key.id + "' has only zero bytes");
    }
  }
}

}  // namespace seals

SealKeys parse_seal_keys(std::string_view text, std::string_view name) {
  SealKeys keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view id = take_word(line);
    if (id.empty() || id.starts_with('#')) continue;
    const auto refuse = [&](const char* what) {
      throw Exception(ErrorKind::misuse,
                      std::string(name) + ", line " + std::to_string(number) + ": " + what +
                          ". Write an id and 32 bytes in Base64: 2026-11 $(openssl rand -base64 32)");
    };
    // Without the text: a key may stand where an id should.
    if (!is_id(id)) refuse("the id is not 1 to 64 letters, digits, '-', '_' or '.'");
    const auto bytes = text::decode_base64(take_word(line));
    SealKey key{.id = std::string(id), .bytes = {}};
    if (!bytes || bytes->size() != key.bytes.size()) refuse("the key is not 32 bytes in Base64");
    if (!take_word(line).empty()) refuse("there is a third word");
    std::copy(bytes->begin(), bytes->end(), key.bytes.begin());
    keys.push_back(std::move(key));
  }
  try {
    seals::check(keys);
  } catch (const Exception& error) {
    throw Exception(error.kind(), std::string(name) + ": " + error.what());
  }
  return keys;
}

SealKeys read_seal_keys(const std::string& path) {
  std::string text;
  if (const int error = read_file(path, max_file_bytes, text); error != 0) {
    throw Exception(ErrorKind::unavailable, "the seal keys in " + path + " cannot be read: " +
                                                (error == EFBIG ? "it is larger than 64 KiB" : std::strerror(error)));
  }
  return parse_seal_keys(text, path);
}

}  // namespace once
