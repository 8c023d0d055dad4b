// Traces: a caller's context in the log, the record and the work, and the spans of calls.
#include <algorithm>
#include <set>

#include <once/engine/log.hpp>
#include <once/engine/tracer.hpp>

#include "engine_test.hpp"

namespace once::testing {
namespace trace_test {

constexpr std::string_view first_caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr std::string_view second_caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

struct Seen {
  std::string event;
  std::string trace;  // CallTrace::call.
};

class TraceTest : public EngineTest {
 protected:
  static Request traced(std::string_view key, std::string_view caller, std::optional<Policy> p = {}) {
    Request out = request(key, std::move(p));
    out.trace = trace_from(caller, "vendor=1");
    return out;
  }
  static Slot<Begin> begin_traced(const Process& p, std::string_view key, std::string_view caller) {
    Slot<Begin> slot;
    p->begin(traced(key, caller), slot.fill());
    return slot;
  }
  // An engine with a tracer.
  Process tracing(TracerOptions with = {}) {
    with.sink = [spans = spans](Span&& span) { spans->push_back(std::move(span)); };
    with.clock = clock;
    with.random = std::make_shared<SeededRandom>(++seed);
    with.wall = [clock = clock] { return std::chrono::nanoseconds(clock->now().time_since_epoch()); };
    return process([&](EngineOptions& o) { o.tracer = std::make_shared<Tracer>(std::move(with)); });
  }
  [[nodiscard]] Span take(std::string_view name) const {
    const auto found = std::find_if(spans->begin(), spans->end(), [&](const Span& span) { return span.name == name; });
    if (found == spans->end()) {
      ADD_FAILURE() << "no span " << name;
      return {};
    }
    Span span = std::move(*found);
    spans->erase(found);
    EXPECT_LE(span.start, span.end);
    EXPECT_FALSE(span.self.empty());
    return span;
  }
  static std::string attribute(const Span& span, std::string_view name) {
    for (const auto& [key, value] : span.attributes) {
      if (key != name) continue;
      if (const auto* text = std::get_if<std::string>(&value)) return *text;
      if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
      return std::get<bool>(value) ? "true" : "false";
    }
    return "(none)";
  }

