#include "coverage.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <once/decide.hpp>
#include <once/error.hpp>

namespace once::simulation {

namespace {

constexpr std::array ops = {"renewal", "step", "completion", "failure", "hold", "release", "fence"};

std::string text_of(std::string_view bytes) { return std::string(bytes); }
std::string key_of(const Owner& owner) {
  return {reinterpret_cast<const char*>(owner.bytes.data()), owner.bytes.size()};
}

std::string state_of_record(const Record& record, Time now) {
  if (is_expired(record.expires_at, now)) return std::string("expired, ") + std::string(to_string(record.state));
  if (record.state != State::in_progress) return std::string(to_string(record.state));
  if (is_released(record)) return "released";
  return record.lease_until > now ? "in_progress" : "in_progress, lapsed";
}

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + " cannot be read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '|');) {
    const std::size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

// Names there that are those of an example, as "note n", without it.
std::string event_in_table(const std::string& cell) {
  for (const char* const name : {"note", "step", "complete"}) {
    if (cell.starts_with(std::string(name) + " ")) return name;
  }
  return cell;
}

std::set<std::string> rows_of_claim_table(const std::string& file) {
  std::set<std::string> rows;
  std::string section;
  for (const std::string& line : lines_of(file)) {
    if (line.starts_with("## ")) {
      section = line.substr(3, line.find(", after") - 3);
    } else if (line.starts_with("| ") && !line.starts_with("| event")) {
      rows.insert("claim: " + section + " | " + event_in_table(cells_of(line).at(1)));
    }
  }
  return rows;
}

std::set<std::string> rows_of_decision_table(const std::string& file) {
  std::set<std::string> rows;
  for (const std::string& line : lines_of(file)) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() < 6 || cells[1].empty() || cells[1].front() == '-') continue;
    if (cells[1].front() >= '0' && cells[1].front() <= '9') rows.insert("decision: " + cells[1]);
    if (cells.size() != 7 || cells[1] == "state" || cells[1] == "#") continue;
    static const std::array columns = {"takeover, replay", "hold, replay", "takeover, execute", "hold, execute"};
    if (cells[1].front() >= '0' && cells[1].front() <= '9') continue;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      rows.insert("decision: " + cells[1] + " | " + cells[2] + " | " + columns.at(i));
    }
  }
  return rows;
}

const std::vector<std::string>& states_of_claims() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> states = {"idle", "lost", "handed out"};
    for (const char* const op : ops) {
      states.push_back(text_of(op) + " on its way");
      states.push_back(text_of(op) + " waits for its retry");
    }
    for (const char* const how : {"completion on its way", "completion waits for its retry"}) {
      states.push_back(text_of(how) + ", with a companion");
    }
    for (const char* const how : {"renewal on its way", "renewal waits for its retry"}) {
      states.push_back("handed out, " + text_of(how));
    }
    return states;
  }();
  return all;
}

std::set<std::string> pairs() {
  std::set<std::string> all;
  std::vector<std::string> requests = {"read",
                                       "insert",
                                       "claim over another",
                                       "claim counted anew",
                                       "mark unknown",
                                       "completion with a companion",
                                       "removal",
                                       "statement of a transaction",
                                       "commit"};
  for (const char* const op : ops) requests.emplace_back(op);
  for (const char* const mishap : mishaps) {
    for (const std::string& request : requests) all.insert(text_of(mishap) + ": " + request);
  }
  for (const char* const blow : blows) {
    for (const std::string& state : states_of_claims()) all.insert(text_of(blow) + ": claim " + state);
  }
  for (const char* const act : acts) {
    const bool sweeps = text_of(act) == "sweep";
    for (const char* const state : {"in_progress", "completed", "failed", "unknown"}) {
      if (sweeps || text_of(state) != "unknown") all.insert(text_of(act) + ": expired, " + state);
      if (!sweeps) all.insert(text_of(act) + ": " + state);
    }
    if (sweeps) continue;
    all.insert(text_of(act) + ": in_progress, lapsed");
    all.insert(text_of(act) + ": released");
    for (const std::string& state : states_of_claims()) all.insert(text_of(act) + ": claim " + state);
  }
  return all;
}

}  // namespace

Coverage& coverage() {
  static Coverage all;
  return all;
}

std::string Coverage::state_of(const Owner& claim) const {
  const auto found = states_.find(key_of(claim));
  return found == states_.end() ? "ended" : found->second;
}

void Coverage::met(Act act, const Record& record, Time now) {
  if (!on) return;
  count(acts.at(index(act)), state_of_record(record, now));
  if (act == Act::sweep) return;
  const std::string claim = state_of(record.owner);
  if (claim != "ended") count(acts.at(index(act)), "claim " + claim);
}

