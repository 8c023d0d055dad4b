// once::lambda::EmbeddedMetrics: what is written, when, and that CloudWatch can read it.
#include <once/frontends/lambda/metrics.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include <once/error.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/frontends/lambda/http.hpp>

#include "frontends/lambda/metrics/invocation_span.hpp"
#include "handler_test.hpp"

namespace once::lambda {
namespace metrics_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string page() {
  std::ifstream file(ONCE_DOCS "/metrics.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t begin = text.find("## Embedded metric format\n");
  if (begin == std::string::npos) throw std::runtime_error("docs/metrics.md has no such section");
  return text.substr(begin, text.find("\n## ", begin) - begin);
}

// Metric -> unit, from the page.
std::map<std::string, std::string> documented() {
  std::map<std::string, std::string> found;
  const std::string text = page();
  const std::regex row(R"(\n\| (`once_[^|]*) \| (\w+) \|)");
  const std::regex name("`(once_[a-z_]+)`");
  for (std::sregex_iterator at(text.begin(), text.end(), row), end; at != end; ++at) {
    const std::string names = (*at)[1];
    for (std::sregex_iterator one(names.begin(), names.end(), name); one != end; ++one) found[(*one)[1]] = (*at)[2];
  }
  return found;
}

// A document, read as strictly as AWS's specification is written (see the header), and names and units as the page has
// them. Throws for anything else.
struct Document {
  std::int64_t timestamp = 0;
  std::string name_space;
  std::vector<std::vector<std::string>> sets;      // Of dimensions.
  std::map<std::string, std::string> dimensions;   // Their values.
  std::map<std::string, std::vector<double>> all;  // Metric -> its values.

