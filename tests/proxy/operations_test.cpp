// Requests with keys: which runs, what the others get, and what happens when a client or the service disconnects.
#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include <once/engine/tracer.hpp>

#include "proxy_test.hpp"

namespace once::proxy {
namespace operations_test {

using ::testing::HasSubstr;

std::string without_date(Message message) {
  std::erase_if(message.headers, [](const http::Header& h) {
    return http::same_name(h.name, "Date") || http::same_name(h.name, "Set-Cookie") ||
           http::same_name(h.name, http::replayed_header);
  });
  std::string out = message.first + "\n";
  for (const http::Header& header : message.headers) out += header.name + ": " + header.value + "\n";
  return out + "\n" + message.body;
}

TEST_F(ProxyTest, RunsOnceAndReplaysByteForByte) {
  start(counting());
  const Message first = ask(post("k"));
  EXPECT_EQ(first.first, "HTTP/1.1 201 Created");
  EXPECT_EQ(first.body, "run 1");
  EXPECT_EQ(first.header("Set-Cookie"), "s=1");
  EXPECT_EQ(first.header("Idempotent-Replayed"), "");
  for (const char* const key : {"k", "\"k\""}) {
    const Message again = ask(post(key));
    EXPECT_EQ(without_date(again), without_date(first));
    EXPECT_EQ(again.header("Idempotent-Replayed"), "true");
    EXPECT_EQ(again.header("Set-Cookie"), "");
  }
  EXPECT_EQ(runs(), 1U);
  EXPECT_EQ(logged(0).outcome, RequestOutcome::executed);
  EXPECT_EQ(logged(0).fate, "store");
  EXPECT_EQ(logged(0).upstream_status, 201U);
  EXPECT_EQ(logged(1).outcome, RequestOutcome::replayed);
  EXPECT_EQ(logged(1).key_hash.size(), 16U);
  EXPECT_EQ(logged(1).key_hash, logged(0).key_hash);
  EXPECT_EQ(logged(1).path, "/charges");
}

const std::string trace_lines =
    "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nTracestate: a=1\r\nTracestate: b=2\r\n";

TEST_F(ProxyTest, WithoutATracerTheTracePassesUntouched) {
  start(counting());
  EXPECT_EQ(ask(post("k", "a", trace_lines)).body, "run 1");
  EXPECT_EQ(ask(post("k", "a", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n")).body,
            "run 1")
      << "a retry has another trace";
  EXPECT_EQ(ask(post("l", "a", "traceparent: nonsense\r\ntracestate: x\r\n")).body, "run 2");
  EXPECT_EQ(runs(), 2U);
  EXPECT_EQ(request(0).header("Traceparent"), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(std::ranges::count_if(request(0).headers, [](const auto& h) { return h.name == "Tracestate"; }), 2);
  EXPECT_EQ(request(1).header("traceparent"), "nonsense");
  EXPECT_EQ(logged(0).trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(logged(1).trace_id, "0af7651916cd43dd8448eb211c80319c") << "the retry's own";
  EXPECT_EQ(logged(2).trace_id, "");
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: shop\r\n" + trace_lines + "\r\n").status(), 201U);
  EXPECT_EQ(logged(3).trace_id, "4bf92f3577b34da6a3ce929d0e0e4736") << "also without a key";
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: shop\r\n" + trace_lines + trace_lines + "\r\n").status(), 201U);
  EXPECT_EQ(logged(4).trace_id, "") << "two count as none";
  EXPECT_EQ(request(1).header("tracestate"), "x");
}

TEST_F(ProxyTest, WithATracerTheServiceIsBelowTheProxy) {
  const auto spans = std::make_shared<std::vector<Span>>();
  tracer = std::make_shared<Tracer>(TracerOptions{.sink = [this, spans](Span&& span) {
    const std::lock_guard lock(mutex);
    spans->push_back(std::move(span));
  }});
  start(counting());
  EXPECT_EQ(ask(post("k", "a", trace_lines)).body, "run 1");
  EXPECT_EQ(ask(post("l", "a")).body, "run 2");
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: shop\r\n" + trace_lines + "\r\n").body, "run 3");
  const std::lock_guard lock(mutex);
  ASSERT_EQ(spans->size(), 4U);
  EXPECT_EQ(requests[0].header("traceparent"), spans->at(0).self.text());
  EXPECT_EQ(spans->at(0).self.trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(requests[0].header("tracestate"), "a=1,b=2");
  EXPECT_EQ(
      std::ranges::count_if(requests[0].headers, [](const auto& h) { return http::same_name(h.name, "traceparent"); }),
      1);
  EXPECT_EQ(requests[1].header("traceparent"), spans->at(2).self.text());
  EXPECT_EQ(log.at(1).trace_id, spans->at(2).self.trace_id_hex()) << "the one that its claim began";
  EXPECT_EQ(requests[2].header("Traceparent"), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
      << "without a key nothing is changed";
}

TEST_F(ProxyTest, AnswersTheTableOfTheDraft) {
  rules.policy->on_missing_key.reset();
  rules.max_body_bytes = 100;
  start(counting());
  EXPECT_EQ(ask(post("k")).status(), 201U);
  struct Case {
    std::string request;
    unsigned status;
    std::string problem;
    RequestOutcome outcome;
  };
  const std::string long_body(101, 'x');
  const std::string chunked =
      "POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: c\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<Case> cases{
      {post(""), 400, "key-missing", RequestOutcome::refused},
      {post("\"\""), 400, "key-invalid", RequestOutcome::refused},
      {post(std::string(256, 'k')), 400, "key-invalid", RequestOutcome::refused},
      {post("a", "b", "Idempotency-Key: c\r\n"), 400, "keys-differ", RequestOutcome::refused},
      {post("k", "cents=900"), 422, "key-reused", RequestOutcome::mismatch},
      {post("l", long_body), 413, "body-too-large", RequestOutcome::refused},
      {chunked + "65\r\n" + long_body + "\r\n0\r\n\r\n", 413, "body-too-large", RequestOutcome::refused},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Message answer = ask(cases[i].request);
    EXPECT_EQ(answer.status(), cases[i].status) << cases[i].request;
    EXPECT_THAT(answer.body, HasSubstr("urn:once:problem:" + cases[i].problem)) << cases[i].request;
    EXPECT_EQ(answer.header("Content-Type"), "application/problem+json");
    EXPECT_EQ(logged(i + 1).outcome, cases[i].outcome);
  }
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, PrincipalsHaveKeysOfTheirOwn) {
  rules.principal = http::Principal::header("Authorization");
  start(counting());
  EXPECT_EQ(ask(post("k", "a", "Authorization: alice\r\n")).body, "run 1");
  EXPECT_EQ(ask(post("k", "b", "Authorization: bob\r\n")).body, "run 2");
  EXPECT_EQ(ask(post("k", "a", "Authorization: alice\r\n")).body, "run 1");
}

TEST_F(ProxyTest, ADuplicateOfARunningRequestIsAConflict) {
  start([&](Line& line) {
    got(line.read_request().value());
    arrived.open();
    go.wait();
    line.write(answer_text("200 OK", "done"));
  });
  Line first = client();
  first.write(post("k"));
  arrived.wait();
  const Message second = ask(post("k"));
  EXPECT_EQ(second.status(), 409U);
  EXPECT_EQ(second.header("Retry-After"), "5");
  EXPECT_EQ(ask(post("k", "other")).status(), 422U);
  go.open();
  EXPECT_EQ(first.read_message()->body, "done");
  EXPECT_EQ(ask(post("k")).body, "done");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, TwoHundredAtOnceAreOneCall) {
  rules.policy->on_conflict = OnConflict::wait;
  rules.policy->wait = patience;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      arrived.open();
      go.wait();
      line.write(answer_text("201 Created", "the one"));
    }
  });
  std::list<Line> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(client());
    clients.back().write(post("k"));
  }
  arrived.wait();
  go.open();
  std::size_t replays = 0;
  for (Line& line : clients) {
    const auto answer = line.read_message();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status(), 201U);
    EXPECT_EQ(answer->body, "the one");
    if (!answer->header("Idempotent-Replayed").empty()) ++replays;
  }
  EXPECT_EQ(replays, 199U);
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AClientThatLeavesChangesNothing) {
  start([&](Line& line) {
    got(line.read_request().value());
    arrived.open();
    go.wait();
    line.write(answer_text("201 Created", "kept"));
  });
  {
    Line line = client();
    line.write(post("k"));
    arrived.wait();
    line.reset();
  }
  go.open();
  EXPECT_EQ(logged(0).fate, "store");
  const Message again = ask(post("k"));
  EXPECT_EQ(again.body, "kept");
  EXPECT_EQ(again.header("Idempotent-Replayed"), "true");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, WhatHasNoBodyYetIsNotClaimed) {
  start(counting());
  {
    Line line = client();
    line.write("POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\ncent");
    line.reset();
  }
  EXPECT_EQ(logged(0).outcome, RequestOutcome::error);
  EXPECT_EQ(logged(0).cause, "client-gone");
  EXPECT_EQ(ask(post("k")).body, "run 1");
}

TEST_F(ProxyTest, StatusesDecideWhatIsKept) {
  std::atomic<int> status = 0;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(answer_text(std::to_string(status) + " Said", "as it is"));
    }
  });
  const std::vector<std::pair<int, const char*>> fates{{200, "store"},     {302, "store"},     {404, "store"},
                                                       {500, "store"},     {408, "release"},   {429, "release"},
                                                       {503, "ambiguous"}, {502, "ambiguous"}, {504, "ambiguous"}};
  std::size_t line = 0;
  for (const auto& [code, fate] : fates) {
    status = code;
    const std::string key = "k" + std::to_string(code);
    const std::size_t before = runs();
    const Message first = ask(post(key));
    EXPECT_EQ(first.status(), static_cast<unsigned>(code));
    EXPECT_EQ(first.body, "as it is");
    EXPECT_EQ(logged(line++).fate, fate) << code;
    const Message second = ask(post(key));
    ++line;
    const std::string word = fate;
    EXPECT_EQ(runs() - before, word == "release" ? 2U : 1U) << code;
    EXPECT_EQ(second.status(), word == "ambiguous" ? 409U : static_cast<unsigned>(code));
    if (word == "ambiguous") {
      EXPECT_THAT(second.body, HasSubstr("outcome-unknown"));
    }
  }
}

