// Records by what people call them: the parameter q, `once find`, and labels in place of keys.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <once/record.hpp>

namespace once::operators {

// Why a record is found. If there are several reasons, the first.
enum class Match : std::uint8_t {
  none,
  key,          // The key is the text.
  label,        // The label is.
  digest,       // The key is a digest of the text.
  key_hash,     // The text is its key_hash in a log.
  whole_key,    // Scope and key are: as stored, as stored_key_hex, or as `ls` prints them, SCOPE/KEY.
  key_start,    // The key begins with the text. These four take 'A' and 'a' for the same.
  label_start,  // The label does.
  scope_start,  // Scope and key do, in one of the forms above.
  label_part,   // The text is in the label.
};

std::string_view to_string(Match match) noexcept;  // For people and for JSON: "start of key".
bool is_exact(Match match) noexcept;               // All of the key or label, not a part.

class Search {
 public:
  // Throws Exception(misuse) for an empty text.
  explicit Search(std::string text);

  [[nodiscard]] Match match(const Record& record) const;

 private:
  std::string text_;
  bool has_escapes_ = false;          // The text may be what escaped() made.
  std::optional<std::string> bytes_;  // Of a text that is hexadecimal.
  std::set<std::string, std::less<>> digests_;
};

}  // namespace once::operators
