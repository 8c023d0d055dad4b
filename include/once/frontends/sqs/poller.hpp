// Works off an SQS queue outside Lambda. Each message is an operation that runs once; it is deleted from the queue when
// its result is durable. `once sqs` is this with a command or a URL as the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/aws/transport.hpp>
#include <once/engine/claim.hpp>
#include <once/engine/engine.hpp>
#include <once/policy.hpp>
#include <once/queues/message.hpp>
#include <once/queues/record.hpp>
#include <once/result.hpp>
#include <once/time.hpp>

namespace once::sqs {

using queues::KeySource;
using queues::OnDeadEnd;

// How the work of a message ended. A message that stays in the queue comes again, or the queue moves it to its
// dead-letter queue.
struct WorkEnd {
  // What becomes of the claim and of the message.
  enum class Kind : std::uint8_t {
    completed,    // `result` is stored. The message is deleted.
    failed,       // Failed for good: `failure` and `result` are stored. The message is deleted.
    released,     // It may run again: `failure.message` says why. The message stays.
    unavailable,  // As released. No message could run now, so none is received for a while.
    lapses,       // As released, but only when the lease ends: a part of the work may still run.
    held,         // Not known whether it acted: `failure.message` says why. See PollerOptions::on_unknown.
  };
  Kind kind = Kind::completed;  // Says which of the next two are used.
  Result result = {};           // completed, failed. At most as check(const Result&) allows.
  Failure failure = {};         // failed: whole. released, unavailable, lapses, held: its message.
  // completed: writes that commit together with the result, see docs/transactions.md. Null: none. If they are declined,
  // the message is as released.
  std::shared_ptr<const Companion> commit_with = {};
};

// Called on a thread of the poller, while the claim is held and renewed. It must not finish the claim. An exception
// releases the claim. Claim::stop_token() and deadline() say when to stop.
using PolledWork = std::function<WorkEnd(const Message&, Claim&)>;

// What happened to a message or to the queue. Views are valid during the call.
struct PollEvent {
  // What happened.
  enum class Kind : std::uint8_t {
    ended,        // A message was processed: `end`, `deleted`.
    given_back,   // A message was not begun, and is visible again. See `why`.
    overdue,      // A message's visibility could not be extended: others may receive it. Its claim still protects it.
    not_hidden,   // The visibility of a message that stays could not be changed: it comes again when its visibility
                  // ends.
    not_deleted,  // A message is done, but still in the queue. The next delivery deletes it.
    pause,  // The queue or the store does not answer or refuses, or WorkEnd::Kind::unavailable. Nothing is received for
            // `pause`: 250 ms to 20 s, longer after each failure in a row.
    abandoned,  // run() ends during a request for messages. Messages of its answer stay hidden until their visibility
                // ends.
  };
  Kind kind{};                      // Says which of the other members are set.
  queues::RecordEnd end{};          // ended: how.
  bool deleted = false;             // The message will be deleted next; not_deleted reports a failure of that.
  bool parked = false;              // It is kept for an operator: see OnDeadEnd::park.
  std::string_view id = {};         // The message's.
  std::string_view key = {};        // The stored key of its operation, or empty.
  std::uint32_t receive_count = 0;  // As Message::receive_count.
  std::string_view why = {};        // For people.
  Millis pause{0};                  // pause: how long.
};

std::string_view to_string(PollEvent::Kind kind) noexcept;  // "ended" …

// Which queue, how a message becomes an operation, and when it stays.
struct PollerOptions {
  std::string queue = {};  // The queue's URL, or its name in the account and region of the credentials.

  std::string scope = {};                // Of the keys. Empty: the queue's name.
  KeySource key_source = KeySource::id;  // Where the key of a message comes from.
  std::string key = {};                  // JMESPath over the message in Lambda's form: see KeySource.
  // JMESPath: with KeySource::payload over the body, otherwise over the message in Lambda's form. Empty: nothing is
  // compared.
  std::string fingerprint = {};
  bool allow_null_parts = false;  // In both: see keys::Recipe.

  // Fields that are left out of the record's input, as "card.number": see once/keys/input_filter.hpp. With
  // Policy::keep_input the input is the message's body. A parked message is kept whole.
  std::vector<std::string> input_without = {};

