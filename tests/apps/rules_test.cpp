// What the end of a command means.
#include "settings/rules.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <once/error.hpp>

namespace once::cli {
namespace rules_test {

Rules rules(const char* on_failure = "", const char* on_signal = "", std::vector<std::string> on_exit = {}) {
  return {on_failure, on_signal, on_exit};
}

constexpr CommandEnd well{};
constexpr CommandEnd badly{.signaled = false, .code = 4};
constexpr CommandEnd killed{.signaled = true, .code = 9};

TEST(Rules, Defaults) {
  EXPECT_EQ(rules().fate(well, false, OnLapse::takeover), CommandFate::success);
  EXPECT_EQ(rules().fate(badly, false, OnLapse::takeover), CommandFate::store);
  EXPECT_EQ(rules().fate(killed, false, OnLapse::takeover), CommandFate::release);
}

TEST(Rules, AnInterruptedCommandCameToNoEndOfItsOwn) {
  EXPECT_EQ(rules().fate(well, true, OnLapse::takeover), CommandFate::success);
  EXPECT_EQ(rules().fate(badly, true, OnLapse::takeover), CommandFate::release);
  EXPECT_EQ(rules("", "", {"4=store"}).fate(badly, true, OnLapse::takeover), CommandFate::store);
}

TEST(Rules, UnderHoldWhatWasKilledIsUnknown) {
  const Rules unsaid = rules();
  EXPECT_EQ(unsaid.fate(badly, false, OnLapse::hold), CommandFate::store);
  EXPECT_EQ(unsaid.fate(badly, true, OnLapse::hold), CommandFate::hold);
  EXPECT_EQ(unsaid.fate(killed, false, OnLapse::hold), CommandFate::hold);
  EXPECT_EQ(rules("", "release").fate(killed, false, OnLapse::hold), CommandFate::release)
      << "a word that was said counts";
  // As once sqs begins: a failure leaves the message to the queue.
  const Rules queue("", "", {}, CommandFate::release);
  EXPECT_EQ(queue.fate(badly, false, OnLapse::hold), CommandFate::release);
  EXPECT_EQ(queue.fate(killed, false, OnLapse::hold), CommandFate::hold);
  EXPECT_EQ(queue.fate(killed, false, OnLapse::takeover), CommandFate::release);
}

TEST(Rules, WhatIsSaidOfFailuresGoesForSignalsUnlessTheyAreNamed) {
  EXPECT_EQ(rules("store").fate(killed, false, OnLapse::takeover), CommandFate::store);
  EXPECT_EQ(rules("hold").fate(killed, false, OnLapse::takeover), CommandFate::hold);
  EXPECT_EQ(rules("store", "release").fate(killed, false, OnLapse::takeover), CommandFate::release);
  EXPECT_EQ(rules("release").fate(badly, false, OnLapse::takeover), CommandFate::release);
}

TEST(Rules, SingleCodes) {
  const Rules some = rules("hold", "", {"1,3-5=store", "4=success", "255=release"});
  const auto fate = [&](std::uint8_t code) {
    return some.fate({.signaled = false, .code = code}, false, OnLapse::takeover);
  };
  EXPECT_EQ(fate(1), CommandFate::store);
  EXPECT_EQ(fate(2), CommandFate::hold);
  EXPECT_EQ(fate(3), CommandFate::store);
  EXPECT_EQ(fate(4), CommandFate::success);
  EXPECT_EQ(fate(5), CommandFate::store);
  EXPECT_EQ(fate(255), CommandFate::release);
}

TEST(Rules, WordsThatMeanNothing) {
  EXPECT_THROW(rules("keep"), Exception);
  EXPECT_THROW(rules("", "kill"), Exception);
  for (const char* const rule : {"", "=", "1", "1=", "=store", "0=store", "256=store", "a=store", "1,=store",
                                 "5-2=store", "1-=store", "-1=store", "1=keep", "1 =store"}) {
    EXPECT_THROW(rules("", "", {rule}), Exception) << rule;
  }
}

}  // namespace rules_test
}  // namespace once::cli
