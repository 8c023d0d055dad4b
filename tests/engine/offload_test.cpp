// Results outside the store: kept, fetched, missing, altered.
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "engine_test.hpp"

namespace once::testing {
namespace offload_test {

struct MapOffload final : Offload {
  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    if (fails) return done({{}, Error{ErrorKind::unavailable, "the bucket is full"}});
    const std::string location = hint + "/" + std::to_string(kept.size());
    kept[location] = std::move(bytes);
    done({location, {}});
  }
  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    if (before_get) std::exchange(before_get, nullptr)();
    if (!kept.contains(location)) return done({{}, Error{ErrorKind::corrupt, location + " is gone"}});
    done({kept.at(location), {}});
  }
  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    kept.erase(location);
    done({});
  }
  bool fails = false;
  std::function<void()> before_get;  // Runs once, when a result is requested: another attempt is faster.
  std::map<std::string, std::string> kept;
};

class OffloadTest : public EngineTest {
 protected:
  Process offloading() {
    return process([&](EngineOptions& o) {
      o.offload = offload;
      o.policy.max_inline_bytes = 10;
      o.policy.heartbeat = false;
    });
  }
  static Policy small() {
    Policy p = policy();
    p.max_inline_bytes = 10;
    p.heartbeat = false;
    return p;
  }
  std::shared_ptr<MapOffload> offload = std::make_shared<MapOffload>();
  const std::string large = "larger than ten bytes";
};

TEST_F(OffloadTest, ALargeResultIsKeptOutsideAndReplayed) {
  auto p = offloading();
  auto begun = begin(p, "a", small());
  EXPECT_EQ(complete(begun->claim, large)->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::offloaded);
  EXPECT_EQ(stored("a")->result.bytes, "");
  EXPECT_EQ(offload->kept.size(), 1U);
  auto other = offloading();
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::replayed);
  EXPECT_EQ(again->record->result.bytes, large);
  EXPECT_THAT(other.events->names(), ElementsAre("replayed"));
  EXPECT_EQ(other->run("a", {}, [] { FAIL(); }).value(), large);
}

TEST_F(OffloadTest, MissingOrAlteredBytesAreAClearErrorAndNoSecondRun) {
  auto p = offloading();
  auto begun = begin(p, "a", small());
  complete(begun->claim, large);
  auto other = offloading();
  offload->kept.begin()->second = "something else";
  auto altered = begin(other, "a");
  ASSERT_EQ(altered->kind, Begin::Kind::error);
  EXPECT_EQ(altered->error.kind, ErrorKind::corrupt);
  EXPECT_THAT(altered->error.message, HasSubstr("not the one that was kept"));
  offload->kept.clear();
  auto missing = begin(other, "a");
  ASSERT_EQ(missing->kind, Begin::Kind::error);
  EXPECT_THAT(missing->error.message, HasSubstr("gone"));
  auto without = process();
  auto nowhere = begin(without, "a");
  ASSERT_EQ(nowhere->kind, Begin::Kind::error);
  EXPECT_THAT(nowhere->error.message, HasSubstr("EngineOptions::offload"));
  EXPECT_THAT(without.events->names(), ElementsAre("store_error"));
  Policy open = small();
  open.on_store_down = OnStoreDown::run_unprotected;
  EXPECT_EQ(without->run(request("a", open), [] { FAIL() << "a second run"; }).kind, Outcome::Kind::error);
}

