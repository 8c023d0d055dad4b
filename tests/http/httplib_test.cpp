// The adapter for cpp-httplib. Its handlers are functions, so most of it needs no server.
#include <once/frontends/http/httplib.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/stores/memory.hpp>

#include "http_test.hpp"

namespace once::http {
namespace httplib_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

httplib::Request charge_request(const std::string& key, const std::string& body = "cents=500") {
  httplib::Request request;
  request.method = "POST";
  request.path = "/charges";
  request.target = "/charges?a=b";
  request.body = body;
  if (!key.empty()) request.set_header("Idempotency-Key", key);
  return request;
}

// Adds a field to the form, whose parts are in one map before 0.23, and in two since.
template <class Message>
void add_field(Message& message, const std::string& name, const std::string& content) {
  const auto add = [&](auto& parts) {
    typename std::remove_reference_t<decltype(parts)>::mapped_type part;
    part.name = name;
    part.content = content;
    parts.emplace(name, part);
  };
  if constexpr (detail::HasTwoMaps<Message>) {
    add(message.form.fields);
  } else {
    add(message.files);
  }
}

class HttplibTest : public ::testing::Test {
 protected:
  httplib::Response call(const httplib::Server::Handler& handler, const httplib::Request& request) {
    httplib::Response response;
    handler(request, response);
    return response;
  }
  // Counts, and leaves the status to the server.
  httplib::Server::Handler counting() {
    return [this](const httplib::Request&, httplib::Response& response) {
      response.set_content("ch_" + std::to_string(++runs), "text/plain");
    };
  }

