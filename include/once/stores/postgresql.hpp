// A store in PostgreSQL, version 13 or later: durable, for many hosts. docs/stores/postgresql.md describes its tables,
// and what is promised at a crash and at a failover.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <once/clock.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>

namespace once::stores {

// Which server and schema, and how long operations may take.
struct PostgresqlOptions {
  // Where the server is, in libpq's words (https://www.postgresql.org/docs/15/libpq-connect.html#LIBPQ-CONNSTRING): a
  // URL such as postgresql://user@host:5432/database?sslmode=verify-full, or keyword=value pairs. What it does not say
  // comes from libpq's environment variables, its service file and ~/.pgpass. Of several hosts the one that takes
  // writes is used (target_session_attrs=read-write, unless the URL says otherwise); never name a standby here.
  // connect_timeout= is the time for one attempt to connect; default 5 s.
  std::string url = {};

  // The schema with the tables and functions, which `once table create` makes. 1 to 63 bytes.
  std::string schema = "once";

  // How long an operation may take with everything: connecting, waiting for a lock, trying again. 1 s to 10 min.
  Millis operation_timeout{10'000};

  // How long a group of writes waits for a record that another transaction has locked. The write that met the lock then
  // waits on a connection of its own, until operation_timeout, and holds up no other. 1 ms to 10 s.
  Millis lock_timeout{100};

  // Writes or reads that are sent together and share one commit. 1 to 1000.
  std::uint32_t group = 256;

  // Connections for writes. A key is always written on the same one, so writes of different keys may overtake each
  // other, and each connection commits its own groups. More than one pays only where a single server process is busy
  // all the time: some hundred writes at once. With fewer, there are more commits for the same writes. 1 to 16.
  std::uint32_t write_connections = 1;

  // Connections for writes that wait for a lock, and as many for writes with a companion. They are opened when they are
  // needed, and closed after 30 s. 1 to 64.
  std::uint32_t side_connections = 4;

  // Use a server that runs with fsync off. If its host crashes, acknowledged claims and results are lost, and
  // operations run again. Otherwise every operation is misuse there.
  bool allow_unsafe = false;

  // Let a program without seal keys claim operations in a schema that holds, or ever held, sealed records, as
  // SqliteOptions::allow_clear says. A claim that is written at the same moment as the first sealed record may be in
  // the clear.
  bool allow_clear = false;

  // Measures the time since the server's last answer.
  std::shared_ptr<Clock> clock = system_clock();
};

// Opens the store; connects for the first operation. Throws Exception: misuse for an option out of range or a URL that
// libpq does not understand, unavailable if no thread can be started.
//
// Guarantees. Each write is one call of a function in the server that compares and writes under the row's lock. Writes
// that are begun at the same time share a transaction and its commit; each is acknowledged after that commit. A refused
// write returns the record in the way, in the same trip. get() sees every acknowledged write. Transactions are read
// committed, whatever the role's default is, and never commit asynchronously: synchronous_commit=off counts as on here.
//
// Connections. write_connections, one for reads, one for list() and sweep(), and side_connections; as many again, with
// a thread each, for writes with a companion (once/stores/postgresql_transaction.hpp). Each is opened when it is
// needed, and anew after it was lost: after 50 ms, then after twice as long each time, up to 1 s. No statement is
// named, no parameter set for a session, and no statement cancelled, so a pooler in transaction mode (PgBouncer) may be
// between.
//
// Threads. Completions come from the store's own thread, from threads that wait in a blocking call of this store, or
// before an operation returns. Any number of operations may run. In the child of a fork every operation is misuse: open
// the store again there. A name in the URL is looked up on a thread of its own. But if the URL has service=, or PGPORT,
// PGHOST or PGSERVICE is set, libpq may look the name up: then other operations of the store wait for that.
//
// Time. The server's (clock_timestamp()), which comes with each answer. Store::time() is empty before the first one.
//
// Failures.
// - unavailable: no connection in time, a server without writes, disk full, a lock that was not let go, a statement
//   that a timeout or an operator ended.
// - in_doubt: the connection was lost, or there was no answer in time, between the sending of a write and the end of
//   its commit; or the server's wait for its synchronous standby was cancelled.
// - misuse: a wrong password, no schema or one of another version, a missing permission, fsync=off. The message says
//   what to do.
// - corrupt: a row was edited by hand, or the server found damage.
//
// Sizes. Records of up to 16 MiB; keys are any bytes.
//
// The destructor waits for running operations: for at most operation_timeout, and for a PostgresqlWork that runs until
// its function returns, as nothing else can end it. In a completion it fails them and returns.
std::unique_ptr<Store> make_postgresql_store(PostgresqlOptions options);

}  // namespace once::stores
