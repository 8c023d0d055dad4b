// Upstreams that fail, at every moment; kept connections; time.
#include <thread>

#include "proxy_test.hpp"

namespace once::proxy {
namespace upstream_test {

using ::testing::HasSubstr;

struct Failing {
  const char* name;
  std::string bytes;  // What the upstream sends before it closes.
  const char* cause;
  const char* reason;  // In the record.
};

const std::vector<Failing>& failing() {
  static const std::vector<Failing> all{
      {"closes before the answer", "", "upstream-lost", "closed the connection before the end of a response"},
      {"closes in the head", "HTTP/1.1 200 OK\r\nConte", "upstream-malformed", "was closed in its head"},
      {"closes in the body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "upstream-lost", "in the body"},
      {"closes in the chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "upstream-lost",
       "in the body"},
      {"sends two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "upstream-malformed",
       "more than one Content-Length"},
      {"sends length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "upstream-malformed", "both Content-Length and Transfer-Encoding"},
      {"sends two codings",
       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "upstream-malformed", "more than one Transfer-Encoding"},
      {"sends another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
       "upstream-malformed", "only supported Transfer-Encoding is chunked"},
      {"sends no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "upstream-malformed", "its status line is not HTTP/1"},
      {"sends no header", "HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 0\r\n\r\n", "upstream-malformed",
       "a line of its head is no header"},
      {"sends bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "upstream-malformed", "does not end in CR LF"},
      {"sends a folded line", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n", "upstream-malformed",
       "is folded"},
      {"changes the protocol", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "upstream-malformed", "a 101"},
      {"sends bad chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "upstream-malformed",
       "in the body"},
  };
  return all;
}

TEST_F(ProxyTest, WhatBreaksOffIsUnknownAndNobodyRunsItAgain) {
  std::atomic<std::size_t> at = 0;
  start([&](Line& line) {
    if (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(failing()[at].bytes);
    }
  });
  for (; at < failing().size(); ++at) {
    const Failing& how = failing()[at];
    const std::string key = "k" + std::to_string(at);
    const Message first = ask(post(key));
    EXPECT_EQ(first.status(), 502U) << how.name;
    EXPECT_THAT(first.body, HasSubstr("urn:once:problem:upstream-failed"));
    const LogLine line = logged(2 * at);
    EXPECT_EQ(line.outcome, RequestOutcome::error) << how.name;
    EXPECT_EQ(line.fate, "ambiguous") << how.name;
    EXPECT_EQ(line.cause, how.cause) << how.name;
    const Message second = ask(post(key));
    EXPECT_EQ(second.status(), 409U) << how.name;
    EXPECT_THAT(second.body, HasSubstr("outcome-unknown"));
    EXPECT_EQ(logged(2 * at + 1).outcome, RequestOutcome::unknown);
    EXPECT_EQ(runs(), at + 1) << how.name;
    EXPECT_THAT(reason_of(key), HasSubstr(how.reason)) << how.name;
  }
}

TEST_F(ProxyTest, WithoutAKeyAnAnswerThatBreaksOffBreaksOffForTheClientToo) {
  std::atomic<std::size_t> at = 0;
  start([&](Line& line) {
    if (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(failing()[at].bytes);
    }
  });
  for (; at < failing().size(); ++at) {
    const std::string& bytes = failing()[at].bytes;
    const Message answer = ask(post(""));
    const std::string name = failing()[at].name;
    if (name == "closes in the body" || name == "closes in the chunks" || name == "sends bad chunks") {
      EXPECT_EQ(answer.status(), 200U) << name;
      EXPECT_FALSE(answer.whole) << name;
    } else {
      EXPECT_EQ(answer.status(), 502U) << name << bytes;
    }
    EXPECT_EQ(logged(at).outcome, RequestOutcome::error) << name;
    EXPECT_EQ(logged(at).cause, failing()[at].cause) << name;
  }
  EXPECT_EQ(runs(), failing().size());
}

// For HTTP/1.0 an answer without a length ends with the connection, so the connection must not end as if it were whole.
TEST_F(ProxyTest, AnAnswerThatBreaksOffIsNoWholeOneForHttp10) {
  std::atomic<bool> whole = false;
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    go.wait();
    if (whole) line.write("0\r\n\r\n");
  });
  const auto begin = [&](Line& line) {
    line.write("GET /charges HTTP/1.0\r\n\r\n");
    EXPECT_THAT(line.read_until("\r\n\r\n"), HasSubstr("200 OK"));
    EXPECT_EQ(line.read_bytes(4), "half");
  };
  Line broken = client();
  begin(broken);
  go.open();
  EXPECT_TRUE(broken.ends_with_reset());
  EXPECT_EQ(logged(0).cause, "upstream-lost");
  whole = true;
  Line complete = client();
  begin(complete);
  EXPECT_FALSE(complete.ends_with_reset());
  EXPECT_EQ(logged(1).cause, "");
}

TEST_F(ProxyTest, EndingTheProxyBreaksOffAnAnswerForHttp10) {
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.0 200 OK\r\n\r\nhalf");
    go.wait();
  });
  Line line = client();
  line.write("GET /charges HTTP/1.0\r\n\r\n");
  line.read_until("\r\n\r\n");
  EXPECT_EQ(line.read_bytes(4), "half");
  proxy.reset();
  EXPECT_TRUE(line.ends_with_reset());
  go.open();
}

TEST_F(ProxyTest, AResetIsUnknown) {
  start([&](Line& line) {
    got(line.read_request().value());
    line.reset();
  });
  EXPECT_EQ(ask(post("k")).status(), 502U);
  EXPECT_EQ(ask(post("k")).status(), 409U);
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AResetWithinTheAnswerIsUnknown) {
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    line.reset();
  });
  EXPECT_EQ(ask(post("k")).status(), 502U);
  EXPECT_EQ(logged(0).cause, "upstream-lost");
  EXPECT_EQ(ask(post("k")).status(), 409U);
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, TakeoverRunsItAgainWhenTheLeaseHasRunOut) {
  rules.on_ambiguous = OnLapse::takeover;
  rules.policy->lease = Millis{50};
  start([&](Line& line) {
    const std::size_t number = got(line.read_request().value());
    if (number > 1) line.write(answer_text("200 OK", "second"));
  });
  EXPECT_EQ(ask(post("k")).status(), 502U);
  EXPECT_EQ(ask_until_decided(post("k")).body, "second");
  EXPECT_EQ(runs(), 2U);
}