void Coverage::began(const ClaimMachine& machine) {
  machines_.erase(&machine);
  states_[key_of(machine.record()->owner)] = "idle";
}

// As in docs/claim-table.md.
std::string Coverage::state(const ClaimMachine& machine) {
  using Stage = ClaimMachine::Stage;
  std::string out;
  switch (machine.stage()) {
    case Stage::idle:
      return "idle";
    case Stage::lost:
      return "lost";
    case Stage::ended:
      return "ended";
    case Stage::handed_out:
      return "handed out";
    case Stage::writing:
      out = text_of(ops.at(index(*machine.op()))) + " on its way";
      break;
    case Stage::waiting:
      out = text_of(ops.at(index(*machine.op()))) + " waits for its retry";
      break;
  }
  if (machine.op() == ClaimMachine::Op::complete && machines_[&machine].with_companion) out += ", with a companion";
  return machine.is_handed_out() ? "handed out, " + out : out;
}

void Coverage::happened(const ClaimMachine& machine, const Before& before) {
  ++met_["claim: " + before.state + " | " + before.event];
  states_[key_of(machine.record()->owner)] = state(machine);
}

void Coverage::sent(const ClaimMachine& machine, const RecordPtr& next) {
  Machine& known = machines_[&machine];
  known.sent = next;
  known.revisions.push_back(next->revision);
  const bool together = machine.op() == ClaimMachine::Op::complete && known.with_companion;
  sending_ = text_of(ops.at(index(*machine.op()))) + (together ? " with a companion" : "");
  states_[key_of(machine.record()->owner)] = state(machine);
}

// What a store's answer tells, as in docs/claim-table.md.
std::string Coverage::event_of(const ClaimMachine& machine, const Answer& answer) {
  if (answer.status == AnswerStatus::done) return "done";
  if (answer.status == AnswerStatus::failed) {
    const ErrorKind kind = answer.error.kind;
    return std::string("failed ") +
           (kind == ErrorKind::in_doubt ? "in_doubt"
            : kind == ErrorKind::misuse ? "misuse"
                                        : "unavailable") +
           (answer.unfit ? " unfit" : "") + (answer.declined ? " declined" : "");
  }
  if (answer.record == nullptr) return "refused nothing";
  const Record& seen = *answer.record;
  const Record& known = *machine.record();
  const RecordPtr sent = machines_[&machine].sent;
  if (!(seen.owner == known.owner)) return "refused other";
  if (sent != nullptr && seen == *sent) return "refused written";
  if (seen.state == State::completed || seen.state == State::unknown) {
    return std::string("refused ") + std::string(to_string(seen.state));
  }
  if (seen.state == State::failed) return "refused failed";
  if (is_released(seen)) return "refused released";
  if (revision_count(seen.revision) <= revision_count(known.revision)) return "refused earlier";
  const auto& sent_before = machines_[&machine].revisions;
  const bool is_explained =
      leads_back(seen, known.revision) ||
      std::any_of(sent_before.begin(), sent_before.end(), [&](std::uint64_t ours) { return leads_back(seen, ours); });
  if (!is_explained) return "refused renewed-by-copy";
  return seen.on_lapse == OnLapse::hold && known.on_lapse != OnLapse::hold ? "refused held" : "refused extended";
}

bool Coverage::report(std::ostream& out, const std::string& folder) const {
  std::set<std::string> wanted = rows_of_claim_table(folder + "/docs/claim-table.md");
  wanted.merge(rows_of_decision_table(folder + "/docs/decision-table.md"));
  wanted.merge(pairs());
  std::map<std::string, std::string> excused;
  std::string reason;
  std::set<std::string> seldom;
  for (const std::string& line : lines_of(folder + "/tests/simulation/never_met.txt")) {
    if (line.empty()) continue;
    constexpr std::string_view rare = "seldom ";
    if (line.starts_with("# ")) {
      reason = line.substr(2);
    } else if (line.starts_with(rare)) {
      seldom.insert(line.substr(rare.size()));
    } else {
      excused[line] = reason;
    }
  }
  std::size_t met = 0;
  std::size_t wrong = 0;
  for (const std::string& row : wanted) {
    const auto found = met_.find(row);
    const std::uint64_t times = found == met_.end() ? 0 : found->second;
    met += times > 0 ? 1 : 0;
    const bool is_excused = excused.erase(row) > 0;
    out << times << "\t" << row << '\n';
    if (seldom.erase(row) > 0 || (times > 0) != is_excused) continue;
    ++wrong;
    out << (times > 0 ? "  is met, and never_met.txt lists it\n" : "  WAS NEVER MET\n");
  }
  for (const auto& [row, times] : met_) {
    if (!wanted.contains(row)) out << times << "\t" << row << "  (not asked for)\n";
  }
  for (const auto& [row, why] : excused) seldom.insert(row);
  for (const std::string& row : seldom) {
    ++wrong;
    out << "never_met.txt lists " << row << ", which nothing asks for\n";
  }
  out << met << " of " << wanted.size() << " rows and pairs were met, " << wrong << " are not as they should be\n";
  return wrong == 0;
}

