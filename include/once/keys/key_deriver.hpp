// Keys from events: what to select from a JSON event, and how it becomes the key of a record.
//
//   once::keys::KeyDeriver deriver({.scope = "payments/charge", .expression = "powertools_json(body).order_id"});
//   auto derived = deriver.derive(event_text);
//   if (derived.key) { ... }          // "payments/charge#" + 64 hex digits; nullopt: the event has no key
//
// Two rules come before all others. An input that cannot be read is an error, never an event without a key. Two
// payloads that differ never get one text, except where RFC 8785 has one value: 1.0 and 1, -0 and 0, a fraction and its
// nearest double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "once/fingerprint.hpp"
#include "once/key.hpp"

namespace once::keys {

// Whose rules apply to keys.
//
// native: the text is RFC 8785 (JSON Canonicalization Scheme: no blanks, names in UTF-16 order, ECMAScript numbers,
// UTF-8). The name is the lower-case hex digest of the text, and Key(scope, name) joins them. Errors, each with its
// place: a name twice in an object; a number outside double range, or over 2^53-1 with another value than its shortest
// double (9007199254740993; 1e30 is fine); invalid UTF-8; a lone surrogate.
//
// The others give the same ids and validation hashes as Powertools for AWS Lambda, byte for byte: Python 3.37,
// TypeScript 2.35, Java 2.10, .NET 1.3. So a function can move to once and keep its table. docs/keys.md has their rules
// and the weaknesses that are kept. One difference: an expression that fails is always an error, even where the library
// would run the function without protection.
enum class Dialect : std::uint8_t {
  native,                 // The rules of once.
  powertools_python,      // Powertools for AWS Lambda (Python).
  powertools_typescript,  // Powertools for AWS Lambda (TypeScript).
  powertools_java,        // Powertools for AWS Lambda (Java).
  powertools_dotnet,      // Powertools for AWS Lambda (.NET).
};

// "native", "powertools-python", "powertools-typescript", "powertools-java", "powertools-dotnet".
std::string_view to_string(Dialect dialect) noexcept;
std::optional<Dialect> dialect_from(std::string_view name) noexcept;  // The same names; nullopt for any other.

inline constexpr std::size_t max_event_bytes = std::size_t{1} << 28;         // Also the limit of a decompressed part.
inline constexpr std::size_t max_event_depth = 512;                          // Nested arrays and objects.
inline constexpr std::size_t max_expression_bytes = std::size_t{16} * 1024;  // Of one expression.
inline constexpr std::size_t max_expression_depth = 64;                      // Nested brackets.

// What is selected from an event, and how it becomes a key.
struct Recipe {
  // The key's namespace. native: the scope of Key(scope, name). Dialects: everything before '#', unchanged, see
  // powertools_scope().
  std::string scope = {};

  // JMESPath (jmespath.org, with powertools_json, powertools_base64 and powertools_base64_gzip) that selects the key.
  // Empty: the whole event.
  std::string expression = {};

  // JMESPath that selects what a repeated request must have in common with the first one. "@" is the whole event.
  // Empty: nothing is compared, and Derived::fingerprint is empty.
  std::string fingerprint = {};

  // native: "sha256" or "md5". Dialects: md5, sha1, sha224, sha256, sha384, sha512, or any name that the library's
  // setting accepts. Python: an attribute of hashlib. TypeScript: a digest of OpenSSL. Java: a MessageDigest, where an
  // unknown name means MD5, as in the library. .NET: only md5. Empty: sha256 for native, md5 for dialects.
  std::string hash = {};

  Dialect dialect = Dialect::native;  // Whose rules apply. The same for all users of a table.

  // An event without a key is an error (the libraries' throw_on_no_key and similar). The dialect defines what is
  // missing: with this set, TypeScript also refuses "", 0, false and containers of nothing else. native: also an error
  // if the fingerprint selects nothing of the event except null, or puts together parts of which one is null.
  bool require_key = false;

  // native: accept null and empty parts of a key that the expression itself puts together, and null parts of such a
  // fingerprint. Otherwise "[user.uid, id]" over {"id": 7} is a missing key, because all events without the user would
  // share it. To accept one part only, write `null` after it: "[id, version || `null`]". A value that the expression
  // selects whole is data, whatever is in it.
  bool allow_null_parts = false;

