// A policy says what it names and inherits the rest: for each member.
#include <gtest/gtest.h>

#include <optional>
#include <tuple>

#include <once/policy.hpp>

namespace once {
namespace policy_test {

// All members; a new one does not compile until it is named here, and then each test below asks about it.
template <class P>
auto members(P& policy) {
  auto& [lease, retention, failure_retention, expected, wait, skew, on_conflict, on_missing_key, on_lapse, on_throw,
         on_stored_failure, on_unrecorded, on_store_down, label, keep_input, max_inline_bytes, compress_over_bytes,
         heartbeat, fixed_lease] = policy;
  return std::tie(lease, retention, failure_retention, expected, wait, skew, on_conflict, on_missing_key, on_lapse,
                  on_throw, on_stored_failure, on_unrecorded, on_store_down, label, keep_input, max_inline_bytes,
                  compress_over_bytes, heartbeat, fixed_lease);
}

// Calls test with an index for each member, as a constant.
template <class Test>
void for_each_member(Test&& test) {
  Policy policy;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (test(std::integral_constant<std::size_t, I>{}), ...);
  }(std::make_index_sequence<std::tuple_size_v<decltype(members(policy))>>{});
}

// None is a default.
const Policy narrow{.lease = Millis{1'000},
                    .retention = Millis{1'001},
                    .failure_retention = Millis{1'007},
                    .expected = Millis{1'006},
                    .wait = Millis{1'002},
                    .skew = Millis{1'003},
                    .on_conflict = OnConflict::fail,
                    .on_missing_key = OnMissingKey::run_unprotected,
                    .on_lapse = OnLapse::hold,
                    .on_throw = OnThrow::hold,
                    .on_stored_failure = OnStoredFailure::execute,
                    .on_unrecorded = OnUnrecorded::fail,
                    .on_store_down = OnStoreDown::run_unprotected,
                    .label = Label::all,
                    .keep_input = true,
                    .max_inline_bytes = 1'004,
                    .compress_over_bytes = 1'005,
                    .heartbeat = false,
                    .fixed_lease = true};
const Policy wide{.lease = Millis{2'000},
                  .retention = Millis{2'001},
                  .failure_retention = keep_forever,
                  .expected = Millis{2'006},
                  .wait = Millis{2'002},
                  .skew = Millis{2'003},
                  .on_conflict = OnConflict::wait,
                  .on_missing_key = OnMissingKey::refuse,
                  .on_lapse = OnLapse::takeover,
                  .on_throw = OnThrow::store,
                  .on_stored_failure = OnStoredFailure::replay,
                  .on_unrecorded = OnUnrecorded::return_result,
                  .on_store_down = OnStoreDown::refuse,
                  .label = Label::none,
                  .keep_input = false,
                  .max_inline_bytes = 2'004,
                  .compress_over_bytes = 2'005,
                  .heartbeat = true,
                  .fixed_lease = false};

TEST(Policy, says_nothing_by_itself) {
  Policy policy;
  std::apply([](const auto&... member) { EXPECT_FALSE((member.has_value() || ...)); }, members(policy));
  EXPECT_EQ(effective(policy), EffectivePolicy{});
  EXPECT_EQ(fill_in(policy, wide), wide);
  EXPECT_EQ(fill_in(narrow, wide), narrow);
}

TEST(Policy, of_one_operation_changes_each_member_alone) {
  for_each_member([](auto index) {
    Policy own;
    std::get<index>(members(own)) = std::get<index>(members(narrow));
    Policy expected = wide;
    std::get<index>(members(expected)) = std::get<index>(members(narrow));
    EXPECT_EQ(fill_in(own, wide), expected) << "member " << index;
    EXPECT_NE(expected, wide) << "member " << index;
  });
}

TEST(Policy, what_nobody_says_is_the_default_for_each_member) {
  for_each_member([](auto index) {
    Policy own;
    std::get<index>(members(own)) = std::get<index>(members(narrow));
    EffectivePolicy expected;
    std::get<index>(members(expected)) = *std::get<index>(members(narrow));
    EXPECT_EQ(effective(own), expected) << "member " << index;
    EXPECT_NE(expected, EffectivePolicy{}) << "member " << index;
  });
}

}  // namespace policy_test
}  // namespace once
