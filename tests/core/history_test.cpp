// What is written down in a record's history, when, and how much of it stays.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include <once/decide.hpp>
#include <once/store.hpp>
#include <once/testing/records.hpp>

namespace once {
namespace history_test {

constexpr Time start = testing::manual_start;
constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

Stamp after(Millis since) { return {start + since, 0}; }

EffectivePolicy policy() {
  EffectivePolicy policy;
  policy.lease = Millis{1'000};
  return policy;
}

Record claim_by(const std::string& holder, Stamp stamp, const Record* seen = nullptr,
                Verdict verdict = Verdict::take_over) {
  const Attempt attempt{.key = "s#k", .owner = testing::owner_of(1), .fingerprint = {}, .holder = holder};
  return claimed(attempt, policy(), stamp, seen, seen == nullptr ? Verdict::execute : verdict);
}

void expect_entries(const Record& record, const std::vector<HistoryEntry>& expected) {
  Record other = record;
  other.history.entries = expected;
  EXPECT_EQ(testing::differences(other, record), "");
}

TEST(History, an_attempt_that_completes_writes_nothing) {
  Record record = claim_by("one", after(Millis{0}));
  renew(record, policy(), after(Millis{300}));
  add_step(record, {"charge", "done"}, policy(), after(Millis{400}));
  complete(record, Result::inlined("receipt"), policy(), after(Millis{500}));
  EXPECT_EQ(record.history, History{});
}

TEST(History, a_takeover_says_when_the_lease_lapsed_and_how_far_it_was) {
  Record record = claim_by("one", after(Millis{0}));
  record.note = "3 of 10 files";
  record = claim_by("two", after(Millis{5'000}), &record);
  expect_entries(record, {{"lapsed", "one", "3 of 10 files", 1, start, start + Millis{1'000}}});
  record = claim_by("three", after(Millis{9'000}), &record);
  expect_entries(record, {{"lapsed", "one", "3 of 10 files", 1, start, start + Millis{1'000}},
                          {"lapsed", "two", "", 2, start + Millis{5'000}, start + Millis{6'000}}});
  // A lapse that makes the record unknown is written down at once, and only then.
  mark_lapsed(record, after(Millis{20'000}));
  ASSERT_EQ(record.history.entries.size(), 3U);
  EXPECT_EQ(record.history.entries[2],
            (HistoryEntry{"lapsed", "three", "", 3, start + Millis{9'000}, start + Millis{10'000}}));
  EXPECT_EQ(record.failure.message, "the lease of three expired before it finished");
  append_attempt(record.history, record, start + Millis{30'000});
  EXPECT_EQ(record.history.entries.size(), 3U);
}

TEST(History, what_an_operator_noted_is_not_the_holders_reason) {
  Record record = claim_by("one", after(Millis{0}));
  append(record.history, {.what = "lease extended", .who = "bob", .why = "wait", .at = start});
  for (const auto& [note, why] : {std::pair("lease extended by bob: wait", ""), std::pair("4 of 10", "4 of 10")}) {
    record.note = note;
    EXPECT_EQ(claim_by("two", after(Millis{5'000}), &record).history.entries.at(1).why, why);
  }
}

TEST(History, a_release_is_written_down_when_it_happens_and_once) {
  Record record = claim_by("one", after(Millis{0}));
  release(record, "the service is closed", policy(), after(Millis{700}));
  const HistoryEntry released{"released", "one", "the service is closed", 1, start, start + Millis{700}};
  expect_entries(record, {released});
  record = claim_by("two", after(Millis{90'000}), &record);
  expect_entries(record, {released});
}

TEST(History, a_retry_keeps_the_failure_that_it_replaces) {
  Record record = claim_by("one", after(Millis{0}));
  fail(record, {.code = "declined", .message = "no money"}, {}, policy(), after(Millis{700}));
  EXPECT_EQ(record.history, History{});
  const Record again = claim_by("two", after(Millis{800}), &record, Verdict::retry);
  expect_entries(again, {{"failed", "one", "declined: no money", 1, start, start + Millis{700}}});
  record.failure = {.code = "declined", .message = ""};
  EXPECT_EQ(claim_by("two", after(Millis{800}), &record, Verdict::retry).history.entries[0].why, "declined");
}

TEST(History, a_claim_over_an_expired_record_begins_anew) {
  Record record = claim_by("one", after(Millis{0}));
  release(record, "x", policy(), after(Millis{1}));
  EXPECT_EQ(claim_by("two", after(Millis{5}), &record, Verdict::execute).history, History{});
}

// What an operator's change writes over.
TEST(History, each_state_tells_how_its_attempt_ended) {
  const Record live = claim_by("one", after(Millis{0}));
  const auto told = [](const Record& record, Millis now) {
    History history;
    append_attempt(history, record, start + now);
    return history.entries.at(0);
  };
  EXPECT_EQ(told(live, Millis{999}), (HistoryEntry{"displaced", "one", "", 1, start, start + Millis{999}}));
  EXPECT_EQ(told(live, Millis{1'000}), (HistoryEntry{"lapsed", "one", "", 1, start, start + Millis{1'000}}));
  Record done = live;
  complete(done, {}, policy(), after(Millis{500}));
  EXPECT_EQ(told(done, Millis{900}), (HistoryEntry{"completed", "one", "", 1, start, start + Millis{500}}));
  Record held = live;
  mark_unknown(held, "no answer", after(Millis{500}));
  EXPECT_EQ(told(held, Millis{900}), (HistoryEntry{"unknown", "one", "no answer", 1, start, start + Millis{500}}));
}

TEST(History, when_an_attempt_began_is_told_by_its_token_or_not_known) {
  Record record = claim_by("one", after(Millis{0}));
  record.attempt = 2;
  const auto began = [](const Record& seen) {
    History history;
    append_attempt(history, seen, start + Millis{60'000});
    return history.entries.at(0).began_at;
  };
  record.token = static_cast<std::uint64_t>(unix_ms(start + Millis{20}));
  EXPECT_EQ(began(record), start + Millis{20});
  for (const std::uint64_t no_time : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{INT64_MAX}}) {
    record.token = no_time;
    EXPECT_EQ(began(record), Time{}) << no_time;
  }
  record.attempt = 1;
  EXPECT_EQ(began(record), record.created_at);
}

TEST(History, texts_are_cut_between_characters) {
  History history;
  const std::string euros = [] {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "\xE2\x82\xAC";  // Three bytes each.
    return text;
  }();
  append(history, {.what = euros, .who = "\xFF", .why = std::string(1'000, 'x')});
  EXPECT_EQ(history.entries[0].what, euros.substr(0, 255));
  EXPECT_EQ(history.entries[0].who, "\xEF\xBF\xBD");
  EXPECT_EQ(history.entries[0].why, std::string(HistoryEntry::max_text_bytes, 'x'));
}

TraceParent span(std::uint8_t byte) {
  TraceParent span{.sampled = true};
  span.trace_id.fill(byte);
  span.span_id.fill(byte);
  return span;
}

// 1. "one" is traced and lapses. 2. "two" takes over without a trace, and fails. 3. "three" tries again, traced.
TEST(History, keeps_the_span_of_each_attempt) {
  Attempt attempt{.key = "s#k", .owner = testing::owner_of(1), .fingerprint = {}, .holder = "one"};
  const auto claim = [&](const Record* seen, Verdict verdict, std::uint8_t byte) {
    auto trace = std::make_shared<CallTrace>();
    trace->work = span(byte);
    attempt.trace = byte == 0 ? nullptr : trace;
    return claimed(attempt, policy(), after(Millis{5'000}), seen, verdict);
  };
  Record record = claim(nullptr, Verdict::execute, 1);
  EXPECT_EQ(record.history, (History{.trace = span(1)}));
  record = claim(&record, Verdict::take_over, 0);
  EXPECT_EQ(record.history.trace, TraceParent());
  ASSERT_EQ(record.history.entries.size(), 1U);
  EXPECT_EQ(record.history.entries[0].trace, span(1));
  fail(record, {.code = "declined"}, {}, policy(), after(Millis{5'500}));
  record = claim(&record, Verdict::retry, 3);
  EXPECT_EQ(record.history.trace, span(3));
  ASSERT_EQ(record.history.entries.size(), 2U);
  EXPECT_EQ(record.history.entries[1].trace, TraceParent());
  EXPECT_EQ(claim(&record, Verdict::execute, 4).history, (History{.trace = span(4)})) << "after it expired";
  EXPECT_EQ(history_from_text(history_text(record.history)), record.history);
}

// A program that does not know of traces finds entries in the text, and nothing else changes.
TEST(History, writes_spans_so_that_older_programs_can_read_it) {
  History history{.entries = {{.what = "lapsed", .who = "one", .attempt = 1, .at = start}}, .dropped = 2};
  const std::string without = history_text(history);
  const std::string entry = "5:trace,55:00-02020202020202020202020202020202-0202020202020202-01,0:,1:0,1:0,1:0,";
  ASSERT_LE(entry.size(), History::trace_bytes);
  history.entries[0].trace = span(2);
  EXPECT_EQ(history_text(history), without + entry);
  history.entries[0].trace = {};
  history.trace = span(2);
  EXPECT_EQ(history_text(history), "1:2," + entry + without.substr(4));
  EXPECT_EQ(history_from_text(history_text(history)), history);
  // An operator's act of that name is no span.
  const History act{.entries = {{.what = "trace", .who = span(2).text(), .at = start}}};
  EXPECT_EQ(history_from_text(history_text(act)), act);
}

// An operator's act over `seen`, as once::operate writes them.
Record acted(const Record& seen, std::uint32_t random) {
  Record next = seen;
  next.revision = next_revision(seen.revision, random);
  append(next.history, {.what = "lease extended", .who = "bob", .revision = next.revision, .replaced = seen.revision},
         unseen_acts(seen) + 1);
  return next;
}

TEST(History, WritesRevisionsOfActsForOlderReaders) {
  History history{.entries = {{.what = "lease extended", .who = "bob", .why = "slow", .at = start}}};
  const std::string without = history_text(history);
  EXPECT_EQ(history_from_text(without), history) << "an act of an earlier version";
  history.entries[0].revision = 3145733;
  history.entries[0].replaced = 2097159;
  const std::string entry = "8:revision,7:3145733,7:2097159,1:0,1:0,1:0,";
  EXPECT_EQ(history_text(history), without + entry);
  EXPECT_EQ(history_from_text(history_text(history)), history);
  EXPECT_EQ(history_from_text("1:0," + entry)->entries.size(), 1U) << "no act is before it";
  // An act of that name is not taken for the revisions of the one before it.
  history.entries.push_back({.what = "revision", .who = "7", .why = "8", .at = start});
  EXPECT_EQ(history_from_text(history_text(history)), history);
  history.entries[1].at = Time{};
  history.entries[1].who = "seven";
  EXPECT_EQ(history_from_text(history_text(history)), history);
}

TEST(History, LeadsBackOverActsAlone) {
  const Record claim = claim_by("one", after(Millis{0}));
  Record record = claim;
  EXPECT_TRUE(leads_back(record, claim.revision));
  record = acted(acted(record, 5), 6);
  EXPECT_TRUE(leads_back(record, claim.revision));
  EXPECT_TRUE(leads_back(record, record.revision));
  EXPECT_FALSE(leads_back(record, claim.revision + 1));
  // The holder's next write is a new beginning.
  const Record seen = record;
  renew(record, policy(), {start, 9});
  EXPECT_FALSE(leads_back(record, seen.revision));
  EXPECT_EQ(unseen_acts(record), 0U);
  record = acted(record, 10);
  EXPECT_FALSE(leads_back(record, seen.revision));
  EXPECT_FALSE(leads_back(record, claim.revision)) << "a write that is no act stands between the acts";
  record.history.entries.back().revision = 0;
  EXPECT_FALSE(leads_back(record, seen.revision)) << "an act without a revision";
  record.history.entries.back() = {.revision = record.revision, .replaced = record.revision};
  EXPECT_FALSE(leads_back(record, seen.revision)) << "and it comes to an end";
}

TEST(History, KeepsActsThatTheHolderHasNotSeen) {
  Record record = claim_by("one", after(Millis{0}));
  for (int i = 0; i < 16; ++i) append(record.history, {.what = "lapsed", .why = std::string(256, 'x'), .attempt = 1});
  const Record claim = record;
  for (std::uint32_t i = 1; i <= 30; ++i) record = acted(record, i);
  EXPECT_EQ(unseen_acts(record), 30U);
  EXPECT_EQ(record.history.entries.size(), 30U);
  EXPECT_EQ(record.history.dropped, 16U);
  EXPECT_TRUE(leads_back(record, claim.revision));
  Record small = record;
  shorten(small, 0);
  EXPECT_EQ(small.history, record.history);
  // The holder has seen them when it writes. Then they give way as others do.
  renew(record, policy(), {start, 9});
  append(record.history, {.what = "something"});
  EXPECT_EQ(record.history.entries.size(), History::max_entries);
  // So they do when the claim has ended.
  complete(small, {}, policy(), after(Millis{1}));
  EXPECT_EQ(unseen_acts(small), 0U);
}

TEST(History, the_oldest_entries_fall_out_and_are_counted) {
  History history;
  for (std::uint32_t i = 1; i <= 20; ++i) append(history, {.what = std::to_string(i)});
  EXPECT_EQ(history.entries.size(), History::max_entries);
  EXPECT_EQ(history.entries.front().what, "5");
  EXPECT_EQ(history.entries.back().what, "20");
  EXPECT_EQ(history.dropped, 4U);
  history.dropped = std::numeric_limits<std::uint32_t>::max();
  append(history, {});
  EXPECT_EQ(history.dropped, std::numeric_limits<std::uint32_t>::max()) << "it must not begin at 0 again";
}

TEST(History, gives_way_so_that_its_record_can_be_written_and_ended) {
  Record record = claim_by("one", after(Millis{0}));
  for (int i = 0; i < 16; ++i) append(record.history, {.what = "lapsed", .why = std::string(256, 'x')});
  Record same = record;
  shorten(same, no_limit);
  EXPECT_EQ(same, record);
  shorten(same, record_bytes(record) + room_to_end(record));
  EXPECT_EQ(same, record);
  shorten(same, record_bytes(record) + room_to_end(record) - 1);
  EXPECT_EQ(same.history.entries.size(), 15U);
  EXPECT_EQ(same.history.dropped, 1U);
  shorten(same, 0);
  EXPECT_EQ(same.history, (History{.entries = {}, .dropped = 16}));

  // The input goes before any of it.
  same = record;
  same.input.assign(1000, 'i');
  same.input_bytes = 1000;
  shorten(same, record_bytes(record) + room_to_end(record) + 400);
  EXPECT_EQ(same.input.size(), 400U);
  EXPECT_EQ(same.input_bytes, 1000U) << "how much there was";
  EXPECT_EQ(same.history, record.history);
  shorten(same, record_bytes(record) + room_to_end(record) - 1);
  EXPECT_EQ(same.input, "");
  EXPECT_EQ(same.input_bytes, 1000U);
  EXPECT_EQ(same.history.entries.size(), 15U);

  complete(record, {}, policy(), after(Millis{1}));
  const std::size_t bytes = record_bytes(record);
  shorten(record, bytes);
  EXPECT_EQ(record.history.entries.size(), 16U) << "one that has ended needs no more room";
  shorten(record, bytes - 1);
  EXPECT_EQ(record.history.entries.size(), 15U);
}

}  // namespace history_test
}  // namespace once
