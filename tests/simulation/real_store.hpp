// A real store's code in the place of the simulated one. What it stands on differs from store to store: a wire, a disk.
#pragma once

#include <memory>
#include <utility>

#include "parts.hpp"

namespace once::simulation {

// Of one world. Tells Simulation::stored() and swept() what has changed in the store, as it sees that from below.
class RealStore {
 public:
  virtual ~RealStore() = default;
  // As one life of a process opens it. There until close().
  virtual Store& open(Host& host, ProcessId id) = 0;
  // The process is dead, and its engine gone. What it waits for is answered, which nobody hears.
  virtual void close(ProcessId id) = 0;
  // What the next calls of the store on this thread are made for, instead of what is returned. Null: for nothing that
  // an engine or an operator asked.
  std::shared_ptr<const Asking> asks(std::shared_ptr<const Asking> asking) {
    return std::exchange(asking_, std::move(asking));
  }
  virtual std::shared_ptr<const Companion> companion_of(const Charge& charge) = 0;
  // An operator's act, at once.
  virtual void carry_out(const Asking& asking) = 0;
  // Some of the expired records go, at once.
  virtual void sweep() = 0;
  // At the end: what the store lists has to be what it was told to keep.
  virtual void check() = 0;

 protected:
  std::shared_ptr<const Asking> asking_;
};

std::unique_ptr<RealStore> make_dynamodb(Simulation& simulation);
std::unique_ptr<RealStore> make_sqlite(Simulation& simulation);

// Throws Violation unless the store lists what the auditor knows.
void check_list(Simulation& simulation, Store& store);

// What an engine has for its store: tells the auditor what is asked and answered.
class RealFront final : public Store {
 public:
  RealFront(Simulation& simulation, RealStore& real, Host& host, ProcessId id)
      : simulation_(simulation), real_(real), host_(host), life_(host.life()), id_(id), store_(real.open(host, id)) {}

  void insert(RecordPtr record, Done done) override;
  void replace(RecordPtr record, Seen seen, Done done) override;
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override;
  void remove(std::string key, Seen seen, Done done) override;
  void get(std::string key, Done done) override;
  void list(ListQuery, Callback<void(ListPage)>) override { throw Violation("answers: an engine lists records"); }
  void sweep(Time, std::size_t, Callback<void(SweepAnswer)>) override { throw Violation("answers: an engine sweeps"); }
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override { return store_.time(); }
  [[nodiscard]] Capabilities capabilities() const noexcept override;
  [[nodiscard]] std::string name() const override { return store_.name(); }

 private:
  template <class Call>
  void ask(Asking asking, Done done, Call&& call);

  Simulation& simulation_;
  RealStore& real_;
  Host& host_;
  const std::uint64_t life_;
  const ProcessId id_;
  Store& store_;
};

}  // namespace once::simulation
