// The engine over DynamoDB, in virtual time: round trips, hosts whose clocks are off, lost answers, a storm of faults.
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {
namespace engine_test {

using namespace std::chrono_literals;
using Trips = std::map<std::string, std::uint64_t>;

class DynamoDbEngine : public ::testing::Test {
 protected:
  DynamoDbEngine() { fake->create_table("records", "id"); }

  // What waits for a timer keeps its engine: everything comes to rest first.
  void TearDown() override {
    fake->set_faults([](const FakeCall&) { return FakeFault{}; });
    for (int i = 0; i < 10'000 && timers->run_next(); ++i) {
    }
    EXPECT_EQ(timers->pending(), 0U);
  }

  // A process on its own host, whose UTC is wrong by this much. It has heard nothing from the service yet.
  std::unique_ptr<Engine> process(Millis off = 0ms) {
    const auto host = std::make_shared<DriftingClock>(clock, 0, off);
    EngineOptions o;
    o.store = stores::make_dynamodb_store({.table = "records",
                                           .transport = make_fake_transport(fake),
                                           .allow_eventual = true,  // So that it does not ask.
                                           .clock = host});
    o.policy.lease = 3s;
    o.policy.max_inline_bytes = 400 * 1024;
    o.policy.retention = 24h;
    o.policy.heartbeat = false;
    o.policy.on_conflict = OnConflict::fail;
    o.clock = host;
    o.timers = timers;
    o.random = std::make_shared<SeededRandom>(++seed);
    return std::make_unique<Engine>(std::move(o));
  }

  Begin begin(Engine& engine, std::string_view key) {
    std::optional<Begin> begun;
    engine.begin({.key = Key("test", key), .fingerprint = {}, .policy = {}, .holder = {}},
                 [&](Begin b) { begun = std::move(b); });
    for (int i = 0; !begun && i < 1000 && timers->run_next(); ++i) {
    }
    if (!begun) throw std::runtime_error("no answer to begin");
    return *std::move(begun);
  }

  Finish complete(Claim& claim, std::string bytes) {
    std::optional<Finish> finish;
    claim.complete(Result::inlined(std::move(bytes)), [&](Finish f) { finish = std::move(f); });
    for (int i = 0; !finish && i < 1000 && timers->run_next(); ++i) {
    }
    if (!finish) throw std::runtime_error("no answer to complete");
    return *std::move(finish);
  }

  void fault_once(FakeFault::Kind kind) {
    fake->set_faults([kind, done = false](const FakeCall&) mutable {
      return FakeFault{.kind = std::exchange(done, true) ? FakeFault::Kind::none : kind};
    });
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();  // The service's, which is right.
  std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(clock);
  std::uint64_t seed = 0;
};

TEST_F(DynamoDbEngine, RoundTripsAreAsFewAsPromised) {
  const auto a = process();
  const auto b = process();
  Begin fresh = begin(*a, "new");
  EXPECT_EQ(complete(fresh.claim, "done").kind, Finish::Kind::recorded);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 2}})) << "a new operation";

  fake->reset_round_trips();
  EXPECT_EQ(begin(*b, "new").record->result.bytes, "done");
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}})) << "a replay";

  Begin held = begin(*a, "held");
  fake->reset_round_trips();
  EXPECT_EQ(begin(*b, "held").kind, Begin::Kind::conflict);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}})) << "a conflict";

  clock->advance(10s);
  fake->reset_round_trips();
  Begin taken = begin(*b, "held");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed);
  EXPECT_EQ(complete(taken.claim, "taken").kind, Finish::Kind::recorded);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 3}})) << "a takeover";
  EXPECT_EQ(complete(held.claim, "late").kind, Finish::Kind::superseded);
}

