// The ID of a claim, as clients of `once serve` have it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/fingerprint.hpp>
#include <once/key.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

namespace once::cli {

// As the store has the key: the tenant is the last part of its scope. Empty: all clients are one. Throws
// Exception(misuse) if it is too long then.
Key with_tenant(Key key, const std::string& tenant);

// All that it takes to go on with a claim, also after a restart and in another process on the same store. Nothing of it
// is kept by the server. Who knows it has the claim: it contains the owner, which nobody can guess.
struct ClaimId {
  Owner owner;
  Millis lease{0};
  Millis retention{0};
  std::optional<Millis> failure_retention = {};
  Fingerprint fingerprint;  // Another attempt's result counts only for the same payload.
  std::string tag;          // Of the call that claimed it, see Claims. Empty, or 32 hexadecimal digits.
  std::string holder = {};  // For people, as the client gave it. At most 255 bytes.
  Key key;                  // As the client names it.
  std::string tenant;       // Whose it is, as the server knows the client. No part of the text.

  [[nodiscard]] std::string text() const;  // Lower-case hexadecimal digits, at most 2840.
  // For the tenant that has sent the text. One of another tenant's claim so names a record that does not exist. Throws
  // Exception(misuse): it is not the text of one.
  static ClaimId from_text(std::string_view text, const std::string& tenant);

  [[nodiscard]] Key stored_key() const { return with_tenant(key, tenant); }

  // What the engine is told of them when the claim is taken up.
  [[nodiscard]] Policy policy() const;
};

}  // namespace once::cli
