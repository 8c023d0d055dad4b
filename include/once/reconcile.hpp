// Reconciling: asks the service that an unknown operation acted on what became of it, and writes the answer down as an
// operator would (once/operate.hpp).
//
//   once::Reconciler reconciler({.store = store,
//                                .ask = once::ask_blocking([&](const once::Record& record) {
//                                  const auto charge = provider.find_charge(once::derived_key(record.key, "charge"));
//                                  return charge ? once::Finding::happened(once::Result::inlined(charge->json))
//                                                : once::Finding::not_done("the provider has no such charge");
//                                }),
//                                .settle = std::chrono::minutes(5)});
//   ...
//   reconciler.pass();  // Now and then: once a minute, for example.
//
// Never answer not_done because of an error, a timeout or an answer that you did not expect: the operation is then run
// again. Answer not_known. docs/reconcile.md has more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/engine/event.hpp>
#include <once/error.hpp>
#include <once/record.hpp>
#include <once/result.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

namespace once {

// What the service knows of an operation.
struct Finding {
  // What the service says became of the operation.
  enum class Kind : std::uint8_t {
    not_known,  // No answer, or none that tells: asked again later. The default.
    happened,   // It took place: `result` is replayed from now on.
    failed,     // It failed for good: `failure`, with `result`, is replayed from now on.
    not_done,   // It did not take place. Counts only ReconcileOptions::settle after the attempt ended: then the next
                // caller runs it.
  };
  Kind kind = Kind::not_known;           // Says which of the next two count.
  Result result = {};                    // happened: what is replayed. failed: bytes that belong to the failure.
  Failure failure = {};                  // failed: what is replayed.
  std::string why = {};                  // For the record's history. Cut to HistoryEntry::max_text_bytes. May be empty.
  std::optional<Millis> settle = {};     // Instead of ReconcileOptions::settle, where operations differ.
  std::optional<Millis> retention = {};  // Instead of ReconcileOptions::retention.

  // These make a finding of each kind, with its default times. `why`: as the member.
  static Finding happened(Result result, std::string why = {}) {
    return {.kind = Kind::happened, .result = std::move(result), .why = std::move(why)};
  }
  static Finding failed(Failure failure, std::string why = {}) {
    return {.kind = Kind::failed, .failure = std::move(failure), .why = std::move(why)};
  }
  static Finding not_done(std::string why = {}) { return {.kind = Kind::not_done, .why = std::move(why)}; }
  static Finding not_known(std::string why = {}) { return {.why = std::move(why)}; }
};

// Asks the service about one unknown record, and calls the callback once, at once or later, on any thread. The record
// has what an operator sees: Key::from_stored(record.key) is scope and name, then label, holder, created_at, attempt,
// history, and the input if it was kept. It should limit its own time, because a question that is running blocks its
// key and one of ReconcileOptions::at_once. An exception counts as not_known, as does a callback that is dropped.
using AskService = std::function<void(const RecordPtr& record, Callback<void(Finding)> answer)>;

// The same from a function that blocks, on the thread that calls Reconciler::ask() or pass().
AskService ask_blocking(std::function<Finding(const Record& record)> ask);

// What a reconciler asks about, and how.
struct ReconcileOptions {
  std::shared_ptr<Store> store = {};  // Required.
  AskService ask = {};                // Required. Called by several threads at once, up to at_once times.

