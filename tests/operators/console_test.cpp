// The console's requests: the ends of sessions by the clock, TLS, the token, and what must not end the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/console.hpp"
#include "operators/reporter.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace console_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ConsoleTest : public OperatorsCase {
 protected:
  ConsoleTest() {
    std::ofstream(file) << "0123456789abcdef\n";
    chmod(file.c_str(), 0600);
  }
  ~ConsoleTest() override { unlink(file.c_str()); }

  std::string file = ::testing::TempDir() + "console-token-" + std::to_string(getpid());
  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
};

// A console, and the operators' API with it.
struct Served {
  Served(std::shared_ptr<Store> store, const AdminToken& token, ConsoleOptions options)
      : console(token, std::move(options)),
        operators({.url = "memory:", .store = std::move(store)}, token, {}, &console) {}

  http::Answer ask(const std::string& method, const std::string& target, const std::string& body = {},
                   std::vector<http::HeaderView> headers = {}) {
    headers.push_back({"Host", host});
    return operators.answer({.method = method, .target = target, .headers = headers, .body = body, .principal = {}});
  }
  http::Answer sign_in(const std::string& body) {
    http::Answer answer =
        ask("POST", "/v1/session", body, {{"Sec-Fetch-Site", "same-origin"}, {"Content-Type", "application/json"}});
    if (answer.status == 200) {
      const std::string& line = *http::find_header(answer.headers, "Set-Cookie");
      cookie = line.substr(0, line.find(';'));
      half = json::parse(answer.body)["half"];
    }
    return answer;
  }
  http::Answer get(const std::string& target) {
    return ask("GET", target, "", {{"Cookie", cookie}, {"Once-Session", half}});
  }

  Console console;
  Operators operators;
  std::string host = "127.0.0.1:9100";
  std::string cookie;
  std::string half;
};

TEST_F(ConsoleTest, EndsASessionByTheClock) {
  Served served(store, token, {.by_links = true, .clock = clock});
  const std::string link = served.console.new_link({.name = "alice"});
  ASSERT_EQ(served.sign_in(R"({"link":")" + link + "\"}").status, 200U);
  clock->advance(29min);
  EXPECT_EQ(served.get("/v1/records").status, 200U);
  clock->advance(29min);
  EXPECT_EQ(served.get("/v1/records").status, 200U);
  clock->advance(30min);
  expect_problem(served.get("/v1/records"), 401, "unauthorized");
}

TEST_F(ConsoleTest, RefusesALinkOfMoreThanAMinute) {
  Served served(store, token, {.by_links = true, .clock = clock});
  const std::string link = served.console.new_link({.name = "alice"});
  clock->advance(60s);
  expect_problem(served.sign_in(R"({"link":")" + link + "\"}"), 401, "unauthorized", "older than 60 s");
}

TEST_F(ConsoleTest, SignsInByTheTokenAsAnOperator) {
  const AdminToken ours(file, "--admin-token-file");
  Served served(store, ours, {.clock = clock});
  expect_problem(served.sign_in(R"({"token":"0123456789abcdeF"})"), 401, "unauthorized", "The token is wrong.");
  expect_problem(served.sign_in(R"({"token":""})"), 401, "unauthorized");
  const http::Answer answer = served.sign_in(R"({"token":"0123456789abcdef"})");
  EXPECT_EQ(read(answer)["name"], "operator");
  EXPECT_EQ(read(answer)["role"], "operator");
  EXPECT_THAT(*http::find_header(answer.headers, "Set-Cookie"), StartsWith("once-9100="));
  EXPECT_EQ(served.get("/v1/records").status, 200U);
  // Programs with the token are none the wiser, and browsers without a session have none.
  EXPECT_EQ(served.ask("GET", "/v1/records", "", {{"Authorization", "Bearer 0123456789abcdef"}}).status, 200U);
  expect_problem(served.ask("GET", "/v1/records", "", {{"Cookie", served.cookie}}), 401, "unauthorized");
  expect_problem(served.ask("GET", "/v1/records"), 401, "unauthorized");
}

TEST_F(ConsoleTest, EndsASessionWithItsToken) {
  AdminToken ours(file, "--admin-token-file");
  Served served(store, ours, {.clock = clock});
  served.sign_in(R"({"token":"0123456789abcdef"})");
  ours.reload();
  EXPECT_EQ(served.get("/v1/records").status, 200U);
  std::ofstream(file) << "another-0123456789\n";
  ours.reload();
  expect_problem(served.get("/v1/records"), 401, "unauthorized");
}

