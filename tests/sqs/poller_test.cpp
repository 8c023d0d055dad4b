// The poller of SQS: which messages are run, deleted, left, given back, in which order; and its requests to the queue.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <latch>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/frontends/sqs/poller.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/virtual_time.hpp"
#include "fake_sqs.hpp"

namespace once::testing {
namespace {

using namespace std::chrono_literals;
using sqs::Message;
using sqs::Poller;
using sqs::PollerOptions;
using sqs::PollEvent;
using sqs::WorkEnd;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class PollerTest : public VirtualTimeTest {
 protected:
  PollerOptions options() {
    PollerOptions o;
    o.queue = "orders";
    o.parallel = 4;
    o.receive_wait = 0s;
    o.drain = true;
    o.observer = [this](const PollEvent& event) {
      const std::lock_guard lock(mutex);
      std::string line(event.id);
      switch (event.kind) {
        case PollEvent::Kind::ended:
          line += " " + std::string(to_string(event.end)) + (event.deleted ? " deleted" : " stays") +
                  (event.parked ? " parked" : "");
          break;
        case PollEvent::Kind::given_back:
          line += " given back";
          break;
        case PollEvent::Kind::overdue:
          line += " overdue";
          break;
        case PollEvent::Kind::not_hidden:
          line += " not hidden";
          break;
        case PollEvent::Kind::not_deleted:
          line += " not deleted";
          break;
        case PollEvent::Kind::pause:
          line += "pause " + std::to_string(event.pause.count());
          break;
        case PollEvent::Kind::abandoned:
          line += "abandoned";
          break;
      }
      told.push_back(line);
      whys.emplace_back(event.why);
    };
    return o;
  }
  template <class Change>
  PollerOptions options(Change change) {
    PollerOptions o = options();
    change(o);
    return o;
  }

  // Notes the message, and fails it as often as `failures` says.
  sqs::PolledWork work() {
    return [this](const Message& message, Claim&) -> WorkEnd {
      note(message.id);
      const std::lock_guard lock(mutex);
      if (failures[message.id]-- > 0) {
        return {.kind = WorkEnd::Kind::released, .failure = {.message = "not now"}};
      }
      return {.kind = WorkEnd::Kind::completed, .result = Result::inlined("done " + message.id)};
    };
  }
  void note(const std::string& id) {
    const std::lock_guard lock(mutex);
    ran.push_back(id);
  }
  [[nodiscard]] std::vector<std::string> ran_in(const std::string& group) {
    const std::lock_guard lock(mutex);
    std::vector<std::string> out;
    for (const std::string& id : ran) {
      if (id.starts_with(group)) out.push_back(id);
    }
    return out;
  }
  [[nodiscard]] bool was_told(const std::string& line) {
    const std::lock_guard lock(mutex);
    return std::find(told.begin(), told.end(), line) != told.end();
  }

  // A poller that works on its own thread, while the test advances time.
  class Running {
   public:
    explicit Running(Poller& poller)
        : poller_(&poller), thread_([this] {
            try {
              poller_->run();
            } catch (...) {  // For the test: join() throws it.
              failed_ = std::current_exception();
            }
            over_ = true;
          }) {}
    [[nodiscard]] bool over() const { return over_; }
    [[nodiscard]] bool has_messages() const {
      const sqs::PollCounts counts = poller_->counts();
      return counts.received > counts.deleted + counts.stayed;
    }
    void join() {
      thread_.join();
      if (failed_) std::rethrow_exception(failed_);
    }

   private:
    Poller* poller_;
    std::atomic<bool> over_{false};
    std::exception_ptr failed_;
    std::jthread thread_;  // Last: it uses the others.
  };

  // Lets time pass until it has ended.
  void let_end(Running& running) {
    let_pass_until(running, [&] { return running.over(); });
    running.join();
  }
  // Lets no time pass while it has messages: however late the machine runs its threads, no visibility and no lease
  // ends meanwhile.
  template <class Reached>
  void let_pass_until(Running& running, Reached reached) {
    while (!reached()) {
      if (!queue->is_asked() && !running.has_messages()) let_pass();
      std::this_thread::yield();
    }
  }
  // Until the next timer, but not that of another attempt's lease, which is hours away.
  void let_pass() {
    if (const auto next = timers->next(); next && *next < clock->uptime() + 1min) timers->run_next();
  }

  void run(Poller& poller) {
    Running running(poller);
    let_end(running);
  }
  void run(PollerOptions with) {
    Poller poller(engine, queue, queue, std::move(with), work());
    run(poller);
  }
  std::optional<Record> stored(std::string_view name, std::string_view scope = "orders") {
    return copy_of(blocking::get(*store, Key(scope, name).stored()).record);
  }

  std::shared_ptr<FakeSqs> queue = std::make_shared<FakeSqs>(clock);
  std::mutex mutex;
  std::vector<std::string> ran;
  std::vector<std::string> told;
  std::vector<std::string> whys;
  std::map<std::string, int> failures;
};

TEST_F(PollerTest, EachMessageIsRunOnceAndDeletedWhenItsResultIsDurable) {
  for (const char* id : {"a", "b", "c", "d", "e", "f"}) queue->send(id);
  queue->on_call([&](const std::string& operation, const nlohmann::json& body) {
    if (operation == "DeleteMessage") {
      const auto handle = body.at("ReceiptHandle").get<std::string>();
      EXPECT_EQ(stored(handle.substr(0, 1))->state, State::completed);
    }
    return FakeSqs::Fault{};
  });
  Poller poller(engine, queue, queue, options(), work());
  run(poller);
  EXPECT_THAT(ran, UnorderedElementsAre("a", "b", "c", "d", "e", "f"));
  EXPECT_EQ(queue->left(), 0U);
  EXPECT_EQ(stored("a")->result.bytes, "done a");
  EXPECT_EQ(poller.counts().received, 6U);
  EXPECT_EQ(poller.counts().deleted, 6U);
  EXPECT_EQ(poller.counts().stayed, 0U);
}

// The thread is stopped between the claim's answer and the work: here by the engine's observer.
TEST_F(PollerTest, NoWorkBeginsOnALeaseThatIsOver) {
  int stops = 1;
  EngineOptions with = engine_options(store);
  with.policy.heartbeat = false;
  with.observer = [&](const Event& event) {
    if (event.kind == EventKind::claimed && stops-- > 0) clock->advance(1h);
  };
  Engine stopped(std::move(with));
  queue->send("a");
  const auto late = [&](PollerOptions& o) { o.visibility = 12h; };
  Poller poller(stopped, queue, queue, options(late), [&](const Message& message, Claim& claim) -> WorkEnd {
    EXPECT_TRUE(claim.is_ours());
    return work()(message, claim);
  });
  run(poller);
  EXPECT_THAT(ran, ElementsAre("a")) << "claimed anew";
  EXPECT_EQ(queue->left(), 0U);

  stops = 100;
  queue->send("b");
  Poller never(stopped, queue, queue, options(late), work());
  run(never);
  EXPECT_THAT(ran, ElementsAre("a"));
  EXPECT_TRUE(was_told("b error stays"));
  EXPECT_THAT(whys, ::testing::Contains(HasSubstr("use a longer lease")));
  EXPECT_FALSE(stored("b").has_value()) << "given up";
}

TEST_F(PollerTest, AsManyAreAtWorkAsItSays) {
  std::barrier four(4);
  for (int i = 0; i < 8; ++i) queue->send("m" + std::to_string(i));
  Poller poller(engine, queue, queue, options(), [&](const Message&, Claim&) -> WorkEnd {
    four.arrive_and_wait();
    return {};
  });
  run(poller);
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, WhatWasDoneBeforeIsDeletedWithoutBeingRun) {
  for (const char* id : {"a", "b", "c"}) queue->send(id, R"({"order": 1})");
  queue->send("d", R"({"order": 2})");
  run(options([](PollerOptions& o) {
    o.key_source = sqs::KeySource::record;
    o.key = "powertools_json(body).order";
  }));
  EXPECT_THAT(ran, UnorderedElementsAre("a", "d"));
  EXPECT_EQ(queue->left(), 0U);
  EXPECT_TRUE(was_told("b replayed deleted"));
}

TEST_F(PollerTest, WhatIsDoneIsDeletedWhoeverCannotFetchItsResult) {
  Claim claim = claimed(engine, "orders", "a");
  ASSERT_EQ(claim.complete(out_of_reach()).kind, Finish::Kind::recorded);
  queue->send("a");
  run(options());
  EXPECT_THAT(told, ElementsAre("a replayed deleted")) << "and no pause";
  EXPECT_THAT(ran, IsEmpty());
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, WhatFailedForGoodIsDeletedWhoeverCannotFetchItsOutput) {
  Claim claim = claimed(engine, "orders", "a");
  ASSERT_EQ(claim.fail({.code = "exit 3", .message = "no"}, out_of_reach()).kind, Finish::Kind::recorded);
  queue->send("a");
  run(options());
  EXPECT_THAT(told, ElementsAre("a stored_failure deleted")) << "and no pause";
  EXPECT_THAT(ran, IsEmpty());
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, WhatFailsComesAgainAndIsDeadAtLast) {
  queue->dead_letters_after(3);
  queue->send("a");
  queue->send("b");
  failures = {{"a", 2}, {"b", 99}};
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.retry_after = 0s; }), work());
  run(poller);
  EXPECT_EQ(ran_in("a").size(), 3U);
  EXPECT_EQ(ran_in("b").size(), 3U);
  EXPECT_TRUE(queue->entry("a").deleted);
  EXPECT_TRUE(queue->entry("b").dead);
  EXPECT_EQ(poller.counts().left, 1U);
  EXPECT_FALSE(stored("b").has_value()) << "released";
}

