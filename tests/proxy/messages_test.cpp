// Messages on their way through: framing, headers, versions, methods.
#include "proxy_test.hpp"

namespace once::proxy {
namespace messages_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string get(const std::string& lines = {}, const std::string& version = "1.1") {
  return "GET /a?b HTTP/" + version + "\r\nHost: shop\r\n" + lines + "\r\n";
}

TEST_F(ProxyTest, WhatHasNoKeyGoesThroughAsItIs) {
  start(sending(answer_text("299 Fine", "body", "X-Tag: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nDate: then\r\n")));
  const Message answer = ask("PUT /a?b HTTP/1.1\r\nHost: shop\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 3\r\n\r\nxyz");
  EXPECT_EQ(answer.first, "HTTP/1.1 299 Fine");
  EXPECT_EQ(answer.body, "body");
  EXPECT_THAT(answer.headers,
              ElementsAre(http::Header{"X-Tag", "1"}, http::Header{"Set-Cookie", "a"}, http::Header{"Set-Cookie", "b"},
                          http::Header{"Date", "then"}, http::Header{"Content-Length", "4"}));
  const Message got_there = request(0);
  EXPECT_EQ(got_there.first, "PUT /a?b HTTP/1.1");
  EXPECT_EQ(got_there.body, "xyz");
  EXPECT_THAT(got_there.headers,
              ElementsAre(http::Header{"Host", "shop"}, http::Header{"X-A", "1"}, http::Header{"X-A", "2"},
                          http::Header{"X-Forwarded-For", "127.0.0.1"}, http::Header{"X-Forwarded-Proto", "http"},
                          http::Header{"Via", "1.1 once"}, http::Header{"Content-Length", "3"}));
  EXPECT_EQ(logged(0).outcome, RequestOutcome::passed);
}

TEST_F(ProxyTest, ChunksGoThroughBothWays) {
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      const std::string body = message->body;
      got(std::move(*message));
      line.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string("3;ext=1\r\nabc\r\n") +
                 "2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n");
    }
  });
  const std::string chunked =
      "/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;a=\"b\"\r\nwiki\r\n5\r\npedia\r\n0\r\nX-T: "
      "1\r\n\r\n";
  Line line = client();
  for (const std::string method : {"PUT ", "POST ", "PUT "}) {
    line.write(method + chunked);
    const auto answer = line.read_message();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, "abcde");
    EXPECT_EQ(answer->header("Transfer-Encoding"), "chunked");
  }
  EXPECT_EQ(request(0).body, "wikipedia");
  EXPECT_EQ(request(2).body, "wikipedia");
  EXPECT_EQ(request(0).header("Transfer-Encoding"), "chunked");
  // With a key, the length is known when it goes out, and when it comes back.
  line.write("POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n" + chunked.substr(chunked.find("Transfer")));
  const auto answer = line.read_message();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header("Content-Length"), "5");
  EXPECT_EQ(request(3).header("Content-Length"), "9");
  EXPECT_EQ(request(3).body, "wikipedia");
}

