// A connection that waits for each answer: for changes of the schema, not for operations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <once/stores/postgresql.hpp>

#include "stores/postgresql/failure.hpp"
#include "stores/postgresql/parameters.hpp"
#include "stores/postgresql/target.hpp"

namespace once::stores::postgresql {

using Cells = std::vector<std::optional<std::string>>;

class Session {
 public:
  // Connects. `options` lives as long as the session. Throws Exception.
  explicit Session(const PostgresqlOptions& options);

  // The first row, as text; empty: there is none. Throws Exception.
  Cells run(const std::string& sql);
  std::string value(const std::string& sql);
  // The same, for who cannot wait longer. Afterwards the connection is of no use if it throws.
  std::string value_within(const std::string& sql, Millis most);

  // The same statement for each of them, sent together: answers are only looked at for errors. Throws Exception.
  void run_all(const std::string& sql, const std::vector<Parameters>& each);

  // Each host that the URL, the environment and the service file name, asked by a connection of its own. Blocks for
  // connect_timeout for each that does not answer.
  struct Host {
    std::string name;     // With its port, if one is given.
    std::string problem;  // Empty: it answered.
    std::string cluster;  // The system identifier of its cluster. Empty: it has none, or does not show it.
    std::string primary;  // When this server started, which tells two servers apart. Empty: a standby.
  };
  [[nodiscard]] std::vector<Host> hosts() const;

  [[nodiscard]] const std::string& name() const noexcept { return target_.name(); }

 private:
  void check(const PGresult* result);

  const PostgresqlOptions& options_;
  const Target target_;
  const ConnectionPtr connection_;
};

// A durable transaction, one at a time among those that change the schema. Rolls back unless it was committed.
class Change {
 public:
  explicit Change(Session& session);
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change();
  void commit();

 private:
  Session& session_;
  bool committed_ = false;
};

}  // namespace once::stores::postgresql
