// A store that wraps another and adds the faults of networks and servers: answers get lost, writes arrive late, twice
// or never. A plan decides each fault, so a seed or a script repeats it exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/clock.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

namespace once::testing {

// A call of the store, before it is carried out.
struct StoreCall {
  // Which function of Store. replace_with() counts as replace.
  enum class Operation : std::uint8_t {
    insert,   // A write.
    replace,  // A write.
    remove,   // A write.
    get,      // A read.
    list,     // A read.
    sweep,    // Removes records. A lost answer is like that of a read.
  };
  Operation operation = Operation::get;  // Says whether `key` is set.
  std::string_view key = {};             // Empty for list and sweep. Valid during the call of the plan only.
  std::uint64_t number = 0;              // From 0, over all calls of this FaultyStore.

  // A call whose lost answer leaves it in doubt.
  [[nodiscard]] bool is_write() const noexcept {
    return operation == Operation::insert || operation == Operation::replace || operation == Operation::remove;
  }
};

std::string_view to_string(StoreCall::Operation operation) noexcept;  // "insert" …

// The fault of one call.
struct Fault {
  // Whether the call is carried out, and what its caller gets.
  enum class Kind : std::uint8_t {
    none,         // Carried out and answered, perhaps late.
    unavailable,  // Not carried out; answered with ErrorKind::unavailable.
    forbidden,    // Not carried out; answered with ErrorKind::misuse, like a missing permission.
    lost_before,  // Not carried out; a write is answered with in_doubt, others with unavailable.
    lost_after,   // Carried out; answered as lost_before.
    resent,       // Carried out twice; answered with the second answer, like a client that retried.
    repeated,     // Carried out twice, `repeat_after` apart; answered with the first answer.
  };
  Kind kind = Kind::none;  // Independent of the delays.
  // Calls with different delays may overtake each other.
  Millis request_delay{0};  // From the call to its execution.
  Millis answer_delay{0};   // From the execution to the answer.
  Millis repeat_after{0};   // repeated: from the first answer to the second execution. 0: before the answer.
};

std::string_view to_string(Fault::Kind kind) noexcept;  // "unavailable" …

// Called once for each call, in order, under a lock of the store: it must not call the store.
using FaultPlan = std::function<Fault(const StoreCall&)>;

// How often each fault happens, in a thousand calls. The sum of the kinds is at most 1000.
struct FaultRates {
  // These are the rates of the kinds with their names.
  std::uint32_t unavailable = 0;
  std::uint32_t lost_before = 0;
  std::uint32_t lost_after = 0;
  std::uint32_t resent = 0;
  std::uint32_t repeated = 0;

  std::uint32_t delayed = 0;  // Applies to both delays and repeat_after, each drawn separately.
  Millis max_delay{0};        // Delays are 1 ms to this. 0: no delays.
};

// Draws the fault of each call. The same seed and the same calls give the same faults.
FaultPlan random_faults(const FaultRates& rates, std::uint64_t seed);
FaultPlan no_faults();  // Every call is carried out and answered at once.

// Forwards to `inner` the calls that the plan allows. It has no thread: without delays everything happens inside the
// call, or inside the inner store's completion. Delays need `clock` and `timers` (both or neither): with ManualTimers a
// whole test runs in virtual time on one thread. Thread-safe. Answers each call exactly once. The destructor answers
// pending calls with in_doubt, and executes no further one.
class FaultyStore final : public Store {
 public:
  // Throws Exception(misuse) if inner or plan is empty, or only one of clock and timers is given.
  FaultyStore(std::shared_ptr<Store> inner, FaultPlan plan, std::shared_ptr<Clock> clock = nullptr,
              std::shared_ptr<Timers> timers = nullptr);
  FaultyStore(const FaultyStore&) = delete;
  FaultyStore& operator=(const FaultyStore&) = delete;
  ~FaultyStore() override;

  void insert(RecordPtr record, Done done) override;
  void replace(RecordPtr record, Seen seen, Done done) override;
  // The plan sees it as a replace.
  void replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) override;
  stores::SqlStatement finish_statement(const Record& record, std::uint64_t place) override;  // Without faults.
  void remove(std::string key, Seen seen, Done done) override;
  void get(std::string key, Done done) override;
  void list(ListQuery query, Callback<void(ListPage)> done) override;
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override;
  [[nodiscard]] std::optional<StoreTime> time() const noexcept override;
  [[nodiscard]] Capabilities capabilities() const noexcept override;
  [[nodiscard]] std::string name() const override;  // "faulty:" and the inner name.

  // Applies to later calls. Running calls keep their fault.
  void set_plan(FaultPlan plan);

  // Since the store was made.
  struct Counts {
    std::uint64_t calls = 0;      // All, also those without a fault.
    std::uint64_t faults = 0;     // Calls whose fault was not none.
    std::uint64_t delayed = 0;    // Calls with a delay before or after their execution.
    std::uint64_t under_way = 0;  // Not answered yet.
  };
  [[nodiscard]] Counts counts() const;  // All of one moment.

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace once::testing