TEST_F(ProxyTest, AnswersWithoutABody) {
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      got(std::move(*message));
      line.write(said());
    }
  });
  Line line = client();
  const auto ask_on = [&](const std::string& text, bool bodiless) {
    line.write(text);
    auto answer = line.read_message(bodiless);
    EXPECT_TRUE(answer);
    return answer.value_or(Message());
  };
  say("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n");
  EXPECT_EQ(ask_on("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", true).header("Content-Length"), "12345");
  say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(ask_on("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", true).status(), 200U);
  say("HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n");
  EXPECT_EQ(ask_on("HEAD /b HTTP/1.1\r\nHost: a\r\n\r\n", true).header("Content-Length"), "7");
  say("HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n");  // Against the rules, and no body all the same.
  EXPECT_EQ(ask_on(get(), false).header("Content-Length"), "");
  say("HTTP/1.1 204 No Content\r\nAllow: GET\r\n\r\n");
  EXPECT_EQ(ask_on("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", false).header("Allow"), "GET");
  EXPECT_EQ(ask_on("OPTIONS /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", false).status(), 204U);
  say("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(ask_on(get(), false).header("Transfer-Encoding"), "");
  say("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(ask_on(get(), false).status(), 204U);
  for (int i = 0; i < 2; ++i) {
    const Message answer = ask_on(post("k204"), false);
    EXPECT_EQ(answer.status(), 204U);
    EXPECT_EQ(answer.header("Content-Length"), "");
  }
  say("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: \"a\"\r\n\r\n");
  EXPECT_EQ(ask_on(get(), false).header("ETag"), "\"a\"");
  say(answer_text("200 OK", "still in step"));
  EXPECT_EQ(ask_on(get(), false).body, "still in step");
  EXPECT_EQ(runs(), 11U);
  EXPECT_EQ(request(4).first, "OPTIONS * HTTP/1.1");
  EXPECT_EQ(request(5).body, "{}");
}

TEST_F(ProxyTest, AnswersThatEndWithTheirConnection) {
  start(sending("HTTP/1.0 200 OK\r\n\r\nuntil the end"));
  const Message answer = ask(get());
  EXPECT_EQ(answer.body, "until the end");
  EXPECT_EQ(answer.header("Transfer-Encoding"), "chunked");
  const Message old = ask(get({}, "1.0"));
  EXPECT_EQ(old.body, "until the end");
  EXPECT_EQ(old.header("Transfer-Encoding"), "");
  for (int i = 0; i < 2; ++i) {
    const Message kept = ask(post("k"));
    EXPECT_EQ(kept.body, "until the end");
    EXPECT_EQ(kept.header("Content-Length"), "13");
  }
  EXPECT_EQ(runs(), 3U);
}

TEST_F(ProxyTest, InterimAnswers) {
  start(sending("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" +
                answer_text("200 OK", "x", "Connection: close\r\n")));
  Line line = client();
  line.write(get());
  const auto early = line.read_message();
  ASSERT_TRUE(early);
  EXPECT_EQ(early->status(), 103U);
  EXPECT_EQ(early->header("Link"), "</a>");
  EXPECT_EQ(line.read_message()->status(), 200U);
  EXPECT_EQ(ask(get({}, "1.0")).status(), 200U);
  EXPECT_EQ(ask(post("k")).status(), 200U);
}

TEST_F(ProxyTest, InterimAnswersMayBeMany) {
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      got(std::move(*message));
      line.write(said() + answer_text("200 OK", "x"));
    }
  });
  const auto hints = [](int count) {
    std::string out;
    while (count-- > 0) out += "HTTP/1.1 103 Early Hints\r\n\r\n";
    return out;
  };
  say(hints(1'000));
  EXPECT_EQ(ask(post("many")).status(), 200U);
  Line line = client();
  line.write(get());
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(line.read_message().value().status(), 103U);
  EXPECT_EQ(line.read_message().value().status(), 200U);
  say(hints(1'001));
  EXPECT_EQ(ask(post("more")).status(), 502U);
}

TEST_F(ProxyTest, Expect100IsAnsweredBeforeTheBodyIsRead) {
  start(counting());
  for (const std::string key : {"Idempotency-Key: k\r\n", ""}) {
    Line line = client();
    line.write("POST /a HTTP/1.1\r\nHost: a\r\n" + key + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    EXPECT_EQ(line.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    line.write("abc");
    EXPECT_EQ(line.read_message()->status(), 201U);
  }
  EXPECT_EQ(request(0).header("Expect"), "");
  EXPECT_EQ(request(1).body, "abc");
  // What is refused is refused at once.
  Line line = client();
  line.write("POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(line.read_message()->status(), 400U);
}

TEST_F(ProxyTest, ConnectionsOfClientsAreKeptAsTheyWish) {
  start(counting());
  Line line = client();
  line.write(post("a") + "\r\n" + post("b") + get());  // All at once, with an empty line between two.
  for (const char* const body : {"run 1", "run 2", "run 3"}) EXPECT_EQ(line.read_message()->body, body);
  line.write(get("Connection: close\r\n"));
  const auto last = line.read_message();
  EXPECT_EQ(last->header("Connection"), "close");
  EXPECT_EQ(line.read_all(), "");
  EXPECT_EQ(ask(get({}, "1.0")).header("Connection"), "close");
  Line old = client();
  for (int i = 0; i < 2; ++i) {
    old.write(get("Connection: keep-alive\r\n", "1.0"));
    EXPECT_EQ(old.read_message()->header("Connection"), "keep-alive");
  }
  EXPECT_EQ(request(3).header("Connection"), "");
}

TEST_F(ProxyTest, IdleClientsAreClosed) {
  options.timeouts.idle = Millis{30};
  start(counting());
  Line line = client();
  line.write(get());
  EXPECT_EQ(line.read_message()->status(), 201U);
  EXPECT_EQ(line.read_all(), "");
}

TEST_F(ProxyTest, AbsoluteTargets) {
  start(counting());
  EXPECT_EQ(ask("POST http://other/charges HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\n"
                "cents=500")
                .body,
            "run 1");
  EXPECT_EQ(request(0).first, "POST /charges HTTP/1.1");
  EXPECT_EQ(request(0).header("Host"), "other");
  // The host counts that the service has seen, not the line that was dropped.
  EXPECT_EQ(ask(post("k")).status(), 422U);
  const Message again =
      ask("POST /charges HTTP/1.1\r\nHost: other\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\ncents=500");
  EXPECT_EQ(again.body, "run 1");
  const auto absolute = [&](const std::string& host, const std::string& version, const std::string& lines) {
    return ask("POST http://" + host + "/charges HTTP/" + version + "\r\n" + lines +
               "Idempotency-Key: k\r\nContent-Length: 9\r\n\r\ncents=500");
  };
  EXPECT_EQ(absolute("third", "1.1", "Host: other\r\n").status(), 422U);
  EXPECT_EQ(absolute("third", "1.0", "").status(), 422U);
  EXPECT_EQ(absolute("other", "1.0", "").body, "run 1");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AClientIsToldByTheHostThatTheServiceSees) {
  rules.principal = http::Principal::header("Host");
  start(counting());
  const auto from = [&](const std::string& target, const std::string& host) {
    return ask("POST " + target + " HTTP/1.1\r\nHost: " + host +
               "\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\ncents=500")
        .body;
  };
  EXPECT_EQ(from("/charges", "a"), "run 1");
  EXPECT_EQ(from("http://b/charges", "a"), "run 2");
  EXPECT_EQ(from("/charges", "b"), "run 2");
}

TEST_F(ProxyTest, NothingOfATargetLeavesTheUpstreamsPath) {
  upstream = std::make_unique<Upstream>(counting());
  options.upstreams = {{.address = {"127.0.0.1", upstream->port()}, .path = "/v1"}};
  start_for(0);
  const auto got_for = [&](const std::string& target) {
    const Message answer = ask("PUT " + target + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    return answer.status() == 201U ? request(runs() - 1).first : answer.body;
  };
  for (const char* const out : {"/../folder/x", "/../v1/x", "/x#/../../admin", "/x?a#/../../admin", "/#",
                                "http://a/x#/../../admin", "http://a#/../admin"}) {
    EXPECT_THAT(got_for(out), HasSubstr("path-unclear")) << out;
  }
  EXPECT_EQ(got_for("/x?a=/../.."), "PUT /v1/x?a=/../.. HTTP/1.1");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AServiceThatSendsBackWhatItGotTellsNoClient) {
  start(sending(answer_text("201 Created", "x", "Once-Owner: 00\r\nonce-stored-key: 01\r\nX-Tag: 1\r\n")));
  for (const std::string& request : {get(), post("k"), post("k"), post("")}) {
    const Message answer = ask(request);
    EXPECT_EQ(answer.header("X-Tag"), "1") << request;
    EXPECT_EQ(answer.header("Once-Owner"), "") << request;
    EXPECT_EQ(answer.header("Once-Stored-Key"), "") << request;
  }
  EXPECT_EQ(runs(), 3U);
}

TEST_F(ProxyTest, NoMoreConnectionsThanAllowed) {
  options.max_connections = 2;
  options.metrics = std::make_shared<Metrics>();
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      const bool held = message->first.starts_with("GET");
      got(std::move(*message));
      if (held) {
        arrived.open();
        go.wait();
      }
      line.write(answer_text("200 OK", "x"));
    }
  });
  Line held = client();
  held.write(get());
  arrived.wait();
  EXPECT_THAT(options.metrics->text(0),
              HasSubstr("\nhttp_server_active_requests{http_request_method=\"GET\",url_scheme=\"http\"} 1\n"));
  Line second = client();
  second.write(post("a"));
  ASSERT_TRUE(second.read_message());
  Line third = client();  // The kernel takes it, and what it says.
  third.write(post("b"));
  second.write(post("c"));
  ASSERT_TRUE(second.read_message());
  EXPECT_EQ(proxy->connections(), 2U);
  EXPECT_EQ(runs(), 3U);
  second.close();
  EXPECT_EQ(third.read_message()->status(), 200U);
  go.open();
  EXPECT_EQ(held.read_message()->status(), 200U);
}

TEST_F(ProxyTest, OldClientsNeedNoHost) {
  start(counting());
  EXPECT_EQ(ask("GET /a HTTP/1.0\r\n\r\n").status(), 201U);
  EXPECT_EQ(request(0).header("Host"), "127.0.0.1");
  EXPECT_EQ(request(0).header("Via"), "1.0 once");
}

TEST_F(ProxyTest, LargeBodiesStreamThrough) {
  const std::string large(std::size_t{8} << 20U, 'u');
  start([&](Line& line) {
    while (auto message = line.read_request()) {
      const std::string body = message->body;
      got(std::move(*message));
      line.write(answer_text("200 OK", body));
    }
  });
  Line line = client();
  std::thread writing([&] {
    line.write("PUT /file HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(large.size()) + "\r\n\r\n");
    line.write(large);
  });
  const auto answer = line.read_message();
  writing.join();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->body == large);
}

}  // namespace messages_test
}  // namespace once::proxy
