#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/store.hpp>
#include <once/testing/records.hpp>

namespace once {
namespace record_test {

TEST(Record, states_and_kinds_have_names) {
  for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
    EXPECT_EQ(state_from_string(to_string(state)), state);
  }
  EXPECT_EQ(to_string(State::in_progress), "in_progress");
  for (const std::string_view word : {"", "expired", "Completed", "completed ", "?"}) {
    EXPECT_FALSE(state_from_string(word)) << word;
  }
  EXPECT_EQ(to_string(ErrorKind::unavailable), "unavailable");
  EXPECT_EQ(to_string(ErrorKind::in_doubt), "in_doubt");
  EXPECT_EQ(to_string(ErrorKind::corrupt), "corrupt");
  EXPECT_EQ(to_string(ErrorKind::misuse), "misuse");
}

TEST(Record, stored_numbers_of_states_are_fixed) {
  EXPECT_EQ(static_cast<int>(State::in_progress), 0);
  EXPECT_EQ(static_cast<int>(State::completed), 1);
  EXPECT_EQ(static_cast<int>(State::failed), 2);
  EXPECT_EQ(static_cast<int>(State::unknown), 3);
}

TEST(Owner, hex_there_and_back) {
  testing::SeededRandom random(1);
  for (int i = 0; i < 1000; ++i) {
    Owner owner;
    random.fill(owner.bytes);
    EXPECT_EQ(owner.hex().size(), 32U);
    EXPECT_EQ(Owner::from_hex(owner.hex()), owner);
  }
  EXPECT_EQ(Owner::from_hex("000102030405060708090a0B0C0D0E0F")->hex(), "000102030405060708090a0b0c0d0e0f");
  for (const std::string_view text :
       {"", "00", "000102030405060708090a0b0c0d0e0", "000102030405060708090a0b0c0d0e0f0",
        "000102030405060708090a0b0c0d0e0g", " 00102030405060708090a0b0c0d0e0f", "0x0102030405060708090a0b0c0d0e0f"}) {
    EXPECT_FALSE(Owner::from_hex(text)) << text;
  }
}

TEST(Record, bytes_are_counted_as_documented) {
  EXPECT_EQ(record_bytes(Record{}), 256U);
  Record record = testing::full_record("key");
  std::size_t expected = 256 + 3 + record.holder.size() + record.note.size();
  expected += record.label.size() + record.input.size();
  for (const HistoryEntry& entry : record.history.entries) {
    expected += 64 + entry.what.size() + entry.who.size() + entry.why.size() + (entry.trace.empty() ? 0U : 96U);
  }
  expected += 96;  // The trace of its attempt.
  for (const Step& step : record.steps) expected += step.name.size() + step.result.size();
  expected += record.result.bytes.size() + record.result.content_type.size();
  expected += record.failure.code.size() + record.failure.message.size();
  EXPECT_EQ(record_bytes(record), expected);
  record.result.location = "1234";
  EXPECT_EQ(record_bytes(record), expected + 4);
}

TEST(Record, never_does_not_expire) {
  EXPECT_FALSE(is_expired(never, never));
  EXPECT_FALSE(is_expired(never, Time{}));
  EXPECT_TRUE(is_expired(never - Millis{1}, never));
  EXPECT_TRUE(is_expired(Time{}, Time{}));
  EXPECT_FALSE(is_expired(Time{Millis{1}}, Time{}));
}

TEST(Record, released_is_the_epoch_in_progress) {
  Record record = testing::plain_record("k");
  EXPECT_FALSE(is_released(record));
  record.lease_until = Time{};
  EXPECT_TRUE(is_released(record));
  record.state = State::completed;
  EXPECT_FALSE(is_released(record));
}

// The words of a failing comparison must name every field, or failures would be riddles.
TEST(Record, differences_name_every_field) {
  const Record full = testing::full_record("k", State::failed, Placement::offloaded);
  const auto expect_named = [&](const char* field, auto change) {
    Record other = full;
    change(other);
    const std::string text = testing::differences(full, other);
    EXPECT_TRUE(text.starts_with(field)) << field << ": " << text;
    EXPECT_EQ(text.find("does not know"), std::string::npos) << text;
  };
  expect_named("key", [](Record& r) { r.key = "l"; });
  expect_named("state", [](Record& r) { r.state = State::unknown; });
  expect_named("owner", [](Record& r) { r.owner.bytes[3] ^= 1U; });
  expect_named("token", [](Record& r) { ++r.token; });
  expect_named("attempt", [](Record& r) { ++r.attempt; });
  expect_named("revision", [](Record& r) { ++r.revision; });
  expect_named("lease_until", [](Record& r) { r.lease_until += Millis{1}; });
  expect_named("expires_at", [](Record& r) { r.expires_at = never; });
  expect_named("created_at", [](Record& r) { r.created_at += Millis{1}; });
  expect_named("finished_at", [](Record& r) { r.finished_at += Millis{1}; });
  expect_named("fingerprint", [](Record& r) { r.fingerprint = {}; });
  expect_named("holder", [](Record& r) { r.holder += '\0'; });
  expect_named("note", [](Record& r) { r.note.clear(); });
  expect_named("expected_until", [](Record& r) { r.expected_until = never; });
  expect_named("on_lapse", [](Record& r) { r.on_lapse = OnLapse::takeover; });
  expect_named("label", [](Record& r) { r.label.clear(); });
  expect_named("history dropped", [](Record& r) { ++r.history.dropped; });
  expect_named("history", [](Record& r) { r.history.entries.pop_back(); });
  expect_named("history 0 what", [](Record& r) { r.history.entries[0].what = "x"; });
  expect_named("history 1 who", [](Record& r) { r.history.entries[1].who = "x"; });
  expect_named("history 1 why", [](Record& r) { r.history.entries[1].why = "x"; });
  expect_named("history 0 attempt", [](Record& r) { ++r.history.entries[0].attempt; });
  expect_named("history 0 began_at", [](Record& r) { r.history.entries[0].began_at = never; });
  expect_named("trace", [](Record& r) { r.history.trace.sampled = false; });
  expect_named("history 1 trace", [](Record& r) { r.history.entries[1].trace = r.history.trace; });
  expect_named("history 0 at", [](Record& r) { r.history.entries[0].at = never; });
  expect_named("input", [](Record& r) { r.input += '\0'; });
  expect_named("input_bytes", [](Record& r) { ++r.input_bytes; });
  expect_named("steps", [](Record& r) { r.steps.pop_back(); });
  expect_named("step 1 name", [](Record& r) { r.steps[1].name = "x"; });
  expect_named("step 0 result", [](Record& r) { r.steps[0].result = "x"; });
  expect_named("result bytes", [](Record& r) { r.result.bytes = "x"; });
  expect_named("result content_type", [](Record& r) { r.result.content_type = "x"; });
  expect_named("result placement", [](Record& r) { r.result.placement = Placement::dropped; });
  expect_named("result location", [](Record& r) { r.result.location = "x"; });
  expect_named("result size", [](Record& r) { ++r.result.size; });
  expect_named("result digest", [](Record& r) { ++r.result.digest[31]; });
  expect_named("failure code", [](Record& r) { r.failure.code = "x"; });
  expect_named("failure message", [](Record& r) { r.failure.message = "x"; });
  EXPECT_EQ(testing::differences(full, full), "");
}

}  // namespace record_test
}  // namespace once
