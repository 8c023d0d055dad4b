// Keys out of events: what to take from a JSON event, and how it becomes the key of a record.
//
//   once::keys::KeyDeriver deriver({.scope = "payments/charge", .expression = "powertools_json(body).order_id"});
//   auto derived = deriver.derive(event_text);
//   if (derived.key) { ... }          // "payments/charge#" + 64 hex digits; nullopt: the event has no key
//
// What counts as one key is decided here and nowhere else. Two rules come before all others: an input that cannot be
// read is an error, never an event without a key; and two payloads that differ never get one text (except for what RFC
// 8785 calls the same value: 1.0 and 1, -0 and 0, a fraction and its nearest double).
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

// Whose rules apply.
//
// native: the text is RFC 8785 (JSON Canonicalization Scheme: no blanks, names in UTF-16 order, ECMAScript numbers,
// UTF-8), the name is the lower-case hex digest of the text, and Key(scope, name) joins them. Refused, each with its
// place: names that occur twice in an object; numbers outside double range, and numbers over 2^53-1 that are not
// written with the value of their shortest double (9007199254740993, which a double cannot hold; 1e30 is fine);
// invalid UTF-8; lone surrogates.
//
// The others give byte for byte the ids and validation hashes of Powertools for AWS Lambda (Python 3.37, TypeScript
// 2.35, Java 2.10, .NET 1.3), so that a function can move here and keep its table. docs/keys.md has their rules, and
// the weaknesses that are kept. In one case this refuses what those libraries accept: an expression that fails is an
// error, even where the library would run the function without protection.
enum class Dialect : std::uint8_t {
  native,
  powertools_python,
  powertools_typescript,
  powertools_java,
  powertools_dotnet,
};

// "native", "powertools-python", "powertools-typescript", "powertools-java", "powertools-dotnet".
std::string_view to_string(Dialect dialect) noexcept;
std::optional<Dialect> dialect_from(std::string_view name) noexcept;  // The same names; nullopt for any other.

inline constexpr std::size_t max_event_bytes = std::size_t{1} << 28;         // Also the limit of an inflated part.
inline constexpr std::size_t max_event_depth = 512;                          // Arrays and objects within each other.
inline constexpr std::size_t max_expression_bytes = std::size_t{16} * 1024;  // Of one expression.
inline constexpr std::size_t max_expression_depth = 64;                      // Brackets within each other.

struct Recipe {
  // The key's namespace: Key(scope, name) under native rules; in a dialect everything left of '#', unchanged: see
  // powertools_scope().
  std::string scope;

  // JMESPath (jmespath.org, with powertools_json, powertools_base64 and powertools_base64_gzip) that selects the key.
  // Empty: the whole event.
  std::string expression;

  // JMESPath that selects what a repeated request must have in common with the first one. Empty: nothing is compared,
  // Derived::fingerprint is empty. "@" is the whole event.
  std::string fingerprint;

  // native: "sha256" or "md5". Dialects: md5, sha1, sha224, sha256, sha384, sha512, or any name that the language's
  // own setting takes (Python: an attribute of hashlib; TypeScript: a digest of OpenSSL; Java: a MessageDigest, where
  // an unknown name means MD5, as there). .NET takes none but md5. Empty: sha256 under native rules, md5 in a dialect.
  std::string hash;

  Dialect dialect = Dialect::native;

  // An event without a key is an error (throw_on_no_key and the like). What counts as missing is the dialect's own:
  // with this set, TypeScript also refuses "", 0, false and containers of nothing else. Under native rules an event
  // whose fingerprint expression selects nothing is an error, too: nothing that it selects is of the event and not
  // null.
  bool require_key = false;

  // All names that events can ever have at their top, if that is known: an expression that looks there for another one
  // is refused when the deriver is made. Empty: not known.
  std::vector<std::string> names;

  // Native rules: a number that a double cannot hold is refused only if it is selected, for those who compare the event
  // byte by byte anyway. Counts with an expression of names and indexes alone (order.id, items[0].id) and without
  // fingerprint: then nothing can be computed from the others. Else all are refused all the same.
  bool only_selected_exact = false;
};

struct Derived {
  // Nothing: the event has no key. Under native rules that is a selection that is an empty string or holds nothing but
  // nulls and empty containers, at any depth ("", null, [], {"a": null}, [[], {"a": {}}]), or to which, beside
  // constants of the expression, the event gave nothing else ("id || 'none'", "['order', id]" without an id);
  // docs/keys.md has the dialects' rules. Without a key the other members are empty. An expression of constants alone
  // is a key: all events'.
  std::optional<Key> key;

  // The digest of fingerprint_text: SHA-256 under native rules, Recipe::hash in a dialect. Empty without a fingerprint
  // expression. One that selects nothing is the digest of "null".
  Fingerprint fingerprint;

  std::string key_text;          // What was hashed for the key, exactly. UTF-8.
  std::string fingerprint_text;  // What was hashed for the fingerprint, exactly. UTF-8.
};

// Immutable; any number of threads may derive with one deriver at a time. Moves are cheap.
class KeyDeriver {
 public:
  // Compiles the expressions. Throws Exception(misuse) for an expression that cannot be compiled, saying where; for a
  // hash the dialect does not know; under native rules for a fingerprint of constants alone; and in the .NET dialect
  // for an expression with projections, filters or functions other than powertools_* (their results there depend on
  // rules that are not reproduced).
  explicit KeyDeriver(Recipe recipe);
  KeyDeriver(KeyDeriver&&) noexcept;
  KeyDeriver& operator=(KeyDeriver&&) noexcept;
  ~KeyDeriver();

  // json_text: one JSON value (RFC 8259), UTF-8, of any kind. Throws Exception(misuse) for a text that is no JSON or
  // breaks the dialect's rules, saying where; for an expression that fails (a powertools function given something else
  // than a string, a body that is no JSON, bad Base64 ...); and for a missing key if the recipe requires one.
  [[nodiscard]] Derived derive(std::string_view json_text) const;

  // Derived::fingerprint alone, for keys that come from elsewhere.
  [[nodiscard]] Fingerprint fingerprint(std::string_view json_text) const;

  [[nodiscard]] const Recipe& recipe() const noexcept;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// The text after '#' in an id, or in a record's validation attribute, for a digest of 1 to 64 bytes: Base64 with
// padding for TypeScript, lower-case hex for all others; Java drops leading zeros of what is longer than 32 digits, so
// that one SHA-256 in sixteen has 63.
std::string digest_text(Dialect dialect, std::string_view digest);

// The digest that digest_text() wrote. nullopt if it is no such text or longer than 64 bytes.
std::optional<Fingerprint> digest_from_text(Dialect dialect, std::string_view text);

// What the four libraries put left of '#'.
//   lambda_function: AWS_LAMBDA_FUNCTION_NAME, nullopt if it is not set.
//   function: Python "module.qualified_name" ("app.handler"), Java and .NET the method's name; TypeScript ignores it
//     unless it was given by configure({functionName}), so leave it empty there.
//   key_prefix: the library's setting; empty: none. Python and .NET take it as it is, TypeScript trims it. Java has
//     none: Exception(misuse). native: Exception(misuse), there a scope is just chosen.
std::string powertools_scope(Dialect dialect, std::optional<std::string_view> lambda_function,
                             std::string_view function, std::string_view key_prefix = {});

// The RFC 8785 text of a JSON text under the native rules above: what a native recipe without an expression hashes.
// Throws Exception(misuse) as derive() does.
std::string canonical_text(std::string_view json_text);

}  // namespace once::keys
