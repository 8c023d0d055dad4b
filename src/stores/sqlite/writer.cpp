#include "stores/sqlite/writer.hpp"

#include <algorithm>
#include <utility>

#include "platform/wait.hpp"

namespace once::stores::sqlite {

namespace {

constexpr std::size_t max_group = 1024;                                 // Operations in one transaction …
constexpr std::size_t max_group_bytes = std::size_t{16} * 1024 * 1024;  // … and about how much of records.
constexpr int most_dropped = 8;                // How many operations of a group may fail in a row, each alone.
constexpr std::size_t sweep_slice = 250;       // Rows that a sweep reads before writers get their turn.
constexpr std::size_t idle_sweep_slice = 500;  // The same while no writer waits.

// Whether it is so large because of its result. A sealed record does not tell whether it still has one.
bool has_large_result(const Operation& operation, std::uint64_t growth) noexcept {
  constexpr std::uint64_t largest_outcome = 4096;
  if (!is_finish(operation) || growth == 0) return false;
  const Result& result = operation.record->result;
  if (is_sealed(*operation.record)) return result.size > 0 && growth > largest_outcome;
  return !result.bytes.empty();
}

}  // namespace

void Writer::learn_keys() noexcept {
  if (!missing_keys_.exchange(true)) queue_.nudge();
}

void Writer::stop() noexcept {
  stopping_.store(true);
  queue_.nudge();
}

void Writer::run() {
  for (;;) {
    if (file_.is_forked()) return;           // A completion has forked: in the child this thread is the only one.
    const bool stopping = stopping_.load();  // Read before the queue: nothing is pushed after stop().
    if (backlog_.empty() && sweeps_.empty() && !stopping) queue_.wait();
    if (!turn() && stopping) return;
  }
}

bool Writer::turn() {
  take();
  const bool is_needed = !backlog_.empty() || !sweeps_.empty() || (missing_keys_.load() && !stopping_.load());
  if (is_needed) work();
  return is_needed;
}

void Writer::take() {
  for (Operation* operation = queue_.take(); operation != nullptr;) {
    Operation* const next = operation->next;
    const bool alone = operation->kind == Operation::Kind::sweep || operation->kind == Operation::Kind::cut_log ||
                       operation->kind == Operation::Kind::act;
    (alone ? sweeps_ : backlog_).emplace_back(operation);
    operation = next;
  }
}

// One group and one slice of a sweep, if there are any.
void Writer::work() {
  Group group;
  const bool missing_keys = missing_keys_.exchange(false);
  try {
    FileLock::Guard guard = writing_.lock();
    take();  // Operations that came during the wait.
    fill(group);
    writing_.make_ready();
    if (!group.empty() || missing_keys) write_group(group);
    if (group.empty() || writing_.checkpoint_due()) {
      finish(group);
      return sweep_and_copy();
    }
    guard.release();
    finish(group);
    if (sweeps_.empty() || file_.is_forked()) return;
  } catch (const Exception& error) {
    fail_all(group, error.kind(), error.what());
    return;
  }
  try {
    const FileLock::Guard guard = writing_.lock();
    writing_.make_ready();
    sweep_and_copy();
  } catch (const Exception& error) {
    fail_all(group, error.kind(), error.what());
  }
}

void Writer::fill(Group& group) {
  std::size_t bytes = 0;
  while (!backlog_.empty() && group.size() < max_group && bytes < max_group_bytes) {
    bytes += record_bytes(*backlog_.front()->record);
    group.push_back(std::move(backlog_.front()));
    backlog_.pop_front();
  }
}

// Leaves an answer in each operation.
void Writer::write_group(Group& group) {
  std::optional<Lost> lost = try_with_room(group);
  if (!lost || lost->in_doubt || lost->code == SQLITE_BUSY || group.size() == 1) return;
  // The whole transaction was rolled back, perhaps because of one operation: now each alone.
  int dropped = 0;  // Dropped connections in a row: each new one reads the newest rows again, while others wait.
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i]->is_settled) continue;
    try {
      writing_.make_ready();
    } catch (const Exception& error) {  // The file was removed. Earlier operations keep their answers.
      for (; i < group.size(); ++i) group[i]->answer = Answer::fail(error.kind(), error.what());
      return;
    }
    dropped = try_with_room({&group[i], 1}) && !writing_.is_ready() ? dropped + 1 : 0;
    if (dropped < most_dropped) continue;
    const std::string why = "sqlite store " + file_.path() +
                            ": not tried, because earlier writes failed: " + group[i]->answer.error.message;
    while (++i < group.size()) group[i]->answer = Answer::fail(ErrorKind::unavailable, why);
    return;
  }
}

