// What operators' tools get.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <once/frontends/admin.hpp>
#include <once/platform/blocking.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "proxy_test.hpp"

namespace once::proxy {
namespace admin_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class AdminTest : public ProxyTest {
 protected:
  AdminTest() { options.admin = Address{"127.0.0.1", 0}; }

  Message page(const std::string& path, const std::string& method = "GET") {
    Line line = Line::to(proxy->admin_port());
    line.write(method + " " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
    auto answer = line.read_message(method == "HEAD");
    if (!answer) throw std::runtime_error("no answer");
    EXPECT_EQ(line.read_all(), "");
    return *answer;
  }
};

TEST_F(AdminTest, SaysWhetherItIsAliveAndReady) {
  start(counting());
  EXPECT_EQ(page("/healthz").body, "alive\n");
  EXPECT_EQ(page("/readyz").body, "ready\n");
  EXPECT_EQ(page("/readyz", "HEAD").status(), 200U);
  EXPECT_EQ(page("/").status(), 404U);
  EXPECT_EQ(page("/healthz", "POST").status(), 405U);
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  EXPECT_EQ(page("/readyz").status(), 503U);
  EXPECT_EQ(page("/healthz").status(), 200U);
  store->set_plan(once::testing::no_faults());
  EXPECT_EQ(page("/readyz").status(), 200U);
  EXPECT_EQ(runs(), 0U);
}

// Readiness, with a clock that the test moves, and counts of what the store was asked for.
class ReadinessTest : public AdminTest {
 protected:
  using Call = once::testing::StoreCall;
  using Fault = once::testing::Fault;

  void start_with(std::shared_ptr<Store> inner = stores::make_memory_store()) {
    clock = manual;
    timers = by_hand;
    store = std::make_shared<once::testing::FaultyStore>(
        std::move(inner),
        [this](const Call& call) {
          (call.is_write() ? writes : reads).fetch_add(1);
          if (!call.is_write()) return Fault();
          return Fault{.kind = writes_fail ? Fault::Kind::unavailable : Fault::Kind::none,
                       .answer_delay = Millis{write_delay_ms}};
        },
        manual, by_hand);
    start(counting());
  }
  [[nodiscard]] static std::string answer_of(Line& line) { return line.read_message().value().body; }