  [[nodiscard]] std::map<std::string, double> counts() const {
    std::map<std::string, double> out;
    for (const auto& [name, values] : all) {
      if (name.find("_total") != std::string::npos) out[name] = values.at(0);
    }
    return out;
  }
};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not the embedded metric format: " + what);
}

bool is_ascii_text(const std::string& text, std::size_t most) {
  return !text.empty() && text.size() <= most && text.find_first_not_of(' ') != std::string::npos &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::set<std::string> names_of(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

Document parse(const std::string& line) {
  require(line.size() <= 16'384 && line.find('\n') == line.size() - 1, "one line of at most 16 KiB");
  std::vector<std::set<std::string>> open;  // nlohmann's tree does not tell names that come twice.
  const json root = json::parse(line, [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) require(open.back().insert(value.get<std::string>()).second, "a name twice");
    return true;
  });
  Document out;
  std::set<std::string> targets{"_aws"};
  const json& meta = root.at("_aws");
  require(names_of(meta) == std::set<std::string>{"Timestamp", "CloudWatchMetrics"}, "_aws");
  require(meta.at("Timestamp").is_number_integer(), "Timestamp");
  out.timestamp = meta.at("Timestamp").get<std::int64_t>();
  require(meta.at("CloudWatchMetrics").size() == 1, "one directive");
  const json& directive = meta.at("CloudWatchMetrics").at(0);
  require(names_of(directive) == std::set<std::string>{"Namespace", "Dimensions", "Metrics"},
          "the directive's members");
  out.name_space = directive.at("Namespace").get<std::string>();
  require(is_ascii_text(out.name_space, 255) && out.name_space.front() != ':', "Namespace");
  require(directive.at("Dimensions").is_array() && !directive.at("Dimensions").empty(), "Dimensions");
  for (const json& set : directive.at("Dimensions")) {
    require(set.is_array() && set.size() <= 9, "a set of dimensions");  // 30 now; 9 in older texts.
    out.sets.push_back(set.get<std::vector<std::string>>());
    for (const std::string& name : out.sets.back()) {
      require(is_ascii_text(name, 255) && name.front() != ':', "a dimension's name");
      out.dimensions[name] = root.at(name).get<std::string>();
      require(is_ascii_text(out.dimensions[name], 1024), "a dimension's value");
      targets.insert(name);
    }
  }
  const json& metrics = directive.at("Metrics");
  require(metrics.is_array() && !metrics.empty() && metrics.size() <= 100, "1 to 100 metrics");
  static const std::map<std::string, std::string> known = documented();
  for (const json& metric : metrics) {
    require(names_of(metric) == std::set<std::string>{"Name", "Unit"}, "a metric's members");
    const std::string name = metric.at("Name").get<std::string>();
    require(targets.insert(name).second, "a metric twice");
    require(known.contains(name) && known.at(name) == metric.at("Unit").get<std::string>(), name + " as on the page");
    const json& value = root.at(name);
    require(value.is_number() || (value.is_array() && !value.empty() && value.size() <= 100), "1 to 100 values");
    for (const json& one : value.is_array() ? value : json::array({value})) {
      require(one.is_number(), "numbers");
      out.all[name].push_back(one.get<double>());
    }
  }
  require(names_of(root) == targets, "what nobody refers to");
  return out;
}

// What was written, and an observer that writes there.
class Log {
 public:
  template <class Change>
  EmbeddedMetrics metrics(Change change) {
    EmbeddedMetricsOptions options{.function = "pay"};
    options.clock = clock;
    options.write = [this](std::string_view line) {
      if (refuses) return false;
      lines.emplace_back(line);
      return true;
    };
    change(options);
    return EmbeddedMetrics(std::move(options));
  }
  EmbeddedMetrics metrics() {
    return metrics([](EmbeddedMetricsOptions&) {});
  }

  [[nodiscard]] std::vector<Document> documents() const {
    std::vector<Document> out;
    for (const std::string& line : lines) out.push_back(parse(line));
    return out;
  }
  // Their counts, and begins anew.
  std::vector<std::map<std::string, double>> take() {
    std::vector<std::map<std::string, double>> out;
    for (const Document& one : documents()) out.push_back(one.counts());
    lines.clear();
    return out;
  }

  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  std::vector<std::string> lines;
  bool refuses = false;
};

using Counts = std::map<std::string, double>;
using Lines = std::vector<Counts>;

Event event(EventKind kind, std::string_view key = {}) { return {.kind = kind, .key = key}; }

TEST(EmbeddedMetrics, WhatAnEventAddsIsOnThePageAndThePageHasNothingElse) {
  std::set<std::string> written;
  const Error error{ErrorKind::in_doubt, "no answer"};
  Record failed;
  failed.state = State::failed;
  for (int kind = 0; kind <= static_cast<int>(EventKind::store_error); ++kind) {
    Log log;
    Event one = event(static_cast<EventKind>(kind));
    if (one.kind == EventKind::store_error) one.error = &error;
    const EmbeddedMetrics metrics = log.metrics();
    metrics(one);
    metrics.flush();
    ASSERT_THAT(log.lines, SizeIs(1)) << to_string(one.kind);
    const Document document = log.documents().at(0);
    for (const auto& [name, values] : document.all) {
      EXPECT_EQ(values.size(), 1U);
      written.insert(name);
    }
    if (one.kind == EventKind::work_done) continue;
    EXPECT_THAT(document.counts(), SizeIs(1)) << to_string(one.kind);
  }
  Log log;
  log.metrics()({.kind = EventKind::replayed, .record = &failed});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_stored_failure", 1}}}));
  written.insert("once_operations_total_stored_failure");
  std::set<std::string> on_page;
  for (const auto& [name, unit] : documented()) on_page.insert(name);
  EXPECT_EQ(written, on_page);
}

TEST(EmbeddedMetrics, ADocument) {
  Log log;
  log.clock->advance(std::chrono::milliseconds(17));
  log.metrics()({.kind = EventKind::claimed, .key = Key("shop", "k").stored(), .took = 1'200'003us});
  EXPECT_EQ(log.lines, std::vector<std::string>{
                           R"({"_aws":{"Timestamp":1767225600017,"CloudWatchMetrics":[{"Namespace":"once",)"
                           R"("Dimensions":[["FunctionName"]],"Metrics":[{"Name":"once_claims_total","Unit":"Count"},)"
                           R"({"Name":"once_begin_duration_seconds","Unit":"Seconds"}]}]},"FunctionName":"pay",)"
                           R"("once_claims_total":1,"once_begin_duration_seconds":[1.200003000]})"
                           "\n"});
  EXPECT_EQ(parse(log.lines[0]).all.at("once_begin_duration_seconds"), std::vector<double>{1.200003});
}

TEST(EmbeddedMetrics, TheReaderIsStrict) {
  Log log;
  log.metrics()(event(EventKind::claimed));
  const std::string good = log.lines.at(0);
  EXPECT_NO_THROW(parse(good));
  for (const auto& [old, bad] : std::map<std::string, std::string>{
           {R"("FunctionName":"pay")", R"("FunctionName":7)"},
           {R"("FunctionName":"pay")", R"("FunctionName":"\u0007")"},
           {R"("Unit":"Count")", R"("Unit":"Seconds")"},
           {R"("Timestamp":1767225600000)", R"("Timestamp":"now")"},
           {R"("once_claims_total":1)", R"("once_claims_total":"1")"},
           {R"("once_claims_total":1)", R"("once_claims_total":1,"once_claims_total":1)"},
           {R"("once_claims_total":1)", R"("once_claims_total":1,"key":"order-17")"},
           {R"("Name":"once_claims_total")", R"("Name":"once_claims")"},
           {"}\n", "}\n\n"}}) {
    std::string line = good;
    ASSERT_NE(line.find(old), std::string::npos) << old;
    EXPECT_ANY_THROW(parse(line.replace(line.find(old), old.size(), bad))) << bad;
  }
}

TEST(EmbeddedMetrics, EachLineHasOnlyWhatIsNew) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  for (int i = 0; i < 2; ++i) {
    const InvocationSpan invocation{Invocation{}};
    for (int n = 0; n <= i; ++n) metrics(event(EventKind::replayed));
  }
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_replayed", 1}}, {{"once_operations_total_replayed", 2}}}));
}

TEST(EmbeddedMetrics, NothingIsWrittenWhenNothingHappened) {
  Log log;
  {
    const EmbeddedMetrics metrics = log.metrics();
    const EmbeddedMetrics copy = metrics;
    { const InvocationSpan invocation{Invocation{}}; }
    metrics.flush();
  }
  EXPECT_THAT(log.lines, IsEmpty());
}

TEST(EmbeddedMetrics, AClaimIsWrittenBeforeItsWorkAndItsEndWithTheInvocation) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  {
    const InvocationSpan of_the_runtime{Invocation{}};
    const InvocationSpan of_the_handler{Invocation{}};
    metrics(event(EventKind::claimed));
    EXPECT_EQ(log.take(), (Lines{{{"once_claims_total", 1}}}));
    metrics(event(EventKind::work_done));
    metrics(event(EventKind::completed));
    EXPECT_THAT(log.lines, IsEmpty());
  }
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_completed", 1}}}));
}

TEST(EmbeddedMetrics, OutsideAnInvocationNothingIsHeldBack) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  metrics(event(EventKind::renewed));
  EXPECT_THAT(log.lines, IsEmpty());  // Goes with the next.
  metrics(event(EventKind::completed));
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_completed", 1}, {"once_renewals_total", 1}}}));
}

