// What operators' tools get.
#include "proxy_test.hpp"

namespace once::proxy {
namespace {

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
  EXPECT_FALSE(proxy->drain(Millis{1}));
  EXPECT_EQ(page("/readyz").body, "draining\n");
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
  options.metrics->count(Event{.kind = EventKind::took_over});
  const Message answer = page("/metrics");
  EXPECT_EQ(answer.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const std::string& text = answer.body;
  for (const char* const line : {
           "once_requests_total{outcome=\"executed\"} 1\n",
           "once_requests_total{outcome=\"replayed\"} 1\n",
           "once_requests_total{outcome=\"mismatch\"} 1\n",
           "once_requests_total{outcome=\"passed\"} 1\n",
           "once_requests_total{outcome=\"error\"} 0\n",
           "once_operations_total{fate=\"stored\"} 1\n",
           "once_engine_events_total{event=\"took_over\"} 1\n",
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

}  // namespace
}  // namespace once::proxy
