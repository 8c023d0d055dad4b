// What a reader of a sealed store sees, who may open it, and what a program without the key can do.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/offload/directory.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/open.hpp>
#include <once/stores/sql.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "../sqlite/scratch.hpp"
#include "attacks.hpp"
#include "golden.hpp"
#include "platform/wait.hpp"
#include "seal_keys.hpp"

namespace once::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class Seal : public ::testing::Test {
 protected:
  std::unique_ptr<Store> clear() const { return stores::make_sqlite_store({.path = scratch_.file()}); }
  std::unique_ptr<Store> sealed(SealKeys keys) const { return seal(clear(), std::move(keys)); }
  std::unique_ptr<Store> sealed() const { return sealed({k1_}); }

  // As it is stored.
  Record below(const std::string& key) const {
    const auto store = clear();
    return *blocking::get(*store, key).record;
  }
  void put(Store& store, const Record& record) const {
    ASSERT_EQ(blocking::insert(store, record).status, AnswerStatus::done);
  }

  Engine engine(std::shared_ptr<Store> store) const {
    Policy policy;
    policy.on_conflict = OnConflict::fail;
    return Engine({.store = std::move(store), .policy = policy});
  }
  static Begin begin(Engine& engine, const std::string& key) { return engine.begin(engine.request(key, "payload")); }

  const Scratch scratch_;
  const SealKey k1_ = seal_key("k1", 1);
  const SealKey k2_ = seal_key("k2", 2);
};

Record secret_record(const std::string& key, State state) {
  Record record = full_record(key, state);
  record.label = "SECRET-label";
  record.note = "SECRET-note";
  record.input = "SECRET-input";
  record.fingerprint = Fingerprint("SECRET-fingerprint");
  record.steps = {{"SECRET-step", "SECRET-of-step"}};
  record.result = Result::inlined("SECRET-result", "text/SECRET");
  record.failure.message = "SECRET-message";
  for (HistoryEntry& entry : record.history.entries) entry.why = "SECRET-why";
  return record;
}

TEST_F(Seal, TheFilesHaveNoneOfWhatIsSecret) {
  {
    const auto store = sealed();
    for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
      const Record record = secret_record("s#" + std::string(to_string(state)), state);
      put(*store, record);
      EXPECT_EQ(differences(record, *blocking::get(*store, record.key).record), "");
    }
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.path())) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), {});
      EXPECT_THAT(bytes, Not(HasSubstr("SECRET"))) << entry.path();
      files += bytes.empty() ? 0 : 1;
    }
    EXPECT_GE(files, 2U) << "the database and its log";
  }
  // What an operator without the key still sees.
  const Record seen = below("s#failed");
  const Record whole = full_record("s#failed", State::failed);
  EXPECT_TRUE(is_sealed(seen));
  EXPECT_EQ(seen.state, State::failed);
  EXPECT_EQ(seen.holder, whole.holder);
  EXPECT_EQ(seen.failure.code, whole.failure.code);
  EXPECT_EQ(seen.history.entries.at(0).what, whole.history.entries.at(0).what);
  EXPECT_EQ(seen.result.size, std::string("SECRET-result").size());
}

TEST_F(Seal, TheSameRecordHasTheSameBytesAndAnotherHasOthers) {
  const auto store = sealed();
  const Record record = secret_record("s#one", State::completed);
  put(*store, record);
  const std::string once = below(record.key).result.bytes;
  ASSERT_EQ(blocking::remove(*store, record.key, seen_of(record)).status, AnswerStatus::done);
  put(*store, record);
  EXPECT_EQ(below(record.key).result.bytes, once) << "a write that is tried again repeats its bytes";
  Record other = record;
  other.key = "s#two";
  put(*store, other);
  EXPECT_NE(below("s#two").result.bytes, once);
  EXPECT_EQ(below("s#two").label, below("s#one").label) << "labels are found by their hash";
}

// Sealed by this version: later ones must open it. tests/seal/golden.py makes the same bytes by itself.
TEST_F(Seal, TheFormatStays) {
  Record record = plain_record("s#golden");
  record.label = "order-17";
  record.state = State::completed;
  record.result = Result::inlined("{\"paid\":true}", "application/json");
  record.steps = {{"charge", "ch_1"}};
  const auto store = sealed();
  put(*store, record);
  EXPECT_EQ(to_hex(below(record.key).result.bytes), golden_bytes);
  EXPECT_EQ(below(record.key).label, golden_label);
}