// The same, after room was made for it, if that is what it lacks.
std::optional<Writer::Lost> Writer::try_with_room(std::span<OperationPtr> group) {
  const bool claims = std::ranges::any_of(group, [](const OperationPtr& operation) { return is_claim(*operation); });
  try {
    std::uint64_t growth = 0;
    claims_.forget_lapsed(file_.time().now);
    for (const OperationPtr& operation : group) growth += claims_.growth_of(*operation);
    const bool is_reserved = writing_.reserve(growth + claims_.growth());
    if (!is_reserved && group.size() > 1) return Lost{SQLITE_FULL, false};
    if (!is_reserved && has_large_result(*group.front(), growth)) {
      // Its outcome fits, and those of other claims still will.
      Answer& answer = group.front()->answer;
      answer =
          Answer::fail(ErrorKind::unavailable, "sqlite store " + file_.path() + ": no space left for a result of " +
                                                   std::to_string(growth) + " bytes: free some, then try again");
      answer.no_room = true;
      return Lost{SQLITE_FULL, false};
    }
    no_room_ = claims ? writing_.why_no_room_for_claims(is_reserved) : std::string();
  } catch (const SqlError& error) {  // Outside a transaction: earlier operations keep their answers.
    for (const OperationPtr& operation : group) {
      if (!operation->is_settled) operation->answer = Answer::fail(error.kind(), error.what());
    }
    return Lost{error.primary(), false};
  }
  std::optional<Lost> lost = try_group(group);
  if (lost && writing_.made_room(lost->code)) lost = try_group(group);
  if (lost) return lost;
  for (const OperationPtr& operation : group) {
    if (operation->answer.status == AnswerStatus::done) claims_.written(*operation);
  }
  return std::nullopt;
}

// One transaction. Empty if it was committed.
std::optional<Writer::Lost> Writer::try_group(std::span<OperationPtr> group) {
  for (;;) {
    try {
      writing_.begin();
      writing_.learn_keys();
      for (const OperationPtr& operation : group) {
        if (!operation->is_settled) carry_out_one(*operation);
      }
      writing_.commit_with_keys();
      const StoreTime now = file_.time();
      for (const OperationPtr& operation : group) operation->answer.time = now;
      return std::nullopt;
    } catch (const TransactionEnded&) {
      writing_.forget();  // Again, without the operation that was settled by it.
    } catch (const SqlError& error) {
      const Lost lost{error.primary(), writing_.undo(error)};
      for (const OperationPtr& operation : group) {
        if (operation->is_settled) continue;
        operation->answer =
            lost.in_doubt
                ? Answer::fail(ErrorKind::in_doubt, std::string(error.what()) + " (it may have been written anyway)")
            : never_fits(error, *operation) ? Answer::cannot_keep(error.what())
                                            : Answer::fail(error.kind(), error.what());
        operation->answer.no_room = lost.code == SQLITE_FULL && !operation->answer.unfit;
      }
      return lost;
    }
  }
}

