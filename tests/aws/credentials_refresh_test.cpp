// Keeping credentials: when they are searched, and what callers get.
#include "aws/credentials_refresh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <new>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include <once/platform/snapshot.hpp>
#include <once/testing/manual_time.hpp>

#include "credentials_fake.hpp"
#include "platform/wait.hpp"

namespace once::aws {
namespace credentials_refresh_test {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

CredentialsAnswer get(CredentialsProvider& provider) {
  return wait_for<CredentialsAnswer>([&](Callback<void(CredentialsAnswer)> done) { provider.get(std::move(done)); });
}

// Looks that are counted, and that give credentials named after their number, good for an hour.
class Refresh : public ::testing::Test {
 protected:
  std::shared_ptr<CredentialsProvider> make() {
    return refreshing_credentials(
        [this](const std::shared_ptr<Cancellation>&) {
          const int number = ++looks_;
          if (gate_) gate_->acquire();
          if (fails_) {
            ++failures_;
            throw Exception(ErrorKind::misuse, "nothing there");
          }
          Credentials found;
          found.access_key_id = "K" + std::to_string(number);
          found.secret_access_key = "S" + std::to_string(number);
          if (lasting_) found.expires_at = clock_->now() + *lasting_;
          found.source = "the test";
          return found;
        },
        clock_, std::make_shared<once::testing::SeededRandom>(1));
  }

  // Until the provider has these, as it gets them on its own thread.
  static void wait_until(CredentialsProvider& provider, const std::string& key) {
    while (get(provider).credentials->access_key_id != key) std::this_thread::yield();
  }

