// Layer 2, continued: the laws of list and sweep.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

using Keys = std::set<std::string>;

Keys keys_of(const std::vector<Record>& records) {
  Keys keys;
  for (const Record& record : records) keys.insert(record.key);
  return keys;
}

std::string names(const Keys& keys) {
  std::string out;
  for (const std::string& key : keys) out += quote(key) + " ";
  return out;
}

void expect_keys(const Keys& expected, const Keys& got, std::string_view what) {
  EXPECT_EQ(names(expected), names(got)) << what;
}

// 40 records: every state, with expiries from long ago to never.
std::map<std::string, Record> fill(Subject& subject) {
  static const std::array<Time, 5> expiries = {Time{Millis{1}}, manual_start - Millis{1}, manual_start,
                                               manual_start + Millis{1}, never};
  std::map<std::string, Record> all;
  for (int i = 0; i < 40; ++i) {
    Record record = full_record((i % 2 == 0 ? "even#" : "odd#") + std::to_string(i), static_cast<State>(i % 4));
    record.expires_at = expiries.at(static_cast<std::size_t>(i / 4 % 5));
    subject.put(record);
    all.emplace(record.key, record);
  }
  return all;
}

bool matches(const Record& record, const ListQuery& query) {
  return (!query.state || record.state == *query.state) && record.key.starts_with(query.key_prefix) &&
         (!query.expired_at || (record.expires_at <= *query.expired_at && record.expires_at != never));
}

