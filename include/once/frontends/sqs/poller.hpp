// An SQS queue worked off outside Lambda: each message is an operation that is run once, and leaves the queue when its
// result is durable. `once sqs` is this with a command or a URL for the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

// How the work of a message ended. What is kept is deleted from the queue, all else stays there: it comes again, or the
// queue moves it to its dead-letter queue.
struct WorkEnd {
  enum class Kind : std::uint8_t {
    completed,    // `result` is kept. The message is deleted.
    failed,       // For good: `failure` and `result` are kept. The message is deleted.
    released,     // It may run again: `failure.message` says why. The message stays.
    unavailable,  // The same, and any other message would end so now: nothing is received for a while.
    lapses,       // The same as released, but not before the lease ends: what it began may still be at work.
    held,         // Nobody knows whether it acted: `failure.message` says why. PollerOptions::on_unknown.
  };
  Kind kind = Kind::completed;
  Result result;
  Failure failure;
};

// Called on a thread of the poller while the claim is ours and renewed; must not finish it. What it throws releases the
// claim. Claim::stop_token() and deadline() say when to stop.
using PolledWork = std::function<WorkEnd(const Message&, Claim&)>;

struct PollEvent {
  enum class Kind : std::uint8_t {
    ended,        // A message's turn is over: `end`, `deleted`.
    given_back,   // A message was not begun, and is visible again: `why`.
    overdue,      // A message's visibility could not be prolonged: others may receive it. Its claim still protects it.
    not_hidden,   // A message that stays could not be hidden or shown as it should be: it comes when its visibility
                  // ends.
    not_deleted,  // A message that is done is still in the queue. It comes again, and is deleted then.
    pause,        // The queue or the store does not answer, or WorkEnd::Kind::unavailable: nothing is received for
                  // `pause`, 250 ms to 20 s, longer each time in a row.
    abandoned,    // run() ends while a request for messages is under way: what the queue hands to it stays hidden until
                  // its visibility ends.
  };
  Kind kind{};
  queues::RecordEnd end{};
  bool deleted = false;  // It is to be deleted, which is asked for next: not_deleted says if that fails.
  bool held = false;     // It is kept for a person, as OnDeadEnd says.
  std::string_view id;   // The message's.
  std::string_view key;  // The stored key of its operation. Empty: it has none.
  std::uint32_t receive_count = 0;
  std::string_view why;  // For people.
  Millis pause{0};
};

struct PollerOptions {
  std::string queue;  // Its URL, or its name in the account and region of the credentials.

  std::string scope;  // Of the keys. Empty: the queue's name.
  KeySource key_source = KeySource::id;
  std::string key;  // JMESPath over the message in the form that Lambda has: see KeySource.
  std::string fingerprint;

  std::size_t parallel = 1;  // Messages at work at one time: 1 to 1000.
  // For how long a message is hidden from others, unless it is prolonged, which is done at a third of it for as long as
  // the message is here: 3 s to 12 h. Whole seconds. SQS ends it 12 h after the receipt, whoever prolongs it.
  Millis visibility{30'000};
  // Of one request, for messages to come: 0 to 20 s. Whole seconds. It is what an idle poller takes to stop, and what
  // its requests cost: 17 000 a day with 5 s, 4 000 with 20 s.
  Millis wait{5'000};
  // End when nothing is received any more and all that was is over. Not with a `wait` of 0: one such request asks only
  // some of SQS's servers, and finds nothing though there is something.
  bool drain = false;

  // When a message that stays comes again: 0 to 12 h, whole seconds. Empty: when its visibility ends. After stop() one
  // whose work was released is visible at once: it was ended rather than that it failed.
  std::optional<Millis> retry_after;

  OnDeadEnd on_poison = OnDeadEnd::report;  // report: it stays. hold: kept for a person, and deleted.
  OnDeadEnd on_mismatch = OnDeadEnd::report;
  OnDeadEnd on_unknown = OnDeadEnd::report;

  // What it leaves open is the engine's. There is no work without a claim: what on_missing_key and on_store_down say is
  // not looked at. Nor is on_throw: what the work throws releases its claim. What neither policy says of conflicts:
  // OnConflict::fail.
  std::optional<Policy> policy;
  // From whichever thread, several at once; must not block and must not throw.
  std::function<void(const PollEvent&)> observer;
};

struct PollCounts {
  std::uint64_t received = 0;
  std::uint64_t deleted = 0;
  std::uint64_t stayed = 0;  // Turns that ended with the message still in the queue. It may have come again since.
  // With PollerOptions::drain, otherwise 0: messages whose last turn so ended. They are in the queue, or in its
  // dead-letter queue.
  std::uint64_t left = 0;
};

// What is in a queue, as SQS counts it: approximately, and up to a minute late.
struct Backlog {
  std::uint64_t visible = 0;
  std::uint64_t hidden = 0;           // Received by somebody and not deleted yet.
  std::uint64_t delayed = 0;          // Not visible yet.
  std::string dead_letter_queue;      // Its name. Empty: there is none.
  std::uint64_t dead = 0;             // What it holds.
  std::optional<Error> dead_unknown;  // Set: why `dead` is not known.
};

// Messages run side by side; in a FIFO queue those of a group follow each other, and after one that stays the rest of
// its group is given back. Messages with one key follow each other as well.
class Poller {
 public:
  // `receiver` is asked for messages, and waits for up to PollerOptions::wait and a little more; `transport` for all
  // else. They may be one. The engine must outlive the poller. Nothing is sent yet. Throws Exception(misuse) for
  // options that do not fit.
  Poller(Engine& engine, std::shared_ptr<aws::Transport> receiver, std::shared_ptr<aws::Transport> transport,
         PollerOptions options, PolledWork work);
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  ~Poller();  // After run().

  // Works until stop(), or until the queue is empty (PollerOptions::drain). Once. Throws Exception: misuse for what
  // waiting does not mend (no such queue, no credentials, no permission), after what was begun has ended; unavailable
  // with PollerOptions::drain if the queue does not answer.
  void run();

  // Takes nothing any more; what was not begun is visible to others at once, what was is let end. From any thread. A
  // request for messages that is under way cannot be taken back, as SQS does not notice when its connection is closed
  // (aws/aws-sdk-js issue 2350, aws/aws-sdk-java-v2 issue 1395): run() waits for its answer, for PollerOptions::wait
  // and 5 s at most, and what comes with it is visible to others at once.
  void stop();
  // For after stop(): run() does not wait for that answer any more (PollEvent::Kind::abandoned). From any thread.
  void abandon();

  [[nodiscard]] PollCounts counts() const;

  // After run(): what is left in the queue, whoever has it. Waits. Throws Exception as run() does.
  [[nodiscard]] Backlog backlog() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace once::sqs
