// Ending a claim: every finish, lost answers, operators in between, results too large, stores that are down.
#include "engine_test.hpp"

namespace once::testing {
namespace finish_test {

class FinishTest : public EngineTest {
 protected:
  Slot<Finish> step(Claim& claim, std::string name, std::string result) {
    Slot<Finish> slot;
    claim.add_step(std::move(name), std::move(result), slot.fill());
    return slot;
  }
  Slot<Finish> release(Claim& claim, std::string_view reason = "no") {
    Slot<Finish> slot;
    claim.release(reason, slot.fill());
    return slot;
  }
  static Policy quiet() {  // Without heartbeat.
    Policy p = policy();
    p.heartbeat = false;
    return p;
  }
  // Another process takes the lapsed claim over.
  Slot<Begin> take_over(const Process& by, std::string_view key, std::string_view payload = {}) {
    clock->advance(9s);
    auto taken = begin(by, key, quiet(), payload);
    EXPECT_EQ(taken->kind, Begin::Kind::claimed);
    return taken;
  }
};

TEST_F(FinishTest, AReleaseLeavesNothing) {
  auto p = process();
  auto begun = begin(p, "a");
  auto released = release(begun->claim);
  EXPECT_EQ(released->kind, Finish::Kind::recorded);
  EXPECT_EQ(released->record, nullptr);
  EXPECT_EQ(stored("a"), std::nullopt);
  EXPECT_THAT(store->calls(), ElementsAre("insert", "remove"));
  EXPECT_EQ(begin(p, "a")->claim.attempt(), 1U);
}

TEST_F(FinishTest, WorkDoneIsToldBeforeTheFinishIsWritten) {
  auto p = process();
  auto begun = begin(p, "a");
  clock->advance(500ms);
  std::vector<std::string> told_before;
  store->before_next_write([&](Store&) { told_before = p.events->names(); });
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_THAT(told_before, ElementsAre("claimed", "work_done"));
  EXPECT_EQ(p.events->last(EventKind::work_done).took, 500ms) << "since the claim";
  EXPECT_TRUE(p.events->last(EventKind::work_done).has_record);

  // The store ends before it has the finish: only the event shows that the work has acted.
  auto cut_off = begin(p, "b");
  store->script({Next::block});
  auto never = complete(cut_off->claim, "done");
  EXPECT_FALSE(never.ready());
  EXPECT_EQ(stored("b")->state, State::in_progress);
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "work_done", "completed", "claimed", "work_done"));
  store->answer_stalled();

  // A release says that nothing was done.
  auto released = begin(p, "c");
  Slot<Finish> slot;
  released->claim.release("not begun", slot.fill());
  EXPECT_EQ(p.events->names().back(), "released");
  EXPECT_EQ(p.events->count(EventKind::work_done), 2U);
}