// ---- the counters

namespace {

using Machine = ClaimMachine;
using Actions = ClaimMachine::Actions;

// Counts `event` of the state before it. A call that throws is an event too: it is misuse.
template <class Call>
auto counted(Machine& machine, std::string_view event, Call call) {
  Coverage& all = coverage();
  if (!all.on) return call();
  const Coverage::Before before{all.state(machine), std::string(event)};
  struct Count {
    Coverage& all;
    Machine& machine;
    const Coverage::Before& before;
    ~Count() { all.happened(machine, before); }
  } const count{all, machine, before};
  return call();
}

}  // namespace

// The linker gives calls of NAME to these, and NAME itself to calls of the second of each pair.
#define ONCE_REAL(name) asm("__real_" name)
#define ONCE_WRAP(name) asm("__wrap_" name)

#define ONCE_BEAT "_ZN4once12ClaimMachine4beatENSt6chrono8durationIlSt5ratioILl1ELl1000000000EEEERNS0_7ActionsE"
void real_beat(Machine*, Uptime, Actions&) ONCE_REAL(ONCE_BEAT);
void wrapped_beat(Machine* machine, Uptime now, Actions& out) ONCE_WRAP(ONCE_BEAT);
void wrapped_beat(Machine* machine, Uptime now, Actions& out) {
  counted(*machine, now >= machine->deadline() ? "beat, the lease is over" : "beat",
          [&] { real_beat(machine, now, out); });
}

#define ONCE_NOTE "_ZN4once12ClaimMachine4noteESt17basic_string_viewIcSt11char_traitsIcEERNS0_7ActionsE"
void real_note(Machine*, std::string_view, Actions&) ONCE_REAL(ONCE_NOTE);
void wrapped_note(Machine* machine, std::string_view text, Actions& out) ONCE_WRAP(ONCE_NOTE);
void wrapped_note(Machine* machine, std::string_view text, Actions& out) {
  counted(*machine, "note", [&] { real_note(machine, text, out); });
}

#define ONCE_STEP "_ZN4once12ClaimMachine4stepENS_4StepENS_8CallbackIFvONS_6FinishEEEERNS0_7ActionsE"
void real_step(Machine*, Step, FinishDone, Actions&) ONCE_REAL(ONCE_STEP);
void wrapped_step(Machine* machine, Step step, FinishDone done, Actions& out) ONCE_WRAP(ONCE_STEP);
void wrapped_step(Machine* machine, Step step, FinishDone done, Actions& out) {
  counted(*machine, "step", [&] { real_step(machine, std::move(step), std::move(done), out); });
}

// Comes before finish(); only what it refuses is an event.
#define ONCE_ASK_FINISH "_ZN4once12ClaimMachine10ask_finishEv"
void real_ask_finish(Machine*) ONCE_REAL(ONCE_ASK_FINISH);
void wrapped_ask_finish(Machine* machine) ONCE_WRAP(ONCE_ASK_FINISH);
void wrapped_ask_finish(Machine* machine) {
  try {
    real_ask_finish(machine);
  } catch (const Exception&) {
    if (coverage().on) coverage().happened(*machine, {coverage().state(*machine), coverage().calling()});
    throw;
  }
}

#define ONCE_FINISH "_ZN4once12ClaimMachine6finishEONS0_5WriteEONS_6ResultERNS0_7ActionsE"
void real_finish(Machine*, Machine::Write&&, Result&&, Actions&) ONCE_REAL(ONCE_FINISH);
void wrapped_finish(Machine* machine, Machine::Write&& write, Result&& result, Actions& out) ONCE_WRAP(ONCE_FINISH);
void wrapped_finish(Machine* machine, Machine::Write&& write, Result&& result, Actions& out) {
  static constexpr std::array names = {"renew", "step", "complete", "fail", "hold", "release", "fence"};
  const char* const event = names.at(static_cast<std::size_t>(write.op));
  if (coverage().on) coverage().finishes(*machine, write.together != nullptr);
  counted(*machine, event, [&] { real_finish(machine, std::move(write), std::move(result), out); });
}