TEST_F(Seal, ANewKeyGoesInFrontAndOldRecordsStayReadable) {
  Record record = secret_record("s#one", State::in_progress);
  put(*sealed({k1_}), record);
  EXPECT_THAT(below(record.key).result.bytes, ::testing::StartsWith("2:k1,"));
  const auto rotated = sealed({k2_, k1_});
  EXPECT_EQ(differences(record, *blocking::get(*rotated, record.key).record), "");
  const Seen seen = seen_of(record);
  record.revision = next_revision(record.revision, 0);
  ASSERT_EQ(blocking::replace(*rotated, record, seen).status, AnswerStatus::done);
  EXPECT_THAT(below(record.key).result.bytes, ::testing::StartsWith("2:k2,"));
  EXPECT_EQ(differences(record, *blocking::get(*sealed({k2_}), record.key).record), "");
}

TEST_F(Seal, RecordsFromBeforeAreReadAndSealedWhenTheyAreWritten) {
  Record record = secret_record("s#one", State::in_progress);
  put(*clear(), record);
  const auto store = sealed();
  EXPECT_EQ(differences(record, *blocking::get(*store, record.key).record), "");
  const Seen seen = seen_of(record);
  record.revision = next_revision(record.revision, 0);
  ASSERT_EQ(blocking::replace(*store, record, seen).status, AnswerStatus::done);
  EXPECT_TRUE(is_sealed(below(record.key)));
}

TEST_F(Seal, AChangedOrMovedRecordIsCorrupt) {
  const auto store = sealed();
  const Record record = secret_record("s#one", State::completed);
  put(*store, record);
  const std::string good = below(record.key).result.bytes;
  const auto put_below = [&](const std::string& key, const std::string& bytes) {
    Record changed = plain_record(key);
    changed.history = record.history;
    changed.result.placement = Placement::sealed;
    changed.result.bytes = bytes;
    const auto file = clear();
    put(*file, changed);
  };
  put_below("s#same", good);  // Of another key.
  for (const std::size_t at : {std::size_t{6}, std::size_t{12}, good.size() / 2, good.size() - 1}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    put_below("s#" + std::to_string(at), bytes);
  }
  put_below("s#short", good.substr(0, good.size() - 20));
  put_below("s#empty", "");
  put_below("s#header", "2:k1,");
  std::size_t wrong = 0;
  const auto listed = blocking::list(*store, {});
  EXPECT_EQ(listed.records.size(), 1U);
  EXPECT_EQ(listed.unreadable.size(), 8U);
  for (const Record& stored : blocking::list(*clear(), {}).records) {
    if (stored.key == record.key) continue;
    const Answer answer = blocking::get(*store, stored.key);
    EXPECT_EQ(answer.status, AnswerStatus::failed) << stored.key;
    EXPECT_EQ(answer.error.kind, ErrorKind::corrupt) << stored.key << ": " << answer.error.message;
    ++wrong;
  }
  EXPECT_EQ(wrong, 8U);
  // The same id, other bytes.
  const Answer other = blocking::get(*sealed({seal_key("k1", 9)}), record.key);
  EXPECT_THAT(other.error.message, HasSubstr("does not open with the seal key 'k1'"));
}

// Whoever can write to the store makes an open claim out of a result, or a result out of an open claim.
TEST_F(Seal, WhatIsInTheClearCannotBeChanged) {
  const auto store = sealed();
  const Record record = secret_record("s#one", State::in_progress);
  put(*store, record);
  const auto file = clear();
  const auto change = [&](const std::string& what, const auto& to_change) {
    Record changed = below(record.key);
    to_change(changed);
    ASSERT_EQ(blocking::replace(*file, changed, seen_of(below(record.key))).status, AnswerStatus::done);
    const Answer answer = blocking::get(*store, record.key);
    EXPECT_EQ(answer.status, AnswerStatus::failed) << what;
    EXPECT_EQ(answer.error.kind, ErrorKind::corrupt) << what;
    EXPECT_THAT(answer.error.message, Not(HasSubstr("SECRET"))) << what;
  };
  const Record good = below(record.key);
  change("state", [](Record& r) { r.state = State::completed; });
  change("expiry", [&](Record& r) { r = good, r.expires_at = never; });
  change("lease", [&](Record& r) { r = good, r.lease_until += Millis{1}; });
  change("owner", [&](Record& r) { r = good, r.owner = owner_of(9); });
  change("attempt", [&](Record& r) { r = good, ++r.attempt; });
  change("token", [&](Record& r) { r = good, ++r.token; });
  change("holder", [&](Record& r) { r = good, r.holder = "another"; });
  change("label", [&](Record& r) { r = good, r.label.clear(); });
  change("history", [&](Record& r) { r = good, r.history.entries.at(0).who = "another"; });
  change("reason", [&](Record& r) { r = good, r.history.entries.at(0).why = "another"; });
  change("code", [&](Record& r) { r = good, r.failure.code = "another"; });
  change("on_lapse",
         [&](Record& r) { r = good, r.on_lapse = good.on_lapse == OnLapse::hold ? OnLapse::takeover : OnLapse::hold; });
  ASSERT_EQ(blocking::replace(*file, good, seen_of(below(record.key))).status, AnswerStatus::done);
  EXPECT_EQ(differences(record, *blocking::get(*store, record.key).record), "") << "as it was";
}

