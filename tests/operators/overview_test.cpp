// GET /v1/overview: what it counts, what it does not know, and what the process did in the last hour.
#include "operators/overview.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators/recent_events.hpp"
#include "operators/store_look.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace overview_test {

using std::chrono::hours;
using std::chrono::minutes;

const json nothing = nullptr;

class Overview : public OperatorsCase {
 protected:
  void make(const std::string& name, const std::function<void(Record&)>& change) {
    Record record = once::testing::plain_record(Key("pay", name).stored());
    record.created_at = at(1);
    record.expires_at = never;
    record.lease_until = never;
    change(record);
    keep(std::move(record));
  }
  static Time at(int second) { return Time(std::chrono::seconds(1'600'000'000 + second)); }

  json overview_of(const OverviewSources& sources) {
    const Operators informed({.url = "x:", .store = store}, token, sources);
    const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
    const http::Answer answer =
        informed.answer({.method = "GET", .target = "/v1/overview", .headers = headers, .body = {}, .principal = {}});
    EXPECT_EQ(answer.status, 200U) << answer.body;
    return read(answer);
  }
  // After its first look. The test's limit of time ends it otherwise.
  json looked(const StoreLookOptions& options, const std::function<bool(const json&)>& until) {
    StoreLook look(options);
    for (;;) {
      json found = overview_of(overview_sources(&look, nullptr));
      if (until(found)) return found;
      std::this_thread::yield();
    }
  }
  static bool has_gauges(const json& overview) { return !overview["as_of"].is_null(); }
};

TEST_F(Overview, CountsWhatAListOfTheStandingHas) {
  make("u1", [](Record& record) { record.state = State::unknown, record.finished_at = at(20); });
  make("u2", [](Record& record) { record.state = State::unknown, record.finished_at = at(10); });
  make("f", [](Record& record) { record.state = State::failed, record.finished_at = at(30); });
  make("l", [](Record& record) { record.lease_until = at(40); });
  make("o", [](Record& record) { record.expected_until = at(50), record.created_at = at(0); });
  make("r", [](Record& record) { record.lease_until = Time{}; });
  make("c", [](Record& record) { record.state = State::completed; });
  make("gone", [](Record& record) { record.expires_at = at(2), record.created_at = at(-9); });
  const json found = looked({.store = store, .interval = hours(1)}, has_gauges);
  const json& gauges = found["gauges"];
  EXPECT_EQ(gauges["unknown"], (json{{"count", 2}, {"bounded", false}, {"oldest", "2020-09-13T12:26:50.000Z"}}));
  EXPECT_EQ(gauges["failed"], (json{{"count", 1}, {"bounded", false}, {"oldest", "2020-09-13T12:27:10.000Z"}}));
  EXPECT_EQ(gauges["lapsed"], (json{{"count", 1}, {"bounded", false}, {"oldest", "2020-09-13T12:27:20.000Z"}}));
  EXPECT_EQ(gauges["overdue"], (json{{"count", 1}, {"bounded", false}, {"oldest", "2020-09-13T12:27:30.000Z"}}));
  EXPECT_EQ(gauges["running"], (json{{"count", 1}, {"bounded", false}, {"oldest", "2020-09-13T12:26:40.000Z"}}));
  EXPECT_EQ(gauges["released"], (json{{"count", 1}, {"bounded", false}, {"oldest", "2020-09-13T12:26:41.000Z"}}));
  EXPECT_EQ(gauges["in_progress"], (json{{"count", 3}, {"bounded", false}, {"oldest", "2020-09-13T12:26:40.000Z"}}));
  for (const auto& [name, gauge] : gauges.items()) {
    EXPECT_EQ(read(get("/v1/records?standing=" + name))["records"].size(), gauge["count"]) << name;
  }
}

TEST_F(Overview, WhatIsNotKnownIsNullAndNever0) {
  for (const OverviewSources& sources : {OverviewSources{}, overview_sources(nullptr, nullptr)}) {
    const json found = overview_of(sources);
    EXPECT_EQ(found["as_of"], nothing);
    EXPECT_EQ(found["rates"], nothing);
    EXPECT_EQ(found["gauges"].size(), 7U);
    for (const auto& [name, gauge] : found["gauges"].items()) EXPECT_EQ(gauge, nothing) << name;
    for (const auto& [name, value] : found["stores"][0].items()) {
      EXPECT_EQ(value, name == "name" ? json(store->name()) : nothing) << name;
    }
  }
}

TEST_F(Overview, ALookThatWasCutShortSaysSoForWhatItDidNotReadToTheEnd) {
  for (int i = 0; i < 600; ++i) {
    make("f" + std::to_string(i), [](Record& record) { record.state = State::failed, record.finished_at = at(1); });
  }
  make("u", [](Record& record) { record.state = State::unknown; });
  const json found = looked({.store = store, .interval = hours(1), .max_pages = 3}, has_gauges);
  EXPECT_EQ(found["gauges"]["failed"]["count"], 500);
  EXPECT_EQ(found["gauges"]["failed"]["bounded"], true);
  EXPECT_EQ(found["gauges"]["unknown"]["bounded"], false);
  EXPECT_EQ(found["gauges"]["lapsed"]["bounded"], false);
}

TEST_F(Overview, RecordsThatCannotBeReadMakeItALowerBound) {
  class Damaged final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void list(ListQuery query, Callback<void(ListPage)> done) override {
      ListPage page;
      if (query.state == State::unknown) page.unreadable.push_back({ErrorKind::corrupt, "damaged"});
      done(std::move(page));
    }
  };
  const json found = looked({.store = std::make_shared<Damaged>(store), .interval = hours(1)}, has_gauges);
  EXPECT_EQ(found["gauges"]["unknown"]["bounded"], true);
  EXPECT_EQ(found["gauges"]["failed"]["bounded"], false);
}

// 300 ms ahead, give or take 5, as its answers say.
TEST_F(Overview, TellsHowTheStoreAnswers) {
  class Ahead final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void get(std::string /*key*/, Done done) override {
      Answer answer;
      answer.time = StoreTime{.now = once::testing::manual_start + Millis{300}, .error = Millis{5}};
      done(std::move(answer));
    }
  };
  const json found = looked({.store = std::make_shared<Ahead>(store),
                             .interval = hours(1),
                             .clock = std::make_shared<once::testing::ManualClock>()},
                            has_gauges);
  const json& health = found["stores"][0];
  EXPECT_EQ(health["answers"], true);
  EXPECT_EQ(health["clock_ahead_ms"], 300);
  EXPECT_EQ(health["clock_error_ms"], 5);
  EXPECT_EQ(health["error"], nothing);
  EXPECT_EQ(health["bytes"], nothing);  // No file.
  EXPECT_GE(health["latency_ms"].get<double>(), 0.0);
  EXPECT_FALSE(health["asked_at"].is_null());
}

TEST_F(Overview, AStoreThatIsDownSaysWhyAndItsGaugesAreNotKnown) {
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  const json found = looked({.store = store, .interval = hours(1)},
                            [](const json& overview) { return !overview["stores"][0]["asked_at"].is_null(); });
  EXPECT_EQ(found["stores"][0]["answers"], false);
  EXPECT_EQ(found["stores"][0]["latency_ms"], nothing);
  EXPECT_FALSE(found["stores"][0]["error"].get<std::string>().empty());
  EXPECT_EQ(found["gauges"]["unknown"], nothing);
}

TEST_F(Overview, SaysWhenTheStoreTakesNoNewOperations) {
  const StoreLookOptions options{.store = store, .interval = hours(1), .probes_as = "the test"};
  const json fine = looked(options, has_gauges)["stores"][0];
  EXPECT_EQ(fine["answers"], true);
  EXPECT_TRUE(fine["refusal"].is_null());
  EXPECT_EQ(blocking::list(*store, {}).records.size(), 0U);
  store->set_plan([](const once::testing::StoreCall& call) {
    return once::testing::Fault{.kind = call.is_write() ? once::testing::Fault::Kind::unavailable
                                                        : once::testing::Fault::Kind::none};
  });
  const json full = looked(options, has_gauges)["stores"][0];
  EXPECT_EQ(full["answers"], true);
  EXPECT_THAT(full["refusal"].get<std::string>(), ::testing::HasSubstr("a record could not be written"));
  // Who only reads does not try.
  EXPECT_TRUE(looked({.store = store, .interval = hours(1)}, has_gauges)["stores"][0]["refusal"].is_null());
}

TEST_F(Overview, HoweverManyLookTheStoreIsAskedByOne) {
  make("u", [](Record& record) { record.state = State::unknown; });
  StoreLook look({.store = store, .interval = hours(1), .refresh_pause = hours(1)});
  const OverviewSources sources = overview_sources(&look, nullptr);
  while (!has_gauges(overview_of(sources))) std::this_thread::yield();
  const auto calls = store->counts().calls;
  for (int i = 0; i < 100; ++i) overview_of(sources);
  EXPECT_EQ(store->counts().calls, calls);
}

TEST_F(Overview, TakesNoQueryAndNoChange) {
  expect_problem(get("/v1/overview?x=1"), 400, "bad-request", "no query");
  expect_problem(ask("POST", "/v1/overview"), 405, "method-not-allowed");
  expect_problem(get("/v1/overview/x"), 404, "not-found");
}

class Recent : public ::testing::Test {
 protected:
  void happens(EventKind kind) { recent.count({.kind = kind}); }

