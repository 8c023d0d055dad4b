// Acts on many records: what is selected, and what is left when the store fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/records.hpp>

#include "operators/acts.hpp"

namespace once::cli {
namespace {

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
    for (const char* const name : {"a", "b", "c", "d"}) {
      Record record = once::testing::plain_record(Key("pay", name).stored());
      record.state = State::unknown;
      record.expires_at = never;
      EXPECT_EQ(blocking::insert(*store, record).status, Answer::Status::done);
    }
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

}  // namespace
}  // namespace once::cli
