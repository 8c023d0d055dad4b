// SQL that commits together with a result, for stores in a database that speaks SQL: SQLite, PostgreSQL. Two ways:
//
// - SqlStatements, a companion: the store runs your statements in the transaction that writes the result.
//   Context::commit_with(), Claim::complete(result, companion).
// - The other way round, you write the result in a transaction of your own: HandedOut in once/engine/claim.hpp gives
//   the SqlStatement for it.
//
// docs/transactions.md says when to use which.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <once/error.hpp>
#include <once/store.hpp>

namespace once::stores {

// A parameter: NULL, an integer, a real number, text, or bytes. Text is UTF-8 without NUL, as PostgreSQL requires;
// otherwise the constructor throws Exception(misuse). So does it for an unsigned number above 2^63 - 1.
class SqlValue {
 public:
  SqlValue() noexcept = default;             // NULL
  SqlValue(std::nullptr_t) noexcept {}       // NOLINT(google-explicit-constructor): values are written in braces.
  SqlValue(double value) : value_(value) {}  // A real number. NOLINT(google-explicit-constructor)
  // An integer; a bool is 0 or 1.
  template <std::integral T>
  SqlValue(T value) : value_(integer(value)) {}  // NOLINT(google-explicit-constructor)
  SqlValue(char) = delete;                       // Is it text, or a number? Also for other kinds of characters.
  // These are text.
  SqlValue(std::string text) : value_(checked(std::move(text))) {}  // NOLINT(google-explicit-constructor)
  SqlValue(std::string_view text) : SqlValue(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  SqlValue(const char* text) : SqlValue(std::string(text)) {}       // NOLINT(google-explicit-constructor)

  static SqlValue bytes(std::string_view bytes);  // Any bytes: a BLOB, or bytea.

  // Bytes, as opposed to text.
  struct Bytes {
    std::string bytes = {};  // Any values.
    friend bool operator==(const Bytes&, const Bytes&) = default;
  };
  // NULL, an integer, a real number, text, or bytes.
  using Value = std::variant<std::monostate, std::int64_t, double, std::string, Bytes>;
  [[nodiscard]] const Value& value() const noexcept { return value_; }  // For stores.
  [[nodiscard]] std::size_t size() const noexcept;                      // Bytes of text or bytes; otherwise 8.

  friend bool operator==(const SqlValue&, const SqlValue&) = default;

 private:
  template <class T>
  static std::int64_t integer(T value) {
    if constexpr (!std::same_as<T, bool>) {
      if (!std::in_range<std::int64_t>(value)) too_large();
    }
    return static_cast<std::int64_t>(value);
  }
  [[noreturn]] static void too_large();
  static std::string checked(std::string text);

  Value value_ = {};
};

// One statement with its parameters, which are called $1, $2 … in its text: values[0] is $1.
struct SqlStatement {
  std::string text = {};              // One statement, without a semicolon between two.
  std::vector<SqlValue> values = {};  // As many as the text has parameters.
};

// How many rows a statement must change, or return if it changes none (SELECT). If it is another number, nothing is
// committed.
struct SqlRows {
  std::uint64_t least = 0;          // At least this many.
  std::uint64_t most = UINT64_MAX;  // At most this many, and not below `least`.

  static constexpr SqlRows any() noexcept { return {}; }                                  // Also none.
  static constexpr SqlRows exactly(std::uint64_t rows) noexcept { return {rows, rows}; }  // 0: no row may match.
  // Without an upper limit.
  static constexpr SqlRows at_least(std::uint64_t rows) noexcept { return {rows, UINT64_MAX}; }
  // Whether so many rows are within the limits.
  [[nodiscard]] constexpr bool allows(std::uint64_t rows) const noexcept { return least <= rows && rows <= most; }
};

// Statements that commit together with the result: all of them and the result, or nothing. For the SQLite store's own
// file, and for the PostgreSQL store's own database.
//
//   auto transfer = std::make_shared<once::stores::SqlStatements>();
//   const auto one = once::stores::SqlRows::exactly(1);
//   transfer->add("UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1", {100, "alice"}, one);
//   transfer->add("UPDATE accounts SET cents = cents + $1 WHERE id = $2", {100, "bob"}, one);
//   context.commit_with(transfer);
//
// They run in their order, after the work has returned, perhaps several times; they take effect at most once. Nothing
// is committed, and the finish is declined, if
// - a statement changes another number of rows than it must, or violates a constraint of a table (unavailable: the
//   condition may hold later);
// - a statement cannot be carried out: malformed, no such table, a value without a parameter or the reverse (misuse);
// - it begins or ends a transaction, changes the schema or the connection's settings, or writes to a table of once's
//   own (misuse). In PostgreSQL the latter is up to the store's role: one that may only EXECUTE the functions cannot.
//
// In PostgreSQL the server infers the type of each value, as for any parameter. Deadlocks and serialization failures
// are tried again. The record and the statements go there in one trip, the COMMIT in a second one: only the program can
// compare the numbers of rows.
//
// Not thread-safe while it is filled; afterwards any thread may use it.
class SqlStatements final : public Companion {
 public:
  static constexpr std::size_t max_statements = 1'000;                     // add() throws above it.
  static constexpr std::size_t max_bytes = std::size_t{16} * 1024 * 1024;  // Of bytes().

  // Throws Exception(misuse), and then adds nothing: an empty text, a NUL in it, above the limits, an impossible
  // expectation.
  SqlStatements& add(std::string text, std::vector<SqlValue> values = {}, SqlRows expected = SqlRows::any());

  // A statement, and the rows that it must change.
  struct Entry {
    SqlStatement statement = {};  // As added.
    SqlRows expected = {};        // Of its rows.
  };
  // In the order in which they run.
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }  // Of texts and values.

  // "statement 2 (UPDATE accounts SET …)", for messages; n from 0. Without the values, which may be private.
  [[nodiscard]] std::string name(std::size_t n) const;

  // The error of a statement that changed or returned `rows` rows, which it must not.
  [[nodiscard]] Error miscounted(std::size_t n, std::uint64_t rows) const;

 private:
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
};

// The finish of a claim was refused in the user's own transaction, which is rolled back: another attempt has the claim,
// or an operator has taken it, or it is finished already.
class FinishRefused : public Exception {
 public:
  using Exception::Exception;
};

}  // namespace once::stores