TEST(EmbeddedMetrics, TheLastCopyWritesWhatIsLeft) {
  Log log;
  { log.metrics()(event(EventKind::renewed)); }
  EXPECT_EQ(log.take(), (Lines{{{"once_renewals_total", 1}}}));
}

TEST(EmbeddedMetrics, ALineThatWasNotTakenIsInTheNext) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  log.refuses = true;
  metrics(event(EventKind::claimed));
  metrics(event(EventKind::completed));
  log.refuses = false;
  EXPECT_THAT(log.lines, IsEmpty());
  metrics(event(EventKind::completed));
  EXPECT_EQ(log.take(), (Lines{{{"once_claims_total", 1}, {"once_operations_total_completed", 2}}}));
}

TEST(EmbeddedMetrics, ALineHasAtMostAHundredValues) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  {
    const InvocationSpan invocation{Invocation{}};
    for (int n = 0; n < 250; ++n) metrics({.kind = EventKind::replayed, .took = 1ms * n});
    EXPECT_THAT(log.lines, SizeIs(2));
  }
  std::vector<double> values;
  double count = 0;
  for (const Document& one : log.documents()) {
    const auto& some = one.all.at("once_begin_duration_seconds");
    values.insert(values.end(), some.begin(), some.end());
    count += one.counts().at("once_operations_total_replayed");
  }
  EXPECT_EQ(count, 250);
  ASSERT_THAT(values, SizeIs(250));
  EXPECT_EQ(values[249], 0.249);
  log.refuses = true;
  for (int n = 0; n < 150; ++n) metrics({.kind = EventKind::replayed});
  log.refuses = false;
  log.lines.clear();
  metrics.flush();
  ASSERT_THAT(log.documents(), SizeIs(1));
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_replayed", 150}}}));
}

