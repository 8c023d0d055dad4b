#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <once/callback.hpp>

namespace once {
namespace callback_test {

struct Counts {
  int made = 0;
  int moved = 0;
  int destroyed = 0;
  int called = 0;
};

// Bytes says where it goes: up to 48 inline, beyond on the heap.
template <std::size_t Bytes, bool NothrowMove = true>
class Target {
 public:
  explicit Target(Counts& counts) : counts_(&counts) { ++counts.made; }
  Target(Target&& other) noexcept(NothrowMove) : counts_(other.counts_) { ++counts_->moved; }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  Target& operator=(Target&&) = delete;
  ~Target() { ++counts_->destroyed; }
  int operator()(int value) { return ++counts_->called, value + 1; }

 private:
  Counts* counts_;
  std::array<char, Bytes - sizeof(Counts*)> filler_{};
};

struct alignas(64) WidelyAligned {
  int value = 5;
  int operator()(int add) const {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(this) % 64, 0U);
    return value + add;
  }
};

template <class T>
void whole_life(bool is_inline) {
  Counts counts;
  {
    Callback<int(int)> callback{T(counts)};
    ASSERT_TRUE(callback);
    EXPECT_EQ(callback(1), 2);
    EXPECT_EQ(callback(2), 3) << "may be called again";
    const int moved = counts.moved;
    Callback<int(int)> second(std::move(callback));
    EXPECT_FALSE(callback) << "empty after a move";  // NOLINT(bugprone-use-after-move): that is the question.
    EXPECT_EQ(counts.moved - moved, is_inline ? 1 : 0) << "a heap target stays where it is";
    EXPECT_EQ(second(3), 4);
    Callback<int(int)> third;
    EXPECT_FALSE(third);
    third = std::move(second);
    EXPECT_EQ(third(4), 5);
    Counts other;
    third = Callback<int(int)>(T(other));
    EXPECT_EQ(counts.destroyed, counts.made + counts.moved) << "what was there is destroyed by the assignment";
    EXPECT_EQ(third(5), 6);
    EXPECT_EQ(other.called, 1);
    third = nullptr;
    EXPECT_EQ(other.destroyed, other.made + other.moved);
    EXPECT_FALSE(third);
  }
  EXPECT_EQ(counts.called, 4);
  EXPECT_EQ(counts.destroyed, counts.made + counts.moved) << "each target is destroyed exactly once";
}

TEST(Callback, small_targets_are_inline) { whole_life<Target<48>>(true); }
TEST(Callback, large_targets_are_on_the_heap) { whole_life<Target<49>>(false); }
TEST(Callback, targets_that_may_throw_when_moved_are_on_the_heap) { whole_life<Target<16, false>>(false); }

TEST(Callback, widely_aligned_targets_stay_aligned) {
  Callback<int(int)> callback{WidelyAligned{}};
  Callback<int(int)> moved(std::move(callback));
  EXPECT_EQ(moved(1), 6);
}

TEST(Callback, moving_onto_itself_keeps_it) {
  Callback<int()> callback([] { return 7; });
  Callback<int()>& same = callback;
  callback = std::move(same);
  ASSERT_TRUE(callback);
  EXPECT_EQ(callback(), 7);
}

TEST(Callback, takes_what_can_only_be_moved) {
  Callback<int(std::unique_ptr<int>)> callback(
      [kept = std::make_unique<int>(40)](std::unique_ptr<int> add) { return *kept + *add; });
  EXPECT_EQ(callback(std::make_unique<int>(2)), 42);
}

TEST(Callback, passes_references_as_references) {
  int value = 1;
  Callback<void(int&)> callback([](int& target) { target = 2; });
  callback(value);
  EXPECT_EQ(value, 2);
}

TEST(Callback, takes_functions_and_converts_results) {
  struct Local {
    static int twice(int value) { return 2 * value; }
  };
  Callback<long(int)> callback(&Local::twice);
  EXPECT_EQ(callback(21), 42L);
  Callback<void(int)> ignored(&Local::twice);
  ignored(1);
}

TEST(Callback, is_not_made_from_what_does_not_fit) {
  static_assert(!std::is_constructible_v<Callback<int(int)>, std::string>);
  static_assert(!std::is_constructible_v<Callback<int(int)>, std::function<std::string()>>);
  static_assert(!std::is_copy_constructible_v<Callback<int(int)>>);
  static_assert(!std::is_copy_assignable_v<Callback<int(int)>>);
  static_assert(std::is_nothrow_move_constructible_v<Callback<int(int)>>);
}

TEST(Callback, a_target_may_drop_the_callback_that_holds_others) {
  // As completions do: the callback's owner goes while it runs.
  auto holder = std::make_unique<std::vector<Callback<void()>>>();
  int called = 0;
  holder->emplace_back([&called] { ++called; });
  Callback<void()> last([&] {
    (*holder)[0]();
    holder.reset();
  });
  last();
  EXPECT_EQ(called, 1);
  EXPECT_FALSE(holder);
}

}  // namespace callback_test
}  // namespace once