// An item as large as the service takes, most of it steps: a takeover fits, as older entries of the history give way.
TEST_F(DynamoDbEngine, AHistoryGivesWayInAnItemOfTheGreatestSize) {
  const auto store = stores::make_dynamodb_store({.table = "records", .transport = make_fake_transport(fake)});
  EffectivePolicy policy;
  policy.lease = 3s;
  Record full = claimed({.key = Key("test", "full").stored(), .owner = owner_of(9), .holder = "gone"}, policy,
                        Stamp(clock->now(), 0), nullptr, Verdict::execute);
  for (std::size_t i = 0; i < History::max_entries; ++i) {
    append(full.history, {.what = "released", .who = std::string(256, 'h'), .why = std::string(256, 'w')});
  }
  full.steps.push_back({"big", ""});
  const std::size_t most = store->capabilities().max_record_bytes;
  full.steps[0].result.assign(most - record_bytes(full), 's');
  ASSERT_EQ(blocking::insert(*store, full).status, AnswerStatus::done);

  clock->advance(10s);
  const auto a = process();
  Begin taken = begin(*a, "full");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed) << taken.error.message;
  const RecordPtr stored = blocking::get(*store, full.key).record;
  EXPECT_EQ(stored->steps, full.steps);
  EXPECT_EQ(stored->history.entries.back().who, "gone");
  EXPECT_EQ(stored->history.entries.size() + stored->history.dropped, History::max_entries + 1);
  EXPECT_GT(stored->history.dropped, 1U);
  EXPECT_EQ(complete(taken.claim, "done").kind, Finish::Kind::recorded);
}

// docs/stores/dynamodb.md has this table.
TEST_F(DynamoDbEngine, RecordsAreBilledByTheirSize) {
  struct Row {
    std::size_t kilobytes;
    double fresh_write, first_replay_write, replay_read;
  };
  constexpr std::array rows{Row{1, 2, 1, 0}, Row{10, 11, 10, 3}, Row{38, 39, 38, 10}, Row{100, 101, 100, 25},
                            Row{380, 381, 380, 95}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.kilobytes);
    const std::string key = std::to_string(row.kilobytes) + " KB";
    const auto a = process();
    const auto b = process();
    FakeUnits before = fake->units();
    const auto used = [&] {
      const FakeUnits now = fake->units();
      return FakeUnits{now.write - std::exchange(before.write, now.write),
                       now.read - std::exchange(before.read, now.read)};
    };
    // Not to be compressed. What the record has beside it is under a kilobyte.
    std::vector<std::uint8_t> bytes(row.kilobytes * 1024 - 600);
    SeededRandom(row.kilobytes).fill(bytes);
    Begin fresh = begin(*a, key);
    EXPECT_EQ(complete(fresh.claim, std::string(bytes.begin(), bytes.end())).kind, Finish::Kind::recorded);
    EXPECT_EQ(used().write, row.fresh_write);

    EXPECT_EQ(begin(*b, key).kind, Begin::Kind::replayed);
    FakeUnits first = used();
    EXPECT_EQ(first.write, row.first_replay_write);
    EXPECT_EQ(first.read, 0);
    EXPECT_EQ(begin(*b, key).kind, Begin::Kind::replayed);
    const FakeUnits second = used();
    EXPECT_EQ(second.write, row.replay_read == 0 ? 1 : 0);
    EXPECT_EQ(second.read, row.replay_read);
  }
}

// What reading first costs is never more than what replays had lost before by not reading.
TEST_F(DynamoDbEngine, ReadsFirstOnlyAsLongAsThatPays) {
  const auto a = process();
  const auto b = process();
  std::vector<std::uint8_t> bytes(10 * 1024 - 600);
  SeededRandom(1).fill(bytes);
  Begin fresh = begin(*a, "large");
  complete(fresh.claim, std::string(bytes.begin(), bytes.end()));
  EXPECT_EQ(begin(*b, "large").kind, Begin::Kind::replayed);

  fake->reset_round_trips();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(begin(*b, "new " + std::to_string(i)).claim);
  const auto reads = static_cast<double>(fake->round_trips("GetItem"));
  EXPECT_GE(reads, 30);
  EXPECT_LE(reads, 10 * 4.75) << "ten units of a write, as five of a read each, less the three of reading";
  EXPECT_EQ(fake->round_trips("PutItem"), 100U);

  fake->reset_round_trips();
  EXPECT_EQ(begin(*b, "large").kind, Begin::Kind::replayed);
  EXPECT_EQ(fake->round_trips(), (Trips{{"PutItem", 1}})) << "the reads were used up";
  EXPECT_EQ(begin(*b, "large").kind, Begin::Kind::replayed);
  EXPECT_EQ(fake->round_trips(), (Trips{{"GetItem", 1}, {"PutItem", 1}}));
}

