// Names of hosts that are looked up: by this program's own getaddrinfo(), which can be made to hang.
#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/platform/blocking.hpp>
#include <once/stores/postgresql.hpp>
#include <once/testing/records.hpp>

#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"
#include "stores/postgresql/target.hpp"

namespace {

// Names with an address; those that hang until they are let go.
struct NameServer {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> addresses;
  std::map<std::string, bool> hangs;
  int asked = 0;  // Of those that hang.
  int under_way = 0;

  void hang(const std::string& name, bool whether) {
    const std::lock_guard lock(mutex);
    hangs[name] = whether;
    changed.notify_all();
  }
  void wait_until_asked(int times) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return asked >= times; }));
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return under_way == 0; }));
  }
};
NameServer name_server;

}  // namespace

// libpq and the store find this one, as the program's symbols come before those of libc.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* name, const char* service,
                                                                  const addrinfo* hints, addrinfo** list) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "getaddrinfo"));
  std::string address;
  if (name != nullptr && std::string(name).ends_with(".once.test")) {
    std::unique_lock lock(name_server.mutex);
    ++name_server.under_way;
    if (name_server.hangs[name]) {
      ++name_server.asked;
      name_server.changed.notify_all();
      name_server.changed.wait(lock, [&] { return !name_server.hangs[name]; });
    }
    address = name_server.addresses[name];
    --name_server.under_way;
    name_server.changed.notify_all();
    if (address.empty()) return EAI_NONAME;
    name = address.c_str();
  }
  return real(name, service, hints, list);
}

namespace once::testing {
namespace {

using ::testing::HasSubstr;
using Status = AnswerStatus;

// What of the URL comes after the host: ":5432/once_1".
std::string rest_of(const std::string& url) { return url.substr(url.find("127.0.0.1") + 9); }

class PostgresqlNames : public ::testing::Test {
 protected:
  PostgresqlNames() {
    shell_.run(stores::postgresql::create_sql(schema_));
    name_server.addresses["db.once.test"] = "127.0.0.1";
  }
  ~PostgresqlNames() override {
    name_server.hang("db.once.test", false);
    name_server.hang("slow.once.test", false);
    store_.reset();
    name_server.wait_until_idle();
    shell_.run("DROP SCHEMA " + schema_ + " CASCADE");
  }

  Store& open(const std::string& hosts, Millis timeout) {
    store_ = stores::make_postgresql_store({.url = "postgresql://postgres@" + hosts + rest_of(test_url()),
                                            .schema = schema_,
                                            .operation_timeout = timeout,
                                            .allow_unsafe = true});
    return *store_;
  }

  Shell shell_{test_url()};
  std::string schema_ = fresh_schema();
  std::shared_ptr<Store> store_;
};

TEST_F(PostgresqlNames, ALookUpThatHangsHoldsUpNoOtherConnection) {
  Store& store = open("db.once.test", Millis{1'000});

  ASSERT_EQ(blocking::insert(store, plain_record("a")).status, Status::done);
  name_server.hang("db.once.test", true);
  auto reading = std::async(std::launch::async, [&] { return blocking::get(store, "a"); });
  name_server.wait_until_asked(1);
  // The connection for writes is there.
  auto writing = std::async(std::launch::async, [&] { return blocking::insert(store, plain_record("b")); });
  const bool written = writing.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  const bool read = reading.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  name_server.hang("db.once.test", false);
  ASSERT_TRUE(written && read);
  EXPECT_EQ(writing.get().status, Status::done);
  const Answer missed = reading.get();
  EXPECT_EQ(missed.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(missed.error.message, HasSubstr("the host's name is not resolved yet. Nothing was written"));
  EXPECT_EQ(blocking::get(store, "a").status, Status::done);
}

TEST_F(PostgresqlNames, AHostWhoseNameHangsOrIsUnknownIsPassedBy) {
  name_server.hang("slow.once.test", true);
  const std::string port = rest_of(test_url()).substr(0, rest_of(test_url()).find('/'));
  Store& store = open("slow.once.test" + port + ",unknown.once.test" + port + ",db.once.test", Millis{30'000});
  EXPECT_EQ(blocking::insert(store, plain_record("a")).status, Status::done);
}

TEST_F(PostgresqlNames, AnUnknownNameIsNamed) {
  Store& store = open("unknown.once.test", Millis{1'000});
  const Answer answer = blocking::get(store, "a");
  EXPECT_EQ(answer.error.kind, ErrorKind::unavailable);
  EXPECT_THAT(answer.error.message, HasSubstr("the name unknown.once.test cannot be resolved: "));
}

TEST_F(PostgresqlNames, EachAddressOfANameHasItsPortAndItsHost) {
  const stores::postgresql::Target target("postgresql://a:1,10.0.0.9:2,b:3/d", "once");
  EXPECT_THAT(target.names(), ::testing::ElementsAre("a", "", "b"));
  const auto connection = target.start(2, {{"127.0.0.1", "::1"}, {}, {"127.0.0.2"}});
  std::map<std::string, std::string> told;
  PQconninfoOption* const options = PQconninfo(connection.get());
  for (const PQconninfoOption* option = options; option->keyword != nullptr; ++option) {
    if (option->val != nullptr) told[option->keyword] = option->val;
  }
  PQconninfoFree(options);
  EXPECT_EQ(told["host"], "b,a,a,10.0.0.9");
  EXPECT_EQ(told["hostaddr"], "127.0.0.2,127.0.0.1,::1,");
  EXPECT_EQ(told["port"], "3,1,1,2");
}

TEST_F(PostgresqlNames, LibpqLooksUpWhereMoreIsSaidElsewhere) {
  using stores::postgresql::Target;
  EXPECT_THAT(Target("postgresql:///d?service=pay", "once").names(), ::testing::IsEmpty());
  EXPECT_THAT(Target("postgresql://a/d?hostaddr=10.0.0.9", "once").names(), ::testing::IsEmpty());
  EXPECT_THAT(Target("postgresql://%2Frun%2Fpostgresql/d", "once").names(), ::testing::IsEmpty());
  EXPECT_THAT(Target("postgresql://[::1]:5432/d", "once").names(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace once::testing
