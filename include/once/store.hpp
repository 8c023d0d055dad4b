// The store: a compare-and-swap on one record, four times over. A new store implements this port; the suite in
// once/testing/conformance.hpp checks it. A store carries out decisions and makes none: it never compares fingerprints,
// leases or expiry to decide, and never reads a clock to decide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

class StoreGate;     // once/gate.hpp
class ClaimsServer;  // src/core/claims_server.hpp

namespace stores {
struct SqlStatement;  // once/stores/sql.hpp
}

// What a conditional write names: the record as the caller last saw it. The condition is the owner and the revision.
struct Seen {
  Owner owner = {};            // Record::owner.
  std::uint64_t revision = 0;  // Record::revision.
  std::uint64_t place = 0;     // Answer::place of that record, or 0: a hint to find it faster.
};

// How one of the four operations ended. Not named Status, which is a macro of X11's headers.
enum class AnswerStatus : std::uint8_t {
  done,     // insert, replace, remove: durable now. get: Answer::record is the stored one, or empty.
  refused,  // The condition did not hold and nothing was changed. Answer::record is the one in the way, or empty.
  failed,   // See Answer::error.
};

// The answer to any of the four operations.
struct Answer {
  AnswerStatus status = AnswerStatus::done;  // Says which of the other members are set.
  RecordPtr record = {};                     // Not returned on done, except by get.
  std::optional<StoreTime> time = {};        // The store's time, if it reports one.
  std::uint64_t place = 0;                   // For Seen::place. Never 0 in stores that use it.
  Error error = {};                          // Meaningful if failed.
  bool unfit = false;  // A write failed as misuse because the store can never keep this record: too large, or of a form
                       // that it does not know. The engine then drops the result of a finish. Without this flag an
                       // operator can fix the misuse: a permission, a table's name.
  // A write failed as unavailable or in_doubt because the store has no room for it now, as on a full disk: a smaller
  // record may fit. After some tries the engine drops the result of a finish, so that at least its outcome is kept.
  bool no_room = false;
  bool declined = false;  // replace_with() failed because of the companion: see there.

  // done, without a record.
  static Answer ok(std::uint64_t place = 0) {
    Answer answer;
    answer.place = place;
    return answer;
  }
  // refused. `in_the_way`: null if no record is there.
  static Answer refuse(RecordPtr in_the_way, std::uint64_t place = 0) {
    return {.status = AnswerStatus::refused, .record = std::move(in_the_way), .time = {}, .place = place, .error = {}};
  }
  // failed.
  static Answer fail(ErrorKind kind, std::string message) {
    return {.status = AnswerStatus::failed, .record = {}, .time = {}, .place = 0, .error = {kind, std::move(message)}};
  }
  // failed as misuse, and `unfit`.
  static Answer cannot_keep(std::string message) {
    Answer answer = fail(ErrorKind::misuse, std::move(message));
    answer.unfit = true;
    return answer;
  }
  // failed, and `declined`: because of the companion.
  static Answer decline(ErrorKind kind, std::string message) {
    Answer answer = fail(kind, std::move(message));
    answer.declined = true;
    return answer;
  }
};

using Done = Callback<void(Answer)>;  // Store says when it is called, and by which threads.

// Which records to list. Conditions are combined by "and".
struct ListQuery {
  std::optional<State> state = {};      // Only this state.
  std::string key_prefix = {};          // Stored keys that begin with these bytes. Empty: all.
  std::optional<Time> expired_at = {};  // Only records that have expired at this moment: is_expired().
  // ListPage::cursor of the page before. Empty: the first page. Any other text: misuse, or a page.
  std::string cursor = {};
  std::size_t limit = 100;  // Most records per page. 1 to 10 000; otherwise misuse.
};

// What list() returns.
struct ListPage {
  std::vector<Record> records = {};  // In the store's own order. A record that exists from the first page to the last
                                     // is in exactly one page.
  std::string cursor = {};           // Empty: this is the last page. Other pages may have no records.
  // Items on this page that could not be decoded, each as an error of kind corrupt. A store that cannot continue after
  // one sets `error` instead.
  std::vector<Error> unreadable = {};
  std::optional<Error> error = {};  // If set, ignore the other members.
};

// What sweep() returns.
struct SweepAnswer {
  std::size_t removed = 0;  // Records.
  bool more = false;        // The limit was reached: call again.
  // If set, `removed` is still valid. in_doubt: more may have been removed. corrupt, with
  // `more`: an item could not be read and was left; the next call continues after it.
  std::optional<Error> error = {};
};

// What a store can do, so that its callers adapt to it.
struct Capabilities {
  std::size_t max_record_bytes = 0;  // record_bytes() of the largest record it keeps. Larger ones are refused as unfit.
  bool durable = false;              // Acknowledged writes survive the death of every process.
  bool shared = false;               // Other processes can see the same records.
  bool tells_time = false;           // time() or its answers report the store's time.
  Millis default_skew{0};            // Policy::skew that fits this store.
  bool keeps_compressed = false;  // It keeps Placement::compressed and Placement::sealed. Otherwise it refuses them as
                                  // unfit: other programs may read its records.
  bool seals = false;             // It encrypts what it keeps: see once/seal.hpp.
  bool hands_out = false;         // It has finish_statement().
  bool has_finish_function = false;  // Its database has finish_or_raise(), by which other programs finish records too.
  bool expires_itself = false;       // Expired records go without sweep(), or another program is to remove them.
};

