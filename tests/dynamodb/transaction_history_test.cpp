// A shop of a few processes that die, are wrong about the time and lose answers, in virtual time: each order takes one
// piece out of the stock and is counted once, in the transaction that completes it. What was counted in the end is held
// against what was completed. Stores that do the same in two writes are caught by it.
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/engine/engine.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {
namespace transaction_history_test {

using namespace std::chrono_literals;
using nlohmann::json;
using stores::TransactItems;

// A store in front of another one. After death it asks and answers nothing any more, as its process does.
class Mortal : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  bool dead = false;
  std::function<void()> at_transaction;  // Called before one is sent; it may end in death.
  std::function<void()> after_transaction;
  std::vector<std::shared_ptr<Claim>> claims;  // Of its process.
  // What nobody waits for any more holds its engine, which holds this; and the claims' heartbeats would go on.
  void bury() {
    graves_.clear();
    claims.clear();
  }

  void insert(RecordPtr record, Done done) override {
    if (dead) return graves_.push_back(std::move(done));
    inner_->insert(std::move(record), living(std::move(done)));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    if (dead) return graves_.push_back(std::move(done));
    inner_->replace(std::move(record), seen, living(std::move(done)));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
    at_transaction();
    if (dead) return graves_.push_back(std::move(done));
    commit(std::move(record), seen, std::move(companion),
           [this, done = living(std::move(done))](Answer answer) mutable {
             after_transaction();
             done(std::move(answer));
           });
  }
  void remove(std::string key, Seen seen, Done done) override {
    if (dead) return graves_.push_back(std::move(done));
    inner_->remove(std::move(key), seen, living(std::move(done)));
  }
  void get(std::string key, Done done) override {
    if (dead) return graves_.push_back(std::move(done));
    inner_->get(std::move(key), living(std::move(done)));
  }

 protected:
  virtual void commit(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) {
    inner_->replace_with(std::move(record), seen, std::move(companion), std::move(done));
  }
  Done living(Done done) {
    return [this, done = std::move(done)](Answer answer) mutable {
      if (dead) return graves_.push_back(std::move(done));
      done(std::move(answer));
    };
  }

 private:
  std::vector<Done> graves_;
};

// What people write who have no transactions, or use them wrongly.
enum class Planted : std::uint8_t { none, items_first, record_first, forgets_items, other_record_wins };

struct Report {
  std::size_t orders = 0;
  std::size_t sold = 0;      // Orders completed with a piece out of the stock.
  std::size_t sold_out = 0;  // Orders completed without.
  std::size_t retried = 0;   // Orders that were worked on by several attempts.
  std::size_t deaths = 0;
  std::size_t declined = 0;
  std::uint64_t faults = 0;
  std::vector<std::string> violations;
};

class Shop {
 public:
  Shop(std::uint64_t seed, Planted planted) : random_(seed), planted_(planted) {
    fake_->create_table("records", "id");
    fake_->create_table("stock", "sku");
    fake_->create_table("sales", "order");
    must("PutItem", {{"TableName", "stock"}, {"Item", {{"sku", {{"S", "tea"}}}, {"pieces", {{"N", "45"}}}}}});
    for (const Millis off : {-5'000ms, 0ms, 5'000ms}) processes_.push_back(open(off));
  }
  ~Shop() {
    for (const auto& mortal : mortals_) mortal->bury();
  }
  Shop(const Shop&) = delete;
  Shop& operator=(const Shop&) = delete;

  Report run() {
    fake_->set_faults([this](const FakeCall&) { return fault(); });
    for (int i = 0; i < 600; ++i) {
      const std::string order = "order" + std::to_string(i / 20 * 2 + static_cast<int>(random_.below(2)));
      worked_.try_emplace(order, 0);
      ask(processes_.at(random_.below(processes_.size())), order);
      timers_->advance(Millis(static_cast<Millis::rep>(random_.below(600))));
      bury();
    }
    settle();
    fake_->set_faults([](const FakeCall&) { return FakeFault{}; });
    audit();
    return report_;
  }

 private:
  struct Process {
    Millis off{};
    std::shared_ptr<Mortal> store;
    std::shared_ptr<Engine> engine;
  };

  json must(const char* operation, const json& body) const {
    const FakeAnswer answer = fake_->call(operation, body.dump());
    if (answer.status != 200) throw std::runtime_error(answer.body);
    return json::parse(answer.body);
  }

  // Two writes where there should be one.
  class Broken final : public Mortal {
   public:
    Broken(std::shared_ptr<Store> inner, Planted planted, std::shared_ptr<FakeDynamoDb> fake)
        : Mortal(std::move(inner)), planted_(planted), transport_(make_fake_transport(std::move(fake))) {}

   protected:
    void commit(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override {
      switch (planted_) {
        case Planted::none:
          return Mortal::commit(std::move(record), seen, std::move(companion), std::move(done));
        case Planted::forgets_items:
          return inner_->replace(std::move(record), seen, std::move(done));
        case Planted::items_first:
          return write_items(companion, [this, record, seen, done = std::move(done)](Answer answer) mutable {
            if (answer.status != AnswerStatus::done) return done(std::move(answer));
            inner_->replace(record, seen, std::move(done));
          });
        case Planted::record_first:
          return inner_->replace(std::move(record), seen,
                                 [this, companion, done = std::move(done)](Answer answer) mutable {
                                   if (answer.status != AnswerStatus::done) return done(std::move(answer));
                                   write_items(companion, std::move(done));
                                 });
        case Planted::other_record_wins:  // Writes over whatever it finds there.
          inner_->get(record->key, [this, record, companion, done = std::move(done)](Answer there) mutable {
            if (there.record == nullptr) return done(std::move(there));
            Record next = *record;
            next.revision = there.record->revision + 1;
            const Seen found{.owner = there.record->owner, .revision = there.record->revision};
            Mortal::commit(share(std::move(next)), found, companion, std::move(done));
          });
      }
    }

   private:
    void write_items(const std::shared_ptr<const Companion>& companion, Done done) {
      const auto& items = dynamic_cast<const TransactItems&>(*companion);
      transport_->call({.operation = "TransactWriteItems", .body = "{\"TransactItems\":[" + items.json() + "]}"},
                       [done = std::move(done)](const aws::Reply& reply) mutable {
                         if (reply.error) return done(Answer::fail(reply.error->kind, reply.error->message));
                         if (reply.status == 200) return done(Answer::ok());
                         if (reply.body.find("ConditionalCheckFailed") != std::string::npos) {
                           return done(Answer::decline(ErrorKind::unavailable, reply.body));
                         }
                         done(Answer::fail(ErrorKind::in_doubt, reply.body));
                       });
    }
    const Planted planted_;
    const std::shared_ptr<aws::Transport> transport_;
  };

  FakeFault fault() {
    static constexpr FakeFault::Kind kinds[] = {FakeFault::Kind::unreachable,  FakeFault::Kind::lost_before,
                                                FakeFault::Kind::lost_after,   FakeFault::Kind::throttled,
                                                FakeFault::Kind::server_error, FakeFault::Kind::server_error_after};
    FakeFault fault;
    fault.without_item = random_.below(4) == 0;
    if (random_.below(4) == 0) {
      fault.kind = kinds[random_.below(std::size(kinds))];
      ++report_.faults;
    }
    return fault;
  }

  Process open(Millis off) {
    const auto host = std::make_shared<DriftingClock>(clock_, 0, off);
    std::shared_ptr<Store> store =
        stores::make_dynamodb_store({.table = "records", .transport = make_fake_transport(fake_), .clock = host});
    // Late and doubled writes, and answers that overtake each other.
    store = std::make_shared<FaultyStore>(
        std::move(store),
        random_faults({.resent = 20, .repeated = 100, .delayed = 200, .max_delay = 2s}, random_.below(1'000'000)),
        clock_, timers_);
    Process process{.off = off, .store = std::make_shared<Broken>(std::move(store), planted_, fake_), .engine = {}};
    mortals_.push_back(process.store);
    const auto die = [this, mortal = process.store.get()] {
      if (!mortal->dead && !ending_ && random_.below(20) == 0) {
        mortal->dead = true;
        ++report_.deaths;
      }
    };
    process.store->at_transaction = die;
    process.store->after_transaction = die;
    EngineOptions o;
    o.store = process.store;
    o.scope = "shop";
    o.policy.lease = 3s;
    o.policy.retention = 24h * 365;
    o.policy.heartbeat = random_.below(2) == 0;
    o.clock = host;
    o.timers = timers_;
    o.random = std::make_shared<SeededRandom>(random_.below(1'000'000));
    process.engine = std::make_shared<Engine>(std::move(o));
    return process;
  }

  void ask(Process& process, const std::string& order) {
    if (process.store->dead) process = open(process.off);
    process.engine->begin(process.engine->request(order, {}), [this, order, mortal = process.store.get()](Begin begun) {
      if (begun.kind != Begin::Kind::claimed) return;
      if (++worked_[order] == 2) ++report_.retried;
      // The work, after which its claim may be gone.
      const Millis takes = random_.below(5) == 0 ? 6s : 300ms;
      const std::weak_ptr<Claim> held = mortal->claims.emplace_back(std::make_shared<Claim>(std::move(begun.claim)));
      timers_->at(clock_->uptime() + takes, [this, order, held] {
        const auto claim = held.lock();
        if (claim == nullptr) return;  // Its process died.
        auto items = std::make_shared<TransactItems>();
        items->update(R"({"TableName":"stock","Key":{"sku":{"S":"tea"}},"UpdateExpression":"ADD pieces :less",)"
                      R"("ConditionExpression":"pieces >= :one",)"
                      R"("ExpressionAttributeValues":{":less":{"N":"-1"},":one":{"N":"1"}}})");
        items->update(R"({"TableName":"sales","Key":{"order":{"S":")" + order +
                      R"("}},"UpdateExpression":"ADD times :one","ExpressionAttributeValues":{":one":{"N":"1"}}})");
        claim->complete(Result::inlined("sold"), items, [this, held](const Finish& finish) {
          if (finish.kind != Finish::Kind::declined) return;
          ++report_.declined;
          if (const auto still = held.lock()) still->complete(Result::inlined("sold out"), [](const Finish&) {});
        });
      });
    });
  }

  void bury() {
    for (const auto& mortal : mortals_) {
      if (mortal->dead) mortal->bury();
    }
  }

  void settle() {
    for (int i = 0; i < 1'000'000 && timers_->run_next(); ++i) {
      if (i % 100 == 0) bury();
    }
  }

  // Every order is asked for again by somebody who is right about the time, until it is done, without a fault.
  void audit() {
    ending_ = true;
    clock_->advance(1h);
    const Process last = open(0ms);
    const auto expect = [this](bool holds, const std::string& what) {
      if (!holds) report_.violations.push_back(what);
    };
    for (const auto& [order, attempts] : worked_) {
      ++report_.orders;
      std::optional<Begin::Kind> found;
      std::string result;
      last.engine->begin(last.engine->request(order, {}), [&](const Begin& begun) {
        found = begun.kind;
        if (begun.kind == Begin::Kind::replayed) result = begun.record->result.bytes;
      });
      settle();
      const json sale =
          must("GetItem", {{"TableName", "sales"}, {"Key", {{"order", {{"S", order}}}}}}).value("Item", json::object());
      const std::string times = sale.contains("times") ? sale["times"]["N"].get<std::string>() : "0";
      const bool replayed = found == Begin::Kind::replayed;
      const bool sold = result == "sold";
      if (sold) ++report_.sold;
      if (replayed && !sold) ++report_.sold_out;
      expect(replayed || found == Begin::Kind::claimed, order + " is neither done nor to be done");
      expect(times == (sold ? "1" : "0"), order + (sold ? " is sold" : " is not sold") + ", and was counted " + times +
                                              " times, after " + std::to_string(attempts) + " attempts");
    }
    const json stock = must("GetItem", {{"TableName", "stock"}, {"Key", {{"sku", {{"S", "tea"}}}}}});
    const int pieces = std::stoi(stock["Item"]["pieces"]["N"].get<std::string>());
    expect(pieces == 45 - static_cast<int>(report_.sold),
           std::to_string(pieces) + " pieces of 45 are left, " + std::to_string(report_.sold) + " were sold");
  }

  SeededRandom random_;
  const Planted planted_;
  bool ending_ = false;
  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers_ = std::make_shared<ManualTimers>(clock_);
  std::shared_ptr<FakeDynamoDb> fake_ = std::make_shared<FakeDynamoDb>(clock_);
  std::vector<std::shared_ptr<Mortal>> mortals_;
  std::vector<Process> processes_;
  std::map<std::string, int> worked_;
  Report report_;
};

