// What the metrics count, and under which scope.
#include <once/engine/metrics.hpp>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace metrics_test {

// The samples whose name and labels begin so, in the order of the page.
std::vector<std::string> samples(const std::string& page, std::string_view beginning) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < page.size();) {
    const std::size_t end = page.find('\n', begin);
    const std::string line = page.substr(begin, end - begin);
    if (line.starts_with(beginning)) found.push_back(line);
    begin = end + 1;
  }
  return found;
}

// Those that are not 0.
std::vector<std::string> counted(const std::string& page, std::string_view beginning) {
  std::vector<std::string> found = samples(page, beginning);
  std::erase_if(found, [](const std::string& line) { return line.ends_with(" 0"); });
  return found;
}

void see(const Metrics& metrics, EventKind kind, std::string_view scope) {
  metrics({.kind = kind, .key = Key(scope, "k").stored()});
}

TEST(Metrics, OneLineOfCodeCountsTheCallsOfAnEngine) {
  const Metrics metrics;
  Engine engine({.store = stores::make_memory_store(), .scope = "pay", .observer = metrics});
  for (const char* const payload : {"a", "a", "b"}) {
    engine.run("order-17", payload, [] { return std::string("done"); });
  }
  engine.run("order-18", {}, [] { return std::string("done"); });
  const std::string page = metrics.text();
  EXPECT_THAT(counted(page, "once_operations_total"),
              ElementsAre("once_operations_total{scope=\"pay\",outcome=\"completed\"} 2",
                          "once_operations_total{scope=\"pay\",outcome=\"replayed\"} 1",
                          "once_operations_total{scope=\"pay\",outcome=\"mismatch\"} 1"));
  EXPECT_THAT(counted(page, "once_claims_total"), ElementsAre("once_claims_total{scope=\"pay\",kind=\"claimed\"} 2"));
  EXPECT_THAT(samples(page, "once_work_duration_seconds_count"),
              ElementsAre("once_work_duration_seconds_count{scope=\"pay\"} 2"));
  EXPECT_THAT(counted(page, "once_begin_duration_seconds_count"),
              ElementsAre("once_begin_duration_seconds_count{outcome=\"claimed\"} 2",
                          "once_begin_duration_seconds_count{outcome=\"replayed\"} 1",
                          "once_begin_duration_seconds_count{outcome=\"mismatch\"} 1"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("order-17")));
}

TEST(Metrics, EachEventHasItsPlace) {
  const std::vector<std::pair<EventKind, std::string>> places{
      {EventKind::claimed, "once_claims_total{kind=\"claimed\"}"},
      {EventKind::resumed, "once_claims_total{kind=\"resumed\"}"},
      {EventKind::took_over, "once_claims_total{kind=\"took_over\"}"},
      {EventKind::replayed, "once_operations_total{outcome=\"replayed\"}"},
      {EventKind::conflict, "once_operations_total{outcome=\"conflict\"}"},
      {EventKind::mismatch, "once_operations_total{outcome=\"mismatch\"}"},
      {EventKind::unknown, "once_operations_total{outcome=\"unknown\"}"},
      {EventKind::step_recorded, "once_steps_total"},
      {EventKind::renewed, "once_renewals_total"},
      {EventKind::renewal_lost, "once_claims_lost_total"},
      {EventKind::work_done, "once_work_duration_seconds_count"},
      {EventKind::completed, "once_operations_total{outcome=\"completed\"}"},
      {EventKind::failed, "once_operations_total{outcome=\"failed\"}"},
      {EventKind::held, "once_operations_total{outcome=\"held\"}"},
      {EventKind::released, "once_operations_total{outcome=\"released\"}"},
      {EventKind::abandoned, "once_operations_total{outcome=\"abandoned\"}"},
      {EventKind::finish_refused, "once_operations_total{outcome=\"finish_refused\"}"},
      {EventKind::declined, "once_declined_total"},
      {EventKind::unrecorded, "once_unrecorded_total"},
      {EventKind::unprotected, "once_operations_total{outcome=\"unprotected\"}"},
      {EventKind::reconciled, "once_reconcile_total{outcome=\"reconciled\"}"},
      {EventKind::reconcile_later, "once_reconcile_total{outcome=\"reconcile_later\"}"},
      {EventKind::reconcile_gave_up, "once_reconcile_total{outcome=\"reconcile_gave_up\"}"},
      {EventKind::store_error, "once_store_errors_total{kind=\"in_doubt\"}"},
  };
  ASSERT_EQ(places.size(), static_cast<std::size_t>(EventKind::store_error) + 1);
  const Error error{ErrorKind::in_doubt, "no answer"};
  for (const auto& [kind, place] : places) {
    const Metrics metrics({.max_scopes = 0});
    EXPECT_THAT(samples(metrics.text(), place + " "), ElementsAre(place + " 0"));
    metrics({.kind = kind, .error = kind == EventKind::store_error ? &error : nullptr, .coalesced = true});
    const std::string page = metrics.text();
    EXPECT_THAT(samples(page, place + " "), ElementsAre(place + " 1"));
    const std::size_t with_buckets = kind == EventKind::work_done ? 19 : 1;  // 17 bounds, +Inf and the count.
    EXPECT_EQ(counted(page, "once_").size(), with_buckets) << place;
  }
}

