// Credentials that expire while claims are made and held: from a container's endpoint through client, store and engine,
// with a service that refuses expired ones. The history is checked afterwards, see faults_history.hpp.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aws/wire_server.hpp"
#include "faults_history.hpp"

namespace once::testing {
namespace {

using ::testing::HasSubstr;
using How = Told::How;

constexpr Millis lifetime = 60s;  // So they are fetched again at half of it.

// "2026-01-01T00:00:00Z"
std::string iso(Time time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time) - day);
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return out.data();
}

// The agent beside a container: each time that it is asked it issues new credentials, which the service knows at once
// and refuses when they have expired.
class Agent {
 public:
  explicit Agent(Ledgered& world) : world_(world) { tell_service(); }

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port()); }

  // The service ends all issued credentials, before their announced expiry.
  void end_early() {
    const std::lock_guard lock(mutex_);
    for (auto& key : keys_) key.expires_at = std::min(*key.expires_at, world_.time.clock->now());
    tell_service();
  }

  std::atomic<bool> down = false;  // Closes connections without an answer.
  std::atomic<int> issued = 0;
  std::atomic<int> refused = 0;

 private:
  void serve(aws::testing::Peer& peer) {
    while (peer.request()) {
      if (down) {
        ++refused;
        return peer.cut();
      }
      const std::lock_guard lock(mutex_);
      const std::string number = std::to_string(++issued);
      keys_.push_back({.access_key_id = "ASIA" + number,
                       .secret_access_key = "secret-" + number,
                       .session_token = "session-" + number,
                       .expires_at = std::chrono::floor<std::chrono::seconds>(world_.time.clock->now()) + lifetime});
      const FakeAccessKey& key = keys_.back();
      tell_service();
      peer.send(aws::testing::answer(R"({"AccessKeyId":")" + key.access_key_id + R"(","SecretAccessKey":")" +
                                     key.secret_access_key + R"(","Token":")" + key.session_token +
                                     R"(","Expiration":")" + iso(*key.expires_at) + R"("})"));
    }
  }

  void tell_service() {
    auto keys = keys_;
    keys.push_back(Ledgered::access_key());  // Lasts.
    world_.server.set_keys(std::move(keys));
  }

  Ledgered& world_;
  std::mutex mutex_;
  std::vector<FakeAccessKey> keys_;
  aws::testing::Server server_{[this](aws::testing::Peer& peer) { serve(peer); }};
};

class CredentialsExpiry : public ::testing::Test {
 protected:
  CredentialsExpiry() { world.policy.lease = 10min; }

  // A process in the container.
  Worker& add_contained() {
    return world.add_worker({.client = [this](aws::ClientOptions& client) {
      client.credentials.reset();
      client.environment = [url = agent.url()](const std::string& name) -> std::optional<std::string> {
        if (name == "AWS_CONTAINER_CREDENTIALS_FULL_URI") return url + "/credentials";
        if (name == "AWS_CONFIG_FILE" || name == "AWS_SHARED_CREDENTIALS_FILE") return "/dev/null";
        return std::nullopt;
      };
    }});
  }

  // All of these want new keys, one after the other, until it is so. Returns how many keys that were.
  std::size_t claim_until(const std::vector<Worker*>& workers, const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    std::size_t keys = 0;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "did not come true in a minute";
        break;
      }
      world.crowd(workers, {"key " + std::to_string(++keys_), "key " + std::to_string(++keys_)});
      keys += 2;
    }
    return keys;
  }

  Ledgered world;
  Agent agent{world};

 private:
  int keys_ = 0;
};

TEST_F(CredentialsExpiry, NobodyNoticesWhileTheyAreFetchedAhead) {
  const std::vector<Worker*> workers{&add_contained(), &add_contained()};
  world.time.speed = 50;
  const Time begin = world.time.clock->now();
  const std::size_t keys = claim_until(workers, [&] { return agent.issued >= 12; });
  const auto lived = world.time.clock->now() - begin;
  world.check();
  world.print(std::to_string(agent.issued) + " credentials in " + std::to_string(lived.count() / 1000) + " s");
  const auto counts = world.counts();
  EXPECT_EQ(counts.errors, 0U);
  EXPECT_EQ(counts.unrecorded, 0U);
  EXPECT_EQ(counts.charges, keys);
  // Two processes, one look of each for half a life, begun when the one before has come.
  EXPECT_LE(agent.issued, 2 * (lived / (lifetime / 2 - 1s) + 1));
  EXPECT_GT(lived, 2 * lifetime) << "nothing had to be fetched again";
}