TEST_F(FinishTest, UnderAFixedLeaseTheCallerWaitsForFurtherTries) {
  Policy fixed = policy();
  fixed.lease = 30s;
  fixed.fixed_lease = true;
  auto p = process();
  auto begun = begin(p, "a", fixed);
  auto second = begin(p, "b", fixed);
  auto late = begin(p, "c", fixed);
  store->otherwise(Next::fail);
  auto healed = complete(begun->claim, "done");
  timers->advance(1'900ms);
  EXPECT_FALSE(healed.ready()) << "whoever is told now may be frozen";
  store->otherwise(Next::carry_out);
  timers->advance(1s);
  EXPECT_EQ(healed->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->state, State::completed);
  EXPECT_EQ(p.events->count(EventKind::unrecorded), 0U);

  store->otherwise(Next::fail);
  auto down = complete(second->claim, "done");
  timers->advance(1'900ms);
  EXPECT_FALSE(down.ready());
  timers->advance(1'100ms);
  EXPECT_EQ(down->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(p.events->count(EventKind::unrecorded), 1U);

  // Two seconds before the end the half of one is all there is to wait.
  timers->advance(manual_start + 28s - clock->now());
  auto short_one = complete(late->claim, "done");
  timers->advance(400ms);
  EXPECT_FALSE(short_one.ready());
  timers->advance(800ms);  // The try after that half second comes up to 640 ms later.
  EXPECT_EQ(short_one->kind, Finish::Kind::unrecorded);
}

// Otherwise the next caller, who says nothing, would begin an operation that may be taken over.
TEST_F(FinishTest, AReleaseUnderHoldLeavesTheHold) {
  auto p = process();
  Policy held = policy();
  held.on_lapse = OnLapse::hold;
  auto begun = begin(p, "a", held);
  EXPECT_EQ(release(begun->claim, "the card was declined")->kind, Finish::Kind::recorded);
  ASSERT_TRUE(stored("a"));
  EXPECT_TRUE(is_released(*stored("a")));
  auto other = process();
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_EQ(again->claim.attempt(), 2U);
  EXPECT_EQ(stored("a")->on_lapse, OnLapse::hold);
}

// Whoever releases says that others may run. Under `hold` it might have chosen unknown, but it had not seen that yet:
// the stricter wins.
TEST_F(FinishTest, AReleaseThatDidNotKnowOfAnOperatorsHoldIsHeld) {
  for (const bool with_step : {false, true}) {
    const std::string key = with_step ? "with a step" : "without";
    auto p = process();
    auto begun = begin(p, key);
    if (with_step) step(begun->claim, "charge", "17");
    operate(key, [](Record r) {
      r.on_lapse = OnLapse::hold;
      r.expires_at = never;
      r.revision = next_revision(r.revision, 0);
      return r;
    });
    auto finish = release(begun->claim, "exit 1");
    ASSERT_EQ(finish->kind, Finish::Kind::recorded);
    ASSERT_NE(finish->record, nullptr);
    EXPECT_EQ(finish->record->state, State::unknown);
    EXPECT_THAT(p.events->names(), ::testing::Contains("held"));
    EXPECT_THAT(stored(key)->failure.message, HasSubstr("exit 1"));
    EXPECT_EQ(stored(key)->steps.size(), with_step ? 1U : 0U);
    auto other = process();
    EXPECT_EQ(begin(other, key)->kind, Begin::Kind::unknown);
  }
}

TEST_F(FinishTest, AReleaseThatKnewOfAnOperatorsHoldIsARelease) {
  auto p = process();
  auto begun = begin(p, "a");
  operate("a", [](Record r) {
    r.on_lapse = OnLapse::hold;
    r.expires_at = never;
    r.revision = next_revision(r.revision, 0);
    return r;
  });
  timers->advance(3s);
  ASSERT_EQ(begun->claim.record().on_lapse, OnLapse::hold) << "its renewal has adopted it";
  EXPECT_EQ(release(begun->claim, "nothing was sent")->kind, Finish::Kind::recorded);
  EXPECT_TRUE(is_released(*stored("a")));
}

TEST_F(FinishTest, AReleaseWithStepsKeepsThem) {
  auto p = process();
  auto begun = begin(p, "a");
  EXPECT_EQ(step(begun->claim, "charge", "17")->kind, Finish::Kind::recorded);
  EXPECT_EQ(release(begun->claim, "card declined")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->note, "card declined");
  auto other = process();
  auto again = begin(other, "a");
  ASSERT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_EQ(again->claim.attempt(), 2U);
  EXPECT_EQ(again->claim.step("charge"), "17");
}

TEST_F(FinishTest, AHoldIsUnknownToEverybody) {
  auto p = process();
  auto begun = begin(p, "a");
  Slot<Finish> held;
  begun->claim.hold("the line went dead", held.fill());
  EXPECT_EQ(held->kind, Finish::Kind::recorded);
  auto again = begin(p, "a");
  ASSERT_EQ(again->kind, Begin::Kind::unknown);
  EXPECT_EQ(again->record->failure.message, "the line went dead");
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "work_done", "held", "unknown"));
}

TEST_F(FinishTest, EveryLostAnswerIsFoundByOwnerAndRevision) {
  for (const Next fault : {Next::lose, Next::drop, Next::late}) {
    const std::string key = "a" + std::to_string(static_cast<int>(fault));
    auto p = process();
    auto begun = begin(p, key);
    store->script({fault});
    auto first = step(begun->claim, "one", "1");
    timers->advance(100ms);
    EXPECT_EQ(first->kind, Finish::Kind::recorded);
    store->script({fault});
    begun->claim.heartbeat("half way");
    timers->advance(100ms);
    EXPECT_EQ(stored(key)->note, "half way");
    store->script({fault});
    auto finish = complete(begun->claim, "done");
    timers->advance(100ms);
    store->land();
    ASSERT_EQ(finish->kind, Finish::Kind::recorded);
    EXPECT_EQ(stored(key)->result.bytes, "done");
    EXPECT_EQ(stored(key)->steps.size(), 1U);
    EXPECT_EQ(p.events->count(EventKind::completed), 1U);
    EXPECT_EQ(p.events->count(EventKind::step_recorded), 1U);
  }
}

TEST_F(FinishTest, ALostReleaseIsFound) {
  for (const Next fault : {Next::lose, Next::drop}) {
    auto p = process();
    auto begun = begin(p, "a");
    store->script({fault});
    auto finish = release(begun->claim);
    timers->advance(100ms);
    EXPECT_EQ(finish->kind, Finish::Kind::recorded);
    EXPECT_EQ(stored("a"), std::nullopt);
  }
}

TEST_F(FinishTest, AFinishAfterATakeoverIsLostAndLaterSuperseded) {
  auto p = process();
  auto late = begin(p, "a", quiet());
  auto later = begin(p, "b", quiet());
  auto other = process();
  auto taken = take_over(other, "a");
  auto finish = complete(late->claim, "late");
  ASSERT_EQ(finish->kind, Finish::Kind::lost);
  EXPECT_EQ(finish->record->owner, taken->claim.owner());
  auto taken_b = begin(other, "b", quiet());
  complete(taken_b->claim, "in time");
  auto superseded = complete(later->claim, "late");
  ASSERT_EQ(superseded->kind, Finish::Kind::superseded);
  EXPECT_EQ(superseded->record->result.bytes, "in time");
  EXPECT_EQ(stored("b")->result.bytes, "in time");
  EXPECT_EQ(p.events->count(EventKind::finish_refused), 2U);
  EXPECT_EQ(p.events->count(EventKind::completed), 0U);
}

TEST_F(FinishTest, AnotherPayloadsResultSupersedesNothing) {
  auto p = process();
  Policy brief = quiet();
  brief.retention = 1ms;
  auto late = begin(p, "a", brief, "payload 1");
  auto other = process();
  auto taken = take_over(other, "a", "payload 2");  // The first claim has expired with its lease.
  complete(taken->claim, "of payload 2");
  auto finish = complete(late->claim, "of payload 1");
  EXPECT_EQ(finish->kind, Finish::Kind::lost);
  EXPECT_EQ(stored("a")->result.bytes, "of payload 2");
}

TEST_F(FinishTest, AnOperatorsProlongationIsAdopted) {
  auto p = process();
  auto begun = begin(p, "a");
  operate("a", [](Record r) {
    r.lease_until += 1h;
    r.revision = next_revision(r.revision, 0);
    return r;
  });
  timers->advance(3s);
  EXPECT_EQ(p.events->count(EventKind::renewed), 1U);
  EXPECT_GE(stored("a")->lease_until, manual_start + 1h) << "a heartbeat does not take it back";
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(FinishTest, AnOperatorsResolutionIsNotTakenForOurFinish) {
  auto p = process();
  auto begun = begin(p, "a");
  // The same owner, state and revision as the finish would have had.
  store->script({Next::drop});
  auto finish = complete(begun->claim, "by the work");
  operate("a", [](Record r) {
    once::complete(r, Result::inlined("by hand"), effective(policy()), Stamp(manual_start, 0));
    return r;
  });
  timers->advance(100ms);
  ASSERT_EQ(finish->kind, Finish::Kind::superseded);
  EXPECT_EQ(finish->record->result.bytes, "by hand");
}

TEST_F(FinishTest, AFinishThatLandedIsOursThoughAnOperatorChangedItSince) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::lose});
  auto finish = complete(begun->claim, "done");
  operate("a", [](Record r) {
    r.expires_at += 1h;
    r.revision += 1;
    return r;
  });
  timers->advance(100ms);
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
}

