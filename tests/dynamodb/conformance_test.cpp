// The DynamoDB store against the conformance suite, over the fake in this process: each key schema, with answers that
// bring the item along and without, from the caller's thread and from others.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include <once/seal.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/stores/dynamodb_transaction.hpp>
#include <once/testing/conformance.hpp>

#include "fake_aws/fake_dynamodb.hpp"
#include "spoils.hpp"

namespace once::testing {
namespace {

struct Setup {
  bool composite = false;
  bool without_item = false;
  std::size_t threads = 0;
  bool sealed = false;
};

class FakeHarness final : public StoreHarness {
 public:
  explicit FakeHarness(const Setup& setup)
      : setup_(setup),
        fake_(std::make_shared<FakeDynamoDb>(system_clock())),
        transport_(make_fake_transport(fake_, setup.threads)) {
    options_.table = "records";
    options_.transport = transport_;
    if (setup.composite) {
      options_.sort_key = "sk";
      options_.partition_value = "idempotency#suite";
    }
    fake_->create_table(options_.table, options_.partition_key, options_.sort_key);
    fake_->create_table("counts", "name");
    set_faults(FakeFault::Kind::none);
  }

  std::unique_ptr<Store> open() override {
    auto store = stores::make_dynamodb_store(options_);
    if (!setup_.sealed) return store;
    return seal(std::move(store), {SealKey{.id = "k1", .bytes = {1}}});
  }

  void plant(std::size_t which, const std::string& key) override {
    const FakeAnswer answer = fake_->call("PutItem", spoiled_put(options_, which, key));
    if (answer.status != 200) throw std::runtime_error("cannot plant: " + answer.body);
  }

  std::shared_ptr<const Companion> companion(bool declined) override {
    auto items = std::make_shared<stores::TransactItems>();
    items->update(R"({"TableName":"counts","Key":{"name":{"S":"written"}},"UpdateExpression":"ADD times :one",)"
                  R"("ExpressionAttributeValues":{":one":{"N":"1"}}})");
    if (declined) {
      items->condition_check(R"j({"TableName":"counts","Key":{"name":{"S":"nothing"}},)j"
                             R"j("ConditionExpression":"attribute_exists(times)"})j");
    }
    return items;
  }

  std::size_t companions_written() override {
    const FakeAnswer answer = fake_->call("GetItem", R"({"TableName":"counts","Key":{"name":{"S":"written"}}})");
    const auto at = answer.body.find(R"("N":")");
    return at == std::string::npos ? 0 : std::stoul(answer.body.substr(at + 5));
  }

  std::shared_ptr<void> begin_outage(const std::string& name) override {
    if (name == "unreachable") {
      set_faults(FakeFault::Kind::unreachable);
    } else if (name == "throttled") {
      set_faults(FakeFault::Kind::throttled);
    } else if (name == "requests_lost") {
      set_faults(FakeFault::Kind::lost_before);
    } else if (name == "answers_lost") {
      set_faults(FakeFault::Kind::lost_after);
    } else if (name == "server_errors") {
      set_faults(FakeFault::Kind::server_error_after);
    } else {
      throw std::runtime_error("no outage " + name);
    }
    return {this, [this](void*) { set_faults(FakeFault::Kind::none); }};
  }

 private:
  void set_faults(FakeFault::Kind kind) {
    FakeFault fault;
    fault.kind = kind;
    fault.without_item = setup_.without_item;
    fake_->set_faults([fault](const FakeCall&) { return fault; });
  }

  const Setup setup_;
  const std::shared_ptr<FakeDynamoDb> fake_;
  const std::shared_ptr<aws::Transport> transport_;
  stores::DynamoDbOptions options_;
};

const StoreTraits traits{.shared = true,
                         .durable = true,
                         .foreign_records = spoils,
                         .outages = {"unreachable", "throttled", "requests_lost", "answers_lost", "server_errors"},
                         .companions = true};

ONCE_CONFORMANCE(dynamodb, traits, [] { return std::make_unique<FakeHarness>(Setup{.threads = 2}); });
ONCE_CONFORMANCE(dynamodb_composite, traits, [] { return std::make_unique<FakeHarness>(Setup{.composite = true}); });
ONCE_CONFORMANCE(dynamodb_sealed, traits, [] { return std::make_unique<FakeHarness>(Setup{.sealed = true}); });
ONCE_CONFORMANCE(dynamodb_without_items, traits,
                 [] { return std::make_unique<FakeHarness>(Setup{.without_item = true}); });

}  // namespace
}  // namespace once::testing
