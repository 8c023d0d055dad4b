// What an error of the server means for the caller.
#pragma once

#include <libpq-fe.h>

#include <optional>
#include <string>
#include <string_view>

#include <once/error.hpp>

namespace once::stores::postgresql {

// The value that is no boolean, so that the server raises an error which quotes it.
inline constexpr std::string_view other_transaction = "once: the transaction is another one by now";

// An ERROR that came instead of an answer: its transaction was rolled back.
struct Failure {
  std::string state;    // SQLSTATE: https://www.postgresql.org/docs/15/errcodes-appendix.html
  std::string message;  // The server's words, in one line.
  bool fatal = false;   // The server closes the connection.

  static Failure of(const PGresult* result);

  // Nothing was written, and the same statement may succeed now: a lock, a deadlock, a serialization failure, or a
  // statement that an operator or a timeout of his ended.
  [[nodiscard]] bool may_try_again() const noexcept {
    return state == "40001" || state == "40P01" || state == "55P03" || state == "57014";
  }
  [[nodiscard]] bool is_disk_full() const noexcept { return state == "53100"; }
  // A stranger's isolation, which write_1 refuses.
  [[nodiscard]] bool is_isolation() const noexcept { return state == "ON002"; }
  // A named statement is not there, or its answers have another shape since the schema was made anew.
  [[nodiscard]] bool is_statement() const noexcept { return state == "26000" || state == "0A000"; }
  // finish_1 found that the claim was lost.
  [[nodiscard]] bool is_refusal() const noexcept { return state == "ON001"; }
  // commit_sql() found another transaction than the one that it was to commit.
  [[nodiscard]] bool is_other_transaction() const noexcept {
    return state == "22P02" && message.find(other_transaction) != std::string::npos;
  }
  // This server takes no writes: another one may.
  [[nodiscard]] bool is_wrong_server() const noexcept { return state == "25006"; }

  // `schema`: for what to do next.
  [[nodiscard]] Error error(const std::string& schema) const;
};

// Why the server that answered about_1 so may not be used; empty: it may.
std::optional<std::string> unfit_server(const PGresult* about, const std::string& schema, bool allow_unsafe);

// A warning that a commit may not be on its synchronous standby.
bool is_unsure_commit(const PGresult* notice);

}  // namespace once::stores::postgresql