// Connection names what a proxy must drop, and this proxy is who Once-Fate is for.
TEST_F(ProxyTest, ConnectionDoesNotHideOnceFate) {
  rules.service_fate = true;
  struct Said {
    const char* status;
    const char* lines;
    const char* fate;
  };
  const std::vector<Said> all{
      {"201 Created", "Connection: Once-Fate\r\nOnce-Fate: release\r\n", "release"},
      {"201 Created", "once-fate: hold\r\nConnection: keep-alive, once-fate\r\n", "hold"},
      {"502 Bad", "Connection: ONCE-FATE\r\nOnce-Fate: complete\r\n", "store"},
      {"201 Created", "Connection: Once-Fate\r\nOnce-Fate: release\r\nOnce-Fate: complete\r\n", "hold"},
      {"201 Created", "Connection: Once-Fate\r\n", "store"},  // It is named, and is not there.
  };
  std::atomic<std::size_t> at = 0;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(answer_text(all[at].status, "as it is", all[at].lines));
    }
  });
  std::size_t ran = 0;
  for (; at < all.size(); ++at) {
    SCOPED_TRACE(all[at].lines);
    const std::string key = "k" + std::to_string(at);
    const std::string fate = all[at].fate;
    const Message first = ask(post(key));
    EXPECT_EQ(first.first.substr(9), all[at].status);
    EXPECT_EQ(logged(2 * at).fate, fate);
    const Message again = ask(post(key));
    EXPECT_EQ(again.body.find("outcome-unknown") != std::string::npos, fate == "hold");
    EXPECT_EQ(again.header("Idempotent-Replayed"), fate == "store" ? "true" : "");
    for (const Message* const message : {&first, &again}) {
      EXPECT_EQ(message->header("Once-Fate"), "");
      EXPECT_THAT(message->header("Connection"), ::testing::Not(HasSubstr("nce-")));
    }
    ran += fate == "release" ? 2 : 1;
    EXPECT_EQ(runs(), ran);
  }
}