TEST_F(FinishTest, AnOperatorsReleaseEndsTheClaim) {
  auto p = process();
  auto begun = begin(p, "a");
  const std::stop_token stop = begun->claim.stop_token();
  operate("a", [](Record r) {
    once::release(r, "by hand", effective(policy()), Stamp(manual_start, 0));
    return r;
  });
  timers->advance(3s);  // The heartbeat finds out.
  EXPECT_TRUE(stop.stop_requested());
  EXPECT_EQ(p.events->count(EventKind::renewal_lost), 1U);
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::lost);
  EXPECT_EQ(begin(p, "a")->claim.attempt(), 2U);
}

TEST_F(FinishTest, ARecordThatIsGoneIsLost) {
  auto p = process();
  auto begun = begin(p, "a");
  const Record record = *stored("a");
  blocking::remove(store->inner(), record.key, {record.owner, record.revision, 0});
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::lost);
  EXPECT_EQ(stored("a"), std::nullopt) << "no unconditional write";
}

TEST_F(FinishTest, AFinishThatCannotBeWrittenIsUnrecordedAndWrittenLater) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::fail);
  auto finish = complete(begun->claim, "done");
  timers->advance(1s);
  ASSERT_EQ(finish->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(finish->error.kind, ErrorKind::unavailable);
  EXPECT_EQ(p.events->count(EventKind::unrecorded), 1U);
  store->otherwise(Next::carry_out);
  timers->advance(2s);
  EXPECT_EQ(stored("a")->result.bytes, "done");
  EXPECT_EQ(p.events->count(EventKind::completed), 1U);
  EXPECT_EQ(timers->pending(), 0U);
}

