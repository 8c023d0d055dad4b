// Spans as a collector gets them: a scripted server that reads every request strictly.
#include <once/tracing.hpp>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/stores/memory.hpp>

#include "engine/invocation_end.hpp"
#include "proxy/wire.hpp"

namespace once {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Millis patience{60'000};
constexpr const char* caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

// The members of `object` are these, and `may` besides.
void expect_members(const json& object, const std::set<std::string>& must, const std::set<std::string>& may = {}) {
  ASSERT_TRUE(object.is_object()) << object;
  for (const std::string& name : must) EXPECT_TRUE(object.contains(name)) << name << " in " << object;
  for (const auto& [name, value] : object.items()) EXPECT_TRUE(must.contains(name) || may.contains(name)) << name;
}

void expect_id(const json& id, std::size_t digits) {
  ASSERT_TRUE(id.is_string()) << id;
  EXPECT_TRUE(std::regex_match(id.get<std::string>(), std::regex("[0-9a-f]{" + std::to_string(digits) + "}"))) << id;
  EXPECT_NE(id.get<std::string>().find_first_not_of('0'), std::string::npos) << id;
}

std::uint64_t nanos(const json& time) {
  EXPECT_TRUE(time.is_string() && std::regex_match(time.get<std::string>(), std::regex("[1-9][0-9]{18}"))) << time;
  return std::stoull(time.get<std::string>());
}

std::map<std::string, std::string> attributes(const json& list) {
  std::map<std::string, std::string> out;
  EXPECT_TRUE(list.is_array());
  for (const json& one : list) {
    expect_members(one, {"key", "value"});
    EXPECT_EQ(one.at("value").size(), 1U) << one;
    const auto value = one.at("value").begin();
    std::string text;
    if (value.key() == "boolValue") {
      EXPECT_TRUE(value->is_boolean());
      text = value->dump();
    } else {
      EXPECT_TRUE(value.key() == "stringValue" || value.key() == "intValue") << one;
      text = value->get<std::string>();  // 64-bit numbers are strings.
    }
    EXPECT_TRUE(out.emplace(one.at("key").get<std::string>(), text).second) << "twice: " << one;
  }
  return out;
}

void expect_span(const json& span) {
  expect_members(span, {"traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes"},
                 {"parentSpanId", "traceState", "links", "status"});
  expect_id(span.at("traceId"), 32);
  expect_id(span.at("spanId"), 16);
  if (span.contains("parentSpanId")) expect_id(span.at("parentSpanId"), 16);
  EXPECT_LE(nanos(span.at("startTimeUnixNano")), nanos(span.at("endTimeUnixNano")));
  EXPECT_TRUE(span.at("kind").is_number_integer() && span.at("kind") >= 1 && span.at("kind") <= 5);
  attributes(span.at("attributes"));
  for (const json& link : span.value("links", json::array())) {
    expect_members(link, {"traceId", "spanId", "attributes"});
    expect_id(link.at("traceId"), 32);
    expect_id(link.at("spanId"), 16);
  }
  if (span.contains("status")) {
    expect_members(span.at("status"), {"code", "message"});
    EXPECT_EQ(span.at("status").at("code"), 2);
  }
}

class TracingTest : public ::testing::Test {
 protected:
  // Answers each request with the next of these, then with 200.
  void start(std::vector<std::string> answers = {}) {
    answers_ = std::move(answers);
    server_ = std::make_unique<proxy::Upstream>([this](proxy::Line& line) {
      while (const auto request = line.read_request()) {
        std::string answer = proxy::answer_text("200 OK", "{}");
        {
          const std::lock_guard lock(mutex_);
          if (requests_.size() < answers_.size()) answer = answers_[requests_.size()];
          requests_.push_back(*request);
          came_.notify_all();
        }
        if (answer.empty() || !line.write(answer)) return;
      }
    });
    environment_["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:" + std::to_string(server_->port());
  }
  Tracing tracing() {
    TracingOptions options;
    options.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment_.find(name);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    };
    options.warn = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      warnings_.emplace_back(text);
    };
    options.first_retry = 1ms;
    return Tracing(std::move(options));
  }
  static Engine engine(const Tracing& tracing, std::shared_ptr<Store> store = stores::make_memory_store()) {
    return Engine({.store = std::move(store), .scope = "pay", .tracer = tracing.tracer()});
  }
  // All spans so far, checked.
  std::vector<json> spans() {
    std::vector<json> out;
    const std::lock_guard lock(mutex_);
    for (const proxy::Message& request : requests_) {
      EXPECT_EQ(request.header("Content-Type"), "application/json");
      const json body = json::parse(request.body);
      expect_members(body, {"resourceSpans"});
      EXPECT_EQ(body.at("resourceSpans").size(), 1U);
      const json& of = body.at("resourceSpans").at(0);
      expect_members(of, {"resource", "scopeSpans"});
      expect_members(of.at("resource"), {"attributes"});
      resource_ = attributes(of.at("resource").at("attributes"));
      const json& scope = of.at("scopeSpans").at(0);
      expect_members(scope, {"scope", "spans"});
      expect_members(scope.at("scope"), {"name", "version"});
      for (const json& span : scope.at("spans")) {
        expect_span(span);
        out.push_back(span);
      }
    }
    return out;
  }
  std::string refused(const std::string& name, const std::string& value) {
    environment_[name] = value;
    try {
      tracing();
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr("OTEL_"));
      environment_.erase(name);
      return error.what();
    }
    ADD_FAILURE() << name << "=" << value << " was taken";
    return {};
  }
  std::size_t wait_for_requests(std::size_t count) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, patience, [&] { return requests_.size() >= count; });
    return requests_.size();
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  std::map<std::string, std::string> environment_;
  std::map<std::string, std::string> resource_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> answers_;
  std::vector<proxy::Message> requests_;
  std::vector<std::string> warnings_;
  std::unique_ptr<proxy::Upstream> server_;
};