// A record beyond the limit on the size of files. Without its result it may fit.
bool Writer::never_fits(const SqlError& error, const Operation& operation) {
  return error.primary() == SQLITE_FULL && operation.kind == Operation::Kind::replace && writing_.is_ready() &&
         !writing_.can_grow_by(record_bytes(*operation.record), true);
}

// Leaves the answer in it. Throws SqlError, or TransactionEnded, if the transaction was rolled back.
void Writer::carry_out_one(Operation& operation) {
  try {
    operation.answer = operation.companion == nullptr ? carry_out(operation) : carry_out_with_companion(operation);
  } catch (const SqlError& error) {
    // These changed nothing, and affect no other operation.
    if (error.primary() != SQLITE_TOOBIG && !error.is_gate()) throw;
    operation.answer = Answer::fail(error.kind(), error.what());
  } catch (const TransactionEnded& ended) {
    operation.answer = Answer::decline(ended.error.kind, ended.error.message);
    operation.is_settled = true;
    throw;
  } catch (const Exception& error) {  // A malformed row in the way.
    operation.answer = Answer::fail(error.kind(), error.what());
  }
}

Answer Writer::carry_out_with_companion(const Operation& operation) {
  Companions& companions = writing_.companions();
  const auto undo = [&] {
    companions.undo();
    writing_.forget_seal();
  };
  companions.begin();
  Answer answer;
  try {
    answer = carry_out(operation);  // First, as most refusals are found here.
  } catch (const SqlError& error) {
    if (error.primary() == SQLITE_TOOBIG || error.is_gate()) undo();
    throw;
  } catch (const Exception&) {  // A malformed row in the way.
    undo();
    throw;
  }
  if (answer.status == AnswerStatus::done) {
    if (const auto declined = companions.write(*operation.companion)) {
      answer = Answer::decline(declined->kind, declined->message);
    }
  }
  if (answer.status == AnswerStatus::done) {
    companions.keep();
  } else {
    undo();
  }
  return answer;
}

// No claim is made whose finish would have no room. In a marked file none is made in the clear, unless the options
// allow it. The holder of an earlier claim may still write, because its result would be lost otherwise.
std::optional<Answer> Writer::why_no_claim(const Operation& operation) {
  if (!is_claim(operation)) return std::nullopt;
  if (!no_room_.empty()) return Answer::fail(ErrorKind::unavailable, no_room_);
  if (is_sealed(*operation.record) || file_.options().allow_clear || !writing_.is_sealed()) return std::nullopt;
  return refused_in_the_clear();
}

// A sealed record marks the file.
Answer Writer::written(const Record& record, std::int64_t id) {
  if (is_sealed(record)) writing_.seal();
  return Answer::ok(Place::of(id, record).hint());
}

Answer Writer::refused_in_the_clear() const {
  return Answer::fail(ErrorKind::misuse,
                      "sqlite store " + file_.path() +
                          ": the file holds, or held, sealed records, but this program has no key to seal with, and "
                          "would keep payloads in the clear: give it the key, as seal=FILE in the store's URL, or "
                          "allow it with write_clear=1 (SqliteOptions::allow_clear)");
}

Answer Writer::carry_out(const Operation& operation) {
  Rows& rows = writing_.rows();
  std::int64_t id = 0;
  std::optional<Row> in_the_way;
  std::optional<Answer> no_claim = why_no_claim(operation);
  switch (operation.kind) {
    case Operation::Kind::insert:
      if (no_claim) {  // What is in the way is answered as ever.
        in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
        if (!in_the_way) return *std::move(no_claim);
        break;
      }
      in_the_way = rows.insert(*operation.record, operation.encoded, id);
      if (!in_the_way) return written(*operation.record, id);
      break;
    case Operation::Kind::replace:
      if (no_claim) {
        in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
        const bool fits = in_the_way && in_the_way->record.owner == operation.seen.owner &&
                          in_the_way->record.revision == operation.seen.revision;
        if (fits) return *std::move(no_claim);
        break;
      }
      if (rows.replace(*operation.record, operation.encoded, operation.seen, id)) {
        return written(*operation.record, id);
      }
      in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
      break;
    case Operation::Kind::remove:
      if (rows.remove(operation.record->key, operation.encoded.key_hash, operation.seen)) return Answer::ok();
      in_the_way = rows.find(operation.record->key, operation.encoded.key_hash);
      break;
    case Operation::Kind::sweep:
    case Operation::Kind::cut_log:
    case Operation::Kind::act:
      break;  // Not in a group.
  }
  if (!in_the_way) return Answer::refuse(nullptr);
  const Place place = Place::of(in_the_way->id, in_the_way->record);
  return Answer::refuse(share(std::move(in_the_way->record)), place.hint());
}