#define ONCE_ABANDON "_ZN4once12ClaimMachine7abandonERNS0_7ActionsE"
void real_abandon(Machine*, Actions&) ONCE_REAL(ONCE_ABANDON);
void wrapped_abandon(Machine* machine, Actions& out) ONCE_WRAP(ONCE_ABANDON);
void wrapped_abandon(Machine* machine, Actions& out) {
  counted(*machine, "forget", [&] { real_abandon(machine, out); });
}

#define ONCE_RETRY "_ZN4once12ClaimMachine5retryEmRNS0_7ActionsE"
void real_retry(Machine*, std::uint64_t, Actions&) ONCE_REAL(ONCE_RETRY);
void wrapped_retry(Machine* machine, std::uint64_t turn, Actions& out) ONCE_WRAP(ONCE_RETRY);
void wrapped_retry(Machine* machine, std::uint64_t turn, Actions& out) {
  counted(*machine, machine->waits(turn) ? "retry" : "retry, out of date", [&] { real_retry(machine, turn, out); });
}

#define ONCE_TRANSMIT "_ZN4once12ClaimMachine8transmitERKNS_6MomentEj"
std::optional<Machine::Transmit> real_transmit(Machine*, const Moment&, std::uint32_t) ONCE_REAL(ONCE_TRANSMIT);
std::optional<Machine::Transmit> wrapped_transmit(Machine* machine, const Moment& moment, std::uint32_t random)
    ONCE_WRAP(ONCE_TRANSMIT);
std::optional<Machine::Transmit> wrapped_transmit(Machine* machine, const Moment& moment, std::uint32_t random) {
  std::optional<Machine::Transmit> write = real_transmit(machine, moment, random);
  if (coverage().on && write) coverage().sent(*machine, write->next);
  return write;
}

#define ONCE_ANSWERED                                                       \
  "_ZN4once12ClaimMachine8answeredEONS_6AnswerERKNS_6MomentERNS0_7ActionsE" \
  "St8optionalINSt6chrono8durationIlSt5ratioILl1ELl1000000000EEEEE"
using Until = std::optional<Uptime>;
void real_answered(Machine*, Answer&&, const Moment&, Actions&, Until) ONCE_REAL(ONCE_ANSWERED);
void wrapped_answered(Machine* machine, Answer&& answer, const Moment& moment, Actions& out, Until until)
    ONCE_WRAP(ONCE_ANSWERED);
void wrapped_answered(Machine* machine, Answer&& answer, const Moment& moment, Actions& out, Until until) {
  const std::string event = coverage().on ? coverage().event_of(*machine, answer) : std::string();
  counted(*machine, event, [&] { real_answered(machine, std::move(answer), moment, out, until); });
}

#define ONCE_HAND_OUT "_ZN4once12ClaimMachine8hand_outENS_8CallbackIFvONS_6FinishEEEERNS0_7ActionsE"
void real_hand_out(Machine*, FinishDone, Actions&) ONCE_REAL(ONCE_HAND_OUT);
void wrapped_hand_out(Machine* machine, FinishDone done, Actions& out) ONCE_WRAP(ONCE_HAND_OUT);
void wrapped_hand_out(Machine* machine, FinishDone done, Actions& out) {
  counted(*machine, "hand-out", [&] { real_hand_out(machine, std::move(done), out); });
}

#define ONCE_HANDED_BACK "_ZN4once12ClaimMachine11handed_backENS0_7OutcomeERNS0_7ActionsENS_8CallbackIFvONS_6FinishEEEE"
void real_handed_back(Machine*, Machine::Outcome, Actions&, FinishDone) ONCE_REAL(ONCE_HANDED_BACK);
void wrapped_handed_back(Machine* machine, Machine::Outcome outcome, Actions& out, FinishDone done)
    ONCE_WRAP(ONCE_HANDED_BACK);
void wrapped_handed_back(Machine* machine, Machine::Outcome outcome, Actions& out, FinishDone done) {
  static constexpr std::array names = {"committed", "rolled-back", "in-doubt"};
  counted(*machine, names.at(static_cast<std::size_t>(outcome)),
          [&] { real_handed_back(machine, outcome, out, std::move(done)); });
}

#define ONCE_FORGET "_ZN4once12ClaimMachine17forget_handed_outERNS0_7ActionsE"
void real_forget(Machine*, Actions&) ONCE_REAL(ONCE_FORGET);
void wrapped_forget(Machine* machine, Actions& out) ONCE_WRAP(ONCE_FORGET);
void wrapped_forget(Machine* machine, Actions& out) {
  counted(*machine, "forget-transaction", [&] { real_forget(machine, out); });
}