void every_filter_alone_and_combined(Subject& subject) {
  const std::map<std::string, Record> all = fill(subject);
  const std::optional<State> states[] = {std::nullopt, State::in_progress, State::completed, State::failed,
                                         State::unknown};
  const std::optional<Time> moments[] = {
      std::nullopt,     Time{}, Time{Millis{1}}, manual_start - Millis{1}, manual_start, manual_start + Millis{1},
      never - Millis{1}};
  for (const auto& state : states) {
    for (const std::string prefix : {"", "e", "even#", "odd#1", "odd#11", "odd#111", "nothing"}) {
      for (const auto& moment : moments) {
        for (const std::size_t limit : {std::size_t{3}, std::size_t{10'000}}) {
          const ListQuery query{.state = state, .key_prefix = prefix, .expired_at = moment, .limit = limit};
          const std::string what = "state " + (state ? std::string(to_string(*state)) : "any") + ", prefix " +
                                   quote(prefix) + ", expired at " +
                                   (moment ? std::to_string(moment->time_since_epoch().count()) : "any") + ", limit " +
                                   std::to_string(limit);
          Keys expected;
          for (const auto& [key, record] : all) {
            if (matches(record, query)) expected.insert(key);
          }
          const std::vector<Record> got = subject.list_all(query);
          expect_keys(expected, keys_of(got), what);
          for (const Record& record : got) {
            const auto found = all.find(record.key);
            if (found != all.end()) expect_record(found->second, record, what);
          }
        }
      }
    }
  }
}

void prefixes_are_bytes_and_no_patterns(Subject& subject) {
  using namespace std::string_literals;
  const std::vector<std::string> keys = {"a"s,
                                         "a%"s,
                                         "a%b"s,
                                         "a_"s,
                                         "a_b"s,
                                         "axb"s,
                                         "a*"s,
                                         "a*b"s,
                                         "a?"s,
                                         "a[b]"s,
                                         "ab"s,
                                         "a\\"s,
                                         "a\\b"s,
                                         "A"s,
                                         "A%"s,
                                         "\xFF"s,
                                         "\xFF\xFF"s,
                                         "\xFF\xFF\xFF"s,
                                         "\xFF"
                                         "a"s,
                                         "\xFE\xFF"s,
                                         "\0"s,
                                         "\0\0"s,
                                         "\0a"s,
                                         "a\0"s,
                                         "a\0b"s,
                                         "\xC3\xA9"s,
                                         "\xC3"s,
                                         "\x7F"s,
                                         "a\xFF"s,
                                         "a\xFF\xFF"s,
                                         "b"s,
                                         "'"s,
                                         "a^b"s,
                                         "a.b"s};
  for (const std::string& key : keys) subject.put(plain_record(key));
  std::vector<std::string> prefixes = keys;
  prefixes.insert(prefixes.end(), {"%"s, "_"s, "*"s, "?"s, "."s, "a["s, "\xC3\xA9\xCC"s, "abc"s, "^"s});
  for (const std::string& prefix : prefixes) {
    Keys expected;
    for (const std::string& key : keys) {
      if (key.starts_with(prefix)) expected.insert(key);
    }
    for (const std::size_t limit : {std::size_t{1}, std::size_t{100}}) {
      expect_keys(expected, keys_of(subject.list_all({.key_prefix = prefix, .limit = limit})),
                  "prefix " + quote(prefix));
    }
  }
}

void pages_of_any_size_give_everything_once(Subject& subject) {
  const std::map<std::string, Record> all = fill(subject);
  for (const std::size_t limit : {1U, 2U, 3U, 7U, 39U, 40U, 41U, 10'000U}) {
    const std::vector<Record> got = subject.list_all({.limit = limit});
    EXPECT_EQ(got.size(), all.size()) << "limit " << limit;
    EXPECT_EQ(keys_of(got).size(), all.size()) << "limit " << limit;
    const std::vector<Record> odd = subject.list_all({.state = State::failed, .key_prefix = "even#", .limit = limit});
    EXPECT_EQ(odd.size(), 10U) << "limit " << limit;
  }
}

void a_cursor_can_be_used_again(Subject& subject) {
  fill(subject);
  const ListPage first = subject.list({.limit = 15});
  ASSERT_FALSE(first.error);
  ASSERT_FALSE(first.cursor.empty());
  const ListPage second = subject.list({.cursor = first.cursor, .limit = 15});
  ASSERT_FALSE(second.error);
  // On each connection, and again.
  for (std::size_t i = 0; i < subject.connections(); ++i) {
    const ListPage again = subject.list(subject.store(i), {.cursor = first.cursor, .limit = 15});
    ASSERT_FALSE(again.error);
    expect_keys(keys_of(second.records), keys_of(again.records), "the same cursor again");
    EXPECT_EQ(second.cursor.empty(), again.cursor.empty());
  }
}

// A record that exists all the time is listed exactly once, even if others are added or removed between the pages.
void changes_between_pages_hide_nothing(Subject& subject) {
  std::map<std::string, Record> all = fill(subject);
  Keys staying = [&] {
    Keys keys;
    for (const auto& [key, record] : all) keys.insert(key);
    return keys;
  }();
  Keys listed;
  ListQuery query{.limit = 5};
  for (int pages = 0; pages < 100; ++pages) {
    const ListPage page = subject.list(query);
    ASSERT_FALSE(page.error);
    for (const Record& record : page.records) {
      const bool again = !listed.insert(record.key).second;
      EXPECT_FALSE(again && staying.contains(record.key)) << quote(record.key) << " was listed twice";
    }
    if (page.cursor.empty()) break;
    query.cursor = page.cursor;
    // Removes two listed ones (one of them the page's last), adds some at both ends.
    for (const std::size_t which : {std::size_t{0}, page.records.size() - 1}) {
      if (which >= page.records.size()) continue;
      const Record& record = page.records[which];
      const auto found = all.find(record.key);
      if (found == all.end()) continue;
      expect_done(subject.remove(record.key, seen_of(record)), "remove between pages");
      staying.erase(record.key);
      all.erase(found);
    }
    for (const std::string name : {"a new#", "zz new#"}) subject.put(plain_record(name + std::to_string(pages)));
    if (!all.empty()) {  // Overwrites a record that stays.
      Record& record = std::prev(all.end())->second;
      const Seen seen = seen_of(record);
      record.revision += 1;
      expect_done(subject.replace(record, seen), "replace between pages");
    }
  }
  for (const std::string& key : staying) EXPECT_TRUE(listed.contains(key)) << quote(key) << " was there and not listed";
}

void bad_limits_are_misuse(Subject& subject) {
  fill(subject);
  for (const std::size_t limit : {std::size_t{0}, std::size_t{10'001}, SIZE_MAX}) {
    const ListPage page = subject.list({.limit = limit});
    ASSERT_TRUE(page.error.has_value()) << "list with a limit of " << limit << " is not an error";
    EXPECT_EQ(page.error->kind, ErrorKind::misuse) << page.error->message;
    EXPECT_FALSE(page.error->message.empty());
  }
}

// Cursors also come from command lines: a wrong one is an error, or an ordinary page.
void strange_cursors_do_no_harm(Subject& subject) {
  using namespace std::string_literals;
  const std::map<std::string, Record> all = fill(subject);
  for (const std::string& cursor :
       {"x"s, "\0"s, "-1"s, "99999999999999999999"s, "k"s, "\xFF\xFF"s, "{}"s, "'; --"s, std::string(5000, 'k')}) {
    const ListPage page = subject.list({.cursor = cursor, .limit = 10});
    if (page.error) {
      EXPECT_EQ(page.error->kind, ErrorKind::misuse) << "cursor " << quote(cursor) << ": " << page.error->message;
      continue;
    }
    EXPECT_LE(page.records.size(), 10U);
    for (const Record& record : page.records) {
      ASSERT_TRUE(all.contains(record.key)) << "cursor " << quote(cursor) << " gave a record that is not there";
      expect_record(all.at(record.key), record, "cursor " + quote(cursor));
    }
  }
  EXPECT_EQ(subject.list_all({}).size(), all.size());
}

void list_sees_what_was_just_written(Subject& subject) {
  Record record = plain_record("fresh#1");
  for (std::size_t i = 0; i < subject.connections(); ++i) {
    Store& store = subject.store(i);
    EXPECT_TRUE(subject.list_all(store, {.key_prefix = "fresh#"}).empty());
    subject.put(record);
    EXPECT_EQ(subject.list_all(store, {.state = State::in_progress, .key_prefix = "fresh#"}).size(), 1U);
    Record done = record;
    done.state = State::completed;
    done.revision += 1;
    expect_done(subject.replace(done, seen_of(record)), "replace");
    EXPECT_TRUE(subject.list_all(store, {.state = State::in_progress}).empty());
    EXPECT_EQ(subject.list_all(store, {.state = State::completed}).size(), 1U);
    expect_done(subject.remove(done.key, seen_of(done)), "remove");
    EXPECT_TRUE(subject.list_all(store, {}).empty());
  }
}

// Sweeps until there is no more. Returns how many were removed.
std::size_t sweep_all(Subject& subject, Time now, std::size_t limit) {
  std::size_t removed = 0;
  for (int calls = 0; calls < 1000; ++calls) {
    const SweepAnswer answer = subject.sweep(now, limit);
    if (answer.error) throw Broken("sweep failed: " + answer.error->message);
    EXPECT_LE(answer.removed, limit) << "sweep removed more than its limit";
    removed += answer.removed;
    if (!answer.more) return removed;
  }
  throw Broken("sweep says after 1000 calls that there is more");
}

void sweep_removes_exactly_the_expired(Subject& subject) {
  for (const Time now :
       {Time{}, Time{Millis{1}}, manual_start - Millis{1}, manual_start, manual_start + Millis{1}, never - Millis{1}}) {
    for (const std::size_t limit : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{1000}}) {
      const std::map<std::string, Record> all = fill(subject);
      std::map<std::string, Record> staying;
      for (const auto& [key, record] : all) {
        if (record.expires_at > now) staying.emplace(key, record);
      }
      const std::string what =
          "sweep at " + std::to_string(now.time_since_epoch().count()) + ", limit " + std::to_string(limit);
      EXPECT_EQ(sweep_all(subject, now, limit), all.size() - staying.size()) << what;
      for (const auto& [key, record] : all) {
        const auto found = staying.find(key);
        expect_record(found == staying.end() ? std::nullopt : std::optional(found->second), subject.read(key), what);
      }
      EXPECT_EQ(subject.list_all({}).size(), staying.size()) << what;
      for (const auto& [key, record] : staying) {
        expect_done(subject.remove(key, seen_of(record)), what + ", then remove");
      }
    }
  }
}

void sweep_never_removes_what_never_expires(Subject& subject) {
  const Record forever = [] {
    Record record = full_record("forever#1");
    record.expires_at = never;
    return record;
  }();
  Record nearly = forever;
  nearly.key = "nearly#1";
  nearly.expires_at = never - Millis{1};
  for (const Time now : {never - Millis{1}, never}) {
    if (!subject.read(forever.key)) subject.put(forever);
    subject.put(nearly);
    // A store may take the earlier of this and its own time: then the other record is still there.
    const std::size_t swept = sweep_all(subject, now, 10);
    EXPECT_LE(swept, 1U);
    if (swept == 0) expect_done(subject.remove(nearly.key, seen_of(nearly)), "it was not swept");
    expect_record(forever, subject.read(forever.key), "a record that never expires");
    EXPECT_TRUE(subject.list_all({.expired_at = now}).empty()) << "what never expires was listed as expired";
  }
}

void sweep_stops_at_its_limit(Subject& subject) {
  Record record = plain_record("");
  record.expires_at = manual_start;
  for (int i = 0; i < 10; ++i) {
    record.key = "old#" + std::to_string(i);
    subject.put(record);
  }
  const SweepAnswer none = subject.sweep(manual_start, 0);
  EXPECT_FALSE(none.error);
  EXPECT_EQ(none.removed, 0U);
  EXPECT_EQ(subject.list_all({}).size(), 10U);
  const SweepAnswer some = subject.sweep(manual_start, 4);
  EXPECT_FALSE(some.error);
  EXPECT_LE(some.removed, 4U);
  EXPECT_TRUE(some.more);
  EXPECT_EQ(subject.list_all({}).size(), 10U - some.removed);
  EXPECT_EQ(sweep_all(subject, manual_start, 4), 10U - some.removed);
  EXPECT_TRUE(subject.list_all({}).empty());
  const SweepAnswer last = subject.sweep(manual_start, 4);
  EXPECT_EQ(last.removed, 0U);
  EXPECT_FALSE(last.more);
}

// A sweep uses the present expiry, not an earlier one.
void sweep_follows_the_latest_expiry(Subject& subject) {
  Record longer = plain_record("longer#1");
  longer.expires_at = manual_start;
  subject.put(longer);
  Record next = longer;
  next.revision += 1;
  next.expires_at = manual_start + Millis{1000};
  expect_done(subject.replace(next, seen_of(longer)), "replace by a longer retention");
  Record shorter = plain_record("shorter#1");
  shorter.expires_at = never;
  subject.put(shorter);
  Record soon = shorter;
  soon.revision += 1;
  soon.expires_at = manual_start;
  expect_done(subject.replace(soon, seen_of(shorter)), "replace by a shorter retention");
  EXPECT_EQ(sweep_all(subject, manual_start, 10), 1U);
  expect_record(next, subject.read(next.key), "prolonged");
  expect_record(std::nullopt, subject.read(soon.key), "shortened");
  // A swept key can be claimed again.
  expect_done(subject.insert(shorter), "insert after the sweep");
}

constexpr std::array all_lists = {
    Test{"list_every_filter_alone_and_combined", every_filter_alone_and_combined},
    Test{"list_prefixes_are_bytes_and_no_patterns", prefixes_are_bytes_and_no_patterns},
    Test{"list_pages_of_any_size_give_everything_once", pages_of_any_size_give_everything_once},
    Test{"list_cursor_can_be_used_again", a_cursor_can_be_used_again},
    Test{"list_hides_nothing_when_others_change", changes_between_pages_hide_nothing},
    Test{"list_limits_out_of_range_are_misuse", bad_limits_are_misuse},
    Test{"list_strange_cursors_do_no_harm", strange_cursors_do_no_harm},
    Test{"list_sees_what_was_just_written", list_sees_what_was_just_written},
    Test{"sweep_removes_exactly_the_expired", sweep_removes_exactly_the_expired},
    Test{"sweep_never_removes_what_never_expires", sweep_never_removes_what_never_expires},
    Test{"sweep_stops_at_its_limit", sweep_stops_at_its_limit},
    Test{"sweep_follows_the_latest_expiry", sweep_follows_the_latest_expiry},
};

}  // namespace

std::span<const Test> list_tests() noexcept { return all_lists; }

}  // namespace once::testing
