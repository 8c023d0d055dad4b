// Invocations that do not end in the order in which they began, and in the child of a fork.
#include <once/engine/within_invocation.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once::testing {
namespace invocation_test {

std::unique_ptr<const WithinInvocation> invocation_of(const char* tenant) {
  return std::make_unique<const WithinInvocation>(InvocationFacts{.tenant = tenant});
}

std::string current_tenant() { return WithinInvocation::current().tenant; }

TEST(WithinInvocation, InnermostCounts) {
  const WithinInvocation outer({.tenant = "blue"});
  {
    const WithinInvocation inner({});
    EXPECT_EQ(current_tenant(), "");
    const WithinInvocation innermost({.tenant = "red"});
    EXPECT_EQ(current_tenant(), "red");
  }
  EXPECT_EQ(current_tenant(), "blue");
}

TEST(WithinInvocation, EndsInAnyOrder) {
  std::optional<const WithinInvocation> c;
  std::optional<const WithinInvocation> b;
  std::optional<const WithinInvocation> a;
  a.emplace(InvocationFacts{.tenant = "blue"});
  b.emplace(InvocationFacts{.tenant = "red"});
  c.emplace(InvocationFacts{.tenant = "green"});
  EXPECT_EQ(current_tenant(), "green") << "the newest, not the one with the lowest address";
  a.reset();
  EXPECT_EQ(current_tenant(), "green");
  c.reset();
  EXPECT_EQ(current_tenant(), "red");
  a.emplace(InvocationFacts{.tenant = "blue"});
  b.reset();
  EXPECT_EQ(current_tenant(), "blue");
  a.reset();
  EXPECT_EQ(WithinInvocation::current(), InvocationFacts());
}

// As in the frames of two coroutines that co_await in turn.
TEST(WithinInvocation, OnesThatDifferAndAreNoLocalsAreNotGuessed) {
  auto a = invocation_of("blue");
  auto b = invocation_of("red");
  EXPECT_THROW(current_tenant(), Exception);
  a.reset();
  EXPECT_EQ(current_tenant(), "red");
  a = invocation_of("red");
  EXPECT_EQ(current_tenant(), "red");
}

TEST(WithinInvocation, EndsOnAnotherThread) {
  std::unique_ptr<const WithinInvocation> moved;
  std::thread([&] { moved = invocation_of("blue"); }).join();
  const WithinInvocation own({.tenant = "red"});
  EXPECT_EQ(current_tenant(), "red");
  std::thread([&] { EXPECT_THROW(current_tenant(), Exception) << "not of the thread that has ended"; }).join();
  std::thread([&] { moved.reset(); }).join();
  std::thread([&] { EXPECT_EQ(current_tenant(), "red"); }).join();
  EXPECT_EQ(current_tenant(), "red");
}

// The other threads' stacks are used anew in the child.
TEST(WithinInvocation, ChildOfAForkHasOnlyItsThreads) {
  const WithinInvocation own({.tenant = "red"});
  std::unique_ptr<const WithinInvocation> others;
  std::thread([&] { others = invocation_of("blue"); }).join();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = current_tenant() == "red" ? 0 : 1;
    others.reset();
    {
      const WithinInvocation inner({.tenant = "green"});
      if (current_tenant() != "green") wrong |= 2;
    }
    if (current_tenant() != "red") wrong |= 4;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace invocation_test
}  // namespace once::testing