TEST_F(PollerTest, AMessageThatComesBackWhileTheQueueIsAskedIsNotLeftBehind) {
  queue->send("a");
  failures = {{"a", 1}};
  std::latch begun(1);
  std::latch end(1);
  std::atomic<int> asked{0};
  queue->on_call([&](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    // The second request finds nothing, and its answer comes after the message is back.
    if (operation == "ReceiveMessage" && ++asked == 2) {
      fault.hold = true;
      fault.instead = good_reply(nlohmann::json::object());
    }
    return fault;
  });
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.retry_after = 0s; }),
                [&](const Message& message, Claim& claim) -> WorkEnd {
                  if (asked <= 2) {
                    begun.count_down();
                    end.wait();
                  }
                  return work()(message, claim);
                });
  Running running(poller);
  begun.wait();
  queue->wait_for_held();
  end.count_down();
  while (poller.counts().stayed == 0) std::this_thread::yield();
  queue->answer_held();
  let_end(running);
  EXPECT_THAT(ran, ElementsAre("a", "a"));
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, WithoutRetryAfterItComesWhenItsVisibilityEnds) {
  queue->send("a");
  failures = {{"a", 1}};
  run(options([](PollerOptions& o) { o.visibility = 12h; }));
  EXPECT_THAT(ran, ElementsAre("a")) << "the queue looks empty until then";
  clock->advance(12h);
  run(options());
  EXPECT_THAT(ran, ElementsAre("a", "a"));
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, GroupsKeepTheirOrderThroughFailures) {
  queue = std::make_shared<FakeSqs>(clock, true);
  for (const char* id : {"a1", "b1", "a2", "a3", "b2", "a4"}) queue->send(id, "{}", std::string(id, 1));
  failures = {{"a2", 2}};
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.retry_after = 0s; }), work());
  run(poller);
  EXPECT_THAT(ran_in("a"), ElementsAre("a1", "a2", "a2", "a2", "a3", "a4"));
  EXPECT_THAT(ran_in("b"), ElementsAre("b1", "b2"));
  EXPECT_TRUE(was_told("a3 given back"));
  EXPECT_EQ(queue->left(), 0U);
  EXPECT_GE(poller.counts().stayed, 2U);
  EXPECT_EQ(poller.counts().left, 0U) << "those that stayed were deleted since";
}