#define ONCE_TAKE_BACK "_ZN4once12ClaimMachine9take_backERNS0_7ActionsE"
void real_take_back(Machine*, Actions&) ONCE_REAL(ONCE_TAKE_BACK);
void wrapped_take_back(Machine* machine, Actions& out) ONCE_WRAP(ONCE_TAKE_BACK);
void wrapped_take_back(Machine* machine, Actions& out) {
  counted(*machine, "take-back", [&] { real_take_back(machine, out); });
}

#define ONCE_CONSTRUCT                                                                                      \
  "_ZN4once12ClaimMachineC1ERKNS_7AttemptERKNS_15EffectivePolicyENS0_7SettingESt10shared_ptrIKNS_6RecordEE" \
  "mNSt6chrono8durationIlSt5ratioILl1ELl1000000000EEEESG_SG_"
void real_construct(Machine*, const Attempt&, const EffectivePolicy&, Machine::Setting, RecordPtr, std::uint64_t,
                    Uptime, Uptime, Uptime) ONCE_REAL(ONCE_CONSTRUCT);
void wrapped_construct(Machine*, const Attempt&, const EffectivePolicy&, Machine::Setting, RecordPtr, std::uint64_t,
                       Uptime, Uptime, Uptime) ONCE_WRAP(ONCE_CONSTRUCT);
void wrapped_construct(Machine* machine, const Attempt& attempt, const EffectivePolicy& policy,
                       Machine::Setting setting, RecordPtr record, std::uint64_t place, Uptime leased_at,
                       Uptime claimed_at, Uptime until) {
  real_construct(machine, attempt, policy, setting, std::move(record), place, leased_at, claimed_at, until);
  if (coverage().on) coverage().began(*machine);
}

#define ONCE_DECIDE                                                                                            \
  "_ZN4once6decideEPKNS_6RecordERKNS_7AttemptERKNS_15EffectivePolicyENSt6chrono10time_pointINS9_3_V212system_" \
  "clockENS9_"                                                                                                 \
  "8durationIlSt5ratioILl1ELl1000EEEEEE"
Decision real_decide(const Record*, const Attempt&, const EffectivePolicy&, Time) noexcept ONCE_REAL(ONCE_DECIDE);
Decision wrapped_decide(const Record* seen, const Attempt& attempt, const EffectivePolicy& policy, Time now) noexcept
    ONCE_WRAP(ONCE_DECIDE);
Decision wrapped_decide(const Record* seen, const Attempt& attempt, const EffectivePolicy& policy, Time now) noexcept {
  const Decision decision = real_decide(seen, attempt, policy, now);
  Coverage& all = coverage();
  if (!all.on) return decision;
  const bool released = seen != nullptr && seen->state == State::in_progress && is_released(*seen);
  const char* row = "";
  switch (decision.verdict) {
    case Verdict::execute:
      row = seen == nullptr ? "1" : "2";
      break;
    case Verdict::resume:
      row = "3";
      break;
    case Verdict::mismatch:
      row = "4";
      break;
    case Verdict::replay:
      row = "5";
      break;
    case Verdict::replay_failure:
      row = "6";
      break;
    case Verdict::retry:
      row = "7";
      break;
    case Verdict::unknown:
      row = "8";
      break;
    case Verdict::take_over:
      row = released ? "9" : "11";
      break;
    case Verdict::conflict:
      row = "10";
      break;
    case Verdict::mark_unknown:
      row = "12";
      break;
  }
  all.decided(row);
  // The second table there.
  if (seen == nullptr || decision.verdict == Verdict::execute || decision.verdict == Verdict::resume ||
      decision.verdict == Verdict::mismatch) {
    return decision;
  }
  const bool waits = seen->state == State::in_progress && !released;
  const std::string state = std::string(to_string(seen->state)) + (released ? ", released" : "");
  const std::string lease = !waits                                  ? "-"
                            : now < seen->lease_until               ? "live"
                            : now < seen->lease_until + policy.skew ? "over, within the skew"
                                                                    : "lapsed";
  const bool hold = policy.on_lapse == OnLapse::hold || seen->on_lapse == OnLapse::hold;
  const bool executes = policy.on_stored_failure == OnStoredFailure::execute;
  all.decided(state + " | " + lease + " | " + (hold ? "hold" : "takeover") + (executes ? ", execute" : ", replay"));
  return decision;
}

}  // namespace once::simulation
