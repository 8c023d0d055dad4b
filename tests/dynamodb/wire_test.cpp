// The whole way: the store, the built-in client, TLS, and a server that checks every signature.
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/aws/credentials.hpp>
#include <once/engine/engine.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/snapshot.hpp>
#include <once/platform/system.hpp>
#include <once/stores/dynamodb.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/records.hpp>

#include "aws/credentials_refresh.hpp"
#include "fake_aws/fake_dynamodb_server.hpp"
#include "spoils.hpp"

namespace once::testing {
namespace wire_test {

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
          .ca_file = service().server.ca_file(),
          .allow_eventual = true};  // So that it does not ask.
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
  EXPECT_EQ(answer.status, AnswerStatus::done);
  EXPECT_NE(answer.record, nullptr);
  EXPECT_EQ(service().fake->round_trips("GetItem"), 2U);
  service().fake->set_faults([](const FakeCall&) { return FakeFault{}; });
}

// Another program on the table.
struct Program {
  explicit Program(const stores::DynamoDbOptions& options)
      : store(stores::make_dynamodb_store(options)),
        engine({.store = store,
                .policy = {.lease = std::chrono::seconds(30), .on_conflict = OnConflict::fail, .heartbeat = false}}) {}

  Begin begin(const std::string& key) { return engine.begin({.key = Key("test", key), .fingerprint = {}}); }
  // How far the time that it counts leases on is from the truth.
  [[nodiscard]] Millis off() const {
    const auto told = store->time();
    return told ? std::chrono::abs(told->now - system_clock()->now()) : Millis{0};
  }

  std::shared_ptr<Store> store;
  Engine engine;
};

// A function that was restored from a snapshot: what it found and opened at init is another copy's too.
TEST(DynamoDbWire, SnapshotAndRestoreRenewConnectionsCredentialsAndTime) {
  const auto fake = std::make_shared<FakeDynamoDb>(system_clock());
  fake->create_table("restored", "id");
  const FakeAccessKey second{.access_key_id = "AKIASECOND", .secret_access_key = "2", .session_token = "another"};
  const FakeAccessKey third{.access_key_id = "AKIATHIRD", .secret_access_key = "3", .session_token = "a third"};
  FakeDynamoDbServer server(fake, {.keys = {access_key}, .region = "eu-central-1", .tls = true});
  std::atomic<const FakeAccessKey*> handed_out = &access_key;
  auto options = options_for("restored");
  options.endpoint = server.url();
  options.ca_file = server.ca_file();
  options.credentials = aws::refreshing_credentials(
      [&](const std::shared_ptr<aws::Cancellation>&) {
        const FakeAccessKey& key = *handed_out;
        aws::Credentials found;
        found.access_key_id = key.access_key_id;
        found.secret_access_key = key.secret_access_key;
        found.session_token = key.session_token;
        return found;
      },
      system_clock(), system_random());
  const auto store = stores::make_dynamodb_store(options);
  EXPECT_EQ(blocking::insert(*store, plain_record("k")).status, AnswerStatus::done);
  std::uint64_t times = 1;
  for (const auto& [happens, key] : {std::pair(&before_snapshot, &second), std::pair(&after_restore, &third)}) {
    EXPECT_EQ(server.counts().connections, times);
    ASSERT_TRUE(store->time().has_value());
    happens();
    handed_out = key;
    server.set_keys({*key});
    EXPECT_EQ(store->time(), std::nullopt);
    EXPECT_NE(blocking::get(*store, "k").record, nullptr);
    EXPECT_TRUE(store->time().has_value());
    EXPECT_EQ(server.counts().connections, ++times);
  }
  EXPECT_EQ(server.counts().refused, 0U) << "signed with credentials of before";
}

void set_date_off(Millis off) {
  service().fake->set_faults([off](const FakeCall&) { return FakeFault{.date_off = off}; });
}

