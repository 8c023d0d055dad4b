// One attempt's requests to the store, until it has the claim or knows the record in the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <once/callback.hpp>
#include <once/decide.hpp>
#include <once/store.hpp>

#include "engine/engine_attempt.hpp"

namespace once {

class EngineCore;

class Conversation {
 public:
  // How to begin.
  struct Start {
    enum class Kind : std::uint8_t {
      insert,  // Nothing is known.
      read,    // A record was there a moment ago: a read is cheaper than a refused write.
      seen,    // `record` is stored.
    };
    Kind kind = Kind::insert;
    std::shared_ptr<const Record> record = {};
    std::uint64_t place = 0;
    Uptime now{};  // insert: the uptime a moment ago. 0: not known.
  };

  struct End {
    enum class Kind : std::uint8_t {
      claimed,  // `record` is our claim, `verdict` says how we got it.
      seen,     // `record` is stored, or nothing if it is null.
      failed,   // `error`. `record`: the one that was in the way before, or null.
    };
    Kind kind = Kind::failed;
    Verdict verdict = Verdict::execute;
    std::shared_ptr<const Record> record;
    std::uint64_t place = 0;
    std::shared_ptr<EngineCore> core;  // claimed: passed on to the claim.
    Uptime leased_at{};                // claimed: when the write that made the lease was sent.
    Uptime claimed_at{};               // claimed: when its answer came.
    Uptime trusted_until{};            // claimed: once::trusted_until(), in the future.
    Error error;
  };
  using OnEnd = Callback<void(End&&)>;

  // The attempt must live until on_end is called. `lease`: that of its policy, or a shorter one.
  static void start(std::shared_ptr<EngineCore> core, EngineAttempt& attempt, Millis lease, Start start, OnEnd on_end);

  Conversation(std::shared_ptr<EngineCore>&& core, EngineAttempt& attempt, Millis lease, OnEnd&& on_end);

 private:
  // The running write (or read), kept to send it again if its answer is lost.
  enum class Ask : std::uint8_t { insert, claim_over, mark, correct, read };

  // Owns this object. Passed from each function to the next, through the store's answer.
  using Self = std::unique_ptr<Conversation>;

  void insert(Self self, Uptime now = {});
  void read(Self self);
  void consider(Self self, std::shared_ptr<const Record> record, std::uint64_t place);
  // `counted_at`: when the times in `next` were read.
  void replace(Self self, RecordPtr next, const Record& seen, std::uint64_t place, Ask ask, Uptime counted_at);
  void on_answer(Self self, Answer&& answer, Uptime sent);
  void on_done(Self self, Answer&& answer);
  void on_failed(Self self, Error error);
  // written_ is stored, and is ours. Ends the conversation, unless its lease must be computed again.
  void won(Self self, std::uint64_t place);
  void correct(Self self, std::uint64_t place);
  // Writes over written_, which is ours and has no sufficient lease.
  void rewrite(Self self, std::uint64_t place);
  void remove_orphan();
  void fail(Error error);
  void end(End&& end);
  void end_seen(std::shared_ptr<const Record> record, std::uint64_t place);
  // The attempt's earlier claims are over: a copy of this process has ended them.
  void forget_owner() noexcept;
  // Nothing is stored.
  void insert_or_end(Self self, std::uint64_t place);
  // Whether only this attempt and operators have written the record, which has its owner.
  [[nodiscard]] bool is_explained(const Record& record) const noexcept;

  std::shared_ptr<EngineCore> core_;
  EngineAttempt& attempt_;
  EffectivePolicy policy_;
  OnEnd on_end_;

  Ask ask_ = Ask::insert;
  std::shared_ptr<const Record> written_;  // The record of the running write.
  Seen seen_;                              // Its condition.
  Verdict verdict_ = Verdict::execute;
  RecordPtr shown_;      // The record in the way of the running write.
  Uptime written_at_{};  // When the last write was sent, or its times were read.
  bool told_ = false;    // The store's time was known when written_ was made …
  Millis error_{0};      // … with this error.
  std::size_t in_doubt_before_ = attempt_.may_be_stored.size();  // Claims of earlier conversations.
  bool in_doubt_ = false;  // The store may have a claim of ours that we do not know.
  std::string orphan_;     // The location of the result of the record that the claim replaces, or empty.
  unsigned failures_ = 0;
  unsigned refusals_ = 0;
  unsigned corrections_ = 0;
};

}  // namespace once
