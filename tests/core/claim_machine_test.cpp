// The claim as a machine: transcripts of it (claims/*.txt), and the table of docs/claim-table.md.
//
// A transcript (../transcript.hpp) plays events and tells the actions that they led to. After each comment it is about
// another claim of a lease of 9 s, made at 0 ms, of the key "k".
//
//   policy [fixed] [no-heartbeat] [small] [companions]   at the start: a fixed lease, a store for 16 KiB
//   at MS                    the time
//   ahead MS                 by how much the store's clock is found to be later than the answers told before
//   beat · note TEXT · step NAME [BYTES] · forget
//   complete TEXT · offloaded TEXT · together TEXT (with a companion) · fail CODE · hold · release
//   hand-out · committed · rolled-back · in-doubt · forget-transaction · take-back
//   done                     the store has carried the write out
//   refused WHAT · read WHAT     what stands there: nothing, other, released, written (what was sent), extended and
//                            held (by an operator), extended-twice, extended-unnamed (the act does not name its
//                            revision), redelivered (our first write, delivered again after a removal, and extended by
//                            an operator until its revision is later than ours), completed (by this owner), unknown
//                            (lapsed under hold, and marked by another caller); earlier (the first write that was in
//                            doubt), earlier-extended; renewed-by-copy (a copy of this process has renewed the claim),
//                            extended-copy (that, extended by an operator), written-by-copy (a copy wrote the same as
//                            we, under a revision of its own), written-extended (what was sent, extended)
//   failed KIND [unfit|no_room|declined]     unavailable, in_doubt, misuse; a failed read is "read failed"
//   retry                    the timer fires
//   look                     whether the claim is certainly the holder's
#include "core/claim_machine.hpp"

#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <once/decide.hpp>

#include "../printed_page.hpp"
#include "../transcript.hpp"

namespace once {
namespace claim_machine_test {

using namespace std::chrono_literals;
using Machine = ClaimMachine;
using Words = std::vector<std::string>;

constexpr Time epoch{Millis{1'000'000}};  // The store's time at 0 ms.

std::string_view name_of(Machine::Op op) {
  static constexpr const char* names[] = {"renewal", "step", "completion", "failure", "hold", "release", "fence"};
  return names[static_cast<std::size_t>(op)];
}

std::string_view name_of(Machine::Notice notice) {
  static constexpr const char* names[] = {"renewed",   "step_recorded", "completed",    "failed",
                                          "held",      "released",      "renewal_lost", "finish_refused",
                                          "abandoned", "declined",      "unrecorded",   "store_error"};
  return names[static_cast<std::size_t>(notice)];
}

std::string_view name_of(Finish::Kind kind) {
  static constexpr const char* names[] = {"recorded", "superseded", "lost", "unrecorded", "declined"};
  return names[static_cast<std::size_t>(kind)];
}

std::string text_of(const RecordPtr& record) {
  if (record == nullptr) return "nothing";
  std::string out(to_string(record->state));
  out += " " + std::to_string(revision_count(record->revision));
  if (record->state == State::in_progress) {
    out += is_released(*record) ? " released" : " until " + std::to_string((record->lease_until - epoch).count());
  }
  for (const Step& step : record->steps) out += " +" + step.name;
  if (!record->note.empty()) out += " '" + record->note + "'";
  if (!record->result.bytes.empty()) out += " " + record->result.bytes.substr(0, 20);
  if (record->result.placement == Placement::dropped) out += " dropped";
  if (record->result.placement == Placement::offloaded) out += " at " + record->result.location;
  if (!record->failure.code.empty()) out += " " + record->failure.code;
  return out;
}

// One machine, the time, and what it has sent.
class Player {
 public:
  Player() = default;
  Player(const Player&) = delete;  // The machine refers to these members.
  Player& operator=(const Player&) = delete;
  void play(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    if (what == "policy") return set(words);
    if (what == "look") return tell(machine_ && machine_->is_ours(now_) ? "ours" : "not ours");
    if (what == "at") {
      now_ = Millis(std::stol(words.at(0)));
      return;
    }
    if (what == "ahead") {
      ahead_ = Millis(std::stol(words.at(0)));
      return;
    }
    make();
    Machine::Actions out;
    const int asked_before = asked_;
    try {
      event(what, words, out);
    } catch (const Exception& error) {
      tell("misuse: " + std::string(error.what()));
      asked_ = asked_before;
    }
    carry_out(out);
  }

