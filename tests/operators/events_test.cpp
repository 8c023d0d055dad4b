// GET /v1/events: what a viewer is told, what it costs the store, and when it ends.
#include "operators/events.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace events_test {

using std::chrono::hours;

// A client that takes one piece after the other.
class Client {
 public:
  explicit Client(proxy::OperatorsAnswer answer) : answer_(std::move(answer)) { ask(); }

  [[nodiscard]] const http::Answer& head() const { return answer_; }
  [[nodiscard]] bool has_stream() const { return answer_.stream != nullptr; }
  // The next bytes. Empty: the stream has ended.
  std::string piece() {
    std::string bytes = next_.get();
    ask();
    return bytes;
  }
  // The next event: without its id, and without what is no event.
  std::string event() {
    while (left_.empty()) {
      const std::string bytes = piece();
      if (bytes.empty()) return "the end";
      if (!bytes.starts_with(':')) left_ = bytes;
    }
    const auto end = left_.find("\n\n");
    const std::string one = left_.substr(0, end);
    left_.erase(0, end + 2);
    return one.substr(one.find('\n') + 1);
  }
  json changed() {
    const std::string text = event();
    const std::string start = "event: changed\ndata: ";
    EXPECT_TRUE(text.starts_with(start)) << text;
    return json::parse(text.substr(std::min(start.size(), text.size())));
  }
  void disconnect() {
    answer_.stream->stop();
    answer_.stream.reset();
  }

 private:
  void ask() {
    if (!answer_.stream) return;
    std::promise<std::string> promise;
    next_ = promise.get_future();
    answer_.stream->next(
        [promise = std::move(promise)](std::string bytes) mutable { promise.set_value(std::move(bytes)); });
  }

  proxy::OperatorsAnswer answer_;
  std::future<std::string> next_;
  std::string left_;
};

class EventsTest : public OperatorsCase {
 protected:
  static bool always() { return true; }
  static std::string watch(const Record& record) { return "watch=" + to_hex(record.key); }
  // Rounds come as fast as they can.
  static EventsOptions restless() { return {.pause = Millis{1}, .overview_pause = Millis{1}}; }
  // One round, and no other.
  static EventsOptions calm() { return {.pause = hours(1), .overview_pause = hours(1), .ping_pause = hours(1)}; }
  void change(const Record& record) {
    Record next = record;
    next.revision += 1 << 20;
    next.note = "changed";
    ASSERT_EQ(blocking::replace(*store, next, {record.owner, record.revision}).status, AnswerStatus::done);
  }
};

TEST_F(EventsTest, TellsARecordAsItIsAndThenEachChange) {
  const Record record = unknown("k");
  Events events(store, {}, restless());
  Client client(events.open(watch(record), false, always));
  EXPECT_EQ(client.head().status, 200U);
  EXPECT_EQ(*http::find_header(client.head().headers, "Content-Type"), "text/event-stream");
  EXPECT_EQ(*http::find_header(client.head().headers, "Cache-Control"), "no-store");
  EXPECT_EQ(client.changed(), (json{{"key", to_hex(record.key)},
                                    {"tag", tag_of(record)},
                                    {"standing", "unknown"},
                                    {"overdue", false},
                                    {"error", nullptr},
                                    {"service", nullptr}}));
  change(record);
  EXPECT_EQ(client.changed()["tag"], tag_of(stored(record)));
  const Record last = stored(record);
  ASSERT_EQ(blocking::remove(*store, last.key, {last.owner, last.revision}).status, AnswerStatus::done);
  const json gone = client.changed();
  EXPECT_EQ(gone["tag"], nullptr);
  EXPECT_EQ(gone["error"], nullptr);
}

// The record stays as it is, and its tag too.
TEST_F(EventsTest, TellsWhatTheServiceSaysOfARecord) {
  const Record record = unknown("k");
  std::atomic<bool> is_done{false};
  Events events(store, {}, restless(), {}, [&](const Record& of) {
    return nlohmann::ordered_json{{"says", is_done && of.key == record.key ? "done" : "not_done"}};
  });
  Client client(events.open(watch(record), false, always));
  const json first = client.changed();
  EXPECT_EQ(first["service"], (json{{"says", "not_done"}}));
  is_done = true;
  const json next = client.changed();
  EXPECT_EQ(next["service"], (json{{"says", "done"}}));
  EXPECT_EQ(next["tag"], first["tag"]);
}

