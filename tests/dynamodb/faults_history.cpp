#include "faults_history.hpp"

#include <algorithm>
#include <iostream>
#include <set>
#include <variant>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/platform/blocking.hpp>

#include "spoils.hpp"

namespace once::testing {

using Kind = FakeFault::Kind;
using stores::dynamodb::Item;

namespace {

constexpr std::size_t threads_of_a_worker = 2;

std::string stored(const std::string& key) { return Key("faults", key).stored(); }

// Whether the service carries it out although something goes wrong.
bool executes(Kind kind) {
  return kind == Kind::none || kind == Kind::lost_after || kind == Kind::half_answer ||
         kind == Kind::server_error_after;
}

Fingerprint digest_of(const Result& result) {
  return result.placement == Placement::dropped ? Fingerprint(result.digest) : Fingerprint::of(result.bytes);
}

}  // namespace

FlowingTime::FlowingTime()
    : thread_([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          timers->advance(Millis(speed));
          std::this_thread::sleep_for(1ms);  // The speed of this time; no test waits by it.
        }
      }) {}

bool wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 300s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

const FakeAccessKey& Ledgered::access_key() {
  static const FakeAccessKey key{.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                                 .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  return key;
}

Ledgered::Ledgered(FakeServerOptions server_options)
    : server(fake, std::move(server_options)),
      format_(stores::dynamodb::make_native_format({.table = table})),
      auditor_({.token_slack = 5s, .expiry_slack = 5s, .lease_slack = 2s}) {
  policy.lease = 30s;
  policy.on_conflict = OnConflict::wait;
  fake->create_table(table, "id");
  fake->set_faults([this](const FakeCall& call) { return on_call(call); });
}

// Finishes that are tried again and heartbeats come to their end first.
Ledgered::~Ledgered() {
  set_faults({});
  time.speed = 1'000;
  EXPECT_TRUE(wait_until([&] { return time.timers->pending() == 0; }));
  workers_.clear();
  fake->set_faults({});
}

Worker& Ledgered::add_worker(const WorkerOptions& options) {
  auto worker = std::make_unique<Worker>();
  worker->name = "worker-" + std::to_string(workers_.size());
  worker->process = static_cast<simulation::ProcessId>(workers_.size() + 1);
  const auto seed = worker->process;
  const auto host = std::make_shared<DriftingClock>(time.clock, 0, options.clock_off);
  const auto timers = std::make_shared<DriftingTimers>(host, time.timers);

  aws::ClientOptions client;
  client.region = "eu-central-1";
  client.endpoint = server.url();
  client.ca_file = server.ca_file();
  client.credentials = aws::static_credentials({.access_key_id = access_key().access_key_id,
                                                .secret_access_key = access_key().secret_access_key,
                                                .source = "the test"});
  client.environment = [](const std::string&) { return std::nullopt; };
  client.clock = host;
  client.timers = timers;
  client.random = std::make_shared<SeededRandom>(100 + seed);
  // No fault here is a lack of an answer, and a slow machine is none.
  client.timeout = 60s;
  client.total_timeout = 180s;
  if (options.client) options.client(client);
  worker->client = aws::make_client(std::move(client));

  // Not to be asked about the table's replicas: each call here has a key.
  stores::DynamoDbOptions store{.table = table, .transport = worker->client, .allow_eventual = true, .clock = host};
  if (options.store) options.store(store);
  worker->store = stores::make_dynamodb_store(std::move(store));

  EngineOptions engine;
  engine.store = worker->store;
  engine.policy = policy;
  engine.holder = worker->name;
  engine.clock = host;
  engine.timers = timers;
  engine.random = std::make_shared<SeededRandom>(seed);
  engine.observer = [this, process = worker->process](const Event& event) {
    tell([&] {
      auditor_.told(process, event.kind);
      if (event.kind == EventKind::took_over) ++counts_.took_over;
      if (event.kind == EventKind::resumed) ++counts_.resumed;
    });
  };
  worker->engine = std::make_unique<Engine>(std::move(engine));
  const std::lock_guard lock(mutex_);
  processes_[worker->name] = worker->process;
  workers_.push_back(std::move(worker));
  return *workers_.back();
}

void Ledgered::set_faults(std::function<FakeFault(const WireCall&)> faults) {
  const std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

// Under the lock, at the service's time. The first rule that is broken is kept: what follows from it is of no interest.
template <class Tell>
void Ledgered::tell(Tell&& tell) {
  const std::lock_guard lock(mutex_);
  auditor_.at(time.clock->now());
  try {
    tell();
  } catch (const simulation::Violation& violation) {
    if (violation_.empty()) violation_ = violation.what();
  }
}

WireCall Ledgered::read(const FakeCall& call) const {
  WireCall out;
  out.operation = call.operation;
  out.write = call.operation == "PutItem" || call.operation == "DeleteItem";
  const auto body = nlohmann::json::parse(call.body);
  const char* const place = body.contains("Item") ? "Item" : "Key";
  const auto item = std::get<Item>(stores::dynamodb::item_from_json(body.at(place).dump()));
  if (body.at("TableName") != table || item.find("id") == nullptr) {
    out.write = false;  // By a worker with a wrong setup.
    return out;
  }
  out.key = std::get<std::string>(format_->key_of(item));
  if (call.operation == "PutItem") {
    out.record = std::get<Record>(format_->decode(item));
    out.holder = out.record->holder;
  }
  out.insert = out.write && body.at("ConditionExpression").get<std::string>().find("attribute_not_exists") == 0;
  if (out.write && !out.insert) {
    for (const auto& [name, value] : body.at("ExpressionAttributeValues").items()) {
      if (value.contains("S")) out.seen.owner = Owner::from_hex(value.at("S").get<std::string>()).value();
      if (value.contains("N")) out.seen.revision = std::stoull(value.at("N").get<std::string>());
    }
  }
  return out;
}

// On the server's thread, which carries out one request after the other, in the order in which it comes here.
FakeFault Ledgered::on_call(const FakeCall& call) {
  FakeFault fault;
  const WireCall wire = read(call);
  tell([&] {
    if (faults_) fault = faults_(wire);
    ++counts_.calls;
    if (fault.kind != Kind::none) {
      ++counts_.faults;
      if (!wire.write) ++counts_.faulty_reads;
    }
    if (wire.insert && ++first_writes_[wire.record->owner.hex() + std::to_string(wire.record->revision)] == 2) {
      ++counts_.sent_twice;
    }
    if (wire.write && executes(fault.kind)) land(wire);
  });
  return fault;
}

// Whether the condition holds is worked out from the auditor's own account; check() compares that with the table.
void Ledgered::land(const WireCall& call) {
  if (planted_.contains(call.key)) return;
  const Record* before = auditor_.shadow(call.key);
  if (call.insert) {
    if (before == nullptr) {
      auditor_.landed(processes_.at(call.holder), simulation::Wrote::insert, call.key, {}, &*call.record);
    }
    return;
  }
  if (before == nullptr || !(before->owner == call.seen.owner) || before->revision != call.seen.revision) {
    // Not the refusals of those who find their own write.
    if (call.record && before != nullptr && !(before->owner == call.seen.owner) &&
        call.record->owner == call.seen.owner) {
      ++counts_.late_refused;
    }
    return;
  }
  const auto by = processes_.at(call.record ? call.holder : before->holder);
  auditor_.landed(by, call.record ? simulation::Wrote::replace : simulation::Wrote::remove, call.key, call.seen,
                  call.record ? &*call.record : nullptr);
}

std::variant<AtWork, Told> Ledgered::start(Worker& worker, const std::string& key, std::optional<Policy> own) {
  Told told;
  told.worker = worker.name;
  tell([&] {
    told.call = ++last_call_;
    ++counts_.asked;
    auditor_.asked(told.call, {.process = worker.process, .key = stored(key)});
  });
  Begin begin =
      worker.engine->begin({.key = Key("faults", key), .fingerprint = {}, .policy = std::move(own), .holder = {}});
  told.verdict = begin.verdict;
  std::optional<AtWork> work;
  tell([&] {
    if (begin.kind == Begin::Kind::error) {
      // The auditor takes those that no fault of a store accounts for amiss. Here it may be set up wrongly.
      auditor_.answered(told.call, Begin{.kind = begin.kind, .error = {ErrorKind::unavailable, begin.error.message}});
      ++counts_.errors;
    } else {
      auditor_.answered(told.call, begin);
    }
    if (begin.kind == Begin::Kind::claimed) {
      auditor_.work_started(told.call, begin.claim);
      std::string result = "charge " + std::to_string(last_call_) + "/" + std::to_string(told.call) + " of " + key +
                           " by " + worker.name;
      while (result.size() < result_bytes) result += static_cast<char>(random_.below(256));
      charges_[stored(key)].push_back(
          {.call = told.call, .worker = worker.name, .token = begin.claim.token(), .result = result});
      work = AtWork{.call = told.call,
                    .key = key,
                    .claim = std::move(begin.claim),
                    .result = Result::inlined(std::move(result)),
                    .verdict = begin.verdict};
    } else if (begin.kind == Begin::Kind::replayed) {
      told.how = Told::How::replayed;
      told.digest = digest_of(begin.record->result);
      told.dropped = begin.record->result.placement == Placement::dropped;
      told_[stored(key)].push_back(told);
    } else {
      told.error = begin.kind == Begin::Kind::error ? begin.error : Error{ErrorKind::unavailable, "somebody has it"};
      told_[stored(key)].push_back(told);
    }
  });
  if (work) return *std::move(work);
  return told;
}

Told Ledgered::finish(Worker& worker, AtWork work) {
  Told told;
  told.call = work.call;
  told.worker = worker.name;
  told.verdict = work.verdict;
  tell([&] { auditor_.finish_asked(work.call, simulation::FinishKind::complete, work.result); });
  const Finish finish = work.claim.complete(work.result);
  tell([&] {
    auditor_.finish_answered(work.call, simulation::FinishKind::complete, finish);
    switch (finish.kind) {
      case Finish::Kind::recorded:
        told.how = Told::How::recorded;
        told.dropped = finish.record->result.placement == Placement::dropped;
        told.digest = digest_of(work.result);
        break;
      case Finish::Kind::superseded:
        told.how = Told::How::superseded;
        told.dropped = finish.record->result.placement == Placement::dropped;
        told.digest = digest_of(finish.record->result);
        break;
      case Finish::Kind::unrecorded:
        told.how = Told::How::unrecorded;
        told.digest = digest_of(work.result);
        told.error = finish.error;
        ++counts_.unrecorded;
        break;
      case Finish::Kind::lost:
        told.how = Told::How::lost;
        told.error = finish.error;
        break;
      case Finish::Kind::declined:
        ADD_FAILURE() << "a finish without a companion was declined";
        break;
    }
    told_[stored(work.key)].push_back(told);
  });
  return told;
}

Told Ledgered::ask(Worker& worker, const std::string& key) {
  auto started = start(worker, key);
  if (auto* told = std::get_if<Told>(&started)) return std::move(*told);
  return finish(worker, std::get<AtWork>(std::move(started)));
}

Told Ledgered::settle(Worker& worker, const std::string& key) {
  Told told;
  const bool settled = wait_until([&] {
    told = ask(worker, key);
    return told.how != Told::How::error && told.how != Told::How::lost;
  });
  EXPECT_TRUE(settled) << worker.name << " was not told a result for " << key << ": " << told.error.message;
  return told;
}

void Ledgered::crowd(const std::vector<Worker*>& workers, const std::vector<std::string>& keys) {
  std::vector<std::jthread> threads;
  std::uint64_t seed = 0;
  for (Worker* worker : workers) {
    for (std::size_t i = 0; i < threads_of_a_worker; ++i) {
      threads.emplace_back([this, worker, order = keys, seed = ++seed]() mutable {
        SeededRandom random(seed);
        for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random.below(n)]);
        for (const auto& key : order) settle(*worker, key);
      });
    }
  }
}