  std::vector<std::string> notices;  // Of the proxy, which ends before them.
  std::atomic<int> reads = 0;
  std::atomic<int> writes = 0;
  std::atomic<bool> writes_fail = false;
  std::atomic<int> write_delay_ms = 0;
  const std::shared_ptr<once::testing::ManualClock> manual = std::make_shared<once::testing::ManualClock>();
  const std::shared_ptr<once::testing::ManualTimers> by_hand = std::make_shared<once::testing::ManualTimers>(manual);
};

TEST_F(ReadinessTest, NeedsAStoreThatTakesWrites) {
  options.on_notice = [&](std::string_view text) {
    const std::lock_guard lock(mutex);
    notices.emplace_back(text);
  };
  start_with();
  writes_fail = true;
  const Message unready = page("/readyz");
  EXPECT_EQ(unready.status(), 503U);
  // The reason is for the log, once: anybody may ask for the page.
  EXPECT_EQ(unready.body, "the store takes no new operations\n");
  const auto told = [&] {
    const std::lock_guard lock(mutex);
    return notices;
  };
  const auto reason = HasSubstr("not ready: the store takes no new operations: a record could not be written: ");
  EXPECT_THAT(told(), ElementsAre(reason));
  EXPECT_EQ(page("/readyz?replays").body, "ready\n");
  EXPECT_EQ(writes, 1);
  writes_fail = false;
  manual->advance(std::chrono::seconds{9});
  EXPECT_EQ(page("/readyz").status(), 503U);  // It was not tried again.
  EXPECT_THAT(told(), ElementsAre(reason));
  EXPECT_EQ(writes, 1);
  manual->advance(std::chrono::seconds{1});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(page("/readyz").body, "ready\n");
  EXPECT_THAT(told(), ElementsAre(reason, "ready again: the store takes new operations"));
  EXPECT_EQ(writes, 3);  // One more record, which was removed.
  EXPECT_EQ(blocking::list(*store, {}).records.size(), 0U);
}

class Moving final : public once::testing::ForwardingStore {
 public:
  Moving() : ForwardingStore(stores::make_memory_store()) {}
  [[nodiscard]] std::string name() const override { return is_moved ? "new" : "old"; }
  std::atomic<bool> is_moved = false;
};

// As after a move: what was learned about the old store says nothing about the new one.
TEST_F(ReadinessTest, AnotherStoreIsTriedAtOnce) {
  const auto moving = std::make_shared<Moving>();
  start_with(moving);
  writes_fail = true;
  EXPECT_EQ(page("/readyz").status(), 503U);
  writes_fail = false;
  EXPECT_EQ(page("/readyz").status(), 503U);
  moving->is_moved = true;
  EXPECT_EQ(page("/readyz").status(), 200U);
}

TEST_F(ReadinessTest, OneProbeServesAllWhoAsk) {
  start_with();
  write_delay_ms = 3'000;
  std::list<Line> asking;
  for (int i = 0; i < 5; ++i) {
    asking.push_back(Line::to(proxy->admin_port()));
    asking.back().write("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  const auto until = std::chrono::steady_clock::now() + patience;
  while (reads < 5) {  // Each has read, and waits for the first one's write.
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(writes, 1);
  while (writes < 2) {  // Its insert, then its removal.
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    by_hand->advance(Millis{3'000});
  }
  by_hand->advance(Millis{3'000});
  for (Line& line : asking) EXPECT_EQ(answer_of(line), "ready\n");
  EXPECT_EQ(writes, 2);
}

// As in DynamoDB, which charges for each write.
TEST_F(ReadinessTest, OnlyReadsAStoreThatExpiresItself) {
  class Expiring final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    [[nodiscard]] Capabilities capabilities() const noexcept override {
      Capabilities can = inner_->capabilities();
      can.expires_itself = true;
      return can;
    }
  };
  start_with(std::make_shared<Expiring>(stores::make_memory_store()));
  EXPECT_EQ(page("/readyz").body, "ready\n");
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(writes, 0);
}

TEST_F(AdminTest, ThoseWhoKeepSilentStandInNobodysWay) {
  start(counting());
  std::list<Line> silent;
  for (int i = 0; i < 150; ++i) {
    silent.push_back(Line::to(proxy->admin_port()));
    if (i % 2 == 0) silent.back().write("GET /healthz HTTP/1.1\r\n");  // Or half a request.
  }
  EXPECT_EQ(page("/healthz").body, "alive\n");
  EXPECT_EQ(silent.front().read_all(), "");  // The oldest had to go.
  Line& last = silent.back();
  last.write("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(last.read_message().value().body, "alive\n");
}

TEST_F(AdminTest, MetricsMayBeRefused) {
  options.refuse_metrics = [](const http::Request& request) -> std::optional<http::Answer> {
    if (std::ranges::any_of(request.headers, [](const auto& header) { return header.value == "Bearer it"; })) return {};
    return http::Answer{.status = 401, .reason = {}, .headers = {}, .body = "no"};
  };
  start(counting());
  EXPECT_EQ(page("/metrics").status(), 401U);
  EXPECT_EQ(page("/metrics?x").status(), 401U);
  EXPECT_EQ(page("/healthz").status(), 200U);
  Line line = Line::to(proxy->admin_port());
  line.write("GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer it\r\n\r\n");
  EXPECT_EQ(line.read_message().value().status(), 200U);
}

TEST_F(AdminTest, IsThereWhileItDrains) {
  start([&](Line& line) {
    got(line.read_request().value());
    arrived.open();
    go.wait();
    line.write(answer_text("200 OK", "done"));
  });
  Line line = client();
  line.write(post("k"));
  arrived.wait();
  EXPECT_FALSE(proxy->stop(Millis{1}));
  EXPECT_EQ(page("/readyz").body, "stopping\n");
  EXPECT_EQ(page("/healthz").status(), 200U);
  go.open();
  EXPECT_EQ(line.read_message()->body, "done");
}

TEST_F(AdminTest, CountsWithoutKeys) {
  options.metrics = std::make_shared<Metrics>();
  start(counting());
  ask(post("secret-key"));
  ask(post("secret-key"));
  ask(post("secret-key", "other"));
  ask("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n");
  options.metrics->count(once::Event{.kind = EventKind::took_over});
  const Message answer = page("/metrics");
  EXPECT_EQ(answer.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const std::string& text = answer.body;
  for (const char* const line : {
           "once_requests_total{outcome=\"executed\"} 1\n",
           "once_requests_total{outcome=\"replayed\"} 1\n",
           "once_requests_total{outcome=\"mismatch\"} 1\n",
           "once_requests_total{outcome=\"passed\"} 1\n",
           "once_requests_total{outcome=\"error\"} 0\n",
           "once_proxy_operations_total{fate=\"store\"} 1\n",
           "once_claims_total{kind=\"took_over\"} 1\n",
           "once_build_info{version=\"",
           "process_open_fds ",
           "http_server_request_duration_seconds_count{http_request_method=\"POST\",http_response_status_code=\"201\"} "
           "2\n",
           "http_server_request_duration_seconds_count{http_request_method=\"POST\",http_response_status_code=\"422\"} "
           "1\n",
           "http_server_request_duration_seconds_count{http_request_method=\"_OTHER\",http_response_status_code="
           "\"201\"} 1\n",
           "http_client_request_duration_seconds_count{http_request_method=\"POST\",http_response_status_code=\"201\"} "
           "1\n",
           "http_client_request_duration_seconds_bucket{http_request_method=\"POST\",http_response_status_code=\"201\","
           "le=\"+Inf\"} 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("secret-key")));
  EXPECT_THAT(text, Not(HasSubstr("charges")));
}

TEST_F(AdminTest, CountsByRouteAndNotByPath) {
  start(counting());
  http::Options own = rules;
  own.methods = {"PUT"};
  proxy->set_rules({rules,
                    {{.path = "/Orders/{id}/pay", .options = rules},
                     {.path = "/Orders/{id}/pay", .options = own},
                     {.path = "/v1/*", .options = rules}}});
  const auto get = [](const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"; };
  ask(get("/orders/17/pay?x=1"));
  ask(get("/orders/18/pay/"));
  ask(get("/v1/secret/file"));
  ask(get("/else"));
  EXPECT_EQ(logged(0).route, "/Orders/{id}/pay");
  EXPECT_EQ(logged(0).path, "/orders/17/pay");
  EXPECT_EQ(logged(2).route, "/v1/*");
  EXPECT_EQ(logged(3).route, "");
  ask("PUT /orders/..%2f/pay HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(logged(4).cause, "path-unclear");
  EXPECT_EQ(logged(4).route, "");
  const std::string text = page("/metrics").body;
  const std::string name =
      "_request_duration_seconds_count{http_request_method=\"GET\",http_response_status_code=\"201\"";
  EXPECT_THAT(text, HasSubstr("http_server" + name + ",http_route=\"/Orders/{id}/pay\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("http_server" + name + ",http_route=\"/v1/*\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("http_server" + name + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("http_client" + name + "} 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("orders/17")));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(AdminServer, HasThePagesOfAProxyWithoutOne) {
  const auto store = std::make_shared<once::testing::FaultyStore>(std::shared_ptr<Store>(stores::make_memory_store()),
                                                                  once::testing::no_faults());
  Engine engine({.store = store});
  std::atomic<bool> stopping = false;
  const AdminServer server(engine, {.listen = {"127.0.0.1", 0},
                                    .metrics = [] { return std::string("a 1\n"); },
                                    .unready = [&] { return std::string(stopping ? "stopping" : ""); },
                                    .operators = {},
                                    .refuse_metrics = {}});
  const auto page = [&](const std::string& path) {
    Line line = Line::to(server.port());
    line.write("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
    return line.read_message().value();
  };
  EXPECT_EQ(page("/healthz").body, "alive\n");
  EXPECT_EQ(page("/readyz").body, "ready\n");
  EXPECT_EQ(page("/metrics").body, "a 1\n");
  EXPECT_EQ(page("/v1/records").status(), 404U);
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  EXPECT_EQ(page("/readyz").status(), 503U);
  stopping = true;
  EXPECT_EQ(page("/readyz").body, "stopping\n");
  EXPECT_EQ(page("/healthz").status(), 200U);
  const Line silent = Line::to(server.port());  // It holds up no end.
  EXPECT_THROW(AdminServer(engine, {.listen = {"127.0.0.1", server.port()},
                                    .metrics = [] { return std::string(); },
                                    .unready = {},
                                    .operators = {},
                                    .refuse_metrics = {}}),
               Exception);
}

class OperatorsApi : public AdminTest {
 protected:
  // Records requests, and answers from its own thread.
  OperatorsApi() {
    options.operators = [this](const http::Request& request, Callback<void(http::Answer)> done) {
      std::string seen =
          std::string(request.method) + " " + std::string(request.target) + " " + std::to_string(request.body.size());
      for (const http::HeaderView& line : request.headers) {
        if (line.name == "If-Match") seen += " " + std::string(line.value);
      }
      threads.emplace_back([seen = std::move(seen), done = std::move(done)]() mutable {
        done({.status = 200, .reason = {}, .headers = {{"ETag", "\"x\""}}, .body = seen});
      });
    };
  }
  ~OperatorsApi() override { proxy.reset(); }

  // Half of it, then the rest.
  Message send(const std::string& bytes) {
    Line line = Line::to(proxy->admin_port());
    line.write(bytes.substr(0, bytes.size() / 2));
    line.write(bytes.substr(bytes.size() / 2));
    auto answer = line.read_message();
    if (!answer) throw std::runtime_error("no answer");
    return *answer;
  }

  std::list<std::jthread> threads;
};

TEST_F(OperatorsApi, GetsWhatIsBelowV1) {
  start(counting());
  const Message answer = page("/v1/records?limit=2");
  EXPECT_EQ(answer.status(), 200U);
  EXPECT_EQ(answer.body, "GET /v1/records?limit=2 0");
  EXPECT_EQ(answer.header("ETag"), "\"x\"");
  EXPECT_EQ(page("/v1/records", "HEAD").body, "");
  EXPECT_EQ(page("/v1/records", "DELETE").body, "DELETE /v1/records 0");
  EXPECT_EQ(page("/v1").status(), 404U);
  EXPECT_EQ(page("/healthz?x").body, "alive\n");
  const std::string head = "POST /v1/records/6b/release HTTP/1.1\r\nHost: a\r\nIf-Match: t\r\n";
  EXPECT_EQ(send(head + "Content-Length: 4\r\n\r\nbody").body, "POST /v1/records/6b/release 4 t");
  EXPECT_EQ(send(head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").body,
            "POST /v1/records/6b/release 3 t");
  const std::string large(ProxyOptions::max_admin_body_bytes, 'a');
  EXPECT_EQ(send(head + "Content-Length: " + std::to_string(large.size()) + "\r\n\r\n" + large).body,
            "POST /v1/records/6b/release 2097152 t");
}

TEST_F(OperatorsApi, GetsNothingThatIsNoRequest) {
  start(counting());
  const std::string head = "POST /v1/records HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(send(head + "Content-Length: 2097153\r\n\r\n").status(), 413U);
  EXPECT_EQ(send(head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").status(), 400U);
  EXPECT_EQ(send(head + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody").status(), 400U);
  EXPECT_EQ(send(head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n").status(), 400U);
  EXPECT_EQ(send("POST /v1/records HTTP/1.1\r\n\r\n").body, "The request must have exactly one Host header.\n");
  EXPECT_EQ(send("POST /v1/records HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").status(), 400U);
  EXPECT_EQ(send("POST /v1/records HTTP/2.0\r\nHost: a\r\n\r\n").status(), 505U);
  EXPECT_EQ(send("CONNECT /v1/records HTTP/1.1\r\nHost: a\r\n\r\n").status(), 501U);
  EXPECT_EQ(send("GET ftp://a/v1/records HTTP/1.1\r\nHost: a\r\n\r\n").status(), 400U);
  EXPECT_EQ(send(head + "Content-Length: +4\r\n\r\nbody").body, "Content-Length is not a number.\n");
  EXPECT_EQ(send(head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n").status(), 400U);
  EXPECT_EQ(send(head + "Transfer-Encoding: chunked\r\n\r\n200001\r\n" + std::string(2'097'153, 'a')).status(), 413U);
  EXPECT_EQ(send("POST /v1/records HTTP/1.1\nHost: a\n\n").status(), 400U);
  EXPECT_EQ(send(head + "A: " + std::string(10'000, 'a') + "\r\n\r\n").status(), 431U);
  EXPECT_TRUE(threads.empty());
}

TEST_F(OperatorsApi, DoesNotWaitForSlowOnes) {
  options.timeouts.head = Millis{50};
  start(counting());
  for (const char* const part :
       {"", "POST /v1/rec", "POST /v1/records HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nb"}) {
    Line line = Line::to(proxy->admin_port());
    line.write(part);
    EXPECT_EQ(line.read_message()->status(), 408U) << part;
    EXPECT_EQ(line.read_all(), "");
  }
  EXPECT_TRUE(threads.empty());
}

TEST_F(OperatorsApi, AsksForTheBodyOfWhoExpectsThat) {
  start(counting());
  Line line = Line::to(proxy->admin_port());
  line.write("POST /v1/records HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(line.read_message(true)->status(), 100U);
  line.write("body");
  EXPECT_EQ(line.read_message()->body, "POST /v1/records 4");
}

TEST_F(AdminTest, HasNoApiUnlessSomebodyAnswers) {
  start(counting());
  EXPECT_EQ(page("/v1/records").status(), 404U);
  EXPECT_EQ(page("/v1/records/6b/release", "POST").status(), 405U);
}

TEST_F(AdminTest, TakesSoManyConnectionsAndNoMore) {
  std::vector<Callback<void(http::Answer)>> waiting;
  options.operators = [&](const http::Request&, Callback<void(http::Answer)> done) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(done));
    if (waiting.size() == 64) arrived.open();
  };
  start(counting());
  std::list<Line> lines;
  for (int i = 0; i < 64; ++i) {
    lines.push_back(Line::to(proxy->admin_port()));
    lines.back().write("GET /v1/records HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  arrived.wait();
  Line over = Line::to(proxy->admin_port());
  EXPECT_EQ(over.read_all(), "");  // It is closed, as all others are being answered.
  for (auto& done : waiting) done({.status = 200, .reason = {}, .headers = {}, .body = "x"});
  for (Line& line : lines) EXPECT_EQ(line.read_message().value().body, "x");
}

// The two pieces "one" and "two", and then nothing for long.
class Patient final : public AnswerStream {
 public:
  explicit Patient(Gate& gone) : gone_(gone) {}
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;
  ~Patient() override { gone_.open(); }
  void next(Callback<void(std::string)> done) override {
    if (++asked_ == 1) return done("one");
    if (asked_ == 2) return done("two");
    waiting_ = std::move(done);
  }
  void stop() override {
    if (waiting_) std::exchange(waiting_, nullptr)("");
  }

 private:
  Gate& gone_;
  Callback<void(std::string)> waiting_;
  int asked_ = 0;
};

// More than anybody takes.
class Endless final : public AnswerStream {
 public:
  explicit Endless(Gate& gone) : gone_(gone) {}
  Endless(const Endless&) = delete;
  Endless& operator=(const Endless&) = delete;
  ~Endless() override { gone_.open(); }
  void next(Callback<void(std::string)> done) override { done(std::string(std::size_t{64} * 1024, 'x')); }
  void stop() override {}

 private:
  Gate& gone_;
};

// A stream, and then it ends by itself.
class Short final : public AnswerStream {
 public:
  void next(Callback<void(std::string)> done) override { done(std::exchange(left_, "")); }
  void stop() override {}

 private:
  std::string left_ = "all";
};

class StreamTest : public AdminTest {
 protected:
  template <class Stream, class... Args>
  void answer_with(Args&... args) {
    options.operators = [&](const http::Request&, Callback<void(OperatorsAnswer)> done) {
      done({http::Answer{.status = 200, .reason = {}, .headers = {{"Content-Type", "text/x"}}, .body = {}},
            std::make_unique<Stream>(args...)});
    };
    start(counting());
  }
  Line ask(const std::string& version = "1.1") {
    Line line = Line::to(proxy->admin_port());
    line.write("GET /v1/events HTTP/" + version + "\r\nHost: a\r\n\r\n");
    return line;
  }
};

TEST_F(StreamTest, ComesInPiecesAndEnds) {
  answer_with<Short>();
  const auto whole = ask().read_message();
  EXPECT_EQ(whole->status(), 200U);
  EXPECT_EQ(whole->body, "all");
  EXPECT_THAT(ask().read_all(), ::testing::EndsWith("Connection: close\r\n\r\n3\r\nall\r\n0\r\n\r\n"));
  EXPECT_THAT(ask("1.0").read_all(), ::testing::EndsWith("Connection: close\r\n\r\nall"));
}

TEST_F(StreamTest, EndsWithItsClient) {
  answer_with<Patient>(arrived);
  {
    Line line = ask();
    EXPECT_THAT(line.read_until("two\r\n"), HasSubstr("3\r\none\r\n3\r\ntwo"));
  }
  arrived.wait();
}

TEST_F(StreamTest, EndsIfItsClientSaysMore) {
  answer_with<Patient>(arrived);
  Line line = ask();
  line.read_until("two\r\n");
  line.write("x");
  arrived.wait();
}

TEST_F(StreamTest, IsNotKeptForAClientThatTakesNothing) {
  options.timeouts.head = Millis{50};
  answer_with<Endless>(arrived);
  const Line line = ask();
  arrived.wait();
  EXPECT_EQ(page("/healthz").body, "alive\n");
}

TEST_F(StreamTest, EndsWithTheProxy) {
  answer_with<Patient>(arrived);
  std::list<Line> lines;
  for (int i = 0; i < 60; ++i) {
    lines.push_back(ask());
    lines.back().read_until("two\r\n");
  }
  EXPECT_EQ(page("/healthz").body, "alive\n");
  proxy.reset();
  arrived.wait();
  for (Line& line : lines) EXPECT_EQ(line.read_all(), "");
}

TEST(IsLoopback, LooksAtTheAddress) {
  for (const char* const host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"})
    EXPECT_TRUE(is_loopback({host, 1})) << host;
  for (const char* const host : {"0.0.0.0", "::", "10.0.0.1", "example.org"})
    EXPECT_FALSE(is_loopback({host, 1})) << host;
}

TEST(Metrics, LabelsAreBounded) {
  Metrics metrics;
  Served served;
  served.method = "GET";
  served.status = 200;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2'100; ++i) {
      const std::string route = "/r" + std::to_string(i);
      served.route = route;
      metrics.count(served);
    }
  }
  const std::string text = metrics.text(0);
  const std::string name = "http_server_request_duration_seconds_count{";
  EXPECT_THAT(
      text,
      HasSubstr(name + "http_request_method=\"GET\",http_response_status_code=\"200\",http_route=\"/r1999\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("\"/r2000\"")));
  EXPECT_THAT(text, HasSubstr(name + "otel_metric_overflow=\"true\"} 200\n"));
}

TEST(Metrics, BucketsAddUp) {
  Metrics metrics;
  Served served;
  served.method = "GET";
  served.cause = "upstream-lost";
  for (const int ms : {5, 6, 20'000}) {
    served.took = std::chrono::milliseconds(ms);
    metrics.count(served);
  }
  const std::string text = metrics.text(7);
  const std::string name = "http_server_request_duration_seconds_";
  const std::string labels = "{http_request_method=\"GET\",error_type=\"upstream-lost\"";
  EXPECT_THAT(text, HasSubstr(name + "bucket" + labels + ",le=\"0.005\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(name + "bucket" + labels + ",le=\"0.01\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "bucket" + labels + ",le=\"10\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "bucket" + labels + ",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "sum" + labels + "} 20.011\n"));
  EXPECT_THAT(text, HasSubstr("once_proxy_connections 7\n"));
}

}  // namespace admin_test
}  // namespace once::proxy
