// The input of an attempt: kept if asked for, and the first thing that gives way.
#include <memory>
#include <string>

#include "engine_test.hpp"

namespace once::testing {
namespace input_test {

class InputTest : public EngineTest {
 protected:
  static Policy keeping() {
    Policy p = policy();
    p.keep_input = true;
    return p;
  }
  static Slot<Begin> begin_with(const Process& p, std::string_view key, std::string input, Policy with = keeping()) {
    Slot<Begin> slot;
    Request made = request(key, with);
    made.input = std::make_shared<const std::string>(std::move(input));
    p.engine->begin(std::move(made), slot.fill());
    return slot;
  }
};

TEST_F(InputTest, IsKeptOnlyIfThePolicySaysSo) {
  auto p = process();
  auto off = begin_with(p, "off", "4111", policy());
  EXPECT_EQ(stored("off")->input, "");
  EXPECT_EQ(stored("off")->input_bytes, 0U);
  auto on = begin_with(p, "on", "4111");
  EXPECT_EQ(stored("on")->input, "4111");
  EXPECT_EQ(stored("on")->input_bytes, 4U);
  EXPECT_EQ(complete(on->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("on")->input, "4111") << "with its result";

  auto keeps = process([](EngineOptions& o) { o.policy.keep_input = true; });
  Policy none = policy();
  none.keep_input = false;
  auto inherited = begin_with(keeps, "inherited", "4111", policy());
  EXPECT_EQ(stored("inherited")->input, "4111");
  auto own = begin_with(keeps, "own", "4111", none);
  EXPECT_EQ(stored("own")->input_bytes, 0U) << "an operation's own policy wins";
  auto without = begin(keeps, "without");
  EXPECT_EQ(stored("without")->input_bytes, 0U);
}

TEST_F(InputTest, ThePayloadOfARunIsItsInput) {
  auto keeps = process([](EngineOptions& o) { o.policy.keep_input = true; });
  EXPECT_EQ(keeps->run("a", "payload", [] { return std::string("done"); }).kind, Outcome::Kind::executed);
  EXPECT_EQ(stored("a")->input, "payload");
  auto p = process();
  EXPECT_EQ(p->run("b", "payload", [] { return std::string("done"); }).kind, Outcome::Kind::executed);
  EXPECT_EQ(stored("b")->input_bytes, 0U);
}

TEST_F(InputTest, ALongOneIsCutAndItsSizeTold) {
  auto p = process();
  auto begun = begin_with(p, "a", std::string(Record::max_input_bytes + 1, 'x'));
  EXPECT_EQ(stored("a")->input, std::string(Record::max_input_bytes, 'x'));
  EXPECT_EQ(stored("a")->input_bytes, Record::max_input_bytes + 1);
  auto text = begin_with(p, "b", std::string(Record::max_input_bytes - 1, 'x') + "\xC3\xA9");
  EXPECT_EQ(stored("b")->input.size(), Record::max_input_bytes - 1) << "not within a character";
  Request part = request("c", keeping());
  part.input = std::make_shared<const std::string>("the beginning");
  part.input_bytes = 1'000'000;
  Slot<Begin> slot;
  p->begin(std::move(part), slot.fill());
  EXPECT_EQ(stored("c")->input, "the beginning");
  EXPECT_EQ(stored("c")->input_bytes, 1'000'000U);
}

// The first insert too, which nothing had shortened before.
TEST_F(InputTest, NeverPreventsAClaimAStepOrAResult) {
  store->max_record_bytes = 16 * 1024;
  auto p = process([](EngineOptions& o) { o.holder = std::string(Record::max_text_bytes, 'h'); });
  Request made = request(std::string(900, 'k'), keeping());
  made.label = std::string(Record::max_text_bytes, 'l');
  made.input = std::make_shared<const std::string>(40'000, 'i');
  const std::string key = made.key.stored();
  Slot<Begin> begun;
  p->begin(std::move(made), begun.fill());
  ASSERT_EQ(begun->kind, Begin::Kind::claimed) << begun->error.message;
  const auto now_stored = [&] { return *copy_of(blocking::get(store->inner(), key).record); };
  EXPECT_GT(now_stored().input.size(), 4'000U) << "as much as there is room for";
  EXPECT_LT(now_stored().input.size(), 16'000U);
  EXPECT_EQ(now_stored().input_bytes, 40'000U);
  EXPECT_EQ(now_stored().label.size(), Record::max_text_bytes);

  begun->claim.heartbeat(std::string(Record::max_text_bytes, 'n'));
  EXPECT_EQ(now_stored().note.size(), Record::max_text_bytes);
  const std::size_t before = now_stored().input.size();
  Slot<Finish> step;
  begun->claim.add_step("1", std::string(5'000, 's'), step.fill());
  EXPECT_EQ(step->kind, Finish::Kind::recorded);
  EXPECT_LT(now_stored().input.size(), before);

  EXPECT_EQ(complete(begun->claim, std::string(6'000, 'r'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(now_stored().result.bytes.size(), 6'000U) << "whole";
  EXPECT_EQ(now_stored().steps.size(), 1U);
  EXPECT_EQ(now_stored().input_bytes, 40'000U);
}

TEST_F(InputTest, ATakeoverHasItsOwn) {
  auto p = process();
  auto begun = begin_with(p, "a", "the first, with a secret");
  begun->claim = Claim();
  clock->advance(9s);
  auto other = process();
  auto next = begin_with(other, "a", "the second");
  ASSERT_EQ(next->kind, Begin::Kind::claimed);
  EXPECT_EQ(stored("a")->input, "the second");
  EXPECT_EQ(stored("a")->input_bytes, 10U);
  next->claim = Claim();
  clock->advance(9s);
  auto last = process();
  auto without = begin_with(last, "a", "the third", policy());
  ASSERT_EQ(without->kind, Begin::Kind::claimed);
  EXPECT_EQ(stored("a")->input_bytes, 0U) << "what this program may not keep it does not take along";
}

TEST_F(InputTest, TheEnginesRuleSeesAllOfItBeforeItIsCut) {
  std::size_t seen = 0;
  auto p = process([&](EngineOptions& o) {
    o.input_rule = [&](std::string_view input) -> InputPtr {
      seen = input.size();
      if (input.ends_with("no")) return nullptr;
      return std::make_shared<const std::string>("of " + std::to_string(input.size()));
    };
  });
  auto begun = begin_with(p, "a", std::string(200'000, 'x'));
  EXPECT_EQ(seen, 200'000U);
  EXPECT_EQ(stored("a")->input, "of 200000");
  EXPECT_EQ(stored("a")->input_bytes, 9U) << "of what may be stored";
  auto none = begin_with(p, "b", "no");
  EXPECT_EQ(stored("b")->input_bytes, 0U);
  auto off = begin_with(p, "c", "no", policy());
  EXPECT_EQ(stored("c")->input_bytes, 0U);
}

}  // namespace input_test
}  // namespace once::testing