void Ledgered::plant(std::size_t which, const std::string& key) {
  const FakeAnswer answer = fake->call("PutItem", spoiled_put({.table = table}, which, stored(key)));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const FakeAnswer item =
      fake->call("GetItem", R"({"TableName":")" + table + R"(","Key":{"id":{"S":")" + stored(key) + R"("}}})");
  const std::lock_guard lock(mutex_);
  planted_[stored(key)] = item.body;
}

void Ledgered::check() {
  using How = Told::How;
  set_faults({});
  tell([&] { auditor_.end(); });
  std::map<std::string, Answer> table_now;
  {
    const auto reader =
        stores::make_dynamodb_store({.table = table, .transport = make_fake_transport(fake), .clock = time.clock});
    std::unique_lock lock(mutex_);
    const auto charged = charges_;
    lock.unlock();
    for (const auto& [key, charges] : charged) table_now[key] = blocking::get(*reader, key);
  }
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(violation_, "");
  for (const auto& [key, item] : planted_) {
    const FakeAnswer now =
        fake->call("GetItem", R"({"TableName":")" + table + R"(","Key":{"id":{"S":")" + key + R"("}}})");
    EXPECT_EQ(now.body, item) << "somebody else's item was written over";
    EXPECT_TRUE(charges_[key].empty()) << key;
  }
  for (const auto& [key, charges] : charges_) {
    if (charges.empty()) continue;
    // The condition of each write was judged twice: by the service and here.
    const Answer& answer = table_now[key];
    const Record* shadow = auditor_.shadow(key);
    ASSERT_EQ(answer.status, AnswerStatus::done) << key << ": " << answer.error.message;
    ASSERT_EQ(answer.record == nullptr, shadow == nullptr) << key;
    if (shadow == nullptr) continue;
    EXPECT_TRUE(*answer.record == *shadow) << key << ": the table holds another record than the history makes it";
    EXPECT_EQ(shadow->state, State::completed) << key << " was left open";

    const Fingerprint result = shadow->result.placement == Placement::inlined ? Fingerprint::of(shadow->result.bytes)
                                                                              : Fingerprint(shadow->result.digest);
    // One effect; every other worker was told that its effect does not count, or may not.
    std::set<simulation::CallId> uncounted;
    for (const Told& told : told_[key]) {
      if (told.how == How::recorded || told.how == How::replayed || told.how == How::superseded) {
        EXPECT_EQ(told.digest, result) << key << ": call " << told.call << " of " << told.worker
                                       << " was told another result";
      }
      if (told.how == How::superseded || told.how == How::unrecorded || told.how == How::lost)
        uncounted.insert(told.call);
    }
    std::size_t counted = 0;
    std::uint64_t token = 0;
    for (const Charge& charge : charges) {
      const bool stands = Fingerprint::of(charge.result) == result;
      counted += stands ? 1 : 0;
      EXPECT_GT(charge.token, std::exchange(token, charge.token)) << key;
      EXPECT_TRUE(stands || uncounted.contains(charge.call))
          << key << ": the charge of call " << charge.call << " is a double one, and nobody was told";
    }
    EXPECT_EQ(counted, 1U) << key;
    counts_.doubled += charges.size() - 1;
  }
}