  std::shared_ptr<std::vector<Span>> spans = std::make_shared<std::vector<Span>>();
};

TEST_F(TraceTest, WithoutATracerTheCallersSpanIsKeptAndPassedOn) {
  std::vector<Seen> seen;
  const Process p = process([&](EngineOptions& o) {
    o.observer = [&](const Event& event) {
      seen.push_back({std::string(to_string(event.kind)), event.trace == nullptr ? "" : event.trace->call.text()});
    };
  });
  Slot<Begin> begun = begin_traced(p, "a", first_caller);
  EXPECT_EQ(begun->claim.trace().parent.text(), first_caller);
  EXPECT_EQ(begun->claim.trace().state, "vendor=1");
  EXPECT_EQ(complete(begun->claim, "done")->kind, Finish::Kind::recorded);
  EXPECT_EQ(stored("a")->history.trace.text(), first_caller);
  EXPECT_TRUE(stored("a")->history.entries.empty());
  begin_traced(p, "a", second_caller);
  begin(p, "a");
  const std::vector<std::string> events{"claimed", "work_done", "completed", "replayed", "replayed"};
  ASSERT_EQ(seen.size(), events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(seen[i].event, events[i]);
    EXPECT_EQ(seen[i].trace, i < 3 ? first_caller : i == 3 ? second_caller : "");
  }
  EXPECT_EQ(stored("a")->history.trace.text(), first_caller) << "the attempt that ran, not the replay";
}

TEST_F(TraceTest, CallsWithoutAContextLeaveTheirRecordsAsTheyWere) {
  const Process p = process();
  Slot<Begin> begun = begin(p, "a");
  EXPECT_TRUE(begun->claim.trace().parent.empty());
  EXPECT_TRUE(complete(begun->claim, "done").ready());
  EXPECT_EQ(history_text(stored("a")->history), "");
}

TEST_F(TraceTest, AReplayFromTheCacheTellsItsCallersTrace) {
  std::vector<std::string> seen;
  const Process p = process([&](EngineOptions& o) {
    o.cache_records = 10;
    o.observer = [&](const Event& event) { seen.push_back(event.trace == nullptr ? "" : event.trace->call.text()); };
  });
  p->run(traced("a", first_caller), [] { return std::string("done"); });
  seen.clear();
  p->run(traced("a", second_caller), [] { return std::string("never"); });
  EXPECT_THAT(seen, ElementsAre(second_caller));
}

TEST_F(TraceTest, TheSpansOfACall) {
  const Process p = tracing({.call_kind = SpanKind::server, .work_kind = SpanKind::client, .store = "memory:"});
  Slot<Begin> begun = begin_traced(p, "a", first_caller);
  const TraceContext passed_on = begun->claim.trace();
  timers->advance(2s);
  EXPECT_TRUE(complete(begun->claim, "done").ready());
  const Span work = take("once.work");
  const Span call = take("once.call");
  EXPECT_TRUE(spans->empty());
  const TraceParent caller = *TraceParent::from_text(first_caller);
  EXPECT_EQ(call.self.trace_id, caller.trace_id);
  EXPECT_EQ(call.parent_id, caller.span_id);
  EXPECT_EQ(call.state, "vendor=1");
  EXPECT_EQ(work.self.trace_id, caller.trace_id);
  EXPECT_EQ(work.parent_id, call.self.span_id);
  EXPECT_EQ(work.self, passed_on.parent) << "the services that the work calls are below it";
  EXPECT_EQ(std::set({caller.span_id, call.self.span_id, work.self.span_id}).size(), 3U);
  EXPECT_EQ(call.kind, SpanKind::server);
  EXPECT_EQ(work.kind, SpanKind::client);
  EXPECT_EQ(work.end - work.start, 2s);
  EXPECT_LE(call.start, work.start);
  EXPECT_LE(work.end, call.end);
  EXPECT_EQ(attribute(call, "once.outcome"), "completed");
  EXPECT_EQ(attribute(call, "once.attempt"), "1");
  EXPECT_EQ(attribute(call, "once.scope"), "test");
  EXPECT_EQ(attribute(call, "once.store"), "memory:");
  EXPECT_EQ(attribute(call, "once.key_hash"), key_hash(Key("test", "a").stored()));
  EXPECT_FALSE(call.is_error);
  EXPECT_TRUE(call.links.empty());
  EXPECT_EQ(stored("a")->history.trace, work.self);
}

TEST_F(TraceTest, AReplayLinksToTheAttemptThatRan) {
  const Process p = tracing();
  p->run(request("a"), [] { return std::string("done"); });
  const Span work = take("once.work");
  EXPECT_EQ(take("once.call").parent_id, (std::array<std::uint8_t, 8>{}))
      << "without a caller's context it is the root";
  p->run(traced("a", second_caller), [] { return std::string("never"); });
  const Span replay = take("once.call");
  EXPECT_TRUE(spans->empty()) << "a replay has no work";
  EXPECT_EQ(attribute(replay, "once.outcome"), "replayed");
  EXPECT_EQ(replay.self.trace_id, TraceParent::from_text(second_caller)->trace_id);
  ASSERT_EQ(replay.links.size(), 1U);
  EXPECT_EQ(replay.links[0].first, work.self);
  EXPECT_EQ(replay.links[0].second, "attempt");
}

// 1. A claims and dies. 2. B takes over and completes. 3. C's replay links to B's work, not to A's.
TEST_F(TraceTest, AfterATakeoverTheReplayLinksToTheOneThatRan) {
  const Process a = tracing();
  Slot<Begin> lost = begin(a, "k");
  const TraceParent lost_work = lost->claim.trace().parent;
  lost->claim = Claim();  // Nothing is written: its lease runs out.
  EXPECT_EQ(attribute(take("once.call"), "once.outcome"), "abandoned");
  static_cast<void>(take("once.work"));
  timers->advance(20s);
  const Process b = tracing();
  b->run(request("k"), [] { return std::string("done"); });
  const Span work = take("once.work");
  const Span call = take("once.call");
  EXPECT_EQ(attribute(call, "once.attempt"), "2");
  ASSERT_EQ(call.links.size(), 1U);
  EXPECT_EQ(call.links[0].first, lost_work);
  EXPECT_EQ(call.links[0].second, "previous");
  const Record record = stored("k").value();
  EXPECT_EQ(record.history.trace, work.self);
  EXPECT_EQ(record.history.entries.at(0).trace, lost_work);
  begin(tracing(), "k");
  const Span replay = take("once.call");
  ASSERT_EQ(replay.links.size(), 1U);
  EXPECT_EQ(replay.links[0].first, work.self);
}

TEST_F(TraceTest, WorkThatThrowsEndsItsSpansOnce) {
  const Process p = tracing();
  EXPECT_THROW(p->run(request("a"), []() -> std::string { throw std::runtime_error("boom"); }), std::runtime_error);
  static_cast<void>(take("once.work"));
  EXPECT_EQ(attribute(take("once.call"), "once.outcome"), "released");
  Policy storing = policy();
  storing.on_throw = OnThrow::store;
  EXPECT_THROW(p->run(request("a", storing), []() -> std::string { throw std::runtime_error("boom"); }),
               std::runtime_error);
  static_cast<void>(take("once.work"));
  const Span failed = take("once.call");
  EXPECT_EQ(attribute(failed, "once.outcome"), "failed");
  EXPECT_EQ(attribute(failed, "error.type"), "std::runtime_error");
  EXPECT_TRUE(failed.is_error);
  p->run(request("a"), [] { return std::string("never"); });
  const Span again = take("once.call");
  EXPECT_EQ(attribute(again, "once.outcome"), "stored_failure");
  EXPECT_TRUE(again.is_error);
  EXPECT_TRUE(spans->empty());
}

TEST_F(TraceTest, AConflictLinksToItsHolder) {
  const Process p = tracing();
  Slot<Begin> held = begin(p, "a");
  begin(p, "a");
  const Span conflict = take("once.call");
  EXPECT_EQ(attribute(conflict, "once.outcome"), "conflict");
  ASSERT_EQ(conflict.links.size(), 1U);
  EXPECT_EQ(conflict.links[0].first, held->claim.trace().parent);
  EXPECT_EQ(conflict.links[0].second, "holder");
  EXPECT_TRUE(complete(held->claim, "done").ready());
}

TEST_F(TraceTest, AStoreThatFailsIsAnError) {
  const Process p = tracing();
  store->script({Next::fail});
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::error);
  const Span call = take("once.call");
  EXPECT_TRUE(call.is_error);
  EXPECT_EQ(attribute(call, "once.outcome"), "error");
  EXPECT_EQ(attribute(call, "error.type"), "unavailable");
  EXPECT_NE(call.message, "");
  EXPECT_TRUE(spans->empty());
}

TEST_F(TraceTest, TheSamplerDecidesByTheCallerOrByTheTraceId) {
  const auto spans_of = [&](Sampler sampler, std::string_view caller) {
    const Process p = tracing({.sampler = sampler});
    p->run(caller.empty() ? request("k" + std::to_string(++seed)) : traced("k" + std::to_string(++seed), caller),
           [] { return std::string("done"); });
    return std::exchange(*spans, {}).size();
  };
  const std::string unsampled = std::string(first_caller.substr(0, 53)) + "00";
  EXPECT_EQ(spans_of({}, {}), 2U);
  EXPECT_EQ(spans_of({}, first_caller), 2U);
  EXPECT_EQ(spans_of({}, unsampled), 0U);
  EXPECT_EQ(spans_of({.asks_parent = false}, unsampled), 2U);
  EXPECT_EQ(spans_of({.ratio = 0}, {}), 0U);
  EXPECT_EQ(spans_of({.ratio = 0}, first_caller), 2U);
  EXPECT_EQ(spans_of({.asks_parent = false, .ratio = 0}, first_caller), 0U);
  // The last half of its id is 0x8448eb211c80319c of 2^64, which is 51.7 %.
  EXPECT_EQ(spans_of({.asks_parent = false, .ratio = 0.517}, first_caller), 2U);
  EXPECT_EQ(spans_of({.asks_parent = false, .ratio = 0.516}, first_caller), 0U);
  // What is not recorded is passed on all the same.
  const Process p = tracing({.sampler = {.ratio = 0}});
  Slot<Begin> begun = begin(p, "unsampled");
  EXPECT_FALSE(begun->claim.trace().parent.empty());
  EXPECT_FALSE(begun->claim.trace().parent.sampled);
  EXPECT_TRUE(complete(begun->claim, "done").ready());
}

TEST_F(TraceTest, ACallWithoutAContextHasTheCurrentOne) {
  const Process p = tracing({.current = [] { return trace_from(first_caller); }});
  p->run(request("a"), [] { return std::string("done"); });
  EXPECT_EQ(take("once.call").self.trace_id, TraceParent::from_text(first_caller)->trace_id);
  p->run(traced("b", second_caller), [] { return std::string("done"); });
  EXPECT_EQ(take("once.call").self.trace_id, TraceParent::from_text(second_caller)->trace_id);
}

TEST_F(TraceTest, ScopesCanBeLeftOut) {
  const Process p = tracing({.scopes = false});
  p->run(request("a"), [] { return std::string("done"); });
  EXPECT_EQ(attribute(take("once.call"), "once.scope"), "(none)");
}

TEST(Tracer, NeedsASink) { EXPECT_THROW(Tracer({}), Exception); }

}  // namespace trace_test
}  // namespace once::testing
