// The DynamoDB store and its client, over a wire without sockets.
//
// All of their code runs: the encoder, the conditions, the signatures, the retries, the reading of answers and errors.
// What is below the port of HTTP (aws/http.hpp) is simulated: each request has a fate of its own in virtual time, and
// comes to a table in memory (fake_aws). That is the service, which checks signatures and conditions, and knows nothing
// of the world. What a request has changed there is read back, and told to the auditor.
#include <algorithm>
#include <chrono>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>

#include "aws/client.hpp"
#include "fake_aws/fake_dynamodb.hpp"
#include "fake_aws/http.hpp"
#include "fake_aws/signature_check.hpp"
#include "real_store.hpp"
#include "stores/dynamodb/item_format.hpp"

namespace once::simulation {

namespace {

using namespace std::chrono_literals;
using once::testing::FakeAnswer;
using once::testing::FakeFault;
using Fault = FakeFault::Kind;
using nlohmann::json;
using stores::dynamodb::Item;
namespace fake = once::testing::fake;

constexpr const char* records = "records";
constexpr const char* charges = "charges";
constexpr const char* region = "eu-central-1";

const once::testing::FakeAccessKey& access_key() {
  static const once::testing::FakeAccessKey key{.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                                                .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  return key;
}

class TrueClock final : public Clock {
 public:
  explicit TrueClock(const World& world) : world_(world) {}
  [[nodiscard]] Time now() const noexcept override { return world_.utc(); }
  [[nodiscard]] Uptime uptime() const noexcept override { return world_.now(); }

 private:
  const World& world_;
};

bool is_write(std::string_view operation) {
  return operation == "PutItem" || operation == "DeleteItem" || operation == "TransactWriteItems";
}

FakeAnswer refusal(std::string_view type, const std::string& message) {
  return fake::refusal_answer({.type = std::string(fake::service_namespace).append(type), .message = message});
}

// What the answer to a request was executed as, even if nobody hears of it.
bool executes(Fault fault) {
  return fault == Fault::none || fault == Fault::damaged || fault == Fault::server_error_after;
}

class DynamoDb final : public RealStore {
 public:
  explicit DynamoDb(Simulation& simulation);
  Store& open(Host& host, ProcessId id) override;
  void close(ProcessId id) override;
  std::shared_ptr<const Companion> companion_of(const Charge& charge) override;
  void carry_out(const Asking& asking) override;
  void sweep() override;
  void check() override { check_list(simulation_, *operators_); }

 private:
  class Plug;
  class Wire;

  [[nodiscard]] stores::DynamoDbOptions options(std::shared_ptr<aws::Transport> transport,
                                                std::shared_ptr<Clock> clock) const;
  aws::HttpAnswer arrive(ProcessId by, const aws::HttpRequest& request, FakeFault fault);
  FakeAnswer serve(ProcessId by, const std::string& operation, const std::string& body, FakeFault fault);
  std::optional<FakeFault> forbids(const std::string& operation, const Asking* asking);
  void observe(ProcessId by, const std::string& body, const Asking* asking);
  void observe_charge(CallId call);
  [[nodiscard]] std::optional<Record> stored(const std::string& key);
  [[nodiscard]] FakeAnswer stale(const std::string& body) const;
  void plant(aws::Call& call) const;
  void plant(const std::string& operation, aws::Reply& reply) const;
  [[nodiscard]] Bug bug() const { return simulation_.bug(); }

  Simulation& simulation_;
  World& world_;
  const std::shared_ptr<once::testing::FakeDynamoDb> fake_;
  FakeFault fault_;  // Of the next request to it.
  const std::unique_ptr<stores::dynamodb::ItemFormat> format_;
  // How a store was set up, drawn for each world.
  Millis request_timeout_{}, operation_timeout_{};
  std::size_t read_first_over_ = 0;
  bool counts_ = false;
  bool bare_refusals_ = false;  // The endpoint does not return the record in the way, as some do.

  std::unordered_map<std::string, std::shared_ptr<const Asking>> asked_;  // Of the bodies of writes.
  struct Opened {
    std::shared_ptr<Plug> plug;
    std::unique_ptr<Store> store;
  };
  std::map<ProcessId, Opened> opened_;
  std::map<CallId, std::uint64_t> charged_;
  std::map<std::string, Record> previous_;  // What each key had before its last write.
  std::unique_ptr<Store> operators_;
};

// Between a store and its client: who asked for a request, and the bugs that are planted in both. It can be pulled.
class DynamoDb::Plug final : public aws::Transport {
 public:
  // `client` null: of the operators, who have no trouble and no signatures.
  Plug(DynamoDb& all, std::unique_ptr<aws::Client> client) : all_(all), client_(std::move(client)) {}

  void call(aws::Call call, Callback<void(aws::Reply)> done) override {
    all_.plant(call);
    if (all_.asking_ != nullptr && is_write(call.operation)) all_.asked_[call.body] = all_.asking_;
    if (by_operators_) {
      FakeAnswer answer;
      all_.simulation_.guarded([&] { answer = all_.serve(operators, call.operation, call.body, {}); });
      return done({.status = answer.status, .body = std::move(answer.body)});
    }
    if (client_ == nullptr) return done({.error = Error{ErrorKind::in_doubt, "the process has ended"}});
    std::string operation = call.operation;
    client_->call(std::move(call), [this, operation = std::move(operation), asking = all_.asking_,
                                    done = std::move(done)](aws::Reply reply) mutable {
      all_.plant(operation, reply);
      // What the store goes on to ask is for the same.
      const auto before = all_.asks(asking);
      done(std::move(reply));
      all_.asks(before);
    });
  }
  [[nodiscard]] std::string name() const override { return "the simulated wire"; }
  void pull() { client_.reset(); }

 private:
  DynamoDb& all_;
  std::unique_ptr<aws::Client> client_;
  const bool by_operators_ = client_ == nullptr;
};

// HTTP as one life of a process has it.
class DynamoDb::Wire final : public aws::HttpClient {
 public:
  Wire(DynamoDb& all, Host& host, ProcessId id) : all_(all), host_(host), life_(host.life()), id_(id) {}
  void send(aws::HttpRequest request, Callback<void(aws::HttpAnswer)> done) override;

 private:
  struct Flight {
    aws::HttpRequest request;
    Callback<void(aws::HttpAnswer)> done;
    bool is_answered = false;
  };
  using FlightPtr = std::shared_ptr<Flight>;

  static aws::HttpAnswer failed(ErrorKind kind, const char* why) { return {.error = Error{kind, why}}; }
  void answer(Instant at, const FlightPtr& flight, aws::HttpAnswer with);
  void land(Instant at, const FlightPtr& flight, FakeFault fault, Callback<void(aws::HttpAnswer)> then);

  DynamoDb& all_;
  Host& host_;
  const std::uint64_t life_;
  const ProcessId id_;
};

void DynamoDb::Wire::answer(Instant at, const FlightPtr& flight, aws::HttpAnswer with) {
  if (host_.life() != life_) return;
  all_.world_.at(at, &host_, [flight, with = std::move(with)]() mutable {
    // A timeout and an answer may come in any order when a stopped process goes on.
    if (!std::exchange(flight->is_answered, true)) flight->done(std::move(with));
  });
}

void DynamoDb::Wire::land(Instant at, const FlightPtr& flight, FakeFault fault, Callback<void(aws::HttpAnswer)> then) {
  // Not this object, which goes with its process.
  all_.world_.at(at, nullptr,
                 [all = &all_, host = &host_, life = life_, id = id_, flight, fault = std::move(fault),
                  then = std::move(then)]() mutable {
                   // What a dead process had sent may be on its way or not.
                   if (host->life() != life && all->world_.chance(500)) return;
                   aws::HttpAnswer with = all->arrive(id, flight->request, std::move(fault));
                   if (host->life() == life) then(std::move(with));
                 });
}

void DynamoDb::Wire::send(aws::HttpRequest request, Callback<void(aws::HttpAnswer)> done) {
  if (host_.life() != life_) return;
  World& world = all_.world_;
  Simulation& simulation = all_.simulation_;
  const Config& config = simulation.config();
  const Instant there = world.now() + world.span(config.latency);
  const Instant timeout = world.now() + Instant(request.timeout);
  const auto lost = [] { return failed(ErrorKind::in_doubt, "no answer came"); };
  auto flight = std::make_shared<Flight>(Flight{std::move(request), std::move(done), false});
  const auto executed = [&](Instant at, Fault fault = Fault::none) {
    land(at, flight, {.kind = fault}, [this, flight](aws::HttpAnswer with) {
      answer(all_.world_.now() + all_.world_.span(all_.simulation_.config().latency), flight, std::move(with));
    });
    answer(timeout, flight, lost());
  };
  const auto unheard = [&](Instant at) { land(at, flight, {}, [](const aws::HttpAnswer&) {}); };
  // A connection breaks, or nothing is heard of it any more.
  const auto breaks = [&] {
    answer(world.chance(500) ? timeout : std::min(timeout, there + world.span(config.latency)), flight, lost());
  };
  if (simulation.is_down()) {
    if (world.chance(700)) {
      return answer(there, flight, failed(ErrorKind::unavailable, "the connection was refused"));
    }
    return breaks();
  }
  if (simulation.calm() || !world.chance(config.trouble)) return executed(there);
  simulation.in_trouble(false);
  const bool repeated = flight->request.body.find("ClientRequestToken") == std::string::npos && world.chance(300);
  switch (world.below(9)) {
    case 0:
      return answer(there, flight, failed(ErrorKind::unavailable, "the connection was refused"));
    case 1:
      return breaks();
    case 2:
      breaks();
      return unheard(there);
    case 3:
      simulation.in_trouble(true);
      breaks();
      return unheard(timeout + simulation.late());
    case 4:
      return executed(there + simulation.late());
    case 5:
      return executed(there, Fault::throttled);
    case 6:
      return executed(there, world.chance(500) ? Fault::server_error : Fault::server_error_after);
    case 7:
      return executed(there, Fault::damaged);
    default:
      // Sent twice. What comes with companions is not: a second copy could find their condition true.
      executed(there);
      if (repeated) unheard(there + simulation.late());
  }
}

aws::HttpAnswer DynamoDb::arrive(ProcessId by, const aws::HttpRequest& request, FakeFault fault) {
  const Time now = world_.utc();
  fake::HttpRequest judged{.method = request.method, .target = request.target, .headers = {}, .body = request.body};
  for (const auto& [name, value] : request.headers) {
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
    judged.headers.emplace_back(std::move(lower), value);
  }
  FakeAnswer answer;
  const bool damaged = fault.kind == Fault::damaged;
  try {
    fake::check_signature(judged, {access_key()}, region, now);
    const std::string& target = *judged.header("x-amz-target");
    answer = serve(by, target.substr(fake::target_prefix.size()), request.body, std::move(fault));
  } catch (const fake::Refusal& refused) {
    answer = fake::refusal_answer(refused);
  }
  aws::HttpAnswer out{.status = answer.status, .headers = {{"date", fake::date_header(now)}}, .body = {}, .error = {}};
  out.body = std::move(answer.body);
  if (damaged) out.headers.emplace_back("x-amz-crc32", "1");
  return out;
}

DynamoDb::DynamoDb(Simulation& simulation)
    : simulation_(simulation),
      world_(simulation.world()),
      fake_(std::make_shared<once::testing::FakeDynamoDb>(std::make_shared<TrueClock>(world_))),
      format_(stores::dynamodb::make_native_format({.table = records})) {
  fake_->create_table(records, "id");
  fake_->create_table(charges, "id");
  fake_->set_faults([this](const once::testing::FakeCall&) { return fault_; });
  const auto put = [&](const char* item) {
    fake_->call("PutItem", std::string(R"({"TableName":"charges","Item":)") + item + "}");
  };
  put(R"({"id":{"S":"text"},"made":{"S":"no number"}})");
  request_timeout_ = world_.chance(500) ? 3'000ms : 300ms;
  operation_timeout_ = request_timeout_ * 3;
  static constexpr std::size_t sizes[] = {0, 300, 4096, SIZE_MAX};
  read_first_over_ = sizes[world_.below(std::size(sizes))];
  counts_ = world_.chance(300);
  bare_refusals_ = world_.chance(200);
  operators_ =
      stores::make_dynamodb_store(options(std::make_shared<Plug>(*this, nullptr), std::make_shared<TrueClock>(world_)));
}

stores::DynamoDbOptions DynamoDb::options(std::shared_ptr<aws::Transport> transport,
                                          std::shared_ptr<Clock> clock) const {
  return {.table = records,
          .transport = std::move(transport),
          .use_index = stores::DynamoDbOptions::UseIndex::never,
          .read_first_over = read_first_over_,
          .allow_eventual = true,  // So that it does not ask.
          .count_capacity = counts_,
          .clock = std::move(clock)};
}

Store& DynamoDb::open(Host& host, ProcessId id) {
  aws::ClientOptions client;
  client.region = region;
  client.endpoint = "https://dynamodb.simulated";
  client.credentials = aws::static_credentials({.access_key_id = access_key().access_key_id,
                                                .secret_access_key = access_key().secret_access_key,
                                                .source = "the simulation"});
  client.timeout = request_timeout_;
  client.total_timeout = operation_timeout_;
  client.environment = [](const std::string&) { return std::nullopt; };
  client.clock = host.clock();
  client.timers = host.timers();
  client.random = std::make_shared<EngineRandom>(world_.random.next(), false);
  auto plug =
      std::make_shared<Plug>(*this, aws::make_client(std::move(client), std::make_shared<Wire>(*this, host, id)));
  const Opened& opened =
      opened_.emplace(id, Opened{plug, stores::make_dynamodb_store(options(plug, host.clock()))}).first->second;
  return *opened.store;
}

void DynamoDb::close(ProcessId id) {
  const auto found = opened_.find(id);
  if (found == opened_.end()) return;
  found->second.plug->pull();
  opened_.erase(found);
}

std::shared_ptr<const Companion> DynamoDb::companion_of(const Charge& charge) {
  auto items = std::make_shared<stores::TransactItems>();
  const std::string id = charge.impossible ? "text" : std::to_string(charge.call);
  items->update(R"({"TableName":"charges","Key":{"id":{"S":")" + id +
                R"("}},"UpdateExpression":"ADD made :one","ExpressionAttributeValues":{":one":{"N":"1"}}})");
  items->condition_check(
      R"json({"TableName":"charges","Key":{"id":{"S":"closed"}},"ConditionExpression":"attribute_not_exists(id)"})json");
  return items;
}

