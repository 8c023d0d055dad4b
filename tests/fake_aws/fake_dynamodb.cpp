#include "fake_aws/fake_dynamodb.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "fake_aws/operations.hpp"
#include "fake_aws/refusal.hpp"

namespace once::testing {
namespace {

using fake::Refusal;
using nlohmann::json;

FakeAnswer error_answer(const Refusal& refusal) {
  json body = refusal.more;
  body["__type"] = refusal.type;
  // Most of the service's errors spell it in small letters, this one does not.
  body[refusal.type.ends_with("#TransactionCanceledException") ? "Message" : "message"] = refusal.message;
  return {.status = refusal.status, .body = body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

FakeAnswer without_item(FakeAnswer answer) {
  json body = json::parse(answer.body, nullptr, false);
  if (answer.status == 200 || !body.is_object()) return answer;
  body.erase("Item");
  if (const auto reasons = body.find("CancellationReasons"); reasons != body.end()) {
    for (auto& reason : *reasons) reason.erase("Item");
  }
  answer.body = body.dump();
  return answer;
}

}  // namespace

struct FakeDynamoDb::State {
  explicit State(std::shared_ptr<const Clock> given) : clock(std::move(given)), operations(clock) {}

  const std::shared_ptr<const Clock> clock;
  std::mutex mutex;  // Of the operations.
  fake::Operations operations;

  mutable std::mutex traffic_mutex;  // Of what follows.
  std::condition_variable held_more;
  FakeFaultPlan plan;
  std::uint64_t calls = 0;
  std::map<std::string, std::uint64_t> round_trips;
  std::vector<Callback<void()>> held;
};

FakeDynamoDb::FakeDynamoDb(std::shared_ptr<const Clock> clock) : state_(std::make_unique<State>(std::move(clock))) {}

FakeDynamoDb::~FakeDynamoDb() { release(); }

FakeAnswer FakeDynamoDb::call(std::string_view operation, std::string_view body) {
  try {
    const json request = json::parse(body);
    json answer;
    {
      const std::lock_guard lock(state_->mutex);
      answer = state_->operations.carry_out(operation, request);
    }
    return {.status = 200, .body = answer.dump()};
  } catch (const Refusal& refusal) {
    return error_answer(refusal);
  } catch (const json::exception& error) {
    // Not JSON, or another type than the parameter has.
    return error_answer(
        {.type = std::string(fake::coral_namespace) + "SerializationException", .message = error.what()});
  }
}

void FakeDynamoDb::create_table(std::string_view table, std::string_view hash_key, std::string_view range_key) {
  json request = {{"TableName", table},
                  {"BillingMode", "PAY_PER_REQUEST"},
                  {"KeySchema", {{{"AttributeName", hash_key}, {"KeyType", "HASH"}}}},
                  {"AttributeDefinitions", {{{"AttributeName", hash_key}, {"AttributeType", "S"}}}}};
  if (!range_key.empty()) {
    request["KeySchema"].push_back({{"AttributeName", range_key}, {"KeyType", "RANGE"}});
    request["AttributeDefinitions"].push_back({{"AttributeName", range_key}, {"AttributeType", "S"}});
  }
  const FakeAnswer answer = call("CreateTable", request.dump());
  if (answer.status != 200) throw Exception(ErrorKind::misuse, "the fake cannot create this table: " + answer.body);
}

std::size_t FakeDynamoDb::expire_now(std::string_view table) {
  const std::lock_guard lock(state_->mutex);
  return state_->operations.expire_now(table);
}

FakeUnits FakeDynamoDb::units() const {
  const std::lock_guard lock(state_->mutex);
  return state_->operations.units();
}

void FakeDynamoDb::set_creation_steps(std::size_t steps) {
  const std::lock_guard lock(state_->mutex);
  state_->operations.set_creation_steps(steps);
}

void FakeDynamoDb::set_faults(FakeFaultPlan plan) {
  const std::lock_guard lock(state_->traffic_mutex);
  state_->plan = std::move(plan);
}

void FakeDynamoDb::receive(std::string_view operation, std::string_view body,
                           Callback<void(FakeFault, FakeAnswer)> done) {
  FakeFault fault;
  {
    const std::lock_guard lock(state_->traffic_mutex);
    ++state_->round_trips[std::string(operation)];
    const FakeCall call{.operation = operation, .body = body, .number = state_->calls++};
    if (state_->plan) fault = state_->plan(call);
  }
  FakeAnswer answer;
  using Kind = FakeFault::Kind;
  switch (fault.kind) {
    case Kind::unreachable:
    case Kind::lost_before:
    case Kind::server_error:
      break;
    case Kind::throttled:
      answer = error_answer(
          {.type = std::string(fake::service_namespace) + "ProvisionedThroughputExceededException",
           .message = "The level of configured provisioned throughput for the table was exceeded. Consider increasing "
                      "your provisioning level with the UpdateTable API."});
      break;
    case Kind::answered:
      answer = fault.answer;
      break;
    case Kind::none:
    case Kind::lost_after:
    case Kind::half_answer:
    case Kind::damaged:
    case Kind::server_error_after:
      answer = call(operation, body);
      break;
  }
  if (fault.without_item) answer = without_item(std::move(answer));
  if (fault.kind == Kind::server_error || fault.kind == Kind::server_error_after) {
    answer = error_answer({.status = 500,
                           .type = std::string(fake::service_namespace) + "InternalServerError",
                           .message = "The request processing has failed because of an unknown error"});
  }
  if (!fault.held) {
    done(std::move(fault), std::move(answer));
    return;
  }
  const std::lock_guard lock(state_->traffic_mutex);
  state_->held.emplace_back([done = std::move(done), fault = std::move(fault), answer = std::move(answer)]() mutable {
    done(std::move(fault), std::move(answer));
  });
  state_->held_more.notify_all();
}

std::uint64_t FakeDynamoDb::round_trips(std::string_view operation) const {
  const std::lock_guard lock(state_->traffic_mutex);
  const auto found = state_->round_trips.find(std::string(operation));
  return found == state_->round_trips.end() ? 0 : found->second;
}

std::map<std::string, std::uint64_t> FakeDynamoDb::round_trips() const {
  const std::lock_guard lock(state_->traffic_mutex);
  return state_->round_trips;
}

void FakeDynamoDb::reset_round_trips() {
  const std::lock_guard lock(state_->traffic_mutex);
  state_->round_trips.clear();
}

std::size_t FakeDynamoDb::held() const {
  const std::lock_guard lock(state_->traffic_mutex);
  return state_->held.size();
}

std::size_t FakeDynamoDb::release() {
  std::vector<Callback<void()>> held;
  {
    const std::lock_guard lock(state_->traffic_mutex);
    held.swap(state_->held);
  }
  for (auto& answer : held) answer();
  return held.size();
}

bool FakeDynamoDb::wait_for_held(std::size_t count) {
  std::unique_lock lock(state_->traffic_mutex);
  return state_->held_more.wait_for(lock, std::chrono::seconds(10), [&] { return state_->held.size() >= count; });
}

Time FakeDynamoDb::now() const noexcept { return state_->clock->now(); }

}  // namespace once::testing
