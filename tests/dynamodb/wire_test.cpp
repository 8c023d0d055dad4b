// The whole way: the store, the built-in client, TLS, and a server that checks every signature.
#include <memory>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/aws/credentials.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/fake_dynamodb_server.hpp>
#include <once/testing/records.hpp>

#include "spoils.hpp"

namespace once::testing {
namespace {

using ::testing::HasSubstr;

const FakeAccessKey access_key{.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                               .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                               .session_token = "a session"};

class KnownCredentials final : public aws::CredentialsProvider {
 public:
  explicit KnownCredentials(const FakeAccessKey& key) {
    credentials_->access_key_id = key.access_key_id;
    credentials_->secret_access_key = key.secret_access_key;
    credentials_->session_token = key.session_token;
    credentials_->source = "the test";
  }
  void get(Callback<void(aws::CredentialsAnswer)> done) override { done({.credentials = credentials_, .error = {}}); }
  void reject(const aws::Credentials&) override {}

 private:
  std::shared_ptr<aws::Credentials> credentials_ = std::make_shared<aws::Credentials>();
};

// One for all tests of this program: each has a table of its own.
struct Service {
  std::shared_ptr<FakeDynamoDb> fake = std::make_shared<FakeDynamoDb>(system_clock());
  FakeDynamoDbServer server{fake, {.keys = {access_key}, .region = "eu-central-1", .tls = true}};
  int tables = 0;
};
Service& service() {
  static Service one;
  return one;
}

stores::DynamoDbOptions options_for(const std::string& table) {
  return {.table = table,
          .region = "eu-central-1",
          .endpoint = service().server.url(),
          .credentials = std::make_shared<KnownCredentials>(access_key),
          .ca_file = service().server.ca_file()};
}

class WireHarness final : public StoreHarness {
 public:
  WireHarness() : options_(options_for("records-" + std::to_string(++service().tables))) {
    service().fake->create_table(options_.table, options_.partition_key);
    // Connections are kept from store to store, as they are in a program with one client.
    options_.transport = stores::make_dynamodb_transport(options_);
  }
  ~WireHarness() override { set_faults(FakeFault::Kind::none); }

  std::unique_ptr<Store> open() override { return stores::make_dynamodb_store(options_); }

  void plant(std::size_t which, const std::string& key) override {
    const FakeAnswer answer = service().fake->call("PutItem", spoiled_put(options_, which, key));
    if (answer.status != 200) throw std::runtime_error("cannot plant: " + answer.body);
  }

  std::shared_ptr<void> begin_outage(const std::string& name) override {
    set_faults(name == "connections_closed" ? FakeFault::Kind::unreachable
               : name == "answers_lost"     ? FakeFault::Kind::lost_after
               : name == "half_answers"     ? FakeFault::Kind::half_answer
                                            : FakeFault::Kind::server_error_after);
    return {this, [](void*) { set_faults(FakeFault::Kind::none); }};
  }

 private:
  static void set_faults(FakeFault::Kind kind) {
    service().fake->set_faults([kind](const FakeCall&) { return FakeFault{.kind = kind}; });
  }

  stores::DynamoDbOptions options_;
};

const StoreTraits traits{.shared = true,
                         .durable = true,
                         .foreign_records = spoils,
                         .outages = {"connections_closed", "answers_lost", "half_answers", "server_errors"}};

ONCE_CONFORMANCE(dynamodb_wire, traits, [] { return std::make_unique<WireHarness>(); });

TEST(DynamoDbWire, ReadsAreRepeatedAndWritesAreNot) {
  auto options = options_for("repeats");
  service().fake->create_table("repeats", "id");
  const auto store = stores::make_dynamodb_store(options);
  int faults = 0;
  service().fake->set_faults([&](const FakeCall&) {
    return FakeFault{.kind = faults-- > 0 ? FakeFault::Kind::lost_after : FakeFault::Kind::none};
  });
  service().fake->reset_round_trips();
  faults = 1;
  EXPECT_EQ(blocking::insert(*store, plain_record("k")).error.kind, ErrorKind::in_doubt);
  EXPECT_EQ(service().fake->round_trips("PutItem"), 1U);
  faults = 1;
  const Answer answer = blocking::get(*store, "k");
  EXPECT_EQ(answer.status, Answer::Status::done);
  EXPECT_NE(answer.record, nullptr);
  EXPECT_EQ(service().fake->round_trips("GetItem"), 2U);
  service().fake->set_faults([](const FakeCall&) { return FakeFault{}; });
}

TEST(DynamoDbWire, WrongCredentialsAreMisuseAndNoSecret) {
  auto options = options_for("credentials");
  FakeAccessKey wrong = access_key;
  wrong.secret_access_key = "not/the/secret";
  options.credentials = std::make_shared<KnownCredentials>(wrong);
  const auto store = stores::make_dynamodb_store(options);
  const Answer answer = blocking::get(*store, "k");
  EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << answer.error.message;
  EXPECT_THAT(answer.error.message, HasSubstr("the test"));
  EXPECT_THAT(answer.error.message, ::testing::Not(HasSubstr("not/the/secret")));
}

TEST(DynamoDbWire, AServerThatIsNotTrustedIsMisuse) {
  auto options = options_for("trust");
  options.ca_file.clear();
  const auto store = stores::make_dynamodb_store(options);
  const Answer answer = blocking::insert(*store, plain_record("k"));
  EXPECT_EQ(answer.error.kind, ErrorKind::misuse) << answer.error.message;
}

}  // namespace
}  // namespace once::testing
