// The port of run_local() (once/engine/local.hpp): a transaction of the user's own in which a claim, the work's writes
// and the result are written together. stores::PostgresqlLocal and stores::PqxxLocal implement it.
#pragma once

#include <optional>

#include <once/record.hpp>
#include <once/store.hpp>

namespace once {

// One thread uses it at a time. It is begun by its constructor, and rolled back by its destructor unless it was
// committed. When a method throws, it has been rolled back, except for in_doubt.
class LocalTransaction {
 public:
  LocalTransaction() = default;
  LocalTransaction(const LocalTransaction&) = delete;
  LocalTransaction& operator=(const LocalTransaction&) = delete;
  virtual ~LocalTransaction() = default;

  // The store whose database it is in.
  [[nodiscard]] virtual const Store& store() const noexcept = 0;

  // Store::insert() or, with `seen`, Store::replace(), in this transaction: once done, it has the record's lock to its
  // end. Waits up to `wait` for another transaction that has the lock; empty: it still has it then, and this one is
  // rolled back. Answer::time is set. Throws Exception, or an exception of the user's library.
  virtual std::optional<Answer> write(const Record& record, const Seen* seen, Millis wait) = 0;

  // Writes the completion over the claim that write() has written, as Store::finish_statement(). Throws as write()
  // does; misuse if the transaction is another one by now.
  virtual void finish(const Record& completion) = 0;

  // Throws Exception(in_doubt) if it is not known whether it was committed; otherwise as write() does.
  virtual void commit() = 0;
  virtual void rollback() noexcept = 0;  // No effect after its end.
};

}  // namespace once
