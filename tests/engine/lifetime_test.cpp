// Lifetimes: engines, claims and stores are destroyed in every order, with running calls. And many threads at once.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <once/stores/sqlite.hpp>

#include <filesystem>

#include "engine_test.hpp"

namespace once::testing {
namespace lifetime_test {

using LifetimeTest = EngineTest;

TEST_F(LifetimeTest, AnEngineMayGoBeforeItsClaims) {
  auto p = process();
  auto begun = begin(p, "a");
  p.engine.reset();
  timers->advance(30s);
  EXPECT_EQ(p.events->count(EventKind::renewed), 10U) << "it is kept alive until it is finished";
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(LifetimeTest, AnEngineMayGoBeforeItsAnswers) {
  auto p = process();
  store->script({Next::stall});
  auto claimed_late = begin(p, "a");
  auto holder = process();
  auto held = begin(holder, "b");
  auto waits = begin(p, "b", waiting());
  p.engine.reset();
  store->answer_stalled();
  ASSERT_EQ(claimed_late->kind, Begin::Kind::claimed);
  timers->advance(11s);
  EXPECT_EQ(waits->kind, Begin::Kind::conflict);
  EXPECT_EQ(complete(claimed_late->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(LifetimeTest, EverythingGoesWithTheLastClaim) {
  const std::weak_ptr<ScriptStore> watched = store;
  auto p = process();
  auto begun = begin(p, "a");
  p.engine.reset();
  store.reset();
  EXPECT_FALSE(watched.expired());
  begun->claim = Claim();
  timers->advance(1min);
  EXPECT_TRUE(watched.expired());
  store = std::make_shared<ScriptStore>(clock);
}

TEST_F(LifetimeTest, CompletionsMayUseTheEngineAgain) {
  auto p = process();
  int rounds = 0;
  std::function<void(Begin)> next = [&](Begin begun) {
    if (begun.kind != Begin::Kind::claimed || ++rounds > 50) return;
    auto claim = std::make_shared<Claim>(std::move(begun.claim));
    claim->complete(Result::inlined("done"), [&, claim](const Finish&) {
      p->begin(request("k" + std::to_string(rounds)), [&](Begin b) { next(std::move(b)); });
    });
  };
  p->begin(request("k0"), [&](Begin b) { next(std::move(b)); });
  EXPECT_EQ(rounds, 51);
}

// A claim's handle may be moved over and destroyed in its own completions.
TEST_F(LifetimeTest, AHandleMayGoInItsOwnCompletion) {
  auto p = process();
  auto claim = std::make_shared<Claim>(std::move(begin(p, "a")->claim));
  bool done = false;
  Claim& handle = *claim;
  handle.complete(Result::inlined("done"), [&done, claim = std::move(claim)](const Finish&) mutable {
    claim.reset();
    done = true;
  });
  EXPECT_TRUE(done);
}

// Threads, the memory store, leases of 10 ms and work that now and then takes longer: bounded in operations.
TEST(EngineThreads, ManyThreadsAndEnginesOnFewKeys) {
  const std::shared_ptr<Store> store = stores::make_memory_store();
  std::atomic<std::uint64_t> ran{0};
  std::atomic<std::uint64_t> answered{0};
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> overtaken{0};
  std::vector<std::unique_ptr<Engine>> engines;
  std::atomic<std::uint64_t> events{0};
  for (int i = 0; i < 3; ++i) {
    EngineOptions options;
    options.store = store;
    options.scope = "stress";
    options.policy.lease = 10ms;
    options.policy.retention = 30ms;
    options.cache_records = i == 0 ? 8 : 0;
    options.observer = [&events](const Event&) { ++events; };
    engines.push_back(std::make_unique<Engine>(options));
  }
  constexpr int threads = 8;
  constexpr int rounds = 400;
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      SeededRandom random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < rounds; ++i) {
        Engine& engine = *engines[random.below(engines.size())];
        const std::string key = "k" + std::to_string(random.below(5));
        Request request = engine.request(key, "payload");
        request.policy = engine.options().policy;
        if (random.chance(500)) {
          request.policy->on_conflict = OnConflict::wait;
          request.policy->wait = Millis{static_cast<std::int64_t>(random.below(20))};
        }
        const std::uint64_t how = random.below(10);
        try {
          const Outcome outcome = engine.run(request, [&](Context& context) {
            ++ran;
            context.heartbeat("here");
            if (how < 3) context.step("one", [] { return std::string("1"); });
            if (how == 4) throw std::runtime_error("no");
            // Longer than the lease, by the clock that leases are measured with.
            if (how == 5) {
              const Uptime until = system_clock()->uptime() + 12ms;
              while (system_clock()->uptime() < until) std::this_thread::yield();
            }
            return "result of " + key;
          });
          if (outcome.kind == Outcome::Kind::executed) ++recorded;
          if (outcome.has_result() && outcome.value() != "result of " + key) ++wrong;
          if (outcome.kind == Outcome::Kind::error) ++wrong;
        } catch (const ClaimLost&) {
          ++overtaken;  // That is what short leases are here for.
        } catch (const std::runtime_error&) {
          if (how != 4) ++wrong;
        }
        ++answered;
      }
    });
  }
  for (auto& thread : all) thread.join();
  engines.clear();
  EXPECT_EQ(answered, static_cast<std::uint64_t>(threads) * rounds);
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(ran, overtaken.load());
  EXPECT_GT(recorded, 0U);
  EXPECT_GT(events, answered);
}

// The last reference to a store may be dropped by its own completion, on its own thread.
TEST(EngineThreads, AStoreMayGoOnItsOwnThread) {
  std::string pattern = (std::filesystem::temp_directory_path() / "once-engine-XXXXXX").string();
  const std::string directory = mkdtemp(pattern.data());
  for (int i = 0; i < 20; ++i) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    {
      EngineOptions options;
      options.store = stores::make_sqlite_store({.path = directory + "/once.db"});
      options.scope = "lifetime";
      auto engine = std::make_unique<Engine>(options);
      options.store.reset();
      engine->begin(engine->request("k" + std::to_string(i), ""), [&](Begin begun) {
        EXPECT_EQ(begun.kind, Begin::Kind::claimed);
        auto claim = std::make_shared<Claim>(std::move(begun.claim));
        claim->complete(Result::inlined("done"), [&, claim](const Finish& finish) {
          EXPECT_EQ(finish.kind, Finish::Kind::recorded);
          const std::lock_guard lock(mutex);
          done = true;
          changed.notify_one();
        });
      });
    }  // The engine was destroyed; running operations have the only references.
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  EXPECT_TRUE(std::filesystem::exists(directory + "/once.db"));
  std::filesystem::remove_all(directory);
}

// Who has an answer may destroy the engine, then move the file or unload the code.
TEST(EngineThreads, AStoreEndsWithItsEngine) {
  std::string pattern = (std::filesystem::temp_directory_path() / "once-engine-XXXXXX").string();
  const std::string directory = mkdtemp(pattern.data());
  const auto open_files = [&directory] {
    int count = 0;
    for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;  // This loop's own, for one.
      if (std::filesystem::read_symlink(file, closed).string().starts_with(directory)) ++count;
    }
    return count;
  };
  for (int i = 0; i < 300; ++i) {
    {
      Engine engine({.store = stores::make_sqlite_store({.path = directory + "/once.db"}), .scope = "lifetime"});
      EXPECT_EQ(engine.run("k" + std::to_string(i), "", [] { return std::string("done"); }).value(), "done");
      EXPECT_GT(open_files(), 0);
    }
    EXPECT_EQ(open_files(), 0) << "in round " << i;
  }
  std::filesystem::remove_all(directory);
}

}  // namespace lifetime_test
}  // namespace once::testing