// --- Who can write to the store, and has no key. Also in tests/postgresql and tests/dynamodb.

TEST_F(Seal, EachFieldOfASealedRecordIsAttacked) {
  // Before the file is marked: a claim in the clear is refused afterwards.
  const auto file = stores::make_sqlite_store({.path = scratch_.file(), .allow_clear = true});
  const auto store = sealed();
  const auto strict = seal(clear(), {k1_}, SealWrites::sealed, SealReads::sealed);
  ASSERT_EQ(blocking::get(*store, "s#none").record, nullptr);  // The file is there.
  Shell shell(scratch_.file());
  Attacked attacked{.sealed = *store,
                    .strict = *strict,
                    .clear = *file,
                    .fields = comma_separated(
                        shell.run("SELECT group_concat(name, ',') FROM pragma_table_info('records') WHERE name NOT IN "
                                  "('id', 'hash', 'key')")),
                    .not_believed = {"sweep_at_ms", "reserve"},
                    .placement = "placement",
                    .read = {},
                    .write = {}};
  EXPECT_EQ(attacked.fields.size(), 29U);
  attack_by_sql(
      attacked, "records", "quote", [&](const std::string& sql) { return shell.run(sql); },
      [](const std::string& key) { return "key = '" + key + "'"; });
  attack_each_field(attacked);
}

TEST_F(Seal, ThePageListsTheAttacks) {
  std::ifstream file(ONCE_SECURITY_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const AttackLine& line : attack_lines) {
    EXPECT_THAT(page, HasSubstr("\n| " + std::string(line.text) + " | " + line.result + " |"));
  }
}

TEST_F(Seal, AForgedStepIsNotSkipped) {
  const std::string key = Key("", "order-17").stored();
  {
    Engine first = engine(sealed());
    ASSERT_EQ(begin(first, "order-17").claim.release("died").kind, Finish::Kind::recorded);
    Begin second = begin(first, "order-17");
    ASSERT_EQ(second.claim.add_step("reserve", "seat 12A").kind, Finish::Kind::recorded);
    ASSERT_EQ(second.claim.release("died").kind, Finish::Kind::recorded);
  }
  Shell shell(scratch_.file());
  shell.run("UPDATE records SET steps = '6:charge,11:charge-FAKE,'");
  for (SealKeys keys : {SealKeys{k1_}, SealKeys{k2_}}) {
    Engine third = engine(sealed(keys));
    const Begin refused = begin(third, "order-17");
    EXPECT_EQ(refused.kind, Begin::Kind::error);
    EXPECT_EQ(refused.error.kind, ErrorKind::corrupt);
    EXPECT_THAT(refused.error.message, HasSubstr("fields beside its sealed text that the seal does not cover"));
  }
  shell.run("UPDATE records SET steps = NULL");
  Engine fourth = engine(sealed());
  const Begin taken = begin(fourth, "order-17");
  ASSERT_EQ(taken.kind, Begin::Kind::claimed);
  EXPECT_EQ(taken.claim.step("reserve"), "seat 12A");
  EXPECT_EQ(taken.claim.step("charge"), std::nullopt);
}

