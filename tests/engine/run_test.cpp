// engine.run: the work's results and exceptions, steps, and running without protection.
#include <pthread.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "engine_test.hpp"
#include "platform/wait.hpp"

struct Unspeakable {};
template <>
struct once::Codec<Unspeakable> {
  static constexpr std::string_view content_type = "";
  static std::string encode(const Unspeakable&) { throw std::domain_error("no words for it"); }
  static Unspeakable decode(std::string_view) { return {}; }
};

namespace once::testing {
namespace run_test {

struct Declined : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Timeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class RunTest : public EngineTest {
 protected:
  void TearDown() override {
    taken_ = Claim();
    EngineTest::TearDown();
  }
  // Another process takes the claim over and completes it, while the work of this one runs.
  void displace(const std::string& key, const std::string& result) {
    clock->advance(9s);
    other_ = process();
    auto taken = begin(other_, key);
    ASSERT_EQ(taken->kind, Begin::Kind::claimed);
    if (!result.empty()) complete(taken->claim, result);
    taken_ = std::move(taken->claim);
  }
  Process other_;
  Claim taken_;
};

TEST_F(RunTest, GivesTheResultAndReplaysIt) {
  auto p = process();
  const Outcome first = p->run("a", "payload", [] { return std::string("done"); });
  EXPECT_EQ(first.kind, Outcome::Kind::executed);
  EXPECT_EQ(first.value(), "done");
  EXPECT_EQ(first.record->result.bytes, "done");
  const Outcome again = p->run("a", "payload", []() -> std::string { throw Declined("never called"); });
  EXPECT_EQ(again.kind, Outcome::Kind::replayed);
  EXPECT_EQ(again.value(), "done");
  EXPECT_THROW(static_cast<void>(p->run("a", "another", [] {}).value()), Mismatch);
}

TEST_F(RunTest, ThePolicySaysWhoseKeysAreLabels) {
  auto p = process();
  const auto label_of = [&](const std::string& name, std::optional<Label> policy, bool from_payload,
                            std::string label = "order-17") {
    Request request = p->request(name, {});
    request.label = std::move(label);
    request.label_from_payload = from_payload;
    if (policy) request.policy = Policy{.label = policy};
    return p->run(std::move(request), [] { return std::string("done"); }).record->label;
  };
  EXPECT_EQ(label_of("a", {}, false), "order-17") << "a key that the caller names";
  EXPECT_EQ(label_of("b", {}, true), "") << "what comes from a payload may be an e-mail";
  EXPECT_EQ(label_of("c", Label::all, false), "order-17");
  EXPECT_EQ(label_of("d", Label::all, true), "order-17");
  EXPECT_EQ(label_of("e", Label::none, false), "");
  EXPECT_EQ(label_of("f", Label::none, true), "");
  EXPECT_EQ(label_of("g", {}, false, std::string(1023, 'l') + "\xC3\xA9"), std::string(1023, 'l'))
      << "cut by characters";
  EXPECT_EQ(label_of("h", {}, false, "\xFF"), "\xEF\xBF\xBD");
}

TEST_F(RunTest, ATakeoverKeepsTheLabel) {
  auto p = process();
  Request request = p->request("a", {});
  request.label = "order-17";
  Begin first = p->begin(std::move(request));
  ASSERT_EQ(first.kind, Begin::Kind::claimed);
  ASSERT_EQ(first.claim.add_step("charge", "ch_1").kind, Finish::Kind::recorded);  // So that the release keeps it.
  first.claim.release("not now");
  EXPECT_EQ(p->run("a", "", [] { return std::string("done"); }).record->label, "order-17");
}

TEST_F(RunTest, TheContextTellsAboutTheAttempt) {
  auto p = process();
  std::string derived;
  p->run("a", "", [&](Context& context) {
    EXPECT_TRUE(context.is_protected());
    EXPECT_EQ(context.attempt(), 1U);
    EXPECT_EQ(context.token(), static_cast<std::uint64_t>(manual_start.time_since_epoch().count()));
    EXPECT_GT(*context.deadline(), clock->uptime());
    EXPECT_FALSE(context.stop_token().stop_requested());
    derived = context.derived_key("stripe");
    EXPECT_NE(derived, context.derived_key("mail"));
    displace("a", "");
  });
  EXPECT_EQ(taken_.derived_key("stripe"), derived) << "stable over attempts";
  EXPECT_GT(taken_.token(), static_cast<std::uint64_t>(manual_start.time_since_epoch().count()));
}

TEST_F(RunTest, AResultThatCannotBeEncodedDoesNotRunTheWorkAgain) {
  auto p = process();
  int runs = 0;
  const auto work = [&] {
    ++runs;
    return Unspeakable{};
  };
  EXPECT_THROW(p->run("a", "", work), std::domain_error);
  const Outcome again = p->run("a", "", work);
  EXPECT_EQ(again.kind, Outcome::Kind::replayed);
  try {
    static_cast<void>(again.value());
    ADD_FAILURE() << "there is a result";
  } catch (const ResultDropped& error) {
    EXPECT_THAT(error.what(), HasSubstr("could not be encoded"));
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(RunTest, WhatIsThrownPassesThroughAndPolicyDecidesAboutTheClaim) {
  const auto work = []() -> std::string { throw Declined("no money"); };
  auto p = process([](EngineOptions& o) {
    o.throw_rule = on_exception<Timeout>(OnThrow::hold, on_exception<Declined>(OnThrow::store));
  });
  EXPECT_THROW(p->run("stored", {}, work), Declined);
  EXPECT_EQ(stored("stored")->state, State::failed);
  EXPECT_THAT(stored("stored")->failure.code, HasSubstr("Declined"));
  EXPECT_EQ(stored("stored")->failure.message, "no money");
  const Outcome replayed = p->run("stored", {}, work);
  EXPECT_EQ(replayed.kind, Outcome::Kind::stored_failure);
  EXPECT_THROW(static_cast<void>(replayed.value()), StoredFailure);
  EXPECT_THROW(p->run("held", {}, []() -> std::string { throw Timeout("who knows"); }), Timeout);
  EXPECT_EQ(stored("held")->state, State::unknown);
  EXPECT_THROW(static_cast<void>(p->run("held", {}, work).value()), OutcomeUnknown);
  EXPECT_THROW(p->run("released", {}, []() -> std::string { throw 17; }), int);
  EXPECT_EQ(stored("released"), std::nullopt);
}

TEST_F(RunTest, TheDefaultForExceptionsIsRelease) {
  auto p = process();
  EXPECT_THROW(p->run("a", {}, [] { throw Declined("x"); }), Declined);
  EXPECT_EQ(stored("a"), std::nullopt);
  EXPECT_EQ(p->run("a", {}, [] { return std::string("second try"); }).kind, Outcome::Kind::executed);
}

TEST_F(RunTest, AConflictIsAValueAndAnException) {
  auto p = process();
  auto other = process();
  auto held = begin(other, "a");
  const Outcome outcome = p->run("a", {}, [] { FAIL() << "must not run"; });
  ASSERT_EQ(outcome.kind, Outcome::Kind::conflict);
  try {
    static_cast<void>(outcome.value());
    FAIL();
  } catch (const Conflict& conflict) {
    EXPECT_EQ(conflict.retry_after(), 9s);
    EXPECT_THAT(conflict.what(), HasSubstr("host:1"));
  }
}

TEST_F(RunTest, ASupersededResultIsTheStoredOne) {
  auto p = process();
  const Outcome outcome = p->run("a", {}, [&] {
    displace("a", "theirs");
    return std::string("ours");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::superseded);
  EXPECT_EQ(outcome.value(), "theirs");
}

TEST_F(RunTest, AResultThatIsLostIsNotGivenOut) {
  auto p = process();
  const Outcome outcome = p->run("a", {}, [&] {
    displace("a", "");
    return std::string("ours");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::lost);
  EXPECT_THROW(static_cast<void>(outcome.value()), ClaimLost);
}

TEST_F(RunTest, AnUnrecordedResultIsReturnedOrThrown) {
  // The blocking face waits for timers: here they fire by themselves.
  for (const OnUnrecorded choice : {OnUnrecorded::return_result, OnUnrecorded::fail}) {
    EngineOptions o;
    o.store = store;
    o.scope = "test";
    o.policy.on_unrecorded = choice;
    Engine engine(o);
    const std::string key = "a" + std::to_string(static_cast<int>(choice));
    const auto act = [&] {
      return engine.run(key, {}, [&] {
        store->otherwise(Next::fail);
        return std::string("done");
      });
    };
    if (choice == OnUnrecorded::fail) {
      EXPECT_THROW(act(), Unrecorded);
    } else {
      const Outcome outcome = act();
      EXPECT_EQ(outcome.kind, Outcome::Kind::unrecorded);
      EXPECT_EQ(outcome.value(), "done");
    }
    store->otherwise(Next::carry_out);
  }
}

TEST_F(RunTest, FailClosedRunsNothingAndFailOpenRunsUnprotected) {
  auto p = process();
  store->otherwise(Next::fail);
  const Outcome closed = p->run("a", {}, [] { FAIL() << "must not run"; });
  EXPECT_EQ(closed.kind, Outcome::Kind::error);
  EXPECT_THROW(static_cast<void>(closed.value()), StoreFailed);
  EXPECT_EQ(p.events->count(EventKind::unprotected), 0U);
  Policy open = policy();
  open.on_store_down = OnStoreDown::run_unprotected;
  std::string derived;
  const Outcome ran = p->run(request("a", open), [&](Context& context) {
    EXPECT_FALSE(context.is_protected());
    EXPECT_EQ(context.token(), 0U);
    EXPECT_EQ(context.deadline(), std::nullopt);
    derived = context.derived_key("stripe");
    EXPECT_EQ(context.step("one", [] { return std::string("1"); }), "1");
    return std::string("done");
  });
  EXPECT_EQ(ran.kind, Outcome::Kind::unprotected);
  EXPECT_EQ(ran.value(), "done");
  EXPECT_EQ(p.events->count(EventKind::unprotected), 1U);
  EXPECT_EQ(derived, derived_key(Key("test", "a").stored(), "stripe")) << "what a protected run would have sent";
}

// The store had answered, with a claim under `hold`, and failed only then.
TEST_F(RunTest, FailOpenRunsNothingBesideARecordThatWasSeen) {
  auto holder = process();
  Policy held = policy();
  held.on_lapse = OnLapse::hold;
  held.heartbeat = false;
  auto begun = begin(holder, "a", held);
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  timers->advance(1h);
  auto p = process();
  Policy open = policy();
  open.on_store_down = OnStoreDown::run_unprotected;
  store->script({Next::carry_out, Next::fail});  // The insert is refused; the mark cannot be written.
  int ran = 0;
  EXPECT_EQ(p->run(request("a", open), [&](Context&) { ++ran; }).kind, Outcome::Kind::error);
  EXPECT_EQ(ran, 0);
}

TEST_F(RunTest, WithoutAKeyItRunsAndCounts) {
  auto p = process();
  const Outcome outcome = p->run_unprotected("mails", [] { return std::string("done"); });
  EXPECT_EQ(outcome.kind, Outcome::Kind::unprotected);
  EXPECT_THAT(p.events->names(), ElementsAre("unprotected"));
  EXPECT_THAT(store->calls(), IsEmpty());
}

// The thread is stopped between the claim's answer and the work: here by its observer.
TEST_F(RunTest, NoWorkBeginsOnALeaseThatIsOver) {
  unsigned stops = 1;
  auto p = process([&](EngineOptions& o) {
    o.policy.heartbeat = false;
    o.observer = [&](const Event& event) {
      if (event.kind == EventKind::claimed && stops > 0) {
        --stops;
        clock->advance(10s);
      }
    };
  });
  int ran = 0;
  const auto work = [&](Context& context) {
    EXPECT_GT(*context.deadline(), clock->uptime());
    ++ran;
    return std::string("done");
  };
  EXPECT_EQ(p->run("a", {}, work).value(), "done");
  EXPECT_EQ(ran, 1);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "remove", "insert", "replace"));

  stops = 100;
  const Outcome never = p->run("b", {}, work);
  EXPECT_EQ(ran, 1);
  ASSERT_EQ(never.kind, Outcome::Kind::error);
  EXPECT_THAT(never.error.message, HasSubstr("nothing was run"));
  EXPECT_EQ(stored("b"), std::nullopt) << "given up";
}

TEST_F(RunTest, WithoutAnObserverRunningUnprotectedIsSaidOnceForEachOperation) {
  auto observed = process();
  auto p = process([](EngineOptions& o) {
    o.observer = nullptr;
    o.policy.on_store_down = OnStoreDown::run_unprotected;
  });
  store->otherwise(Next::fail);
  ::testing::internal::CaptureStderr();
  observed->run_unprotected("observed", [] {});
  for (int i = 0; i < 3; ++i) {
    p->run_unprotected("payments/mails", [] {});
    p->run_unprotected("payments/charge", [] {});
    EXPECT_EQ(p->run("a", {}, [] {}).kind, Outcome::Kind::unprotected);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << said;
  EXPECT_THAT(said, HasSubstr("once: 'payments/mails' runs unprotected, so that it may run twice: it has no key"));
  EXPECT_THAT(said, HasSubstr("'payments/charge'"));
  EXPECT_THAT(said, HasSubstr("'test' runs unprotected, so that it may run twice: its store does not answer"));
}

// 1. The store fails at a finish. 2. Another process has taken a claim over. 3. A claim lapsed under hold. Nobody
// observes, and each must be noticed all the same.
TEST_F(RunTest, SignalsAreWrittenOnceWithoutAnObserver) {
  auto p = process([](EngineOptions& o) { o.observer = nullptr; });
  ::testing::internal::CaptureStderr();
  for (const std::string key : {"a", "b"}) {
    auto begun = begin(p, key);
    store->otherwise(Next::fail);
    auto finish = complete(begun->claim, "done");
    timers->advance(1s);
    ASSERT_TRUE(finish.ready());
    EXPECT_EQ(finish->kind, Finish::Kind::unrecorded);
    store->otherwise(Next::carry_out);
  }
  for (const std::string key : {"c", "d"}) {
    EXPECT_EQ(p->run(key, {}, [&] { displace(key, "theirs"); }).kind, Outcome::Kind::superseded);
  }
  for (const std::string key : {"e", "f"}) {
    static_cast<void>(begin(p, key, Policy{.on_lapse = OnLapse::hold}));  // Dropped without a finish.
    clock->advance(1h);
    EXPECT_EQ(p->run(key, {}, [] {}).kind, Outcome::Kind::unknown);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << said;
  EXPECT_THAT(said, HasSubstr("once: 'test' ran, but its result is not recorded"));
  EXPECT_THAT(said, HasSubstr("once: 'test' ran, but had lost its claim"));
  EXPECT_THAT(said, HasSubstr("once: 'test' is not run: how an earlier attempt ended is unknown"));
}

TEST_F(RunTest, SwitchedOffEverythingRuns) {
  std::vector<EventKind> told;
  auto p = process([&](EngineOptions& o) {
    o.disabled = true;
    o.cache_records = 10;
    o.observer = [&](const Event& event) { told.push_back(event.kind); };
  });
  store->otherwise(Next::fail);  // Nobody asks it.
  int runs = 0;
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = p->run("a", "payload " + std::to_string(i), [&](Context& context) {
      EXPECT_EQ(context.derived_key("card"), derived_key("test#a", "card")) << "a service downstream still compares";
      return std::to_string(++runs);
    });
    EXPECT_EQ(outcome.kind, Outcome::Kind::unprotected);
    EXPECT_EQ(outcome.result.bytes, std::to_string(runs));
  }
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(told, std::vector<EventKind>(2, EventKind::unprotected));
  EXPECT_THAT(store->calls(), ElementsAre());
}

// Claims are for front ends that have no one function to run: HTTP servers, queues, once run.
TEST_F(RunTest, SwitchedOffEveryCallGetsAClaim) {
  auto p = process([&](EngineOptions& o) {
    o.disabled = true;
    o.observer = nullptr;
  });
  ::testing::internal::CaptureStderr();
  auto first = begin(p, "a");
  auto second = begin(p, "a");  // While the first runs.
  ASSERT_EQ(first->kind, Begin::Kind::claimed);
  ASSERT_EQ(second->kind, Begin::Kind::claimed);
  EXPECT_EQ(first->claim.key(), "test#a");
  EXPECT_EQ(second->claim.key(), "test#a");
  EXPECT_EQ(complete(first->claim, "x")->kind, Finish::Kind::recorded);
  EXPECT_EQ(complete(second->claim, "y")->kind, Finish::Kind::recorded);
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::claimed);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << "each time: " << said;
  EXPECT_THAT(said, HasSubstr("once: 'test' runs unprotected, so that it may run twice: ONCE_DISABLED is set"));
  EXPECT_THAT(store->calls(), ElementsAre());
}

// It would wait for itself.
TEST_F(RunTest, WorkThatAsksForItsOwnKeyIsRefusedAtOnce) {
  auto p = process();
  const auto why = [](auto&& ask) -> std::string {
    try {
      ask();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return "nothing was thrown";
  };
  int asked = 0;
  const auto expect_refused = [&] {
    for (const std::optional<Policy>& with : {std::optional<Policy>(waiting()), std::optional<Policy>(policy())}) {
      EXPECT_THAT(why([&] { p->run(request("a", with), [] { ADD_FAILURE() << "ran"; }); }),
                  HasSubstr("wait for itself"));
      EXPECT_THAT(why([&] { static_cast<void>(p->begin(request("a", with))); }), HasSubstr("test#a"));
      EXPECT_THAT(why([&] { begin(p, "a", with); }), HasSubstr("key of its own"));
      ++asked;
    }
  };
  const Outcome outcome = p->run("a", {}, [&] {
    expect_refused();
    EXPECT_EQ(p->run("b", {}, [&] { expect_refused(); }).kind, Outcome::Kind::executed) << "further in";
    return std::string("done");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::executed);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(p->run("a", {}, [] {}).kind, Outcome::Kind::replayed) << "it is over";
  EXPECT_THROW(p->run("c", {}, [&] { p->run("c", {}, [] {}); }), Exception);
  EXPECT_EQ(p->run("c", {}, [] {}).kind, Outcome::Kind::executed) << "released, as for whatever else the work throws";
}

// A thread that waits inside of its work runs completions for others. One of them may ask for the same key without
// waiting on this thread; if it did wait, nobody could go on.
TEST_F(RunTest, ACompletionOnTheThreadOfWorkMayAskForItsKeyByTimer) {
  auto p = process();
  Slot<Begin> asked;
  std::string blocking = "it was let in";
  p->run("a", {}, [&] {
    wait_for<bool>([&](Callback<void(bool)> done) {
      p->begin(request("a", waiting()), asked.fill());
      try {
        static_cast<void>(p->begin(request("a", waiting())));
      } catch (const Exception& error) {
        blocking = error.what();
      }
      done(true);
    });
    EXPECT_FALSE(asked.ready());
    return std::string("done");
  });
  EXPECT_EQ(asked->kind, Begin::Kind::replayed);
  EXPECT_THAT(blocking, HasSubstr("wait for itself"));
}

TEST_F(RunTest, StepsAreResumedAfterATakeover) {
  auto p = process();
  int charged = 0;
  const auto work = [&](Context& context) {
    const std::string charge = context.step("charge", [&] { return "charge " + std::to_string(++charged); });
    if (context.attempt() == 1) throw Declined("the mail server is down");
    context.step("mail", [] {});
    return charge;
  };
  EXPECT_THROW(p->run("a", {}, work), Declined);
  auto other = process();
  const Outcome outcome = other->run("a", {}, work);
  EXPECT_EQ(outcome.value(), "charge 1");
  EXPECT_EQ(charged, 1);
  EXPECT_EQ(outcome.record->steps.size(), 2U);
}

// glibc unwinds its stack, which must reach the end, and nobody knows what the work did.
TEST_F(RunTest, AThreadThatIsEndedInItsWorkLetsTheClaimLapse) {
  auto p = process();
  const std::map<std::string, void (*)()> ends{{"exit", [] { pthread_exit(nullptr); }},
                                               {"cancel", [] {
                                                  pthread_cancel(pthread_self());
                                                  pthread_testcancel();
                                                }}};
  for (const auto& [key, end] : ends) {
    bool unwound = false;
    std::thread([&p, &unwound, &key = key, &end = end] {
      const struct Local {
        ~Local() { unwound = true; }
        bool& unwound;
      } local{unwound};
      p->run(key, {}, [&] { end(); });
    }).join();
    EXPECT_TRUE(unwound);
    EXPECT_EQ(p->run(key, {}, [] {}).kind, Outcome::Kind::conflict) << key << ": it may have acted";
    timers->advance(10s);
    EXPECT_EQ(p->run(key, {}, [] {}).kind, Outcome::Kind::executed) << key << ": its lease was not renewed";
  }
}

TEST_F(RunTest, NoStepStartsAfterTheClaimIsLost) {
  auto p = process();
  bool second = false;
  EXPECT_THROW(p->run("a", {},
                      [&](Context& context) {
                        context.step("one", [] {});
                        displace("a", "");
                        timers->advance(1ms);  // The heartbeat finds out.
                        context.step("two", [&] { second = true; });
                        return std::string("ours");
                      }),
               ClaimLost);
  EXPECT_FALSE(second);
  EXPECT_EQ(stored("a")->owner, taken_.owner()) << "the other's claim is untouched";
}

TEST_F(RunTest, ALossFoundInAStepGivesTheStoredResult) {
  auto p = process();
  const Outcome outcome = p->run("a", {}, [&](Context& context) {
    context.step("one", [&] { displace("a", "theirs"); });
    return std::string("ours");
  });
  EXPECT_EQ(outcome.kind, Outcome::Kind::superseded);
  EXPECT_EQ(outcome.value(), "theirs");
}

TEST_F(RunTest, AClaimWhoseLeaseRanOutIsLeftToLapseNotDeleted) {
  auto p = process();
  Policy hold = policy();
  hold.on_lapse = OnLapse::hold;
  hold.heartbeat = false;
  EXPECT_THROW(p->run(request("a", hold),
                      [&](Context& context) {
                        timers->advance(9s);
                        context.step("one", [] {});
                      }),
               ClaimLost);
  EXPECT_EQ(stored("a")->state, State::in_progress);
  EXPECT_EQ(p.events->count(EventKind::abandoned), 1U);
  EXPECT_EQ(begin(p, "a", hold)->kind, Begin::Kind::unknown);
}

TEST_F(RunTest, SomebodyElsesClaimLostIsAnExceptionLikeOthers) {
  auto p = process();
  EXPECT_THROW(p->run("a", {}, [] { throw ClaimLost(ErrorKind::unavailable, "of another operation", nullptr); }),
               ClaimLost);
  EXPECT_EQ(stored("a"), std::nullopt) << "released, as policy says";
}

TEST_F(RunTest, AnImpossibleResultIsTreatedLikeAnException) {
  auto p = process();
  EXPECT_THROW(p->run("a", {}, [] { return Result::inlined("x", std::string(300, 't')); }), Exception);
  EXPECT_EQ(stored("a"), std::nullopt);
}

// ---- events

TEST_F(RunTest, EveryEventHasItsDuration) {
  auto p = process();
  store->script({Next::stall});
  auto begun = begin(p, "a");
  clock->advance(20ms);
  store->answer_stalled();
  EXPECT_EQ(p.events->last(EventKind::claimed).took, 20ms);
  EXPECT_TRUE(p.events->last(EventKind::claimed).has_record);
  clock->advance(500ms);
  store->script({Next::stall});
  Slot<Finish> step;
  begun->claim.add_step("one", "1", step.fill());
  clock->advance(30ms);
  store->answer_stalled();
  EXPECT_EQ(p.events->last(EventKind::step_recorded).took, 30ms);
  store->script({Next::stall});
  auto finish = complete(begun->claim, "done");
  clock->advance(50ms);
  store->answer_stalled();
  EXPECT_EQ(p.events->last(EventKind::completed).took, 580ms) << "since the claim";
  EXPECT_TRUE(p.events->last(EventKind::completed).has_record);
  auto other = process();
  store->script({Next::stall});
  auto replay = begin(other, "a");
  clock->advance(7ms);
  store->answer_stalled();
  EXPECT_EQ(other.events->last(EventKind::replayed).took, 7ms);
  EXPECT_EQ(other.events->last(EventKind::replayed).key, "test#a");
}

TEST(EventNames, AreAllDifferent) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(EventKind::store_error); ++i) {
    names.insert(to_string(static_cast<EventKind>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(EventKind::store_error) + 1);
  EXPECT_FALSE(names.contains("?"));
}

}  // namespace run_test
}  // namespace once::testing
