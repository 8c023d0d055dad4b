// Layer 1: written records come back, field by field and byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include <once/key.hpp>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();

std::string all_bytes() {
  std::string out;
  for (int i = 0; i < 256; ++i) out += static_cast<char>(i);
  return out;
}

// Through each way in and each way out: insert, replace over something else; get, refusal, list.
void expect_round_trip(Subject& subject, const Record& record, std::string_view what) {
  const std::string by_insert = std::string(what) + ", written by insert";
  expect_done(subject.insert(record), by_insert);
  expect_record(record, subject.read(record.key), by_insert + ", read by get");
  expect_refused(subject.insert(plain_record(record.key)), record, by_insert + ", read by a refused insert");
  Seen nobody{.owner = owner_of(0xEE), .revision = record.revision};
  expect_refused(subject.replace(plain_record(record.key), nobody), record, by_insert + ", read by a refused replace");
  expect_refused(subject.remove(record.key, nobody), record, by_insert + ", read by a refused remove");
  const std::vector<Record> listed = subject.list_all({.key_prefix = record.key, .limit = 10'000});
  const auto found = std::find_if(listed.begin(), listed.end(), [&](const Record& r) { return r.key == record.key; });
  expect_record(record, found == listed.end() ? std::nullopt : std::optional(*found), by_insert + ", read by list");

  const std::string by_replace = std::string(what) + ", written by replace";
  Record other = plain_record(record.key);
  other.owner = owner_of(0x77);
  other.revision = revision_of(record.revision == revision_of(1) ? 2 : 1);
  expect_done(subject.replace(other, seen_of(record)), std::string(what) + ", replaced by a plain one");
  expect_record(other, subject.read(record.key), std::string(what) + ", replaced by a plain one");
  expect_done(subject.replace(record, seen_of(other)), by_replace);
  expect_record(record, subject.read(record.key), by_replace + ", read by get");
  expect_done(subject.remove(record.key, seen_of(record)), std::string(what) + ", removed");
  expect_record(std::nullopt, subject.read(record.key), std::string(what) + ", removed");
}

void every_field_in_every_state(Subject& subject) {
  for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
    for (const Placement placement : {Placement::inlined, Placement::offloaded, Placement::dropped}) {
      const Record record = full_record("full#" + std::string(to_string(state)), state, placement);
      expect_round_trip(
          subject, record,
          "every field, " + std::string(to_string(state)) + ", placement " + std::string(to_string(placement)));
    }
  }
}

void empty_fields(Subject& subject) {
  Record record;
  record.key = "k";
  record.attempt = 1;
  record.revision = revision_of(1);
  expect_round_trip(subject, record, "everything empty");
  record.key = std::string(1, '\0');
  record.steps = {{"s", ""}};
  expect_round_trip(subject, record, "a key of one NUL, a step without result");
}

void largest_fields(Subject& subject) {
  Record record = full_record(std::string(max_key_bytes, '\xFF'), State::failed, Placement::offloaded);
  record.owner = owner_of(0xFF);
  record.token = largest;
  record.attempt = std::numeric_limits<std::uint32_t>::max();
  record.revision = (std::uint64_t{1} << 53U) - 1;
  record.lease_until = record.expires_at = record.created_at = record.finished_at = record.expected_until = never;
  record.fingerprint = Fingerprint(std::string(Fingerprint::max_bytes, '\xFF'));
  record.holder = std::string(Record::max_text_bytes, 'h');
  record.note = std::string(Record::max_text_bytes, 'n');
  record.label = std::string(Record::max_text_bytes, 'l');
  const std::string text(HistoryEntry::max_text_bytes, 't');
  record.history.dropped = std::numeric_limits<std::uint32_t>::max();
  record.history.trace.trace_id.fill(0xFF);
  record.history.trace.span_id.fill(0xFF);
  record.history.entries.assign(History::max_entries, {.what = text,
                                                       .who = text,
                                                       .why = text,
                                                       .attempt = std::numeric_limits<std::uint32_t>::max(),
                                                       .began_at = never,
                                                       .at = never,
                                                       .trace = record.history.trace,
                                                       .revision = (std::uint64_t{1} << 53U) - 1,
                                                       .replaced = (std::uint64_t{1} << 53U) - 1});
  record.input = std::string(Record::max_input_bytes, '\xFF');
  record.input_bytes = largest;
  record.steps = {{std::string(255, '\xFF'), std::string(1000, '\xFF')}, {std::string(255, 'b'), ""}};
  record.result.content_type = std::string(Result::max_content_type_bytes, 'c');
  record.result.location = std::string(Result::max_location_bytes, 'l');
  record.result.size = largest;
  record.result.digest.fill(0xFF);
  record.failure.code = std::string(Failure::max_code_bytes, 'f');
  record.failure.message = std::string(Failure::max_message_bytes, 'm');
  expect_round_trip(subject, record, "everything as large as it may be");
}

void times_at_their_edges(Subject& subject) {
  for (const Time time :
       {Time{}, Time{Millis{1}}, manual_start, Time{Millis{253'402'300'799'999}}, never - Millis{1}, never}) {
    Record record = full_record("times#1");
    record.lease_until = record.expires_at = record.created_at = record.finished_at = record.expected_until = time;
    for (HistoryEntry& entry : record.history.entries) entry.began_at = entry.at = time;
    expect_round_trip(subject, record, "all times " + std::to_string(time.time_since_epoch().count()) + " ms");
  }
}

void any_byte_in_every_byte_field(Subject& subject) {
  using namespace std::string_literals;
  for (const std::string& bytes : {all_bytes(), "\0"s, "\xFF"s, "a\0"s, "\0a"s, "a\0b"s, "\xFF\xFE"s, " "s, " a "s,
                                   "\r\n"s, "'"s, "\""s, "\\0"s, "\xC3"s, "%00"s}) {
    Record record = full_record("#" + bytes);
    record.fingerprint = Fingerprint(std::string_view(bytes).substr(0, Fingerprint::max_bytes));
    record.steps = {{bytes.substr(0, 255), bytes}, {bytes.substr(0, 200) + "2", ""}, {"last", bytes}};
    record.result.bytes = record.input = bytes;
    expect_round_trip(subject, record, "bytes " + quote(bytes));
  }
}

void any_character_in_every_text_field(Subject& subject) {
  using namespace std::string_literals;
  for (const std::string& text :
       {"\0"s, "a\0b"s, "a\0"s, "\xC3\xA9"s, "e\xCC\x81"s, "\xF0\x9F\x98\x80"s, "\xEF\xBF\xBD"s, "\xEF\xBB\xBF bom"s,
        "'); --"s, "\\u0000"s, " a "s, "\r\n\t"s, "\x7F\x01"s}) {
    Record record = full_record("text#1");
    record.label = text;
    for (HistoryEntry& entry : record.history.entries) entry.what = entry.who = entry.why = text;
    record.holder = record.note = record.failure.code = record.failure.message = text;
    record.result.content_type = text;
    expect_round_trip(subject, record, "text " + quote(text));
  }
}

void owners_and_digests_of_any_bytes(Subject& subject) {
  for (const std::uint8_t byte : std::initializer_list<std::uint8_t>{0x00, 0x01, 0x20, 0x5C, 0x7F, 0x80, 0xFF}) {
    Record record = full_record("owner#1", State::completed, Placement::dropped);
    record.owner = owner_of(byte);
    record.result.digest.fill(byte);
    expect_round_trip(subject, record, "owner and digest of bytes " + std::to_string(byte));
  }
  Record record = plain_record("owner#2");
  for (std::size_t i = 0; i < 16; ++i) record.owner.bytes.at(i) = static_cast<std::uint8_t>(i == 15 ? 0xFF : 0);
  expect_round_trip(subject, record, "an owner that begins with NULs");
}

void many_steps(Subject& subject) {
  Record record = plain_record("steps#1");
  for (int i = 0; i < 1000; ++i) {
    // Unsorted names, to detect a store that sorts them.
    record.steps.push_back({"step " + std::to_string(i * 7919 % 1000), "result " + std::to_string(i)});
  }
  expect_round_trip(subject, record, "1000 steps");
}

// Keys that some databases treat as equal: by case, padding, Unicode form, an embedded NUL, a wildcard.
void keys_that_look_alike_are_apart(Subject& subject) {
  using namespace std::string_literals;
  const std::vector<std::string> keys = {
      "s#key"s,      "s#Key"s, "s#key "s,     " s#key"s,      "s#key\0"s, "s#key\0x"s,         "s#ke"s,     "s#key%"s,
      "s#key_"s,     "s#k%"s,  "s#\xC3\xA9"s, "s#e\xCC\x81"s, "s#\xE9"s,  "s#key\n"s,          "s#key\\0"s, "s#\xFF"s,
      "s#\xFF\xFF"s, "s#0"s,   "s#00"s,       "s#0.0"s,       "\0s#key"s, "\xEF\xBB\xBFs#key"s};
  std::vector<Record> records;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Record record = plain_record(keys[i]);
    record.token = i + 1;
    records.push_back(record);
    expect_done(subject.insert(record), "insert of " + quote(keys[i]));
  }
  for (const Record& record : records) expect_record(record, subject.read(record.key), "key " + quote(record.key));
  EXPECT_EQ(subject.list_all({}).size(), keys.size());
  expect_done(subject.remove(keys[0], seen_of(records[0])), "remove of one");
  expect_record(std::nullopt, subject.read(keys[0]), "the removed one");
  for (std::size_t i = 1; i < keys.size(); ++i) expect_record(records[i], subject.read(keys[i]), "after the removal");
}

