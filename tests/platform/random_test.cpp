#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

// As many as take a thread to its second block and those after it, which another generator fills.
void draw_several_blocks(std::set<Draw>& all) {
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(all.insert(draw()).second);
}

TEST(Random, parent_and_children_draw_differently) {
  std::set<Draw> all;
  draw_several_blocks(all);  // So that there is a block to inherit.
  constexpr int children = 4;
  for (int i = 0; i < children; ++i) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Draw first = draw();
      draw_several_blocks(all);
      const std::array<Draw, 2> mine{first, draw()};
      const bool written = write(ends[1], mine.data(), sizeof mine) == static_cast<ssize_t>(sizeof mine);
      _exit(written && !::testing::Test::HasFailure() ? 0 : 1);
    }
    close(ends[1]);
    std::array<Draw, 2> theirs{};
    EXPECT_EQ(read(ends[0], theirs.data(), sizeof theirs), static_cast<ssize_t>(sizeof theirs));
    close(ends[0]);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const Draw& drawn : theirs) EXPECT_TRUE(all.insert(drawn).second) << "a child drew what another process did";
  }
  draw_several_blocks(all);
}

}  // namespace random_test
}  // namespace once
