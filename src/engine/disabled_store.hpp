// The store of an engine that is switched off (EngineOptions::disabled): it accepts every write, and keeps nothing. So
// every call gets a claim, and all front ends work as usual, but nobody is kept from running the same again.
#pragma once

#include <string>
#include <utility>

#include <once/store.hpp>

namespace once {

class DisabledStore final : public Store {
 public:
  explicit DisabledStore(std::shared_ptr<Store> instead_of) : instead_of_(std::move(instead_of)) {}

  void insert(RecordPtr /*record*/, Done done) override { done(accepted()); }
  void replace(RecordPtr /*record*/, Seen /*seen*/, Done done) override { done(accepted()); }
  void remove(std::string /*key*/, Seen /*seen*/, Done done) override { done(accepted()); }
  void get(std::string /*key*/, Done done) override { done(accepted()); }
  void list(ListQuery /*query*/, Callback<void(ListPage)> done) override { done({}); }
  void sweep(Time /*now*/, std::size_t /*limit*/, Callback<void(SweepAnswer)> done) override { done({}); }

  // Of the store, so that what is too large for it is found now too. Nothing can commit together with a record.
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities all = instead_of_->capabilities();
    all.hands_out = false;
    all.has_finish_function = false;
    all.tells_time = false;
    return all;
  }
  [[nodiscard]] std::string name() const override { return instead_of_->name() + " (switched off)"; }
  [[nodiscard]] Store* below() const noexcept override { return instead_of_.get(); }

 private:
  static Answer accepted() { return {}; }

  const std::shared_ptr<Store> instead_of_;
};

}  // namespace once