// Neither as headers nor as trailers, and whatever Connection names.
TEST_F(ProxyTest, ClientsNeitherSendNorRemoveHeadersOfOnce) {
  rules.service_fate = true;
  rules.send_claim = true;
  start(counting());
  const std::string said =
      "Once-Fate: release\r\nOnce-Token: 1\r\nOnce-Attempt: 9\r\nOnce-Derived-Key: d\r\nOnce-Owner: me\r\n"
      "Connection: keep-alive, Once-Fate, Once-Token, Once-Attempt, Once-Derived-Key\r\n";
  EXPECT_EQ(ask(post("length", "cents=500", said)).body, "run 1");
  EXPECT_EQ(ask("POST /charges HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: chunks\r\n" + said +
                "Trailer: Once-Fate, Once-Token\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ncents=500\r\n0\r\n"
                "Once-Fate: release\r\nOnce-Token: 1\r\n\r\n")
                .body,
            "run 2");
  for (std::size_t i = 0; i < 2; ++i) {
    std::map<std::string, std::string> of_once;
    for (const http::Header& header : request(i).headers) {
      if (!http::same_name(header.name.substr(0, 5), "Once-")) continue;
      EXPECT_TRUE(of_once.emplace(header.name, header.value).second) << header.name << " twice";
    }
    EXPECT_EQ(of_once.size(), 3U);
    EXPECT_EQ(of_once["Once-Attempt"], "1");
    EXPECT_GT(std::stoull(of_once["Once-Token"]), 1U);
    EXPECT_EQ(of_once["Once-Derived-Key"].size(), 64U);
    EXPECT_EQ(logged(i).fate, "store");
  }
}