  Engine engine{{.store = stores::make_memory_store(), .scope = "shop"}};
  Endpoint endpoint{engine, {.principal = Principal::shared()}};
  std::atomic<int> runs = 0;
};

// It may have acted: neither released, nor kept as a failure.
TEST_F(HttplibTest, AHandlerWhoseThreadIsEndedLapses) {
  Options options{.principal = Principal::shared()};
  options.on_throw = OnThrow::release;
  Endpoint own(engine, options);
  const httplib::Server::Handler handler =
      wrap(own, [](const httplib::Request&, httplib::Response&) { pthread_exit(PTHREAD_CANCELED); });
  run_and_exit([&] { call(handler, charge_request("k")); });
  const ListPage page = blocking::list(*engine.options().store, {});
  ASSERT_EQ(page.records.size(), 1U);
  EXPECT_EQ(page.records.front().state, once::State::in_progress);
}

TEST_F(HttplibTest, ServesOnceAndReplays) {
  const httplib::Server::Handler handler = wrap(endpoint, counting());
  httplib::Response response = call(handler, charge_request("k"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "ch_1");
  EXPECT_FALSE(response.has_header("Idempotent-Replayed"));
  EXPECT_EQ(response.get_header_value_count("Content-Type"), 1U);
  response = call(handler, charge_request("\"k\""));
  EXPECT_EQ(response.body, "ch_1");
  EXPECT_EQ(response.get_header_value("Content-Type"), "text/plain");
  EXPECT_EQ(response.get_header_value("Idempotent-Replayed"), "true");
  EXPECT_EQ(call(handler, charge_request("k", "cents=900")).status, 422);
  EXPECT_EQ(runs, 1);
}

TEST_F(HttplibTest, WhatTheServerPutsIntoEveryResponseStays) {
  const httplib::Server::Handler handler = wrap(endpoint, counting());
  for (const std::string_view kind : {"first", "replay", "mismatch"}) {
    httplib::Response response;
    response.set_header("Access-Control-Allow-Origin", "*");
    handler(charge_request("k", kind == "mismatch" ? "other" : "same"), response);
    EXPECT_EQ(response.get_header_value_count("Access-Control-Allow-Origin"), 1U) << kind;
    EXPECT_EQ(response.get_header_value_count("Content-Type"), 1U) << kind;
  }
}

TEST_F(HttplibTest, RepeatedHeadersAreKept) {
  const httplib::Server::Handler handler = wrap(endpoint, [](const httplib::Request&, httplib::Response& response) {
    response.status = 202;
    response.headers.emplace("X-Tag", "1");
    response.headers.emplace("X-Tag", "2");
  });
  for (int i = 0; i < 2; ++i) {
    const httplib::Response response = call(handler, charge_request("k"));
    EXPECT_EQ(response.status, 202);
    std::vector<std::string> tags;  // 0.18 keeps them in no particular order.
    for (auto [tag, end] = response.headers.equal_range("X-Tag"); tag != end; ++tag) tags.push_back(tag->second);
    EXPECT_THAT(tags, UnorderedElementsAre("1", "2"));
  }
}

TEST_F(HttplibTest, TheExecutionAndThePrincipalAreAtHand) {
  std::vector<std::string> derived;
  Endpoint by_server(engine, {.principal = Principal::given()});
  const httplib::Server::Handler handler = wrap(
      by_server,
      [&](const httplib::Request&, httplib::Response&, Execution& execution) {
        EXPECT_TRUE(execution.is_protected());
        derived.push_back(execution.derived_key("card"));
      },
      [](const httplib::Request& request) { return request.get_header_value("X-User"); });
  for (const char* user : {"alice", "bob", "alice"}) {
    httplib::Request request = charge_request("k");
    request.set_header("X-User", user);
    EXPECT_EQ(call(handler, request).status, 200);
  }
  ASSERT_EQ(derived.size(), 2U);
  EXPECT_NE(derived[0], derived[1]);
}

TEST_F(HttplibTest, FormsWithPartsAreCompared) {
  const httplib::Server::Handler handler = wrap(endpoint, counting());
  httplib::Request form = charge_request("k", "");
  add_field(form, "cents", "500");
  EXPECT_EQ(call(handler, form).body, "ch_1");
  EXPECT_EQ(call(handler, form).body, "ch_1");
  httplib::Request other = charge_request("k", "");
  add_field(other, "cents", "900");
  EXPECT_EQ(call(handler, other).status, 422);
  httplib::Request none = charge_request("k", "");
  EXPECT_EQ(call(handler, none).status, 422);
}

TEST_F(HttplibTest, AHandlerThatThrowsIsHeldAndTheServerHearsOfIt) {
  const httplib::Server::Handler handler =
      wrap(endpoint, [](const httplib::Request&, httplib::Response&) { throw std::runtime_error("card reader"); });
  EXPECT_THROW(call(handler, charge_request("k")), std::runtime_error);
  const httplib::Response again = call(handler, charge_request("k"));
  EXPECT_EQ(again.status, 409);
  EXPECT_THAT(again.body, HasSubstr("outcome-unknown"));
}

TEST_F(HttplibTest, ABodyThatIsNotJsonIsAnsweredAndReleased) {
  const httplib::Server::Handler handler =
      wrap(endpoint, [](const httplib::Request& request, httplib::Response& response) {
        response.set_header("Location", "/charges/1");
        response.set_content(nlohmann::json::parse(request.body).dump(), "application/json");
      });
  const httplib::Response malformed = call(handler, charge_request("k", "{not json"));
  EXPECT_EQ(malformed.status, 400);
  EXPECT_FALSE(malformed.has_header("Location")) << "the handler's";
  EXPECT_THAT(malformed.body, HasSubstr("request-malformed"));
  EXPECT_EQ(call(handler, charge_request("k", "{not json")).status, 400) << "it ran again";
}

TEST_F(HttplibTest, WhatIsMadeOnTheWayLeavesATombstone) {
  const httplib::Server::Handler handler = wrap(endpoint, [this](const httplib::Request&, httplib::Response& response) {
    ++runs;
    response.set_content_provider(5, "text/plain", [](std::size_t, std::size_t, httplib::DataSink&) { return true; });
  });
  httplib::Response response = call(handler, charge_request("k"));
  EXPECT_TRUE(response.content_provider_);
  response = call(handler, charge_request("k"));
  EXPECT_FALSE(response.content_provider_);
  EXPECT_EQ(response.status, 410);
  EXPECT_EQ(runs, 1);
}

TEST_F(HttplibTest, OtherMethodsAreUntouched) {
  const httplib::Server::Handler handler = wrap(endpoint, counting());
  httplib::Request get = charge_request("k");
  get.method = "GET";
  EXPECT_EQ(call(handler, get).status, -1) << "the server's to set";
  EXPECT_EQ(call(handler, get).body, "ch_2");
}

TEST_F(HttplibTest, OverTheWire) {
  httplib::Server server;
  server.Post("/charges", wrap(endpoint, counting()));
  const int port = server.bind_to_any_port("127.0.0.1");
  ASSERT_GT(port, 0);
  const std::jthread serving([&] { server.listen_after_bind(); });
  httplib::Client client("127.0.0.1", port);
  const httplib::Headers key = {{"idempotency-key", "k"}};
  const auto post = [&](const std::string& target, const std::string& body) {
    const httplib::Result result = client.Post(target, key, body, "text/plain");
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? *result : httplib::Response();
  };
  EXPECT_EQ(post("/charges?x=%20", "one").body, "ch_1");
  EXPECT_EQ(post("/charges?x=%20", "one").get_header_value("Idempotent-Replayed"), "true");
  EXPECT_EQ(post("/charges?x=%21", "one").status, 422) << "the query is compared";
  const httplib::Headers other = {{"Idempotency-Key", "form"}};
  for (const std::string boundary : {"first", "second"}) {
    const std::string form =
        "--" + boundary + "\r\nContent-Disposition: form-data; name=\"cents\"\r\n\r\n500\r\n--" + boundary + "--\r\n";
    const httplib::Result result = client.Post("/charges", other, form, "multipart/form-data; boundary=" + boundary);
    EXPECT_EQ(result ? result->body : httplib::to_string(result.error()), "ch_2") << boundary;
  }
  server.stop();
}

// One request runs, another waits for it in the engine, and a third one waits for a thread of the server.
TEST_F(HttplibTest, AServerThatStopsEndsItsRequestsFirst) {
  std::promise<void> running;
  std::promise<void> bank;
  std::atomic<int> answered = 0;
  {
    auto server = std::make_unique<httplib::Server>();
    auto waiting = std::make_unique<Endpoint>(
        engine, Options{.principal = Principal::shared(),
                        .policy = Policy{.wait = Millis{60'000}, .on_conflict = OnConflict::wait}});
    server->new_task_queue = [] { return new httplib::ThreadPool(2); };
    server->Post("/charges", wrap(*waiting, [&](const httplib::Request&, httplib::Response& response) {
                   ++runs;
                   running.set_value();
                   bank.get_future().wait();
                   response.set_content("ch_1", "text/plain");
                 }));
    const int port = server->bind_to_any_port("127.0.0.1");
    ASSERT_GT(port, 0);
    std::jthread serving([&] { server->listen_after_bind(); });
    const auto post = [&] {
      httplib::Client client("127.0.0.1", port);
      client.set_read_timeout(std::chrono::minutes(1));
      const httplib::Result result = client.Post("/charges", {{"Idempotency-Key", "k"}}, "cents=500", "text/plain");
      if (result && result->status == 200 && result->body == "ch_1") ++answered;
    };
    std::vector<std::jthread> clients;
    clients.emplace_back(post);
    running.get_future().wait();
    clients.emplace_back(post);
    clients.emplace_back(post);
    server->stop();
    bank.set_value();
    serving.join();  // It returns when its threads have ended.
    server.reset();
    waiting.reset();
  }
  EXPECT_EQ(runs, 1);
  EXPECT_GE(answered, 1) << "who was being served";
  const ListPage page = blocking::list(*engine.options().store, {});
  ASSERT_EQ(page.records.size(), 1U);
  EXPECT_EQ(page.records.front().state, once::State::completed) << "what was done is stored";
}

// As in cpp-httplib 0.23 and later.
struct FormOfTwoMaps {
  struct Field {
    std::string content;
    httplib::Headers headers;
  };
  struct File {
    std::string content;
    std::string filename;
    std::string content_type;
  };
  struct {
    std::multimap<std::string, Field> fields;
    std::multimap<std::string, File> files;
  } form;
};

TEST(HttplibForms, FieldsAndFilesCountInEachVersion) {
  FormOfTwoMaps form;
  EXPECT_FALSE(detail::has_parts(form));
  form.form.fields.insert({"cents", {"500", {}}});
  form.form.fields.insert({"note", {"{}", {{"Content-Type", "application/json"}}}});
  EXPECT_TRUE(detail::has_parts(form));
  form.form.files.insert({"image", {"bytes", "a.png", "image/png"}});
  const std::string parts = detail::parts_of(form);
  FormOfTwoMaps other = form;
  other.form.fields.begin()->second.content = "900";
  EXPECT_NE(detail::parts_of(other), parts);
  other = form;
  other.form.files.begin()->second.content = "others";
  EXPECT_NE(detail::parts_of(other), parts);
  EXPECT_EQ(parts, "5:cents0:0:3:5005:image5:a.png9:image/png5:bytes4:note0:16:application/json2:{}")
      << "as in one map: a retry may meet a server with another version";
}

}  // namespace httplib_test
}  // namespace once::http
