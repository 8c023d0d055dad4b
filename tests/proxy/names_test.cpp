// Looking up names of upstreams: how often, and how long callers wait.
#include "frontends/proxy/names.hpp"

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::proxy {
namespace names_test {

using ::testing::HasSubstr;

constexpr Millis long_time = std::chrono::hours(1);

// A resolver that answers when the test says so.
class NamesTest : public ::testing::Test {
 protected:
  struct Asked {
    std::string name;
    Callback<void(Names::Found)> done;
  };

  void resolver(Millis lasting) {
    auto look_up = [this](const Address& address, Callback<void(Names::Found)> done) {
      asked.push_back({address.host, std::move(done)});
    };
    loop->names = std::make_shared<Names>(*loop, std::move(look_up), lasting);
  }

  // What comes of it is there later, unless it is known.
  std::optional<Names::Found>& find(const std::string& name, Millis limit = long_time) {
    std::optional<Names::Found>& found = results.emplace_back();
    Task<void> task = wait({.host = name, .port = 80}, limit, found);
    spawn(loop->io, std::move(task));
    poll();
    return found;
  }

  // From another thread, as a resolver does.
  void answer(std::size_t which, const std::string& address) {
    Names::Found found;
    if (!address.empty()) found.endpoints.emplace_back(net::ip::make_address(address), 80);
    if (address.empty()) found.problem = "no such host";
    std::thread other([&] { asked.at(which).done(std::move(found)); });
    other.join();
    poll();
  }

  void poll() {
    loop->io.restart();
    loop->io.poll();
  }

  std::unique_ptr<Loop> loop = std::make_unique<Loop>(Millis{1}, 1024);
  std::vector<Asked> asked;
  std::list<std::optional<Names::Found>> results;

 private:
  Task<void> wait(Address address, Millis limit, std::optional<Names::Found>& found) {
    found = co_await loop->names->find(address, limit);
  }
};

std::string address_of(const std::optional<Names::Found>& found) {
  if (!found) return "nothing yet";
  return found->endpoints.empty() ? found->problem : found->endpoints.front().address().to_string();
}

TEST_F(NamesTest, OneLookIsForAllWhoWait) {
  resolver(long_time);
  const auto& first = find("shop");
  const auto& second = find("shop");
  EXPECT_EQ(asked.size(), 1U);
  EXPECT_EQ(address_of(first), "nothing yet");
  answer(0, "192.0.2.1");
  EXPECT_EQ(address_of(first), "192.0.2.1");
  EXPECT_EQ(address_of(second), "192.0.2.1");
  EXPECT_EQ(address_of(find("shop")), "192.0.2.1");
  EXPECT_EQ(asked.size(), 1U) << "it is kept";
}

TEST_F(NamesTest, WhatWasFoundLastsForAWhile) {
  resolver(Millis{0});
  find("shop");
  answer(0, "192.0.2.1");
  const auto& later = find("shop");
  EXPECT_EQ(asked.size(), 2U);
  answer(1, "192.0.2.2");
  EXPECT_EQ(address_of(later), "192.0.2.2");
}

TEST_F(NamesTest, ANameThatIsNotAnsweredHoldsUpNoOther) {
  resolver(long_time);
  const auto& silent = find("silent");
  const auto& shop = find("shop");
  ASSERT_EQ(asked.size(), 2U);
  answer(1, "192.0.2.1");
  EXPECT_EQ(address_of(shop), "192.0.2.1");
  EXPECT_EQ(address_of(silent), "nothing yet");
}

TEST_F(NamesTest, EachWaitsForItsOwnTime) {
  resolver(long_time);
  const auto& patient = find("shop");
  const auto& hasty = find("shop", Millis{1});
  while (!hasty) {
    loop->io.restart();
    loop->io.run_one();
  }
  EXPECT_TRUE(hasty->late);
  EXPECT_TRUE(hasty->endpoints.empty());
  EXPECT_THAT(hasty->problem, HasSubstr("not resolved within 1 ms"));
  EXPECT_EQ(address_of(patient), "nothing yet");
  answer(0, "192.0.2.1");
  EXPECT_EQ(address_of(patient), "192.0.2.1");
  EXPECT_FALSE(patient->late);
  EXPECT_EQ(asked.size(), 1U);
}

TEST_F(NamesTest, AFailureIsForThoseWhoWait) {
  resolver(long_time);
  const auto& first = find("shop");
  answer(0, "");
  EXPECT_EQ(address_of(first), "its name cannot be resolved: no such host");
  EXPECT_FALSE(first->late);
  const auto& second = find("shop");
  ASSERT_EQ(asked.size(), 2U);
  answer(1, "192.0.2.1");
  EXPECT_EQ(address_of(second), "192.0.2.1");
}

TEST_F(NamesTest, ALookThatCannotBeginIsAFailure) {
  const auto look_up = [](const Address&, const Callback<void(Names::Found)>&) {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  loop->names = std::make_shared<Names>(*loop, look_up, long_time);
  EXPECT_THAT(address_of(find("shop")), HasSubstr("its name cannot be resolved: "));
}

TEST_F(NamesTest, NobodyWaitsWhenTheLoopIsClosed) {
  resolver(long_time);
  const auto& waits = find("shop");
  loop->close_all();
  poll();
  ASSERT_TRUE(waits);
  EXPECT_TRUE(waits->late);
  EXPECT_TRUE(find("other")->late);
  loop.reset();
  asked.at(0).done({});  // It comes all the same, to nobody.
}

TEST_F(NamesTest, TheSystemIsAsked) {
  loop->names = std::make_shared<Names>(*loop);
  const auto& found = find("localhost");
  while (!found) {
    loop->io.restart();
    loop->io.run_one();
  }
  ASSERT_FALSE(found->endpoints.empty()) << found->problem;
  EXPECT_TRUE(found->endpoints.front().address().is_loopback());
  EXPECT_EQ(found->endpoints.front().port(), 80);
}

}  // namespace names_test
}  // namespace once::proxy