// Its signatures were accepted, so that the service's clock was within five minutes of theirs: a Date outside of that
// is no time.
TEST(DynamoDbWire, AFalseDateTakesNobodysClaim) {
  const auto options = options_for("false-dates");
  service().fake->create_table("false-dates", "id");
  for (const Millis off : {Millis(std::chrono::hours(1)), Millis(std::chrono::hours(-1))}) {
    const std::string key = "operation " + std::to_string(off.count());
    const auto answers = std::shared_ptr<void>(nullptr, [](void*) { set_date_off(Millis{0}); });
    Program honest(options);
    set_date_off(off < Millis{0} ? off : Millis{0});
    Begin holder = honest.begin(key);
    ASSERT_TRUE(holder.claim) << holder.error.message;
    // The first false answer is the first that this program gets at all; then it meets one after true ones.
    set_date_off(off < Millis{0} ? Millis{0} : off);
    Program other(options);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(other.begin(key).kind, Begin::Kind::conflict) << off.count() << " ms off, try " << i;
      EXPECT_LT(other.off(), std::chrono::minutes(1));
    }
    set_date_off(Millis{0});
    EXPECT_EQ(other.begin(key).kind, Begin::Kind::conflict);
    set_date_off(off);
    EXPECT_EQ(other.begin(key).kind, Begin::Kind::conflict);
    EXPECT_LT(other.off(), std::chrono::minutes(1));
    set_date_off(Millis{0});
    EXPECT_EQ(holder.claim.complete(Result::inlined("done", "text/plain")).kind, Finish::Kind::recorded);
  }
}

// Within those five minutes a false Date can be told only from the true ones before it.
TEST(DynamoDbWire, OneFalseDateAmongTrueOnesTakesNobodysClaim) {
  const auto options = options_for("odd-dates");
  service().fake->create_table("odd-dates", "id");
  const auto answers = std::shared_ptr<void>(nullptr, [](void*) { set_date_off(Millis{0}); });
  Program honest(options);
  Program other(options);
  EXPECT_TRUE(other.begin("something else").claim);
  Begin holder = honest.begin("operation");
  ASSERT_TRUE(holder.claim) << holder.error.message;
  for (const Millis off : {Millis(std::chrono::minutes(4)), Millis(std::chrono::minutes(-4))}) {
    set_date_off(off);
    EXPECT_EQ(other.begin("operation").kind, Begin::Kind::conflict);
    EXPECT_LT(other.off(), std::chrono::minutes(1));
    set_date_off(Millis{0});
    EXPECT_EQ(other.begin("operation").kind, Begin::Kind::conflict);
  }
}

// The answer was damaged, so nothing in it counts.
TEST(DynamoDbWire, ADamagedAnswerIsALostOne) {
  const auto options = options_for("damaged");
  service().fake->create_table("damaged", "id");
  const auto store = stores::make_dynamodb_store(options);
  int faults = 0;
  const auto answers = std::shared_ptr<void>(nullptr, [](void*) { set_date_off(Millis{0}); });
  service().fake->set_faults([&](const FakeCall&) {
    return FakeFault{.kind = faults-- > 0 ? FakeFault::Kind::damaged : FakeFault::Kind::none};
  });
  service().fake->reset_round_trips();
  faults = 1;
  const Answer written = blocking::insert(*store, plain_record("k"));
  EXPECT_EQ(written.error.kind, ErrorKind::in_doubt);
  EXPECT_THAT(written.error.message, HasSubstr("x-amz-crc32"));
  EXPECT_EQ(service().fake->round_trips("PutItem"), 1U);
  faults = 1;
  const Answer read = blocking::get(*store, "k");
  EXPECT_EQ(read.status, AnswerStatus::done) << read.error.message;
  EXPECT_NE(read.record, nullptr);
  EXPECT_EQ(service().fake->round_trips("GetItem"), 2U);
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

}  // namespace wire_test
}  // namespace once::testing
