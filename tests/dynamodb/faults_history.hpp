// Several workers with an engine each, over one fake DynamoDB behind HTTPS, in time that flows as fast as the test
// says. Every write that lands, every claim, charge and answer goes to the simulation's auditor as it happens, and into
// a history that check() reads afterwards.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <once/aws/client.hpp>
#include <once/engine/engine.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/testing/manual_time.hpp>

#include "fake_aws/fake_dynamodb_server.hpp"
#include "simulation/auditor.hpp"
#include "stores/dynamodb/item_format.hpp"

namespace once::testing {

using namespace std::chrono_literals;

// A ManualClock that its own thread advances. Threads that get no processor for a while miss little of this time, and
// leases of half a minute lapse in a moment when the test wants it.
class FlowingTime {
 public:
  FlowingTime();
  const std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  const std::shared_ptr<ManualTimers> timers = std::make_shared<ManualTimers>(clock);
  std::atomic<std::int64_t> speed = 10;  // Milliseconds for each millisecond of the host.

 private:
  std::jthread thread_;
};

// Until it is so. False after a minute of the host's time without.
bool wait_until(const std::function<bool()>& condition);

class Ledgered;

// One process: an engine, its store, its client, its connections.
struct Worker {
  std::string name;
  simulation::ProcessId process = 0;
  std::shared_ptr<aws::Client> client;
  std::shared_ptr<Store> store;
  std::unique_ptr<Engine> engine;
};

struct WorkerOptions {
  Millis clock_off{0};                                   // How far its host's UTC is off.
  std::function<void(aws::ClientOptions&)> client = {};  // Changes its setup.
  std::function<void(stores::DynamoDbOptions&)> store = {};
};

// The final answer of a caller.
struct Told {
  enum class How : std::uint8_t { recorded, replayed, superseded, unrecorded, lost, error };
  How how = How::error;
  simulation::CallId call = 0;
  std::string worker;
  Fingerprint digest;                  // Of the result that was given; of the one that was dropped, if it was.
  bool dropped = false;                // Not the result itself, but that it was too large to keep.
  Verdict verdict = Verdict::execute;  // Of those that charged.
  Error error;
};

// An entry of the ledger: an effect of the work.
struct Charge {
  simulation::CallId call = 0;
  std::string worker;
  std::uint64_t token = 0;
  std::string result;
};

// A claim whose work has charged and not finished.
struct AtWork {
  simulation::CallId call = 0;
  std::string key;
  Claim claim;
  Result result;
  Verdict verdict = Verdict::execute;
};

// A request as the service gets it.
struct WireCall {
  std::string operation;
  std::string key;  // Stored form.
  bool write = false;
  bool insert = false;
  std::string holder;  // Of writes that bring a record.
  Seen seen;           // Of writes that name one.
  std::optional<Record> record;
};

class Ledgered {
 public:
  explicit Ledgered(FakeServerOptions server_options = default_server());
  ~Ledgered();
  Ledgered(const Ledgered&) = delete;
  Ledgered& operator=(const Ledgered&) = delete;

  static const FakeAccessKey& access_key();
  static FakeServerOptions default_server() { return {.keys = {access_key()}, .region = "eu-central-1", .tls = true}; }

  Worker& add_worker(const WorkerOptions& options = {});

  // What goes wrong with a request; asked for one at a time.
  void set_faults(std::function<FakeFault(const WireCall&)> faults);

  // Begins, and charges if the claim is ours. Else how it was answered.
  std::variant<AtWork, Told> start(Worker& worker, const std::string& key, std::optional<Policy> policy = {});
  Told finish(Worker& worker, AtWork work);
  // Both; once.
  Told ask(Worker& worker, const std::string& key);
  // Both, again and again until there is a result.
  Told settle(Worker& worker, const std::string& key);
  // Two threads for each of these workers settle each of the keys, each in an order of its own.
  void crowd(const std::vector<Worker*>& workers, const std::vector<std::string>& keys);

  // A foreign item is stored under this key.
  void plant(std::size_t which, const std::string& key);

  // Whether the engines' guarantees held; failures of the test if not. Everything has to have come to rest.
  void check();
  // A line about what happened.
  void print(const std::string& title) const;

  struct Counts {
    std::uint64_t calls = 0;         // At the service.
    std::uint64_t faults = 0;        // Of those, that went wrong.
    std::uint64_t faulty_reads = 0;  // Of those, that may be sent again whatever happened.
    std::uint64_t late_refused = 0;  // Writes of workers that had lost their claim.
    std::uint64_t sent_twice = 0;    // First writes of one claim that came more than once.
    std::uint64_t asked = 0, charges = 0, doubled = 0, errors = 0, unrecorded = 0, took_over = 0, resumed = 0;
    aws::ClientCounts clients;  // Summed up.
  };
  [[nodiscard]] Counts counts() const;
  [[nodiscard]] Millis store_skew() const { return workers_.front()->store->capabilities().default_skew; }
  [[nodiscard]] std::vector<Charge> charges(const std::string& key) const;
  [[nodiscard]] std::vector<Told> told(const std::string& key) const;

  const std::string table = "records";
  FlowingTime time;
  Policy policy;
  std::size_t result_bytes = 0;  // Results are at least that long, and do not compress.
  const std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(time.clock);
  FakeDynamoDbServer server;

 private:
  FakeFault on_call(const FakeCall& call);
  WireCall read(const FakeCall& call) const;
  void land(const WireCall& call);
  template <class Tell>
  void tell(Tell&& tell);

  const std::unique_ptr<stores::dynamodb::ItemFormat> format_;
  mutable std::mutex mutex_;  // For all below.
  std::function<FakeFault(const WireCall&)> faults_;
  simulation::Auditor auditor_;
  std::string violation_;
  simulation::CallId last_call_ = 0;
  std::map<std::string, std::vector<Charge>> charges_;
  std::map<std::string, std::vector<Told>> told_;
  std::map<std::string, std::string> planted_;
  std::map<std::string, unsigned> first_writes_;
  std::map<std::string, simulation::ProcessId> processes_;
  Counts counts_;
  SeededRandom random_{7};
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace once::testing
