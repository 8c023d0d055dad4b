// Layer 3: random programs, on the store and on a model that is too simple to be wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <sstream>

#include <once/key.hpp>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

class Model {
 public:
  Answer insert(const Record& record) {
    const auto [place, inserted] = records_.try_emplace(record.key, record);
    return inserted ? Answer::ok() : Answer::refuse(share(place->second));
  }
  Answer replace(const Record& record, const Seen& seen) {
    Record* const there = find(record.key);
    if (there == nullptr || !names(seen, *there)) return refuse(there);
    *there = record;
    return Answer::ok();
  }
  Answer remove(const std::string& key, const Seen& seen) {
    Record* const there = find(key);
    if (there == nullptr || !names(seen, *there)) return refuse(there);
    records_.erase(key);
    return Answer::ok();
  }
  Answer get(const std::string& key) {
    Answer answer = Answer::ok();
    if (const Record* const there = find(key)) answer.record = share(*there);
    return answer;
  }
  Record* find(const std::string& key) {
    const auto found = records_.find(key);
    return found == records_.end() ? nullptr : &found->second;
  }
  std::map<std::string, Record>& records() { return records_; }

 private:
  static bool names(const Seen& seen, const Record& record) {
    return record.owner == seen.owner && record.revision == seen.revision;
  }
  static Answer refuse(const Record* there) { return Answer::refuse(there == nullptr ? nullptr : share(*there)); }

  std::map<std::string, Record> records_;
};

class Program {
 public:
  Program(Subject& subject, std::uint64_t seed) : subject_(subject), random_(seed) {
    using namespace std::string_literals;
    keys_ = {"a#1"s, "a#2"s, "a#"s + '\0', "a#\xFF"s, "b#1"s, "A#1"s, "a#1 "s, std::string(max_key_bytes, 'k')};
  }

