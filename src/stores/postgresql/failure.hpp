// What an error of the server means for the caller.
#pragma once

#include <libpq-fe.h>

#include <string>

#include <once/error.hpp>

namespace once::stores::postgresql {

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
  // A stranger's isolation, which write_1 refuses.
  [[nodiscard]] bool is_isolation() const noexcept { return state == "ON002"; }
  // This server takes no writes: another one may.
  [[nodiscard]] bool is_wrong_server() const noexcept { return state == "25006"; }

  // `schema`: for what to do next.
  [[nodiscard]] Error error(const std::string& schema) const;
};

}  // namespace once::stores::postgresql