TEST_F(ProxyTest, AnswersOverTheLimitGoThroughOnceAndLeaveATombstone) {
  rules.max_answer_bytes = 2'000;
  const std::string body(100'000, 'b');
  std::atomic<bool> chunked = false;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      if (chunked) {
        line.write("HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n" + body + "\r\n0\r\n\r\n");
      } else {
        line.write(answer_text("201 Created", body, "Location: /charges/1\r\n"));
      }
    }
  });
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string key = chunked ? "c" : "l";
    const Message first = ask(post(key));
    EXPECT_EQ(first.status(), 201U);
    EXPECT_TRUE(first.body == body);
    EXPECT_EQ(logged(2 * i).fate, "tombstone");
    const Message again = ask(post(key));
    EXPECT_EQ(again.status(), 410U);
    EXPECT_THAT(again.body, HasSubstr("answer-not-kept"));
    EXPECT_EQ(logged(2 * i + 1).outcome, RequestOutcome::replayed);
    EXPECT_EQ(runs(), i + 1);
    chunked = true;
  }
}

TEST_F(ProxyTest, TheLimitOfAnswersIsForTheirBodies) {
  rules.max_answer_bytes = 2'000;
  const std::string body(2'000, 'b');
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write(answer_text("201 Created", body, "X-Long: " + std::string(3'000, 'x') + "\r\n"));
    }
  });
  EXPECT_EQ(ask(post("k")).status(), 201U);
  EXPECT_EQ(logged(0).fate, "store");
  const Message again = ask(post("k"));
  EXPECT_EQ(again.status(), 201U);
  EXPECT_TRUE(again.body == body);
}

// Whatever the proxy's own limit says.
TEST_F(ProxyTest, AnAnswerThatNoRecordHasRoomForLeavesATombstone) {
  rules.policy->max_inline_bytes = 100;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      std::string unlike;  // Cannot be made smaller.
      for (unsigned i = 0, at = 1; i < 500; ++i, at = at * 1'103'515'245U + 12'345U)
        unlike += static_cast<char>('0' + (at >> 16U) % 64);
      line.write(answer_text("201 Created", unlike));
    }
  });
  const Message first = ask(post("k"));
  EXPECT_EQ(first.status(), 201U);
  EXPECT_EQ(first.body.size(), 500U);
  EXPECT_EQ(logged(0).fate, "tombstone");
  EXPECT_EQ(ask(post("k")).status(), 410U);
  EXPECT_EQ(runs(), 1U);
}