TEST(EmbeddedMetrics, OnlyConversationsOfTheirOwnAreTimed) {
  Log log;
  log.metrics()({.kind = EventKind::replayed, .coalesced = true});
  EXPECT_THAT(log.documents().at(0).all, SizeIs(1));
}

TEST(EmbeddedMetrics, NoKeyIsWritten) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics([](EmbeddedMetricsOptions& o) { o.max_scopes = 5; });
  for (int kind = 0; kind < static_cast<int>(EventKind::store_error); ++kind) {
    metrics(event(static_cast<EventKind>(kind), Key("pay", "order-17").stored()));
  }
  metrics.flush();
  for (const std::string& line : log.lines) EXPECT_THAT(line, Not(HasSubstr("order-17")));
}

TEST(EmbeddedMetrics, DimensionsAreThoseAskedFor) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics([](EmbeddedMetricsOptions& o) {
    o.service = "shop";
    o.max_scopes = 1;
    o.cloudwatch_namespace = "shop/once";
  });
  const auto sets = [&](std::string_view scope) {
    log.lines.clear();
    metrics(event(EventKind::completed, Key(scope, "k").stored()));
    EXPECT_EQ(log.documents().at(0).name_space, "shop/once");
    return log.documents().at(0).sets;
  };
  using Sets = std::vector<std::vector<std::string>>;
  EXPECT_EQ(sets("a"), (Sets{{"FunctionName"}, {"service"}, {"FunctionName", "scope"}}));
  EXPECT_EQ(log.documents().at(0).dimensions,
            (std::map<std::string, std::string>{{"FunctionName", "pay"}, {"scope", "a"}, {"service", "shop"}}));
  EXPECT_EQ(sets("over the limit"), (Sets{{"FunctionName"}, {"service"}}));
  EXPECT_EQ(sets("a").size(), 3U);
}

TEST(EmbeddedMetrics, NamesOfOperationsCannotBreakALine) {
  const std::vector<std::string> bad{"\xFF", "ü", "a\nb", std::string("a\0b", 3), " ", ":a", std::string(256, 'a')};
  const std::vector<std::string> good{R"(a","b":"c)", R"(\u0041\)", "{}[]", "a#1", std::string(255, '"')};
  Log log;
  const EmbeddedMetrics metrics = log.metrics([](EmbeddedMetricsOptions& o) { o.max_scopes = 100; });
  for (const std::string& scope : bad) {
    metrics(event(EventKind::completed, Key(scope, "k").stored()));
    EXPECT_FALSE(log.documents().back().dimensions.contains("scope")) << scope;
  }
  for (const std::string& scope : good) {
    metrics(event(EventKind::completed, Key(scope, "k").stored()));
    EXPECT_EQ(log.documents().back().dimensions.at("scope"), scope);
  }
  metrics(event(EventKind::completed, "no mark"));
  metrics(event(EventKind::completed, "#"));
  EXPECT_THAT(log.lines, SizeIs(bad.size() + good.size() + 2));
}