  std::shared_ptr<once::testing::ManualClock> clock = std::make_shared<once::testing::ManualClock>();
  RecentEvents recent{clock};
};

TEST_F(Recent, CountsCallsByHowTheyEnd) {
  for (const EventKind kind : {EventKind::completed, EventKind::failed, EventKind::held, EventKind::released,
                               EventKind::abandoned, EventKind::finish_refused}) {
    happens(kind);
  }
  for (const EventKind kind : {EventKind::claimed, EventKind::work_done, EventKind::renewed, EventKind::conflict}) {
    happens(kind);
  }
  happens(EventKind::replayed);
  happens(EventKind::replayed);
  happens(EventKind::unprotected);
  happens(EventKind::unrecorded);
  clock->advance(minutes(2));
  const RecentEvents::Counts counts = recent.counts();
  EXPECT_EQ(counts.ran, 6U);
  EXPECT_EQ(counts.replayed, 2U);
  EXPECT_EQ(counts.unprotected, 1U);
  EXPECT_EQ(counts.unrecorded, 1U);
  EXPECT_EQ(counts.span, minutes(2));
}

TEST_F(Recent, ForgetsWhatIsAnHourAgo) {
  for (int minute = 0; minute < 200; ++minute) {
    happens(EventKind::completed);
    EXPECT_EQ(recent.counts().ran, std::min(minute + 1, 60)) << minute;
    clock->advance(minutes(1));
  }
  EXPECT_EQ(recent.counts().ran, 59U);
  EXPECT_EQ(recent.counts().span, minutes(59));  // The minute that runs has only begun.
  clock->advance(hours(5));
  EXPECT_EQ(recent.counts().ran, 0U);
}

TEST_F(Recent, ManyThreadsLoseNothing) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int events = 0; events < 10'000; ++events) happens(EventKind::completed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recent.counts().ran, 40'000U);
}

TEST_F(Recent, IsInTheOverview) {
  happens(EventKind::completed);
  const OverviewSources sources = overview_sources(nullptr, &recent);
  const http::Answer answer = overview({.url = "x:", .store = stores::make_memory_store()}, sources);
  EXPECT_EQ(json::parse(answer.body)["rates"],
            (json{{"seconds", 0}, {"ran", 1}, {"replayed", 0}, {"unprotected", 0}, {"unrecorded", 0}}));
}

}  // namespace overview_test
}  // namespace once::operators