  // False if the store and the model differ; then log() is the program so far.
  bool run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (!step()) return false;
    }
    log_ << "compare everything\n";
    return compare_list({.limit = 7}) && compare_everything();
  }
  [[nodiscard]] std::string log() const { return log_.str(); }

  void clean_up() {
    for (const auto& [key, record] : model_.records()) {
      expect_done(subject_.remove(store(), key, seen_of(record)), "remove at the end of the program");
    }
  }

 private:
  Store& store() { return subject_.store(random_.below(subject_.connections())); }

  Seen seen_for(const std::string& key) {
    const Record* const there = model_.find(key);
    Seen seen{.owner = owner_of(static_cast<std::uint8_t>(random_.below(3))),
              .revision = revision_of(1 + random_.below(3))};
    if (there != nullptr && random_.chance(800)) seen = seen_of(*there);
    if (random_.chance(100) && seen.revision < INT64_MAX) seen.revision += random_.chance(500) ? 1 : revision_of(1);
    if (random_.chance(100)) seen.revision = 0;
    if (random_.chance(100)) seen.owner = owner_of(static_cast<std::uint8_t>(random_.below(3)));
    if (random_.chance(700)) seen.place = places_[random_.chance(900) ? key : random_.pick(keys_)];
    if (random_.chance(30)) seen.place = random_.next();
    return seen;
  }

  bool step() {
    const std::string& key = random_.pick(keys_);
    const std::uint64_t draw = random_.below(100);
    if (draw < 25) {
      const Record record = edge_record(key, random_);
      log_ << "insert " << describe(record) << "\n";
      return same(key, model_.insert(record), subject_.insert(store(), record));
    }
    if (draw < 60) {
      Record record = edge_record(key, random_);
      const Seen seen = seen_for(key);
      // Most follow the protocol: one revision up, the owner kept.
      if (random_.chance(700) && seen.revision < revision_of(1000)) record.revision = next_revision(seen.revision, 7);
      if (random_.chance(500)) record.owner = seen.owner;
      log_ << "replace " << describe(record) << seen_text(seen) << "\n";
      return same(key, model_.replace(record, seen), subject_.replace(store(), record, seen));
    }
    if (draw < 75) {
      const Seen seen = seen_for(key);
      log_ << "remove " << quote(key) << seen_text(seen) << "\n";
      return same(key, model_.remove(key, seen), subject_.remove(store(), key, seen));
    }
    if (draw < 90) {
      log_ << "get " << quote(key) << "\n";
      return same(key, model_.get(key), subject_.get(store(), key));
    }
    if (draw < 95) {
      ListQuery query{.limit = 1 + random_.below(4)};
      if (random_.chance(500)) query.state = static_cast<State>(random_.below(4));
      if (random_.chance(500)) query.key_prefix = key.substr(0, random_.below(key.size() + 1));
      if (random_.chance(300)) query.expired_at = edge_record(key, random_).expires_at;
      log_ << "list prefix " << quote(query.key_prefix) << " limit " << query.limit << "\n";
      return compare_list(query);
    }
    if (draw < 98) return sweep();
    if (subject_.traits().durable) {
      log_ << "close and open\n";
      subject_.close();
    }
    return true;
  }

  static std::string seen_text(const Seen& seen) {
    return ", seen owner " + seen.owner.hex().substr(0, 8) + " revision " + std::to_string(seen.revision) + " place " +
           std::to_string(seen.place);
  }

  bool same(const std::string& key, const Answer& expected, const Answer& got) {
    if (got.place != 0) places_[key] = got.place;
    const bool record_counts = expected.status == AnswerStatus::refused || expected.record != nullptr ||
                               got.record == nullptr || got.status != AnswerStatus::done;
    const std::string difference = record_counts ? differences(copy_of(expected.record), copy_of(got.record)) : "";
    if (expected.status == got.status && difference.empty()) return true;
    log_ << "  expected " << describe(expected) << "\n  got      " << describe(got) << "\n" << difference;
    return false;
  }

  bool compare_list(const ListQuery& query) {
    std::map<std::string, Record> got;
    for (Record& record : subject_.list_all(store(), query)) got.emplace(record.key, std::move(record));
    std::map<std::string, Record> expected;
    for (const auto& [key, record] : model_.records()) {
      if (query.state && record.state != *query.state) continue;
      if (!key.starts_with(query.key_prefix)) continue;
      if (query.expired_at && (record.expires_at > *query.expired_at || record.expires_at == never)) continue;
      expected.emplace(key, record);
    }
    if (expected == got) return true;
    log_ << "  expected " << expected.size() << " records, got " << got.size() << "\n";
    for (const auto& [key, record] : expected) {
      const auto found = got.find(key);
      log_ << differences(record, found == got.end() ? std::nullopt : std::optional(found->second));
    }
    return false;
  }

  bool sweep() {
    // Not in the future: a store may take the earlier of this and its own time.
    const Time now = std::min(edge_record("x", random_).expires_at, manual_start + Millis{1'000});
    const std::size_t limit = 1 + random_.below(4);
    log_ << "sweep at " << now.time_since_epoch().count() << " limit " << limit << "\n";
    const SweepAnswer answer = subject_.sweep(store(), now, limit);
    if (answer.error) {
      log_ << "  failed: " << answer.error->message << "\n";
      return false;
    }
    // The store chooses which expired records to remove: read them, and update the model.
    std::size_t removed = 0;
    std::size_t left = 0;
    for (auto it = model_.records().begin(); it != model_.records().end();) {
      const bool expired = it->second.expires_at <= now && it->second.expires_at != never;
      if (expired && !subject_.read(store(), it->first)) {
        it = model_.records().erase(it);
        ++removed;
      } else {
        left += expired ? 1 : 0;
        ++it;
      }
    }
    if (removed == answer.removed && removed <= limit && (answer.more || left == 0)) return compare_everything();
    log_ << "  removed " << answer.removed << " more " << answer.more << ", but " << removed << " are gone and " << left
         << " expired ones are left\n";
    return false;
  }

  bool compare_everything() {
    for (const std::string& key : keys_) {
      if (!same(key, model_.get(key), subject_.get(store(), key))) return false;
    }
    return true;
  }

  Subject& subject_;
  SeededRandom random_;
  std::vector<std::string> keys_;
  std::map<std::string, std::uint64_t> places_;
  Model model_;
  std::ostringstream log_;
};

void random_programs(Subject& subject) {
  const std::uint64_t seed = test_seed();
  const char* const text = std::getenv("ONCE_TEST_PROGRAMS");
  const std::uint64_t programs = text == nullptr ? 60 : std::strtoull(text, nullptr, 10);
  ASSERT_GT(programs, 0U) << "ONCE_TEST_PROGRAMS must be a number above 0";
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  for (std::uint64_t i = 0; i < programs; ++i) {
    Program program(subject, seed + i);
    const std::string hint = "repeat it with ONCE_TEST_SEED=" + std::to_string(seed + i) + " ONCE_TEST_PROGRAMS=1\n";
    bool agrees = false;
    try {
      agrees = program.run(80);
    } catch (const Broken& broken) {
      throw Broken(std::string(broken.what()) + "\n" + hint + program.log());
    }
    ASSERT_TRUE(agrees) << "the store and the model differ; " << hint << program.log();
    ASSERT_FALSE(::testing::Test::HasFailure()) << hint << program.log();
    program.clean_up();
  }
}

constexpr std::array all_programs = {Test{"random_programs", random_programs}};

}  // namespace

std::span<const Test> model_tests() noexcept { return all_programs; }

}  // namespace once::testing