void large_results(Subject& subject) {
  const std::size_t limit = std::min<std::size_t>(subject.store().capabilities().max_record_bytes, 4 * 1024 * 1024);
  for (const std::size_t bytes : {std::size_t{4095}, std::size_t{4096}, std::size_t{65'536}, limit}) {
    Record record = plain_record("large#1");
    record.state = State::completed;
    if (bytes < record_bytes(record) || bytes > limit) continue;
    std::string result(bytes - record_bytes(record), '\0');
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<char>(i * 31 + i / 256);
    record.result.bytes = std::move(result);
    const std::string what = "a record of " + std::to_string(bytes) + " bytes";
    expect_done(subject.insert(record), what);
    expect_record(record, subject.read(record.key), what);
    expect_done(subject.remove(record.key, seen_of(record)), what);
  }
}

void compressed_results(Subject& subject) {
  Record record = full_record("compressed#1", State::completed, Placement::dropped);
  record.result.placement = Placement::compressed;
  record.result.bytes = std::string("\x28\xB5\x2F\xFD", 4) + all_bytes();
  if (subject.store().capabilities().keeps_compressed) return expect_round_trip(subject, record, "compressed bytes");
  expect_unfit(subject.insert(record), "insert of a compressed result, which it does not keep");
  expect_record(std::nullopt, subject.read(record.key), "after that insert");
}

// In a record of any state: see once/seal.hpp.
void sealed_records(Subject& subject) {
  if (subject.store().capabilities().seals) return;  // It opens what it gives back.
  for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
    Record record = plain_record("sealed#" + std::string(to_string(state)));
    record.state = state;
    record.result.placement = Placement::sealed;
    record.result.bytes = all_bytes();
    record.result.size = 17;
    if (subject.store().capabilities().keeps_compressed) {
      expect_round_trip(subject, record, "a sealed record");
    } else {
      expect_unfit(subject.insert(record), "insert of a sealed record, which it does not keep");
    }
  }
}

void too_large_is_misuse_and_writes_nothing(Subject& subject) {
  const std::size_t limit = subject.store().capabilities().max_record_bytes;
  Record record = plain_record("large#1");
  record.state = State::completed;
  ASSERT_LT(record_bytes(record), limit) << "max_record_bytes is too small for anything";
  record.result.bytes.assign(limit + 1 - record_bytes(record), 'x');
  expect_unfit(subject.insert(record), "insert of a record one byte too large");
  expect_record(std::nullopt, subject.read(record.key), "after that insert");
  const Record kept = full_record(record.key);
  subject.put(kept);
  expect_unfit(subject.replace(std::move(record), seen_of(kept)), "replace by a record one byte too large");
  expect_record(kept, subject.read(kept.key), "after that replace");
}

void capabilities_are_those_stated(Subject& subject) {
  Store& store = subject.store();
  const Capabilities stated = store.capabilities();
  EXPECT_EQ(stated.shared, subject.traits().shared) << "Capabilities::shared and StoreTraits::shared differ";
  EXPECT_EQ(stated.durable, subject.traits().durable) << "Capabilities::durable and StoreTraits::durable differ";
  EXPECT_EQ(stated.hands_out, subject.traits().hands_out)
      << "Capabilities::hands_out and StoreTraits::hands_out differ";
  // Room for the longest texts of a record, so that any record without steps and result can be kept.
  EXPECT_GE(stated.max_record_bytes, 16U * 1024U);
  EXPECT_GE(stated.default_skew, Millis{0});
  EXPECT_LE(stated.default_skew, std::chrono::hours(1)) << "Policy::skew may be no more";
  EXPECT_FALSE(store.name().empty());
}

void tells_its_time_if_it_says_so(Subject& subject) {
  Store& store = subject.store();
  const bool tells = store.capabilities().tells_time;
  subject.put(plain_record("time#1"));
  std::optional<StoreTime> before;
  for (int i = 0; i < 5; ++i) {
    const Answer answer = subject.get("time#1");
    const std::optional<StoreTime> told = answer.time ? answer.time : store.time();
    ASSERT_EQ(told.has_value(), tells) << "Capabilities::tells_time says otherwise";
    if (!told) return;
    EXPECT_GE(told->error, Millis{0});
    if (before) {
      EXPECT_GE(told->now + told->error, before->now - before->error) << "the store's time went back";
    }
    before = told;
  }
}

void another_store_has_the_same_records(Subject& subject) {
  const Record first = full_record("both#1");
  expect_done(subject.insert(subject.store(0), first), "insert on one connection");
  expect_record(first, subject.read(subject.store(1), first.key), "read on the other");
  expect_refused(subject.insert(subject.store(1), plain_record(first.key)), first, "second insert on the other");
  Record second = first;
  second.revision += 1;
  second.note = "written by the other";
  expect_done(subject.replace(subject.store(1), second, seen_of(first)), "replace on the other");
  expect_record(second, subject.read(subject.store(0), first.key), "read on the one");
  expect_refused(subject.replace(subject.store(0), first, seen_of(first)), second, "replace of what is gone");
  EXPECT_EQ(subject.list_all(subject.store(0), {}).size(), 1U);
  expect_done(subject.remove(subject.store(0), second.key, seen_of(second)), "remove on the one");
  expect_record(std::nullopt, subject.read(subject.store(1), first.key), "read on the other after the removal");
}

void survives_being_closed(Subject& subject) {
  const Record kept = full_record("kept#1");
  Record replaced = full_record("replaced#1");
  const Record removed = full_record("removed#1");
  subject.put(kept);
  subject.put(replaced);
  subject.put(removed);
  const Seen seen = seen_of(replaced);
  replaced.revision += 1;
  replaced.result.bytes = "new";
  expect_done(subject.replace(replaced, seen), "replace before closing");
  expect_done(subject.remove(removed.key, seen_of(removed)), "remove before closing");
  for (int round = 0; round < 2; ++round) {
    subject.close();
    expect_record(kept, subject.read(kept.key), "inserted before closing");
    expect_record(replaced, subject.read(replaced.key), "replaced before closing");
    expect_record(std::nullopt, subject.read(removed.key), "removed before closing");
    expect_refused(subject.insert(plain_record(kept.key)), kept, "insert over what was there before");
  }
  EXPECT_EQ(subject.list_all({}).size(), 2U);
}

constexpr std::array all_trips = {
    Test{"every_field_in_every_state", every_field_in_every_state},
    Test{"empty_fields", empty_fields},
    Test{"largest_fields", largest_fields},
    Test{"times_at_their_edges", times_at_their_edges},
    Test{"any_byte_in_every_byte_field", any_byte_in_every_byte_field},
    Test{"any_character_in_every_text_field", any_character_in_every_text_field},
    Test{"owners_and_digests_of_any_bytes", owners_and_digests_of_any_bytes},
    Test{"many_steps", many_steps},
    Test{"keys_that_look_alike_are_apart", keys_that_look_alike_are_apart},
    Test{"large_results", large_results},
    Test{"compressed_results", compressed_results},
    Test{"sealed_records", sealed_records},
    Test{"too_large_is_misuse_and_writes_nothing", too_large_is_misuse_and_writes_nothing},
    Test{"capabilities_are_those_stated", capabilities_are_those_stated},
    Test{"tells_its_time_if_it_says_so", tells_its_time_if_it_says_so},
    Test{"another_store_has_the_same_records", another_store_has_the_same_records, Test::Needs::shared},
    Test{"survives_being_closed", survives_being_closed, Test::Needs::durable},
};

}  // namespace

std::span<const Test> round_trip_tests() noexcept { return all_trips; }

}  // namespace once::testing