// A machine five seconds off neither steals a claim of three seconds nor loses one, whether it has spoken with the
// service before or begins with this very call.
TEST_F(DynamoDbEngine, AHostWhoseClockIsOffNeitherStealsNorLoses) {
  int n = 0;
  for (const Millis off : {-5'000ms, 5'000ms}) {
    for (const bool spoken_before : {false, true}) {
      for (const Millis within_second : {0ms, 300ms, 990ms}) {
        const std::string key = "key" + std::to_string(++n);
        const std::string what = "off by " + std::to_string(off.count()) + " ms, case " + std::to_string(n);
        clock->advance(within_second);
        const auto right = process();
        const auto wrong = process(off);
        if (spoken_before) begin(*wrong, "before" + key).claim.release();

        Begin of_right = begin(*right, key + "a");
        Begin of_wrong = begin(*wrong, key + "b");
        ASSERT_EQ(of_right.kind, Begin::Kind::claimed) << what;
        ASSERT_EQ(of_wrong.kind, Begin::Kind::claimed) << what;
        for (int i = 0; i < 4; ++i) {
          clock->advance(500ms);
          EXPECT_EQ(begin(*wrong, key + "a").kind, Begin::Kind::conflict) << "it stole, " << what;
          EXPECT_EQ(begin(*right, key + "b").kind, Begin::Kind::conflict) << "it lost, " << what;
        }
        EXPECT_FALSE(of_wrong.claim.stop_token().stop_requested()) << what;
        EXPECT_EQ(complete(of_right.claim, "right").kind, Finish::Kind::recorded) << what;
        EXPECT_EQ(complete(of_wrong.claim, "wrong").kind, Finish::Kind::recorded) << what;

        // And a claim of its that lapses does not lock the key for longer: lease, skew, the clocks' error.
        Begin lapsing = begin(*wrong, key + "c");
        ASSERT_EQ(lapsing.kind, Begin::Kind::claimed) << what;
        clock->advance(3s + 2s + 2500ms);
        Begin taken = begin(*right, key + "c");
        ASSERT_EQ(taken.kind, Begin::Kind::claimed) << what;
        EXPECT_EQ(complete(taken.claim, "right").kind, Finish::Kind::recorded) << what;
      }
    }
  }
}

TEST_F(DynamoDbEngine, LostAnswersAreRecognisedByTheirOwner) {
  const auto engine = process();
  for (const auto kind : {FakeFault::Kind::lost_after, FakeFault::Kind::server_error_after}) {
    const std::string key = "lost" + std::to_string(static_cast<int>(kind));
    fault_once(kind);
    fake->reset_round_trips();
    Begin begun = begin(*engine, key);
    ASSERT_EQ(begun.kind, Begin::Kind::claimed);
    EXPECT_EQ(begun.verdict, Verdict::resume);
    EXPECT_EQ(begun.claim.attempt(), 1U) << "its own claim was taken for somebody else's";
    EXPECT_EQ(fake->round_trips("PutItem") + fake->round_trips("GetItem"), 2U);
    fault_once(kind);
    EXPECT_EQ(complete(begun.claim, "done").kind, Finish::Kind::recorded);
    EXPECT_EQ(begin(*engine, key).record->result.bytes, "done");
  }
  for (const auto kind : {FakeFault::Kind::lost_before, FakeFault::Kind::server_error}) {
    fault_once(kind);
    Begin begun = begin(*engine, "before" + std::to_string(static_cast<int>(kind)));
    ASSERT_EQ(begun.kind, Begin::Kind::claimed);
    EXPECT_EQ(complete(begun.claim, "done").kind, Finish::Kind::recorded);
  }
  for (const auto kind : {FakeFault::Kind::unreachable, FakeFault::Kind::throttled}) {
    fault_once(kind);
    EXPECT_EQ(begin(*engine, "nothing was done").error.kind, ErrorKind::unavailable);
    Begin begun = begin(*engine, "nothing was done" + std::to_string(static_cast<int>(kind)));
    EXPECT_EQ(begun.kind, Begin::Kind::claimed);
    EXPECT_EQ(complete(begun.claim, "done").kind, Finish::Kind::recorded);
  }
}

