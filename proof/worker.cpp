// proof_worker NAME=VALUE ...: one process of the proof. docs/proof.md describes its history, proof.py starts it.
//
//   role=work       clients that call an engine, and clients that drive the store's four operations directly
//   role=operate    releases, resolves, extends, removes and sweeps
//   role=audit      writes down every record that is there, and ends
//   url, name, history, ledger      the store, who this is, and the two files that it adds lines to
//   seed, clients, keys, window_ms, began_ns, pause_ms, lease_ms, skew_ms, retention_ms, bug
//   input_bytes                     how large the records are that drive the store directly
//   boot                            what SQLite's store takes for the kernel's boot id; empty: the kernel's
//
// The keys of a moment follow from the time, so that all processes meet at few keys, and go on to others. Ends with its
// standard input. Lines there: "sync fails", "sync works" (of a SQLite store's log, in this process).
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/open.hpp>
#include <once/stores/sqlite.hpp>

#include "observed_store.hpp"
#include "sqlite/faulty_vfs.hpp"

namespace once::proof {

namespace {

using nlohmann::ordered_json;

class Settings {
 public:
  Settings(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t at = word.find('=');
      if (at == std::string::npos) throw Exception(ErrorKind::misuse, "not NAME=VALUE: " + word);
      values_[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw Exception(ErrorKind::misuse, "no " + name + "=");
    return found->second;
  }
  [[nodiscard]] std::int64_t number(const std::string& name) const { return std::stoll(text(name)); }

 private:
  std::map<std::string, std::string> values_;
};

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : bits_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return bits_() % bound; }
  bool percent(unsigned part) { return below(100) < part; }
  std::uint32_t bits() { return static_cast<std::uint32_t>(bits_()); }
  Owner owner() {
    Owner owner;
    for (auto& byte : owner.bytes) byte = static_cast<std::uint8_t>(bits_());
    return owner;
  }

 private:
  std::mt19937_64 bits_;
};

std::shared_ptr<Store> open(const Settings& settings) {
  const std::string url = settings.text("url"), file = "sqlite:", bug = settings.text("bug");
  if (!url.starts_with(file)) return open_store(url);
  testing::disk_faults().log_unsynced = bug == "log_unsynced";
  testing::disk_faults().file_unsynced = bug == "file_unsynced";
  testing::disk_faults().log_synced_late = bug == "log_synced_late";
  // The log is copied into the file some times in a run.
  return stores::make_sqlite_store({.path = url.substr(file.size()),
                                    .checkpoint_pages = 500,
                                    .boot_id = settings.text("boot"),
                                    .vfs = testing::faulty_vfs()});
}

// What an operation is, as its results say it again: a result with another beginning is another operation's.
struct Operation {
  std::string tenant;
  std::string name;
  Fingerprint fingerprint;

  [[nodiscard]] std::string text() const { return tenant + '|' + name + '|' + fingerprint.hex().substr(0, 8); }
};

class Worker {
 public:
  explicit Worker(const Settings& settings)
      : settings_(settings),
        name_(settings.text("name")),
        bug_(settings.text("bug")),
        lease_(settings.number("lease_ms")),
        skew_(settings.number("skew_ms")),
        lines_(std::make_shared<Lines>(settings.text("history"))),
        ledger_(settings.text("ledger")),
        store_(observe(plant(open(settings), bug_), lines_)) {
    lines_->add({{"t", monotonic_ns()},
                 {"hello", name_},
                 {"role", settings.text("role")},
                 {"lease", lease_.count()},
                 {"skew", skew_.count()}});
  }

  void audit() {
    // Between its beginning and its end nothing else happens: each key is as if it had been read then.
    const std::int64_t began = monotonic_ns();
    ListQuery query{.limit = 1000};
    do {
      ListPage page = blocking::list(*store_, query);
      if (page.error) throw Exception(*page.error);
      if (!page.unreadable.empty()) throw Exception(page.unreadable.front());
      for (const Record& record : page.records) lines_->add({{"final", record.key}, {"n", told(&record)}});
      query.cursor = page.cursor;
    } while (!query.cursor.empty());
    lines_->add({{"t", monotonic_ns()}, {"finals", began}});
  }