  // Calls that were not answered yet.
  [[nodiscard]] int asked() const noexcept { return asked_; }
  [[nodiscard]] int reads() const noexcept { return reads_; }
  [[nodiscard]] bool is_sent() const noexcept { return sent_ != nullptr; }
  [[nodiscard]] bool is_handed_out() const noexcept { return machine_ && machine_->is_handed_out(); }

  [[nodiscard]] bool has_overwritten() const noexcept { return overwrote_; }

  // What it led to since the last time, a line each.
  Words take() { return std::exchange(told_, {}); }

  std::string stage() {
    make();
    std::string out;
    switch (machine_->stage()) {
      case Machine::Stage::idle:
        return "idle";
      case Machine::Stage::lost:
        return "lost";
      case Machine::Stage::ended:
        return "ended";
      case Machine::Stage::handed_out:
        return "handed out";
      case Machine::Stage::writing:
        out = std::string(name_of(*machine_->op())) + " on its way";
        break;
      case Machine::Stage::waiting:
        out = std::string(name_of(*machine_->op())) + " waits for its retry";
        break;
    }
    return machine_->is_handed_out() ? "handed out, " + out : out;
  }

 private:
  [[nodiscard]] Moment moment() const {
    return {.uptime = now_, .now = epoch + now_ + ahead_, .error = Millis{0}, .told = true};
  }

  void set(const Words& words) {
    for (const std::string& word : words) {
      if (word == "fixed") policy_.fixed_lease = true;
      if (word == "no-heartbeat") policy_.heartbeat = false;
      if (word == "small") setting_.max_record_bytes = 16 * 1024;
    }
  }

  void make() {
    if (machine_) return;
    policy_.lease = 9s;
    policy_.retention = 1h;
    attempt_ = {.key = "k", .owner = owner(1), .fingerprint = {}, .holder = "host:1"};
    machine_.emplace(attempt_, policy_, setting_,
                     share(claimed(attempt_, policy_, Stamp(epoch, 0), nullptr, Verdict::execute)), 0, Uptime{0},
                     Uptime{0}, trusted_until(policy_, Uptime{0}, Millis{0}));
  }

  static Owner owner(std::uint8_t byte) {
    Owner out;
    out.bytes.fill(byte);
    return out;
  }

  FinishDone done(const std::string& what) {
    ++asked_;
    return [this, what](Finish finish) {
      --asked_;
      tell("answer the " + what + ": " + std::string(name_of(finish.kind)) +
           (finish.error.message.empty() ? "" : ", " + finish.error.message));
    };
  }

