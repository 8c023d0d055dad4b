#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <once/error.hpp>
#include <once/seal.hpp>

#include "platform/command.hpp"
#include "platform/file.hpp"
#include "seal/sealing.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"

namespace once {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{64} << 10U;

constexpr std::string_view blanks = " \t\r";

std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(blanks));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

bool is_seal_key_id(std::string_view id) noexcept {
  return !id.empty() && id.size() <= SealKey::max_id_bytes && std::all_of(id.begin(), id.end(), [](char c) {
    return text::is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  });
}

namespace seals {

void check(const SealKeys& keys) {
  if (keys.empty()) throw Exception(ErrorKind::misuse, "there is no key to seal with");
  for (const SealKey& key : keys) {
    if (!is_seal_key_id(key.id)) {
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

SealKeys parse_seal_keys(std::string_view text, std::string_view name, const SealKeyUnwrapper& unwrap) {
  constexpr std::string_view kms = "kms:";
  SealKeys keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view id = take_word(line);
    if (id.empty() || id.starts_with('#')) continue;
    const std::string where = std::string(name) + ", line " + std::to_string(number) + ": ";
    const auto refuse = [&](const char* what) {
      throw Exception(ErrorKind::misuse,
                      where + what + ". Write an id and 32 bytes in Base64: 2026-11 $(openssl rand -base64 32)");
    };
    // Without the text: a key may stand where an id should.
    if (!is_seal_key_id(id)) refuse("the id is not 1 to 64 letters, digits, '-', '_' or '.'");
    const std::string_view word = take_word(line);
    const bool wrapped = word.starts_with(kms);
    const auto bytes = text::decode_base64(wrapped ? word.substr(kms.size()) : word);
    SealKey key{.id = std::string(id), .bytes = {}};
    if (wrapped) {
      const std::string_view with = take_word(line);
      if (!bytes || bytes->empty() || with.empty()) {
        refuse("after kms: must be the encrypted key in Base64, and then the ARN of the KMS key");
      }
      if (!unwrap) {
        throw Exception(ErrorKind::misuse, where +
                                               "the key is encrypted by KMS, and cannot be asked for here: this "
                                               "build is without ONCE_AWS, or no SealKeyUnwrapper was given");
      }
      try {
        key.bytes = unwrap({.id = key.id, .service = "kms", .bytes = *bytes, .with = std::string(with)}).bytes;
      } catch (const Exception& error) {
        throw Exception(error.kind(), where + error.what());
      }
    } else {
      if (!bytes || bytes->size() != key.bytes.size()) refuse("the key is not 32 bytes in Base64");
      std::copy(bytes->begin(), bytes->end(), key.bytes.begin());
    }
    if (!take_word(line).empty()) refuse(wrapped ? "there is a fourth word" : "there is a third word");
    keys.push_back(std::move(key));
  }
  try {
    seals::check(keys);
  } catch (const Exception& error) {
    throw Exception(error.kind(), std::string(name) + ": " + error.what());
  }
  return keys;
}

SealKeys read_seal_keys(const std::string& path, const SealKeyUnwrapper& unwrap) {
  std::string text;
  if (const int error = read_file(path, max_file_bytes, text); error != 0) {
    throw Exception(ErrorKind::unavailable, "the seal keys in " + path + " cannot be read: " +
                                                (error == EFBIG ? "it is larger than 64 KiB" : std::strerror(error)));
  }
  return parse_seal_keys(text, path, unwrap);
}

SealKeys seal_keys_from_command(std::string_view command, const SealKeyUnwrapper& unwrap) {
  const std::string text = output_of(command, {.name = "the command of the seal keys"});
  return parse_seal_keys(text, "what the command of the seal keys printed", unwrap);
}

}  // namespace once