TEST(EmbeddedMetrics, OptionsThatCloudWatchWouldNotTakeAreRefused) {
  const auto with = [](auto change) {
    Log log;
    return log.metrics(change);
  };
  EXPECT_THROW(with([](auto& o) { o.cloudwatch_namespace = ""; }), Exception);
  EXPECT_THROW(with([](auto& o) { o.cloudwatch_namespace = "AWS/Lambda"; }), Exception);
  EXPECT_THROW(with([](auto& o) { o.cloudwatch_namespace = ":once"; }), Exception);
  EXPECT_THROW(with([](auto& o) { o.function = "ü"; }), Exception);
  EXPECT_THROW(with([](auto& o) { o.service = "a\nb"; }), Exception);
  EXPECT_THROW(with([](auto& o) { o.max_scopes = 101; }), Exception);
  unsetenv("AWS_LAMBDA_FUNCTION_NAME");
  EXPECT_THROW(with([](auto& o) { o.function = ""; }), Exception);
}

TEST(EmbeddedMetrics, TheEnvironmentAsksForThem) {
  std::vector<std::string> told;
  const auto tell = [&](std::string_view text) { told.emplace_back(text); };
  unsetenv("ONCE_METRICS");
  EXPECT_FALSE(metrics_from_environment(tell));
  for (const char* const none : {"", "off"}) {
    setenv("ONCE_METRICS", none, 1);
    EXPECT_FALSE(metrics_from_environment(tell));
  }
  EXPECT_THAT(told, IsEmpty());
  setenv("ONCE_METRICS", "EMF", 1);
  EXPECT_THROW(metrics_from_environment(tell), Exception);
  setenv("ONCE_METRICS", "emf", 1);
  setenv("AWS_LAMBDA_FUNCTION_NAME", "pay", 1);
  EXPECT_TRUE(metrics_from_environment(tell));
  EXPECT_THAT(told, ElementsAre("ONCE_METRICS=emf"));
  unsetenv("ONCE_METRICS");
}

TEST(EmbeddedMetrics, ThreadsLoseNoCount) {
  Log log;
  const EmbeddedMetrics metrics = log.metrics();
  constexpr int rounds = 200;
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        const InvocationSpan invocation{Invocation{}};
        metrics(event(EventKind::claimed));
        metrics(event(EventKind::completed));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Counts sum;
  for (const Counts& one : log.take()) {
    for (const auto& [name, count] : one) sum[name] += count;
  }
  EXPECT_EQ(sum, (Counts{{"once_claims_total", 4 * rounds}, {"once_operations_total_completed", 4 * rounds}}));
}

// --- Standard output ------------------------------------------------------------------------------------------------

TEST(EmbeddedMetrics, StandardOutputIsWhereTheyGo) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const int own = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  {
    const EmbeddedMetrics metrics({.function = "pay"});
    metrics(event(EventKind::claimed));
  }
  dup2(own, STDOUT_FILENO);
  close(own);
  close(ends[1]);
  std::array<char, 4096> bytes{};
  const ssize_t count = read(ends[0], bytes.data(), bytes.size());
  close(ends[0]);
  ASSERT_GT(count, 0);
  const Document one = parse(std::string(bytes.data(), static_cast<std::size_t>(count)));
  EXPECT_EQ(one.counts(), (Counts{{"once_claims_total", 1}}));
  EXPECT_GT(one.timestamp, 1'700'000'000'000);
}

// --- Handlers -------------------------------------------------------------------------------------------------------

class MetricsOfHandlers : public HandlerTest {
 protected:
  Process& process_with_metrics() {
    return process([this](EngineOptions& options) { options.observer = log.metrics(); });
  }
  static IdempotentOptions named() {
    IdempotentOptions options{.key = "id", .name = "pay"};
    options.environment = Environment{.function_name = "fn", .handler = "bootstrap", .disabled = {}};
    return options;
  }
  Log log;
};

