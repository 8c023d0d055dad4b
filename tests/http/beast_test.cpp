// The adapter for Boost.Beast. No sockets: it has none.
#include <once/frontends/http/beast.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <nlohmann/json.hpp>
#include <once/stores/memory.hpp>

#include "../engine/script_store.hpp"
#include "http_test.hpp"

namespace once::http {
namespace beast_test {

namespace net = boost::asio;
namespace bhttp = boost::beast::http;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Reply = Callback<void(BeastResponse)>;

BeastRequest charge_request(const std::string& key, bhttp::verb method = bhttp::verb::post) {
  BeastRequest request(method, "/charges?a=b", 11);
  if (!key.empty()) request.set("Idempotency-Key", key);
  request.body() = "cents=500";
  return request;
}

BeastResponse created(const std::string& body, unsigned version = 11) {
  BeastResponse response(bhttp::status::created, version);
  response.set(bhttp::field::content_type, "text/plain");
  response.body() = body;
  return response;
}

std::string header(const BeastResponse& response, const std::string& name) {
  const auto value = response[name];
  return {value.data(), value.size()};
}

class BeastTest : public ::testing::Test {
 protected:
  template <class Handler>
  BeastResponse serve(const BeastRequest& request, Handler handler, std::string_view principal = {}) {
    std::optional<BeastResponse> got;
    async_serve(endpoint, request, std::move(handler),
                net::bind_executor(io, [&](BeastResponse response) { got = std::move(response); }), principal);
    EXPECT_FALSE(got) << "completed before it returned";
    io.restart();
    io.run();
    EXPECT_TRUE(got);
    return got ? std::move(*got) : BeastResponse();
  }
  // Replies at once, and counts.
  auto handler(const std::string& body = "ch_1") {
    return [this, body](const BeastRequest& request, Execution&, Reply reply) {
      ++runs;
      reply(created(body, request.version()));
    };
  }

