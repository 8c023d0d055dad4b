// Watches a run from outside and recomputes what may have happened. Knows the protocol (section numbers below are those
// of docs/protocol in words, not of any code) and nothing of the engine: it sees every write that the store carried
// out, every work that starts and ends, and every answer that a caller is given.
//
// What it demands:
//
//   store       a write is carried out only if its condition holds; a replacement raises the revision's count by one
//   live        an engine's write over somebody else's claim lands only when that claim is released, or its lease as
//               stored is over by the store's true time
//   start       work starts only under a claim that stands in the store as the caller's own, unless an operator came in
//               between; each claim starts one work
//   stops       a holder that was refused because somebody else has its claim, or whose last lease as stored is over by
//               the store's true time, no longer takes the claim for its own when it is about to act
//   sleep       a holder acts under a lease that it knows of: not between the end of one lease and the answer to a
//               renewal, however long its process slept, and however that renewal ended in the store. A claim that is
//               renewed by heartbeats is not given up before a renewal was refused, or has failed for one more lease
//               after the work was told to stop; and not tried any longer. A claim that was given up never acts again
//   lineage     a claim over an unexpired record counts the attempt on, keeps created_at, the finished steps and the
//               fingerprint; a holder's writes lose no step while the operation is in progress
//   history     what is written down stays, in its order, but for the oldest entries, which stay counted. Each attempt
//               that is replaced, released or marked unknown as lapsed is written down once, as its record tells of it
//   token       grows with every work on a key; across deletion it may fall back to when its call was made, and by the
//               clocks' error
//   result      an unexpired result is never overwritten or removed by an engine; what is stored is what the work with
//               that claim gave; an unknown record is left alone by engines
//   deletion    an engine removes a claim only if its work was released, and has no finished step
//   hold        once an attempt was claimed under hold, its record says so whoever claims it after, and the operation
//   is
//               executed once, unless it was released (which is written as unknown by a holder who learns of an
//               operator's hold only then), failed with a retry allowed, expired as completed, or an operator decided
//   recorded    whoever is told `recorded` finds that write in the store's history; the rule `result` keeps it there
//   superseded  is what was stored since the work began, of the same payload; `lost` is told only if the claim is no
//               longer the caller's
//   replay      gives a result that was stored under this very key, for this payload, and stood there when it was asked
//               for or later
//   seen        a conflict, a mismatch or an unknown outcome is told of a record that stood there when it was asked for
//   or
//               later, or of a claim of the caller's own process; a claim that had lapsed by then is no conflict
//   offload     a result is removed only when no unexpired record names it, and no record names one that is not kept
//   together    what is committed together with a result is committed once; never if its call was told that it was
//               declined, and certainly if it was told `recorded`
//   hand-out    a transaction of the user's own commits its rows and the result at once, once, and only while its claim
//               stands and is its own; it changes nothing else of the record. Who was told `recorded` has committed.
//               After `declined`, `lost` or `superseded`, or after he said himself that he rolled back, it never does
//   answers     everybody who asks is answered exactly once, unless his process died
//   sharing     one engine has one conversation about a key at a time, however many callers wait
//   copies      a process may be doubled with its memory. Its copy and itself never write the same revision or make a
//               claim of one owner afterwards. Of a claim that both have, whoever writes first keeps it: the other
//               writes nothing over that. What was sent before and not answered counts for both, so both may begin its
//               work
//   attach      a claim is taken up only by a process that was given its key and its owner, and only while it is in
//               progress and not released; nothing but its lease and its holder changes then. From then on no other
//               process writes for it. Who is told that it is over does not have it
//   events      an engine's events are as many as the answers they stand for
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <once/engine/claim.hpp>
#include <once/engine/engine.hpp>
#include <once/record.hpp>
#include <once/store.hpp>

namespace once::simulation {

// What an auditor throws when the rules were broken. The text begins with the rule's name.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
  std::uint64_t operations = 0;  // Of its world, until then.
};