TEST_F(EventsTest, TellsAnActOnManyRecordsAsItGoesOn) {
  const std::string id(32, 'a');
  std::atomic<int> written{0};
  Events events(store, {}, {.pause = hours(1), .bulk_pause = Millis{1}}, [&](std::string_view of) {
    return json{{"id", of}, {"written", written.load()}}.dump();
  });
  Client client(events.open("watch=bulk:" + id, false, always));
  EXPECT_EQ(client.event(), ("event: bulk\ndata: " + json{{"id", id}, {"written", 0}}.dump()));
  written = 7;
  EXPECT_EQ(client.event(), ("event: bulk\ndata: " + json{{"id", id}, {"written", 7}}.dump()));
  EXPECT_THROW(events.open("watch=bulk:17", false, always), Exception);
}

TEST_F(EventsTest, OneNameDoesNotTakeAllStreams) {
  EventsOptions options = calm();
  options.most_of_one = 2;
  Events events(store, {}, options);
  std::vector<Client> clients;
  for (int i = 0; i < 2; ++i) clients.emplace_back(events.open("watch=overview", false, always, "session 1"));
  EXPECT_EQ(events.open("watch=overview", false, always, "session 1").status, 503U);
  EXPECT_EQ(events.open("watch=overview", false, always, "session 2").status, 200U);
  clients.back().disconnect();
  EXPECT_EQ(events.open("watch=overview", false, always, "session 1").status, 200U);
}

// Nobody writes: only the time passes.
TEST_F(EventsTest, ALeaseThatLapsesIsAChange) {
  class Timed final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    [[nodiscard]] std::optional<StoreTime> time() const noexcept override {
      return StoreTime{.now = clock.now(), .error = Millis{0}};
    }
    once::testing::ManualClock clock;
  };
  const auto timed = std::make_shared<Timed>(store);
  Record record = once::testing::plain_record(Key("pay", "k").stored());
  record.lease_until = once::testing::manual_start + hours(1);
  record.expires_at = never;
  keep(record);
  Events events(timed, {}, restless());
  Client client(events.open(watch(record), false, always));
  const json before = client.changed();
  EXPECT_EQ(before["standing"], "running");
  timed->clock.advance(hours(2));
  const json after = client.changed();
  EXPECT_EQ(after["standing"], "lapsed");
  EXPECT_EQ(after["tag"], before["tag"]);
}

TEST_F(EventsTest, HoweverManyLookTheStoreIsAskedByOne) {
  const Record record = unknown("k");
  const Record other = unknown("l");
  const auto before = store->counts().calls;
  Events events(store, {}, calm());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 32; ++i) {
    const std::string both = watch(record) + "," + to_hex(other.key) + ",overview";
    clients.push_back(std::make_unique<Client>(events.open(both, false, always)));
  }
  for (const auto& client : clients) {
    for (int i = 0; i < 3; ++i) EXPECT_NE(client->event(), "the end");  // Two records, and the overview.
  }
  EXPECT_EQ(store->counts().calls, before + 2);
}

TEST_F(EventsTest, NobodyAsksTheStoreWhileNobodyLooks) {
  const Record record = unknown("k");
  Events events(store, {}, restless());
  Client client(events.open(watch(record), false, always));
  static_cast<void>(client.changed());
  client.disconnect();
  EXPECT_EQ(events.viewers(), 0U);
  while (!events.rests()) std::this_thread::yield();
  const auto calls = store->counts().calls;
  Client overview(events.open("watch=overview", false, always));
  EXPECT_THAT(overview.event(), ::testing::StartsWith("event: overview\ndata: {\"as_of\""));
  EXPECT_EQ(store->counts().calls, calls);
}

TEST_F(EventsTest, ASlowClientMissesWhatWasBetweenAndNotWhatIs) {
  const Record record = unknown("k");
  Events events(store, {}, restless());
  proxy::OperatorsAnswer slow = events.open(watch(record), false, always);
  Client quick(events.open(watch(record), false, always));
  static_cast<void>(quick.changed());
  for (int i = 0; i < 5; ++i) {
    change(stored(record));
    static_cast<void>(quick.changed());
  }
  Client client(std::move(slow));
  const std::string told = client.piece();
  EXPECT_THAT(told, ::testing::HasSubstr(json(tag_of(stored(record))).dump()));
  EXPECT_EQ(told.find("event:"), told.rfind("event:"));
}

TEST_F(EventsTest, WhoMissedSomethingIsTold) {
  const Record record = unknown("k");
  Events events(store, {}, calm());
  Client first(events.open(watch(record), false, always));
  EXPECT_THAT(first.event(), ::testing::StartsWith("event: changed"));
  Client back(events.open(watch(record), true, always));
  EXPECT_EQ(back.event(), "event: reset\ndata: {}");
  EXPECT_THAT(back.event(), ::testing::StartsWith("event: changed"));
}