TEST_F(ProxyTest, AnAnswerThatDoesNotComeInTimeIsUnknown) {
  options.timeouts.answer = Millis{50};
  start([&](Line& line) {
    got(line.read_request().value());
    go.wait();
  });
  const Message answer = ask(post("k"));
  EXPECT_EQ(answer.status(), 504U);
  EXPECT_THAT(answer.body, HasSubstr("urn:once:problem:upstream-timeout"));
  EXPECT_EQ(logged(0).cause, "upstream-timeout");
  EXPECT_EQ(ask(post("k")).status(), 409U);
  EXPECT_EQ(ask(post("")).status(), 504U);
  go.open();
  // The service may be slower to see a request than the proxy to give it up.
  const auto until = std::chrono::steady_clock::now() + patience;
  while (runs() < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(runs(), 2U);
}

TEST_F(ProxyTest, AnUpstreamThatDoesNotTakeTheRequestInTimeIsLate) {
  options.timeouts.body = Millis{5'000};  // In which all of it gets here, too, also on a machine that is busy.
  rules.max_body_bytes = std::size_t{64} << 20U;
  start([&](Line& line) {
    line.read_until("\r\n\r\n");
    go.wait();
  });
  // More than the kernel keeps for somebody who does not read.
  const Message answer = ask(post("k", std::string(std::size_t{16} << 20U, 'x')));
  EXPECT_EQ(answer.status(), 504U);
  EXPECT_THAT(answer.body, HasSubstr("urn:once:problem:upstream-timeout"));
  EXPECT_EQ(logged(0).cause, "upstream-timeout");
  EXPECT_EQ(logged(0).fate, "ambiguous");
  go.open();
}

TEST_F(ProxyTest, AHeadOfAnAnswerHasALimitHoweverItComes) {
  options.max_head_bytes = 4'096;
  std::atomic<std::size_t> size = 4'000;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(answer_text("200 OK", "x", "X: " + std::string(size, 'x') + "\r\n"));  // In one piece, mostly.
    }
  });
  EXPECT_EQ(ask(post("")).status(), 200U);
  size = 6'000;
  EXPECT_EQ(ask(post("")).status(), 502U);
  EXPECT_EQ(logged(1).cause, "upstream-head-too-large");
}