  Engine engine{{.store = stores::make_memory_store(), .scope = "shop"}};
  Endpoint endpoint{engine, {.principal = Principal::function("client", [](const Request& request) {
                               return request.principal.empty() ? "alice" : std::string(request.principal);
                             })}};
  net::io_context io;
  int runs = 0;
};

TEST_F(BeastTest, RequestsAreTranslated) {
  BeastRequest message(bhttp::verb::post, "/a?b", 11);
  message.insert("X-Tag", "1");
  message.insert(bhttp::field::host, "h");
  message.insert("X-Tag", "2");
  message.body() = std::string("a\0b", 3);
  const Request request = to_request(message, "alice");
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, "/a?b");
  EXPECT_EQ(request.body, message.body());
  EXPECT_EQ(request.principal, "alice");
  std::vector<std::string> tags;
  for (const HeaderView& line : request.headers) {
    if (same_name(line.name, "x-tag")) tags.emplace_back(line.value);
  }
  EXPECT_THAT(tags, ElementsAre("1", "2"));
  EXPECT_EQ(request.headers.size(), 3U);
  message.method_string("BREW");
  EXPECT_EQ(to_request(message).method, "BREW");
}

TEST_F(BeastTest, AnswersAreTranslatedThereAndBack) {
  const Answer answer{.status = 299,
                      .reason = "Fine",
                      .headers = {{"X-Tag", "1"}, {"Content-Type", "text/plain"}, {"X-Tag", "2"}},
                      .body = std::string("a\0b", 3)};
  const BeastResponse response = to_response(answer, 10, false);
  EXPECT_EQ(response.version(), 10U);
  EXPECT_FALSE(response.keep_alive());
  EXPECT_EQ(header(response, "Content-Length"), "3");
  const Answer back = to_answer(response);
  EXPECT_EQ(back.status, 299U);
  EXPECT_EQ(back.reason, "Fine");
  EXPECT_EQ(back.body, answer.body);
  EXPECT_THAT(values(back, "X-Tag"), ElementsAre("1", "2"));
}

TEST_F(BeastTest, FramingIsTheServers) {
  const Headers framed = {{"Content-Length", "999"}, {"Transfer-Encoding", "chunked"}};
  BeastResponse response = to_response(text_answer(200, "abc", framed), 11, true);
  EXPECT_EQ(header(response, "Content-Length"), "3");
  EXPECT_EQ(response.count("Transfer-Encoding"), 0U);
  for (const unsigned status : {204U, 304U}) {
    response = to_response(text_answer(status, "abc"), 11, true);
    EXPECT_EQ(response.body(), "");
    EXPECT_EQ(response.result_int(), status);
  }
}

TEST_F(BeastTest, ServesOnceAndReplays) {
  const BeastRequest request = charge_request("k");
  BeastResponse response = serve(request, handler());
  EXPECT_EQ(response.result_int(), 201U);
  EXPECT_EQ(response.body(), "ch_1");
  EXPECT_EQ(response.count("Idempotent-Replayed"), 0U);
  response = serve(request, handler("ch_2"));
  EXPECT_EQ(response.body(), "ch_1");
  EXPECT_EQ(header(response, "Idempotent-Replayed"), "true");
  EXPECT_EQ(header(response, "Content-Type"), "text/plain");
  EXPECT_EQ(runs, 1);
  BeastRequest other = request;
  other.body() = "cents=900";
  EXPECT_EQ(serve(other, handler()).result_int(), 422U);
  EXPECT_EQ(serve(request, handler("for bob"), "bob").body(), "for bob");
}

TEST_F(BeastTest, WhatIsNotOursGoesOutAsItIs) {
  for (const BeastRequest& request : {charge_request("k", bhttp::verb::head), charge_request("", bhttp::verb::get)}) {
    const BeastResponse response = serve(request, [](const BeastRequest&, Execution& execution, Reply reply) {
      EXPECT_FALSE(execution.is_protected());
      BeastResponse own = created("");
      own.content_length(12345);  // The length of a body that HEAD does not send.
      own.set("Connection", "X-Hop");
      reply(std::move(own));
    });
    EXPECT_EQ(header(response, "Content-Length"), "12345");
    EXPECT_EQ(header(response, "Connection"), "X-Hop");
  }
}

TEST_F(BeastTest, AHandlerMayReplyLaterFromAnotherThreadAndCompletesOnItsExecutor) {
  const BeastRequest request = charge_request("k");
  std::jthread worker;
  const std::thread::id here = std::this_thread::get_id();
  std::optional<BeastResponse> got;
  async_serve(
      endpoint, request,
      [&](const BeastRequest&, Execution& execution, Reply reply) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        EXPECT_EQ(execution.claim()->attempt(), 1U);
        worker = std::jthread([reply = std::move(reply)]() mutable { reply(created("later")); });
      },
      net::bind_executor(io, [&](BeastResponse response) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        got = std::move(response);
      }));
  io.run();  // Does not return before the completion, though nothing is queued meanwhile.
  ASSERT_TRUE(got);
  EXPECT_EQ(got->body(), "later");
}

TEST_F(BeastTest, AHandlerThatFailsIsAnsweredAndHeld) {
  const std::vector<std::function<void(const BeastRequest&, Execution&, Reply)>> failing = {
      [](const BeastRequest&, Execution&, const Reply&) { throw std::runtime_error("card reader"); },
      [](const BeastRequest&, Execution&, Reply reply) { reply = nullptr; },
      [](const BeastRequest&, Execution&, const Reply&) {},
      [](const BeastRequest&, Execution&, const Reply&) { throw 42; }};
  for (std::size_t i = 0; i < failing.size(); ++i) {
    const BeastRequest request = charge_request("k" + std::to_string(i));
    BeastResponse response = serve(request, failing[i]);
    EXPECT_EQ(response.result_int(), 500U);
    EXPECT_THAT(response.body(), HasSubstr("handler-failed"));
    response = serve(request, handler());
    EXPECT_EQ(response.result_int(), 409U);
    EXPECT_THAT(response.body(), HasSubstr("outcome-unknown"));
  }
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(serve(charge_request(""), failing[0]).result_int(), 400U) << "without a key it is not called";
}

TEST_F(BeastTest, TheFirstReplyCounts) {
  const BeastRequest request = charge_request("k");
  const BeastResponse response = serve(request, [](const BeastRequest&, Execution&, Reply reply) {
    reply(created("one"));
    reply(created("two"));
    throw std::runtime_error("after the reply");
  });
  EXPECT_EQ(response.body(), "one");
  EXPECT_EQ(serve(request, handler()).body(), "one");
}

