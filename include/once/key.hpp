// The idempotency key: together with its scope (the namespace) it names one operation.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <once/compiler.hpp>

namespace once {

// The longest stored key in bytes, with scope and separator. It is the limit of a DynamoDB sort key, the smallest of
// all stores (AWS, "Quotas in Amazon DynamoDB": sort key 1 to 1024 bytes). So a key that works in one store works in
// all.
inline constexpr std::size_t max_key_bytes = 1024;

// Scope and name, joined into the bytes that a store sees. Different pairs give different bytes: '%' and '#' in the
// scope become %25 and %23, so the scope ends at the first '#'.
//
//   Key("payments/charge", "order-17").stored() == "payments/charge#order-17"
//
// The name may be any bytes, also NUL and newlines. Immutable; safe to read from any thread.
class Key {
 public:
  // Throws Exception(misuse) if the name is empty or the stored form is longer than max_key_bytes.
  Key(std::string_view scope, std::string_view name);

  // The reverse of stored(). Throws Exception(misuse) if it has no '#' or no name, or is too long.
  static Key from_stored(std::string_view stored);

  [[nodiscard]] const std::string& stored() const& noexcept { return stored_; }  // At most max_key_bytes.
  [[nodiscard]] std::string stored() && noexcept { return std::move(stored_); }  // The key must not be used afterwards.
  [[nodiscard]] std::string scope() const;                                       // Unescaped; may be empty.
  [[nodiscard]] std::string_view name() const;                                   // A view into this key.

  friend bool operator==(const Key&, const Key&) = default;

 private:
  friend class KeyScope;
  Key() = default;
  std::string stored_;
};

// A scope with many keys: it is escaped once. Immutable; safe to use from any thread.
class KeyScope {
 public:
  explicit KeyScope(std::string_view scope);           // May be empty. Its length counts only in key().
  [[nodiscard]] Key key(std::string_view name) const;  // Key(scope, name), which throws.

 private:
  std::string prefix_;
};

// Tells stored keys apart in logs without showing them: 16 hexadecimal digits, the beginning of the SHA-256. Empty for
// no key. Short enough to collide by intent, so never an identity. Throws as sha256() does.
std::string key_hash(std::string_view stored);

// The prefix of every stored key of this scope: the escaped scope and '#'.
std::string scope_prefix(std::string_view scope);

}  // namespace once
