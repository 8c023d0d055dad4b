// One attempt's talk with the store until it holds the claim or knows what stands in the way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <once/callback.hpp>
#include <once/decide.hpp>
#include <once/store.hpp>

namespace once {

class EngineCore;

class Conversation {
 public:
  // What to begin with.
  struct Start {
    enum class Kind : std::uint8_t {
      insert,  // Nothing is known.
      read,    // Somebody was there a moment ago: reading is cheaper than a write that will be refused.
      seen,    // `record` is there.
    };
    Kind kind = Kind::insert;
    std::shared_ptr<const Record> record;
    std::uint64_t place = 0;
    Uptime now{};  // insert: a moment ago. 0: not known.
  };

  struct End {
    enum class Kind : std::uint8_t {
      claimed,  // `record` is our claim, `verdict` how we came by it.
      seen,     // `record` stands in the way.
      failed,   // `error`; `record`, if not null, stood in the way before.
    };
    Kind kind = Kind::failed;
    Verdict verdict = Verdict::execute;
    std::shared_ptr<const Record> record;
    std::uint64_t place = 0;
    std::shared_ptr<EngineCore> core;  // claimed: the conversation's, for the claim.
    Uptime leased_at{};                // claimed: when the write that made the lease was sent.
    Uptime claimed_at{};               // claimed: when its answer was there.
    Uptime trusted_until{};            // claimed: once::trusted_until() of it; later than now.
    Error error;
  };
  using OnEnd = Callback<void(End&&)>;

  // The attempt must live until on_end is called.
  static void start(std::shared_ptr<EngineCore> core, const Attempt& attempt, const EffectivePolicy& policy,
                    Start start, OnEnd on_end);

  Conversation(std::shared_ptr<EngineCore> core, const Attempt& attempt, const EffectivePolicy& policy, OnEnd on_end);

 private:
  // One write (or read) in flight, remembered so that it can be sent again when its answer was lost.
  enum class Ask : std::uint8_t { insert, claim_over, mark, correct, read };

  // This: what keeps it is handed from each function to the next, by way of the store's answer.
  using Self = std::unique_ptr<Conversation>;

  void insert(Self self, Uptime now = {});
  void read(Self self);
  void consider(Self self, std::shared_ptr<const Record> record, std::uint64_t place);
  // `counted_at`: when the times in `next` were read.
  void replace(Self self, RecordPtr next, const Record& seen, std::uint64_t place, Ask ask, Uptime counted_at);
  void on_answer(Self self, Answer&& answer, Uptime sent);
  void on_done(Self self, Answer&& answer);
  void on_failed(Self self, Error error);
  // written_ stands in the store and is ours. Ends the conversation, unless its lease has to be counted anew first.
  void won(Self self, std::uint64_t place);
  void correct(Self self, std::uint64_t place);
  void remove_orphan();
  void fail(Error error);
  void end(End&& end);
  void end_seen(std::shared_ptr<const Record> record, std::uint64_t place);

  std::shared_ptr<EngineCore> core_;
  const Attempt& attempt_;
  const EffectivePolicy policy_;
  OnEnd on_end_;

  Ask ask_ = Ask::insert;
  std::shared_ptr<const Record> written_;  // What the write under way writes.
  Seen seen_;                              // Its condition.
  Verdict verdict_ = Verdict::execute;
  RecordPtr shown_;        // What stood in the way of a write that is under way.
  Uptime written_at_{};    // When the last write was sent, or its times were read.
  bool told_ = false;      // The store's time was known when written_ was made …
  Millis error_{0};        // … up to this.
  bool in_doubt_ = false;  // The store may hold a claim of ours that we do not know of.
  std::string orphan_;     // Where the result lies of the record that a claim takes the place of. Empty: nowhere.
  unsigned failures_ = 0;
  unsigned refusals_ = 0;
  unsigned corrections_ = 0;
};

}  // namespace once