// The cause of the failure affects all waiting operations.
void Writer::fail_all(Group& group, ErrorKind kind, const std::string& message) {
  const WakesAfter completions;
  take();
  while (!backlog_.empty()) {
    group.push_back(std::move(backlog_.front()));
    backlog_.pop_front();
  }
  for (const OperationPtr& operation : group) operation->answer = Answer::fail(kind, message);
  finish(group);
  std::deque<OperationPtr> sweeps = std::exchange(sweeps_, {});
  for (const OperationPtr& operation : sweeps) {
    if (file_.is_forked()) return;
    operation->sweep_answer.error = Error{kind, message};
    operation->swept(std::move(operation->sweep_answer));
  }
}

void Writer::sweep_and_copy() {
  if (!file_.is_forked()) sweep_slice_once();
  if (!file_.is_forked()) writing_.checkpoint();
}

void Writer::sweep_slice_once() {
  const WakesAfter completions;
  if (sweeps_.empty() || !writing_.is_ready()) return;
  if (sweeps_.front()->kind == Operation::Kind::cut_log) return cut_log();
  if (sweeps_.front()->kind == Operation::Kind::act) return act();
  Operation& operation = *sweeps_.front();
  SweepAnswer& answer = operation.sweep_answer;
  const std::size_t slice =
      std::min(operation.limit - answer.removed, backlog_.empty() ? idle_sweep_slice : sweep_slice);
  bool over = false;
  try {
    writing_.begin();
    writing_.learn_keys();
    const Rows::Swept swept = writing_.rows().sweep(operation.now, slice);
    const bool more = swept.looked_at == slice && writing_.rows().has_expired(operation.now);
    writing_.commit_with_keys();
    answer.removed += swept.removed;
    answer.more = more;
    over = (!more || answer.removed >= operation.limit) && !swept.goes_on;
  } catch (const SqlError& error) {
    writing_.undo(error);
    if (!std::exchange(operation.is_second_try, true) && writing_.made_room(error.primary()))
      return;  // It gets another turn.
    answer.error = error.error();
    over = true;
  }
  if (!over) return;
  const OperationPtr finished = std::move(sweeps_.front());
  sweeps_.pop_front();
  finished->swept(std::move(finished->sweep_answer));
}

void Writer::cut_log() {
  const OperationPtr operation = std::move(sweeps_.front());
  sweeps_.pop_front();
  try {
    writing_.cut_log();
  } catch (const SqlError& error) {
    operation->sweep_answer.error = error.error();
  }
  operation->swept(std::move(operation->sweep_answer));
}

void Writer::act() {
  const OperationPtr operation = std::move(sweeps_.front());
  sweeps_.pop_front();
  try {
    writing_.begin();
    writing_.learn_keys();
    operation->act(writing_);
    writing_.commit_with_keys();
  } catch (const SqlError& error) {
    operation->sweep_answer.error = error.error();
    if (writing_.undo(error)) operation->sweep_answer.error->kind = ErrorKind::in_doubt;
  }
  operation->swept(std::move(operation->sweep_answer));
}

}  // namespace once::stores::sqlite
