// What somebody can do to a sealed record who may write to its store and has no key. Each field is attacked as the
// store keeps it, so a column or an attribute that is added later is attacked too.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/record.hpp>
#include <once/store.hpp>
#include <once/testing/records.hpp>

namespace once::testing {

// The fields that a stored record has: the store's name of each, and its value as the store's own language writes it.
using RawRecord = std::map<std::string, std::string>;

enum class Attack { field, store_field, moved, rolled_back, in_the_clear, in_the_clear_strict, removed };

// The lines of the table in SECURITY.md: what is done to a record, and what a reader with the key gets.
struct AttackLine {
  Attack attack;
  const char* text;
  const char* result;
};
inline constexpr AttackLine attack_lines[] = {
    {Attack::field, "changes, adds or removes one field, or takes it from another record or an earlier version",
     "corrupt"},
    {Attack::store_field, "the same with a field that only the store uses, to find or to sweep records", "as it was"},
    {Attack::moved, "puts another sealed record in its place", "corrupt"},
    {Attack::rolled_back, "puts an earlier version of the same record in its place", "believed"},
    {Attack::in_the_clear, "puts a record in the clear in its place", "believed"},
    {Attack::in_the_clear_strict, "the same, and the URL has `read_clear=0`", "corrupt"},
    {Attack::removed, "removes it", "gone"},
};

inline std::string result_of(Attack attack) {
  for (const AttackLine& line : attack_lines) {
    if (line.attack == attack) return line.result;
  }
  throw std::logic_error("an attack without a line");
}

struct Attacked {
  Store& sealed;                                          // Has the key.
  Store& strict;                                          // Too, and believes no record in the clear.
  Store& clear;                                           // The same records, without the key.
  std::set<std::string> fields;                           // All that a record can have there, but what names it.
  std::set<std::string> not_believed;                     // Only the store uses them, to find or to sweep a record.
  std::string placement;                                  // The field that marks a record as sealed.
  std::function<RawRecord(const std::string& key)> read;  // Without what names the record.
  // These fields, and no others. False: the store's own constraints refuse them.
  std::function<bool(const std::string& key, const RawRecord& record)> write;
};

// For a table in SQL. `run` gives the first column of the last row; `named`: SQL for what finds a key's row; `quoted`:
// the function that writes a value as SQL. A missing field is NULL.
inline void attack_by_sql(Attacked& attacked, const std::string& table, const std::string& quoted,
                          std::function<std::string(const std::string& sql)> run,
                          std::function<std::string(const std::string& key)> named) {
  attacked.read = [=, fields = attacked.fields](const std::string& key) {
    RawRecord out;
    for (const std::string& field : fields) {
      const std::string value = run("SELECT " + quoted + "(" + field + ") FROM " + table + " WHERE " + named(key));
      if (value != "NULL") out.emplace(field, value);
    }
    return out;
  };
  attacked.write = [=, fields = attacked.fields](const std::string& key, const RawRecord& record) {
    std::string set;
    for (const std::string& field : fields) {
      const auto found = record.find(field);
      set += (set.empty() ? "" : ", ") + field + " = " + (found == record.end() ? "NULL" : found->second);
    }
    try {
      run("UPDATE " + table + " SET " + set + " WHERE " + named(key));
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      if (text.find("NOT NULL") == std::string::npos && text.find("not-null") == std::string::npos) throw;
      return false;
    }
    return true;
  };
}

inline std::set<std::string> comma_separated(const std::string& text) {
  std::set<std::string> out;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) out.insert(word);
  return out;
}

// A record in progress, all of whose fields depend on `variant`.
inline Record attacked_record(const std::string& key, std::uint8_t variant) {
  Record record = full_record(key, State::in_progress);
  const Millis by{variant};
  record.owner = owner_of(variant);
  record.token += variant;
  record.attempt += variant;
  record.revision += std::uint64_t{variant} << revision_random_bits;
  for (Time* const time :
       {&record.lease_until, &record.expires_at, &record.created_at, &record.finished_at, &record.expected_until}) {
    *time += by;
  }
  if (variant % 2 == 0) record.on_lapse = OnLapse::takeover;
  const std::string text = "variant " + std::to_string(variant);
  record.fingerprint = Fingerprint(text);
  for (std::string* const field : {&record.holder, &record.note, &record.label, &record.input, &record.result.bytes,
                                   &record.result.content_type, &record.failure.code, &record.failure.message}) {
    *field += text;
  }
  record.history.entries.at(0).what = text;
  record.input_bytes += variant;
  record.steps.push_back({text, text});
  return record;
}

