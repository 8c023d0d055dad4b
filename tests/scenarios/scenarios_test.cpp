// Plays the transcripts *.txt of this folder (../transcript.hpp): commands, and what is told meanwhile, in a world with
// one store and as many processes (engines) as are named.
//
//   A begin KEY [payload=TEXT] [wait=MS] [hold] [retry] [brief] [no-heartbeat]   lease 9 s, retention 1 h (brief: 1 s)
//   A begin KEY timeout=MS   as a Lambda function with that much time left: the lease, which nothing extends
//   A begin - [unprotected]  a call without a key, and whether the policy lets it run
//   A cache N       before anything else of A: its engine keeps N finished records in its own cache
//   A step KEY NAME RESULT · A complete KEY TEXT · A fail KEY CODE · A release KEY · A hold KEY · A forget KEY
//   A commit KEY TEXT N   completes it in one transaction with rows that add N to the ledger, never to less than 0
//   ledger          what the rows add up to
//   advance MS      time passes, timers fire
//   freeze MS       time passes, and no process notices
//   store FATE ...  of the next calls: ok, fail (refused), drop (lost on the way), lose (answer lost), late (answer
//   lost,
//                   carried out at "store land")
//   store down · store up · store land
//   operator release|extend|hold|complete KEY
//   calls           the calls of the store since the last time
//   show KEY        the record
//
// With ONCE_SCENARIO_TRACES=FOLDER each leaves FOLDER/NAME.trace, from which tools/scenarios draws docs/scenarios.md:
// what was played and told, and each call of the store with its caller and its answer.
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/idempotent.hpp>
#include <once/platform/blocking.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "../engine/ledger_store.hpp"
#include "../engine/script_store.hpp"
#include "../transcript.hpp"

namespace once::testing {
namespace {

using namespace std::chrono_literals;
using Next = ScriptStore::Next;

std::string text_of(const Record& record) {
  std::string out(to_string(record.state));
  out += " attempt=" + std::to_string(record.attempt) + " revision=" + std::to_string(revision_count(record.revision));
  if (record.state == State::in_progress) {
    const auto lease = (record.lease_until - manual_start).count();
    out += is_released(record) ? " released" : " lease=" + std::to_string(lease);
  }
  for (const Step& step : record.steps) out += " " + step.name + "=" + step.result;
  if (!record.result.bytes.empty()) out += " result=" + record.result.bytes;
  if (!record.failure.code.empty()) out += " failure=" + record.failure.code;
  return out;
}

// The store as one process reaches it: tells of each call and its answer.
class Traced final : public ForwardingStore {
 public:
  using Tell = std::function<void(const std::string&)>;
  Traced(std::shared_ptr<Store> store, Tell tell) : ForwardingStore(std::move(store)), tell_(std::move(tell)) {}

  void insert(RecordPtr record, Done done) override {
    inner_->insert(std::move(record), told("insert", std::move(done)));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    inner_->replace(std::move(record), seen, told("replace", std::move(done)));
  }
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> rows, Done done) override {
    inner_->replace_with(std::move(record), seen, std::move(rows), told("replace_with", std::move(done)));
  }
  void remove(std::string key, Seen seen, Done done) override {
    inner_->remove(std::move(key), seen, told("remove", std::move(done)));
  }
  void get(std::string key, Done done) override { inner_->get(std::move(key), told("get", std::move(done))); }

 private:
  Done told(const std::string& what, Done done) {
    tell_("ask " + what);
    return [this, what, done = std::move(done)](Answer answer) mutable {
      std::string text = answer.status == AnswerStatus::failed    ? answer.error.message
                         : answer.status == AnswerStatus::refused ? "refused"
                                                                  : "done";
      if (answer.record) text += ": " + text_of(*answer.record) + " holder=" + answer.record->holder;
      tell_("answer " + what + " " + text);
      done(std::move(answer));
    };
  }

  const Tell tell_;
};

class Player {
 public:
  // Carries a command out; what it led to is in take().
  void play(const std::string& line) {
    trace_ += "play " + line + "\n";
    std::istringstream words(line);
    std::string first;
    words >> first;
    std::vector<std::string> rest;
    for (std::string word; words >> word;) rest.push_back(word);
    if (first == "advance") return timers_->advance(Millis(std::stol(rest.at(0))));
    if (first == "freeze") return clock_->advance(Millis(std::stol(rest.at(0))));
    if (first == "store") return store(rest);
    if (first == "operator") return operate(rest.at(0), rest.at(1));
    if (first == "calls") {
      std::string out = "store:";
      for (const std::string& call : store_->calls()) out += " " + call;
      store_->forget_calls();
      return tell(out);
    }
    if (first == "show") {
      const auto record = stored(rest.at(0));
      return tell(record ? text_of(*record) : "nothing");
    }
    if (first == "ledger") return tell("ledger: " + std::to_string(ledger_->balance));
    if (first.size() == 1 && rest.size() == 2 && rest.at(0) == "cache") {
      cached_[first] = std::stoul(rest.at(1));
      return;
    }
    if (first.size() != 1 || rest.size() < 2) throw std::runtime_error("no such command: " + line);
    act(first, rest.at(0), rest.at(1), {rest.begin() + 2, rest.end()});
  }