TEST_F(OffloadTest, AnOffloadThatFailsLeavesATombstone) {
  auto p = offloading();
  auto begun = begin(p, "a", small());
  offload->fails = true;
  EXPECT_EQ(complete(begun->claim, large)->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
  EXPECT_EQ(p.events->count(EventKind::store_error), 1U);
}

TEST_F(OffloadTest, AResultTooLargeForTheStoreIsOffloadedWhateverThePolicy) {
  store->max_record_bytes = 12'000;
  auto p = offloading();
  Policy generous = small();
  generous.max_inline_bytes = 1'000'000;
  auto begun = begin(p, "a", generous);
  EXPECT_EQ(complete(begun->claim, std::string(20'000, 'x'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::offloaded);
}

TEST_F(OffloadTest, WhatSupersedesIsFetchedAndWhatIsLostIsRemoved) {
  auto p = offloading();
  auto late = begin(p, "a", small());
  clock->advance(9s);
  auto other = offloading();
  auto taken = begin(other, "a", small());
  complete(taken->claim, large + " of the other");
  auto finish = complete(late->claim, large + " that is late");
  ASSERT_EQ(finish->kind, Finish::Kind::superseded);
  EXPECT_EQ(finish->record->result.bytes, large + " of the other");
  ASSERT_EQ(offload->kept.size(), 1U);
  EXPECT_EQ(offload->kept.begin()->second, large + " of the other");
}

TEST_F(OffloadTest, AResultWhoseRecordIsClaimedAnewIsRemoved) {
  auto p = offloading();
  auto begun = begin(p, "a", small());
  complete(begun->claim, large);
  ASSERT_EQ(offload->kept.size(), 1U);
  clock->advance(2h);  // Past its retention.
  auto anew = begin(p, "a", small());
  ASSERT_EQ(anew->kind, Begin::Kind::claimed);
  EXPECT_THAT(offload->kept, IsEmpty());
  Slot<Finish> failed;
  anew->claim.fail({.code = "declined", .message = "no"}, Result::inlined(large), failed.fill());
  ASSERT_EQ(offload->kept.size(), 1U);
  Policy retry = small();
  retry.on_stored_failure = OnStoredFailure::execute;
  auto again = begin(p, "a", retry);
  ASSERT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_THAT(offload->kept, IsEmpty());
}

// 1. A finds the result. 2. It expires, B claims the key again and removes it. 3. A fetches it.
TEST_F(OffloadTest, WhoeverFetchesAResultThatIsRemovedMeanwhileLooksAgain) {
  auto p = offloading();
  auto begun = begin(p, "a", small());
  complete(begun->claim, large);
  auto other = offloading();
  std::optional<Slot<Begin>> anew;
  offload->before_get = [&] {
    clock->advance(2h);
    anew = begin(other, "a", small());
  };
  auto reader = offloading();
  auto read = begin(reader, "a", waiting(24h));
  ASSERT_EQ((*anew)->kind, Begin::Kind::claimed);
  EXPECT_THAT(offload->kept, IsEmpty());
  EXPECT_FALSE(read.ready()) << "it waits for the new claim";
  complete((*anew)->claim, large + " of the other");
  timers->advance(2s);
  ASSERT_EQ(read->kind, Begin::Kind::replayed);
  EXPECT_EQ(read->record->result.bytes, large + " of the other");
  EXPECT_EQ(reader.events->count(EventKind::store_error), 0U);
}

TEST_F(OffloadTest, SoDoesWhoeverLostItsClaim) {
  auto p = offloading();
  auto late = begin(p, "a", small());
  clock->advance(9s);
  auto other = offloading();
  auto taken = begin(other, "a", small());
  complete(taken->claim, large);
  offload->before_get = [&] {
    clock->advance(2h);
    auto anew = begin(other, "a", small());
    complete(anew->claim, large + " of the last one");
  };
  auto finish = complete(late->claim, large + " that is late");
  ASSERT_EQ(finish->kind, Finish::Kind::superseded);
  EXPECT_EQ(finish->record->result.bytes, large + " of the last one");
}

TEST_F(OffloadTest, TheCacheKeepsTheBytesOnceFetched) {
  auto p = process([&](EngineOptions& o) {
    o.offload = offload;
    o.cache_records = 16;
  });
  auto begun = begin(p, "a", small());
  complete(begun->claim, large);
  EXPECT_EQ(begin(p, "a")->record->result.bytes, large);
  offload->kept.clear();
  EXPECT_EQ(begin(p, "a")->record->result.bytes, large);
}

}  // namespace offload_test
}  // namespace once::testing
