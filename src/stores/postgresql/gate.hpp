// The gate of a store in PostgreSQL: a trigger on the table of records, made by the schema's owner. It holds every
// program to it, whatever functions that calls. The mark is the comment on the trigger's function, so that any role can
// read it, and so that a schema without a gate has neither.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <once/gate.hpp>
#include <once/stores/postgresql.hpp>

#include "stores/postgresql/session.hpp"

namespace once::stores::postgresql {

class PostgresqlGate final : public StoreGate {
 public:
  explicit PostgresqlGate(PostgresqlOptions options) : options_(std::move(options)) {}

  GateMark mark() override;
  Changed change(const GateMark& seen, const GateMark& next, Time live_after) override;
  void fill(const GateMark& filling, const std::vector<RecordPtr>& records) override;

 private:
  // Runs it with the connection, which is kept for the next call unless it fails.
  template <class Do>
  auto with_session(Do what);

  const PostgresqlOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Session> session_;
};

}  // namespace once::stores::postgresql