// The service has answered, so it is no failure of the service, and its status says what a retry gets.
TEST_F(ProxyTest, AHeadOverTheLimitLeavesItsStatus) {
  options.max_head_bytes = 4'096;
  options.aside.after_failures = 3;
  rules.fates[422] = http::Fate::hold;
  const std::string over = "X: " + std::string(6'000, 'x') + "\r\n";
  const std::string lines = [] {
    std::string out;
    for (int i = 0; i < 1'001; ++i) out += "X:\r\n";
    return out;
  }();
  const std::string options_of_connection = "Connection: a" + [] {
    std::string out;
    for (int i = 0; i < 101; ++i) out += ",a";
    return out;
  }() + "\r\n";
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      if (!line.write(said())) return;
    }
  });
  std::size_t asked = 0;
  std::size_t ran = 0;
  const auto expect = [&](const std::string& status, const std::string& headers, const std::string& fate) {
    SCOPED_TRACE(status);
    say(answer_text(status, "x", headers));
    const std::string key = "k" + std::to_string(asked);
    const Message first = ask(post(key));
    EXPECT_EQ(first.status(), 502U);
    EXPECT_THAT(first.body, HasSubstr("The head of its answer is over the limit"));
    EXPECT_EQ(logged(asked).cause, "upstream-head-too-large");
    EXPECT_EQ(logged(asked).fate, fate);
    EXPECT_EQ(std::to_string(logged(asked++).upstream_status), status.substr(0, 3));
    const Message again = ask(post(key));
    ++asked;
    ran += fate == "release" ? 2 : 1;
    EXPECT_EQ(runs(), ran);
    if (fate == "tombstone") {
      EXPECT_EQ(again.status(), 410U);
      EXPECT_THAT(again.body, HasSubstr("\"original_status\":" + status.substr(0, 3)));
    } else if (fate == "release") {
      EXPECT_EQ(again.status(), 502U);
    } else {
      EXPECT_THAT(again.body, HasSubstr("outcome-unknown"));
      EXPECT_THAT(reason_of(key), HasSubstr("over the limit: its status was " + status.substr(0, 3)));
    }
    return again;
  };
  EXPECT_EQ(expect("201 Created", "Location: /charges/7\r\n" + over, "tombstone").header("Location"), "/charges/7");
  expect("201 Created", lines, "tombstone");
  expect("302 Found", options_of_connection, "tombstone");
  expect("404 Not Found", over, "tombstone");
  expect("409 Conflict", over, "release");
  expect("422 No", over, "hold");
  say(answer_text("201 Created", "whole"));
  EXPECT_EQ(ask(post("k")).body, "whole") << "the service was not put aside";
  ++asked;
  ++ran;
  expect("503 Service Unavailable", over, "ambiguous");
}

// The rest of the head may have the header that decides.
TEST_F(ProxyTest, AHeadOverTheLimitMayHideOnceFate) {
  options.max_head_bytes = 4'096;
  rules.service_fate = true;
  const std::string over = "X: " + std::string(6'000, 'x') + "\r\n";
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      if (!line.write(said())) return;
    }
  });
  say(answer_text("409 Conflict", "x", over + "Once-Fate: hold\r\n"));
  EXPECT_EQ(ask(post("hidden")).status(), 502U);
  EXPECT_EQ(logged(0).fate, "hold");
  say(answer_text("500 Error", "x", "Once-Fate: release\r\n" + over));
  EXPECT_EQ(ask(post("seen")).status(), 502U);
  EXPECT_EQ(logged(1).fate, "release");
}