  std::string take() { return std::exchange(told_, {}); }
  [[nodiscard]] const std::string& trace() const noexcept { return trace_; }

 private:
  void tell(const std::string& line) {
    told_ += line + "\n";
    trace_ += "tell " + line + "\n";
  }

  std::optional<Record> stored(const std::string& key) {
    return copy_of(blocking::get(store_->inner(), Key("s", key).stored()).record);
  }

  Engine& engine(const std::string& process) {
    auto& engine = engines_[process];
    if (engine == nullptr) {
      EngineOptions options;
      options.store = std::make_shared<Traced>(
          store_, [this, process](const std::string& line) { trace_ += process + " " + line + "\n"; });
      options.scope = "s";
      options.holder = process;
      options.clock = clock_;
      options.timers = timers_;
      options.cache_records = cached_[process];
      options.random = std::make_shared<SeededRandom>(engines_.size());
      options.observer = [this, process](const Event& event) {
        if (event.kind == EventKind::renewal_lost) tell(process + " is told to stop");
        if (event.kind == EventKind::store_error) tell(process + " has trouble with the store");
        if (event.kind == EventKind::unprotected) tell(process + " runs unprotected, and its observer is told");
      };
      engine = std::make_unique<Engine>(std::move(options));
    }
    return *engine;
  }

  void act(const std::string& process, const std::string& what, const std::string& key,
           const std::vector<std::string>& words) {
    if (what == "begin") return begin(process, key, words);
    const auto found = claims_.find(process + " " + key);
    if (found == claims_.end()) throw std::runtime_error(process + " has no claim on " + key);
    Claim& claim = found->second;
    const auto done = [this, process, key, what](const Finish& finish) {
      static constexpr const char* kinds[] = {"recorded", "superseded", "lost", "unrecorded", "declined"};
      std::string out = process + " " + what + " " + key + ": " + kinds[static_cast<std::size_t>(finish.kind)];
      if (finish.kind == Finish::Kind::superseded) out += " by " + finish.record->result.bytes;
      tell(out);
    };
    if (what == "step") {
      if (const auto kept = claim.step(words.at(0))) return tell(process + " step " + key + ": kept, " + *kept);
      return claim.add_step(words.at(0), words.at(1), done);
    }
    if (what == "commit") {  // If it is declined, the claim is still there.
      return claim.complete(Result::inlined(words.at(0)), std::make_shared<Entry>(std::stoi(words.at(1))), done);
    }
    Claim ending = std::move(claim);
    claims_.erase(found);
    if (what == "forget") return;
    if (what == "complete") return ending.complete(Result::inlined(words.at(0)), done);
    if (what == "fail") return ending.fail({.code = words.at(0), .message = "it failed"}, {}, done);
    if (what == "release") return ending.release("given up", done);
    if (what == "hold") return ending.hold("nobody knows", done);
    throw std::runtime_error("no such act: " + what);
  }

  void begin(const std::string& process, const std::string& key, const std::vector<std::string>& words) {
    Policy policy;
    policy.lease = 9s;
    policy.retention = 1h;
    policy.on_conflict = OnConflict::fail;
    Fingerprint fingerprint;
    for (const std::string& word : words) {
      const std::string value = word.substr(std::min(word.size(), word.find('=') + 1));
      if (word.starts_with("payload=")) {
        fingerprint = Fingerprint::of(value);
      } else if (word.starts_with("wait=")) {
        policy.on_conflict = OnConflict::wait;
        policy.wait = Millis(std::stol(value));
      } else if (word == "hold") {
        policy.on_lapse = OnLapse::hold;
      } else if (word == "retry") {
        policy.on_stored_failure = OnStoredFailure::execute;
      } else if (word == "brief") {
        policy.retention = 1s;
      } else if (word == "no-heartbeat") {
        policy.heartbeat = false;
      } else if (word.starts_with("timeout=")) {
        policy.lease = Millis(std::stol(value));
        policy.fixed_lease = true;
      } else if (word == "unprotected") {
        policy.on_missing_key = OnMissingKey::run_unprotected;
      } else {
        throw std::runtime_error("no such word: " + word);
      }
    }
    if (key == "-") return without_key(process, policy);
    engine(process).begin({.key = Key("s", key), .fingerprint = fingerprint, .policy = policy, .holder = {}},
                          [this, process, key](Begin begun) { answered(process, key, std::move(begun)); });
  }