  void work() {
    EngineOptions options;
    options.store = store_;
    options.holder = name_;
    options.policy = {.lease = lease_, .retention = std::chrono::hours(1), .wait = Millis(2'000), .skew = skew_};
    if (bug_ == "acts_late") options.policy.heartbeat = false;
    engine_ = std::make_unique<Engine>(std::move(options));
    for (std::int64_t i = 0; i < settings_.number("clients"); ++i) {
      start([this](Chance& chance) { call(chance); });
      start([this, seen = std::map<std::string, RecordPtr>()](Chance& chance) mutable { drive(chance, seen); });
    }
    until_the_end();
    engine_.reset();
  }

  void operate() {
    start([this](Chance& chance) { act(chance); });
    start([this](Chance&) { sweep(); });
    until_the_end();
  }

 private:
  void start(std::function<void(Chance&)> one) {
    const std::uint64_t seed = static_cast<std::uint64_t>(settings_.number("seed")) * 1'000 + threads_.size();
    threads_.emplace_back([this, seed, one = std::move(one)]() mutable {
      Chance chance(seed);
      const auto pause = static_cast<std::uint64_t>(settings_.number("pause_ms"));
      while (!ended_) {
        one(chance);
        std::this_thread::sleep_for(Millis(chance.below(2 * pause)));
      }
    });
  }

  void until_the_end() {
    for (std::string line; std::getline(std::cin, line);) testing::disk_faults().log_sync = line == "sync fails";
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
    lines_->add({{"t", monotonic_ns()}, {"bye", name_}});
  }

  // Which key number, and its name with the present window.
  std::pair<std::uint64_t, std::string> draw(Chance& chance) const {
    const std::int64_t window =
        (monotonic_ns() - settings_.number("began_ns")) / (settings_.number("window_ms") * 1'000'000);
    const std::uint64_t number = chance.below(static_cast<std::uint64_t>(settings_.number("keys")));
    return {number, std::to_string(window) + '.' + std::to_string(number)};
  }

  // ---- The store's operations, one after another, as a client of a compare-and-swap register.

  void drive(Chance& chance, std::map<std::string, RecordPtr>& seen) {
    const std::string key = Key("register", draw(chance).second).stored();
    if (seen.size() > 1'000) seen.clear();
    const auto known = seen.find(key);
    const RecordPtr before = known == seen.end() ? nullptr : known->second;
    Answer answer;
    Record next;
    next.key = key;
    next.owner = chance.owner();
    next.token = next.attempt = 1;
    next.expires_at = Time::max();
    next.result = Result::inlined(name_ + '.' + std::to_string(next_id()));
    next.input.resize(static_cast<std::size_t>(settings_.number("input_bytes")));
    for (char& byte : next.input) byte = static_cast<char>(chance.bits());  // Nothing that could be made smaller.
    next.input_bytes = next.input.size();
    next.revision = next_revision(before == nullptr ? 0 : before->revision, chance.bits());
    const std::uint64_t what = chance.below(100);
    const Seen condition = before == nullptr ? Seen{} : Seen{before->owner, before->revision};
    if (what < 25) {
      answer = blocking::get(*store_, key);
      if (answer.status == AnswerStatus::done) seen[key] = answer.record;
      return;
    }
    if (before == nullptr || what < 35) {
      next.revision = next_revision(0, chance.bits());
      answer = blocking::insert(*store_, next);
    } else if (what < 90) {
      if (what < 50) next.owner = before->owner;  // As a holder writes.
      answer = blocking::replace(*store_, next, condition);
    } else {
      answer = blocking::remove(*store_, key, condition);
      next.revision = 0;
    }
    if (answer.status == AnswerStatus::refused) seen[key] = answer.record;
    if (answer.status == AnswerStatus::done) seen[key] = next.revision == 0 ? nullptr : share(std::move(next));
  }

  // ---- Calls of the engine.

  void call(Chance& chance) {
    const auto [number, name] = draw(chance);
    const Operation operation{chance.percent(50) ? "a" : "b", name, Fingerprint::of(chance.percent(5) ? "1" : "0")};
    const std::uint64_t id = next_id();
    Request request{.key = Key(bug_ == "tenants_mixed" ? "all" : operation.tenant, name),
                    .fingerprint = operation.fingerprint,
                    .policy = Policy{},
                    .holder = {}};
    if (number == 0) request.policy->retention = Millis(settings_.number("retention_ms"));
    const bool hold = number == 1 && chance.percent(50);
    if (hold) request.policy->on_lapse = OnLapse::hold;
    lines_->add({{"t", monotonic_ns()},
                 {"ask", id},
                 {"k", request.key.stored()},
                 {"want", operation.text()},
                 {"f", operation.fingerprint.hex().substr(0, 8)},
                 {"h", hold ? 1 : 0}});
    Begin begin = engine_->begin(std::move(request));
    if (begin.kind != Begin::Kind::claimed) {
      static constexpr const char* kinds[] = {"claimed",  "replayed", "stored_failure", "conflict",
                                              "mismatch", "unknown",  "error"};
      ordered_json line{{"t", monotonic_ns()}, {"told", id}, {"how", kinds[static_cast<std::size_t>(begin.kind)]}};
      if (begin.kind == Begin::Kind::error) {
        line["why"] = begin.error.message;
      } else {
        line["n"] = told(begin.record.get());
      }
      lines_->add(line);
      if (begin.kind == Begin::Kind::error && bug_ == "unprotected") effect(operation, id, nullptr, "main");
      return;
    }
    Claim claim = std::move(begin.claim);
    const Record mine = claim.record();
    lines_->add({{"t", monotonic_ns()}, {"told", id}, {"how", "claimed"}, {"n", told(&mine)}});
    perform(chance, number, operation, id, claim);
  }

  void perform(Chance& chance, std::uint64_t number, const Operation& operation, std::uint64_t id, Claim& claim) {
    const std::string result = operation.text() + '|' + name_ + '|' + std::to_string(id);
    const std::uint64_t way = chance.below(100);
    if (way < 4) return finish(id, "fail", "", [&] { return claim.fail({.code = "no", .message = "by chance"}); });
    if (way < 10) return finish(id, "release", "", [&] { return claim.release("by chance"); });
    if (number == 2) {
      for (const char* step : {"first", "second"}) {
        if (claim.step(step)) continue;
        if (!effect(operation, id, &claim, step)) return give_up(id, claim);
        const Finish kept = claim.add_step(step, result);
        lines_->add({{"t", monotonic_ns()}, {"step", id}, {"name", step}, {"how", text(kept.kind)}});
        if (kept.kind == Finish::Kind::lost || kept.kind == Finish::Kind::superseded) return give_up(id, claim);
      }
    }
    // Some work lasts for longer than its lease.
    unsigned percent = bug_ == "acts_late" ? 30 : 8;
    Millis longer = lease_ * 3 / 2;
    if (bug_ == "acts_again") {  // Without a renewal, so that it is the finish whose answer is lost.
      percent = 100;
      longer = lease_ / 4;
    }
    std::this_thread::sleep_for(chance.percent(percent) ? longer : Millis(chance.below(20)));
    if (!effect(operation, id, &claim, "main")) return give_up(id, claim);
    if (bug_ == "released_after_acting" && chance.percent(30)) {
      return finish(id, "release", "", [&] { return claim.release("by chance"); });
    }
    if (way < 13) return finish(id, "hold", "", [&] { return claim.hold("by chance"); });
    finish(id, "complete", result, [&] {
      Finish end = claim.complete(Result::inlined(result));
      if (bug_ == "acts_again" && end.kind == Finish::Kind::unrecorded) effect(operation, id, nullptr, "main");
      return end;
    });
  }

  // Looks before it leaps: true if the effect was made.
  bool effect(const Operation& operation, std::uint64_t id, const Claim* claim, const char* what) {
    const std::int64_t looked = monotonic_ns();
    const bool ours = claim == nullptr || bug_ == "acts_late" || claim->is_ours();
    if (!ours) return false;
    ordered_json line{{"t", looked}, {"w", name_}, {"id", id}, {"what", what}, {"op", operation.text()}};
    if (claim != nullptr) {
      line["k"] = claim->key();
      line["o"] = claim->owner().hex().substr(0, 16);
      line["tk"] = claim->token();
    }
    ledger_.add(line);
    ledger_.sync();
    return true;
  }

  void give_up(std::uint64_t id, Claim& claim) {
    lines_->add({{"t", monotonic_ns()}, {"finish", id}, {"op", "give_up"}});
    claim = {};  // It may have acted, so it lapses.
  }

  template <class End>
  void finish(std::uint64_t id, const char* operation, const std::string& result, End&& end) {
    lines_->add({{"t", monotonic_ns()}, {"finish", id}, {"op", operation}, {"res", result}});
    const Finish finish = end();
    ordered_json line{
        {"t", monotonic_ns()}, {"finished", id}, {"how", text(finish.kind)}, {"n", told(finish.record.get())}};
    if (!finish.error.message.empty()) line["why"] = finish.error.message;
    lines_->add(line);
  }

  static const char* text(Finish::Kind kind) {
    static constexpr const char* kinds[] = {"recorded", "superseded", "lost", "unrecorded", "declined"};
    return kinds[static_cast<std::size_t>(kind)];
  }

  // ---- Operators.

  void act(Chance& chance) {
    const std::string name = draw(chance).second;
    const std::string tenant = chance.percent(50) ? "a" : "b";
    const Answer answer = blocking::get(*store_, Key(tenant, name).stored());
    if (answer.status != AnswerStatus::done || answer.record == nullptr) return;
    const Record& seen = *answer.record;
    const Stamp stamp(operate::now(*store_, *system_clock()), chance.bits());
    const operate::Reason reason{"operator", "the proof"};
    operate::Resolution resolution;
    resolution.result = Result::inlined(tenant + '|' + name + '|' + seen.fingerprint.hex().substr(0, 8) + "|operator");
    static constexpr const char* acts[] = {"resolve", "release", "extend", "remove"};
    // Mostly what waits for an operator; now and then by force, under a live claim.
    resolution.force = chance.percent(10);
    const std::size_t which = seen.state == State::unknown ? chance.below(2) : chance.below(4);
    operate::Plan plan;
    if (which == 0) plan = operate::plan_resolve(seen, resolution, reason, chance.owner(), stamp);
    if (which == 1) plan = operate::plan_release(seen, resolution, reason, chance.owner(), stamp);
    if (which == 2) plan = operate::plan_extend(seen, lease_, reason, stamp, skew_);
    if (which == 3) plan = operate::plan_remove(seen, resolution.force, reason, stamp.now);
    if (!plan.next) return;
    const std::uint64_t id = next_id();
    lines_->add({{"t", monotonic_ns()}, {"act", id}, {"what", acts[which]}, {"k", seen.key}});
    const operate::Applied applied = which == 3 ? operate::remove(*store_, seen, answer.place)
                                                : operate::apply(*store_, seen, answer.place, std::move(*plan.next));
    static constexpr const char* ends[] = {"done", "changed", "failed"};
    lines_->add({{"t", monotonic_ns()}, {"acted", id}, {"how", ends[static_cast<std::size_t>(applied.kind)]}});
  }

  void sweep() {
    try {
      const StoreTime now = operate::learn_now(*store_, *system_clock());
      blocking::sweep(*store_, now.now - now.error, 1'000);
    } catch (const Exception& error) {
      lines_->add({{"t", monotonic_ns()}, {"sweep failed", error.what()}});
    }
    std::this_thread::sleep_for(Millis(200));
  }

  const Settings& settings_;
  const std::string name_;
  const std::string bug_;
  const Millis lease_;
  const Millis skew_;
  const std::shared_ptr<Lines> lines_;
  Lines ledger_;
  const std::shared_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> ended_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

}  // namespace once::proof

int main(int argc, char** argv) {
  try {
    const once::proof::Settings settings(argc, argv);
    once::proof::Worker worker(settings);
    const std::string role = settings.text("role");
    if (role == "audit") {
      worker.audit();
    } else if (role == "operate") {
      worker.operate();
    } else if (role == "work") {
      worker.work();
    } else {
      throw once::Exception(once::ErrorKind::misuse, "no role " + role);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "proof_worker: %s\n", error.what());
  }
  return 2;
}
