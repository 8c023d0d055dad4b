// Expired records go by themselves while a service runs, and stay when the clock is not to be believed.
#include "process/sweeper.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"

namespace once::cli {
namespace sweeper_test {

using std::chrono::hours;

// Believes its host's clock, as a server's store does. Each look at its time waits for step() or for go_on().
class Server final : public testing::ForwardingStore {
 public:
  Server(std::shared_ptr<Store> inner, std::shared_ptr<Clock> clock)
      : ForwardingStore(std::move(inner)), clock_(std::move(clock)) {}

  [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
    std::unique_lock lock(mutex_);
    begun_ += 1;
    news_.notify_all();
    news_.wait(lock, [this] { return begun_ <= allowed_; });
    return StoreTime{.now = clock_->now(), .error = error};
  }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities capabilities = ForwardingStore::capabilities();
    capabilities.expires_itself = expires_itself;
    return capabilities;
  }

  // One look and what follows from it, until the next look begins.
  void step() {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [this] { return begun_ > allowed_; });
    allowed_ += 1;
    news_.notify_all();
    news_.wait(lock, [this] { return begun_ > allowed_; });
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    allowed_ = std::numeric_limits<int>::max();
    news_.notify_all();
  }

  bool expires_itself = false;
  Millis error{0};  // Set between two steps.

 private:
  const std::shared_ptr<Clock> clock_;
  mutable std::mutex mutex_;  // Guards the following members.
  mutable std::condition_variable news_;
  mutable int begun_ = 0;
  int allowed_ = 0;
};

class SweeperTest : public ::testing::Test {
 protected:
  void keep(const std::string& key, Time expires_at) {
    Record record = testing::plain_record(Key("pay", key).stored());
    record.state = State::completed;
    record.expires_at = expires_at;
    ASSERT_EQ(blocking::insert(*server, record).status, AnswerStatus::done);
  }
  [[nodiscard]] bool has(const std::string& key) const {
    return blocking::get(*server, Key("pay", key).stored()).record != nullptr;
  }
  SweeperOptions options() { return {.store = server, .offload = {}, .interval = Millis{1}, .clock = clock}; }

  std::shared_ptr<testing::ManualClock> clock = std::make_shared<testing::ManualClock>();
  std::shared_ptr<Server> server = std::make_shared<Server>(stores::make_memory_store(clock), clock);
};

TEST_F(SweeperTest, RemovesWhatExpiresWhileItRuns) {
  keep("old", clock->now() - Millis{1});
  keep("young", clock->now() + hours{1});
  const Sweeper sweeper(options());
  server->step();
  EXPECT_TRUE(has("old"));  // How the clock goes on is not known yet.
  server->step();
  EXPECT_FALSE(has("old"));
  EXPECT_TRUE(has("young"));
  clock->advance(hours{1});
  server->step();
  EXPECT_FALSE(has("young"));
  EXPECT_THAT(sweeper.text(), ::testing::HasSubstr("once_sweep_removed_total 2\n"));
  server->go_on();
}

TEST_F(SweeperTest, AJumpRemovesNothing) {
  keep("young", clock->now() + hours{24});
  const Sweeper sweeper(options());
  server->step();
  server->step();
  clock->jump(hours{48});
  server->step();
  server->step();
  clock->advance(std::chrono::minutes{9});
  server->step();
  EXPECT_TRUE(has("young"));
  clock->jump(-hours{48});
  server->step();
  clock->advance(std::chrono::minutes{11});
  server->step();
  EXPECT_TRUE(has("young"));
  EXPECT_THAT(sweeper.text(), ::testing::HasSubstr("once_sweep_clock_jumps_total 2\n"));
  clock->advance(hours{24});
  server->step();
  EXPECT_FALSE(has("young"));
  server->go_on();
}

// A server's clock jumps. First its answers contradict what is known, so that the error is as large as the jump.
TEST_F(SweeperTest, AJumpBehindAnErrorRemovesNothing) {
  keep("young", clock->now() + hours{24});
  const Sweeper sweeper(options());
  server->step();
  server->step();
  for (int look = 0; look < 2; ++look) {
    server->error = hours{48};
    server->step();
  }
  server->error = Millis{0};
  clock->jump(hours{48});
  server->step();
  server->step();
  EXPECT_TRUE(has("young"));
  EXPECT_THAT(sweeper.text(), ::testing::HasSubstr("once_sweep_clock_jumps_total 1\n"));
  server->go_on();
}

TEST_F(SweeperTest, LeavesAStoreThatExpiresRecordsItself) {
  keep("old", clock->now() - Millis{1});
  server->expires_itself = true;
  {
    const Sweeper sweeper(options());  // A look at the time would never end.
    EXPECT_EQ(sweeper.text(), "");
  }
  EXPECT_TRUE(has("old"));
}

}  // namespace sweeper_test
}  // namespace once::cli