TEST_F(FinishTest, AnUnrecordedFinishIsTriedAsLongAsTheLeaseLives) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::drop);
  auto finish = complete(begun->claim, "done");
  timers->advance(1min);
  EXPECT_EQ(finish->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(p.events->count(EventKind::unrecorded), 1U) << "told once";
  const std::size_t calls = store->calls().size();
  store->otherwise(Next::carry_out);
  timers->advance(1min);
  EXPECT_EQ(store->calls().size(), calls);
  EXPECT_EQ(stored("a")->state, State::in_progress);
}

TEST_F(FinishTest, AResultIsNotDroppedForWhatSomebodyMayPutRight) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::denied);
  auto step_one = step(begun->claim, "one", "1");
  EXPECT_EQ(step_one->error.kind, ErrorKind::misuse);
  EXPECT_EQ(begun->claim.step("one"), "1") << "kept in this process";
  auto finish = complete(begun->claim, "done");
  timers->advance(1s);
  ASSERT_EQ(finish->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(finish->error.kind, ErrorKind::misuse);
  store->otherwise(Next::carry_out);
  timers->advance(2s);
  EXPECT_EQ(stored("a")->result, Result::inlined("done"));
  EXPECT_EQ(stored("a")->steps.size(), 1U);
}

TEST_F(FinishTest, AStepThatCannotBeWrittenGoesWithTheNextWrite) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::fail);
  auto unwritten = step(begun->claim, "one", "1");
  timers->advance(1s);
  EXPECT_EQ(unwritten->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(begun->claim.step("one"), "1") << "kept in this process";
  store->otherwise(Next::carry_out);
  EXPECT_EQ(step(begun->claim, "two", "2")->kind, Finish::Kind::recorded);
  ASSERT_EQ(stored("a")->steps.size(), 2U);
  EXPECT_EQ(stored("a")->steps[0].name, "one");
}

TEST_F(FinishTest, StepsMadeDuringAWriteAreWrittenOneByOne) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::stall});
  auto one = step(begun->claim, "one", "1");
  auto two = step(begun->claim, "two", "2");
  EXPECT_EQ(stored("a")->steps.size(), 1U);
  store->answer_stalled();
  EXPECT_EQ(one->kind, Finish::Kind::recorded);
  EXPECT_EQ(two->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->steps.size(), 2U);
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

// A step must leave enough room for all later texts of the record, or no caller could end it.
TEST_F(FinishTest, AStepThatLeavesNoRoomToEndTheRecordIsRefused) {
  store->max_record_bytes = 16 * 1024;
  bool kept = false;
  bool refused = false;
  for (std::size_t room = 0; room < 12'000; room += room < 200 ? 20 : 500) {
    for (const OnLapse on_lapse : {OnLapse::hold, OnLapse::takeover}) {
      const std::string key = std::to_string(room) + std::string(to_string(on_lapse));
      auto p = process();
      Policy with = quiet();
      with.on_lapse = on_lapse;
      auto begun = begin(p, key, with);
      const std::size_t taken = record_bytes(*stored(key)) + 1;
      auto big = step(begun->claim, "1", std::string(16 * 1024 - taken - room, 'x'));
      (big->kind == Finish::Kind::recorded ? kept : refused) = true;
      if (big->kind != Finish::Kind::recorded) {
        EXPECT_EQ(big->error.kind, ErrorKind::misuse);
        EXPECT_EQ(begun->claim.step("1"), std::nullopt) << "not kept at all";
        EXPECT_EQ(step(begun->claim, "2", "small")->kind, Finish::Kind::recorded);
      }
      begun->claim.heartbeat(std::string(Record::max_text_bytes, 'n'));
      EXPECT_EQ(stored(key)->note.size(), Record::max_text_bytes);
      begun->claim = Claim();
      for (int i = 0; i < 2; ++i) {  // Each leaves its name in the record.
        clock->advance(9s);
        auto other = process([](EngineOptions& o) { o.holder = std::string(Record::max_text_bytes, 'h'); });
        auto next = begin(other, key, with);
        EXPECT_EQ(next->kind, on_lapse == OnLapse::hold ? Begin::Kind::unknown : Begin::Kind::claimed)
            << room << " bytes left: " << next->error.message;
      }
      auto last = process();
      clock->advance(9s);
      Policy hold = with;
      hold.on_lapse = OnLapse::hold;
      EXPECT_EQ(begin(last, key, hold)->kind, Begin::Kind::unknown) << room << " bytes left";
      EXPECT_FALSE(stored(key)->steps.empty());
    }
  }
  EXPECT_TRUE(kept);
  EXPECT_TRUE(refused);
}