using ProcessId = std::uint32_t;  // Of one life of a process: after a crash it is another.
using CallId = std::uint64_t;
inline constexpr ProcessId operators = 0;              // Writes of operators and of the sweep.
inline constexpr CallId copied_calls = 1'000'000'000;  // How much higher the numbers of calls in a copy are.

struct Rules {
  Millis token_slack{0};   // How far two tokens may be apart because clocks are.
  Millis expiry_slack{0};  // How late an expired result may still be replayed because clocks are uncertain.
  Millis lease_slack{0};   // How long after the end of a lease as stored its holder may start work: others wait for it.
  Millis early{0};         // How much too early a record may be found expired: stores that do not tell their time.
  std::optional<Millis> late = {};  // How long after its lease a claim may still be found alive. Empty: nobody knows.
  // What the store says when it refuses a write as misuse, which may pass, or a record as unfit. Empty: it never does.
  std::optional<std::string> misuse = {};
  std::optional<std::string> unfit = {};
  // What its client says when a host's clock was set twice during one request. Empty: it does not mind.
  std::optional<std::string> clock = {};
  bool cached = false;  // Engines have local caches, which do not see what operators do.
};

enum class Wrote : std::uint8_t { insert, replace, remove };
// hand_out: what became of a transaction of the user's own.
enum class FinishKind : std::uint8_t { complete, fail, release, hold, step, hand_out };

class Auditor {
 public:
  explicit Auditor(Rules rules) : rules_(rules) {}

  // The store's true time goes on.
  void at(Time now) {
    now_ = now;
    if (rows_alone_) rows_were_alone();
  }

  // A write was carried out. `next` is null for a removal; `seen` is not looked at for an insert.
  void landed(ProcessId by, Wrote how, const std::string& key, const Seen& seen, const Record* next);
  void swept(const std::string& key);  // An expired record went.

  void offloaded(const std::string& location);  // A result is kept outside the store from now on …
  void dropped(const std::string& location);    // … and an engine or a sweep removes it.

  void built(ProcessId by, const Record& next);  // A write is about to be sent: of a process that may be copied.
  // What the first one has been asked and has sent is its copy's too. Once.
  void copied(ProcessId original, ProcessId copy);

  void sent(ProcessId by, bool reads, const std::string& key);  // A conversation's insert, or a read.
  void got(ProcessId by, bool reads, const std::string& key);   // Its answer.

  struct Asked {
    ProcessId process = 0;
    std::string key = {};
    Fingerprint fingerprint = {};
    bool retries_failures = false;
    bool holds = false;
    std::optional<Millis> heartbeats = {};  // Its lease, if the engine renews it.
  };
  void asked(CallId call, const Asked& what);
  void answered(CallId call, const Begin& begin);
  // The claim of `earlier`, whose process is dead, is to be taken up.
  void attaches(CallId call, CallId earlier, const Owner& owner, const Asked& what);
  void attached(CallId call, const Attached& answer);
  void work_started(CallId call, const Claim& claim);
  // The answer to a holder's conditional write: another's record stands there, or none.
  void refused(ProcessId by, const Owner& holder);
  // The answer to a holder's conditional write: it stands there, with this lease.
  void renewed(ProcessId by, const Record& record);
  void not_renewed(ProcessId by, const Owner& holder);  // It was refused: the claim may be lost.
  void woke(ProcessId process);                         // It was stopped, and goes on.
  void told_to_stop(CallId call);                       // Its stop token was set …
  void told_of_loss(CallId call);                       // … and its loss token.
  // The work is about to act; `is_ours`: what its claim says of itself.
  void about_to_act(CallId call, bool is_ours);
  // It acts.
  void acts(CallId call) const;
  void finish_asked(CallId call, FinishKind kind, const Result& result, const Failure& failure = {});
  void step_asked(CallId call, const std::string& name, const std::string& result);
  void charges(CallId call);  // The finish asked for last has companions …
  void charged(CallId call);  // … and they were committed.
  void finish_answered(CallId call, FinishKind kind, const Finish& finish, const std::string& step = {});