// 304 has the length of another answer's body (RFC 9110, section 15.4.5).
TEST_F(ProxyTest, AnAnswerWithoutABodyIsNotTooLarge) {
  rules.max_answer_bytes = 2'000;
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      got(std::move(*request));
      line.write("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 1000000\r\n\r\n");
    }
  });
  EXPECT_EQ(ask(post("k")).status(), 304U);
  EXPECT_EQ(logged(0).fate, "store");
  const Message again = ask(post("k"));
  EXPECT_EQ(again.status(), 304U);
  EXPECT_EQ(again.header("ETag"), "\"a\"");
  EXPECT_EQ(runs(), 1U);
}

TEST_F(ProxyTest, AStoreThatRefusesIsNoRecordThatCannotBeRead) {
  rules.policy->on_store_down = OnStoreDown::run_unprotected;  // It is not down.
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::forbidden};
  });
  start(counting());
  const Message refused = ask(post("k"));
  EXPECT_EQ(refused.status(), 503U);
  EXPECT_THAT(refused.body, HasSubstr("store-unavailable"));
  EXPECT_EQ(refused.header("Retry-After"), "5");
  EXPECT_EQ(runs(), 0U);
}

TEST_F(ProxyTest, AStoreThatIsDownRefusesOrRunsUnprotected) {
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  start(counting());
  const Message refused = ask(post("k"));
  EXPECT_EQ(refused.status(), 503U);
  EXPECT_EQ(refused.header("Retry-After"), "5");
  EXPECT_EQ(logged(0).outcome, RequestOutcome::error);
  EXPECT_EQ(logged(0).cause, "store");
  EXPECT_EQ(runs(), 0U);
  proxy.reset();
  log.clear();
  rules.policy->on_store_down = OnStoreDown::run_unprotected;
  start_for(upstream->port());
  EXPECT_EQ(ask(post("k")).body, "run 1");
  EXPECT_EQ(ask(post("k")).body, "run 2");
  EXPECT_EQ(logged(1).outcome, RequestOutcome::unprotected);
  EXPECT_EQ(request(1).body, "cents=500");
}

TEST_F(ProxyTest, KeysInTheBody) {
  rules.key_field = "id";
  start(counting());
  EXPECT_EQ(ask(post("", R"({"id":"a"})")).body, "run 1");
  EXPECT_EQ(ask(post("", R"({"id":"a"})")).body, "run 1");
  EXPECT_EQ(ask(post("", "{}")).body, "run 2");
  EXPECT_EQ(ask(post("", "{}")).body, "run 3");
  EXPECT_EQ(ask(post("", "no json")).status(), 400U);
  EXPECT_EQ(request(1).body, "{}");
}

}  // namespace operations_test
}  // namespace once::proxy