// The user's own writes, which a store commits together with a record. Each kind of store has its own types of them:
// stores::TransactItems (once/stores/dynamodb_transaction.hpp), stores::SqlStatements (once/stores/sql.hpp) and
// stores::SqliteWork (once/stores/sqlite_transaction.hpp). They do not change after they are handed over. They may be
// sent several times, and are written at most once.
class Companion {
 public:
  Companion() = default;
  Companion(const Companion&) = default;
  Companion& operator=(const Companion&) = default;
  virtual ~Companion() = default;
};

// The size of a record, compared with Capabilities::max_record_bytes: the bytes of its key, texts, input, steps and
// result, plus 64 for each entry of its history and 96 for each of its spans, plus 256.
std::size_t record_bytes(const Record& record) noexcept;
std::size_t history_bytes(const History& history) noexcept;  // What it counts for there.

// Implementations are thread-safe.
//
// Completions: each operation calls `done` exactly once: before it returns, or later from a thread of the store, or
// from a thread that waits in another blocking call of this store. `done` must not block and must not throw. It may
// start further operations.
//
// The destructor finishes running operations, or fails them (in_doubt), before it returns. A completion may run it,
// because the engine may hold the last reference there; then it may return earlier.
//
// No operation throws, except std::bad_alloc before it has begun. Records are passed as shared pointers, so that they
// are not copied. Those passed in are not null.
class Store {
 public:
  virtual ~Store() = default;

  // Writes `record` if no record is stored under its key. Refused otherwise, even if the stored one has expired.
  virtual void insert(RecordPtr record, Done done) = 0;

  // Writes `record` over the one with its key, owner seen.owner and revision seen.revision. Refused otherwise.
  virtual void replace(RecordPtr record, Seen seen, Done done) = 0;

  // replace() together with the writes of `companion`, which is not null: all of them are durable, or none is.
  // - refused: as by replace(); no write of the companion's was made.
  // - failed with Answer::declined: because of the companion. unavailable: one of its conditions did not hold. misuse:
  //   it can never be written, or belongs to another store. Nothing was changed, and at that moment the record was
  //   still as the caller had seen it.
  // - Call it again with the same arguments after a lost answer. It is done or refused as replace() would be, and the
  //   companion's writes have happened once. A store whose requests can arrive late or twice recognises a second copy
  //   for ten minutes, even if the record was removed and inserted again meanwhile.
  virtual void replace_with(RecordPtr /*record*/, Seen /*seen*/, std::shared_ptr<const Companion> /*companion*/,
                            Done done) {
    done(Answer::decline(ErrorKind::misuse,
                         name() + " cannot commit other writes together with a record: use a store that can, or write "
                                  "them apart"));
  }

  // If Capabilities::hands_out: a statement that writes the completion `record` in a transaction of the user's own. It
  // is conditional on the stored record's key and owner, in progress and not released, under whatever revision it has
  // then: its renewals may go on. It raises the count of that revision, with the random bits of record.revision. If the
  // condition does not hold, it raises an error, so that the transaction cannot commit.
  // It writes what complete() (once/decide.hpp) sets, and leaves the other fields as they are. `place`: Answer::place
  // of the record. Calls the store, perhaps. Throws Exception: misuse if the store cannot, or cannot keep the record.
  virtual stores::SqlStatement finish_statement(const Record& record, std::uint64_t place);

  // Removes the record under the same condition.
  virtual void remove(std::string key, Seen seen, Done done) = 0;

  // Strongly consistent: sees the effect of every acknowledged write.
  virtual void get(std::string key, Done done) = 0;

  // One page of the records that `query` selects. Not a snapshot: writes go on between pages.
  virtual void list(ListQuery query, Callback<void(ListPage)> done) = 0;

  // Removes up to `limit` records that have expired at `now`, or at the store's own time if that is earlier, in slices.
  virtual void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) = 0;

  // The store's time now, if it can tell without a round trip.
  [[nodiscard]] virtual std::optional<StoreTime> time() const noexcept { return std::nullopt; }

  // time(), for callers that have just read `uptime` from `clock`. A store that uses the same clock need not read it
  // again. Other stores keep the default.
  [[nodiscard]] virtual std::optional<StoreTime> time_at(const Clock& /*clock*/, Uptime /*uptime*/) const noexcept {
    return time();
  }

  // Asks no server. A store that has moved (once/stores/moving.hpp) has those of its new one.
  [[nodiscard]] virtual Capabilities capabilities() const noexcept = 0;

  // For people and logs: "sqlite:/var/lib/once/once.db". Never contains a password.
  [[nodiscard]] virtual std::string name() const = 0;

  // The store that this one wraps, or null. For functions of one kind of store, such as stores::cut_sqlite_log().
  [[nodiscard]] virtual Store* below() const noexcept { return nullptr; }

  // The store's gate, for moving its records to another store or from one. It lives as long as the store. Null: records
  // cannot be moved while programs use the store.
  [[nodiscard]] virtual StoreGate* gate() noexcept { return nullptr; }

  // The server that claims in this store, so that nothing else can write it: once/stores/server.hpp. It lives as long
  // as the store. Null: the engine claims.
  [[nodiscard]] virtual ClaimsServer* claims_server() noexcept { return nullptr; }
};

// The store under all wraps.
inline const Store& innermost(const Store& store) noexcept {
  const Store* at = &store;
  while (const Store* const below = at->below()) at = below;
  return *at;
}
// The same for a store that may be changed.
inline Store& innermost(Store& store) noexcept { return const_cast<Store&>(innermost(std::as_const(store))); }

}  // namespace once
