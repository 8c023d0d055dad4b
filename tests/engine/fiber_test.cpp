// Stackful coroutines: several of one thread are in their work at a time, and they end in any order.
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <boost/context/fiber.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace fiber_test {

using boost::context::fiber;

// A coroutine that runs `work` for a key, and is suspended in it once.
class Caller {
 public:
  Caller(Engine& engine, std::string key, Policy policy = {}) {
    fiber_ = fiber([this, &engine, key = std::move(key), policy](fiber&& resumer) {
      try {
        Request request = engine.request(key, {});
        request.policy = policy;
        outcome = engine.run(std::move(request), [&] {
          std::move(resumer).resume().swap(resumer);
          if (in_work) in_work();
          return key;
        });
      } catch (const std::exception& error) {
        thrown = error.what();
      }
      return std::move(resumer);
    });
  }

  void resume() { std::move(fiber_).resume().swap(fiber_); }
  [[nodiscard]] bool is_over() const { return !fiber_; }

  std::function<void()> in_work;  // After it was suspended.
  std::optional<Outcome> outcome;
  std::string thrown;

 private:
  fiber fiber_;
};

class FiberTest : public EngineTest {};

TEST_F(FiberTest, EndInAnyOrder) {
  auto p = process();
  for (const bool first_ends_first : {true, false}) {
    const std::string n = first_ends_first ? "1" : "2";
    std::optional<Caller> a(std::in_place, *p.operator->(), "a" + n);
    std::optional<Caller> b(std::in_place, *p.operator->(), "b" + n);
    a->resume();
    b->resume();
    for (auto* caller : {first_ends_first ? &a : &b, first_ends_first ? &b : &a}) {
      (*caller)->resume();
      ASSERT_TRUE((*caller)->is_over());
      EXPECT_EQ((*caller)->outcome->kind, Outcome::Kind::executed);
      caller->reset();  // Its stack is gone.
    }
    EXPECT_EQ(p->run("c" + n, {}, [] {}).kind, Outcome::Kind::executed);
  }
}

TEST_F(FiberTest, EndOnAnotherThreadAfterTheirsHasEnded) {
  auto p = process();
  std::optional<Caller> a(std::in_place, *p.operator->(), "a");
  std::optional<Caller> b(std::in_place, *p.operator->(), "b");
  std::thread([&] {
    a->resume();
    b->resume();
  }).join();
  std::thread([&] {
    a->resume();
    EXPECT_EQ(a->outcome->kind, Outcome::Kind::executed);
    a.reset();
    EXPECT_EQ(p->run("c", {}, [] {}).kind, Outcome::Kind::executed);
  }).join();
  b->resume();
  EXPECT_EQ(b->outcome->kind, Outcome::Kind::executed);
  b.reset();
  EXPECT_EQ(p->run("b", {}, [] {}).kind, Outcome::Kind::replayed);
}

// By default it would wait, and stop the thread that the first one needs to go on.
TEST_F(FiberTest, ASecondCallerOfAKeyOnTheThreadIsAConflictAtOnce) {
  auto p = process();
  Caller first(*p.operator->(), "a", waiting());
  Caller second(*p.operator->(), "a", waiting());
  first.resume();
  second.resume();
  ASSERT_TRUE(second.is_over());
  EXPECT_EQ(second.thrown, "");
  EXPECT_EQ(second.outcome->kind, Outcome::Kind::conflict);
  first.resume();
  EXPECT_EQ(first.outcome->kind, Outcome::Kind::executed);
  EXPECT_EQ(p->run("a", {}, [] {}).kind, Outcome::Kind::replayed);
}

TEST_F(FiberTest, WorkThatCallsItsOwnKeyIsRefused) {
  auto p = process();
  Caller a(*p.operator->(), "a", waiting());
  Caller b(*p.operator->(), "b");
  a.in_work = [&] { p->run("a", {}, [] { ADD_FAILURE() << "ran"; }); };
  a.resume();
  b.resume();
  a.resume();
  EXPECT_THAT(a.thrown, HasSubstr("calls its own key"));
  b.resume();
  EXPECT_EQ(b.outcome->kind, Outcome::Kind::executed);
}

}  // namespace fiber_test
}  // namespace once::testing
