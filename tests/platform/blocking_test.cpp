#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/records.hpp>

namespace once {
namespace blocking_test {

// Answers from a thread of its own.
class LaterStore final : public Store {
 public:
  explicit LaterStore(std::unique_ptr<Store> inner) : inner_(std::move(inner)) {}
  LaterStore(const LaterStore&) = delete;
  LaterStore& operator=(const LaterStore&) = delete;
  ~LaterStore() override {
    for (std::thread& thread : threads_) thread.join();
  }
  void insert(RecordPtr record, Done done) override {
    later([this, record = std::move(record), done = std::move(done)]() mutable {
      inner_->insert(std::move(record), std::move(done));
    });
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    later([this, record = std::move(record), seen, done = std::move(done)]() mutable {
      inner_->replace(std::move(record), seen, std::move(done));
    });
  }
  void remove(std::string key, Seen seen, Done done) override {
    later([this, key = std::move(key), seen, done = std::move(done)]() mutable {
      inner_->remove(std::move(key), seen, std::move(done));
    });
  }
  void get(std::string key, Done done) override {
    later([this, key = std::move(key), done = std::move(done)]() mutable {
      inner_->get(std::move(key), std::move(done));
    });
  }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    later([this, query = std::move(query), done = std::move(done)]() mutable {
      inner_->list(std::move(query), std::move(done));
    });
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    later([this, now, limit, done = std::move(done)]() mutable { inner_->sweep(now, limit, std::move(done)); });
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override { return inner_->capabilities(); }
  [[nodiscard]] std::string name() const override { return "later:"; }

 private:
  template <class F>
  void later(F work) {
    threads_.emplace_back(std::move(work));
  }

  std::unique_ptr<Store> inner_;
  std::vector<std::thread> threads_;
};

void expect_all_six(Store& store) {
  const Record record = testing::full_record("a#1");
  EXPECT_EQ(blocking::insert(store, record).status, AnswerStatus::done);
  const Answer refused = blocking::insert(store, record);
  EXPECT_EQ(refused.status, AnswerStatus::refused);
  EXPECT_EQ(testing::differences(record, *refused.record), "");
  Record next = record;
  next.revision += 1;
  EXPECT_EQ(blocking::replace(store, next, testing::seen_of(record)).status, AnswerStatus::done);
  EXPECT_EQ(testing::differences(next, *blocking::get(store, "a#1").record), "");
  EXPECT_EQ(blocking::list(store, {}).records.size(), 1U);
  EXPECT_EQ(blocking::sweep(store, Time{}, 10).removed, 0U);
  EXPECT_EQ(blocking::remove(store, "a#1", testing::seen_of(next)).status, AnswerStatus::done);
  EXPECT_FALSE(blocking::get(store, "a#1").record);
}

TEST(Blocking, waits_for_answers_given_at_once) { expect_all_six(*stores::make_memory_store()); }

TEST(Blocking, waits_for_answers_from_other_threads) {
  LaterStore store(stores::make_memory_store());
  for (int i = 0; i < 20; ++i) expect_all_six(store);
}

}  // namespace blocking_test
}  // namespace once
