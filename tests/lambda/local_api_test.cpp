// The local Runtime API against arbitrary clients.
#include "once/frontends/lambda/local_api.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>

#include "printed_outcome.hpp"

namespace once::lambda {

namespace local_api_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = InvocationOutcome::Kind;
using Point = LocalApiOptions::Point;

// A connection, byte by byte; no wait is longer than 20 s.
class Client {
 public:
  explicit Client(const LocalApi& api) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(api.port());
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { ::close(fd_); }

  Client& send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) break;  // It has heard enough.
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return *this;
  }
  Client& next() { return send("GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: x\r\n\r\n"); }
  Client& post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return send("POST /2018-06-01/runtime/" + path + " HTTP/1.1\r\nHost: x\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // An answer with a Content-Length.
  std::string answer() {
    for (;;) {
      const auto head = buffer_.find("\r\n\r\n");
      const auto length = buffer_.find("Content-Length: ");
      if (head != std::string::npos && length < head) {
        const std::size_t size = head + 4 + std::stoul(buffer_.substr(length + 16));
        if (buffer_.size() >= size) {
          std::string out = buffer_.substr(0, size);
          buffer_.erase(0, size);
          return out;
        }
      }
      if (!receive()) return std::exchange(buffer_, {}) + "(end)";
    }
  }
  // Whatever comes until the end.
  std::string rest() {
    while (receive()) {
    }
    return std::exchange(buffer_, {});
  }
  void close_sending() const { ::shutdown(fd_, SHUT_WR); }

 private:
  bool receive() {
    std::array<char, 65536> part{};
    const ssize_t count = ::recv(fd_, part.data(), part.size(), 0);
    if (count <= 0) return false;
    buffer_.append(part.data(), static_cast<std::size_t>(count));
    return true;
  }

  const int fd_;
  std::string buffer_;
};

InvocationOutcome get(std::future<InvocationOutcome> future) {
  if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) throw std::runtime_error("no outcome");
  return future.get();
}