  // All member names that events can have at the top level. The constructor refuses an expression with another name
  // there. Empty: not known.
  std::vector<std::string> names = {};

  // native: refuse a number that a double cannot hold only if it is selected. For callers that also compare the whole
  // event byte by byte. Works only without fingerprint, and for expressions of names and indexes (order.id,
  // items[0].id). Otherwise all such numbers are refused.
  bool only_selected_exact = false;

  bool makes_label = true;  // False: Derived::label stays empty, for callers that would not store it.
};

// What a KeyDeriver makes of an event.
struct Derived {
  // Empty: the event has no key, and the other members are empty. native: the selection is an empty string, or has only
  // nulls and empty containers, at any depth ("", null, [], {"a": null}, [[], {"a": {}}]). Or it has constants of the
  // expression but nothing of the event ("id || 'none'", "['order', id]" without an id). Or the expression puts it
  // together, and a part is one of these: see Recipe::allow_null_parts. docs/keys.md has the dialects' rules. An
  // expression of constants gives the same key for all events.
  std::optional<Key> key = {};

  // The digest of fingerprint_text: SHA-256 for native, Recipe::hash for dialects. If the expression selects nothing,
  // the digest of "null". Empty without an expression.
  Fingerprint fingerprint = {};

  // For Request::label: a selected string itself, otherwise key_text. Cut to a little more than a label may have. Empty
  // without Recipe::makes_label.
  std::string label = {};

  std::string key_text = {};          // The exact text hashed for the key. UTF-8.
  std::string fingerprint_text = {};  // The exact text hashed for the fingerprint. UTF-8.
};

// Immutable: any number of threads may use one at once. Moves are cheap.
class KeyDeriver {
 public:
  // Compiles the expressions. Throws Exception(misuse) for an expression that cannot be compiled, with the place, and
  // for an unknown hash. native: also for a fingerprint of constants only. .NET: also for projections, filters, and
  // functions other than powertools_*, whose results there depend on rules that are not reproduced.
  explicit KeyDeriver(Recipe recipe);
  KeyDeriver(KeyDeriver&&) noexcept;
  KeyDeriver& operator=(KeyDeriver&&) noexcept;
  ~KeyDeriver();

  // json_text: one JSON value of any type (RFC 8259), UTF-8. Throws Exception(misuse)
  // - for a text that is not JSON or breaks the dialect's rules, with the place,
  // - for an expression that fails: a powertools function on a value that is not a string, a body that is not JSON, bad
  //   Base64,
  // - for a missing key if the recipe requires one.
  [[nodiscard]] Derived derive(std::string_view json_text) const;

  // Only Derived::fingerprint, for keys from another source.
  [[nodiscard]] Fingerprint fingerprint(std::string_view json_text) const;

  [[nodiscard]] const Recipe& recipe() const noexcept;  // As given. Lives as long as the deriver.

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// The text after '#' in an id, or in a record's validation attribute, for a digest of 1 to 64 bytes. TypeScript: Base64
// with padding. All others: lower-case hex. Java drops leading zeros beyond 32 digits, so one SHA-256 in sixteen has 63
// digits.
std::string digest_text(Dialect dialect, std::string_view digest);

// The reverse of digest_text(). Empty if it is no such text or longer than 64 bytes.
std::optional<Fingerprint> digest_from_text(Dialect dialect, std::string_view text);

// What the four libraries write before '#'.
//   lambda_function: AWS_LAMBDA_FUNCTION_NAME, nullopt if it is not set.
//   function: Python "module.qualified_name" ("app.handler"), Java and .NET the method's name; TypeScript ignores it
//     unless it was given by configure({functionName}), so leave it empty there.
//   key_prefix: the library's setting; empty: none. Python and .NET take it as it is, TypeScript trims it. Java has
//     none: Exception(misuse). native: Exception(misuse), there a scope is just chosen.
std::string powertools_scope(Dialect dialect, std::optional<std::string_view> lambda_function,
                             std::string_view function, std::string_view key_prefix = {});

// The RFC 8785 text of a JSON text under the native rules above. A native recipe without an expression hashes it.
// Throws Exception(misuse) as derive() does.
std::string canonical_text(std::string_view json_text);

}  // namespace once::keys
