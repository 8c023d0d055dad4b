// Acts on many records: what is selected, and what is left when the store fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/acts.hpp"

namespace once::operators {
namespace acts_test {

using once::testing::Fault;
using once::testing::FaultPlan;
using once::testing::FaultyStore;
using once::testing::StoreCall;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

const operate::Reason because{.by = "alice@desk", .text = "the bank was down"};

class ActsTest : public ::testing::Test {
 protected:
  ActsTest() {
    for (const char* const name : {"a", "b", "c", "d"}) keep(name);
  }
  void keep(const std::string& name) {
    Record record = once::testing::plain_record(Key("pay", name).stored());
    record.state = State::unknown;
    record.expires_at = never;
    EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
  }

  static operate::Plan release(const Record& seen, const operate::Reason& reason, Stamp stamp, Millis /*skew*/) {
    return operate::plan_release(seen, {.as = operate::As::released}, reason, fresh_owner(), stamp);
  }
  const Act act{.planner = release, .done = "released"};

  Selection selected(std::size_t most) {
    return select(access, {.standing = operate::Standing::unknown}, now, because, act, most, {});
  }
  std::size_t released() {
    std::size_t count = 0;
    operate::for_each(*store, {.standing = operate::Standing::released}, now,
                      [&](const Record&) { return ++count > 0; });
    return count;
  }

  FaultPlan faults;
  std::shared_ptr<Store> store = std::make_shared<FaultyStore>(
      stores::make_memory_store(), [this](const StoreCall& call) { return faults ? faults(call) : Fault{}; });
  StoreAccess access{.url = {}, .store = store, .offload = {}, .offload_name = {}, .offload_directory = {}};
  Time now = operate::now(*store, *system_clock());
};

TEST_F(ActsTest, SaysThatTooManyMatch) {
  EXPECT_THAT(selected(4).records, SizeIs(4));
  EXPECT_FALSE(selected(4).bounded);
  EXPECT_THAT(selected(3).records, SizeIs(3));
  EXPECT_TRUE(selected(3).bounded);
}

TEST_F(ActsTest, EndsItsReadingWhenItIsTold) {
  for (int i = 0; i < 600; ++i) keep("more-" + std::to_string(i));  // More than a page.
  unsigned lists = 0;
  faults = [&](const StoreCall& call) {
    lists += call.operation == StoreCall::Operation::list ? 1 : 0;
    return Fault{};
  };
  const Selection selection = select(access, {.standing = operate::Standing::unknown}, now, because, act, 1000,
                                     {.go_on = [](std::uint64_t read) { return read < 1; }});
  EXPECT_THAT(selection.records, SizeIs(500));
  EXPECT_EQ(lists, 1U);
  EXPECT_FALSE(selection.error);
}

TEST_F(ActsTest, ReadsSeveralKeysAtOnce) {
  class Held final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void get(std::string key, Done done) override {
      waiting.emplace_back(std::move(key), std::move(done));
      if (waiting.size() < 4) return;  // None is answered before all four are asked for.
      for (auto& [name, answer] : std::exchange(waiting, {})) ForwardingStore::get(name, std::move(answer));
    }
    std::vector<std::pair<std::string, Done>> waiting;
  };
  const StoreAccess held{
      .url = {}, .store = std::make_shared<Held>(store), .offload = {}, .offload_name = {}, .offload_directory = {}};
  std::vector<std::string> keys;
  for (const char* const name : {"d", "c", "none", "a"}) keys.push_back(Key("pay", name).stored());
  const Selection selection = select_keys(held, keys, now, because, act, {});
  ASSERT_THAT(selection.records, SizeIs(3));
  EXPECT_EQ(selection.records.front().stored_key, keys.front());  // In their order.
  EXPECT_THAT(selection.left, ElementsAre(Pair(Pair(LeftBecause::gone, "there is no such record"), SizeIs(1))));
}

TEST_F(ActsTest, StopsWhereItIsTold) {
  Selection selection = selected(4);
  const CarriedOut carried = carry_out(
      access, selection.records, because, act, [](std::uint64_t done) { return done < 3; }, selection.left);
  EXPECT_EQ(carried.done, 3);
  EXPECT_EQ(released(), 3);
  EXPECT_THAT(selection.left, ElementsAre(Pair(Pair(LeftBecause::not_reached, "not reached"), SizeIs(1))));
}

TEST_F(ActsTest, AStoreThatFailsEndsIt) {
  Selection selection = selected(4);
  unsigned writes = 0;
  faults = [&](const StoreCall& call) {
    return Fault{.kind = call.is_write() && ++writes == 2 ? Fault::Kind::unavailable : Fault::Kind::none};
  };
  const CarriedOut carried = carry_out(
      access, selection.records, because, act, [](std::uint64_t) { return true; }, selection.left);
  ASSERT_TRUE(carried.error);
  EXPECT_EQ(carried.error->kind, ErrorKind::unavailable);
  EXPECT_EQ(carried.done, 1);
  EXPECT_EQ(released(), 1);
  EXPECT_THAT(selection.left, ElementsAre(Pair(Pair(LeftBecause::failed, carried.error->message), SizeIs(1)),
                                          Pair(Pair(LeftBecause::not_reached, "not reached"), SizeIs(2))));
}

TEST_F(ActsTest, AWriteWhoseAnswerWasLostCountsAsDone) {
  Selection selection = selected(4);
  faults = [](const StoreCall& call) {
    return Fault{.kind = call.is_write() ? Fault::Kind::lost_after : Fault::Kind::none};
  };
  const CarriedOut carried = carry_out(
      access, selection.records, because, act, [](std::uint64_t) { return true; }, selection.left);
  EXPECT_EQ(carried.done, 4);
  EXPECT_EQ(released(), 4);
  EXPECT_TRUE(selection.left.empty());
}

}  // namespace acts_test
}  // namespace once::operators