// The service ends them before their time: it says ExpiredTokenException, and the request goes out again with new ones.
TEST_F(CredentialsExpiry, NobodyNoticesWhenTheServiceEndsThemEarly) {
  const std::vector<Worker*> workers{&add_contained(), &add_contained()};
  auto held = std::get<AtWork>(world.start(*workers[0], "held"));
  std::size_t keys = 0;
  for (int i = 0; i < 4; ++i) {
    const int issued = agent.issued;
    agent.end_early();
    keys += claim_until(workers, [&] { return agent.issued >= issued + 2; });
  }
  agent.end_early();
  EXPECT_EQ(world.finish(*workers[0], std::move(held)).how, How::recorded);
  world.check();
  world.print("ended early");
  const auto counts = world.counts();
  EXPECT_EQ(counts.errors, 0U);
  EXPECT_EQ(counts.charges, keys + 1);
  EXPECT_GE(world.server.counts().refused, 5U);
}

// The endpoint is down for longer than the credentials last. Nothing is run, and what says so names the endpoint; what
// was claimed before is finished as soon as it is back, or has been taken over by somebody with other credentials.
TEST_F(CredentialsExpiry, AnOutageOfTheProviderBreaksNoPromise) {
  Worker& contained = add_contained();
  Worker& neighbour = add_contained();
  Worker& other = world.add_worker();  // With credentials that last.
  const auto names_the_endpoint = HasSubstr("container endpoint " + agent.url());
  auto finishing = std::get<AtWork>(world.start(contained, "finishes in the outage"));
  auto working = std::get<AtWork>(world.start(contained, "works through the outage"));
  Policy brief = world.policy;
  brief.lease = 90s;
  auto lapsing = std::get<AtWork>(world.start(contained, "lapses in the outage", brief));
  const std::stop_token stop = lapsing.claim.stop_token();
  EXPECT_EQ(world.settle(neighbour, "before").how, How::recorded);

  agent.down = true;
  world.time.speed = 20;
  int asked = 0;
  EXPECT_TRUE(wait_until([&] {
    world.ask(contained, "meanwhile " + std::to_string(++asked));
    return agent.refused > 0;
  }));
  EXPECT_EQ(world.ask(contained, "meanwhile").how, How::recorded) << "the old ones still do";
  world.time.speed = 50;
  ASSERT_TRUE(wait_until([&, end = world.time.clock->now() + lifetime] { return world.time.clock->now() > end; }));
  for (Worker* worker : {&contained, &neighbour}) {
    const Told told = world.ask(*worker, "new");
    EXPECT_EQ(told.how, How::error);
    EXPECT_EQ(told.error.kind, ErrorKind::unavailable) << told.error.message;
    EXPECT_THAT(told.error.message, names_the_endpoint);
    EXPECT_THAT(told.error.message, ::testing::Not(HasSubstr("secret-")));
  }
  const Told finished = world.finish(contained, std::move(finishing));
  EXPECT_EQ(finished.how, How::unrecorded);
  EXPECT_EQ(finished.error.kind, ErrorKind::unavailable) << finished.error.message;
  EXPECT_THAT(finished.error.message, names_the_endpoint);
  EXPECT_EQ(world.ask(other, "finishes in the outage").how, How::error) << "its claim is respected";
  EXPECT_TRUE(world.charges("new").empty());

  ASSERT_TRUE(wait_until([&] { return stop.stop_requested(); })) << "the work was not told";
  const Told taken = world.settle(other, "lapses in the outage");
  EXPECT_EQ(taken.how, How::recorded);
  EXPECT_EQ(taken.verdict, Verdict::take_over);

  world.time.speed = 10;
  agent.down = false;
  EXPECT_EQ(world.settle(contained, "new").how, How::recorded);
  EXPECT_EQ(world.settle(other, "finishes in the outage").how, How::replayed) << "the engine has gone on trying";
  EXPECT_EQ(world.finish(contained, std::move(working)).how, How::recorded);
  EXPECT_EQ(world.finish(contained, std::move(lapsing)).how, How::superseded);
  world.time.speed = 50;
  claim_until({&contained, &neighbour}, [&, goal = agent.issued + 2] { return agent.issued >= goal; });
  world.check();
  world.print("outage");
  const auto counts = world.counts();
  EXPECT_EQ(counts.took_over, 1U);
  EXPECT_EQ(counts.doubled, 1U);
  EXPECT_EQ(counts.unrecorded, 1U);
  EXPECT_GE(counts.late_refused, 1U);
}

}  // namespace
}  // namespace once::testing