// What was done and told to whom, checked while it happens.
class History {
 public:
  void started(const std::string& key, const std::string& work) {
    EXPECT_TRUE(running_[key].empty()) << key << ": " << work << " started while " << running_[key] << " ran";
    running_[key] = work;
    worked_[key].insert(work);
  }
  void ended(const std::string& key) { running_[key].clear(); }
  // A caller got this result.
  void told(const std::string& key, const std::string& result) {
    EXPECT_TRUE(worked_[key].contains(result)) << key << ": nobody worked on " << result;
    const auto [known, first] = results_.emplace(key, result);
    EXPECT_EQ(known->second, result) << key << ": two results were told";
    ++told_;
  }
  [[nodiscard]] std::size_t count() const { return told_; }
  [[nodiscard]] const std::map<std::string, std::string>& results() const { return results_; }

 private:
  std::map<std::string, std::string> running_;
  std::map<std::string, std::set<std::string>> worked_;
  std::map<std::string, std::string> results_;
  std::size_t told_ = 0;
};

TEST_F(DynamoDbEngine, AStormOfFaultsBreaksNoPromise) {
  SeededRandom random(20'261'120);
  History history;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const Millis off : {-5'000ms, 0ms, 5'000ms}) engines.push_back(process(off));
  std::uint64_t faults = 0;
  fake->set_faults([&](const FakeCall&) {
    static constexpr FakeFault::Kind kinds[] = {FakeFault::Kind::unreachable,  FakeFault::Kind::lost_before,
                                                FakeFault::Kind::lost_after,   FakeFault::Kind::throttled,
                                                FakeFault::Kind::server_error, FakeFault::Kind::server_error_after};
    FakeFault fault;
    fault.without_item = random.below(4) == 0;
    if (random.below(4) == 0) {
      fault.kind = kinds[random.below(std::size(kinds))];
      ++faults;
    }
    return fault;
  });
  std::uint64_t calls = 0;
  std::uint64_t answers = 0;
  std::vector<std::shared_ptr<Claim>> dropped;
  for (int i = 0; i < 1'500; ++i) {
    Engine& engine = *engines.at(random.below(engines.size()));
    const std::string key = "key" + std::to_string(i / 50 * 3 + static_cast<int>(random.below(3)));
    ++calls;
    engine.begin({.key = Key("test", key), .fingerprint = {}, .policy = {}, .holder = {}}, [&, key, i](Begin begun) {
      ++answers;
      if (begun.kind == Begin::Kind::replayed) return history.told(key, begun.record->result.bytes);
      if (begun.kind != Begin::Kind::claimed) return;
      const std::string work = "result " + std::to_string(i);
      history.started(key, work);
      const auto claim = std::make_shared<Claim>(std::move(begun.claim));
      // Some processes die at work, and their claims lapse; the work of others takes half a second.
      if (random.below(5) == 0) {
        history.ended(key);
        dropped.push_back(claim);
        return;
      }
      timers->at(clock->uptime() + 500ms, [&, key, work, claim] {
        history.ended(key);
        claim->complete(Result::inlined(work), [&, key, work](const Finish& finish) {
          if (finish.kind == Finish::Kind::recorded) history.told(key, work);
          if (finish.kind == Finish::Kind::superseded) history.told(key, finish.record->result.bytes);
        });
      });
    });
    timers->advance(Millis(static_cast<std::int64_t>(random.below(400))));
  }
  for (int i = 0; i < 100'000 && timers->run_next(); ++i) {
  }
  EXPECT_EQ(answers, calls);
  EXPECT_GT(faults, 300U);
  EXPECT_GT(history.count(), 300U);
  ASSERT_LT(clock->now() - manual_start, 12h) << "results may have expired";
  // What was acknowledged is there.
  fake->set_faults([](const FakeCall&) { return FakeFault{}; });
  const auto after = process();
  for (const auto& [key, result] : history.results()) {
    const Begin begun = begin(*after, key);
    ASSERT_EQ(begun.kind, Begin::Kind::replayed) << key;
    EXPECT_EQ(begun.record->result.bytes, result) << key;
  }
}

}  // namespace engine_test
}  // namespace once::testing
