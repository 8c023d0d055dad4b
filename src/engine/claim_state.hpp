// One claim: its copy of the record, and the one writer at a time that changes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <once/clock.hpp>
#include <once/decide.hpp>
#include <once/engine/claim.hpp>
#include <once/engine/event.hpp>
#include <once/policy.hpp>
#include <once/store.hpp>

#include "engine/heartbeats.hpp"

namespace once {

class EngineCore;

class ClaimState : public std::enable_shared_from_this<ClaimState> {
 public:
  // `leased_at`: when the write that made the lease was sent; `claimed_at`: when its answer was there; `trusted_until`:
  // EngineCore::trusted_until of it.
  ClaimState(std::shared_ptr<EngineCore> core, std::shared_ptr<const Attempt> attempt,
             std::shared_ptr<const Record> record, std::uint64_t place, const EffectivePolicy& policy, Uptime leased_at,
             Uptime claimed_at, Uptime trusted_until);
  ClaimState(const ClaimState&) = delete;
  ClaimState& operator=(const ClaimState&) = delete;
  ~ClaimState();

  [[nodiscard]] Uptime first_beat() const noexcept {
    return heartbeats() ? leased_at_ + renew_interval() : trusted_until_;
  }

  // Unchanging parts, readable without a lock.
  const std::shared_ptr<const Attempt> attempt;  // Its key and owner are the claim's.
  const std::uint64_t token;
  const std::uint32_t number;  // Of the attempt, from 1.
  const EffectivePolicy policy;

  [[nodiscard]] const std::string& key() const noexcept { return attempt->key; }
  [[nodiscard]] std::shared_ptr<const Record> record() const;  // As last written.
  [[nodiscard]] std::stop_token stop_token();
  [[nodiscard]] Uptime deadline() const;
  [[nodiscard]] bool lost() const;
  [[nodiscard]] bool finishing() const;  // Its finish is written, or about to be.
  [[nodiscard]] bool is_ours() const;    // Certainly, now.
  [[nodiscard]] std::optional<std::string> step(std::string_view name) const;
  [[nodiscard]] Uptime renew_interval() const noexcept { return std::chrono::nanoseconds(policy.lease) / 3; }

  void beat();                       // From the heartbeat: renews, or finds that the lease has run out.
  void note(std::string_view text);  // Renews with a note.
  void add_step(Step step, FinishDone done);

  // fence: a renewal in place of a completion whose companion was declined, before anybody is told so.
  enum class Op : std::uint8_t { renew, step, complete, fail, hold, release, fence };
  struct Together {
    std::shared_ptr<const Companion> companion;
    Error declined;  // fence: what is told once it is written.
  };
  // Moved from its maker to where it is written, for every finish: what only few of them have is one word or none.
  struct Write {
    Op op = Op::renew;
    Result result;
    // fail: what is stored. hold, release: the message is the reason. step: the code is its name. Null: nothing.
    std::unique_ptr<Failure> text;
    FinishDone done;  // Empty for a renewal, and once the caller was told.
    unsigned tries = 0;
    Uptime patient_until{};  // A finish under a fixed lease: until when its caller waits for further tries.
    bool offloaded = false;  // The bytes at result.location are ours to remove if the claim turns out to be lost.
    std::unique_ptr<Together> together;  // complete with a companion, and its fence.
  };
  void finish(Write&& write);  // complete, fail, hold, release. Throws Exception(misuse) for a second one.

  void abandon();  // The handle was dropped. Nothing if a finish was asked for.
  // Abandons the claim and says what stands under its key: superseded or lost.
  void give_up(FinishDone done);

  // For Flights: guarded by the mutex of the key's shard, and never changed.
  LiveClaims::Link live_link;
  std::size_t flight_hash = 0;  // Of the key.

 private:
  [[nodiscard]] bool heartbeats() const noexcept { return policy.heartbeat && !policy.fixed_lease; }
  static bool is_finish(Op op) noexcept { return op != Op::renew && op != Op::step; }

  [[nodiscard]] bool has_room_for(const Step& step) const noexcept;
  [[nodiscard]] std::size_t inline_limit() const;
  [[nodiscard]] std::size_t compress_over() const noexcept;  // Results longer than this.
  void offload(Write&& write);
  void discard(const Write& write, const Record* stored);
  // What stands under the key of a claim that was lost: superseded or lost. The first reads the store.
  // `missed`: where a result was that could not be fetched.
  void look_up_loss(FinishDone done, std::string missed = {});
  void tell_loss(FinishDone done, std::shared_ptr<const Record> record, std::string missed = {});
  void enqueue(std::unique_lock<std::mutex> lock, Write&& write);
  void pump(std::unique_lock<std::mutex> lock);  // Starts the next write if none is under way.
  void send(std::unique_lock<std::mutex> lock);
  [[nodiscard]] RecordPtr build(Write& write, Time now) const;  // Takes the write's result.
  void fit(Record& next) const;
  // A write under way: what it wants to leave in the store, when it was sent, when its lease was counted from, and how
  // well the time was known then.
  struct Sent {
    std::shared_ptr<const Record> next;
    Uptime at{};
    Uptime counted_at{};
    Millis error{0};
  };
  void on_answer(Answer&& answer, Sent&& sent);
  void on_written(std::unique_lock<std::mutex> lock, Sent&& sent, std::uint64_t place);
  void on_refused(std::unique_lock<std::mutex> lock, std::shared_ptr<const Record> seen, std::uint64_t place,
                  Sent&& sent);
  void trust(const Sent& sent);
  void forget_written(const Record& stored);
  void on_failed(std::unique_lock<std::mutex> lock, Answer&& answer, Sent&& sent);
  void on_declined(std::unique_lock<std::mutex> lock, Error error);
  void tell_declined(std::unique_lock<std::mutex> lock, Error error);
  void end_write(std::unique_lock<std::mutex> lock, Finish finish);
  void stop_work(std::unique_lock<std::mutex>& lock);
  void end() noexcept { ended_.store(true, std::memory_order_release); }
  void tell(EventKind kind, const Record* record, const Error* error, Uptime since) const;

  const std::shared_ptr<EngineCore> core_;
  const Uptime claimed_at_;
  const Uptime leased_at_;

  mutable std::mutex mutex_;
  std::shared_ptr<const Record> record_;  // As last acknowledged.
  std::uint64_t place_;                   // Where the store keeps it.
  std::vector<Step> unwritten_;  // Steps that finished but could not be written yet: they go with the next write.
  std::string unwritten_note_;
  Uptime trusted_until_;
  std::optional<std::stop_source> stop_;  // Made when somebody asks for the token.
  std::vector<Write> queue_;
  std::optional<Write> current_;  // The write under way, or waiting to be tried again.
  // What current_ sent when an answer was lost. That try may still arrive, so every other one repeats its bytes: two
  // different writes never have the same revision. Empty: no try is in doubt.
  Sent doubtful_;
  Timers::Id retry_timer_ = 0;  // Not 0: current_ waits.
  bool finishing_ = false;      // A finish was asked for …
  bool finish_queued_ = false;  // … and what it writes is ready.
  bool dropped_ = false;        // The handle is gone.
  std::atomic<bool> ended_{
      false};               // Finished, abandoned or given up: nothing more is written. Set with the mutex held.
  bool lost_ = false;       // Somebody else has it.
  bool overdue_ = false;    // Our own measure of the lease has run out.
  unsigned unsettled_ = 0;  // Leases in a row that cannot be trusted until the next heartbeat.
};

}  // namespace once