TEST_F(PollerTest, WhatSomebodyElseIsAtIsHiddenForAsLongAsThatMayTake) {
  Engine other(engine_options(store));
  Policy policy;
  policy.lease = 10h;
  policy.heartbeat = false;
  Begin begin = other.begin(Request{.key = Key("orders", "a"), .fingerprint = {}, .policy = policy, .holder = {}});
  ASSERT_EQ(begin.kind, Begin::Kind::claimed);
  const Uptime claimed_at = clock->uptime();
  queue->send("a");
  run(options([](PollerOptions& o) { o.retry_after = 0s; }));
  EXPECT_TRUE(was_told("a conflict stays"));
  EXPECT_THAT(ran, IsEmpty());
  EXPECT_EQ(queue->entry("a").visible_at, claimed_at + 10h);
  begin.claim.complete(Result::inlined("theirs"));
  clock->advance(11h);
  run(options());
  EXPECT_TRUE(was_told("a replayed deleted"));
  EXPECT_THAT(ran, IsEmpty());
}

TEST_F(PollerTest, AMessagesKeyIsALabelIfThatIsChosen) {
  const auto labels = [this] {
    std::vector<std::string> out;
    for (const Record& record : blocking::list(*store, {}).records) out.push_back(record.label);
    return out;
  };
  queue->send("a", R"({"order": "order-17"})");
  const auto by_order = [](PollerOptions& o) {
    o.key_source = queues::KeySource::payload;
    o.key = "order";
  };
  run(options(by_order));
  EXPECT_THAT(labels(), ElementsAre(""));
  queue->send("b", R"({"order": "order-18"})");
  run(options([&](PollerOptions& o) {
    by_order(o);
    o.policy = Policy{.label = Label::all};
  }));
  EXPECT_THAT(labels(), UnorderedElementsAre("", "order-18"));
}

TEST_F(PollerTest, AMessagesBodyIsItsInputIfThatIsChosen) {
  const auto keeping = [](PollerOptions& o) {
    o.input_without = {"card.number"};
    o.policy = Policy{.keep_input = true};
  };
  queue->send("off", R"({"card": {"number": "4111"}})");
  run(options());
  queue->send("on", R"({"card": {"number": "4111"}, "order": 17})");
  queue->send("form", "number=4111");
  run(options(keeping));
  std::vector<std::string> inputs;
  for (const Record& record : blocking::list(*store, {}).records) inputs.push_back(record.input);
  EXPECT_THAT(inputs, UnorderedElementsAre("", R"j({"card":{"number":"(left out)"},"order":17})j", ""));
  EXPECT_THAT(ran, UnorderedElementsAre("off", "on", "form")) << "it decides nothing";
}

TEST_F(PollerTest, WhileTheWorkLivesNobodyElseReceivesIt) {
  queue->send("a");
  std::latch begun(1);
  std::latch end(1);
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.visibility = 30s; }),
                [&](const Message&, Claim&) -> WorkEnd {
                  begun.count_down();
                  end.wait();
                  return {};
                });
  Running running(poller);
  begun.wait();
  const Time before = clock->now();
  while (clock->now() < before + 5min) {  // Far beyond visibility and lease.
    timers->run_next();
    EXPECT_GT(queue->entry("a").visible_at, clock->uptime());
    EXPECT_GT(stored("a")->lease_until, clock->now());
  }
  end.count_down();
  let_end(running);
  EXPECT_EQ(queue->entry("a").receipts, 1);
  EXPECT_GE(queue->calls("ChangeMessageVisibility").size(), 29U) << "every 10 s";
}

TEST_F(PollerTest, AMessageIsHiddenForAsLongAsTheQueueAllowsAndNoLonger) {
  queue->send("a");
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.retry_after = 12h; }),
                [&](const Message&, Claim&) -> WorkEnd {
                  clock->advance(10s);
                  return {.kind = WorkEnd::Kind::released};
                });
  run(poller);
  EXPECT_EQ(queue->entry("a").visible_at, queue->entry("a").received_at + 12h - 1s);
  EXPECT_THAT(told, ElementsAre("a failed stays"));
}

TEST_F(PollerTest, WorkThatIsLongerThanTheQueueAllowsIsOverdueThenAndNotBefore) {
  queue->send("a");
  std::latch begun(1);
  std::latch end(1);
  Poller poller(engine, queue, queue, options([](PollerOptions& o) {
                  o.parallel = 1;
                  o.visibility = 12h;
                  o.policy.emplace();
                  o.policy->lease = 24h;
                }),
                [&](const Message&, Claim&) -> WorkEnd {
                  begun.count_down();
                  end.wait();
                  return {};
                });
  Running running(poller);
  begun.wait();
  const Uptime received_at = queue->entry("a").received_at;
  while (clock->uptime() < received_at + 12h - 1s) {
    EXPECT_FALSE(was_told("a overdue"));
    timers->run_next();
  }
  EXPECT_EQ(queue->entry("a").visible_at, received_at + 12h - 1s);
  EXPECT_TRUE(was_told("a overdue"));
  end.count_down();
  let_end(running);
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, AMessageThatCannotBeHiddenIsTold) {
  queue->send("a");
  failures = {{"a", 1}};
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ChangeMessageVisibility") fault.instead = error_reply("InvalidParameterValue");
    return fault;
  });
  run(options([](PollerOptions& o) { o.retry_after = 1h; }));
  EXPECT_THAT(told, ElementsAre("a failed stays", "a not hidden"));
}