TEST_F(Seal, OnlySealedRecordsAreBelievedIfAsked) {
  const Record record = secret_record("s#one", State::completed);
  const Record early = secret_record("s#clear", State::completed);
  put(*clear(), early);
  const auto strict = seal(clear(), {k1_}, SealWrites::sealed, SealReads::sealed);
  put(*strict, record);
  EXPECT_EQ(differences(record, *blocking::get(*strict, record.key).record), "");
  const Answer refused = blocking::get(*strict, early.key);
  EXPECT_EQ(refused.error.kind, ErrorKind::corrupt);
  EXPECT_THAT(refused.error.message, AllOf(HasSubstr("is in the clear"), HasSubstr("read_clear=0")));
  Record forged = early;
  forged.revision = next_revision(forged.revision, 1);
  EXPECT_EQ(blocking::replace(*strict, forged, {.owner = owner_of(9), .revision = early.revision}).error.kind,
            ErrorKind::corrupt)
      << "nor as the record in the way";
  const ListPage page = blocking::list(*strict, {});
  EXPECT_EQ(page.records.size(), 1U);
  EXPECT_EQ(page.unreadable.size(), 1U);
  const std::string keys = scratch_.file("keys");
  std::ofstream(keys) << "k1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
  const std::string url = "sqlite:" + scratch_.file() + "?read_clear=0";
  EXPECT_EQ(blocking::get(*open_store(url + "&seal=" + keys), early.key).error.kind, ErrorKind::corrupt);
  EXPECT_EQ(blocking::get(*open_backend(url + "&seal=" + keys).store, early.key).error.kind, ErrorKind::corrupt);
  EXPECT_THAT(message_of([&] { open_store(url); }), HasSubstr("read_clear= goes with seal="));
  EXPECT_THAT(message_of([&] { open_store(url + "&write_clear=1&seal=" + keys); }),
              HasSubstr("would write in the clear what it does not believe"));
  EXPECT_THAT(message_of([&] { open_offload("file:" + scratch_.file("large") + "?read_clear=0&seal=" + keys); }),
              HasSubstr("read_clear"));
}

// Two tags under one nonce would give GCM's key of tags away.
TEST_F(Seal, EqualContentsUnderTwoIdsOfOneKeyShareNothing) {
  const Record record = secret_record("s#one", State::completed);
  const auto bytes_with = [&](const std::string& id) {
    auto store = sealed({seal_key(id, 1)});
    put(*store, record);
    const std::string bytes = below(record.key).result.bytes;
    EXPECT_EQ(blocking::remove(*store, record.key, seen_of(record)).status, AnswerStatus::done);
    return bytes;
  };
  const std::string a = bytes_with("k1");
  const std::string b = bytes_with("k2");
  ASSERT_EQ(a.size(), b.size());
  const std::size_t after_id = std::string("2:k1,28:").size();
  EXPECT_NE(a.substr(after_id, 28), b.substr(after_id, 28)) << "the seed, which chooses key and nonce";
  EXPECT_NE(a.substr(after_id + 29), b.substr(after_id + 29));
}