  // How long after the end of an attempt its service can still carry it out: 0 to 30 days. The attempt ended when its
  // lease lapsed, or when its holder gave it up as unknown. A holder whose lease has lapsed may merely be slow, and its
  // request may still be on its way. So a not_done that was asked for earlier counts as not_known. Make it longer than
  // the lease and than every timeout between the work and the service.
  Millis settle{300'000};

  // A record is asked about at most this often, with pauses that double from `first_pause` to `longest_pause`. Then its
  // history says so, and it waits for an operator. 0: no limit. Counted by this object: another process counts anew,
  // unless the history says that one has given up.
  unsigned tries = 16;
  Millis first_pause{1'000};        // 1 ms to 30 days.
  Millis longest_pause{3'600'000};  // At least first_pause, at most 30 days.

  // Which records pass() asks about; it leaves others alone. Called by several threads. Empty: all.
  std::function<bool(const Record& unknown)> concerns = {};
  std::size_t records_per_pass = 100;  // How many records one pass reads, at most. 1 to 10 000.
  unsigned at_once = 4;                // How many questions run at the same time, at most. At least 1.
  std::string key_prefix = {};         // pass() reads only these stored keys: see scope_prefix(). Empty: all.

  Millis retention{86'400'000};  // How long a result or a released record is kept: as Policy::retention.
  std::optional<Millis> failure_retention = {};  // The same for a failure. Empty: as `retention`.
  std::string by = "reconcile";                  // Who decided, for the history.
  Observer observer = {};  // Gets `reconciled`, `reconcile_later`, `reconcile_gave_up`, `store_error`.

  std::shared_ptr<Clock> clock = {};    // Empty: the host's.
  std::shared_ptr<Random> random = {};  // Empty: the host's.
};

// What became of one question.
struct Reconciled {
  // Whether the record was decided, and why not.
  enum class Kind : std::uint8_t {
    completed,   // Decided and written: its result is replayed.
    failed,      // Decided and written: its failure is replayed.
    released,    // Decided and written: the next caller runs it.
    not_known,   // Asked, and still unknown: `why`.
    gave_up,     // Asked as often as ReconcileOptions::tries, now or earlier. An operator decides.
    not_asked,   // Not due yet, being asked about, or at_once questions are running.
    changed,     // Another writer has changed the record: `record` is the present one, or null.
    not_stored,  // The answer could not be written: `error`.
  };
  Kind kind = Kind::not_known;  // Says what the other members are.
  RecordPtr record = {};        // As written, or as it was given if nothing was. not_stored: null.
  std::string why = {};         // not_known: what the service said, for people. not_stored: the error's message.
  Error error = {};             // Set for not_stored.

  // One of the first three kinds: the record is no longer unknown.
  [[nodiscard]] bool is_decided() const noexcept {
    return kind == Kind::completed || kind == Kind::failed || kind == Kind::released;
  }
};

// What one pass has done.
struct ReconcilePass {
  std::size_t seen = 0;             // Unknown records that were read.
  std::size_t asked = 0;            // Of these, asked about.
  std::size_t decided = 0;          // Of these, no longer unknown.
  std::optional<Error> error = {};  // The records could not be read.
};

// Since when the attempt of an unknown record cannot run any more, by its lease or its holder's own word.
Time attempt_ended_at(const Record& unknown) noexcept;

// Whether the history says that reconciling has given this record up. Ends with the next attempt.
bool has_given_up(const Record& unknown) noexcept;

// Makes room in the decision that a finding led to, for a store of records of `max_record_bytes`: see shorten(). If
// that is not enough, its result's bytes are dropped; their size and digest stay. The result of an operation that took
// place is lost rather than the knowledge that it did.
void drop_if_too_large(Record& decided, std::size_t max_record_bytes);

// Thread-safe. May be destroyed while questions run: they then end by themselves. Decisions are conditional on the
// record that was asked about, so an operator or another process that decides first wins, and nothing is overwritten.
class Reconciler {
 public:
  // Throws Exception(misuse) for options out of range.
  explicit Reconciler(ReconcileOptions options);

  // Asks about one unknown record that was read now, unless it is not due. Completions: as in Store.
  void ask(RecordPtr unknown, Callback<void(Reconciled)> done);
  Reconciled ask(RecordPtr unknown);  // Blocks.
  // The same, by another question: for example with the credentials of a client. It has the same limits and pauses.
  void ask(RecordPtr unknown, const AskService& by, Callback<void(Reconciled)> done);

  // Asks about one unknown record, and writes nothing: for an operator, who decides. It is asked at once, whatever the
  // limits and pauses say. An answer that does not count yet, see `settle`, is not_known. Its `retention` is the one
  // that ask() would use. Completions: as in Store.
  void find_out(RecordPtr unknown, Callback<void(Finding)> done) const;
  Finding find_out(RecordPtr unknown) const;  // Blocks.

  // Whether pass() asks about such a record, if it is unknown: see `concerns` and `key_prefix`.
  [[nodiscard]] bool concerns(const Record& unknown) const;

  // Reads unknown records from where the last pass ended, one page of the store, and asks about those that are due. Run
  // one pass at a time.
  void pass(Callback<void(ReconcilePass)> done);
  ReconcilePass pass();  // Blocks.

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace once