// At the service, without its signature.
FakeAnswer DynamoDb::serve(ProcessId by, const std::string& operation, const std::string& body, FakeFault fault) {
  const auto found = asked_.find(body);
  const Asking* asking = found == asked_.end() ? nullptr : found->second.get();
  const bool writes = is_write(operation);
  if (by != operators) {
    if (executes(fault.kind) && writes && simulation_.config().forbids) {
      if (auto refused = forbids(operation, asking)) fault = *std::move(refused);
    }
    if (operation == "TransactWriteItems") {
      const bool closed = world_.chance(simulation_.config().declines);
      fake_->call(closed ? "PutItem" : "DeleteItem", std::string(R"({"TableName":"charges",)") +
                                                         (closed ? R"("Item")" : R"("Key")") +
                                                         R"(:{"id":{"S":"closed"}}})");
    }
  }
  fault.without_item = bare_refusals_ && by != operators;
  const Fault kind = fault.kind;
  fault_ = std::move(fault);
  FakeAnswer answer;
  fake_->receive(operation, body, [&](const FakeFault&, FakeAnswer got) { answer = std::move(got); });
  if (writes && executes(kind) && (answer.status == 200 || kind != Fault::none)) observe(by, body, asking);
  if (operation == "GetItem" && answer.status == 200 && body.find(R"("ConsistentRead":true)") == std::string::npos) {
    return stale(body);
  }
  return answer;
}