TEST_F(BeastTest, AHandlerMayBeAFunctionOrACoroutine) {
  const BeastRequest plain = charge_request("plain");
  EXPECT_EQ(serve(plain, [](const BeastRequest&, Execution&) { return created("one"); }).body(), "one");
  EXPECT_EQ(serve(plain, handler()).body(), "one");
  const BeastRequest awaited = charge_request("awaited");
  const std::string kept = "a text that is too long to be kept in the string itself";
  const auto coroutine = [kept](const BeastRequest&, Execution& execution) -> net::awaitable<BeastResponse> {
    co_await net::post(co_await net::this_coro::executor, net::use_awaitable);
    EXPECT_TRUE(execution.is_protected());
    co_return created(kept);
  };
  EXPECT_EQ(serve(awaited, coroutine).body(), kept);
  EXPECT_EQ(serve(awaited, handler()).body(), kept);
  const BeastRequest failing = charge_request("failing");
  const auto fails = [](const BeastRequest&, Execution&) -> net::awaitable<BeastResponse> {
    co_await net::post(co_await net::this_coro::executor, net::use_awaitable);
    throw std::runtime_error("bank timeout");
  };
  EXPECT_THAT(serve(failing, fails).body(), HasSubstr("handler-failed"));
  EXPECT_EQ(serve(failing, handler()).result_int(), 409U);
  EXPECT_EQ(runs, 0);
}

TEST_F(BeastTest, ABodyThatIsNotJsonIsAnsweredAndReleased) {
  BeastRequest request = charge_request("k");
  request.body() = "{not json";
  const auto parses = [](const BeastRequest& message, Execution&) -> net::awaitable<BeastResponse> {
    co_return created(nlohmann::json::parse(message.body()).dump());
  };
  EXPECT_EQ(serve(request, parses).result_int(), 400U);
  const auto parses_at_once = [](const BeastRequest& message, Execution&) {
    return created(nlohmann::json::parse(message.body()).dump());
  };
  EXPECT_THAT(serve(request, parses_at_once).body(), HasSubstr("request-malformed"));
  EXPECT_EQ(serve(request, parses).result_int(), 400U) << "it ran again";
}

TEST_F(BeastTest, AHandlerMayReportAnExceptionAndThenReply) {
  const BeastRequest request = charge_request("k");
  const auto reports = [](const BeastRequest&, Execution& execution, Reply reply) {
    execution.finish_thrown(
        std::make_exception_ptr(std::runtime_error("bank timeout")),
        [reply = std::move(reply)](Answer answer) mutable { reply(to_response(std::move(answer), 11, true)); });
  };
  EXPECT_THAT(serve(request, reports).body(), HasSubstr("handler-failed"));
  EXPECT_EQ(serve(request, handler()).result_int(), 409U);
  const auto forgets = [](const BeastRequest&, Execution& execution, const Reply&) {
    execution.finish(text_answer(201, "done"), [](const Answer&) {});
  };
  const BeastRequest other = charge_request("other");
  EXPECT_EQ(serve(other, forgets).result_int(), 500U) << "its client is not left waiting";
  EXPECT_EQ(serve(other, handler()).body(), "done");
}