// A long history of long texts: the record stays writable by everyone, at the history's cost alone.
TEST_F(FinishTest, AHistoryNeverMakesItsRecordUnwritable) {
  store->max_record_bytes = 20 * 1024;
  const auto wordy = [](EngineOptions& o) { o.holder = std::string(Record::max_text_bytes, 'h'); };
  const auto total = [](const Record& record) { return record.history.entries.size() + record.history.dropped; };
  auto p = process(wordy);
  auto begun = begin(p, "a", quiet());
  begun->claim.heartbeat(std::string(Record::max_text_bytes, 'n'));
  for (std::uint32_t attempt = 2; attempt <= 20; ++attempt) {
    auto other = process(wordy);
    begun = take_over(other, "a");
    begun->claim.heartbeat(std::string(Record::max_text_bytes, 'n'));
    ASSERT_EQ(total(*stored("a")), attempt - 1);
    EXPECT_EQ(stored("a")->history.entries.back().attempt, attempt - 1);
  }
  EXPECT_EQ(stored("a")->history.entries.size(), History::max_entries);

  // Steps, as large as without a history, then a takeover, a release and a result.
  EXPECT_EQ(step(begun->claim, "1", std::string(8'000, 's'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(step(begun->claim, "2", std::string(3'000, 's'))->kind, Finish::Kind::recorded);
  EXPECT_LT(stored("a")->history.entries.size(), History::max_entries);
  EXPECT_EQ(total(*stored("a")), 19U);
  auto last = process(wordy);
  begun = take_over(last, "a");
  EXPECT_EQ(total(*stored("a")), 20U);
  EXPECT_EQ(release(begun->claim, std::string(Record::max_text_bytes, 'r'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(total(*stored("a")), 21U);
  EXPECT_EQ(stored("a")->history.entries.back().what, "released");
  begun = begin(last, "a", quiet());
  EXPECT_EQ(total(*stored("a")), 21U) << "it is written down once";
  EXPECT_EQ(stored("a")->steps.size(), 2U);
  EXPECT_EQ(complete(begun->claim, std::string(9'000, 'x'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.bytes.size(), 9'000U);
  EXPECT_EQ(total(*stored("a")), 21U);
}

// The answer to a takeover is lost, before or after it was written: one entry, in one record.
TEST_F(FinishTest, ATakeoverWhoseAnswerIsLostIsWrittenDownOnce) {
  for (const Next lost : {Next::lose, Next::drop}) {
    const std::string key = "k" + std::to_string(static_cast<int>(lost));
    auto p = process();
    auto abandoned = begin(p, key, quiet());
    auto other = process();
    clock->advance(9s);
    store->script({Next::carry_out, lost});
    auto taken = begin(other, key, quiet());
    while (!taken.ready() && timers->run_next()) {
    }
    ASSERT_EQ(taken->kind, Begin::Kind::claimed);
    ASSERT_EQ(stored(key)->history.entries.size(), 1U);
    EXPECT_EQ(stored(key)->history.entries[0].attempt, 1U);
  }
}

TEST_F(FinishTest, AStepTooLargeTakesNoOtherDownWithIt) {
  store->max_record_bytes = 16 * 1024;
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::stall});
  auto small = step(begun->claim, "small", "1");
  auto large = step(begun->claim, "large", std::string(16 * 1024, 'x'));
  auto next = step(begun->claim, "next", "2");
  store->answer_stalled();
  EXPECT_EQ(small->kind, Finish::Kind::recorded);
  ASSERT_EQ(large->kind, Finish::Kind::unrecorded);
  EXPECT_EQ(large->error.kind, ErrorKind::misuse);
  EXPECT_EQ(next->kind, Finish::Kind::recorded);
  EXPECT_EQ(begun->claim.step("large"), std::nullopt);
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
}

TEST_F(FinishTest, MisuseIsRefusedByName) {
  auto p = process();
  auto begun = begin(p, "a");
  const auto refusal = [&](auto act) -> std::string {
    try {
      act();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return error.what();
    }
    return {};
  };
  step(begun->claim, "one", "1");
  EXPECT_THAT(refusal([&] { step(begun->claim, "one", "again"); }), HasSubstr("'one'"));
  EXPECT_THAT(refusal([&] { step(begun->claim, "", "x"); }), HasSubstr("1 to 255"));
  EXPECT_THAT(refusal([&] { step(begun->claim, std::string(256, 'n'), "x"); }), HasSubstr("256"));
  EXPECT_THAT(refusal([&] { begun->claim.complete(Result::inlined("x", std::string(300, 't'))); }),
              HasSubstr("content type"));
  complete(begun->claim, "done");
  EXPECT_THAT(refusal([&] { complete(begun->claim, "done"); }), HasSubstr("finished already"));
  EXPECT_THAT(refusal([&] { release(begun->claim); }), HasSubstr("finished already"));
  EXPECT_THAT(refusal([&] { step(begun->claim, "two", "2"); }), HasSubstr("after the finish"));
  EXPECT_EQ(stored("a")->result.bytes, "done");
}

TEST_F(FinishTest, AForgottenClaimLapses) {
  auto p = process();
  begin(p, "a")->claim = Claim();
  EXPECT_THAT(p.events->names(), ElementsAre("claimed", "abandoned"));
  timers->advance(8s);
  EXPECT_THAT(store->calls(), ElementsAre("insert")) << "no heartbeat, and nothing is deleted";
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::conflict);
  timers->advance(1s);
  auto again = begin(p, "a");
  EXPECT_EQ(again->kind, Begin::Kind::claimed);
  EXPECT_EQ(again->claim.attempt(), 2U);
}

TEST_F(FinishTest, AForgottenClaimIsNotRenewedByARenewalThatWaits) {
  auto p = process();
  auto begun = begin(p, "a");
  store->otherwise(Next::fail);
  timers->advance(3s);
  begun->claim = Claim();
  store->otherwise(Next::carry_out);
  timers->advance(6s);
  EXPECT_EQ(stored("a")->lease_until, manual_start + 9s);
}

TEST_F(FinishTest, TheHandleMayGoWhileAFinishIsUnderWay) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::stall});
  auto finish = complete(begun->claim, "done");
  begun->claim = Claim();
  store->answer_stalled();
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(p.events->count(EventKind::abandoned), 0U);
}