TEST(LocalApi, SpeaksAsThePlatformDoes) {
  LocalApi api;
  Client client(api);
  auto outcome = api.submit("{}", {.request_id = "id-1", .trace_id = "Root=1"});
  const std::string event = client.next().answer();
  EXPECT_THAT(event, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(event, HasSubstr("Lambda-Runtime-Aws-Request-Id: id-1\r\n"));
  EXPECT_THAT(event, HasSubstr("Lambda-Runtime-Deadline-Ms: 1"));
  EXPECT_THAT(event, HasSubstr("Lambda-Runtime-Trace-Id: Root=1\r\n"));
  EXPECT_EQ(event.find("Client-Context"), std::string::npos);
  EXPECT_THAT(client.post("invocation/id-1/response", "fine").answer(), StartsWith("HTTP/1.1 202 Accepted\r\n"));
  EXPECT_EQ(get(std::move(outcome)).body, "fine");
}

TEST(LocalApi, RefusesWhatIsNoCall) {
  LocalApi api;
  const auto refused = [&](const std::string& request) { return Client(api).send(request).rest().substr(0, 12); };
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_EQ(refused("PUT /2018-06-01/runtime/invocation/next HTTP/1.1\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_EQ(refused("POST /2018-06-01/runtime/invocation/next HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_EQ(refused("POST /2018-06-01/runtime/invocation/id/else HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
            "HTTP/1.1 404");
  EXPECT_EQ(refused("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(refused("GET / HTTP/1.1\r\nX: " + std::string(3'000'000, 'x') + "\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(refused("POST /2018-06-01/runtime/invocation/a/response HTTP/1.1\r\nContent-Length: x\r\n\r\n"),
            "HTTP/1.1 400");
  EXPECT_EQ(refused("POST /2018-06-01/runtime/invocation/a/response HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
            "HTTP/1.1 413");
  EXPECT_EQ(refused("POST /2018-06-01/runtime/init/error HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"),
            "HTTP/1.1 413");
  Client stranger(api);
  EXPECT_THAT(stranger.post("invocation/unknown/response", "x").answer(), HasSubstr("InvalidRequestID"));
  EXPECT_THAT(stranger.post("invocation//response", "x").answer(), HasSubstr("InvalidRequestID"));
  EXPECT_EQ(api.counts().refused, 11U);
  EXPECT_EQ(api.counts().connections, 10U);
  Client(api).close_sending();
}

TEST(LocalApi, TakesOneAnswerOnly) {
  LocalApi api;
  Client client(api);
  auto outcome = api.submit("{}", {.request_id = "id"});
  client.next().answer();
  client.post("invocation/id/error", "no JSON", "Lambda-Runtime-Function-Error-Type: A.B\r\n").answer();
  EXPECT_THAT(client.post("invocation/id/response", "x").answer(), StartsWith("HTTP/1.1 400"));
  const InvocationOutcome error = get(std::move(outcome));
  EXPECT_EQ(error.kind, Kind::error);
  EXPECT_EQ(error.error_type, "A.B");
  EXPECT_EQ(error.error_message, "");
  EXPECT_EQ(error.error_body, "no JSON");
}

TEST(LocalApi, RefusesAnswersOfAnotherAttempt) {
  LocalApi api;
  Client client(api);
  auto outcome = api.submit("{}", {.request_id = "id"});
  const std::string event = client.next().answer();
  const std::string name = "Lambda-Runtime-Invocation-Id: ";
  const auto at = event.find(name);
  ASSERT_NE(at, std::string::npos);
  const std::string attempt = event.substr(at, name.size() + 36) + "\r\n";
  EXPECT_THAT(client.post("invocation/id/response", "x", name + "another\r\n").answer(), StartsWith("HTTP/1.1 410"));
  EXPECT_THAT(client.post("invocation/id/error", "{}", name + "another\r\n").answer(), StartsWith("HTTP/1.1 410"));
  EXPECT_THAT(client.post("invocation/id/response", "y", attempt).answer(), StartsWith("HTTP/1.1 202"));
  EXPECT_EQ(get(std::move(outcome)).body, "y");
}

TEST(LocalApi, GivesAnEventToSomebodyElseWhenOneLeft) {
  LocalApi api;
  { Client(api).next(); }
  ASSERT_TRUE(
      api.wait_until([](const auto& counts) { return counts.next == 1 && counts.open == 0 && counts.waiting == 0; }));
  auto outcome = api.submit("{}", {.request_id = "id"});
  Client second(api);
  EXPECT_THAT(second.next().answer(), HasSubstr("Lambda-Runtime-Aws-Request-Id: id"));
}

TEST(LocalApi, TakesABodyThatIsCutOffForNoResponse) {
  LocalApi api;
  auto outcome = api.submit("{}", {.request_id = "id"});
  Client(api).next().answer();
  {
    Client half(api);
    half.send("POST /2018-06-01/runtime/invocation/id/response HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf");
    half.close_sending();
    EXPECT_EQ(half.rest(), "");
  }
  Client(api).post("invocation/id/response", "whole").answer();
  EXPECT_EQ(get(std::move(outcome)).body, "whole");

  outcome = api.submit("{}", {.request_id = "stream"});
  Client(api).next().answer();
  Client half(api);
  half.send(
      "POST /2018-06-01/runtime/invocation/stream/response HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
      "Lambda-Runtime-Function-Response-Mode: streaming\r\n\r\n4\r\nhalf\r\n");
  half.close_sending();
  const InvocationOutcome cut = get(std::move(outcome));
  EXPECT_EQ(cut.kind, Kind::error);
  EXPECT_EQ(cut.error_type, "Runtime.TruncatedResponse");
  EXPECT_EQ(cut.body, "half");
}

TEST(LocalApi, EndsInvocationsWhoseFunctionDied) {
  LocalApi api;
  Client client(api);
  auto given = api.submit("1");
  client.next().answer();
  auto waiting = api.submit("2");
  api.function_died("killed", LocalApi::Waiting::end_if_untouched);  // It was given the first.
  const InvocationOutcome first = get(std::move(given));
  EXPECT_EQ(first.kind, Kind::died);
  EXPECT_EQ(first.error_message, "killed");
  EXPECT_TRUE(first.given);
  EXPECT_EQ(api.counts().queued, 1U);
  api.function_died("again", LocalApi::Waiting::end_if_untouched);
  const InvocationOutcome second = get(std::move(waiting));
  EXPECT_EQ(second.kind, Kind::died);
  EXPECT_FALSE(second.given);
  EXPECT_EQ(client.rest(), "");
}

TEST(LocalApi, DropsWhatIsOpenAtItsEnd) {
  auto api = std::make_unique<LocalApi>();
  auto outcome = api->submit("{}");
  api.reset();
  EXPECT_EQ(get(std::move(outcome)).kind, Kind::dropped);
}

TEST(LocalApi, HoldsCallsUntilTheyAreReleased) {
  LocalApi api;
  api.plan({.call = ApiCall::next, .kind = ApiFault::Kind::paused});
  Client client(api);
  auto outcome = api.submit("{}", {.request_id = "id"});
  client.next();
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.paused == 1; }));
  EXPECT_EQ(api.counts().running, 0U);
  api.continue_paused();
  EXPECT_THAT(client.answer(), HasSubstr("id"));
  client.post("invocation/id/response", "x").answer();
  EXPECT_EQ(get(std::move(outcome)).body, "x");
}

TEST(LocalApi, ShowsThePointsOfAnInvocationAndTakesNoAnswerIfToldSo) {
  std::mutex mutex;
  std::vector<std::string> seen;
  LocalApiOptions options;
  options.on_point = [&](Point point, const std::string& id) {
    const std::lock_guard lock(mutex);
    seen.push_back(std::to_string(static_cast<int>(point)) + id);
    return id != "b";
  };
  LocalApi api(options);
  Client client(api);
  client.next();
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.waiting == 1; }));
  auto outcome = api.submit("{}", {.request_id = "a"});
  client.answer();
  client.post("invocation/a/response", "x").answer();
  outcome = api.submit("{}", {.request_id = "b"});
  client.next().answer();
  client.post("invocation/b/response", "x");
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.paused == 1; }));
  api.function_died("killed");
  EXPECT_EQ(get(std::move(outcome)).kind, Kind::died);
  EXPECT_TRUE(api.wait_until([](const auto& counts) { return counts.paused == 0; }));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(seen, ElementsAre("0", "1a", "2a", "3a", "1b", "2b"));
}

TEST(LocalApi, LimitsConnections) {
  LocalApiOptions options;
  options.max_connections = 1;
  LocalApi api(options);
  Client first(api);
  first.next();
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.waiting == 1; }));
  EXPECT_EQ(Client(api).next().rest(), "");
  EXPECT_EQ(api.counts().connections, 1U);
}

TEST(LocalApi, RefusesWhatCannotBeSubmitted) {
  LocalApi api;
  EXPECT_THROW(api.submit("{}", {.timeout = Millis{0}}), Exception);
  EXPECT_THROW(api.submit("{}", {.request_id = "a/b"}), Exception);
  EXPECT_THROW(api.submit("{}", {.trace_id = "a\r\nb"}), Exception);
  const auto first = api.submit("{}", {.request_id = "same"});
  EXPECT_THROW(api.submit("{}", {.request_id = "same"}), Exception);
  EXPECT_THROW(LocalApi({.host = "no address"}), Exception);
  EXPECT_THROW(LocalApi({.port = api.port()}), Exception);
}

}  // namespace local_api_test
}  // namespace once::lambda
