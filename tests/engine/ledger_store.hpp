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

namespace once::testing {

// Adds to the ledger, unless that made it less than nothing.
struct Entry final : Companion {
  explicit Entry(int by) : amount(by) {}
  int amount;
};

class LedgerStore final : public Store {
 public:
  explicit LedgerStore(std::shared_ptr<Clock> clock) : inner_(stores::make_memory_store(std::move(clock))) {}

  // Guarded by nothing: tests look when nothing is under way.
  int balance = 0;
  std::vector<RecordPtr> asked;  // Each record of replace_with(), in their order.

  void insert(RecordPtr record, Done done) override { inner_->insert(std::move(record), std::move(done)); }
  void replace(RecordPtr record, Seen seen, Done done) override {
    inner_->replace(std::move(record), seen, std::move(done));
  }
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
        if (answer.status == Answer::Status::done) balance += entry->amount;
      }
    }
    done(std::move(answer));
  }
  void remove(std::string key, Seen seen, Done done) override { inner_->remove(std::move(key), seen, std::move(done)); }
  void get(std::string key, Done done) override { inner_->get(std::move(key), std::move(done)); }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    inner_->list(std::move(query), std::move(done));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    inner_->sweep(now, limit, std::move(done));
  }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return inner_->time(); }
  [[nodiscard]] Capabilities capabilities() const noexcept override { return inner_->capabilities(); }
  [[nodiscard]] std::string name() const override { return "ledger:"; }

 private:
  std::mutex mutex_;
  const std::unique_ptr<Store> inner_;
};

}  // namespace once::testing