// ---- results too large

TEST_F(FinishTest, WithoutAnOffloadAResultTooLargeIsDroppedAndNeverRunAgain) {
  auto p = process();
  Policy small = policy();
  small.max_inline_bytes = 10;
  auto begun = begin(p, "a", small);
  EXPECT_EQ(complete(begun->claim, std::string(11, 'x'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
  EXPECT_EQ(stored("a")->result.size, 11U);
  bool ran = false;
  const Outcome outcome = p->run("a", {}, [&] {
    ran = true;
    return std::string("again");
  });
  EXPECT_FALSE(ran);
  EXPECT_THROW(static_cast<void>(outcome.value()), ResultDropped);
}

TEST_F(FinishTest, AStoreThatRefusesTheSizeGetsTheResultWithoutItsBytes) {
  auto p = process();
  auto begun = begin(p, "a");
  store->script({Next::bad});
  EXPECT_EQ(complete(begun->claim, "too large for it")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.placement, Placement::dropped);
  EXPECT_EQ(p.events->count(EventKind::store_error), 1U);
}

TEST_F(FinishTest, StepsGiveWayToAResult) {
  store->max_record_bytes = 18'000;
  auto p = process();
  auto begun = begin(p, "a");
  EXPECT_EQ(step(begun->claim, "one", std::string(9'000, 's'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(complete(begun->claim, std::string(10'000, 'x'))->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->result.bytes.size(), 10'000U);
  EXPECT_TRUE(stored("a")->steps.empty());
}

}  // namespace finish_test
}  // namespace once::testing
