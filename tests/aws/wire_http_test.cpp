// The HTTP client against a server that behaves in every way a server can misbehave.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <once/error.hpp>
#include <once/platform/snapshot.hpp>

#include "aws/http_client.hpp"
#include "platform/wait.hpp"
#include "wire_server.hpp"

namespace {
std::atomic<int> names_looked_up = 0;
}  // namespace

// The client finds this one, as the program's symbols come before those of libc.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* name, const char* service,
                                                                  const addrinfo* hints, addrinfo** list) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "getaddrinfo"));
  ++names_looked_up;
  return real(name, service, hints, list);
}

namespace once::aws {
namespace wire_http_test {

using ::testing::AllOf;
using testing::answer;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Peer;
using testing::Server;

HttpRequest post(const Server& server, std::string body = "{}", std::string host = "127.0.0.1") {
  HttpRequest request;
  request.method = "POST";
  request.tls = false;
  request.host = std::move(host);
  request.port = server.port();
  request.target = "/";
  request.body = std::move(body);
  request.timeout = Millis{20'000};
  return request;
}

HttpAnswer exchange(HttpClient& client, HttpRequest request) {
  return wait_for<HttpAnswer>(
      [&](Callback<void(HttpAnswer)> done) { client.send(std::move(request), std::move(done)); });
}

HttpAnswer tls_exchange(HttpClient& client, HttpRequest request) {
  request.tls = true;
  return exchange(client, std::move(request));
}

void expect_error(const HttpAnswer& got, ErrorKind kind, const std::string& text) {
  ASSERT_TRUE(got.error.has_value()) << "status " << got.status;
  EXPECT_EQ(got.error->kind, kind) << got.error->message;
  EXPECT_THAT(got.error->message, HasSubstr(text));
}

// Answers every request with its body.
void echo(Peer& peer) {
  while (const auto request = peer.request()) {
    peer.send(answer(request->substr(request->find("\r\n\r\n") + 4)));
  }
}

TEST(WireHttp, SendsTheRequestAsItIs) {
  std::promise<std::string> seen;
  Server server([&](Peer& peer) {
    seen.set_value(*peer.request());
    peer.send(answer("yes", "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"));
    peer.request();
  });
  const auto client = make_http_client();
  HttpRequest request = post(server, "a body");
  request.target = "/a/b?c=d";
  request.headers = {{"X-Amz-Target", "T.Op"}, {"X-Empty", ""}};
  const HttpAnswer got = exchange(*client, request);
  ASSERT_FALSE(got.error) << got.error->message;
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.body, "yes");
  EXPECT_EQ(got.header("date"), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(seen.get_future().get(), "POST /a/b?c=d HTTP/1.1\r\nX-Amz-Target: T.Op\r\nX-Empty: \r\nHost: 127.0.0.1:" +
                                         std::to_string(server.port()) + "\r\nContent-Length: 6\r\n\r\na body");
}

TEST(WireHttp, AGetHasNoBody) {
  std::mutex mutex;
  std::vector<std::string> seen;
  Server server([&](Peer& peer) {
    while (const auto request = peer.request()) {
      const std::lock_guard lock(mutex);
      seen.push_back(*request);
      peer.send(answer("x"));
    }
  });
  const auto client = make_http_client();
  HttpRequest request = post(server, "");
  request.method = "GET";
  request.headers = {{"host", "elsewhere"}};
  const HttpAnswer got = exchange(*client, request);
  ASSERT_FALSE(got.error) << got.error->message;
  const std::lock_guard lock(mutex);
  EXPECT_EQ(seen, std::vector<std::string>{"GET / HTTP/1.1\r\nhost: elsewhere\r\n\r\n"});
}

TEST(WireHttp, KeepsConnectionsAlive) {
  Server server(echo);
  const auto client = make_http_client();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(exchange(*client, post(server, std::to_string(i))).body, std::to_string(i));
  EXPECT_EQ(server.connections(), 1U);
}

TEST(WireHttp, LeavesNoSocketsToProgramsThatAreStarted) {
  Server server(echo);
  const auto client = make_http_client();
  EXPECT_EQ(exchange(*client, post(server, "x")).body, "x");
  // Which sockets does a shell have, besides those given on purpose?
  std::FILE* const shell =
      popen("for f in /proc/$$/fd/*; do case ${f##*/} in 0|1|2) ;; *) readlink $f;; esac; done | grep -c socket:", "r");
  ASSERT_NE(shell, nullptr);
  std::array<char, 16> said{};
  EXPECT_NE(std::fgets(said.data(), said.size(), shell), nullptr);
  pclose(shell);
  EXPECT_STREQ(said.data(), "0\n");
}

TEST(WireHttp, ResolvesNames) {
  Server server(echo);
  const auto client = make_http_client();
  const HttpAnswer got = exchange(*client, post(server, "hello", "localhost"));
  ASSERT_FALSE(got.error) << got.error->message;
  EXPECT_EQ(got.body, "hello");
}

// Copies of a process must not share a connection, and the name may have other addresses where they run.
TEST(WireHttp, SnapshotAndRestoreRenewConnectionsAndAddresses) {
  std::atomic<int> closed_by_client = 0;
  Server server([&](Peer& peer) {
    echo(peer);
    ++closed_by_client;
  });
  const auto client = make_http_client();
  const int before = names_looked_up;
  std::size_t times = 1;
  for (const auto& happens : {+[] {}, &before_snapshot, &after_restore}) {
    happens();
    for (int i = 0; i < 3; ++i) ASSERT_EQ(exchange(*client, post(server, "{}", "localhost")).body, "{}");
    EXPECT_EQ(server.connections(), times);
    EXPECT_EQ(names_looked_up - before, static_cast<int>(times));
    ++times;
  }
  while (closed_by_client < 2) std::this_thread::yield();  // Those of before.
}

TEST(WireHttp, ReadsChunksAndPassesOver100Continue) {
  Server server([](Peer& peer) {
    while (peer.request()) {
      peer.send("HTTP/1.1 100 Continue\r\n\r\n");
      peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n");
      peer.send("5\r\npedia\r\n0\r\n\r\n");
    }
  });
  const auto client = make_http_client();
  EXPECT_EQ(exchange(*client, post(server)).body, "wikipedia");
  EXPECT_EQ(exchange(*client, post(server)).body, "wikipedia");
  EXPECT_EQ(server.connections(), 1U);
}

TEST(WireHttp, ReadsAnAnswerThatEndsWithTheConnection) {
  Server server([](Peer& peer) {
    peer.request();
    peer.send("HTTP/1.0 200 OK\r\n\r\nall of it");
  });
  const auto client = make_http_client();
  EXPECT_EQ(exchange(*client, post(server)).body, "all of it");
}

TEST(WireHttp, LargeBodiesGoBothWays) {
  Server server(echo);
  const auto client = make_http_client();
  std::string body(3'000'000, 'x');
  for (std::size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>('a' + i / 1000 % 26);
  EXPECT_TRUE(exchange(*client, post(server, body)).body == body);
  EXPECT_EQ(exchange(*client, post(server, "small")).body, "small");
  EXPECT_EQ(server.connections(), 1U);
}

// The server closes between two requests. The second must not be written to what is closed: it would be in doubt.
TEST(WireHttp, UsesNoConnectionThatTheServerHasClosed) {
  std::latch closed(1);
  Server server([&](Peer& peer) {
    if (peer.number > 1) return echo(peer);
    peer.request();
    peer.send(answer("first"));
    peer.close();
    closed.count_down();
  });
  const auto client = make_http_client();
  EXPECT_EQ(exchange(*client, post(server)).body, "first");
  closed.wait();
  const HttpAnswer second = exchange(*client, post(server, "second"));
  ASSERT_FALSE(second.error) << second.error->message;
  EXPECT_EQ(second.body, "second");
  EXPECT_EQ(server.connections(), 2U);
}

TEST(WireHttp, UsesNoConnectionWithBytesThatNobodyAskedFor) {
  std::latch sent(1);
  Server server([&](Peer& peer) {
    if (peer.number > 1) return echo(peer);
    peer.request();
    peer.send(answer("first"));
    peer.send(answer("unasked"));
    sent.count_down();
    peer.request();
  });
  const auto client = make_http_client();
  EXPECT_EQ(exchange(*client, post(server)).body, "first");
  sent.wait();
  EXPECT_EQ(exchange(*client, post(server, "second")).body, "second");
}

TEST(WireHttp, ConnectionCloseIsObeyed) {
  Server server([](Peer& peer) {
    while (peer.request()) peer.send(answer("x", "Connection: close\r\n"));
  });
  const auto client = make_http_client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(exchange(*client, post(server)).body, "x");
  EXPECT_EQ(server.connections(), 3U);
}

TEST(WireHttp, ClosesConnectionsThatNobodyUses) {
  std::promise<bool> closed;
  Server server([&](Peer& peer) {
    peer.request();
    peer.send(answer("x"));
    closed.set_value(peer.closed_by_client());
  });
  const auto client = make_http_client({.idle_limit = Millis{50}});
  EXPECT_EQ(exchange(*client, post(server)).body, "x");
  EXPECT_TRUE(closed.get_future().get());
}

// Never sent again after the request was sent, for every fault: the server counts.
TEST(WireHttp, WhatMayHaveArrivedIsInDoubtAndNotSentAgain) {
  struct Case {
    const char* name;
    std::function<void(Peer&)> misbehave;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"no answer", [](Peer& peer) { peer.close(); }, "without an answer"},
      {"reset", [](Peer& peer) { peer.reset(); }, "Connection reset"},
      {"half a head",
       [](Peer& peer) {
         peer.send("HTTP/1.1 200 OK\r\nContent-Le");
         peer.close();
       },
       "the answer broke off"},
      {"half a body",
       [](Peer& peer) {
         peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
         peer.close();
       },
       "the answer broke off"},
      {"half the chunks",
       [](Peer& peer) {
         peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n");
         peer.close();
       },
       "the answer broke off"},
      {"not HTTP", [](Peer& peer) { peer.send("220 smtp.example.org\r\n\r\n"); }, "is not HTTP/1.1"},
      {"oversized head", [](Peer& peer) { peer.send("HTTP/1.1 200 OK\r\nA: " + std::string(2000, 'a') + "\r\n\r\n"); },
       "a head of more than 1000 bytes"},
      {"oversized body", [](Peer& peer) { peer.send(answer(std::string(20'000, 'a'))); },
       "a body of more than 10000 bytes"},
  };
  for (const bool reused : {false, true}) {
    for (const Case& each : cases) {
      SCOPED_TRACE(std::string(each.name) + (reused ? ", on a connection that was used before" : ""));
      std::atomic<int> requests{0};
      Server server([&](Peer& peer) {
        while (peer.request()) {
          if (++requests == 1 && reused) {
            peer.send(answer("first"));
            continue;
          }
          each.misbehave(peer);
          return;
        }
      });
      const auto client = make_http_client({.max_head_bytes = 1000, .max_body_bytes = 10'000});
      if (reused) {
        ASSERT_EQ(exchange(*client, post(server)).body, "first");
      }
      const HttpAnswer got = exchange(*client, post(server));
      expect_error(got, ErrorKind::in_doubt, each.text);
      EXPECT_THAT(got.error->message, AllOf(HasSubstr("http://127.0.0.1:" + std::to_string(server.port())),
                                            HasSubstr("may have been carried out")));
      EXPECT_EQ(requests, reused ? 2 : 1);
    }
  }
}

TEST(WireHttp, NobodyListensThere) {
  const auto client = make_http_client();
  HttpRequest request;
  request.method = "POST";
  request.tls = false;
  request.host = "127.0.0.1";
  request.port = testing::closed_port();
  request.target = "/";
  expect_error(exchange(*client, request), ErrorKind::unavailable, "Connection refused");
}

TEST(WireHttp, ManyFailTogetherWhenNobodyListens) {
  const auto client = make_http_client({.max_connections = 4});
  HttpRequest request;
  request.method = "POST";
  request.tls = false;
  request.host = "127.0.0.1";
  request.port = testing::closed_port();
  request.target = "/";
  std::latch all(200);
  std::atomic<int> refused{0};
  for (int i = 0; i < 200; ++i) {
    client->send(request, [&](const HttpAnswer& got) {
      if (got.error && got.error->kind == ErrorKind::unavailable) ++refused;
      all.count_down();
    });
  }
  all.wait();
  EXPECT_EQ(refused, 200);
}

TEST(WireHttp, ANameThatDoesNotExist) {
  const auto client = make_http_client();
  HttpRequest request;
  request.method = "POST";
  request.host = "dynamodb.invalid";  // RFC 2606: never a name.
  request.target = "/";
  request.timeout = Millis{60'000};
  expect_error(exchange(*client, request), ErrorKind::unavailable, "the name cannot be resolved");
}

TEST(WireHttp, NoAnswerInTime) {
  std::atomic<int> requests{0};
  Server server([&](Peer& peer) {
    while (peer.request()) ++requests;
  });
  const auto client = make_http_client();
  HttpRequest request = post(server);
  request.timeout = Millis{100};
  expect_error(exchange(*client, request), ErrorKind::in_doubt, "no answer within 100 ms");
  EXPECT_EQ(requests, 1);
}

TEST(WireHttp, NoConnectionFreeInTime) {
  std::latch arrived(1);
  std::latch over(1);
  Server server([&](Peer& peer) {
    peer.request();
    arrived.count_down();
    over.wait();
    peer.send(answer("late"));
    peer.request();
  });
  const auto client = make_http_client({.max_connections = 1});
  std::promise<HttpAnswer> first;
  client->send(post(server), [&](HttpAnswer got) { first.set_value(std::move(got)); });
  arrived.wait();
  HttpRequest second = post(server);
  second.timeout = Millis{50};
  expect_error(exchange(*client, second), ErrorKind::unavailable, "not sent within 50 ms: all connections are busy");
  over.count_down();
  EXPECT_EQ(first.get_future().get().body, "late");
  EXPECT_EQ(server.connections(), 1U);
}

// File descriptors that are open stay so; there is no other one to be had.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(WireHttp, WithoutFilesForMoreConnectionsTheOnesThereAreServeAll) {
  std::latch asked(1);
  std::latch answer_now(1);
  std::atomic<int> requests = 0;
  Server server([&](Peer& peer) {
    while (peer.request()) {
      if (++requests == 1) {
        asked.count_down();
        answer_now.wait();
      }
      peer.send(answer("ok"));
    }
  });
  const auto client = make_http_client();
  const auto without = make_http_client();
  std::promise<HttpAnswer> first;
  std::promise<HttpAnswer> second;
  client->send(post(server), [&](HttpAnswer got) { first.set_value(std::move(got)); });
  asked.wait();
  auto waited = second.get_future();
  {
    const NoMoreFiles none;
    client->send(post(server), [&](HttpAnswer got) { second.set_value(std::move(got)); });
    HttpRequest hasty = post(server);
    hasty.timeout = Millis{60};
    expect_error(exchange(*client, hasty), ErrorKind::unavailable, "all connections are busy");
    answer_now.count_down();
    EXPECT_EQ(first.get_future().get().status, 200);
    EXPECT_EQ(waited.get().status, 200);
    EXPECT_EQ(server.connections(), 1U);
    expect_error(exchange(*without, post(server)), ErrorKind::unavailable, "Too many open files");
  }
  EXPECT_EQ(exchange(*client, post(server)).status, 200);
}

// Accepts and never says a word: TLS waits for the server's part of the handshake.
TEST(WireHttp, NoHandshakeInTime) {
  Server server([](Peer& peer) { peer.request(); });
  const auto client = make_http_client({.connect_timeout = Millis{80}, .ca_file = testing::make_identity().ca_file});
  // The file has gone with its identity.
  expect_error(tls_exchange(*client, post(server)), ErrorKind::misuse, "cannot be read");
  const auto identity = testing::make_identity();
  const auto other = make_http_client({.connect_timeout = Millis{80}, .ca_file = identity.ca_file});
  expect_error(tls_exchange(*other, post(server)), ErrorKind::unavailable, "no connection within 80 ms");
}

TEST(WireHttp, TlsWithAGoodCertificate) {
  const auto identity = testing::make_identity();
  std::atomic<int> resumed{0};
  Server server(
      [&](Peer& peer) {
        resumed += peer.resumed() ? 1 : 0;
        while (const auto request = peer.request()) {
          peer.send(answer(request->substr(request->find("\r\n\r\n") + 4),
                           request->ends_with("close") ? "Connection: close\r\n" : ""));
        }
      },
      identity);
  const auto client = make_http_client({.ca_file = identity.ca_file});
  for (const char* host : {"localhost", "127.0.0.1"}) {
    for (int i = 0; i < 10; ++i) {
      const HttpAnswer got = tls_exchange(*client, post(server, "hello", host));
      ASSERT_FALSE(got.error) << got.error->message;
      EXPECT_EQ(got.body, "hello");
    }
  }
  EXPECT_EQ(server.connections(), 2U);
  EXPECT_EQ(resumed, 0);
  // The next connection resumes the session of the last.
  EXPECT_EQ(tls_exchange(*client, post(server, "and close")).body, "and close");
  EXPECT_EQ(tls_exchange(*client, post(server, "again")).body, "again");
  EXPECT_EQ(server.connections(), 3U);
  EXPECT_EQ(resumed, 1);
  const std::string large(1'000'000, 'x');
  EXPECT_TRUE(tls_exchange(*client, post(server, large)).body == large);
}

TEST(WireHttp, TlsCertificatesThatAreNotGood) {
  const auto good = testing::make_identity();
  const auto wrong_name = testing::make_identity({.name = "example.org"});
  const auto expired = testing::make_identity({.expired = true});
  struct Case {
    const testing::Identity& identity;
    std::string ca_file;
    const char* host;
    const char* text;
  };
  const std::vector<Case> cases = {
      {wrong_name, wrong_name.ca_file, "localhost", "hostname mismatch"},
      {wrong_name, wrong_name.ca_file, "127.0.0.1", "IP address mismatch"},
      {expired, expired.ca_file, "localhost", "certificate has expired"},
      {good, wrong_name.ca_file, "localhost", "unable to get local issuer certificate"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.text);
    std::atomic<int> requests{0};
    Server server(
        [&](Peer& peer) {
          while (peer.request()) ++requests;
        },
        each.identity);
    const auto client = make_http_client({.ca_file = each.ca_file});
    const HttpAnswer got = tls_exchange(*client, post(server, "secret", each.host));
    expect_error(got, ErrorKind::misuse, each.text);
    EXPECT_THAT(got.error->message, HasSubstr("Nothing was sent"));
    EXPECT_EQ(requests, 0);
  }
}

// For as long as it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(WireHttp, TlsTrustsWhatTheEnvironmentNames) {
  for (const char* name : {"AWS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"}) unsetenv(name);
  const auto identity = testing::make_identity();
  const auto other = testing::make_identity();
  Server server(echo, identity);
  const auto is_trusted = [&] {
    const HttpAnswer got = tls_exchange(*make_http_client(), post(server));
    if (got.error) {
      EXPECT_THAT(got.error->message, AnyOf(HasSubstr("unable to get local issuer certificate"),
                                            HasSubstr("this system has no certificates to trust")));
    }
    return !got.error;
  };
  EXPECT_FALSE(is_trusted()) << "by the system's certificates";
  {
    const Variable bundle("AWS_CA_BUNDLE", identity.ca_file);
    const Variable file("SSL_CERT_FILE", other.ca_file);
    EXPECT_TRUE(is_trusted());
  }
  {
    const Variable file("SSL_CERT_FILE", identity.ca_file);
    EXPECT_TRUE(is_trusted());
  }
  {
    const Variable bundle("AWS_CA_BUNDLE", other.ca_file);
    const Variable file("SSL_CERT_FILE", identity.ca_file);
    EXPECT_FALSE(is_trusted());
  }
  const std::filesystem::path directory = identity.ca_file + ".d";
  std::filesystem::create_directory(directory);
  std::filesystem::copy(identity.ca_file, directory / testing::hashed_name(identity.ca_file));
  {
    const Variable hashed("SSL_CERT_DIR", directory.string());
    EXPECT_TRUE(is_trusted());
  }
  std::filesystem::remove_all(directory);
  const Variable nowhere("AWS_CA_BUNDLE", directory.string());
  expect_error(tls_exchange(*make_http_client(), post(server)), ErrorKind::misuse, "AWS_CA_BUNDLE");
}

TEST(WireHttp, TlsWithAServerThatSpeaksPlainHttp) {
  Server server([](Peer& peer) {
    peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    peer.request();
  });
  const auto identity = testing::make_identity();
  const auto client = make_http_client({.ca_file = identity.ca_file});
  expect_error(tls_exchange(*client, post(server)), ErrorKind::misuse, "does not speak TLS");
}

TEST(WireHttp, TlsThatIsCutIsNoEnd) {
  const auto identity = testing::make_identity();
  Server server(
      [](Peer& peer) {
        peer.request();
        peer.send("HTTP/1.0 200 OK\r\n\r\nhalf of ");
        if (peer.number == 1) return peer.cut();
        peer.send("it");
        peer.close();
      },
      identity);
  const auto client = make_http_client({.ca_file = identity.ca_file});
  expect_error(tls_exchange(*client, post(server)), ErrorKind::in_doubt, "closed the connection");
  EXPECT_EQ(tls_exchange(*client, post(server)).body, "half of it");
}

TEST(WireHttp, UsesNoTlsConnectionThatTheServerHasClosed) {
  const auto identity = testing::make_identity();
  std::latch closed(1);
  Server server(
      [&](Peer& peer) {
        if (peer.number > 1) return echo(peer);
        peer.request();
        peer.send(answer("first"));
        peer.close();
        closed.count_down();
      },
      identity);
  const auto client = make_http_client({.ca_file = identity.ca_file});
  EXPECT_EQ(tls_exchange(*client, post(server)).body, "first");
  closed.wait();
  EXPECT_EQ(tls_exchange(*client, post(server, "second")).body, "second");
}

// None is answered before all have been sent off.
TEST(WireHttp, ThousandsInFlightWithoutAThreadEach) {
  constexpr int count = 2000;
  const auto identity = testing::make_identity();
  for (const bool tls : {false, true}) {
    std::latch sent(1);
    Server server(
        [&](Peer& peer) {
          sent.wait();
          echo(peer);
        },
        tls ? std::optional(identity) : std::nullopt);
    const auto client = make_http_client({.max_connections = 16, .ca_file = identity.ca_file});
    std::latch all(count);
    std::atomic<int> right{0};
    for (int i = 0; i < count; ++i) {
      HttpRequest request = post(server, std::to_string(i));
      request.tls = tls;
      client->send(std::move(request), [&, i](const HttpAnswer& got) {
        if (!got.error && got.body == std::to_string(i)) ++right;
        all.count_down();
      });
    }
    EXPECT_FALSE(all.try_wait());
    sent.count_down();
    all.wait();
    EXPECT_EQ(right, count);
    EXPECT_LE(server.connections(), 16U);
  }
}

TEST(WireHttp, ManyThreadsSendAtOnce) {
  Server server(echo);
  const auto client = make_http_client({.max_connections = 8});
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string body = std::to_string(t * 1000 + i);
        if (exchange(*client, post(server, body)).body == body) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 400);
  EXPECT_LE(server.connections(), 8U);
}

TEST(WireHttp, ACompletionMayStartTheNext) {
  Server server(echo);
  const auto client = make_http_client();
  std::promise<std::string> last;
  struct Chain {
    HttpClient& client;
    Server& server;
    std::promise<std::string>& last;
    void go(int left) {
      client.send(post(server, std::to_string(left)), [this, left](HttpAnswer got) {
        if (left == 0) return last.set_value(got.body);
        go(left - 1);
      });
    }
  } chain{*client, server, last};
  chain.go(200);
  EXPECT_EQ(last.get_future().get(), "0");
  EXPECT_EQ(server.connections(), 1U);
}

TEST(WireHttp, TheDestructorFailsWhatIsUnderWay) {
  std::latch arrived(1);
  Server server([&](Peer& peer) {
    peer.request();
    arrived.count_down();
    peer.request();
  });
  auto client = make_http_client({.max_connections = 1});
  std::vector<HttpAnswer> got;
  for (int i = 0; i < 3; ++i) {
    client->send(post(server), [&](HttpAnswer each) { got.push_back(std::move(each)); });
  }
  arrived.wait();
  client.reset();
  ASSERT_EQ(got.size(), 3U);
  int in_doubt = 0;
  for (const HttpAnswer& each : got) {
    ASSERT_TRUE(each.error);
    EXPECT_THAT(each.error->message, HasSubstr("the client was closed"));
    in_doubt += each.error->kind == ErrorKind::in_doubt ? 1 : 0;
  }
  EXPECT_EQ(in_doubt, 1);  // The others had not been sent.
}

TEST(WireHttp, ACompletionMayDestroyTheClient) {
  std::latch sent(1);
  Server server([&](Peer& peer) {
    sent.wait();
    echo(peer);
  });
  auto client = make_http_client({.max_connections = 1});
  std::promise<void> destroyed;
  client->send(post(server), [&](const HttpAnswer& got) {
    EXPECT_FALSE(got.error);
    int failed = 0;
    for (int i = 0; i < 5; ++i) {
      client->send(post(server), [&](const HttpAnswer& each) { failed += each.error ? 1 : 0; });
    }
    client.reset();
    EXPECT_EQ(failed, 5);
    destroyed.set_value();
  });
  sent.count_down();
  destroyed.get_future().wait();
}

// ---- Who waits runs the connections

// The answer, and the thread that brought it.
struct Brought {
  HttpAnswer answer;
  std::thread::id by;
};

Brought exchange_and_tell(HttpClient& client, HttpRequest request) {
  Brought brought;
  brought.answer = wait_for<HttpAnswer>([&](Callback<void(HttpAnswer)> done) {
    client.send(std::move(request), [&brought, done = std::move(done)](HttpAnswer got) mutable {
      brought.by = std::this_thread::get_id();
      done(std::move(got));
    });
  });
  return brought;
}

TEST(WireHttp, WhoWaitsBringsTheAnswerItself) {
  const auto identity = testing::make_identity();
  Server server(echo, identity);
  const auto client = make_http_client({.ca_file = identity.ca_file});
  for (int i = 0; i < 20; ++i) {
    HttpRequest request = post(server, std::to_string(i));
    request.tls = true;
    const Brought got = exchange_and_tell(*client, std::move(request));
    EXPECT_EQ(got.answer.body, std::to_string(i));
    EXPECT_EQ(got.by, std::this_thread::get_id());  // Connecting and all.
  }
  EXPECT_EQ(server.connections(), 1U);
}

TEST(WireHttp, WhoWaitsNoticesItsDeadline) {
  Server server([](Peer& peer) {
    peer.request();
    peer.closed_by_client();
  });
  const auto client = make_http_client();
  HttpRequest request = post(server);
  request.timeout = Millis{60};
  const Brought got = exchange_and_tell(*client, std::move(request));
  expect_error(got.answer, ErrorKind::in_doubt, "no answer within 60 ms");
  EXPECT_EQ(got.by, std::this_thread::get_id());
}

// Answers when it is told to, but requests with the body "at once".
struct PatientServer {
  std::latch arrived;
  std::latch go{1};
  Server server;
  explicit PatientServer(std::ptrdiff_t requests)
      : arrived(requests), server([this](Peer& peer) {
          while (const auto request = peer.request()) {
            const std::string body = request->substr(request->find("\r\n\r\n") + 4);
            if (body != "at once") {
              arrived.count_down();
              go.wait();
            }
            peer.send(answer(body));
          }
        }) {}
};

TEST(WireHttp, WhatOthersWaitForGoesOnWhenADriverHasItsAnswer) {
  PatientServer patient(2);
  const auto client = make_http_client();
  std::promise<HttpAnswer> beside;
  client->send(post(patient.server, "beside"), [&](HttpAnswer got) { beside.set_value(std::move(got)); });
  HttpAnswer slow;
  std::jthread waits([&] { slow = exchange(*client, post(patient.server, "slow")); });
  patient.arrived.wait();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(exchange(*client, post(patient.server, "at once")).body, "at once");
  patient.go.count_down();
  EXPECT_EQ(beside.get_future().get().body, "beside");
  waits.join();
  EXPECT_EQ(slow.body, "slow");
}

TEST(WireHttp, ACompletionMayBlockOnAnotherExchange) {
  Server server(echo);
  const auto client = make_http_client();
  const auto twice = [&](const HttpAnswer& first) {
    return first.body + exchange(*client, post(server, "second")).body;
  };
  // On a thread that waits, and on the client's own.
  const auto waited = wait_for<std::string>([&](Callback<void(std::string)> done) {
    client->send(post(server, "first"),
                 [&, done = std::move(done)](const HttpAnswer& got) mutable { done(twice(got)); });
  });
  EXPECT_EQ(waited, "firstsecond");
  std::promise<std::string> told;
  client->send(post(server, "first"), [&](const HttpAnswer& got) { told.set_value(twice(got)); });
  EXPECT_EQ(told.get_future().get(), "firstsecond");
}

TEST(WireHttp, TheDestructorFailsThoseWhoWait) {
  PatientServer patient(3);
  auto client = make_http_client();
  std::atomic<int> failed{0};
  std::vector<std::jthread> waiting;
  waiting.reserve(3);
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back([&, kept = client.get()] {
      const HttpAnswer got = exchange(*kept, post(patient.server, "slow"));
      if (got.error && got.error->message.find("the client was closed") != std::string::npos) ++failed;
    });
  }
  patient.arrived.wait();
  client.reset();
  waiting.clear();
  EXPECT_EQ(failed, 3);
  patient.go.count_down();
}

TEST(WireHttp, ACompletionOnAThreadThatWaitsMayDestroyTheClient) {
  PatientServer patient(1);
  auto client = make_http_client();
  std::promise<HttpAnswer> beside;
  client->send(post(patient.server, "slow"), [&](HttpAnswer got) { beside.set_value(std::move(got)); });
  patient.arrived.wait();
  const auto got = wait_for<HttpAnswer>([&](Callback<void(HttpAnswer)> done) {
    client->send(post(patient.server, "at once"), [&, done = std::move(done)](HttpAnswer answer) mutable {
      client.reset();
      done(std::move(answer));
    });
  });
  EXPECT_EQ(got.body, "at once");
  expect_error(beside.get_future().get(), ErrorKind::in_doubt, "the client was closed");
  patient.go.count_down();
}

TEST(WireHttp, RefusesRequestsThatWouldSmuggle) {
  Server server(echo);
  const auto client = make_http_client();
  const auto refused = [&](auto&& spoil) {
    HttpRequest request = post(server);
    request.headers = {{"A", "b"}};
    spoil(request);
    expect_error(exchange(*client, std::move(request)), ErrorKind::misuse, "the request cannot be sent");
  };
  refused([](HttpRequest& request) { request.method = "PO ST"; });
  refused([](HttpRequest& request) { request.method = ""; });
  refused([](HttpRequest& request) { request.target = "no-slash"; });
  refused([](HttpRequest& request) { request.target = "/a b"; });
  refused([](HttpRequest& request) { request.host = ""; });
  refused([](HttpRequest& request) { request.host = "a/b"; });
  refused([](HttpRequest& request) { request.host = "a\nb"; });
  refused([](HttpRequest& request) { request.headers[0].first = "A:"; });
  refused([](HttpRequest& request) { request.headers[0].second = "b\r\nC: d"; });
  for (const char forbidden : {'\0', '\n', '\r', '\x1f', '\x7f'}) {
    for (std::size_t at = 0; at < 20; ++at) {
      refused([&](HttpRequest& request) {
        request.headers[0].second.assign(20, 'b');
        request.headers[0].second[at] = forbidden;
      });
    }
  }
  EXPECT_EQ(server.connections(), 0U);
}

TEST(WireHttp, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(make_http_client({.max_connections = 0}), Exception);
  EXPECT_THROW(make_http_client({.idle_limit = Millis{0}}), Exception);
  EXPECT_THROW(make_http_client({.connect_timeout = Millis{-1}}), Exception);
}

}  // namespace wire_http_test
}  // namespace once::aws