// What a reader with the key makes of the record now.
inline std::string seen_by(Store& sealed, const Record& was) {
  const Answer answer = blocking::get(sealed, was.key);
  if (answer.status == AnswerStatus::failed) {
    return answer.error.kind == ErrorKind::corrupt ? "corrupt" : "failed: " + answer.error.message;
  }
  if (answer.record == nullptr) return "gone";
  if (is_sealed(*answer.record)) return "refused: the key is not known";
  return differences(was, *answer.record).empty() ? "as it was" : "believed";
}

// Changed, added, removed, taken from another record, rolled back: each field by itself, then whole records.
inline void attack_each_field(const Attacked& attacked) {
  using ::testing::ElementsAre;
  const std::string key = "s#victim";
  // In the clear, so that each field is there that a sealed record keeps empty.
  std::vector<RawRecord> donors;
  for (const Placement placement : {Placement::inlined, Placement::offloaded, Placement::compressed}) {
    Record clear = full_record("s#clear", State::failed, placement);
    clear.expires_at += Millis{1};
    ASSERT_EQ(blocking::insert(attacked.clear, clear).status, AnswerStatus::done);
    donors.push_back(attacked.read(clear.key));
    ASSERT_EQ(blocking::remove(attacked.clear, clear.key, seen_of(clear)).status, AnswerStatus::done);
  }
  const RawRecord in_the_clear = donors.front();
  const Record other = attacked_record("s#other", 4);
  ASSERT_EQ(blocking::insert(attacked.sealed, other).status, AnswerStatus::done);
  donors.push_back(attacked.read(other.key));
  const RawRecord moved = donors.back();
  const Record early = attacked_record(key, 2);
  ASSERT_EQ(blocking::insert(attacked.sealed, early).status, AnswerStatus::done);
  donors.push_back(attacked.read(key));
  const RawRecord rolled_back = donors.back();
  const Record victim = attacked_record(key, 5);
  ASSERT_EQ(blocking::replace(attacked.sealed, victim, seen_of(early)).status, AnswerStatus::done);
  const RawRecord good = attacked.read(key);
  ASSERT_EQ(seen_by(attacked.sealed, victim), "as it was");
  donors.emplace_back();  // Each field that it has is removed.

  std::map<std::string, std::set<std::string>> results;
  for (const std::string& field : attacked.fields) {
    for (const RawRecord& donor : donors) {
      RawRecord forged = good;
      forged.erase(field);
      if (const auto found = donor.find(field); found != donor.end()) forged.insert(*found);
      if (forged == good) continue;
      if (!attacked.write(key, forged)) continue;
      ASSERT_EQ(attacked.read(key), forged) << field << ": the attack itself did nothing";
      const std::string seen = seen_by(attacked.sealed, victim);
      results[field].insert(seen);
      std::size_t readable = 0;
      for (const Record& record : blocking::list(attacked.sealed, {}).records) readable += record.key == key ? 1 : 0;
      EXPECT_EQ(readable, seen == "corrupt" ? 0U : 1U) << field;
    }
  }
  for (const std::string& field : attacked.fields) {
    const bool believed = !attacked.not_believed.contains(field);
    EXPECT_THAT(results[field], ElementsAre(result_of(believed ? Attack::field : Attack::store_field))) << field;
  }
  EXPECT_TRUE(good.contains(attacked.placement)) << "or its attack is not the removal of the mark";

  const auto whole = [&](const RawRecord& forged, const Record& was, Store& by) {
    EXPECT_TRUE(attacked.write(key, forged));
    return seen_by(by, was);
  };
  EXPECT_EQ(whole(moved, victim, attacked.sealed), result_of(Attack::moved));
  EXPECT_EQ(whole(rolled_back, victim, attacked.sealed), result_of(Attack::rolled_back));
  EXPECT_EQ(seen_by(attacked.sealed, early), "as it was") << "what is believed is the earlier version, and all of it";
  EXPECT_EQ(whole(in_the_clear, victim, attacked.sealed), result_of(Attack::in_the_clear));
  EXPECT_EQ(whole(in_the_clear, victim, attacked.strict), result_of(Attack::in_the_clear_strict));
  EXPECT_EQ(whole(good, victim, attacked.strict), "as it was");
  ASSERT_EQ(blocking::remove(attacked.clear, key, seen_of(victim)).status, AnswerStatus::done);
  EXPECT_EQ(seen_by(attacked.sealed, victim), result_of(Attack::removed));
}

}  // namespace once::testing
