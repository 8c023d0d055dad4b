// Stackful coroutines: several of one thread are in their work at a time, and they end in any order. And stacks that
// are ended in their work: the claim lapses.
#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/context/fiber.hpp>
#include <boost/coroutine/exceptions.hpp>

#include <once/engine/unwinding.hpp>
#include <once/engine/within_invocation.hpp>

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

// What another caller finds when a stack was ended in the work of "a".
class EndedStackTest : public EngineTest {
 protected:
  // The work may have acted, whatever the policy does with exceptions: it is neither run again at once, nor failed.
  void expect_that_it_lapses(const Process& p) {
    const std::optional<Record> left = stored("a");
    ASSERT_TRUE(left.has_value()) << "released";
    EXPECT_EQ(left->state, State::in_progress);
    EXPECT_GT(left->lease_until, clock->now()) << "given up early";
    EXPECT_EQ(p->run("a", {}, [] { ADD_FAILURE() << "ran within the lease"; }).kind, Outcome::Kind::conflict);
    timers->advance(10s);
    const bool is_held = left->on_lapse == OnLapse::hold;
    std::uint32_t attempt = 0;
    const Outcome after = p->run("a", {}, [&](Context& context) { attempt = context.attempt(); });
    EXPECT_EQ(after.kind, is_held ? Outcome::Kind::unknown : Outcome::Kind::executed);
    EXPECT_EQ(attempt, is_held ? 0U : 2U);
  }

  static std::vector<Policy> policies() {
    std::vector<Policy> all(4, policy());
    all[1].on_throw = OnThrow::store;
    all[2].on_throw = OnThrow::hold;
    all[3].on_lapse = OnLapse::hold;
    return all;
  }
};

TEST_F(EndedStackTest, DestroyedCoroutineLapses) {
  for (const Policy& with : policies()) {
    auto p = process();
    {
      Caller caller(*p.operator->(), "a", with);
      caller.in_work = [] { ADD_FAILURE() << "the work went on"; };
      caller.resume();
      EXPECT_FALSE(caller.is_over());
    }
    expect_that_it_lapses(p);
    store = std::make_shared<ScriptStore>(clock);
  }
}

TEST_F(EndedStackTest, CoroutineDestroyedInAnotherThreadLapses) {
  auto p = process();
  std::optional<Caller> a(std::in_place, *p.operator->(), "a");
  Caller b(*p.operator->(), "b");
  std::thread([&] {
    a->resume();
    b.resume();
  }).join();
  a.reset();
  b.resume();
  EXPECT_EQ(b.outcome->kind, Outcome::Kind::executed);
  expect_that_it_lapses(p);
}

// Runs "a" in a thread, and `end`s that thread when it is in its work.
template <class InWork, class End>
void end_thread(Engine& engine, const Policy& with, const InWork& in_work, const End& end) {
  struct {
    Engine* engine;
    const Policy* with;
    const InWork* in_work;
    std::promise<void> begun;
  } call{&engine, &with, &in_work, {}};
  pthread_t thread{};
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* data) -> void* {
                  auto& its_call = *static_cast<decltype(call)*>(data);
                  Request request = its_call.engine->request("a", {});
                  request.policy = *its_call.with;
                  its_call.engine->run(std::move(request), [&] {
                    its_call.begun.set_value();
                    (*its_call.in_work)();
                  });
                  return nullptr;
                },
                &call),
            0);
  call.begun.get_future().wait();
  end(thread);
  void* ended = nullptr;
  ASSERT_EQ(pthread_join(thread, &ended), 0);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
}

TEST_F(EndedStackTest, CancelledThreadLapses) {
  for (const Policy& with : policies()) {
    auto p = process();
    const auto sleep = [] {
      for (;;) pause();
    };
    end_thread(*p.engine, with, sleep, [](pthread_t thread) { EXPECT_EQ(pthread_cancel(thread), 0); });
    expect_that_it_lapses(p);
    store = std::make_shared<ScriptStore>(clock);
  }
}

TEST_F(EndedStackTest, ThreadThatExitsLapses) {
  for (const Policy& with : policies()) {
    auto p = process();
    end_thread(
        *p.engine, with, [] { pthread_exit(PTHREAD_CANCELED); }, [](pthread_t) {});
    expect_that_it_lapses(p);
    store = std::make_shared<ScriptStore>(clock);
  }
}

TEST(IsUnwinding, OnlyForExceptionsThatEndTheirStack) {
  const auto of = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (...) {
      return is_unwinding();
    }
  };
  EXPECT_TRUE(of(boost::coroutines::detail::forced_unwind()));
  struct Own {};
  EXPECT_FALSE(of(std::runtime_error("a")));
  EXPECT_FALSE(of(1));
  EXPECT_FALSE(of("a"));
  EXPECT_FALSE(of(Own()));
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

// A coroutine in an invocation of this tenant, in which it is suspended.
class Invoked {
 public:
  explicit Invoked(std::string tenant) {
    fiber_ = fiber([this, tenant = std::move(tenant)](fiber&& resumer) {
      const WithinInvocation within({.tenant = tenant});
      std::move(resumer).resume().swap(resumer);
      found = WithinInvocation::current().tenant;
      return std::move(resumer);
    });
    resume();
  }
  void resume() { std::move(fiber_).resume().swap(fiber_); }

  std::string found;  // After it was resumed.

 private:
  fiber fiber_;
};

TEST(InvocationsOfFibers, EachFindsItsOwn) {
  for (const bool first_ends_first : {true, false}) {
    const auto a = std::make_unique<Invoked>("blue");
    const auto b = std::make_unique<Invoked>("red");
    for (Invoked* const one : {(first_ends_first ? a : b).get(), (first_ends_first ? b : a).get()}) one->resume();
    EXPECT_EQ(a->found, "blue");
    EXPECT_EQ(b->found, "red");
    EXPECT_EQ(WithinInvocation::current(), InvocationFacts());
  }
}

TEST(InvocationsOfFibers, EachFindsItsOwnInAnotherThread) {
  Invoked a("blue");
  Invoked b("red");
  std::thread([&] {
    const WithinInvocation of_thread({.tenant = "green"});
    a.resume();
    EXPECT_EQ(a.found, "blue");
    EXPECT_EQ(WithinInvocation::current().tenant, "green");
  }).join();
  b.resume();
  EXPECT_EQ(b.found, "red");
  EXPECT_EQ(WithinInvocation::current(), InvocationFacts());
}

TEST(InvocationsOfFibers, ThirdOneIsNeither) {
  std::optional<Invoked> a(std::in_place, "blue");
  EXPECT_EQ(WithinInvocation::current().tenant, "blue") << "it holds for its thread";
  std::optional<Invoked> b(std::in_place, "red");
  EXPECT_THROW(WithinInvocation::current(), Exception);
  a.reset();  // Destroyed while it is suspended.
  EXPECT_EQ(WithinInvocation::current().tenant, "red");
  b.reset();
  EXPECT_EQ(WithinInvocation::current(), InvocationFacts());
}

}  // namespace fiber_test
}  // namespace once::testing