TEST_F(ProxyTest, ARecordSaysWhatTheServiceSaid) {
  rules.service_fate = true;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      if (!line.write(said())) return;
    }
  });
  const auto reason = [&](const std::string& key, const std::string& headers) {
    say(answer_text("201 Created", "x", headers));
    EXPECT_EQ(ask(post(key)).status(), 201U);
    return reason_of(key);
  };
  EXPECT_THAT(reason("a", "Once-Fate: hold\r\n"), HasSubstr("the service answered 201 with Once-Fate: hold"));
  EXPECT_THAT(reason("b", "Once-Fate: Complete\r\n"), HasSubstr("with an unknown Once-Fate, 'Complete'"));
  EXPECT_THAT(reason("c", "Once-Fate: release\r\nOnce-Fate: release\r\n"), HasSubstr("more than one Once-Fate"));
  EXPECT_THAT(reason("d", "Once-Fate: release\r\n"), HasSubstr("the service answered 201 with Once-Fate: release"));
}

TEST_F(ProxyTest, AHeadThatDripsDoesNotMakeTheTimeLonger) {
  options.timeouts.answer = Millis{100};
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.1 200 OK\r\nX: ");
    while (line.write("x")) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // Until it is cut off.
  });
  EXPECT_EQ(ask(post("k")).status(), 504U);
}

TEST_F(ProxyTest, ABodyThatNeverEndsIsUnknown) {
  options.timeouts.body = Millis{50};
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    go.wait();
  });
  EXPECT_EQ(ask(post("k")).status(), 504U);
  EXPECT_EQ(ask(post("k")).status(), 409U);
  go.open();
}

TEST_F(ProxyTest, AnAnswerThatNeverEndsLeavesATombstone) {
  rules.max_answer_bytes = 2'000;
  start([&](Line& line) {
    got(line.read_request().value());
    line.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "1000\r\n" + std::string(4096, 'x') + "\r\n";
    while (line.write(chunk)) continue;  // Until it is cut off.
    go.open();
  });
  {
    Line line = client();
    line.write(post("k"));
    EXPECT_EQ(line.read_bytes(1'000'000).size(), 1'000'000U);
  }
  go.wait();
  EXPECT_EQ(logged(0).fate, "tombstone");
  EXPECT_EQ(ask(post("k")).status(), 410U);
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AnUpstreamThatIsNotThereReleasesTheClaim) {
  Port port;
  start_for(port.number());
  const Message answer = ask(post("k"));
  EXPECT_EQ(answer.status(), 503U);
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_THAT(answer.body, HasSubstr("urn:once:problem:upstream-unreachable"));
  EXPECT_EQ(logged(0).fate, "release");
  EXPECT_EQ(logged(0).cause, "upstream-unreachable");
  EXPECT_EQ(ask(post("")).status(), 503U);
  upstream = std::make_unique<Upstream>(counting(), std::move(port));
  EXPECT_EQ(ask(post("k")).body, "run 1");
}

TEST_F(ProxyTest, ConnectionsToTheUpstreamAreKept) {
  options.threads = 1;
  start(counting());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).status(), 201U);
  EXPECT_EQ(upstream->connections(), 1U);
}

TEST_F(ProxyTest, AKeptConnectionThatTheUpstreamHasClosedIsNotUsed) {
  options.threads = 1;
  start([&](Line& line) {
    const std::size_t number = got(line.read_request().value());
    line.write(answer_text("200 OK", std::to_string(number)));
    line.close();  // The end is on its way behind the answer before the client can ask again.
    const std::lock_guard lock(mutex);
    closed = number;
    news.notify_all();
  });
  for (std::size_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(ask(post("k" + std::to_string(i))).body, std::to_string(i));
    std::unique_lock lock(mutex);
    ASSERT_TRUE(news.wait_for(lock, patience, [&] { return closed == i; }));
  }
  EXPECT_EQ(runs(), 5U);
}

