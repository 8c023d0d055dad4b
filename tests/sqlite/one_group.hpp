// Operations that the SQLite store writes in one transaction.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/store.hpp>
#include <once/testing/records.hpp>

namespace once::testing {

// Starts operations that are one group: the writer is held up in the completion of another one until all are there.
class Together {
 public:
  explicit Together(Store& store) : store_(store) {
    store_.insert(share(plain_record("together#" + std::to_string(++made))), [this](const Answer&) {
      held_ = true;
      held_.notify_one();
      go_.wait(false);
    });
    held_.wait(false);
  }
  ~Together() { go(); }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  void insert(Record record) { store_.insert(share(std::move(record)), next()); }
  void replace(Record record, Seen seen) { store_.replace(share(std::move(record)), seen, next()); }
  void replace_with(Record record, Seen seen, std::shared_ptr<const Companion> companion) {
    store_.replace_with(share(std::move(record)), seen, std::move(companion), next());
  }

  std::vector<Answer> finish() {
    go();
    for (int left = pending_; left != 0; left = pending_) pending_.wait(left);
    return {answers_.begin(), answers_.end()};
  }

 private:
  Done next() {
    answers_.emplace_back();
    ++pending_;
    return [&place = answers_.back(), this](Answer answer) {
      place = std::move(answer);
      --pending_;
      pending_.notify_one();
    };
  }

  void go() {
    go_ = true;
    go_.notify_one();
  }

  static inline int made = 0;
  Store& store_;
  std::atomic<bool> held_{false};
  std::atomic<bool> go_{false};
  std::deque<Answer> answers_;
  std::atomic<int> pending_{0};
};

}  // namespace once::testing
