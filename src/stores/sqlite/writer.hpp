// The writer: collects operations into groups, each of which is one transaction.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>

#include <once/error.hpp>

#include "stores/sqlite/group_queue.hpp"
#include "stores/sqlite/key_index.hpp"
#include "stores/sqlite/open_claims.hpp"
#include "stores/sqlite/operation.hpp"
#include "stores/sqlite/store_file.hpp"
#include "stores/sqlite/writable_file.hpp"

namespace once::stores::sqlite {

class Writer {
 public:
  // Opens the file. Throws Exception.
  Writer(StoreFile& file, RecentKeys& recent) : file_(file), writing_(file, recent) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // From any thread.
  void push(OperationPtr operation) noexcept { queue_.push(operation.release()); }
  void learn_keys() noexcept;  // Reads soon what other processes have written.
  void stop() noexcept;        // run() returns after all pushed operations.
  [[nodiscard]] std::string checkpoint_error() const { return writing_.checkpoint_error(); }

  // Call it on its own thread. Returns after stop(), or in the child of a completion that forks.
  void run();

  // What run() does again and again, for who has no thread for it: one group and one slice of a sweep. False: there was
  // nothing to do.
  bool turn();

 private:
  struct Lost {
    int code = 0;           // SQLite's primary result code.
    bool in_doubt = false;  // The commit may have reached the disk.
  };

  void take();
  void work();
  void fill(Group& group);
  void write_group(Group& group);
  std::optional<Lost> try_with_room(std::span<OperationPtr> group);
  std::optional<Lost> try_group(std::span<OperationPtr> group);
  void carry_out_one(Operation& operation);
  Answer carry_out(const Operation& operation);
  Answer carry_out_with_companion(const Operation& operation);
  bool never_fits(const SqlError& error, const Operation& operation);
  std::optional<Answer> why_no_claim(const Operation& operation);
  Answer written(const Record& record, std::int64_t id);
  [[nodiscard]] Answer refused_in_the_clear() const;
  void fail_all(Group& group, ErrorKind kind, const std::string& message);
  void sweep_and_copy();
  void sweep_slice_once();
  void cut_log();
  void act();

  StoreFile& file_;
  GroupQueue<Operation> queue_;
  std::atomic<bool> missing_keys_{false};
  std::atomic<bool> stopping_{false};

  // Of its thread.
  WritableFile writing_;
  std::string no_room_;  // WritableFile::why_no_room_for_claims(), for this group.
  OpenClaims claims_;
  std::deque<OperationPtr> backlog_;  // Taken from the queue, not yet written.
  std::deque<OperationPtr> sweeps_;
};

}  // namespace once::stores::sqlite