TEST_F(MetricsOfHandlers, OneLineForAReplayTwoForWork) {
  const Process& one = process_with_metrics();
  const Handler handler = idempotent(*one.engine, named(), [&](std::string_view) {
    EXPECT_EQ(log.take(), (Lines{{{"once_claims_total", 1}}}));  // There before the work.
    return std::string("{}");
  });
  handler(R"({"id":1})", {});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_completed", 1}}}));
  handler(R"({"id":1})", {});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_replayed", 1}}}));
  EXPECT_THROW(handler("no JSON", {}), FunctionError);
  EXPECT_THAT(log.lines, IsEmpty());
}

TEST_F(MetricsOfHandlers, WorkThatThrowsIsReleasedInTheSameInvocation) {
  const Process& one = process_with_metrics();
  const Handler handler = idempotent(*one.engine, named(), [&](std::string_view) -> std::string {
    log.lines.clear();
    throw std::runtime_error("no");
  });
  EXPECT_THROW(handler(R"({"id":1})", {}), std::runtime_error);
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_released", 1}}}));
}

TEST_F(MetricsOfHandlers, ABatchWritesALineForEachClaimAndOneMore) {
  const Process& one = process_with_metrics();
  const Handler batch = sqs::batch(
      *one.engine, {.environment = Environment{.function_name = "fn", .handler = "bootstrap", .disabled = {}}},
      [](const sqs::Message&) {});
  std::string event = R"({"Records":[)";
  for (const char* const id : {"a", "b", "c"}) {
    event += std::string(event.back() == '}' ? "," : "") + R"({"messageId":")" + id +
             R"(","eventSource":"aws:sqs","eventSourceARN":"arn:aws:sqs:eu-central-1:1:orders","receiptHandle":"h",)" +
             R"("body":"{}","attributes":{},"messageAttributes":{}})";
  }
  event += "]}";
  batch(event, {});
  EXPECT_THAT(log.lines, SizeIs(4));
  Counts sum;
  for (const Counts& some : log.take()) {
    for (const auto& [name, count] : some) sum[name] += count;
  }
  EXPECT_EQ(sum, (Counts{{"once_claims_total", 3}, {"once_operations_total_completed", 3}}));
  batch(event, {});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_replayed", 3}}}));
}

TEST_F(MetricsOfHandlers, HttpWritesAtTheEndOfTheInvocation) {
  const Process& one = process_with_metrics();
  HttpOptions options{.routes = once::http::Options{.principal = once::http::Principal::header("x-api-key")}};
  options.environment = Environment{.function_name = "fn", .handler = "bootstrap", .disabled = {}};
  const Handler handler = http(*one.engine, options, [&](const once::http::Request&, once::http::Execution&) {
    log.lines.clear();
    return once::http::Answer{.status = 201, .body = "{}"};
  });
  const std::string event =
      R"({"version":"2.0","rawPath":"/pay","rawQueryString":"","headers":{"idempotency-key":"k","x-api-key":"me"},)"
      R"("requestContext":{"http":{"method":"POST","path":"/pay"},"domainName":"x"},"body":"{}","isBase64Encoded":false})";
  handler(event, {});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_completed", 1}}}));
  handler(event, {});
  EXPECT_EQ(log.take(), (Lines{{{"once_operations_total_replayed", 1}}}));
}

TEST_F(MetricsOfHandlers, OneLineOfCode) {
  setenv("AWS_LAMBDA_FUNCTION_NAME", "pay", 1);
  const std::shared_ptr<Store> store = stores::make_memory_store();
  // [one-line]
  once::Engine engine({.store = store, .observer = once::lambda::EmbeddedMetrics()});
  // [/one-line]
  EXPECT_TRUE(engine.options().observer);
  unsetenv("AWS_LAMBDA_FUNCTION_NAME");
}

}  // namespace metrics_test
}  // namespace once::lambda