TEST_F(TracingTest, SendsTheSpansOfACallAndOfItsReplay) {
  start();
  environment_["OTEL_RESOURCE_ATTRIBUTES"] = "deployment.environment=test, team=a%20b";
  environment_["OTEL_SERVICE_NAME"] = "payments";
  environment_["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=Bearer%20t";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  Request request = pay.request("order-17", {});
  request.trace = trace_from(caller, "vendor=\"1\"");
  pay.run(request, [] { return std::string("done"); });
  pay.run("order-17", {}, [] { return std::string("never"); });
  ASSERT_TRUE(traces.flush(patience));
  const std::vector<json> all = spans();
  ASSERT_EQ(all.size(), 3U);
  const json& work = all[0];
  const json& call = all[1];
  const json& replay = all[2];
  EXPECT_EQ(call.at("name"), "once.call");
  EXPECT_EQ(call.at("traceId"), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(call.at("parentSpanId"), "b7ad6b7169203331");
  EXPECT_EQ(call.at("traceState"), "vendor=\"1\"");
  EXPECT_EQ(attributes(call.at("attributes")).at("once.outcome"), "completed");
  EXPECT_EQ(attributes(call.at("attributes")).at("once.attempt"), "1");
  EXPECT_EQ(work.at("name"), "once.work");
  EXPECT_EQ(work.at("parentSpanId"), call.at("spanId"));
  EXPECT_GE(nanos(work.at("startTimeUnixNano")), nanos(call.at("startTimeUnixNano")));
  EXPECT_LE(nanos(work.at("endTimeUnixNano")), nanos(call.at("endTimeUnixNano")));
  EXPECT_FALSE(replay.contains("parentSpanId"));
  EXPECT_EQ(attributes(replay.at("attributes")).at("once.outcome"), "replayed");
  ASSERT_EQ(replay.at("links").size(), 1U);
  EXPECT_EQ(replay.at("links").at(0).at("traceId"), work.at("traceId"));
  EXPECT_EQ(replay.at("links").at(0).at("spanId"), work.at("spanId"));
  EXPECT_EQ(resource_.at("service.name"), "payments");
  EXPECT_EQ(resource_.at("team"), "a b");
  EXPECT_EQ(resource_.at("telemetry.sdk.language"), "cpp");
  EXPECT_THAT(requests_.at(0).first, HasSubstr("POST /v1/traces HTTP/1.1"));
  EXPECT_EQ(requests_.at(0).header("authorization"), "Bearer t");
  EXPECT_EQ(traces.counts().exported, 3U);
  EXPECT_EQ(traces.counts().dropped, 0U);
  EXPECT_THAT(traces.metrics(), HasSubstr("\nonce_spans_exported_total 3\n"));
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(TracingTest, ABatchIsSentWhenItIsFull) {
  start();
  environment_["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] = "4";
  environment_["OTEL_BSP_SCHEDULE_DELAY"] = "3600000";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  pay.run("a", {}, [] { return std::string("done"); });
  pay.run("b", {}, [] { return std::string("done"); });
  EXPECT_EQ(wait_for_requests(1), 1U);
  EXPECT_EQ(spans().size(), 4U);
}

TEST_F(TracingTest, WhatMayPassIsSentAgain) {
  start({proxy::answer_text("503 Service Unavailable", "", "Retry-After: 0\r\n"),
         proxy::answer_text("429 Too Many Requests", ""), ""});
  environment_["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] = "2";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  pay.run("a", {}, [] { return std::string("done"); });
  EXPECT_EQ(wait_for_requests(4), 4U);
  EXPECT_TRUE(traces.flush(patience));
  EXPECT_EQ(traces.counts().exported, 2U);
  EXPECT_EQ(traces.counts().dropped, 0U);
  EXPECT_EQ(requests_.at(3).body, requests_.at(0).body);
}

TEST_F(TracingTest, WhatTheCollectorRefusesIsDroppedAndTold) {
  start({proxy::answer_text("400 Bad Request", "no"),
         proxy::answer_text("200 OK", R"({"partialSuccess":{"rejectedSpans":"1","errorMessage":"x"}})")});
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  pay.run("a", {}, [] { return std::string("done"); });
  ASSERT_TRUE(traces.flush(patience));
  EXPECT_EQ(traces.counts().dropped, 2U);
  EXPECT_EQ(wait_for_requests(1), 1U) << "it is not sent again";
  pay.run("b", {}, [] { return std::string("done"); });
  ASSERT_TRUE(traces.flush(patience));
  EXPECT_EQ(traces.counts().exported, 1U);
  EXPECT_EQ(traces.counts().dropped, 3U);
  ASSERT_EQ(warnings().size(), 1U) << "once a minute";
  EXPECT_THAT(warnings()[0], HasSubstr("traces: 2 spans for http://127.0.0.1:"));
  EXPECT_THAT(warnings()[0], HasSubstr("were dropped: the collector answered 400"));
}

TEST_F(TracingTest, ACollectorThatIsDownOrSilentChangesNoCall) {
  start();
  server_.reset();  // Its port is closed now.
  environment_["OTEL_BSP_MAX_QUEUE_SIZE"] = "4";
  {
    const Tracing traces = tracing();
    Engine pay = engine(traces);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(pay.run("k" + std::to_string(i), {}, [] { return std::string("done"); }).value(), "done");
    }
    ASSERT_TRUE(traces.flush(patience));
    EXPECT_EQ(traces.counts().exported, 0U);
    EXPECT_EQ(traces.counts().dropped, 200U) << "the queue has room for four";
  }
  std::atomic<int> asked{0};
  proxy::Gate over;
  proxy::Upstream silent([&](proxy::Line& line) {
    if (line.read_request()) ++asked;
    over.wait();
  });
  environment_["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:" + std::to_string(silent.port());
  environment_["OTEL_EXPORTER_OTLP_TIMEOUT"] = "100";
  {
    const Tracing traces = tracing();
    Engine pay = engine(traces);
    EXPECT_EQ(pay.run("k", {}, [] { return std::string("done"); }).value(), "done");
    ASSERT_TRUE(traces.flush(patience));
    EXPECT_EQ(traces.counts().dropped, 2U);
    EXPECT_EQ(asked, 1);
  }
  over.open();
}

// The platform freezes the process after the invocation, and the spans in it.
TEST_F(TracingTest, SpansAreSentWhenAnInvocationEnds) {
  start();
  environment_["OTEL_BSP_SCHEDULE_DELAY"] = "3600000";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  pay.run("order-17", {}, [] { return std::string("done"); });
  EXPECT_EQ(traces.counts().exported, 0U);
  // As often as a loaded machine needs: each waits for a moment only.
  while (traces.counts().exported < 2) tell_invocation_end(never);
  EXPECT_EQ(spans().size(), 2U);
  tell_invocation_end(never);  // Nothing waits.
  EXPECT_EQ(wait_for_requests(1), 1U);
}

TEST_F(TracingTest, ASilentCollectorDoesNotHoldAnInvocation) {
  std::mutex mutex;
  std::condition_variable changed;
  bool answers = false;
  server_ = std::make_unique<proxy::Upstream>([&](proxy::Line& line) {
    while (line.read_request()) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return answers; });
      if (!line.write(proxy::answer_text("200 OK", "{}"))) return;
    }
  });
  environment_["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:" + std::to_string(server_->port());
  environment_["OTEL_EXPORTER_OTLP_TIMEOUT"] = "600000";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  for (int i = 0; i < 3; ++i) {
    pay.run("order-" + std::to_string(i), {}, [] { return std::string("done"); });
    tell_invocation_end(never);   // Returns, or this test does not end.
    tell_invocation_end(Time{});  // Its deadline is over.
  }
  EXPECT_EQ(traces.counts().exported, 0U);
  EXPECT_EQ(traces.counts().dropped, 0U);
  {
    const std::lock_guard lock(mutex);
    answers = true;
    changed.notify_all();
  }
  while (traces.counts().exported < 6) tell_invocation_end(never);
}

TEST_F(TracingTest, AnEngineMayOutliveIt) {
  start();
  auto traces = std::make_unique<Tracing>(tracing());
  Engine pay = engine(*traces);
  pay.run("a", {}, [] { return std::string("done"); });
  traces.reset();
  EXPECT_EQ(spans().size(), 2U) << "the end of the last copy flushes";
  EXPECT_EQ(pay.run("b", {}, [] { return std::string("done"); }).value(), "done");
}

TEST_F(TracingTest, IsOffUnlessTheEnvironmentNamesACollector) {
  EXPECT_FALSE(tracing().is_on());
  EXPECT_EQ(tracing().tracer(), nullptr);
  EXPECT_EQ(tracing().metrics(), "");
  EXPECT_TRUE(tracing().flush(Millis{0}));
  environment_["OTEL_TRACES_EXPORTER"] = "otlp";
  EXPECT_TRUE(tracing().is_on());
  environment_["OTEL_SDK_DISABLED"] = "TRUE";
  EXPECT_FALSE(tracing().is_on());
  environment_["OTEL_SDK_DISABLED"] = "false";
  environment_["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "https://collector.example/custom";
  EXPECT_TRUE(tracing().is_on());
  environment_["OTEL_TRACES_EXPORTER"] = "none";
  EXPECT_FALSE(tracing().is_on());
}

TEST_F(TracingTest, WrongSettingsAreErrorsThatSayWhatToDo) {
  EXPECT_THAT(refused("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"), HasSubstr("Write it as in http://"));
  EXPECT_THAT(refused("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:secret@h/"), Not(HasSubstr("secret")));
  environment_["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:4318";
  EXPECT_THAT(refused("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), HasSubstr("4318"));
  EXPECT_THAT(refused("OTEL_EXPORTER_OTLP_HEADERS", "secret"), Not(HasSubstr("secret")));
  EXPECT_THAT(refused("OTEL_EXPORTER_OTLP_HEADERS", "a=%0D%0Ax"), HasSubstr("header"));
  EXPECT_THAT(refused("OTEL_RESOURCE_ATTRIBUTES", "a=%zz"), HasSubstr("pairs"));
  EXPECT_THAT(refused("OTEL_TRACES_SAMPLER", "sometimes"), HasSubstr("always_on"));
  environment_["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio";
  EXPECT_THAT(refused("OTEL_TRACES_SAMPLER_ARG", "1.5"), HasSubstr("0 to 1"));
  EXPECT_THAT(refused("OTEL_TRACES_SAMPLER_ARG", "nan"), HasSubstr("0 to 1"));
  EXPECT_THAT(refused("OTEL_BSP_MAX_QUEUE_SIZE", "0"), HasSubstr("whole number"));
  EXPECT_THAT(refused("OTEL_TRACES_EXPORTER", "zipkin"), HasSubstr("otlp or none"));
  environment_["OTEL_TRACES_SAMPLER_ARG"] = "0";
  const Tracing traces = tracing();
  Engine pay = engine(traces);
  pay.run("a", {}, [] { return std::string("done"); });
  EXPECT_TRUE(traces.flush(patience));
  EXPECT_EQ(traces.counts().exported + traces.counts().dropped, 0U);
}

std::string file(const std::string& path) {
  std::ifstream in(std::string(ONCE_SOURCES) + "/" + path);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> names_in(const std::string& text, const std::string& pattern) {
  std::set<std::string> out;
  const std::regex name(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), name); at != std::sregex_iterator(); ++at) {
    out.insert((*at)[1]);
  }
  return out;
}

TEST(TracesPage, NamesWhatTheCodeReadsAndWrites) {
  const std::string page = file("docs/traces.md");
  const std::string spans = file("src/engine/tracer.cpp") + file("src/tracing/otlp_json.cpp");
  EXPECT_EQ(names_in(page, "`((once|error)\\.[a-z_]+)`"), names_in(spans, "\"((once|error)\\.[a-z_]+)\""));
  std::set<std::string> variables = names_in(file("src/tracing/settings.cpp"), "\"(OTEL_[A-Z_]+)\"");
  variables.insert("OTEL_TRACES_SAMPLER_ARG");  // Made of two parts.
  EXPECT_EQ(names_in(page, "(OTEL_[A-Z_]+)"), variables);
}

}  // namespace
}  // namespace once
