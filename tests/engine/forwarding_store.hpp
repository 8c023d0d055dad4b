// A store that forwards everything to another: a base for stores that override a part.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <once/store.hpp>
#include <once/stores/sql.hpp>

namespace once::testing {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  void insert(RecordPtr record, Done done) override { inner_->insert(std::move(record), std::move(done)); }
  void replace(RecordPtr record, Seen seen, Done done) override {
    inner_->replace(std::move(record), seen, std::move(done));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    inner_->replace_with(std::move(record), seen, std::move(companion), std::move(done));
  }
  stores::SqlStatement finish_statement(const Record& record, std::uint64_t place) override {
    return inner_->finish_statement(record, place);
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
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 protected:
  const std::shared_ptr<Store> inner_;
};

// Keeps records up to a size.
class SmallStore final : public ForwardingStore {
 public:
  explicit SmallStore(std::shared_ptr<Store> inner, std::size_t max_record_bytes = 4'096)
      : ForwardingStore(std::move(inner)), max_record_bytes_(max_record_bytes) {}

  void replace(RecordPtr record, Seen seen, Done done) override {
    if (record_bytes(*record) > max_record_bytes_) return done(Answer::cannot_keep("too large"));
    inner_->replace(std::move(record), seen, std::move(done));
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities small = inner_->capabilities();
    small.max_record_bytes = max_record_bytes_;
    return small;
  }

 private:
  const std::size_t max_record_bytes_;
};

}  // namespace once::testing