Ledgered::Counts Ledgered::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  for (const auto& [key, charges] : charges_) counts.charges += charges.size();
  for (const auto& worker : workers_) {
    const aws::ClientCounts one = worker->client->counts();
    counts.clients.calls += one.calls;
    counts.clients.requests += one.requests;
    counts.clients.retries += one.retries;
    counts.clients.throttled += one.throttled;
    counts.clients.in_doubt += one.in_doubt;
    counts.clients.given_up += one.given_up;
    counts.clients.clock_corrections += one.clock_corrections;
  }
  return counts;
}

std::vector<Charge> Ledgered::charges(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = charges_.find(stored(key));
  return found == charges_.end() ? std::vector<Charge>{} : found->second;
}

std::vector<Told> Ledgered::told(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = told_.find(stored(key));
  return found == told_.end() ? std::vector<Told>{} : found->second;
}

void Ledgered::print(const std::string& title) const {
  const Counts c = counts();
  std::cout << title << ": " << c.asked << " asked, " << c.charges << " charges (" << c.doubled << " double), "
            << c.errors << " errors, " << c.unrecorded << " unrecorded, " << c.took_over << " takeovers, " << c.resumed
            << " resumed; " << c.calls << " requests, " << c.faults << " went wrong, " << c.clients.retries
            << " repeated by clients, " << c.late_refused << " late writes refused\n";
}

}  // namespace once::testing