  // The engine takes keys only: this is what makes them, and what its caller sees.
  void without_key(const std::string& process, const Policy& policy) {
    const auto pay = idempotent(
        engine(process), {.name = "pay", .key = [](const std::string& order) { return order; }, .policy = policy},
        [this, process](const std::string&) -> std::string {
          tell(process + " -: runs, without a claim");
          return "receipt";
        });
    try {
      static_cast<void>(pay(std::string()));
    } catch (const Exception&) {
      tell(process + " -: refused, there is no key");
    }
  }

  void answered(const std::string& process, const std::string& key, Begin begun) {
    const std::string who = process + " " + key + ": ";
    switch (begun.kind) {
      case Begin::Kind::claimed:
        tell(who + "runs, attempt " + std::to_string(begun.claim.attempt()) + " (" +
             std::string(to_string(begun.verdict)) + ")");
        claims_.insert_or_assign(process + " " + key, std::move(begun.claim));
        return;
      case Begin::Kind::replayed:
        return tell(who + "replay of " + begun.record->result.bytes);
      case Begin::Kind::stored_failure:
        return tell(who + "replay of failure " + begun.record->failure.code);
      case Begin::Kind::conflict:
        return tell(who + "conflict with " + begun.record->holder + ", try again in " +
                    std::to_string(begun.retry_after.count()) + " ms");
      case Begin::Kind::mismatch:
        return tell(who + "mismatch, the key was used for something else");
      case Begin::Kind::unknown:
        return tell(who + "unknown, a person must decide");
      case Begin::Kind::error:
        return tell(who + "error, " + std::string(to_string(begun.error.kind)));
    }
  }

  void store(const std::vector<std::string>& words) {
    static const std::map<std::string, Next> fates = {{"ok", Next::carry_out},
                                                      {"fail", Next::fail},
                                                      {"drop", Next::drop},
                                                      {"lose", Next::lose},
                                                      {"late", Next::late}};
    if (words.at(0) == "down") return store_->otherwise(Next::fail);
    if (words.at(0) == "up") return store_->otherwise(Next::carry_out);
    if (words.at(0) == "land") return store_->land();
    std::deque<Next> script;
    for (const std::string& word : words) script.push_back(fates.at(word));
    store_->script(std::move(script));
  }

  void operate(const std::string& what, const std::string& key) {
    const Record seen = stored(key).value();
    Record next = seen;
    if (what == "release") {
      release(next, "by hand", {}, Stamp(clock_->now(), 0));
    } else if (what == "complete") {
      complete(next, Result::inlined("by-hand"), {}, Stamp(clock_->now(), 0));
    } else if (what == "extend") {
      next.lease_until += 1h;
      next.revision = next_revision(next.revision, 0);
    } else if (what == "hold") {
      next.on_lapse = OnLapse::hold;
      next.expires_at = never;
      next.revision = next_revision(next.revision, 0);
    } else {
      throw std::runtime_error("no such act of an operator: " + what);
    }
    append(next.history, {.what = what, .at = clock_->now(), .revision = next.revision, .replaced = seen.revision});
    const Answer answer = blocking::replace(store_->inner(), next, {seen.owner, seen.revision, 0});
    tell(std::string("operator ") + what + " " + key + ": " +
         (answer.status == AnswerStatus::done ? "done" : "refused"));
  }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::shared_ptr<ManualTimers> timers_ = std::make_shared<ManualTimers>(clock_);
  std::shared_ptr<LedgerStore> ledger_ = std::make_shared<LedgerStore>(clock_);
  std::shared_ptr<ScriptStore> store_ = std::make_shared<ScriptStore>(ledger_);
  std::map<std::string, std::unique_ptr<Engine>> engines_;
  std::map<std::string, std::size_t> cached_;
  std::map<std::string, Claim> claims_;
  std::string told_;
  std::string trace_;
};

class Scenario : public ::testing::TestWithParam<std::string> {};

TEST_P(Scenario, GoesAsWritten) {
  Player player;
  play_transcript(std::string(ONCE_SCENARIOS) + "/" + GetParam() + ".txt",
                  {.play = [&](const std::string& line) { player.play(line); }, .take = [&] { return player.take(); }});
  if (const char* const folder = std::getenv("ONCE_SCENARIO_TRACES")) {
    std::ofstream file(std::string(folder) + "/" + GetParam() + ".trace");
    file << player.trace();
    ASSERT_TRUE(file.flush()) << folder;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Scenario, ::testing::ValuesIn(transcripts_in(ONCE_SCENARIOS)),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace once::testing
