#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <once/platform/system.hpp>

namespace once {
namespace random_test {

using Draw = std::array<std::uint8_t, 16>;

Draw draw() {
  Draw out{};
  system_random()->fill(out);
  return out;
}

TEST(Random, no_two_draws_are_alike_on_any_thread) {
  std::mutex mutex;
  std::set<Draw> all;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const Draw mine = draw();
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(all.insert(mine).second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all.size(), 4000U);
}

TEST(Random, fills_any_length_to_the_end) {
  for (const std::size_t bytes : {0U, 1U, 15U, 255U, 256U, 257U, 1000U, 10'000U}) {
    std::vector<std::uint8_t> out(bytes + 1, 0);
    // A byte that stays 0 over 64 draws was not written (chance 2^-512).
    std::vector<bool> touched(bytes, false);
    for (int i = 0; i < 64; ++i) {
      system_random()->fill(std::span(out).first(bytes));
      for (std::size_t j = 0; j < bytes; ++j) touched[j] = touched[j] || out[j] != 0;
    }
    EXPECT_TRUE(std::all_of(touched.begin(), touched.end(), [](bool t) { return t; })) << bytes;
    EXPECT_EQ(out.back(), 0) << "nothing is written behind the end";
  }
}

// What copies a process with its memory: fork(), and a clone() that the C library does not see, as a snapshot of a
// machine is not seen by anything in it.
pid_t copy_unseen() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }

class CopiedProcess : public ::testing::TestWithParam<pid_t (*)()> {};

TEST_P(CopiedProcess, draws_differently_from_its_origin_and_from_other_copies) {
  std::set<Draw> all;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(all.insert(draw()).second);  // So that what is kept is there to be copied.
  constexpr int copies = 4;
  for (int i = 0; i < copies; ++i) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = GetParam()();
    ASSERT_GE(child, 0);
    if (child == 0) {  // No allocation: the C library knows of no copy, so its locks may be anyone's.
      std::array<Draw, 300> theirs{};
      for (Draw& drawn : theirs) drawn = draw();
      _exit(write(ends[1], theirs.data(), sizeof theirs) == static_cast<ssize_t>(sizeof theirs) ? 0 : 1);
    }
    close(ends[1]);
    std::array<Draw, 300> theirs{};  // 4,800 bytes, which a pipe takes at once and may give in parts.
    auto* const bytes = reinterpret_cast<char*>(theirs.data());
    for (std::size_t got = 0; got < sizeof theirs;) {
      const ssize_t more = read(ends[0], bytes + got, sizeof theirs - got);
      ASSERT_GT(more, 0) << "a copy ended early";
      got += static_cast<std::size_t>(more);
    }
    close(ends[0]);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const Draw& drawn : theirs) EXPECT_TRUE(all.insert(drawn).second) << "a copy drew what another process did";
  }
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(all.insert(draw()).second);
}

INSTANTIATE_TEST_SUITE_P(Random, CopiedProcess, ::testing::Values(&fork, &copy_unseen));

}  // namespace random_test
}  // namespace once
