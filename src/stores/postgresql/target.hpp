// Where the server is: libpq's connection string, taken apart.
#pragma once

#include <libpq-fe.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/time.hpp>

namespace once::stores::postgresql {

struct FinishConnection {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
};
using ConnectionPtr = std::unique_ptr<PGconn, FinishConnection>;

class Target {
 public:
  // `url`: postgresql://…, or keyword=value …. Throws Exception(misuse) with libpq's own words, and without a password.
  Target(const std::string& url, std::string schema);

  // Begins to connect. `turn`: which host of a list comes first; any number. Looks up names, which may block.
  [[nodiscard]] ConnectionPtr start(std::size_t turn) const;
  // Connects, and waits for it. Throws Exception(unavailable).
  [[nodiscard]] ConnectionPtr connect() const;

  [[nodiscard]] std::size_t hosts() const noexcept { return hosts_; }
  // Of one attempt: connect_timeout= of the URL, else 5 s.
  [[nodiscard]] Millis connect_timeout() const noexcept { return connect_timeout_; }
  // "postgresql://db.example:5432/pay schema once"; never a password.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::vector<std::pair<std::string, std::string>> options_;
  std::size_t hosts_ = 1;
  Millis connect_timeout_{5'000};
  std::string name_;
};

// The error of a failed attempt, in one line.
std::string connect_problem(const PGconn* connection);

}  // namespace once::stores::postgresql