// As the simulated store does: some records whenever they come, and now and then anything.
std::optional<FakeFault> DynamoDb::forbids(const std::string& operation, const Asking* asking) {
  if (asking == nullptr) return std::nullopt;
  if (operation == "PutItem" && asking->next && asking->next->revision % 64 == 7) {
    return FakeFault{.kind = Fault::answered,
                     .answer = refusal("ValidationException",
                                       std::string("Item size has exceeded the maximum allowed size: ") + unfit)};
  }
  if (simulation_.calm() || !world_.chance(20)) return std::nullopt;
  return FakeFault{.kind = Fault::answered, .answer = refusal("AccessDeniedException", forbidden)};
}

std::optional<Record> DynamoDb::stored(const std::string& key) {
  std::string body = std::string(R"({"TableName":")") + records + R"(","ConsistentRead":true,"Key":)";
  append_json(body, std::get<Item>(format_->primary_key(key)));
  const FakeAnswer answer = fake_->call("GetItem", body + "}");
  const auto read = std::get<stores::dynamodb::ServiceAnswer>(stores::dynamodb::answer_from_json(answer.body));
  if (!read.item) return std::nullopt;
  auto record = format_->decode(*read.item);
  if (const Error* error = std::get_if<Error>(&record)) {
    throw Violation("store: the item of " + key + " cannot be read: " + error->message);
  }
  return std::get<Record>(std::move(record));
}

// A write may have been carried out: what the table has now.
void DynamoDb::observe(ProcessId by, const std::string& body, const Asking* asking) {
  std::string key;
  if (asking != nullptr) {
    key = asking->key;
  } else {
    const json request = json::parse(body);
    const auto item = stores::dynamodb::item_from_json(request.at(request.contains("Item") ? "Item" : "Key").dump());
    key = std::get<std::string>(format_->key_of(std::get<Item>(item)));
  }
  const auto found = simulation_.records().find(key);
  const Record* before = found == simulation_.records().end() ? nullptr : &found->second;
  const std::optional<Record> after = stored(key);
  if (after ? before == nullptr || !(*before == *after) : before != nullptr) {
    if (before != nullptr) previous_.insert_or_assign(key, *before);
    if (asking != nullptr) {
      simulation_.stored(by, *asking, after ? &*after : nullptr);
    } else if (after) {
      throw Violation("store: " + key + " was written, and nobody had asked for that");
    } else {
      simulation_.swept(key);
    }
  }
  if (asking == nullptr || asking->companion == nullptr) return;
  const auto& charge = dynamic_cast<const Charge&>(*asking->companion);
  if (!charge.impossible) observe_charge(charge.call);
}

void DynamoDb::observe_charge(CallId call) {
  const FakeAnswer answer =
      fake_->call("GetItem", R"({"TableName":"charges","Key":{"id":{"S":")" + std::to_string(call) + R"("}}})");
  const json read = json::parse(answer.body);
  if (!read.contains("Item")) return;
  const std::uint64_t made = std::stoull(read.at("Item").at("made").at("N").get<std::string>());
  while (charged_[call] < made) {
    ++charged_[call];
    simulation_.auditor().charged(call);
  }
}

// A read that does not ask for consistency gets the item as it was before its last write.
FakeAnswer DynamoDb::stale(const std::string& body) const {
  const auto item = stores::dynamodb::item_from_json(json::parse(body).at("Key").dump());
  const auto found = previous_.find(std::get<std::string>(format_->key_of(std::get<Item>(item))));
  if (found == previous_.end()) return {.body = "{}"};
  std::string out = R"({"Item":)";
  append_json(out, std::get<Item>(format_->encode(found->second)));
  return {.body = out + "}"};
}

void DynamoDb::carry_out(const Asking& asking) {
  const auto before = asks(std::make_shared<const Asking>(asking));
  operators_->replace(share(*asking.next), asking.seen, [](const Answer&) {});
  asks(before);
}

// By `once sweep`, or by the service itself, which deletes what has expired without asking for anything else.
void DynamoDb::sweep() {
  if (world_.chance(500)) {
    return operators_->sweep(world_.utc(), 1 + world_.below(5), [](const SweepAnswer&) {});
  }
  std::vector<std::string> expired;
  for (const auto& [key, record] : simulation_.records()) {
    if (is_expired(record.expires_at, world_.utc()) && world_.chance(700)) expired.push_back(key);
  }
  for (const std::string& key : expired) {
    std::string body = std::string(R"({"TableName":")") + records + R"(","Key":)";
    append_json(body, std::get<Item>(format_->primary_key(key)));
    serve(operators, "DeleteItem", body + "}", {});
  }
}

// Bugs in what the store asks for.
void DynamoDb::plant(aws::Call& call) const {
  if (bug() == Bug::none) return;
  const auto drop = [](json& of, std::initializer_list<const char*> names) {
    for (const char* name : names) of.erase(name);
  };
  const auto change = [&](auto what) {
    json body = json::parse(call.body);
    what(body);
    call.body = body.dump();
  };
  const bool puts = call.operation == "PutItem";
  const bool transacts = call.operation == "TransactWriteItems";
  if ((bug() == Bug::dynamodb_puts_unconditionally && puts) ||
      (bug() == Bug::dynamodb_transacts_unconditionally && transacts)) {
    change([&](json& body) {
      drop(transacts ? body["TransactItems"][0]["Put"] : body,
           {"ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues"});
    });
  } else if (bug() == Bug::dynamodb_compares_no_revision && puts &&
             call.body.find(":c_revision") != std::string::npos) {
    change([](json& body) {
      body["ConditionExpression"] = "#c_owner = :c_owner";
      body["ExpressionAttributeNames"].erase("#c_revision");
      body["ExpressionAttributeValues"].erase(":c_revision");
    });
  } else if (bug() == Bug::dynamodb_encodes_no_steps && puts) {
    change([](json& body) { body["Item"].erase("steps"); });
  } else if (bug() == Bug::dynamodb_reads_inconsistently && call.operation == "GetItem") {
    change([](json& body) { body.erase("ConsistentRead"); });
  } else if (bug() == Bug::dynamodb_sends_no_token && transacts) {
    change([](json& body) { body.erase("ClientRequestToken"); });
  }
}

// And in what it makes of the answers.
void DynamoDb::plant(const std::string& operation, aws::Reply& reply) const {
  if (!is_write(operation)) return;
  if (bug() == Bug::dynamodb_believes_lost_answers && reply.error && reply.error->kind == ErrorKind::in_doubt) {
    reply = {.status = 200, .body = "{}"};
  } else if (bug() == Bug::dynamodb_ignores_status && reply.status == 400) {
    reply.status = 200;
  }
}

}  // namespace

std::unique_ptr<RealStore> make_dynamodb(Simulation& simulation) { return std::make_unique<DynamoDb>(simulation); }

}  // namespace once::simulation