TEST_F(ProxyTest, AnAnswerThatNobodyAskedForReachesNobody) {
  options.threads = 1;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      const std::string mine = std::to_string(got(std::move(*request)));
      line.write(answer_text("200 OK", mine) + answer_text("200 OK", "stray"));
    }
  });
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).body, std::to_string(i));
}

TEST_F(ProxyTest, OnlyWhatMayBeRepeatedIsSentAgain) {
  options.threads = 1;
  // Serves one request on each connection, and takes a second one without a word.
  start([&](Line& line) {
    const std::size_t number = got(line.read_request().value());
    line.write(answer_text("200 OK", std::to_string(number)));
    if (auto request = line.read_request()) got(std::move(*request));
  });
  const std::string get = "GET /charges HTTP/1.1\r\nHost: a\r\n\r\n";
  EXPECT_EQ(ask(get).body, "1");
  EXPECT_EQ(ask(get).body, "3");  // The second was lost on the kept connection.
  const Message lost = ask(post("k"));
  EXPECT_EQ(lost.status(), 502U);
  EXPECT_EQ(runs(), 4U);
  EXPECT_EQ(ask(post("k")).status(), 409U);
  EXPECT_EQ(runs(), 4U);
  EXPECT_EQ(ask(get).body, "5");
  EXPECT_EQ(ask(post("")).status(), 502U);
  EXPECT_EQ(runs(), 6U);
}

TEST_F(ProxyTest, WhatIsSentAgainGoesOutOnANewConnection) {
  options.threads = 1;
  // As above, and the first two requests are under way together: two connections are kept then, and both are dead.
  start([&](Line& line) {
    const std::size_t number = got(line.read_request().value());
    if (number == 2) go.open();
    go.wait();
    line.write(answer_text("200 OK", std::to_string(number)));
    if (auto request = line.read_request()) got(std::move(*request));
  });
  const std::string get = "GET /charges HTTP/1.1\r\nHost: a\r\n\r\n";
  Line one = client();
  Line other = client();
  one.write(get);
  other.write(get);
  EXPECT_EQ(one.read_message().value().status(), 200U);
  EXPECT_EQ(other.read_message().value().status(), 200U);
  logged(1);
  EXPECT_EQ(ask(get).body, "4");
  EXPECT_EQ(runs(), 4U);
}

TEST_F(ProxyTest, AnAnswerMayComeBeforeTheRequestIsThere) {
  start([&](Line& line) {
    line.read_until("\r\n\r\n");
    line.write(answer_text("413 Content Too Large", "no", "Connection: close\r\n"));
    line.read_all();
  });
  Line line = client();
  line.write("PUT /file HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nbegin");
  const auto answer = line.read_message();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), 413U);
  EXPECT_EQ(answer->body, "no");
  EXPECT_EQ(line.read_all(), "");
  EXPECT_EQ(logged(0).upstream_status, 413U);
}

TEST_F(ProxyTest, SlowClientsHoldUpNobody) {
  options.threads = 1;
  options.timeouts.body = Millis{300};
  const std::string large(std::size_t{64} << 20U, 'x');
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      const bool is_large = request->first.starts_with("GET /large");
      got(std::move(*request));
      line.write(answer_text("200 OK", is_large ? large : "small"));
    }
  });
  Line reader = client(4096);
  reader.write("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_EQ(reader.read_until("\r\n"), "HTTP/1.1 200 OK\r\n");  // … and no more.
  Line writer = client();
  writer.write("POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: w\r\nContent-Length: 9\r\n\r\ncent");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ask(post("k" + std::to_string(i))).body, "small");
  // Both are given up, and what the writer wanted was never begun.
  const auto late = writer.read_message();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->status(), 408U);
  LogLine slow{};
  for (std::size_t i = 0; i < 22; ++i) {
    if (logged(i).path == "/large") slow = logged(i);
  }
  EXPECT_EQ(slow.cause, "client-gone");
  EXPECT_EQ(runs(), 21U);
}