TEST(TransactionHistory, WhatIsCountedIsWhatWasCompleted) {
  Report sum;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Report report = Shop(seed, Planted::none).run();
    for (const std::string& violation : report.violations) ADD_FAILURE() << "seed " << seed << ": " << violation;
    sum.orders += report.orders;
    sum.sold += report.sold;
    sum.sold_out += report.sold_out;
    sum.retried += report.retried;
    sum.deaths += report.deaths;
    sum.declined += report.declined;
    sum.faults += report.faults;
  }
  RecordProperty("orders", static_cast<int>(sum.orders));
  RecordProperty("retried", static_cast<int>(sum.retried));
  RecordProperty("deaths", static_cast<int>(sum.deaths));
  RecordProperty("faults", static_cast<int>(sum.faults));
  // A history in which nothing happens shows nothing.
  EXPECT_GT(sum.sold, 600U);
  EXPECT_GT(sum.sold_out, 50U);
  EXPECT_GT(sum.retried, 100U);
  EXPECT_GT(sum.deaths, 100U);
  EXPECT_GT(sum.faults, 2'000U);
}

TEST(TransactionHistory, TwoWritesInPlaceOfOneAreCaught) {
  for (const Planted planted :
       {Planted::items_first, Planted::record_first, Planted::forgets_items, Planted::other_record_wins}) {
    std::size_t violations = 0;
    for (std::uint64_t seed = 1; seed <= 3 && violations == 0; ++seed) {
      violations = Shop(seed, planted).run().violations.size();
    }
    EXPECT_GT(violations, 0U) << "planted bug " << static_cast<int>(planted);
  }
}

}  // namespace transaction_history_test
}  // namespace once::testing
