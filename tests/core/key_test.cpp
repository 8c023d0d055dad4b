#include <gtest/gtest.h>

#include <map>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/testing/manual_time.hpp>

namespace once {
namespace key_test {

using namespace std::string_literals;

// Strings of the bytes that matter to the way scope and name are joined.
std::string hostile(testing::SeededRandom& random, std::size_t most) {
  static const std::vector<std::string> pieces = {"#",  "%", "%23", "%25", "%2",    "23",
                                                  "25", "a", "/",   "\0"s, "\xFF"s, "\n"};
  std::string out;
  for (std::uint64_t i = random.below(most); i > 0; --i) out += random.pick(pieces);
  return out;
}

TEST(Key, joins_as_documented) {
  EXPECT_EQ(Key("payments/charge", "order-17").stored(), "payments/charge#order-17");
  EXPECT_EQ(Key("", "k").stored(), "#k");
  EXPECT_EQ(Key("a#b%c", "d#e%f").stored(), "a%23b%25c#d#e%f");
  EXPECT_EQ(scope_prefix("a#b"), "a%23b#");
  EXPECT_EQ(KeyScope("a#b%c").key("d#e%f").stored(), "a%23b%25c#d#e%f");
}

TEST(KeyScope, refuses_what_a_key_refuses) {
  const std::string scope(max_key_bytes - 3, 's');
  EXPECT_EQ(KeyScope(scope).key("ab"), Key(scope, "ab"));
  EXPECT_THROW(static_cast<void>(KeyScope(scope).key("abc")), Exception);
  EXPECT_THROW(static_cast<void>(KeyScope(scope).key("")), Exception);
}

TEST(Key, no_two_pairs_give_the_same_key) {
  testing::SeededRandom random(3);
  std::map<std::string, std::pair<std::string, std::string>> seen;
  for (int i = 0; i < 50'000; ++i) {
    const std::pair pair(hostile(random, 5), hostile(random, 5));
    if (pair.second.empty()) continue;
    const auto [place, inserted] = seen.emplace(Key(pair.first, pair.second).stored(), pair);
    ASSERT_EQ(place->second, pair) << "two pairs give " << place->first;
  }
  EXPECT_GT(seen.size(), 10'000U);
}

TEST(Key, scope_and_name_come_back) {
  testing::SeededRandom random(4);
  for (int i = 0; i < 20'000; ++i) {
    const std::string scope = hostile(random, 8);
    const std::string name = hostile(random, 8) + "x";
    const Key key(scope, name);
    ASSERT_EQ(key.scope(), scope);
    ASSERT_EQ(key.name(), name);
    ASSERT_TRUE(key.stored().starts_with(scope_prefix(scope)));
    const Key again = Key::from_stored(key.stored());
    ASSERT_EQ(again, key);
    ASSERT_EQ(again.scope(), scope);
    ASSERT_EQ(again.name(), name);
  }
}

// A scope's prefix finds its own keys and no other scope's.
TEST(Key, a_scope_prefix_belongs_to_one_scope) {
  testing::SeededRandom random(5);
  for (int i = 0; i < 50'000; ++i) {
    const std::string one = hostile(random, 4);
    const std::string other = hostile(random, 4);
    const Key key(other, "x");
    ASSERT_EQ(key.stored().starts_with(scope_prefix(one)), one == other) << one << " and " << other;
  }
}

void expect_misuse(const std::function<void()>& make, std::string_view says) {
  try {
    make();
    ADD_FAILURE() << "no error that says " << says;
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

TEST(Key, limits) {
  EXPECT_EQ(Key("s", std::string(max_key_bytes - 2, 'n')).stored().size(), max_key_bytes);
  expect_misuse([] { Key("s", std::string(max_key_bytes - 1, 'n')); }, "digest");
  // Escaping counts.
  EXPECT_NO_THROW(Key(std::string(300, '#'), std::string(max_key_bytes - 901, 'n')));
  expect_misuse([] { Key(std::string(300, '#'), std::string(max_key_bytes - 900, 'n')); }, "1025");
  expect_misuse([] { Key("s", std::string(10'000'000, 'n')); }, "10000002");
  expect_misuse([] { Key(std::string(10'000'000, '#'), "n"); }, "10000002");
  expect_misuse([] { Key("scope", ""); }, "empty");
}

TEST(Key, stored_forms_are_checked) {
  expect_misuse([] { Key::from_stored(""); }, "<scope>#<name>");
  expect_misuse([] { Key::from_stored("no separator"); }, "<scope>#<name>");
  expect_misuse([] { Key::from_stored("scope#"); }, "<scope>#<name>");
  expect_misuse([] { Key::from_stored(std::string(max_key_bytes + 1, '#')); }, "1025");
  EXPECT_EQ(Key::from_stored("#n").scope(), "");
  // A percent sign that Key never wrote is left as it is.
  EXPECT_EQ(Key::from_stored("100%#n").scope(), "100%");
  EXPECT_EQ(Key::from_stored("%2#n").scope(), "%2");
}

TEST(Key, the_name_outlives_moves_of_others) {
  const Key key("s", std::string("a\0b\n#", 5));
  const Key copy = key;
  EXPECT_EQ(copy.name(), std::string_view("a\0b\n#", 5));
  EXPECT_GE(copy.name().data(), copy.stored().data());
  EXPECT_LE(copy.name().data(), copy.stored().data() + copy.stored().size());
}

}  // namespace key_test
}  // namespace once