// Also if nobody asked between two reloads, and the old token is the present one again.
TEST_F(ConsoleTest, AnEndedSessionStaysEnded) {
  AdminToken ours(file, "--admin-token-file");
  Served served(store, ours, {.clock = clock});
  served.sign_in(R"({"token":"0123456789abcdef"})");
  for (const char* const line : {"another-0123456789\n", "0123456789abcdef\n"}) {
    std::ofstream(file) << line;
    ours.reload();
    served.console.end_changed();
  }
  expect_problem(served.get("/v1/records"), 401, "unauthorized");
}

// A client without any credentials may send a body: it must cost next to nothing.
TEST_F(ConsoleTest, RefusesBodiesThatWouldCost) {
  const AdminToken ours(file, "--admin-token-file");
  Served served(store, ours, {.clock = clock});
  std::string wide = "{";
  for (int i = 0; i < 101; ++i) wide += '"' + std::to_string(i) + "\":0,";
  expect_problem(served.sign_in(wide + "\"x\":0}"), 400, "bad-request", "more than 100 members");
  const std::string deep = R"({"token":)" + std::string(500'000, '[') + std::string(500'000, ']') + "}";
  expect_problem(served.sign_in(deep), 400, "bad-request",
                 "more than 4096 bytes");  // It is read on the server's thread.
  const Record record = unknown("k");
  const std::string result = R"({"as":"completed","reason":"x","result":{"x":)" + deep + "}}";
  expect_problem(served.ask("POST", path_of(record) + "/resolve", result,
                            {{"Authorization", "Bearer 0123456789abcdef"},
                             {"Content-Type", "application/json"},
                             {"If-Match", tag_of(record)}}),
                 400, "bad-request", "more than 16 levels");
}

TEST_F(ConsoleTest, SaysThatItNeedsAToken) {
  Served served(store, token, {.clock = clock});
  for (const char* const path : {"/console", "/console/", "/console/index.html", "/v1/session"}) {
    expect_problem(served.ask("GET", path), 403, "forbidden", "--admin-token-file");
  }
  expect_problem(served.sign_in(R"({"token":""})"), 403, "forbidden", "--admin-token-file");
  // Everything else is as without a console: for programs on this host, and for no browser.
  EXPECT_EQ(served.ask("GET", "/v1/records").status, 200U);
  expect_problem(served.ask("GET", "/v1/records", "", {{"Sec-Fetch-Site", "same-origin"}}), 403, "forbidden");
  expect_problem(served.ask("GET", "/v1/records", "", {{"Origin", "http://127.0.0.1:9100"}}), 403, "forbidden");
}

TEST_F(ConsoleTest, IsUnderTheNameOfItsOriginTooAndSpeaksTlsThere) {
  const AdminToken known(file, "--admin-token-file");
  Served served(store, known, {.host = console_host("https://Ops.example.com:443", true), .clock = clock});
  const std::string token_in_json = R"({"token":"0123456789abcdef"})";
  for (const char* const host : {"ops.example.com", "OPS.example.com:443"}) {
    served.host = host;
    EXPECT_EQ(served.ask("GET", "/console/").status, 200U) << host;
    const http::Answer answer = served.sign_in(token_in_json);
    ASSERT_EQ(answer.status, 200U) << host;
    EXPECT_THAT(*http::find_header(answer.headers, "Set-Cookie"), StartsWith("__Host-once-443=")) << host;
    EXPECT_THAT(*http::find_header(answer.headers, "Set-Cookie"), HasSubstr("; Secure")) << host;
    EXPECT_EQ(served.get("/v1/records").status, 200U) << host;
  }
  for (const char* const host : {"ops.example.com:9100", "evil.example", "ops.example.com.evil.example", ""}) {
    served.host = host;
    expect_problem(served.get("/v1/records"), 403, "forbidden");
    expect_problem(served.ask("GET", "/console/"), 403, "forbidden", "https://ops.example.com");
  }
  served.host = "localhost:9100";  // Plain HTTP, as before.
  EXPECT_THAT(*http::find_header(served.sign_in(token_in_json).headers, "Set-Cookie"), StartsWith("once-9100="));
  EXPECT_EQ(served.get("/v1/records").status, 200U);
}

TEST_F(ConsoleTest, TakesOnlyAnOriginOfTlsWhereSomebodyCanSignIn) {
  EXPECT_EQ(console_host("", false), "");
  EXPECT_EQ(console_host("https://[2001:DB8::1]:8443", true), "[2001:db8::1]:8443");
  for (const char* const origin : {"http://ops.example.com",
                                   "ops.example.com",
                                   "https://",
                                   "https://a/b",
                                   "https://a/",
                                   "https://a:b",
                                   "https://a:",
                                   "https://:443",
                                   "https://alice@a",
                                   "https://a b",
                                   "*",
                                   "https://a:0",
                                   "https://a:65536",
                                   "https://a:99999999999",
                                   "https://a..b",
                                   "https://.",
                                   "https://-a",
                                   "https://[::1",
                                   "https://[::g]",
                                   "https://2001:db8::1",
                                   "https://*.example.com",
                                   "https://a,https://b"}) {
    EXPECT_THROW(console_host(origin, true), Exception) << origin;
  }
  EXPECT_THROW(console_host("https://ops.example.com", false), Exception);
}

TEST_F(ConsoleTest, HasACookieOfItsOwnPortAndScheme) {
  Served served(store, token, {.by_links = true, .by_tls = true, .clock = clock});
  for (const auto& [host, name] :
       {std::pair("[::1]:9443", "__Host-once-9443="), std::pair("localhost", "__Host-once-443=")}) {
    served.host = host;
    const http::Answer answer = served.sign_in(R"({"link":")" + served.console.new_link({.name = "alice"}) + "\"}");
    EXPECT_THAT(*http::find_header(answer.headers, "Set-Cookie"), StartsWith(name));
    EXPECT_THAT(*http::find_header(answer.headers, "Set-Cookie"), HasSubstr("; Secure"));
    EXPECT_EQ(served.get("/v1/session").status, 200U);
  }
  served.host = "127.0.0.1:9443";  // The cookie is another port's.
  expect_problem(served.get("/v1/session"), 401, "unauthorized");
}