  void event(const std::string& what, const Words& words, Machine::Actions& out) {
    const auto word = [&](std::size_t i) { return i < words.size() ? words[i] : std::string(); };
    if (what == "beat") return machine_->beat(now_, out);
    if (what == "note") return machine_->note(word(0), out);
    if (what == "step") {
      std::string bytes = words.size() > 1 ? std::string(std::stoul(words[1]), 'x') : "done";
      return machine_->step({words.at(0), std::move(bytes)}, done("step"), out);
    }
    if (what == "forget") return machine_->abandon(out);
    if (what == "hand-out") return machine_->hand_out(done("transaction"), out);
    if (what == "committed") return machine_->handed_back(Machine::Outcome::committed, out);
    if (what == "rolled-back") return machine_->handed_back(Machine::Outcome::rolled_back, out);
    if (what == "in-doubt") return machine_->handed_back(Machine::Outcome::in_doubt, out, done("transaction"));
    if (what == "forget-transaction") return machine_->forget_handed_out(out);
    if (what == "take-back" && machine_->is_handed_out()) --asked_;  // The hand-out's: nobody waits for that any more.
    if (what == "take-back") return machine_->take_back(out);
    if (what == "retry") return machine_->retry(turn_, out);
    if (what == "read") --reads_;
    if (what == "read") return machine_->read(answer_to_read(words), out);
    if (what == "done" || what == "refused" || what == "failed") {
      if (!sent_) throw std::runtime_error("nothing was sent");
      return machine_->answered(answer(what, words, std::exchange(sent_, nullptr)), moment(), out);
    }
    Machine::Write write;
    Result result;
    write.done = done("finish");
    write.text = std::make_unique<Failure>(Failure{.code = word(0), .message = "why"});
    result = Result::inlined(word(0));
    if (what == "complete" || what == "offloaded" || what == "together") {
      write.op = Machine::Op::complete;
    } else if (what == "fail") {
      write.op = Machine::Op::fail;
      result = {};
    } else if (what == "hold") {
      write.op = Machine::Op::hold;
    } else if (what == "release") {
      write.op = Machine::Op::release;
    } else {
      throw std::runtime_error("no such event: " + what);
    }
    if (what == "offloaded") {
      result = {};
      result.placement = Placement::offloaded;
      result.location = word(0);
      write.offloaded = true;
    }
    if (what == "together") {
      write.together = std::make_unique<Machine::Together>();
      write.together->companion = std::make_shared<Companion>();
    }
    machine_->ask_finish();
    machine_->finish(std::move(write), std::move(result), out);
  }

  RecordPtr standing(const std::string& what, const RecordPtr& sent) {
    if (what == "nothing") return nullptr;
    if (what == "written") return sent;
    const auto extend = [](Record& record, bool named = true) {
      const std::uint64_t replaced = std::exchange(record.revision, next_revision(record.revision, 7));
      record.lease_until += 1h;
      append(record.history, {.what = "lease extended",
                              .who = "bob",
                              .revision = named ? record.revision : 0,
                              .replaced = named ? replaced : 0});
    };
    if (what == "earlier" || what == "earlier-extended" || what == "written-extended" || what == "written-by-copy") {
      Record record = what.starts_with("earlier") ? *in_doubt_.at(0) : *sent;
      if (what == "written-by-copy") record.revision ^= 0x800U;
      if (what.ends_with("extended")) extend(record);
      return share(std::move(record));
    }
    Record record = *machine_->record();
    const Stamp stamp(epoch + now_, 7);
    if (what.starts_with("extended")) {
      if (what == "extended-copy") renew(record, policy_, Stamp(epoch + now_, 0x900));
      extend(record, what != "extended-unnamed");
      if (what == "extended-twice") extend(record);
      return share(std::move(record));
    }
    const std::uint64_t replaced = record.revision;
    record.revision = next_revision(record.revision, stamp.random);
    if (what == "other") {
      record.owner = owner(2);
    } else if (what == "released") {
      release(record, "by hand", policy_, stamp);
    } else if (what == "renewed-by-copy") {
      record.lease_until += 1s;
    } else if (what == "redelivered") {
      record.steps.clear();
      append(record.history, {.what = "lease extended", .who = "bob", .revision = record.revision, .replaced = 1});
    } else if (what == "held") {
      record.on_lapse = OnLapse::hold;
      record.expires_at = never;
      append(record.history, {.what = "hold", .who = "bob", .revision = record.revision, .replaced = replaced});
    } else if (what == "unknown") {
      mark_lapsed(record, stamp);
    } else if (what == "completed") {
      complete(record, Result::inlined("in the transaction"), policy_, stamp);
    } else {
      throw std::runtime_error("nothing stands so: " + what);
    }
    return share(std::move(record));
  }