TEST(Metrics, AReplayedFailureIsCountedApart) {
  const Metrics metrics({.max_scopes = 0});
  Record record;
  record.state = State::failed;
  metrics({.kind = EventKind::replayed, .record = &record});
  EXPECT_THAT(counted(metrics.text(), "once_operations_total"),
              ElementsAre("once_operations_total{outcome=\"stored_failure\"} 1"));
}

TEST(Metrics, OnlyConversationsOfTheirOwnAreTimed) {
  const Metrics metrics;
  metrics({.kind = EventKind::replayed, .took = 3ms});
  metrics({.kind = EventKind::replayed, .took = 3ms, .coalesced = true});
  const std::string page = metrics.text();
  EXPECT_THAT(counted(page, "once_operations_total"), ElementsAre("once_operations_total{outcome=\"replayed\"} 2"));
  const std::string bucket = "once_begin_duration_seconds_bucket{outcome=\"replayed\",le=\"";
  EXPECT_THAT(page, HasSubstr(bucket + "0.0025\"} 0\n" + bucket + "0.005\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("once_begin_duration_seconds_sum{outcome=\"replayed\"} 0.003\n"));
}

TEST(Metrics, ScopesOverTheLimitAreCountedTogether) {
  const Metrics metrics({.max_scopes = 2});
  for (int round = 0; round < 2; ++round) {
    for (const char* const scope : {"b", "a#1", "c", "d", ""}) see(metrics, EventKind::renewed, scope);
  }
  see(metrics, EventKind::renewed, "\xFF");
  EXPECT_THAT(
      samples(metrics.text(), "once_renewals_total"),
      ElementsAre("once_renewals_total 2", "once_renewals_total{scope=\"a#1\"} 2", "once_renewals_total{scope=\"b\"} 2",
                  "once_renewals_total{otel_metric_overflow=\"true\"} 5"));
}

TEST(Metrics, AScopeMustBeUtf8ToGetALabel) {
  const Metrics metrics;
  see(metrics, EventKind::renewed, "\xFF");
  see(metrics, EventKind::renewed, "ü\"");
  EXPECT_THAT(
      samples(metrics.text(), "once_renewals_total"),
      ElementsAre("once_renewals_total{scope=\"ü\\\"\"} 1", "once_renewals_total{otel_metric_overflow=\"true\"} 1"));
}

TEST(Metrics, WithoutEventsOfAScopeThereAreNoSamples) {
  EXPECT_THAT(samples(Metrics().text(), "once_renewals_total"), IsEmpty());
}

TEST(Metrics, TooManyScopesAreRefused) { EXPECT_THROW(Metrics({.max_scopes = 10'001}), Exception); }

TEST(Metrics, ThreadsLoseNoCount) {
  constexpr int rounds = 500;
  const Metrics metrics;
  {
    std::array<std::jthread, 4> threads;
    for (std::jthread& thread : threads) {
      thread = std::jthread([&metrics] {
        for (int i = 0; i < rounds; ++i) see(metrics, EventKind::renewed, "s" + std::to_string(i % 50));
      });
    }
  }
  const std::string page = metrics.text();
  EXPECT_EQ(samples(page, "once_renewals_total").size(), 50U);
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(page, HasSubstr("\nonce_renewals_total{scope=\"s" + std::to_string(i) + "\"} 40\n"));
  }
}

TEST(Metrics, TheProcessIsDescribed) {
  const std::string page = process_metrics();
  for (const char* const metric :
       {"once_build_info{version=\"", "process_cpu_seconds_total ", "process_resident_memory_bytes ",
        "process_virtual_memory_bytes ", "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_EQ(samples(page, metric).size(), 1U) << metric;
  }
  const std::string started = samples(page, "process_start_time_seconds ").at(0).substr(27);
  const double now = static_cast<double>(unix_ms(system_clock()->now())) / 1'000;
  EXPECT_GT(std::stod(started), now - 86'400);
  EXPECT_LT(std::stod(started), now + 60);
}

}  // namespace metrics_test
}  // namespace once::testing