TEST_F(PollerTest, AVisibilityThatCannotBeProlongedIsToldOnceAndTheClaimProtects) {
  queue->send("a");
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ChangeMessageVisibility") fault.instead = error_reply("InvalidParameterValue");
    return fault;
  });
  std::latch begun(1);
  std::latch end(1);
  Poller poller(engine, queue, queue, options(), [&](const Message& message, Claim&) -> WorkEnd {
    note(message.id);
    begun.count_down();
    end.wait();
    return {};
  });
  Running running(poller);
  begun.wait();
  const Time before = clock->now();
  while (clock->now() < before + 2min) {
    timers->run_next();
    std::this_thread::yield();
  }
  end.count_down();
  let_end(running);
  EXPECT_THAT(ran, ElementsAre("a")) << "received again meanwhile, and not run";
  EXPECT_TRUE(was_told("a overdue"));
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, ALostAnswerOfTheDeletionIsHarmless) {
  queue->send("lost-before");
  queue->send("lost-after");
  std::set<std::string> lost;
  queue->on_call([&](const std::string& operation, const nlohmann::json& body) {
    FakeSqs::Fault fault;
    if (operation != "DeleteMessage") return fault;
    const auto handle = body.at("ReceiptHandle").get<std::string>();
    if (!lost.insert(handle.substr(0, handle.find('/'))).second) return fault;
    const aws::Reply none = no_reply(ErrorKind::in_doubt, "the connection was lost");
    (handle.starts_with("lost-before") ? fault.instead : fault.after) = none;
    return fault;
  });
  run(options());
  EXPECT_TRUE(was_told("lost-before not deleted"));
  clock->advance(1min);
  run(options());
  EXPECT_TRUE(was_told("lost-before replayed deleted"));
  EXPECT_THAT(ran, UnorderedElementsAre("lost-before", "lost-after"));
  EXPECT_EQ(queue->left(), 0U);
}

TEST_F(PollerTest, StoppedItEndsWhatRunsAndGivesTheRestBack) {
  queue = std::make_shared<FakeSqs>(clock, true);
  for (const char* id : {"a1", "a2", "a3"}) queue->send(id, "{}", "a");
  std::latch begun(1);
  std::latch end(1);
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }),
                [&](const Message& message, Claim&) -> WorkEnd {
                  note(message.id);
                  begun.count_down();
                  end.wait();
                  return {};
                });
  std::thread thread([&] { poller.run(); });
  begun.wait();
  while (queue->entry("a3").receipts == 0) std::this_thread::yield();
  poller.stop();
  EXPECT_TRUE(was_told("a2 given back"));
  EXPECT_LE(queue->entry("a2").visible_at, clock->uptime());
  EXPECT_LE(queue->entry("a3").visible_at, clock->uptime());
  end.count_down();
  thread.join();
  EXPECT_THAT(ran, ElementsAre("a1"));
  EXPECT_TRUE(queue->entry("a1").deleted);
  EXPECT_EQ(queue->left(), 2U);
}

TEST_F(PollerTest, WhatIsReleasedAfterTheStopIsVisibleAtOnceAndNothingElse) {
  for (const char* id : {"released", "down", "lapses", "held"}) queue->send(id);
  std::latch begun(4);
  std::latch end(1);
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }),
                [&](const Message& message, Claim&) -> WorkEnd {
                  begun.count_down();
                  end.wait();
                  if (message.id == "released") return {.kind = WorkEnd::Kind::released};
                  if (message.id == "down") return {.kind = WorkEnd::Kind::unavailable};
                  return {.kind = message.id == "held" ? WorkEnd::Kind::held : WorkEnd::Kind::lapses};
                });
  std::thread thread([&] { poller.run(); });
  begun.wait();
  poller.stop();
  end.count_down();
  thread.join();
  EXPECT_EQ(queue->entry("released").visible_at, clock->uptime());
  EXPECT_EQ(queue->entry("down").visible_at, clock->uptime());
  EXPECT_EQ(queue->entry("lapses").visible_at, clock->uptime() + 30s);
  EXPECT_EQ(queue->entry("held").visible_at, clock->uptime() + 30s);
}

TEST_F(PollerTest, WhatArrivesAfterTheStopIsGivenBack) {
  queue->send("a");
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    fault.hold = operation == "ReceiveMessage";
    return fault;
  });
  std::optional<Poller> poller;
  poller.emplace(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }), work());
  std::thread thread([&] {
    poller->run();
    note("over");
    poller.reset();  // As a program that ends.
  });
  queue->wait_for_held();
  poller->stop();
  queue->answer_held();
  thread.join();
  EXPECT_EQ(queue->entry("a").receipts, 1);
  EXPECT_LE(queue->entry("a").visible_at, clock->uptime());
  EXPECT_THAT(ran, ElementsAre("over"));
  EXPECT_THAT(told, ElementsAre("a given back"));
}

TEST_F(PollerTest, StoppedItWaitsForAnAnswerForAsLongAsOneMayTakeAndNotWhenItIsAbandoned) {
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    fault.hold = operation == "ReceiveMessage";
    return fault;
  });
  for (const bool abandons : {false, true}) {
    Poller poller(engine, queue, queue, options([](PollerOptions& o) {
                    o.drain = false;
                    o.receive_wait = 20s;
                  }),
                  work());
    std::atomic<bool> over{false};
    std::thread thread([&] {
      poller.run();
      over = true;
    });
    queue->wait_for_held();
    const Time before = clock->now();
    poller.stop();
    EXPECT_FALSE(over);
    if (abandons) {
      poller.abandon();
    } else {
      while (!over) {
        timers->run_next();
        std::this_thread::yield();
      }
    }
    thread.join();
    EXPECT_EQ(clock->now() - before, abandons ? 0s : 25s);
    EXPECT_THAT(told, ElementsAre("abandoned")) << "after 25 s nobody expects an answer any more, but it may be there";
    told.clear();
    queue->answer_held();
  }
}

TEST_F(PollerTest, AnAnswerThatComesAfterItsEndDoesNothing) {
  queue->send("a");
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    fault.hold = operation == "ReceiveMessage";
    return fault;
  });
  {
    Engine gone(engine_options(store));
    Poller poller(gone, queue, queue, options([](PollerOptions& o) { o.drain = false; }), work());
    std::thread thread([&] { poller.run(); });
    queue->wait_for_held();
    poller.stop();
    poller.abandon();
    thread.join();
  }
  queue->answer_held();  // The queue lives on, as a transport that others have as well.
  EXPECT_THAT(told, ElementsAre("abandoned"));
  EXPECT_THAT(queue->calls("ChangeMessageVisibility"), IsEmpty());
}