TEST_F(ProxyTest, DrainLetsWhatRunsComeToItsEnd) {
  start([&](Line& line) {
    got(line.read_request().value());
    arrived.open();
    go.wait();
    line.write(answer_text("200 OK", "done"));
  });
  Line running = client();
  Line waiting = client();
  running.write(post("k"));
  arrived.wait();
  EXPECT_FALSE(proxy->stop(Millis{1}));
  EXPECT_TRUE(proxy->stopping());
  EXPECT_EQ(waiting.read_all(), "");
  const auto until = std::chrono::steady_clock::now() + patience;
  for (int fd = 0; fd >= 0;) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "it still listens";
    fd = Line::connect_to(proxy->port());
    if (fd >= 0) ::close(fd);
  }
  go.open();
  const auto answer = running.read_message();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "done");
  EXPECT_EQ(answer->header("Connection"), "close");
  EXPECT_EQ(running.read_all(), "");
  running.close();
  EXPECT_TRUE(proxy->stop(std::chrono::duration_cast<Millis>(patience)));
}

TEST_F(ProxyTest, EndingWithoutADrainRecordsWhatRunsAsUnknown) {
  start([&](Line& line) {
    got(line.read_request().value());
    arrived.open();
    go.wait();
  });
  Line line = client();
  line.write(post("k"));
  arrived.wait();
  proxy.reset();
  EXPECT_EQ(logged(0).fate, "ambiguous");
  start_for(upstream->port());
  EXPECT_THAT(ask(post("k")).body, HasSubstr("outcome-unknown"));
  go.open();
}

// The others wait as the proxy's own options say.
TEST_F(ProxyTest, ARouteHasATimeForAnswersOfItsOwn) {
  start([this](Line& line) {
    while (auto request = line.read_request()) {
      const bool held = request->first.find("/slow") == std::string::npos;
      got(std::move(*request));
      if (held) go.wait();
      if (!line.write(answer_text("200 OK", "late"))) return;
    }
  });
  http::Options quick = rules;
  quick.answer_timeout = Millis{50};
  proxy->set_rules({rules, {{.path = "/charges", .options = quick}}});
  Line patient = client();
  patient.write("POST /refunds HTTP/1.1\r\nHost: a\r\nIdempotency-Key: r\r\nContent-Length: 0\r\n\r\n");
  Line streaming = client();
  streaming.write("GET /refunds HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(ask(post("k")).status(), 504U);
  EXPECT_EQ(logged(0).cause, "upstream-timeout");
  EXPECT_EQ(logged(0).fate, "ambiguous");
  EXPECT_EQ(ask(post("")).status(), 504U);
  EXPECT_EQ(ask("GET /charges HTTP/1.1\r\nHost: a\r\n\r\n").status(), 504U);
  EXPECT_EQ(lines(), 3U);
  go.open();
  EXPECT_EQ(patient.read_message()->body, "late");
  EXPECT_EQ(streaming.read_message()->body, "late");
}

TEST_F(ProxyTest, ARouteMayWaitLongerThanTheOthers) {
  options.timeouts.answer = Millis{50};
  start([this](Line& line) {
    while (auto request = line.read_request()) {
      go.wait();
      if (!line.write(answer_text("200 OK", "late"))) return;
    }
  });
  http::Options slow = rules;
  slow.answer_timeout = Millis{60'000};
  proxy->set_rules({rules, {{.path = "/reports/{id}", .options = slow}}});
  Line patient = client();
  patient.write("GET /reports/1 HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(ask(post("k")).status(), 504U);
  go.open();
  EXPECT_EQ(patient.read_message()->body, "late");
}

}  // namespace upstream_test
}  // namespace once::proxy
