#include <once/frontends/lambda/batch.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include <once/engine/exceptions.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/error.hpp>

#include "frontends/lambda/batch/batch_run.hpp"
#include "frontends/lambda/handler/function.hpp"
#include "queues/dead_ends.hpp"
#include "queues/ends.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::lambda {

using queues::OnDeadEnd;
using queues::RecordEnd;

namespace {

constexpr std::size_t most_parallel = 1'000;
constexpr Millis most_margin{15 * 60 * 1'000};
constexpr Millis least_lease{10};  // Policy::lease

[[noreturn]] void refuse_batch_option(const std::string& what) {
  throw Exception(ErrorKind::misuse, "lambda::BatchOptions::" + what);
}

// What a record's end means for the next record with its key.
enum class ForNext : std::uint8_t {
  done,    // A record with the same payload is done too.
  failed,  // The operation failed: it must not be retried at once.
  own,     // It affects only this record.
};

ForNext for_next(RecordEnd end) noexcept {
  switch (end) {
    case RecordEnd::executed:
    case RecordEnd::replayed:
    case RecordEnd::duplicate:
    case RecordEnd::unrecorded:
    case RecordEnd::unprotected:
      return ForNext::done;
    case RecordEnd::failed:
    case RecordEnd::conflict:
    case RecordEnd::lost:
    case RecordEnd::error:
    case RecordEnd::out_of_time:
      return ForNext::failed;
    case RecordEnd::stored_failure:
    case RecordEnd::mismatch:
    case RecordEnd::poison:
    case RecordEnd::unknown:
    case RecordEnd::blocked:
      return ForNext::own;
  }
  return ForNext::own;
}

}  // namespace

Batch::Batch(Engine& engine, BatchOptions options) : engine_(engine), options_(std::move(options)) {
  const Environment environment = environment_or_process(options_.environment);
  disabled_ = is_disabled(environment);
  if (options_.scope.empty()) {
    options_.scope =
        handler_scope(engine.options().scope, options_.function, options_.name, environment, "lambda::BatchOptions");
  }
  if (options_.parallel < 1 || options_.parallel > most_parallel) refuse_batch_option("parallel must be 1 to 1000");
  if (options_.margin < Millis{0} || options_.margin > most_margin) refuse_batch_option("margin must be 0 to 15 min");
  policy_ = handler_policy(engine, options_.policy);
  check(policy_);
  keys_.emplace(queues::KeyRule{.scope = options_.scope,
                                .source = options_.key_source,
                                .expression = options_.key,
                                .fingerprint = options_.fingerprint,
                                .required = policy_.on_missing_key == OnMissingKey::refuse,
                                .allow_null_parts = options_.allow_null_parts,
                                .keep_input = policy_.keep_input.value_or(false),
                                .input_without = options_.input_without});
}

void Batch::take_key(BatchItem& item, std::string_view name, std::string_view record, std::string_view payload,
                     const std::optional<queues::Elsewhere>& elsewhere) const {
  if (!disabled_) keys_->take(item, name, record, payload, elsewhere);
}

// One batch. Threads take records that are ready. A record that ends may make two others ready: the next in its order,
// and the next with its key.
class Batch::Run {
 public:
  Run(const Batch& batch, std::vector<BatchItem> items, const Invocation& invocation)
      : batch_(batch), invocation_(invocation) {
    slots_.resize(items.size());
    std::map<std::string, std::size_t> last_of_order;
    std::map<std::string, std::size_t> last_of_key;
    const auto follow = [&](std::map<std::string, std::size_t>& last, const std::string& what, std::size_t i,
                            std::size_t Slot::*before, std::size_t Slot::*after) {
      const auto [place, first] = last.try_emplace(what, i);
      if (first) return;
      slots_[i].*before = place->second;
      slots_[place->second].*after = i;
      ++slots_[i].waits;
      place->second = i;
    };
    for (std::size_t i = 0; i < items.size(); ++i) {
      slots_[i].item = std::move(items[i]);
      const BatchItem& item = slots_[i].item;
      if (!item.order.empty()) follow(last_of_order, item.order, i, &Slot::before_in_order, &Slot::next_in_order);
      if (item.key) follow(last_of_key, item.key->stored(), i, &Slot::before_with_key, &Slot::next_with_key);
    }
    open_ = slots_.size();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].waits == 0) ready_.push_back(i);
    }
  }

  std::string run(Again again) {
    {
      // This thread works too, and alone if no other can be started.
      const std::lock_guard lock(mutex_);
      start_threads();
    }
    work();
    threads_.clear();  // Joins.
    if (again == Again::batch) check_all_done();
    return response();
  }

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  struct End {
    RecordEnd end = RecordEnd::executed;
    bool reported = false;
    bool parked = false;
    std::string why;
    bool by_twin = false;  // blocked: by a record with its key, so the operation failed.
  };

  struct Slot {
    BatchItem item;
    std::size_t before_in_order = none;
    std::size_t next_in_order = none;
    std::size_t before_with_key = none;
    std::size_t next_with_key = none;
    int waits = 0;  // How many of its two predecessors it waits for.
    End end;
  };

  [[nodiscard]] Engine& engine() const noexcept { return batch_.engine_; }

  // Starts threads for ready records, if not enough threads look for work.
  void start_threads() {
    while (ready_.size() > idle_ && threads_.size() + 1 < batch_.options_.parallel && may_start_threads_) {
      try {
        threads_.emplace_back([this] {
          const WithinInvocation within({.deadline = invocation_.deadline, .tenant = invocation_.tenant_id});
          work();
        });
        ++idle_;
      } catch (const std::system_error&) {
        may_start_threads_ = false;  // The limit of the process (Lambda: 1024 threads). The existing ones do the rest.
      }
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (open_ > 0) {
      if (ready_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const std::size_t i = ready_.front();
      ready_.pop_front();
      --idle_;
      std::optional<End> known = left_unprotected(i);
      if (!known) {
        lock.unlock();
        known = run_one(slots_[i].item);
        lock.lock();
      }
      ++idle_;
      const std::vector<std::size_t> ended = settle(i, *std::move(known));
      start_threads();
      lock.unlock();
      changed_.notify_all();
      for (const std::size_t each : ended) tell(slots_[each]);
      lock.lock();
    }
  }

  // Ends a record, and those that end with it. Returns all of them.
  std::vector<std::size_t> settle(std::size_t first, End end) {
    slots_[first].end = std::move(end);
    std::vector<std::size_t> ended{first};
    for (std::size_t at = 0; at < ended.size(); ++at) {
      const std::size_t i = ended[at];
      --open_;
      for (const std::size_t next : {slots_[i].next_in_order, slots_[i].next_with_key}) {
        if (next == none || --slots_[next].waits > 0) continue;
        if (std::optional<End> known = without_running(slots_[next])) {
          slots_[next].end = std::move(*known);
          ended.push_back(next);
        } else {
          ready_.push_back(next);
        }
      }
    }
    return ended;
  }

  // Without a claim it would run again, because an earlier record has failed.
  [[nodiscard]] std::optional<End> left_unprotected(std::size_t i) const {
    const BatchItem& item = slots_[i].item;
    if (!item.streamed || item.key || !item.poison.empty()) return std::nullopt;
    for (std::size_t before = 0; before < i; ++before) {
      if (!slots_[before].end.reported) continue;
      return End{.end = RecordEnd::blocked,
                 .reported = true,
                 .parked = false,
                 .why = "it has no key, and would run again with " + slots_[before].item.id + ", which failed"};
    }
    return std::nullopt;
  }

  // The end that follows from earlier records, if any.
  [[nodiscard]] std::optional<End> without_running(const Slot& slot) const {
    if (slot.before_in_order != none && slots_[slot.before_in_order].end.reported) {
      return End{.end = RecordEnd::blocked,
                 .reported = true,
                 .parked = false,
                 .why = "it follows " + slots_[slot.before_in_order].item.id + ", which failed"};
    }
    if (slot.before_with_key == none) return std::nullopt;
    const Slot& other = slots_[slot.before_with_key];
    switch (other.end.by_twin ? ForNext::failed : for_next(other.end.end)) {
      case ForNext::done: {
        const Fingerprint& ours = slot.item.fingerprint;
        const Fingerprint& theirs = other.item.fingerprint;
        if (!ours.empty() && !theirs.empty() && !(ours == theirs)) return std::nullopt;
        return End{.end = RecordEnd::duplicate,
                   .reported = false,
                   .parked = false,
                   .why = "the key is that of " + other.item.id};
      }
      case ForNext::failed:
        return End{.end = RecordEnd::blocked,
                   .reported = true,
                   .parked = false,
                   .why = "the key is that of " + other.item.id + ", which failed",
                   .by_twin = true};
      case ForNext::own:
        break;
    }
    return std::nullopt;
  }

  // The time left of the invocation, or empty without a deadline.
  [[nodiscard]] std::optional<Millis> left() const {
    if (invocation_.deadline == never) return std::nullopt;
    return std::chrono::duration_cast<Millis>(invocation_.deadline - engine().options().clock->now());
  }

  [[nodiscard]] Policy policy_now() const {
    Policy policy = within_deadline(engine(), batch_.policy_, invocation_);
    if (const std::optional<Millis> rest = left()) {
      policy.wait = std::min(effective(policy).wait, std::max(*rest - batch_.options_.margin, Millis{0}));
    }
    return policy;
  }

  // Throws nothing, because an exception would end its thread and the process.
  End run_one(const BatchItem& item) {
    try {
      return attempt(item);
    } catch (const queues::PoisonRecord& error) {
      return dead_end(item, RecordEnd::poison, batch_.options_.on_poison, error.what());
    } catch (const ClaimLost& error) {
      return reported(RecordEnd::lost, error.what());
    } catch (const std::exception& error) {
      return reported(RecordEnd::failed, error.what());
    } catch (...) {  // Other types have no text, but are reported too.
      return reported(RecordEnd::failed, "an exception that is not a std::exception");
    }
  }

  End attempt(const BatchItem& item) {
    if (const std::optional<Millis> rest = left(); rest && *rest < std::max(batch_.options_.margin, least_lease)) {
      return reported(RecordEnd::out_of_time, "the invocation ends in " + std::to_string(rest->count()) + " ms");
    }
    if (!item.poison.empty()) return dead_end(item, RecordEnd::poison, batch_.options_.on_poison, item.poison);
    if (!item.key) return end_of(item, engine().run_unprotected(batch_.options_.scope, item.work));
    Policy policy;
    try {
      policy = policy_now();
    } catch (const FunctionError& error) {  // No time left since the check above.
      return reported(RecordEnd::out_of_time, error.what());
    }
    return end_of(
        item, engine().run(Request{.key = *item.key,
                                   .fingerprint = item.fingerprint,
                                   .policy = policy,
                                   .holder = invocation_.request_id,
                                   .label = item.label,
                                   .label_from_payload = true,
                                   .trace = item.trace != nullptr ? item.trace : trace_from_xray(invocation_.trace_id),
                                   .input = item.input},
                           item.work));
  }

  static End reported(RecordEnd end, std::string why) {
    return {.end = end, .reported = true, .parked = false, .why = std::move(why)};
  }

  End end_of(const BatchItem& item, const Outcome& outcome) {
    const BatchOptions& options = batch_.options_;
    switch (outcome.kind) {
      case Outcome::Kind::executed:
        return {.end = RecordEnd::executed, .reported = false, .parked = false, .why = {}};
      case Outcome::Kind::replayed:
      case Outcome::Kind::superseded:
        return {.end = RecordEnd::replayed, .reported = false, .parked = false, .why = {}};
      case Outcome::Kind::unrecorded:
        return {.end = RecordEnd::unrecorded, .reported = false, .parked = false, .why = outcome.error.message};
      case Outcome::Kind::unprotected:
        return {.end = RecordEnd::unprotected, .reported = false, .parked = false, .why = {}};
      case Outcome::Kind::stored_failure:
        return reported(RecordEnd::stored_failure,
                        outcome.record->failure.code + ": " + outcome.record->failure.message);
      case Outcome::Kind::conflict:
        return reported(RecordEnd::conflict, "held by " + outcome.record->holder);
      case Outcome::Kind::mismatch:
        return dead_end(item, RecordEnd::mismatch, options.on_mismatch,
                        "the key was used with another payload, by " + outcome.record->holder);
      case Outcome::Kind::unknown:
        return dead_end(item, RecordEnd::unknown, options.on_unknown, outcome.record->failure.message);
      case Outcome::Kind::lost:
        return reported(RecordEnd::lost, outcome.error.message);
      case Outcome::Kind::error:
        if (queues::is_done(outcome.record)) {
          return {.end = RecordEnd::replayed, .reported = false, .parked = false, .why = outcome.error.message};
        }
        if (queues::has_failed(outcome.record)) return reported(RecordEnd::stored_failure, outcome.error.message);
        return reported(RecordEnd::error, outcome.error.message);
    }
    return reported(RecordEnd::failed, "the engine gave an unknown outcome");
  }

  End dead_end(const BatchItem& item, RecordEnd end, OnDeadEnd what, std::string why) {
    if (what == OnDeadEnd::leave) return reported(end, std::move(why));
    std::optional<std::string> trouble;
    try {
      trouble = queues::park(engine(), batch_.options_.scope, item, std::string(to_string(end)) + ": " + why,
                             policy_now(), invocation_.request_id);
    } catch (const std::exception& error) {  // For example no time left.
      trouble = error.what();
    }
    if (trouble) return reported(end, why + "; and it could not be parked: " + *trouble);
    return {.end = end, .reported = false, .parked = true, .why = std::move(why)};
  }

  void tell(const Slot& slot) const {
    if (!batch_.options_.observer) return;
    batch_.options_.observer({.end = slot.end.end,
                              .reported = slot.end.reported,
                              .parked = slot.end.parked,
                              .id = slot.item.id,
                              .key = slot.item.key ? std::string_view(slot.item.key->stored()) : std::string_view(),
                              .why = slot.end.why});
  }

  void check_all_done() const {
    const auto failed = std::ranges::find_if(slots_, [](const Slot& slot) { return slot.end.reported; });
    if (failed == slots_.end()) return;
    throw FunctionError(std::string(errors::records_failed),
                        "record " + failed->item.id + " is not done: " + std::string(to_string(failed->end.end)) +
                            (failed->end.why.empty() ? "" : ", " + failed->end.why) +
                            "; all records must come again, and those that are done will not run");
  }

  [[nodiscard]] std::string response() const {
    std::string out = R"({"batchItemFailures":[)";
    std::set<std::string_view> ids;
    for (const Slot& slot : slots_) {
      if (!slot.end.reported || !ids.insert(slot.item.id).second) continue;
      if (ids.size() > 1) out += ',';
      out += R"({"itemIdentifier":)" +
             (slot.item.identifier.empty() ? text::json::quoted(slot.item.id) : slot.item.identifier) + "}";
    }
    return out + "]}";
  }

  const Batch& batch_;
  const Invocation& invocation_;
  std::mutex mutex_;  // Guards the following members; a running record belongs to its thread.
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::deque<std::size_t> ready_;
  std::size_t open_ = 0;
  std::size_t idle_ = 1;  // Threads that look for work, including this one.
  bool may_start_threads_ = true;
  std::vector<std::jthread> threads_;
};

std::string Batch::run(std::vector<BatchItem> items, const Invocation& invocation, Again again) const {
  return Run(*this, std::move(items), invocation).run(again);
}

}  // namespace once::lambda
