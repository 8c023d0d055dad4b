#include "operators/search.hpp"

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/keys/key_deriver.hpp>

#include "operators/record_json.hpp"
#include "operators/words.hpp"
#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/utf8.hpp"

namespace once::operators {

namespace {

constexpr std::array<std::string_view, 10> match_words{"",
                                                       "key",
                                                       "label",
                                                       "digest",
                                                       "key hash",
                                                       "scope and key",
                                                       "start of key",
                                                       "start of label",
                                                       "start of scope",
                                                       "part of label"};

constexpr std::size_t hash_digits = 16;  // Of key_hash().

bool starts_with(std::string_view whole, std::string_view text) {
  return whole.size() >= text.size() && text::same_letters(whole.substr(0, text.size()), text);
}

// The names that keys get which are derived from `text`, by any of our rules. They do not depend on the scope.
std::set<std::string, std::less<>> digests_of(const std::string& text) {
  std::set<std::string, std::less<>> digests{to_hex(sha256(text))};  // A callable's only argument, if it is no JSON.
  if (!text::valid_utf8(text)) return digests;
  using keys::Dialect;
  for (const Dialect dialect : {Dialect::native, Dialect::powertools_python, Dialect::powertools_typescript,
                                Dialect::powertools_java, Dialect::powertools_dotnet}) {
    for (const char* const hash : {"sha256", "md5", "sha1", "sha224", "sha384", "sha512"}) {
      // As a selected string, and as what else is selected: 17, {"tenant":"a","id":17}.
      for (const std::string& event : {nlohmann::json(text).dump(), text}) {
        try {
          const keys::KeyDeriver deriver({.scope = "s", .hash = hash, .dialect = dialect});
          if (const auto derived = deriver.derive(event); derived.key) digests.emplace(derived.key->name());
        } catch (const Exception&) {  // The dialect does not have this hash, or the text is not JSON.
          continue;
        }
      }
    }
  }
  return digests;
}

}  // namespace

std::string_view to_string(Match match) noexcept { return match_words.at(static_cast<std::size_t>(match)); }

bool is_exact(Match match) noexcept {
  switch (match) {
    case Match::key:
    case Match::label:
    case Match::digest:
    case Match::key_hash:
    case Match::whole_key:
      return true;
    case Match::none:
    case Match::key_start:
    case Match::label_start:
    case Match::scope_start:
    case Match::label_part:
      break;
  }
  return false;
}

Search::Search(std::string text)
    : text_(std::move(text)),
      has_escapes_(text_.find('\\') != std::string::npos),
      bytes_(text::from_hex(text_)),
      digests_(digests_of(text_)) {
  if (text_.empty()) misuse("the text to find is empty; `once ls` lists all records");
}

Match Search::match(const Record& record) const {
  const KeyParts parts = key_parts(record.key);
  const std::string listed = parts.scope.empty() ? parts.name : parts.scope + "/" + parts.name;
  const auto is = [&](std::string_view whole) { return whole == text_ || (has_escapes_ && escaped(whole) == text_); };
  const auto starts = [&](std::string_view whole) {
    return starts_with(whole, text_) || (has_escapes_ && starts_with(escaped(whole), text_));
  };
  const auto has = [&](std::string_view whole) { return text::contains_letters(whole, text_); };
  if (is(parts.name)) return Match::key;
  if (is(record.label)) return Match::label;
  if (digests_.contains(std::string_view(record.key).substr(record.key.rfind('#') + 1))) return Match::digest;
  if (bytes_ && text_.size() == hash_digits && text_ == key_hash(record.key)) return Match::key_hash;
  if (is(record.key) || is(listed) || record.key == bytes_) return Match::whole_key;
  if (starts(parts.name)) return Match::key_start;
  if (starts(record.label)) return Match::label_start;
  if (starts(record.key) || starts(listed)) return Match::scope_start;
  return has(record.label) || (has_escapes_ && has(escaped(record.label))) ? Match::label_part : Match::none;
}

}  // namespace once::operators