  std::size_t parallel = 1;  // Messages that run at once: 1 to 1000.
  // How long a received message is hidden from others: 3 s to 12 h, whole seconds. The poller extends it at every third
  // of this time. SQS ends it 12 h after the receipt.
  Millis visibility{30'000};
  // How long one request waits for messages: 0 to 20 s, whole seconds. An idle poller needs this long to stop. It sends
  // 17 000 requests a day with 5 s, 4 000 with 20 s.
  Millis receive_wait{5'000};
  // End when no more messages are received and all received ones have ended. Not with `receive_wait` 0: such a request
  // asks only some of SQS's servers, and may miss messages.
  bool drain = false;

  // When a message that stays comes again: 0 to 12 h, whole seconds. Empty: when its visibility ends. After stop(), a
  // message whose work was released is visible at once, because the work was stopped and did not fail.
  std::optional<Millis> retry_after = {};
  // With it, retry_after is for the first receipt, and doubles with each one up to this limit: at most 12 h, whole
  // seconds. Empty: it does not grow.
  std::optional<Millis> retry_after_limit = {};

  OnDeadEnd on_poison = OnDeadEnd::leave;    // leave: it stays. park: kept for an operator, and deleted.
  OnDeadEnd on_mismatch = OnDeadEnd::leave;  // As on_poison, for a key used with another payload.
  OnDeadEnd on_unknown = OnDeadEnd::leave;   // As on_poison, for an outcome that is not known.

  // What asking the service about an unknown operation gave: see once/reconcile.hpp.
  enum class Asked : std::uint8_t {
    decided,   // The message is begun again, at once.
    later,     // The message stays, and is asked about again when it comes.
    given_up,  // on_unknown decides about the message.
  };
  // Asks about the unknown operation of a message, once for each delivery and each run that ends so. On a thread of the
  // poller; may block. Must not throw. Empty: given_up.
  std::function<Asked(const RecordPtr& unknown)> reconcile = {};

  // OnLapse::hold needs a key that survives a redrive, KeySource::payload or a `key` of the record: a message that is
  // moved back from a dead-letter queue has a new id. So it does for work that returns WorkEnd::Kind::held.
  // Empty members: the engine's. Ignored: on_missing_key and on_store_down, because no work runs without a claim;
  // on_throw, because an exception releases the claim. Default of on_conflict: fail.
  std::optional<Policy> policy = {};
  // Called from any thread, by several at once. Must not block and must not throw.
  std::function<void(const PollEvent&)> observer = {};
};

// Since run() was called.
struct PollCounts {
  std::uint64_t received = 0;  // Messages, each time that they were received.
  std::uint64_t deleted = 0;   // Messages that the queue has deleted for this poller.
  std::uint64_t stayed = 0;    // How often a message was processed and still stayed in the queue.
  // With PollerOptions::drain: messages that stayed when they were last processed. They are in the queue or its
  // dead-letter queue. Otherwise 0.
  std::uint64_t left = 0;
  std::uint64_t in_flight = 0;  // Now: received, and neither deleted nor given back or left.
  std::string refusal = {};     // Why the last request for messages failed. Empty: it did not.
};

// What is in a queue, as counted by SQS: approximate, and up to a minute old.
struct Backlog {
  std::uint64_t visible = 0;               // Messages that can be received now.
  std::uint64_t hidden = 0;                // Received, and not deleted yet.
  std::uint64_t delayed = 0;               // Not visible yet.
  std::string dead_letter_queue = {};      // Its name, or empty.
  std::uint64_t dead = 0;                  // Messages in it.
  std::optional<Error> dead_unknown = {};  // If set, why `dead` is not known.
};

// Runs messages concurrently. In a FIFO queue the messages of a group run in order; after one that stays, the rest of
// its group is given back. Messages with the same key run one after another.
class Poller {
 public:
  // `receiver` requests messages, and waits for up to PollerOptions::receive_wait and a little more. `transport` sends
  // everything else; both may be the same. The engine must outlive the poller. Sends nothing yet. Throws
  // Exception(misuse) for invalid options.
  Poller(Engine& engine, std::shared_ptr<aws::Transport> receiver, std::shared_ptr<aws::Transport> transport,
         PollerOptions options, PolledWork work);
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  ~Poller();  // After run() has returned.

  // Works until stop(), or until the queue is empty (PollerOptions::drain). Call it once. Throws Exception after
  // running messages have ended. misuse: no such queue, no credentials, no permission, before the queue has answered a
  // request for messages. The same afterwards is a pause (PollEvent::Kind::pause), because it may pass. unavailable,
  // with PollerOptions::drain: the queue does not answer.
  void run();

  // Receives no more messages. Those not begun are visible to others at once; running work is allowed to finish. Call
  // it from any thread. A running request for messages cannot be cancelled, because SQS does not notice that its
  // connection is closed (aws/aws-sdk-js issue 2350, aws/aws-sdk-java-v2 issue 1395). So run() waits for its answer, at
  // most PollerOptions::receive_wait + 5 s. Messages in it are visible to others at once.
  void stop();
  // After stop(): run() stops waiting for that answer (PollEvent::Kind::abandoned). Call it from any thread.
  void abandon();

  [[nodiscard]] PollCounts counts() const;  // From any thread.

  // After run(): what is left in the queue. Blocks. Throws Exception as run() does.
  [[nodiscard]] Backlog backlog() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace once::sqs