  Answer answer(const std::string& what, const Words& words, const RecordPtr& sent) {
    Answer answer;
    if (what == "done") return answer;
    if (what == "refused") {
      answer.status = AnswerStatus::refused;
      answer.record = standing(words.at(0), sent);
      return answer;
    }
    const std::string& kind = words.at(0);
    if (kind == "in_doubt") in_doubt_.push_back(sent);
    answer = Answer::fail(kind == "in_doubt" ? ErrorKind::in_doubt
                          : kind == "misuse" ? ErrorKind::misuse
                                             : ErrorKind::unavailable,
                          "no store");
    answer.unfit = words.size() > 1 && words[1] == "unfit";
    answer.no_room = words.size() > 1 && words[1] == "no_room";
    answer.declined = words.size() > 1 && words[1] == "declined";
    return answer;
  }

  Answer answer_to_read(const Words& words) {
    if (words.at(0) == "failed") return Answer::fail(ErrorKind::unavailable, "no store");
    Answer answer;
    answer.record = words[0] == "unchanged" ? machine_->record() : standing(words[0], nullptr);
    return answer;
  }

  void tell(std::string line) { told_.push_back(std::move(line)); }

  void carry_out(Machine::Actions& actions) {
    actions.take([this](auto&& action) { act(std::move(action)); });
  }
  void act(Machine::Send&&) {
    auto write = machine_->transmit(moment(), ++random_);
    if (!write) return tell("nothing to send");
    overwrote_ = overwrote_ || machine_->record()->state != State::in_progress;
    sent_ = write->next;
    tell((write->removes                ? std::string("remove")
          : write->companion != nullptr ? "write with its companion: " + text_of(write->next)
                                        : "write: " + text_of(write->next)) +
         " over " + std::to_string(revision_count(write->seen.revision)));
  }
  void act(Machine::RetryAt&& retry) {
    turn_ = retry.turn;
    tell("retry " + std::to_string(retry.tries) + " after a backoff, at " +
         std::to_string(std::chrono::floor<Millis>(retry.latest).count()) + " at the latest");
  }
  void act(Machine::DropRetry&&) { tell("drop the retry"); }
  void act(Machine::BeatAt&& beat) { tell("beat at " + std::to_string(std::chrono::floor<Millis>(beat.due).count())); }
  void act(Machine::Tell&& told) { tell("tell " + std::string(name_of(told.notice))); }
  void act(Machine::StopWork&& stop) { tell(stop.for_good ? "stop the work" : "pause the work"); }
  void act(Machine::Reply&& reply) { reply.done(std::move(reply.finish)); }
  void act(Machine::LookUp&& look) {
    --asked_;
    tell(look.is_seen ? "answer by what stands there: " + text_of(look.seen) : "answer by what a read finds");
  }
  void act(Machine::Read&&) {
    ++reads_;
    tell("read");
  }
  void act(Machine::Discard&& discard) { tell("discard " + discard.location); }
  void act(Machine::Ended&& ended) {
    tell(ended.gone                ? "ended: nothing is stored"
         : ended.record == nullptr ? "ended: what is stored is not known"
                                   : "ended");
    if (ended.done) ended.done({.kind = Finish::Kind::recorded, .record = std::move(ended.record), .error = {}});
  }