  const std::shared_ptr<once::testing::ManualClock> clock_ = std::make_shared<once::testing::ManualClock>();
  std::atomic<int> looks_ = 0;
  std::atomic<bool> fails_ = false;
  std::atomic<int> failures_ = 0;
  std::optional<Millis> lasting_ = hours(1);
  std::unique_ptr<std::counting_semaphore<>> gate_;  // A look passes for each release.
};

TEST_F(Refresh, LooksOnceAndKeepsWhatItFinds) {
  const auto provider = make();
  const auto first = get(*provider);
  ASSERT_NE(first.credentials, nullptr);
  EXPECT_EQ(first.credentials->access_key_id, "K1");
  EXPECT_EQ(get(*provider).credentials, first.credentials);
  EXPECT_EQ(looks_, 1);
}

TEST_F(Refresh, AnswersAtOnceFromTheCallersThread) {
  const auto provider = make();
  get(*provider);
  bool called = false;
  provider->get([&, thread = std::this_thread::get_id()](CredentialsAnswer) {
    called = true;
    EXPECT_EQ(std::this_thread::get_id(), thread);
  });
  EXPECT_TRUE(called);
}

TEST_F(Refresh, SharesOneLookAmongAllWhoWait) {
  gate_ = std::make_unique<std::counting_semaphore<>>(0);
  const auto provider = make();
  std::vector<std::promise<std::string>> answers(20);
  for (auto& answer : answers) {
    provider->get([&](CredentialsAnswer got) { answer.set_value(got.credentials->access_key_id); });
  }
  gate_->release();
  for (auto& answer : answers) EXPECT_EQ(answer.get_future().get(), "K1");
  EXPECT_EQ(looks_, 1);
}

TEST_F(Refresh, LooksAheadOfTheEndWhileTheOldOnesAreHandedOut) {
  auto provider = make();
  get(*provider);
  gate_ = std::make_unique<std::counting_semaphore<>>(0);
  clock_->advance(minutes(55));  // The latest it may begin.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(*provider).credentials->access_key_id, "K1");
  gate_->release();
  wait_until(*provider, "K2");
  EXPECT_EQ(looks_, 2);
}

TEST_F(Refresh, DoesNotLookTooEarly) {
  auto provider = make();
  get(*provider);
  clock_->advance(minutes(50) - Millis(1));  // The earliest it may begin is a moment later.
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K1");
  provider.reset();  // Waits for a look.
  EXPECT_EQ(looks_, 1);
}

TEST_F(Refresh, LooksAtHalfTimeForWhatDoesNotLastLong) {
  lasting_ = minutes(4);
  auto provider = make();
  get(*provider);
  clock_->advance(minutes(2) - Millis(1));
  get(*provider);
  provider.reset();
  EXPECT_EQ(looks_, 1);
  provider = make();
  get(*provider);
  clock_->advance(minutes(2));
  get(*provider);
  wait_until(*provider, "K3");
}

// The look began before they were refused, and finds them where they still lie.
TEST_F(Refresh, WhatWasRejectedDuringALookIsLookedForAgain) {
  for (const bool are_replaced : {true, false}) {
    std::atomic<int> looks = 0;
    std::counting_semaphore<> gate(1);
    const auto look = [&](const std::shared_ptr<Cancellation>&) {
      const int number = ++looks;
      gate.acquire();
      Credentials found;
      found.access_key_id = number == 3 && are_replaced ? "NEW" : "OLD";
      found.secret_access_key = "S";
      found.expires_at = once::testing::manual_start + hours(2);
      return found;
    };
    const auto clock = std::make_shared<once::testing::ManualClock>();
    const auto provider = refreshing_credentials(look, clock, std::make_shared<once::testing::SeededRandom>(1));
    const auto old = get(*provider).credentials;
    clock->advance(minutes(115));
    EXPECT_EQ(get(*provider).credentials, old);
    while (looks < 2) std::this_thread::yield();
    provider->reject(*old);
    std::promise<std::string> answer;
    provider->get([&](CredentialsAnswer got) { answer.set_value(got.credentials->access_key_id); });
    gate.release(2);
    EXPECT_EQ(answer.get_future().get(), are_replaced ? "NEW" : "OLD");
    EXPECT_EQ(looks, 3);
  }
}

TEST_F(Refresh, NeverLooksAgainForWhatDoesNotExpire) {
  lasting_.reset();
  auto provider = make();
  get(*provider);
  clock_->advance(hours(100'000));
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K1");
  provider.reset();
  EXPECT_EQ(looks_, 1);
}

// They are those of the instance that was copied, and may have expired while the snapshot lay on a disk.
TEST_F(Refresh, LooksAgainAfterASnapshot) {
  for (const auto& lasting : {std::optional<Millis>(), std::optional<Millis>(hours(1))}) {
    looks_ = 0;
    lasting_ = lasting;
    const auto provider = make();
    EXPECT_EQ(get(*provider).credentials->access_key_id, "K1");
    before_snapshot();
    EXPECT_EQ(get(*provider).credentials->access_key_id, "K2") << "for a hook";
    after_restore();
    EXPECT_EQ(get(*provider).credentials->access_key_id, "K3");
    EXPECT_EQ(get(*provider).credentials->access_key_id, "K3");
    EXPECT_EQ(looks_, 3);
  }
}

TEST_F(Refresh, HandsOutNoneThatWereLookedForBeforeASnapshot) {
  gate_ = std::make_unique<std::counting_semaphore<>>(0);
  const auto provider = make();
  std::promise<std::string> answer;
  provider->get([&](CredentialsAnswer got) { answer.set_value(got.credentials->access_key_id); });
  while (looks_ == 0) std::this_thread::yield();
  after_restore();
  gate_->release(2);
  EXPECT_EQ(answer.get_future().get(), "K2");
}

// Those of before may belong to another role.
TEST_F(Refresh, HandsOutNoneIfTheLookAfterASnapshotFails) {
  const auto provider = make();
  get(*provider);
  fails_ = true;
  after_restore();
  const CredentialsAnswer got = get(*provider);
  EXPECT_EQ(got.credentials, nullptr);
  EXPECT_EQ(got.error.kind, ErrorKind::unavailable);
  fails_ = false;
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K3");
}

TEST_F(Refresh, KeepsTheOldOnesWhenALookFailsAndTriesAgain) {
  auto provider = make();
  get(*provider);
  fails_ = true;
  clock_->advance(minutes(56));
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K1");
  while (failures_ < 1) std::this_thread::yield();
  fails_ = false;
  // The look that failed may not be over yet: if the old ones end before it is, it is the answer.
  const auto is_new = [](const CredentialsAnswer& got) {
    return got.credentials && got.credentials->access_key_id != "K1";
  };
  while (!is_new(get(*provider))) clock_->advance(seconds(1));
  EXPECT_EQ(looks_, 3);
}

TEST_F(Refresh, SaysThatItMayWorkLaterOnceItWorked) {
  const auto provider = make();
  fails_ = true;
  CredentialsAnswer answer = get(*provider);
  EXPECT_EQ(answer.credentials, nullptr);
  EXPECT_EQ(answer.error, (Error{ErrorKind::misuse, "nothing there"}));
  fails_ = false;
  EXPECT_NE(get(*provider).credentials, nullptr);
  fails_ = true;
  clock_->advance(hours(1));
  answer = get(*provider);
  EXPECT_EQ(answer.credentials, nullptr);
  EXPECT_EQ(answer.error, (Error{ErrorKind::unavailable, "nothing there"}));
}

TEST_F(Refresh, LooksAgainForWhatTheServiceRejects) {
  const auto provider = make();
  const auto first = get(*provider).credentials;
  Credentials other = *first;
  other.session_token = "other";
  provider->reject(other);
  EXPECT_EQ(get(*provider).credentials, first);
  provider->reject(*first);
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K2");
  provider->reject(*first);  // Of those before: somebody was late.
  EXPECT_EQ(get(*provider).credentials->access_key_id, "K2");
}

TEST_F(Refresh, DoesNotHandOutWhatHasExpired) {
  lasting_ = Millis(0);
  const auto provider = make();
  const auto answer = get(*provider);
  EXPECT_EQ(answer.credentials, nullptr);
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("from the test have already expired"));
}

TEST_F(Refresh, ToleratesFailuresOfAnyKind) {
  const auto provider =
      refreshing_credentials([](const std::shared_ptr<Cancellation>&) -> Credentials { throw std::bad_alloc(); },
                             clock_, std::make_shared<once::testing::SeededRandom>(1));
  EXPECT_EQ(get(*provider).error.kind, ErrorKind::unavailable);
}

TEST_F(Refresh, AnswersThoseWhoAskFromAnAnswer) {
  const auto provider = make();
  std::promise<std::string> second;
  provider->get([&](CredentialsAnswer first) {
    provider->reject(*first.credentials);
    provider->get([&](CredentialsAnswer got) { second.set_value(got.credentials->access_key_id); });
  });
  EXPECT_EQ(second.get_future().get(), "K2");
}

TEST_F(Refresh, MayBeDestroyedFromItsAnswer) {
  auto provider = make();
  std::promise<void> first;
  std::promise<CredentialsAnswer> second;
  gate_ = std::make_unique<std::counting_semaphore<>>(0);
  provider->get([&](CredentialsAnswer got) {
    provider->reject(*got.credentials);
    provider->get([&](CredentialsAnswer late) { second.set_value(std::move(late)); });  // Waits.
    provider.reset();
    first.set_value();
  });
  gate_->release();
  first.get_future().get();
  EXPECT_EQ(second.get_future().get().error.kind, ErrorKind::unavailable);
  EXPECT_EQ(looks_, 1);
}

// Answers when the test says so.
class LateHttp final : public HttpClient {
 public:
  void send(HttpRequest, Callback<void(HttpAnswer)> done) override {
    done_ = std::move(done);
    sent_.release();
  }
  void wait() { sent_.acquire(); }
  void answer() { done_(answered(200)); }

 private:
  Callback<void(HttpAnswer)> done_;
  std::binary_semaphore sent_{0};
};

TEST_F(Refresh, GivesUpWhatIsUnderWayWhenItIsDestroyed) {
  LateHttp http;
  auto provider = refreshing_credentials(
      [&](const std::shared_ptr<Cancellation>& cancellation) -> Credentials {
        Cancellation::exchange(cancellation, http, {});
        throw Exception(ErrorKind::misuse, "it was answered");
      },
      clock_, std::make_shared<once::testing::SeededRandom>(1));
  std::promise<CredentialsAnswer> answer;
  provider->get([&](CredentialsAnswer got) { answer.set_value(std::move(got)); });
  http.wait();
  provider.reset();
  const auto got = answer.get_future().get();
  EXPECT_EQ(got.credentials, nullptr);
  EXPECT_EQ(got.error.kind, ErrorKind::unavailable);
  http.answer();  // To nobody.
}

TEST_F(Refresh, ServesManyThreads) {
  const auto provider = make();
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      once::testing::SeededRandom random(seed);
      for (int i = 0; i < 300; ++i) {
        const auto answer = get(*provider);
        if (answer.credentials == nullptr) {
          EXPECT_EQ(answer.error.message, "nothing there");
          continue;
        }
        if (random.chance(50)) provider->reject(*answer.credentials);
        if (random.chance(100)) clock_->advance(minutes(20));
        if (random.chance(20)) fails_ = !fails_;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  fails_ = false;
  EXPECT_NE(get(*provider).credentials, nullptr);
}

}  // namespace credentials_refresh_test
}  // namespace once::aws