TEST_F(PollerTest, ARequestThatFailsAfterTheStopEndsIt) {
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    fault.hold = operation == "ReceiveMessage";
    if (fault.hold) fault.instead = no_reply(ErrorKind::unavailable, "the connection was lost");
    return fault;
  });
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }), work());
  std::thread thread([&] { poller.run(); });
  queue->wait_for_held();
  poller.stop();
  queue->answer_held();
  thread.join();
  EXPECT_THAT(told, IsEmpty()) << "no pause";
}

TEST_F(PollerTest, AQueueThatIsGoneEndsIt) {
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ReceiveMessage") fault.instead = error_reply("QueueDoesNotExist");
    return fault;
  });
  try {
    run(options([](PollerOptions& o) { o.drain = false; }));
    ADD_FAILURE() << "no error";
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    EXPECT_THAT(error.what(), HasSubstr("'orders'"));
    EXPECT_THAT(error.what(), HasSubstr("deleted"));
  }
}

TEST_F(PollerTest, RefusalsAfterItWorkedArePauses) {
  for (const char* const code : {"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "AccessDenied",
                                 "AccessDeniedException", "KmsAccessDenied", "ExpiredToken"}) {
    queue = std::make_shared<FakeSqs>(clock);
    ran.clear();
    told.clear();
    queue->send(std::string("before-") + code);
    std::atomic<int> receives{0};
    queue->on_call([&](const std::string& operation, const nlohmann::json&) {
      FakeSqs::Fault fault;
      const int number = operation == "ReceiveMessage" ? ++receives : 0;
      if (number >= 3 && number <= 6) fault.instead = error_reply(code);
      return fault;
    });
    Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }), work());
    Running running(poller);
    let_pass_until(running, [&] { return !poller.counts().refusal.empty(); });
    EXPECT_THAT(poller.counts().refusal, HasSubstr(code));
    queue->send(std::string("after-") + code);
    let_pass_until(running, [&] { return poller.counts().deleted == 2; });
    EXPECT_EQ(poller.counts().refusal, "");
    poller.stop();
    let_end(running);
    EXPECT_THAT(ran, ElementsAre(std::string("before-") + code, std::string("after-") + code));
    const std::lock_guard lock(mutex);
    std::vector<std::string> pauses;
    for (const std::string& line : told) {
      if (line.starts_with("pause")) pauses.push_back(line);
    }
    EXPECT_THAT(pauses, ElementsAre("pause 250", "pause 500", "pause 1000", "pause 2000"));
  }
}

TEST_F(PollerTest, RetryDelayDoublesWithReceipts) {
  queue->send("a");
  queue->dead_letters_after(6);
  const sqs::PolledWork fails = [](const Message&, Claim&) -> WorkEnd {
    return {.kind = WorkEnd::Kind::released, .failure = {.message = "not now"}};
  };
  const auto growing = options([](PollerOptions& o) {
    o.retry_after = 5s;
    o.retry_after_limit = 60s;
  });
  for (int receipt = 0; receipt < 6; ++receipt) {
    Poller poller(engine, queue, queue, growing, fails);
    run(poller);
    clock->advance(1h);
  }
  std::vector<int> delays;
  for (const nlohmann::json& call : queue->calls("ChangeMessageVisibility"))
    delays.push_back(call.at("VisibilityTimeout"));
  EXPECT_THAT(delays, ElementsAre(5, 10, 20, 40, 60, 60));
}

TEST_F(PollerTest, HoldTakesNoIdOfAMessage) {
  const auto with = [&](sqs::KeySource source, const std::string& key) {
    Poller(engine, queue, queue, options([&](PollerOptions& o) {
             o.key_source = source;
             o.key = key;
             o.policy = Policy{.on_lapse = OnLapse::hold};
           }),
           work());
  };
  EXPECT_THROW(with(sqs::KeySource::id, ""), Exception);
  EXPECT_THROW(with(sqs::KeySource::deduplication_id, ""), Exception);
  EXPECT_NO_THROW(with(sqs::KeySource::payload, "order"));
}

TEST_F(PollerTest, WithoutCredentialsNothingIsTriedAgain) {
  queue->on_call([](const std::string&, const nlohmann::json&) {
    FakeSqs::Fault fault;
    fault.instead = no_reply(ErrorKind::misuse, "no credentials: ...");
    return fault;
  });
  EXPECT_THROW(run(options()), Exception);
  EXPECT_THAT(queue->calls("ReceiveMessage"), IsEmpty());
}

TEST_F(PollerTest, WhileTheQueueDoesNotAnswerItPausesForLongerEachTime) {
  queue->send("a");
  int refused = 0;
  queue->on_call([&](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ReceiveMessage" && ++refused <= 9) {
      fault.instead = no_reply(ErrorKind::unavailable, "throttled");
    }
    return fault;
  });
  Poller poller(engine, queue, queue, options([](PollerOptions& o) { o.drain = false; }), work());
  Running running(poller);
  let_pass_until(running, [&] { return queue->left() == 0; });
  poller.stop();
  running.join();
  std::vector<std::string> pauses = told;
  std::erase_if(pauses, [](const std::string& line) { return !line.starts_with("pause"); });
  EXPECT_THAT(pauses, ElementsAre("pause 250", "pause 500", "pause 1000", "pause 2000", "pause 4000", "pause 8000",
                                  "pause 16000", "pause 20000", "pause 20000"));
}

TEST_F(PollerTest, DrainingGivesUpAQueueThatDoesNotAnswer) {
  queue->on_call([](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ReceiveMessage") fault.instead = no_reply(ErrorKind::unavailable, "throttled");
    return fault;
  });
  EXPECT_THROW(run(options()), Exception);
  EXPECT_THAT(queue->calls("ReceiveMessage"), SizeIs(3));
}

