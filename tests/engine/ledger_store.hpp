// The memory store with a ledger that commits with its records: the smallest store that takes companions.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/platform/blocking.hpp>
#include <once/store.hpp>
#include <once/stores/memory.hpp>

#include "forwarding_store.hpp"

namespace once::testing {

// Adds to the ledger, unless that made it less than nothing.
struct Entry final : Companion {
  explicit Entry(int by) : amount(by) {}
  int amount;
};

class LedgerStore final : public ForwardingStore {
 public:
  explicit LedgerStore(std::shared_ptr<Clock> clock) : ForwardingStore(stores::make_memory_store(std::move(clock))) {}

  // Not guarded: tests read it when no operation runs.
  int balance = 0;
  std::vector<RecordPtr> asked;  // Each record of replace_with(), in their order.

  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    const auto* entry = dynamic_cast<const Entry*>(companion.get());
    if (entry == nullptr) return Store::replace_with(std::move(record), seen, std::move(companion), std::move(done));
    Answer answer;
    {
      const std::lock_guard lock(mutex_);
      asked.push_back(record);
      const RecordPtr there = blocking::get(*inner_, record->key).record;
      const bool as_seen = there != nullptr && there->owner == seen.owner && there->revision == seen.revision;
      if (as_seen && balance + entry->amount < 0) {
        answer = Answer::decline(ErrorKind::unavailable, "the ledger has only " + std::to_string(balance));
      } else {
        answer = blocking::replace(*inner_, *record, seen);
        if (answer.status == AnswerStatus::done) balance += entry->amount;
      }
    }
    done(std::move(answer));
  }
  [[nodiscard]] std::string name() const override { return "ledger:"; }

 private:
  std::mutex mutex_;
};

}  // namespace once::testing