TEST_F(EventsTest, AStreamEndsWithThePermissionAndTellsNothingMore) {
  const Record record = unknown("k");
  std::atomic<bool> allowed = true;
  Events events(store, {}, restless());
  Client client(events.open(watch(record), false, [&] { return allowed.load(); }));
  static_cast<void>(client.changed());
  allowed = false;
  change(record);
  EXPECT_EQ(client.event(), "the end");
  EXPECT_EQ(client.event(), "the end");
}

TEST_F(EventsTest, AStoreThatIsDownIsToldAndSoIsThatItIsBack) {
  const Record record = unknown("k");
  Events events(store, {}, restless());
  Client client(events.open(watch(record), false, always));
  static_cast<void>(client.changed());
  store->set_plan([](const once::testing::StoreCall&) {
    return once::testing::Fault{.kind = once::testing::Fault::Kind::unavailable};
  });
  const json down = client.changed();
  EXPECT_FALSE(down["error"].get<std::string>().empty());
  EXPECT_EQ(down["tag"], nullptr);
  store->set_plan(once::testing::no_faults());
  EXPECT_EQ(client.changed()["tag"], tag_of(record));
}

// It must hold up neither the viewers nor the end.
TEST_F(EventsTest, AStoreThatNeverAnswersIsAskedOnce) {
  class Silent final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void get(std::string /*key*/, Done done) override {
      ++asked;
      kept = std::move(done);
    }
    std::atomic<int> asked = 0;
    Done kept;
  };
  const auto silent = std::make_shared<Silent>(store);
  EventsOptions options = restless();
  options.patience = Millis{1};
  options.ping_pause = Millis{1};
  {
    Events events(silent, {}, options);
    Client client(events.open("watch=6b,6c", false, always));
    for (const char* const key : {"6b", "6c"}) {
      const json told = client.changed();
      EXPECT_EQ(told["key"], key);
      EXPECT_THAT(told["error"].get<std::string>(), ::testing::HasSubstr("has not answered"));
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(client.piece(), ": ping\n\n");
    EXPECT_EQ(silent->asked, 1);
    Client later(events.open("watch=6d", false, always));
    EXPECT_THAT(later.changed()["error"].get<std::string>(), ::testing::HasSubstr("has not answered"));
    later.disconnect();
    events.stop();
    EXPECT_EQ(client.event(), "the end");
    client.disconnect();
  }
  silent->kept({});  // Too late: there is nobody any more.
}

TEST_F(EventsTest, TakesSoManyAndNoMore) {
  EventsOptions options = calm();
  options.most_viewers = 2;
  Events events(store, {}, options);
  Client first(events.open("watch=overview", false, always));
  Client second(events.open("watch=overview", false, always));
  const Client third(events.open("watch=overview", false, always));
  EXPECT_FALSE(third.has_stream());
  expect_problem(third.head(), 503, "busy");
  EXPECT_EQ(*http::find_header(third.head().headers, "Retry-After"), "30");
  first.disconnect();
  EXPECT_TRUE(Client(events.open("watch=overview", false, always)).has_stream());
}

TEST_F(EventsTest, EndsAtOnceAndBeginsNoMore) {
  Events events(store, {}, calm());
  Client client(events.open("watch=overview", false, always));
  EXPECT_THAT(client.event(), ::testing::StartsWith("event: overview"));
  events.stop();
  EXPECT_EQ(client.event(), "the end");
  const Client late(events.open("watch=overview", false, always));
  EXPECT_FALSE(late.has_stream());
  expect_problem(late.head(), 503, "stopping");
}

TEST_F(EventsTest, TakesNoOtherQuery) {
  Events events(store, {}, calm());
  std::string many = "watch=00";
  for (int i = 1; i <= 15; ++i) many += "," + to_hex(std::string(1, static_cast<char>(i)));
  EXPECT_EQ(events.head(many).status, 200U);
  EXPECT_EQ(events.head(many + ",0F,overview").status, 200U);  // The same key again, and what is none.
  for (const std::string& query :
       {std::string(), std::string("watch="), std::string("watch=overview,"), std::string("watch=order-17"),
        std::string("watch=6"), std::string("watch=overview&x=1"), "watch=" + std::string(4 * max_key_bytes, '0'),
        many + ",10"}) {
    EXPECT_THROW(static_cast<void>(events.head(query)), Exception) << query;
  }
  EXPECT_EQ(events.viewers(), 0U);
}

}  // namespace events_test
}  // namespace once::operators