TEST_F(PollerTest, WithoutAStoreNothingIsRunAndItPauses) {
  queue->send("a");
  const auto faulty =
      std::make_shared<FaultyStore>(store, [](const StoreCall&) { return Fault{.kind = Fault::Kind::unavailable}; });
  Engine unlucky(engine_options(faulty));
  Poller poller(unlucky, queue, queue, options(), work());
  run(poller);
  EXPECT_THAT(ran, IsEmpty());
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_TRUE(was_told("a error stays"));
  EXPECT_TRUE(was_told("pause 250"));
}

TEST_F(PollerTest, WhileTheServiceIsDownFewReceiptsAreSpent) {
  queue->send("a");
  std::atomic<bool> down{true};
  Poller poller(engine, queue, queue, options([](PollerOptions& o) {
                  o.drain = false;
                  o.parallel = 1;  // Else a request that is under way may bring it once more.
                  o.retry_after = 0s;
                }),
                [&](const Message& message, Claim& claim) -> WorkEnd {
                  if (down) return {.kind = WorkEnd::Kind::unavailable, .failure = {.message = "no connection"}};
                  return work()(message, claim);
                });
  Running running(poller);
  std::ptrdiff_t pauses = 0;
  for (const Millis span : {250ms, 500ms, 1'000ms, 2'000ms, 4'000ms, 8'000ms, 16'000ms, 20'000ms, 20'000ms}) {
    ++pauses;
    const auto is_pausing = [&] {
      const std::lock_guard lock(mutex);
      return std::count_if(told.begin(), told.end(), [](const auto& line) { return line.starts_with("pause"); }) ==
             pauses;
    };
    while (!is_pausing() || running.has_messages() || queue->is_asked()) std::this_thread::yield();
    EXPECT_TRUE(was_told("pause " + std::to_string(span.count())));
    if (pauses == 9) down = false;
    timers->advance(span);
  }
  let_pass_until(running, [&] { return queue->left() == 0; });
  poller.stop();
  running.join();
  EXPECT_EQ(queue->entry("a").receipts, 10) << "one for each pause, and the last";
  EXPECT_EQ(stored("a")->state, State::completed);
  EXPECT_THAT(whys, ::testing::Contains("no connection"));
}

TEST_F(PollerTest, AResultThatIsNotDurableKeepsItsMessageInTheQueue) {
  queue->send("a");
  const auto faulty = std::make_shared<FaultyStore>(store, [](const StoreCall& call) {
    return Fault{.kind =
                     call.operation == StoreCall::Operation::replace ? Fault::Kind::unavailable : Fault::Kind::none};
  });
  Engine unlucky(engine_options(faulty));
  {
    Poller poller(unlucky, queue, queue, options([](PollerOptions& o) { o.visibility = 12h; }), work());
    Running running(poller);
    while (!running.over()) {  // The engine tries again while the poller has the message.
      let_pass();
      std::this_thread::yield();
    }
    running.join();
  }
  EXPECT_THAT(ran, ElementsAre("a"));
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_TRUE(was_told("a unrecorded stays"));
}

TEST_F(PollerTest, AFinalFailureIsKeptAndDeleted) {
  queue->send("a");
  Poller poller(engine, queue, queue, options(), [](const Message&, Claim&) -> WorkEnd {
    return {.kind = WorkEnd::Kind::failed, .failure = {.code = "exit 3", .message = "no such account"}};
  });
  run(poller);
  EXPECT_TRUE(queue->entry("a").deleted);
  EXPECT_EQ(stored("a")->state, State::failed);
  EXPECT_EQ(stored("a")->failure.code, "exit 3");
}

// The memory store commits nothing with a result. examples/postgresql/consumer.cpp shows a store that does.
TEST_F(PollerTest, WritesThatAreDeclinedReleaseTheMessage) {
  queue->send("a");
  Poller poller(engine, queue, queue, options(), [](const Message&, Claim&) -> WorkEnd {
    return {.result = Result::inlined("done"), .commit_with = std::make_shared<Companion>()};
  });
  run(poller);
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_FALSE(stored("a").has_value());
  EXPECT_THAT(whys, ::testing::Contains(::testing::HasSubstr("cannot commit other writes")));
}

TEST_F(PollerTest, WhatIsThrownReleasesTheMessage) {
  queue->send("a");
  Poller poller(engine, queue, queue, options(),
                [](const Message&, Claim&) -> WorkEnd { throw std::runtime_error("the disk is full"); });
  run(poller);
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_FALSE(stored("a").has_value());
  EXPECT_THAT(whys, ::testing::Contains("the disk is full"));
}

TEST_F(PollerTest, DeadEndsAreLeftOrParked) {
  const auto with = [&](sqs::OnDeadEnd what) {
    return options([&](PollerOptions& o) {
      o.key_source = sqs::KeySource::payload;
      o.key = "order";
      o.fingerprint = "cents";
      o.on_poison = o.on_mismatch = o.on_unknown = what;
      o.retry_after = 1h;
    });
  };
  queue->send("a", R"({"order":1,"cents":100})");
  queue->send("mismatch", R"({"order":1,"cents":999})");
  queue->send("no-json", "{");
  queue->send("no-key", "{}");
  run(with(sqs::OnDeadEnd::leave));
  EXPECT_THAT(ran, ElementsAre("a"));
  EXPECT_EQ(queue->left(), 3U);
  EXPECT_TRUE(was_told("mismatch mismatch stays"));
  EXPECT_TRUE(was_told("no-json poison stays"));
  EXPECT_TRUE(was_told("no-key poison stays"));
  clock->advance(1h);
  run(with(sqs::OnDeadEnd::park));
  EXPECT_EQ(queue->left(), 0U);
  for (const char* id : {"mismatch", "no-json", "no-key"}) {
    const std::optional<Record> parked = stored(id, "orders/parked");
    ASSERT_TRUE(parked.has_value()) << id;
    EXPECT_EQ(parked->state, State::unknown);
    ASSERT_EQ(parked->steps.size(), 1U);
    EXPECT_EQ(nlohmann::json::parse(parked->steps[0].result).at("messageId"), id);
  }
  EXPECT_THAT(ran, ElementsAre("a"));
}

// ["user.uid", "productId"] over a message without a user would be one key for all users.
TEST_F(PollerTest, AKeyWithANullPartIsADeadEnd) {
  const auto with = [&](bool allows) {
    return options([&](PollerOptions& o) {
      o.key_source = sqs::KeySource::payload;
      o.key = "[user.uid, productId]";
      o.allow_null_parts = allows;
      o.retry_after = 1h;
    });
  };
  queue->send("whole", R"({"user":{"uid":"u-1"},"productId":10000})");
  queue->send("half", R"({"user":{"uid":null},"productId":10000})");
  run(with(false));
  EXPECT_THAT(ran, ElementsAre("whole"));
  EXPECT_TRUE(was_told("half poison stays"));
  clock->advance(1h);
  run(with(true));
  EXPECT_THAT(ran, ElementsAre("whole", "half"));
}

TEST_F(PollerTest, WhatWasBegunToBeKeptIsKeptWhenItComesAgainWhateverALapseMeans) {
  {
    Engine dead(engine_options(store));  // Ends between the claim and the step.
    Claim claim = claimed(dead, "orders/parked", "a");
  }
  clock->advance(1h);
  queue->send("a", "no JSON");
  run(options([](PollerOptions& o) {
    o.key_source = sqs::KeySource::payload;
    o.key = "order";
    o.on_poison = sqs::OnDeadEnd::park;
    o.policy.emplace();
    o.policy->on_lapse = OnLapse::hold;
  }));
  EXPECT_EQ(queue->left(), 0U);
  const Record parked = stored("a", "orders/parked").value();
  ASSERT_THAT(parked.steps, SizeIs(1));
  EXPECT_EQ(nlohmann::json::parse(parked.steps[0].result).at("messageId"), "a");
}

TEST_F(PollerTest, AnUnknownOutcomeIsLeftOrKept) {
  queue->send("a");
  const sqs::PolledWork unsure = [](const Message&, Claim&) -> WorkEnd {
    return {.kind = WorkEnd::Kind::held, .failure = {.message = "exit 9; it may have acted"}};
  };
  {
    Poller poller(engine, queue, queue, options(), unsure);
    run(poller);
  }
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_EQ(stored("a")->state, State::unknown);
  clock->advance(1min);
  run(options([](PollerOptions& o) { o.on_unknown = sqs::OnDeadEnd::park; }));
  EXPECT_THAT(ran, IsEmpty());
  EXPECT_EQ(queue->left(), 0U);
  EXPECT_EQ(stored("a", "orders/parked")->state, State::unknown);
}

TEST_F(PollerTest, TheServiceIsAskedBeforeAnUnknownMessageIsParked) {
  using Asked = PollerOptions::Asked;
  static_cast<void>(claimed(engine, "orders", "a").hold("exit 9"));
  queue->send("a");
  Asked answer = Asked::later;
  int asked = 0;
  const auto asking = [&](PollerOptions& o) {
    o.on_unknown = sqs::OnDeadEnd::park;
    o.reconcile = [&](const RecordPtr& unknown) {
      ++asked;
      EXPECT_EQ(unknown->state, State::unknown);
      if (answer == Asked::decided) {
        Record decided = *unknown;
        release(decided, "not done", EffectivePolicy(), Stamp(clock->now(), 7));
        store->replace(share(std::move(decided)), {.owner = unknown->owner, .revision = unknown->revision},
                       [](Answer) {});
      }
      return answer;
    };
  };
  run(options(asking));
  EXPECT_EQ(queue->left(), 1U);
  EXPECT_EQ(stored("a", "orders/parked"), std::nullopt);
  EXPECT_EQ(asked, 1);
  answer = Asked::decided;
  clock->advance(1min);
  run(options(asking));
  EXPECT_THAT(ran, ElementsAre("a"));
  EXPECT_EQ(queue->left(), 0U);
  EXPECT_EQ(asked, 2);

  answer = Asked::given_up;
  static_cast<void>(claimed(engine, "orders", "b").hold("exit 9"));
  queue->send("b");
  run(options(asking));
  EXPECT_THAT(ran, ElementsAre("a"));
  EXPECT_EQ(stored("b", "orders/parked")->state, State::unknown);
}

// However often it is released: once for each delivery.
TEST_F(PollerTest, WorkThatEndsUnknownIsAskedAboutOnce) {
  queue->send("a");
  int asked = 0;
  int runs = 0;
  const sqs::PolledWork unsure = [&](const Message&, Claim&) -> WorkEnd {
    ++runs;
    return {.kind = WorkEnd::Kind::held, .failure = {.message = "exit 9"}};
  };
  {
    Poller poller(engine, queue, queue, options([&](PollerOptions& o) {
                    o.reconcile = [&](const RecordPtr& unknown) {
                      ++asked;
                      Record decided = *unknown;
                      release(decided, "not done", EffectivePolicy(), Stamp(clock->now(), 7));
                      store->replace(share(std::move(decided)),
                                     {.owner = unknown->owner, .revision = unknown->revision}, [](Answer) {});
                      return PollerOptions::Asked::decided;
                    };
                  }),
                  unsure);
    run(poller);
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(queue->left(), 1U);
}

TEST_F(PollerTest, AMessageThatIsNoTextKeepsNoOtherBack) {
  bool answered = false;
  queue->on_call([&](const std::string& operation, const nlohmann::json&) {
    FakeSqs::Fault fault;
    if (operation == "ReceiveMessage" && !std::exchange(answered, true)) {
      fault.instead = aws::Reply{.status = 200,
                                 .body = R"({"Messages":[{"MessageId":"a","ReceiptHandle":"a/1","Body":"\ud800"},)"
                                         R"({"MessageId":"b","ReceiptHandle":"b/1","Body":"{}"}]})"};
    }
    return fault;
  });
  run(options());
  EXPECT_TRUE(was_told("a poison stays"));
  EXPECT_TRUE(was_told("b executed deleted"));
}

TEST_F(PollerTest, MessagesAreGivenAsLambdaGivesThem) {
  queue = std::make_shared<FakeSqs>(clock, true);
  queue->send(FakeSqs::Entry{.id = "a",
                             .body = "line\n\"quoted\" \xc3\xa9",
                             .group = "g",
                             .attributes = {{"tenant", {{"StringValue", "t-1"}, {"DataType", "String"}}},
                                            {"blob", {{"BinaryValue", "AP8="}, {"DataType", "Binary"}}}}});
  bool checked = false;
  Poller poller(engine, queue, queue, options([](PollerOptions& o) {
                  o.queue = "http://sqs.test/123/orders.fifo";
                  o.key_source = sqs::KeySource::deduplication_id;
                }),
                [&](const Message& message, Claim& claim) -> WorkEnd {
                  EXPECT_EQ(message.id, "a");
                  EXPECT_EQ(message.body, "line\n\"quoted\" \xc3\xa9");
                  EXPECT_EQ(message.group_id, "g");
                  EXPECT_EQ(message.receive_count, 1U);
                  EXPECT_EQ(message.queue_arn, "arn:aws:sqs:eu-central-1:123:orders.fifo");
                  EXPECT_EQ(message.attribute("tenant")->value, "t-1");
                  EXPECT_EQ(message.attribute("blob")->value, std::string("\0\xff", 2));
                  EXPECT_EQ(claim.key(), "orders.fifo#orders.fifo/g/d-a");
                  EXPECT_EQ(nlohmann::json::parse(message.json).at("eventSource"), "aws:sqs");
                  checked = true;
                  return {};
                });
  run(poller);
  EXPECT_TRUE(checked);
  EXPECT_THAT(queue->calls("GetQueueUrl"), IsEmpty());
  const nlohmann::json asked = queue->calls("ReceiveMessage").at(0);
  EXPECT_EQ(asked.at("QueueUrl"), "http://sqs.test/123/orders.fifo");
  EXPECT_EQ(asked.at("MaxNumberOfMessages"), 4);
  EXPECT_EQ(asked.at("WaitTimeSeconds"), 0);
  EXPECT_EQ(asked.at("VisibilityTimeout"), 30);
}

TEST_F(PollerTest, OptionsThatDoNotFitAreRefused) {
  const auto refused = [&](auto change) {
    EXPECT_THROW(Poller(engine, queue, queue, options(change), work()), Exception);
  };
  refused([](PollerOptions& o) { o.queue.clear(); });
  refused([](PollerOptions& o) { o.queue = "http://sqs.test/123/orders/"; });
  refused([](PollerOptions& o) { o.parallel = 0; });
  refused([](PollerOptions& o) { o.visibility = 2s; });
  refused([](PollerOptions& o) { o.visibility = 3'500ms; });
  refused([](PollerOptions& o) { o.receive_wait = 21s; });
  refused([](PollerOptions& o) { o.retry_after = 13h; });
  refused([](PollerOptions& o) { o.retry_after_limit = 1h; });
  const auto from_to = [](Millis from, Millis to) {
    return [=](PollerOptions& o) {
      o.retry_after = from;
      o.retry_after_limit = to;
    };
  };
  refused(from_to(0s, 1h));
  refused(from_to(10s, 5s));
  refused(from_to(5s, 13h));
  refused(from_to(5s, 6'500ms));
  refused([](PollerOptions& o) { o.key = "body"; });
  refused([](PollerOptions& o) { o.key_source = sqs::KeySource::record; });  // Another key with each receipt.
}

// A message that is moved back from a dead-letter queue has a new id, and under such a key would run again.
TEST_F(PollerTest, HoldNeedsAKeyThatSurvivesARedrive) {
  const auto takes = [&](const std::string& key) {
    try {
      const Poller poller(engine, queue, queue, options([&](PollerOptions& o) {
                            o.key_source = sqs::KeySource::record;
                            o.key = key;
                            o.policy = Policy{.on_lapse = OnLapse::hold};
                          }),
                          work());
      return true;
    } catch (const Exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("survives a redrive")) << key;
      return false;
    }
  };
  for (const char* const key :
       {"messageId", "@.messageId", "\"messageId\"", "[messageId][0]", "{a: messageId}.a", "@ | messageId",
        "receiptHandle", "@", "to_string(@)", "*", "values(@)", "[@][0].body", "attributes", "attributes.*",
        "attributes.MessageDeduplicationId", "attributes | SequenceNumber", "\"attributes\".SentTimestamp",
        "attributes.[ApproximateReceiveCount, MessageGroupId]", "attributes.DeadLetterQueueSourceArn",
        "{MessageGroupId: attributes}.MessageGroupId",
        // Next to what identifies the operation. These fail, or select the body, where the body lacks something.
        "join('-', [attributes | MessageDeduplicationId, powertools_json(body).order])",
        "join('-', [attributes.\"MessageDeduplicationId\", powertools_json(body).order])",
        "join('-', [attributes.[SequenceNumber][0], powertools_json(body).order])",
        "join('-', [to_string(@), powertools_json(body).order])",
        "powertools_json(body).sent_twice && messageId || body", "not_null(powertools_json(body).order, messageId)",
        "powertools_json(body).order || receiptHandle", "map(&messageId, [@])[0]"}) {
    EXPECT_FALSE(takes(key)) << key;
  }
  for (const char* const key :
       {"body", "@.body", "@ | body", "powertools_json(body).order", "powertools_json(body).messageId",
        "powertools_json(body).attributes", "messageAttributes.order.stringValue",
        "messageAttributes.messageId.stringValue", "messageAttributes.*.stringValue",
        "[attributes.MessageGroupId, powertools_json(body).order]", "join('-', [eventSourceARN, body])",
        "body || messageAttributes.order.stringValue",
        "sort_by(powertools_json(body).items, &messageId)[?receiptHandle == 'x'].attributes"}) {
    EXPECT_TRUE(takes(key)) << key;
  }
}

}  // namespace
}  // namespace once::testing