TEST_F(Seal, AnEndlessKeyIdIsNotRepeated) {
  Record record = plain_record("s#one");
  record.result.placement = Placement::sealed;
  record.result.bytes = "100000:" + std::string(100'000, 'x') + ",rest";
  const auto file = clear();
  put(*file, record);
  EXPECT_LT(sealed_error(record).message.size(), 400U);
  const Answer answer = blocking::get(*sealed(), record.key);
  EXPECT_EQ(answer.error.kind, ErrorKind::corrupt);
  EXPECT_LT(answer.error.message.size(), 400U);
}

TEST_F(Seal, AProgramWithoutTheKeyNeitherRunsNorReplaysNorStores) {
  {
    Engine keyed = engine(sealed());
    Begin first = begin(keyed, "done");
    ASSERT_EQ(first.kind, Begin::Kind::claimed);
    ASSERT_EQ(first.claim.complete(Result::inlined("answer")).kind, Finish::Kind::recorded);
    Begin second = begin(keyed, "failing");
    ASSERT_EQ(second.claim.add_step("part", "result").kind, Finish::Kind::recorded) << "kept when it is released";
    ASSERT_EQ(second.claim.release("later").kind, Finish::Kind::recorded);
    EXPECT_EQ(begin(keyed, "done").record->result.bytes, "answer");
    Record expired = plain_record(Key("", "expired").stored());
    expired.lease_until = expired.expires_at = expired.created_at;
    put(*sealed(), expired);
  }
  for (SealKeys keys : {SealKeys(), SealKeys{k2_}}) {
    Engine without = engine(keys.empty() ? clear() : sealed(keys));
    for (const char* const key : {"done", "failing", "expired"}) {
      const Begin refused = begin(without, key);
      EXPECT_EQ(refused.kind, Begin::Kind::error) << key;
      EXPECT_EQ(refused.error.kind, ErrorKind::misuse);
      EXPECT_THAT(refused.error.message, AllOf(HasSubstr("is sealed with the key 'k1'"), HasSubstr("seal=FILE")));
      EXPECT_TRUE(is_sealed(below(Key("", key).stored()))) << key << " is as it was";
    }
  }
}

TEST_F(Seal, OperatorsWithoutTheKeyCanOnlyRemove) {
  put(*sealed(), secret_record("s#one", State::unknown));
  const Record seen = below("s#one");
  const operate::Reason reason{.by = "op", .text = "why"};
  const Stamp stamp(manual_start, 0);
  for (const operate::Plan& plan : {operate::plan_resolve(seen, {.as = operate::As::released}, reason, Owner{}, stamp),
                                    operate::plan_release(seen, {}, reason, Owner{}, stamp),
                                    operate::plan_extend(seen, Millis{5}, reason, stamp, {}),
                                    operate::plan_on_lapse(seen, OnLapse::takeover, Millis{5}, reason, stamp, {}),
                                    operate::plan_remove(seen, false, reason, manual_start)}) {
    EXPECT_FALSE(plan.next);
    EXPECT_THAT(plan.refusal, HasSubstr("is sealed with the key 'k1'"));
  }
  EXPECT_TRUE(operate::plan_remove(seen, true, reason, manual_start).next);
}

TEST_F(Seal, TheOffloadIsSealedTooOrRefused) {
  const std::string folder = scratch_.file("large");
  const std::shared_ptr<Offload> open = make_directory_offload(folder);
  const auto refused = message_of([&] { Engine({.store = sealed(), .offload = open}); });
  EXPECT_THAT(refused, HasSubstr("seal the offload too"));
  const auto offload = seal(open, {k1_});
  const auto put_there = wait_for<OffloadAnswer>(
      [&](Callback<void(OffloadAnswer)> done) { offload->put("hint", std::string(100'000, 'S'), std::move(done)); });
  ASSERT_FALSE(put_there.error);
  const auto get_from = [&](Offload& from) {
    return wait_for<OffloadAnswer>(
        [&](Callback<void(OffloadAnswer)> done) { from.get(put_there.text, std::move(done)); });
  };
  EXPECT_EQ(get_from(*offload).text, std::string(100'000, 'S'));
  EXPECT_THAT(get_from(*open).text, Not(HasSubstr("SSSS")));
  EXPECT_THAT(get_from(*seal(open, {k2_})).error->message, HasSubstr("is sealed with the key 'k1'"));
  EXPECT_EQ(get_from(*seal(open, {seal_key("k1", 9)})).error->kind, ErrorKind::corrupt);
  // From before sealing began. The engine compares it with the digest in the record.
  const auto put_before = wait_for<OffloadAnswer>(
      [&](Callback<void(OffloadAnswer)> done) { open->put("hint", "2:k1, as it was", std::move(done)); });
  const auto got = wait_for<OffloadAnswer>(
      [&](Callback<void(OffloadAnswer)> done) { offload->get(put_before.text, std::move(done)); });
  EXPECT_EQ(got.text, "2:k1, as it was");
}

TEST_F(Seal, KeysFromAFile) {
  const std::string good = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
  const SealKeys keys = parse_seal_keys("# of payments\n\n 2026-11\t" + good + "\r\nold " + good + "\n", "keys");
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0].id, "2026-11");
  EXPECT_EQ(keys[0].bytes, k1_.bytes);
  const auto refused = [&](const std::string& text) {
    const std::string message = message_of([&] { parse_seal_keys(text, "keys"); });
    EXPECT_THAT(message, Not(HasSubstr("AQEB"))) << "shows a key";
    return message;
  };
  EXPECT_THAT(refused(""), HasSubstr("keys: there is no key to seal with"));
  EXPECT_THAT(refused("# k1 " + good), HasSubstr("there is no key to seal with"));
  EXPECT_THAT(refused("\n" + good), HasSubstr("keys, line 2: the id is not 1 to 64 letters"));
  EXPECT_THAT(refused("k1"), HasSubstr("keys, line 1: the key is not 32 bytes in Base64"));
  EXPECT_THAT(refused("k1 " + good.substr(4)), HasSubstr("the key is not 32 bytes in Base64"));
  EXPECT_THAT(refused("k1 " + good + " k2"), HasSubstr("there is a third word"));
  EXPECT_THAT(refused("k1 " + good + "\nk1 " + good), HasSubstr("two seal keys have the id 'k1'"));
  EXPECT_THAT(refused("k1 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="), HasSubstr("has only zero bytes"));
  EXPECT_THAT(message_of([] { read_seal_keys("/nowhere/keys"); }),
              HasSubstr("the seal keys in /nowhere/keys cannot be read: No such file"));
}

TEST_F(Seal, AUrlNamesTheKeys) {
  const std::string keys = scratch_.file("keys");
  std::ofstream(keys) << "k1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
  const std::string url = "sqlite:" + scratch_.file() + "?seal=" + keys;
  const Record record = secret_record("s#one", State::completed);
  put(*open_store(url), record);
  EXPECT_TRUE(is_sealed(below(record.key)));
  EXPECT_EQ(differences(record, *blocking::get(*sealed(), record.key).record), "");
  const Backend backend = open_backend(url + "&offload=file:" + scratch_.file("large"));
  EXPECT_TRUE(backend.store->capabilities().seals);
  EXPECT_TRUE(backend.offload->seals());
  EXPECT_EQ(backend.seal_keys.size(), 1U);
  EXPECT_TRUE(open_offload("file:" + scratch_.file("large") + "?seal=" + keys)->seals());
  const std::string missing = "sqlite:" + scratch_.file("new.db") + "?seal=" + keys + "x";
  EXPECT_THAT(message_of([&] { open_store(missing); }), HasSubstr("cannot be read"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.file("new.db"))) << "not made in the clear";
}

// --- A file that was ever sealed

TEST_F(Seal, AfterTheFirstSealedRecordNoProgramClaimsInTheClear) {
  const std::shared_ptr<Store> old = clear();  // It has the file open, and knows nothing of keys.
  Engine without = engine(old);
  Begin before = begin(without, "before");
  ASSERT_EQ(before.kind, Begin::Kind::claimed);
  Begin lapses = begin(without, "released");
  ASSERT_EQ(lapses.claim.add_step("part", "result").kind, Finish::Kind::recorded) << "kept when it is released";
  ASSERT_EQ(lapses.claim.release("later").kind, Finish::Kind::recorded);
  const auto store = sealed();
  put(*store, secret_record("s#one", State::completed));
  for (const auto& program : {old, std::shared_ptr<Store>(clear())}) {
    Engine refused = engine(program);
    for (const char* const key : {"new", "released"}) {
      const Begin claim = begin(refused, key);
      EXPECT_EQ(claim.kind, Begin::Kind::error) << key;
      EXPECT_EQ(claim.error.kind, ErrorKind::misuse);
      EXPECT_THAT(claim.error.message, AllOf(HasSubstr("holds, or held, sealed records"), HasSubstr("seal=FILE"),
                                             HasSubstr("write_clear=1")));
    }
    EXPECT_EQ(blocking::get(*program, Key("", "new").stored()).record, nullptr) << "nothing was written";
    Record late = below(Key("", "released").stored());
    late.owner = owner_of(7);
    EXPECT_EQ(blocking::replace(*program, late, {.owner = owner_of(8), .revision = late.revision}).status,
              AnswerStatus::refused)
        << "who saw another record learns that first";
  }
  EXPECT_EQ(before.claim.complete(Result::inlined("answer")).kind, Finish::Kind::recorded)
      << "a claim from before ends, or its result would be lost";
  EXPECT_EQ(begin(without, "before").kind, Begin::Kind::replayed);
  Engine keyed = engine(sealed());
  EXPECT_EQ(begin(keyed, "new").kind, Begin::Kind::claimed);
  EXPECT_EQ(begin(keyed, "released").kind, Begin::Kind::claimed) << "takes over what was in the clear";
  EXPECT_TRUE(is_sealed(below(Key("", "released").stored())));
}

TEST_F(Seal, TheMarkStaysWhenTheLastSealedRecordIsGone) {
  {
    const auto store = sealed();
    const Record record = secret_record("s#one", State::completed);
    put(*store, record);
    ASSERT_EQ(blocking::remove(*store, record.key, seen_of(record)).status, AnswerStatus::done);
  }
  Engine without = engine(clear());
  EXPECT_EQ(begin(without, "new").error.kind, ErrorKind::misuse);
}

TEST_F(Seal, AMarkThatWasRolledBackIsSetAgain) {
  Record record = plain_record("s#one");
  put(*clear(), record);
  const Seen seen = seen_of(record);
  complete(record, Result::inlined("answer"), EffectivePolicy{}, Stamp(record.created_at, 1));
  const auto store = sealed();
  auto declines = std::make_shared<stores::SqlStatements>();
  declines->add("SELECT 1 WHERE 0", {}, stores::SqlRows::exactly(1));
  const auto declined =
      wait_for<Answer>([&](Done done) { store->replace_with(share(record), seen, declines, std::move(done)); });
  ASSERT_TRUE(declined.declined) << declined.error.message;
  ASSERT_FALSE(is_sealed(below("s#one"))) << "the mark was set, and rolled back with this";
  // By the same connection, and nobody else has written meanwhile.
  ASSERT_EQ(blocking::replace(*store, record, seen).status, AnswerStatus::done);
  Engine without = engine(clear());
  EXPECT_EQ(begin(without, "new").error.kind, ErrorKind::misuse);
}

TEST_F(Seal, ARefusedClaimInTheClearDisturbsNoOtherOfItsGroup) {
  put(*sealed(), secret_record("s#one", State::completed));
  const auto file = clear();
  constexpr int many = 32;
  std::vector<Answer> answers(many);
  std::atomic<int> left = many;
  for (int i = 0; i < many; ++i) {  // Every other one is sealed, as by two wraps of one store.
    Record record = plain_record("s#" + std::to_string(i));
    if (i % 2 == 0) {
      record.result.placement = Placement::sealed;
      record.result.bytes = "2:k1,";
    }
    file->insert(share(record), [&, i](Answer answer) {
      answers[static_cast<std::size_t>(i)] = std::move(answer);
      --left;
      left.notify_one();
    });
  }
  for (int now = left; now != 0; now = left) left.wait(now);
  for (std::size_t i = 0; i < many; ++i) {
    EXPECT_EQ(answers[i].status, i % 2 == 0 ? AnswerStatus::done : AnswerStatus::failed) << i;
  }
}

// From clear to sealed, and back, with programs at work: first all can open, then all seal.
TEST_F(Seal, ALiveStoreIsSealedInTwoSteps) {
  const std::string keys = scratch_.file("keys");
  std::ofstream(keys) << "k1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
  const std::string large = scratch_.file("large");
  const std::string url = "sqlite:" + scratch_.file() + "?offload=file:" + large + "&seal=" + keys;
  const Backend first = open_backend(url + "&write_clear=1");
  const Backend second = open_backend(url);
  EXPECT_FALSE(first.store->capabilities().seals);
  Engine step1({.store = first.store, .policy = {.on_conflict = OnConflict::fail}, .offload = first.offload});
  Engine step2({.store = second.store, .policy = {.on_conflict = OnConflict::fail}, .offload = second.offload});
  ASSERT_EQ(begin(step1, "a").claim.complete(Result::inlined("SECRET")).kind, Finish::Kind::recorded);
  EXPECT_FALSE(is_sealed(below(Key("", "a").stored())));
  ASSERT_EQ(begin(step2, "b").claim.complete(Result::inlined("SECRET")).kind, Finish::Kind::recorded);
  EXPECT_TRUE(is_sealed(below(Key("", "b").stored())));
  for (Engine* const engine : {&step1, &step2}) {
    EXPECT_EQ(begin(*engine, "a").record->result.bytes, "SECRET");
    EXPECT_EQ(begin(*engine, "b").record->result.bytes, "SECRET");
  }
  ASSERT_EQ(begin(step1, "c").claim.complete(Result::inlined("later")).kind, Finish::Kind::recorded) << "still allowed";
  const SealCounts none = seal_counts(*second.store).value();
  EXPECT_EQ(none.clear + none.sealed.size(), 0U) << "nothing was listed yet";
  blocking::list(*second.store, {});
  const SealCounts counts = seal_counts(*second.store).value();
  EXPECT_EQ(counts.clear, 2U);
  EXPECT_EQ(counts.sealed, (std::map<std::string, std::uint64_t>{{"k1", 1}}));
  EXPECT_FALSE(seal_counts(*clear()));
  for (Offload* const from : {first.offload.get(), second.offload.get()}) {
    const auto put_there = wait_for<OffloadAnswer>(
        [&](Callback<void(OffloadAnswer)> done) { from->put("hint", "large", std::move(done)); });
    for (Offload* const to : {first.offload.get(), second.offload.get()}) {
      const auto got = wait_for<OffloadAnswer>(
          [&](Callback<void(OffloadAnswer)> done) { to->get(put_there.text, std::move(done)); });
      EXPECT_EQ(got.text, "large");
    }
  }
  EXPECT_THAT(message_of([] { open_store("memory:?write_clear=1"); }), HasSubstr("goes with seal="));
}

// --- Keys from a command

TEST_F(Seal, KeysFromACommand) {
  const std::string good = "k1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
  const SealKeys keys = seal_keys_from_command("echo '" + good + "'");
  ASSERT_EQ(keys.size(), 1U);
  EXPECT_EQ(keys[0].bytes, k1_.bytes);
  const auto refused = [](const std::string& command) { return message_of([&] { seal_keys_from_command(command); }); };
  EXPECT_THAT(refused(""), HasSubstr("the command of the seal keys names no command"));
  EXPECT_THAT(refused("echo 'k1"), HasSubstr("has a quote that is left open"));
  EXPECT_THAT(refused("/nowhere/vault --token SECRET"),
              AllOf(HasSubstr("cannot be started: /nowhere/vault: No such file"), Not(HasSubstr("SECRET"))));
  EXPECT_THAT(refused("sh -c 'exit 7' SECRET"), AllOf(HasSubstr("failed with status 7"), Not(HasSubstr("SECRET"))));
  EXPECT_THAT(refused("true"), HasSubstr("what the command of the seal keys printed: there is no key"));
  EXPECT_THAT(refused("echo $HOME"), HasSubstr("line 1: the id is not")) << "nothing is expanded";
  EXPECT_THAT(refused("echo k1 SECRET"), AllOf(HasSubstr("line 1: the key is not 32"), Not(HasSubstr("SECRET"))));
  EXPECT_THAT(refused("yes"), HasSubstr("printed more than 64 KiB"));
  const auto url = [&](const std::string& parameters) { return "sqlite:" + scratch_.file() + "?" + parameters; };
  put(*open_store(url("seal_command=" + escape_url("echo '" + good + "'"))), secret_record("s#one", State::completed));
  EXPECT_TRUE(is_sealed(below("s#one")));
  EXPECT_THAT(message_of([&] { open_store(url("seal_command=true&seal=x")); }), HasSubstr("both name the keys"));
  EXPECT_THAT(message_of([&] { open_store(url("seal_command=")); }), HasSubstr("names no command"));
  EXPECT_THAT(message_of([&] { open_store(url("seal=")); }), HasSubstr("cannot be read"));
}

TEST_F(Seal, AWrappedKeyNeedsItsService) {
  const std::string line = "k1 kms:QUJD arn:aws:kms:eu-central-1:1:key/a";
  const auto refused = [](const std::string& text) { return message_of([&] { parse_seal_keys(text, "keys"); }); };
  EXPECT_THAT(refused(line), AllOf(HasSubstr("keys, line 1"), HasSubstr("without ONCE_AWS")));
  EXPECT_THAT(refused("k1 kms:QUJD"), HasSubstr("and then the ARN of the KMS key"));
  EXPECT_THAT(refused("k1 kms: arn:a"), HasSubstr("must be the encrypted key in Base64"));
  EXPECT_THAT(refused("k1 kms:!! arn:a"), HasSubstr("must be the encrypted key in Base64"));
  WrappedSealKey asked;
  const SealKeyUnwrapper unwrap = [&](const WrappedSealKey& wrapped) {
    asked = wrapped;
    return seal_key("other", 5);
  };
  const SealKeys keys = parse_seal_keys(line, "keys", unwrap);
  EXPECT_EQ(asked.bytes, "ABC");
  EXPECT_EQ(asked.with, "arn:aws:kms:eu-central-1:1:key/a");
  ASSERT_EQ(keys.size(), 1U);
  EXPECT_EQ(keys[0].id, "k1");
  EXPECT_EQ(keys[0].bytes, seal_key("k1", 5).bytes);
}

}  // namespace
}  // namespace once::testing