  EffectivePolicy policy_;
  Attempt attempt_;
  Machine::Setting setting_{.max_record_bytes = 1'000'000, .is_observed = true};
  std::optional<Machine> machine_;
  RecordPtr sent_;
  std::vector<RecordPtr> in_doubt_;
  Millis now_{0};
  Millis ahead_{0};
  std::uint64_t turn_ = 0;
  std::uint32_t random_ = 0;
  int asked_ = 0;
  int reads_ = 0;
  bool overwrote_ = false;  // It has sent a write over a record that it knows to be finished.
  Words told_;
};

// ---- transcripts

class ClaimTranscript : public ::testing::TestWithParam<std::string> {};

TEST_P(ClaimTranscript, GoesAsWritten) {
  std::optional<Player> player(std::in_place);
  play_transcript(std::string(ONCE_CLAIMS) + "/" + GetParam() + ".txt",
                  {.play = [&](const std::string& line) { player->play(line); },
                   .take =
                       [&] {
                         std::string told;
                         for (const std::string& line : player->take()) told += line + "\n";
                         return told;
                       },
                   .comment = [&] { player.emplace(); }});  // Each comment begins another claim.
}

INSTANTIATE_TEST_SUITE_P(All, ClaimTranscript, ::testing::ValuesIn(transcripts_in(ONCE_CLAIMS)),
                         [](const auto& test) { return test.param; });

// ---- every call is answered

// Events at random, and then answers until nothing is under way. Whoever waits for a call would otherwise wait for
// ever.
TEST(ClaimMachine, every_call_is_answered) {
  const Words calls = {
      "beat",    "note n", "step",     "complete x", "offloaded x",        "together x",  "fail c",   "hold",
      "release", "forget", "hand-out", "committed",  "forget-transaction", "rolled-back", "take-back"};
  const Words answers = {"done",
                         "refused nothing",
                         "refused written",
                         "refused other",
                         "refused held",
                         "refused released",
                         "refused extended",
                         "refused extended-twice",
                         "refused renewed-by-copy",
                         "refused completed",
                         "refused unknown",
                         "failed in_doubt",
                         "failed unavailable",
                         "failed misuse",
                         "failed misuse unfit",
                         "failed unavailable no_room",
                         "failed in_doubt no_room",
                         "failed unavailable declined"};
  const Words read_answers = {"read failed",  "read unchanged", "read completed",
                              "read unknown", "read other",     "read nothing"};
  for (std::uint32_t seed = 0; seed < 20'000; ++seed) {
    std::minstd_rand random(seed + 1);
    const auto one_of = [&](const Words& words) { return words[random() % words.size()]; };
    Player player;
    Words path;
    const auto play = [&](const std::string& line) {
      path.push_back(line);
      player.play(line);
    };
    long now = 0;
    const auto answer = [&](bool last) {
      const std::string stage = player.stage();
      if (player.reads() > 0) return play(last ? "read other" : one_of(read_answers));
      if (player.is_sent()) {
        std::string line = last ? "refused other" : one_of(answers);
        if (line.ends_with("declined") && stage.find("completion") == std::string::npos) line = "done";
        return play(line);
      }
      if (stage.find("waits") != std::string::npos) return play("retry");
    };
    bool told = false;     // How the transaction ended: a second word is no call.
    bool dropped = false;  // No handle is left to call by.
    int steps = 0;
    for (int i = 0; i < 14 && !dropped; ++i) {
      if (random() % 3 == 0) {
        answer(false);
        continue;
      }
      std::string call = one_of(calls);
      if (call == "committed" || call == "forget-transaction" || call == "rolled-back" || call == "take-back") {
        if (!player.is_handed_out() || told) continue;
        told = true;
      }
      if (call == "hand-out" && !player.is_handed_out()) told = false;
      if (call == "forget") {
        if (player.is_handed_out()) continue;  // Whoever has that has the handle too.
        dropped = true;
      }
      if (call == "step") call += " s" + std::to_string(steps++);
      if (call == "beat") play("at " + std::to_string(now += 3'000));
      play(call);
    }
    if (player.is_handed_out() && !told) play("forget-transaction");
    for (int i = 0; i < 60; ++i) answer(true);
    std::string all;
    for (const std::string& line : path) all += line + "\n";
    ASSERT_FALSE(player.has_overwritten()) << "seed " << seed << ":\n" << all;
    ASSERT_EQ(player.asked(), 0) << "seed " << seed << ", " << player.stage() << ":\n" << all;
  }
}

// ---- the table

struct Situation {
  const char* how;  // For readers, after the machine's own name for it.
  Words path;       // The events that lead there.
};

const std::vector<Situation> situations = {
    {"", {}},
    {"", {"at 3000", "beat"}},
    {"", {"at 3000", "beat", "failed in_doubt"}},
    {"", {"step a"}},
    {"", {"complete x"}},
    {"", {"complete x", "failed in_doubt"}},
    {"with a companion", {"together x"}},
    {"after a decline that may come too early",
     {"together x", "failed in_doubt", "retry", "failed unavailable declined"}},
    {"", {"release"}},
    {"", {"hand-out"}},
    {"", {"hand-out", "at 3000", "beat"}},
    {"", {"at 3000", "beat", "refused other"}},
    {"", {"complete x", "done"}},
};

const Words all_events = {"beat",
                          "beat, the lease is over",
                          "note n",
                          "step b",
                          "complete y",
                          "release",
                          "forget",
                          "hand-out",
                          "committed",
                          "rolled-back",
                          "in-doubt",
                          "forget-transaction",
                          "take-back",
                          "retry",
                          "done",
                          "refused nothing",
                          "refused written",
                          "refused other",
                          "refused released",
                          "refused extended",
                          "refused held",
                          "refused renewed-by-copy",
                          "refused completed",
                          "failed unavailable",
                          "failed in_doubt",
                          "failed misuse",
                          "failed misuse unfit",
                          "failed unavailable declined"};

bool is_answer(const std::string& event) {
  return event == "done" || event.starts_with("refused") || event.starts_with("failed");
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string table() {
  std::ostringstream out;
  out << "# What a claim does\n\n"
         "Printed by `tests/core/claim_machine_test.cpp` from what `ClaimMachine` (`src/core/claim_machine.hpp`) does; "
         "do\n"
         "not edit. To write it anew: `ONCE_WRITE_DOCS=1 <build>/tests/core/core_test`.\n\n"
         "A claim with a lease of 9 s, made at 0 ms. Each section is a state, each row an event, what is done then, in "
         "that\n"
         "order, and the state after it. `write: in_progress 2 until 12000 over 1` replaces the record's first write "
         "by a\n"
         "second one, with a lease until 12 000 ms. What is not listed changes nothing.\n";
  for (const Situation& situation : situations) {
    const auto arrive = [&] {
      auto player = std::make_unique<Player>();
      for (const std::string& line : situation.path) player->play(line);
      player->take();
      return player;
    };
    out << "\n## " << arrive()->stage() << (*situation.how == '\0' ? "" : std::string(", ") + situation.how) << "\n\n"
        << "| event | then | state |\n|---|---|---|\n";
    for (const std::string& event : all_events) {
      const std::unique_ptr<Player> player = arrive();
      const std::string before = player->stage();
      if (is_answer(event) && before.find("on its way") == std::string::npos) continue;
      if (event == "retry" && before.find("waits") == std::string::npos) continue;
      if (event.ends_with("declined") && before.find("completion") == std::string::npos) continue;
      if (event.starts_with("beat")) player->play(event == "beat" ? "at 3000" : "at 9000");
      player->play(event.starts_with("beat") ? "beat" : event);
      const Words told = player->take();
      if (told.empty() && player->stage() == before) continue;
      out << "| " << event << " | " << (told.empty() ? "nothing" : "");
      for (std::size_t i = 0; i < told.size(); ++i) out << (i == 0 ? "" : "; ") << cell(told[i]);
      out << " | " << (player->stage() == before ? "the same" : player->stage()) << " |\n";
    }
  }
  return out.str();
}

TEST(ClaimMachine, the_table_in_the_docs_is_this_one) { expect_page(ONCE_CLAIM_TABLE, table()); }

}  // namespace claim_machine_test
}  // namespace once