  void handed_out(CallId call, const Result& result);        // To a transaction that writes this result …
  void not_handed_out(CallId call);                          // … but that was refused as misuse.
  void rows_committed(CallId call);                          // Of the transaction; at once followed by …
  void transaction_landed(CallId call, const Record& next);  // … its result.
  void outcome_told(CallId call, bool rolled_back);          // Answered by finish_answered().
  void hand_out_forgotten(CallId call);                      // Nobody will tell, or ask.
  void taken_back(CallId call);

  void told(ProcessId by, EventKind kind) { ++event_count_[by].at(static_cast<std::size_t>(kind)); }

  void died(ProcessId process);
  // No operation runs: no caller may still be waiting.
  void end();

  struct Totals {
    std::uint64_t asked = 0, executed = 0, replayed = 0, conflicts = 0, mismatches = 0, unknown = 0, errors = 0,
                  takeovers = 0, attached = 0, recorded = 0, superseded = 0, lost = 0, unrecorded = 0, writes = 0,
                  handed_out = 0, transactions = 0, slept = 0,
                  saved = 0;  // Leases that ended in sleep; those renewed all the same.
  };
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }
  // The record of a key by the auditor's own account.
  [[nodiscard]] const Record* shadow(const std::string& key) const;

 private:
  struct Call {
    Asked what;
    Time at{};
    std::uint64_t after = 0;          // How many changes of records had been made when it was asked …
    std::uint64_t started_after = 0;  // … and when its work began.
    unsigned answers = 0;
    bool claimed = false;
    bool started = false;
    bool held = false;            // Its claim was made under hold.
    bool refused = false;         // Its process knows that somebody else has its claim.
    Time lease_until{};           // The last that was ever stored for its claim.
    Time known_until{};           // The last that its process knows to be stored.
    Time tries_from{};            // Not before then was the present renewal tried in vain.
    std::optional<Time> stopped;  // When it was told to stop, for the first time.
    bool was_refused = false;     // A renewal of its claim, whatever stood there.
    bool is_told_of_loss = false;
    bool slept = false;  // Its process slept over the end of its lease, and it was not renewed since.
    Owner owner;
    std::uint64_t token = 0;        // Of its work.
    std::optional<CallId> earlier;  // It takes up that call's claim.
    bool displaced = false;  // Its claim went from the store. What looks like it from then on is a copy of a write of
                             // its, delivered once more by the network.
    std::optional<FinishKind> finish;
    unsigned finish_answers = 0;
    unsigned finishes_open = 0;  // Steps and finishes without an answer yet.
    Result result;
    Failure failure;
    std::vector<Step> steps;
    std::vector<Step> asked_steps;  // With those that the store refused for good.
    std::size_t steps_landed = 0;   // How many of these were in the store at some time.
    bool hold_landed = false;
    bool charges = false;
    unsigned charged = 0;
    bool outlived = false;           // Its record expired and went. See has_outlived().
    std::uint64_t displaced_by = 0;  // The change.
    std::optional<Result> declined;  // Of a completion that was declined.
    struct {
      bool open = false;    // It is handed out, and what became of it is not known.
      bool was = false;     // The transaction may be committed.
      bool never = false;   // It is certain that it will not be.
      unsigned rows = 0;    // How often its rows were committed,
      bool landed = false;  // and its result.
      bool taken_back = false;
      bool on_copy = false;  // It met a copy of its claim's insert.
      Time landed_at{};
      Time expires_at{};
      Result result;
    } handed;
    bool over = false;  // Its process knows what became of the claim: until then it goes on trying to finish it.
  };
  static constexpr std::uint64_t present = ~std::uint64_t{0};
  struct Stored {  // A finish that landed.
    Owner owner;
    State state{};
    Result result;
    Failure failure;
    Fingerprint fingerprint;
    Time expires_at{};
    std::uint64_t until = present;  // The change that ended it.
  };
  struct Stood {  // The answers that a caller may get for a key.
    Owner owner;
    State state{};
    bool released = false;
    Fingerprint fingerprint;
    std::uint64_t until = present;
  };
  struct Key {
    std::optional<Record> record;
    std::uint64_t top_token = 0;  // Of the works that have started.
    bool deleted = false;         // Since then.
    Time last_operator_act{Millis{-1}};
    std::uint64_t inserted = 0;  // The revision of the last insert.
    std::uint64_t swept = 0;     // The change by which an expired record went the last time.
    std::vector<Stored> history;
    std::vector<Stood> stood;
    std::optional<CallId> execution;  // The last one.
    ProcessId writer = operators;     // Whose write stands there. operators: also what counts for both copies.
  };
  struct OwnerHash {
    std::size_t operator()(const Owner& owner) const noexcept;
  };

  [[noreturn]] void violate(const char* rule, const std::string& key, const std::string& what) const;
  void check_claim(const std::string& key, const Record* before, const Record& next);
  void check_history(const std::string& key, const Record& before, const Record& next, std::size_t least,
                     std::size_t most) const;
  void check_attach(const std::string& key, const Record& before, const Record& next) const;
  void check_holder(const std::string& key, const Record& before, const Record& next, const Call& holder) const;
  void rows_were_alone() const;
  void check_handed_out(const Call& call, const Finish& finish, const std::string& key) const;
  void keep(Key& state, const Record& next, bool by_operator);
  void vanish(Key& state, const Record* next);
  [[nodiscard]] bool has_outlived(const Call& call) const;
  void seen(const Call& call, const Record& record, bool whenever) const;
  [[nodiscard]] bool passes(const Error& error) const;
  [[nodiscard]] bool own_claim(const Call& call, const Record& record);
  Call& call_of(CallId call);
  [[nodiscard]] bool are_copies(ProcessId one, ProcessId other) const noexcept;
  [[nodiscard]] bool share_claim(ProcessId one, ProcessId other, const Owner& owner) const;
  [[nodiscard]] bool may_attach(ProcessId process, const Owner& owner) const;
  // Has the transaction committed that was handed to a call whose claim this one took up?
  [[nodiscard]] bool is_committed(const Call& attached) const;
  // The calls that were given a claim: two if their process was copied, one more for each that took it up, or none.
  [[nodiscard]] std::vector<Call*> calls_with(const Owner& owner);
  [[nodiscard]] Call* call_with(const Owner& owner, ProcessId process);
  [[nodiscard]] const Call* twin_of(CallId call) const;

  const Rules rules_;
  Time now_{};
  std::unordered_map<std::string, Key> keys_;
  std::map<CallId, Call> calls_;
  std::unordered_map<Owner, CallId, OwnerHash> owners_;       // Of claims that were handed out.
  std::unordered_map<Owner, ProcessId, OwnerHash> claimers_;  // Of claims that landed.
  std::unordered_map<Owner, std::set<ProcessId>, OwnerHash> attachers_;
  // Inserts and reads of one process about one key that are under way …
  std::map<std::pair<ProcessId, std::string>, std::array<int, 2>> talks_;
  // … and finishes and steps that have no answer yet.
  std::map<std::pair<ProcessId, std::string>, int> finishing_;
  std::map<ProcessId, std::array<std::uint64_t, 32>> event_count_;
  std::map<ProcessId, std::array<std::uint64_t, 32>> expected_;
  std::set<std::string> offloaded_;
  std::pair<ProcessId, ProcessId> copies_{operators, operators};
  std::map<ProcessId, std::set<std::pair<std::string, std::uint64_t>>> built_;  // Owners and revisions.
  std::set<std::pair<std::string, std::uint64_t>> shared_;  // Those that were built before the copy was made, …
  std::set<std::string> shared_owners_;                     // … and their owners.
  std::optional<CallId> rows_alone_;                        // Whose rows were committed, and not yet the result.
  std::uint64_t changes_ = 0;                               // Of records.
  Totals totals_;
};

}  // namespace once::simulation