// Throws what is no Exception.
class OutOfMemory final : public once::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void get(std::string /*key*/, Done /*done*/) override { throw std::bad_alloc(); }
};

TEST_F(ConsoleTest, AnswersWhereItFails) {
  Operators failing({.url = "memory:", .store = std::make_shared<OutOfMemory>(stores::make_memory_store())}, token);
  const std::vector<http::HeaderView> headers{{"Host", "127.0.0.1"}};
  const http::Request request{
      .method = "GET", .target = "/v1/records/6b", .headers = headers, .body = {}, .principal = {}};
  std::mutex mutex;
  std::string said;
  set_reporter([&](std::string_view text, LogLevel level) {
    const std::lock_guard lock(mutex);
    said = std::string(to_string(level)) + " " + std::string(text);
  });
  expect_problem(failing.answer(request), 500, "internal");
  std::promise<http::Answer> later;
  failing.answer_later(request, [&](http::Answer answer) { later.set_value(std::move(answer)); });
  expect_problem(later.get_future().get(), 500, "internal");
  set_reporter({});
  EXPECT_EQ(said, "err the operators' API failed: std::bad_alloc");
}

// Holds each get() until it is told to go on.
class Held final : public once::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void get(std::string key, Done done) override {
    asked.set_value();  // A second request throws here.
    go.get_future().wait();
    ForwardingStore::get(std::move(key), std::move(done));
  }
  std::promise<void> asked;
  std::promise<void> go;
};

TEST_F(ConsoleTest, RefusesWhatWaitsAtItsEnd) {
  const auto held = std::make_shared<Held>(stores::make_memory_store());
  const std::vector<http::HeaderView> headers{{"Host", "127.0.0.1"}};
  const http::Request request{
      .method = "GET", .target = "/v1/records/6b", .headers = headers, .body = {}, .principal = {}};
  std::promise<http::Answer> first;
  std::promise<http::Answer> second;
  std::optional<Operators> ending(std::in_place, StoreAccess{.url = "memory:", .store = held}, token);
  ending->answer_later(request, [&](http::Answer answer) { first.set_value(std::move(answer)); });
  held->asked.get_future().wait();
  ending->answer_later(request, [&](http::Answer answer) { second.set_value(std::move(answer)); });
  ending->stop();
  held->go.set_value();
  ending.reset();
  expect_problem(first.get_future().get(), 404, "no-record");
  expect_problem(second.get_future().get(), 503, "stopping");
}

}  // namespace console_test
}  // namespace once::operators
