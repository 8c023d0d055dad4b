// What other threads may do to a loop, and when.
#include "frontends/proxy/loop.hpp"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/post.hpp>

namespace once::proxy {
namespace loop_test {

// Something that is begun on a loop and whose end the test holds in its hand.
class LoopTest : public ::testing::Test {
 protected:
  void begin() {
    Task<void> task = wait();
    spawn(loop->io, std::move(task));
    loop->io.run_one();
  }

  std::unique_ptr<Loop> loop = std::make_unique<Loop>(Millis{1}, 1024);
  Callback<void(std::shared_ptr<int>)> done;
  std::shared_ptr<int> given;

 private:
  Task<void> wait() {
    auto start = [this](Callback<void(std::shared_ptr<int>)> callback) { done = std::move(callback); };
    given = co_await completion<std::shared_ptr<int>>(*loop, start);
  }
};

TEST_F(LoopTest, ACompletionComesBackOnTheLoop) {
  begin();
  ASSERT_TRUE(done);
  std::thread other([&] { done(std::make_shared<int>(7)); });
  other.join();
  EXPECT_EQ(given, nullptr);
  loop->io.run();
  ASSERT_NE(given, nullptr);
  EXPECT_EQ(*given, 7);
}

// As at the end of a stop: the last answer lets the loop end, while the thread that gave it is still at it.
TEST_F(LoopTest, ACallbackMayOutliveTheLoop) {
  begin();
  done(std::make_shared<int>(7));
  loop->io.run();
  loop.reset();
  done = nullptr;  // The sanitizer would see a timer of the loop go here.
  EXPECT_EQ(*given, 7);
}

TEST_F(LoopTest, WhatComesWhenTheLoopIsGoneIsDropped) {
  begin();
  loop.reset();  // With the coroutine that waits.
  const auto late = std::make_shared<int>(7);
  done(late);
  EXPECT_EQ(late.use_count(), 1);
  EXPECT_EQ(given, nullptr);
}

TEST_F(LoopTest, WhatIsBroughtIsRunOnTheLoopInItsOrder) {
  std::vector<int> order;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      Callback<void()> work = [&order, i] { order.push_back(i); };
      EXPECT_TRUE(loop->mailbox()->try_post(work));
    }
  });
  other.join();
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(loop->io.run(), 1U);  // One wake for all.
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
}

TEST_F(LoopTest, WhatIsBroughtIsRunThoughTheLoopIsGone) {
  const std::shared_ptr<Mailbox> mailbox = loop->mailbox();
  int brought = 0;
  bool posted = false;
  Callback<void()> first = [&] { ++brought; };
  EXPECT_TRUE(mailbox->try_post(first));
  mailbox->post([&] { posted = true; });
  loop.reset();
  EXPECT_EQ(brought, 1);
  EXPECT_FALSE(posted);
  Callback<void()> second = [&] { ++brought; };
  EXPECT_FALSE(mailbox->try_post(second));
  ASSERT_TRUE(second);  // Still the caller's.
  second();
  EXPECT_EQ(brought, 2);
}

TEST_F(LoopTest, ItsThreadIsAtHome) {
  std::shared_ptr<CompletionLoop> seen;
  net::post(loop->io, [&] { seen = completion_loop(); });
  loop->run();
  EXPECT_EQ(seen, loop->mailbox());
  EXPECT_EQ(completion_loop(), nullptr);
  Callback<void()> late = [] {};
  EXPECT_FALSE(loop->mailbox()->try_post(late));  // Its thread is no more, though it is still there.
}

// Two ends of a connection.
class ConnectionTest : public LoopTest {
 protected:
  ConnectionTest() {
    net::basic_socket_acceptor<tcp, Executor> acceptor(loop->io, {net::ip::address_v4::loopback(), 0});
    near.socket.connect(acceptor.local_endpoint());
    acceptor.accept(far.socket);
  }

  // Runs the loop until `near`, which reads, waits without its buffer. False: it does not within a minute.
  bool rests() {
    while (near.buffer.capacity() == 0) loop->io.run_one();
    const auto until = Steady::now() + std::chrono::minutes(1);
    while (near.buffer.capacity() != 0 && Steady::now() < until) loop->io.run_one();
    return near.buffer.capacity() == 0;
  }

  Connection near{*loop, Socket(loop->io)};
  Connection far{*loop, Socket(loop->io)};
};

// Between two requests it waits without a buffer, and reads and ends as before.
TEST_F(ConnectionTest, AnIdleConnectionGivesItsBufferBack) {
  std::vector<error_code> ends;
  std::string seen;
  const auto read = [&]() -> Task<void> {
    do {
      near.set_idle(true);
      ends.push_back(co_await near.fill(Millis{600'000}));
      near.set_idle(false);
      seen += near.buffer.view();
      near.buffer.clear();
    } while (!ends.back());
  };
  const auto wait_for = [&](std::size_t count) {
    while (ends.size() < count) loop->io.run_one();
  };
  loop->start();
  spawn(loop->io, read());
  ASSERT_TRUE(rests());
  EXPECT_TRUE(ends.empty());
  far.socket.send(net::buffer("x", 1));
  wait_for(1);
  EXPECT_EQ(seen, "x");
  ASSERT_TRUE(rests());
  far.socket.shutdown(tcp::socket::shutdown_send);
  wait_for(2);
  EXPECT_EQ(ends, (std::vector{error_code(), error_code(net::error::eof)}));
}

TEST_F(ConnectionTest, AConnectionWithoutABufferIsClosedInTime) {
  std::optional<error_code> end;
  const auto read = [&]() -> Task<void> {
    near.set_idle(true);
    end = co_await near.fill(Millis{600'000});
  };
  loop->start();
  spawn(loop->io, read());
  ASSERT_TRUE(rests());
  near.set_read_deadline(Millis{0});
  while (!end) loop->io.run_one();
  EXPECT_EQ(*end, net::error::timed_out);
}

TEST_F(ConnectionTest, ADeadlineThatPassesWhileNobodyReadsFailsTheNextRead) {
  std::optional<error_code> first;
  std::optional<error_code> second;
  bool over = false;
  const auto read = [&]() -> Task<void> {
    near.set_read_deadline(Millis{2});
    // Nothing comes here, and this deadline is the later one.
    EXPECT_EQ(co_await far.fill(Millis{2}), net::error::timed_out);
    far.socket.send(net::buffer("x", 1));
    first = co_await near.fill_without_limit();
    near.clear_read_deadline();
    if (*first) second = co_await near.fill_without_limit();
    over = true;
  };
  loop->start();
  spawn(loop->io, read());
  while (!over) loop->io.run_one();
  EXPECT_EQ(first, net::error::timed_out);
  EXPECT_EQ(second, error_code());
  EXPECT_EQ(near.buffer.view(), "x");
}

// As when the proxy cannot start all of its threads.
TEST_F(LoopTest, ConnectionsOfCoroutinesGoWithTheLoop) {
  const auto hold = [](Loop& on) -> Task<void> {
    const Connection connection(on, Socket(on.io));
    co_await on.sleep(Millis{60'000});
  };
  spawn(loop->io, hold(*loop));
  loop->io.run_one();
  loop.reset();  // The sanitizer would see the connection leave what is gone.
}

}  // namespace loop_test
}  // namespace once::proxy