// A server that stops destroys its io_context with requests in it. The engine lives on.
TEST_F(BeastTest, AContextThatIsDestroyedDropsItsRequests) {
  std::vector<Reply> late;
  bool completed = false;
  const auto begin = [&](net::io_context& on, const BeastRequest& request, auto its_handler) {
    async_serve(endpoint, request, its_handler,
                net::bind_executor(on, [&](const BeastResponse&) { completed = true; }));
  };
  const BeastRequest cut_off = charge_request("cut off");
  const BeastRequest replies = charge_request("replies");
  const BeastRequest awaits = charge_request("awaits");
  const BeastRequest unbegun = charge_request("unbegun");
  {
    net::io_context stopped;
    begin(stopped, cut_off, [&](const BeastRequest&, Execution&, Reply reply) {
      auto bank = std::make_shared<net::steady_timer>(stopped, std::chrono::hours(1));
      bank->async_wait([bank, reply = std::move(reply)](auto) mutable { reply(created("never")); });
    });
    begin(stopped, replies, [&](const BeastRequest&, Execution&, Reply reply) { late.push_back(std::move(reply)); });
    begin(stopped, awaits, [](const BeastRequest&, Execution&) -> net::awaitable<BeastResponse> {
      net::steady_timer bank(co_await net::this_coro::executor, std::chrono::hours(1));
      co_await bank.async_wait(net::use_awaitable);
      co_return created("never");
    });
    stopped.poll();
    ASSERT_EQ(late.size(), 1U);
    begin(stopped, unbegun, handler("never"));
  }
  EXPECT_FALSE(completed);
  late.front()(created("late"));
  EXPECT_EQ(serve(replies, handler("again")).body(), "late") << "what was done is stored";
  EXPECT_EQ(serve(unbegun, handler("again")).body(), "again") << "released";
  EXPECT_EQ(serve(cut_off, handler("again")).result_int(), 409U) << "it may have acted";
  EXPECT_EQ(serve(awaits, handler("again")).result_int(), 409U);
  EXPECT_FALSE(completed);
}

TEST_F(BeastTest, ACoroutineAwaitsItsSteps) {
  Endpoint releasing(engine, {.principal = Principal::shared(), .route = "steps", .on_throw = OnThrow::release});
  const BeastRequest request = charge_request("k");
  int steps = 0;
  bool fails = true;
  const auto handler = [&](const BeastRequest&, Execution& execution) -> net::awaitable<BeastResponse> {
    const std::string id = co_await async_step(execution, "charge", [&]() -> net::awaitable<std::string> {
      co_await net::post(co_await net::this_coro::executor, net::use_awaitable);
      co_return "ch_" + std::to_string(++steps);
    });
    if (fails) throw std::runtime_error("printer on fire");
    co_return created(id);
  };
  const auto post = [&] {
    std::optional<BeastResponse> got;
    async_serve(releasing, request, handler,
                net::bind_executor(io, [&](BeastResponse response) { got = std::move(response); }));
    io.restart();
    io.run();
    EXPECT_TRUE(got);
    return got ? std::move(*got) : BeastResponse();
  };
  EXPECT_EQ(post().result_int(), 500U);
  fails = false;
  EXPECT_EQ(post().body(), "ch_1");
  EXPECT_EQ(steps, 1);
}

// The write of a step is under way when the server stops.
TEST_F(BeastTest, AContextThatIsDestroyedDropsAHandlerThatAwaitsAStep) {
  const auto slow = std::make_shared<testing::ScriptStore>(stores::make_memory_store());
  Engine own({.store = slow, .scope = "shop"});
  Endpoint over_it(own, {.principal = Principal::shared()});
  const BeastRequest request = charge_request("k");
  bool went_on = false;
  slow->script({testing::ScriptStore::Next::carry_out, testing::ScriptStore::Next::stall});
  {
    net::io_context stopped;
    async_serve(
        over_it, request,
        [&](const BeastRequest&, Execution& execution) -> net::awaitable<BeastResponse> {
          co_await async_step(execution, "charge", [] {});
          went_on = true;
          co_return created("never");
        },
        net::bind_executor(stopped, [&](const BeastResponse&) { went_on = true; }));
    stopped.poll();
    ASSERT_EQ(slow->stalled(), 1U);
  }
  slow->answer_stalled();
  EXPECT_FALSE(went_on);
  std::optional<BeastResponse> again;
  async_serve(over_it, request, handler(), net::bind_executor(io, [&](BeastResponse got) { again = std::move(got); }));
  io.run();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->result_int(), 409U) << "its claim lapses";
  EXPECT_EQ(runs, 0);
}

TEST_F(BeastTest, FuturesWorkToo) {
  const BeastRequest request = charge_request("k");
  auto future = async_serve(endpoint, request, handler(), net::bind_executor(io, net::use_future));
  io.run();
  EXPECT_EQ(future.get().body(), "ch_1");
}

}  // namespace beast_test
}  // namespace once::http
