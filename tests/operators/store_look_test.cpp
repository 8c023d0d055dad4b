// The gauges that need the store: what they count, and what happens when the store is slow, large or down.
#include "operators/store_look.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/records.hpp>

#include "../engine/forwarding_store.hpp"

namespace once::operators {
namespace store_look_test {

using ::testing::HasSubstr;
using ::testing::Not;

// Counts its lists, and keeps or refuses them.
class Watched final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    most = std::max<int>(most, ++running);
    ++lists;
    if (keeps) {
      const std::lock_guard lock(mutex);
      kept.push_back([this, query = std::move(query), done = std::move(done)]() mutable {
        --running;
        ForwardingStore::list(std::move(query), std::move(done));
      });
      return;
    }
    --running;
    if (reads_all && query.state == State::in_progress) {
      ListPage page;
      page.cursor = "and so on";
      return done(std::move(page));
    }
    if (!fails) return ForwardingStore::list(std::move(query), std::move(done));
    ListPage page;
    page.error = Error{ErrorKind::unavailable, "down"};
    done(std::move(page));
  }
  // False: none waits.
  bool answer_one() {
    Callback<void()> next;
    {
      const std::lock_guard lock(mutex);
      if (kept.empty()) return false;
      next = std::move(kept.back());
      kept.pop_back();
    }
    next();
    return true;
  }

  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<int> lists{0};
  std::atomic<bool> keeps{false};
  std::atomic<bool> fails{false};
  std::atomic<bool> reads_all{false};  // To find what is in progress, for ever.
  std::mutex mutex;
  std::vector<Callback<void()>> kept;
};

class StoreLookTest : public ::testing::Test {
 protected:
  void keep(const std::string& scope, const std::string& key, const std::function<void(Record&)>& change) {
    Record record = testing::plain_record(Key(scope, key).stored());
    record.state = State::in_progress;
    record.expires_at = never;
    record.lease_until = never;
    record.expected_until = never;
    change(record);
    ASSERT_EQ(blocking::insert(*memory, record).status, AnswerStatus::done);
  }
  void keep_one_of_each(const std::string& scope) {
    keep(scope, "u", [&](Record& record) {
      record.state = State::unknown;
      record.finished_at = start + Millis{1'000};
    });
    keep(scope, "f", [&](Record& record) {
      record.state = State::failed;
      record.finished_at = start + Millis{2'000};
    });
    keep(scope, "l", [&](Record& record) { record.lease_until = start + Millis{3'000}; });
    keep(scope, "o", [&](Record& record) { record.expected_until = start + Millis{4'000}; });
    keep(scope, "c", [](Record& record) { record.state = State::completed; });
  }
  StoreLookOptions options(Millis interval = std::chrono::hours{1}) { return {.store = watched, .interval = interval}; }
  // The page, as soon as it has this. The test's limit of time ends it otherwise.
  static std::string page_with(const StoreLook& look, const std::string& text) {
    for (;;) {
      std::string page = look.text();
      if (page.find(text) != std::string::npos) return page;
      std::this_thread::yield();
    }
  }

  const Time start{std::chrono::seconds{1'600'000'000}};  // In the past.
  std::shared_ptr<Store> memory = stores::make_memory_store();
  std::shared_ptr<Watched> watched = std::make_shared<Watched>(memory);
};

TEST_F(StoreLookTest, CountsByScope) {
  keep_one_of_each("pay");
  keep("mail", "u", [&](Record& record) {
    record.state = State::unknown;
    record.finished_at = start + Millis{5'000};
  });
  const StoreLook look(options());
  const std::string page = page_with(look, "once_store_look_complete 1\n");
  for (const char* const line :
       {"once_records{scope=\"pay\",state=\"unknown\"} 1\n", "once_records{scope=\"pay\",state=\"failed\"} 1\n",
        "once_records{scope=\"pay\",state=\"lapsed\"} 1\n", "once_records{scope=\"pay\",state=\"running\"} 1\n",
        "once_records{scope=\"mail\",state=\"unknown\"} 1\n", "once_records{scope=\"mail\",state=\"failed\"} 0\n",
        "once_records_overdue{scope=\"pay\"} 1\n", "once_records_overdue{scope=\"mail\"} 0\n",
        "once_oldest_timestamp_seconds{scope=\"pay\",of=\"unknown\"} 1600000001\n",
        "once_oldest_timestamp_seconds{scope=\"pay\",of=\"failed\"} 1600000002\n",
        "once_oldest_timestamp_seconds{scope=\"pay\",of=\"lapsed\"} 1600000003\n",
        "once_oldest_timestamp_seconds{scope=\"pay\",of=\"overdue\"} 1600000004\n",
        "once_oldest_timestamp_seconds{scope=\"mail\",of=\"unknown\"} 1600000005\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  EXPECT_THAT(page, Not(HasSubstr("completed")));
  EXPECT_THAT(page, Not(HasSubstr("once_store_look_timestamp_seconds 0\n")));
}

TEST_F(StoreLookTest, ScopesHaveALimit) {
  for (const char* const scope : {"a", "b", "c"}) {
    keep(scope, "u", [](Record& record) { record.state = State::unknown; });
  }
  StoreLookOptions two = options();
  two.max_scopes = 2;
  EXPECT_THAT(page_with(StoreLook(two), "once_store_look_complete 1\n"),
              HasSubstr("once_records{otel_metric_overflow=\"true\",state=\"unknown\"} 1\n"));
  two.max_scopes = 0;
  const std::string page = page_with(StoreLook(two), "once_store_look_complete 1\n");
  EXPECT_THAT(page, HasSubstr("once_records{state=\"unknown\"} 3\n"));
  EXPECT_THAT(page, Not(HasSubstr("scope=")));
}

TEST_F(StoreLookTest, APageNeverAsksTheStore) {
  const StoreLook look(options());
  page_with(look, "once_store_look_complete 1\n");
  const int lists = watched->lists;
  for (int i = 0; i < 100; ++i) static_cast<void>(look.text());
  EXPECT_EQ(watched->lists, lists);
}

TEST_F(StoreLookTest, ALookThatMeetsItsLimitShowsWhatItReadAndSaysSo) {
  keep_one_of_each("pay");
  StoreLookOptions one = options();
  one.max_pages = 1;
  const StoreLook look(one);
  const std::string page = page_with(look, "once_records{scope=\"pay\",state=\"unknown\"} 1\n");
  EXPECT_THAT(page, HasSubstr("once_store_look_complete 0\n"));
  EXPECT_THAT(page, HasSubstr("once_store_look_timestamp_seconds 0\n"));
  EXPECT_THAT(page, HasSubstr("once_records{scope=\"pay\",state=\"failed\"} 0\n"));
}

TEST_F(StoreLookTest, AStoreThatReadsAllForWhatIsInProgressStillCountsFailures) {
  keep_one_of_each("pay");
  watched->reads_all = true;
  StoreLookOptions bounded = options();
  bounded.max_pages = 20;
  const StoreLook look(std::move(bounded));
  const std::string page = page_with(look, "once_records{");
  EXPECT_THAT(page, HasSubstr("once_records{scope=\"pay\",state=\"unknown\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("once_records{scope=\"pay\",state=\"failed\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("once_store_look_complete 0\n"));
  EXPECT_EQ(watched->lists, 20);
}

TEST_F(StoreLookTest, OldFiguresGoAwayWhileTheStoreFails) {
  keep_one_of_each("pay");
  const StoreLook look(options(Millis{1}));
  page_with(look, "once_records{");
  watched->fails = true;
  for (;;) {
    const std::string page = look.text();
    const bool told = page.find("once_store_look_errors_total{kind=\"unavailable\"} 0\n") == std::string::npos;
    if (told && page.find("once_records{") == std::string::npos) {
      EXPECT_THAT(page, HasSubstr("once_store_look_complete 0\n"));
      EXPECT_THAT(page, Not(HasSubstr("once_store_look_timestamp_seconds 0\n")));
      break;
    }
    std::this_thread::yield();
  }
  watched->fails = false;
  page_with(look, "once_records{");
}

TEST_F(StoreLookTest, ALookWhoseTimeIsOverShowsWhatItRead) {
  keep_one_of_each("pay");
  watched->keeps = true;
  StoreLookOptions hasty = options();
  hasty.max_time = Millis{500};
  const StoreLook look(hasty);
  while (!watched->answer_one()) std::this_thread::yield();
  const std::string page = page_with(look, "once_records{scope=\"pay\",state=\"unknown\"} 1\n");
  EXPECT_THAT(page, HasSubstr("once_store_look_complete 0\n"));
  EXPECT_THAT(page, HasSubstr("once_store_look_errors_total{kind=\"unavailable\"} 0\n"));
}

TEST_F(StoreLookTest, ALateRequestIsNotOverlapped) {
  watched->keeps = true;
  StoreLookOptions hasty = options(Millis{1});
  hasty.max_time = Millis{1};
  const StoreLook look(hasty);
  page_with(look, "once_store_look_errors_total{kind=\"unavailable\"} 1\n");
  for (int answered = 0; answered < 3;) answered += watched->answer_one() ? 1 : 0;
  watched->keeps = false;
  while (watched->answer_one()) {
  }
  page_with(look, "once_store_look_complete ");
  EXPECT_EQ(watched->most, 1);
}

TEST_F(StoreLookTest, AViewerBringsTheNextLookForward) {
  StoreLookOptions now = options();
  now.refresh_pause = Millis{1};
  StoreLook look(now);
  page_with(look, "once_store_look_complete 1\n");
  keep("pay", "u", [&](Record& record) { record.state = State::unknown, record.finished_at = start; });
  look.refresh();
  page_with(look, "once_records{scope=\"pay\",state=\"unknown\"} 1\n");
  const int lists = watched->lists;
  now.refresh_pause = std::chrono::hours{1};
  StoreLook calm(now);
  while (watched->lists < lists + 3) std::this_thread::yield();
  page_with(calm, "once_store_look_complete 1\n");
  for (int i = 0; i < 1'000; ++i) calm.refresh();
  EXPECT_EQ(watched->lists, lists + 3);
}

TEST_F(StoreLookTest, EndsWhileTheStoreDoesNotAnswer) {
  watched->keeps = true;
  {
    const StoreLook look(options());
    while (watched->lists == 0) std::this_thread::yield();
  }
  EXPECT_EQ(watched->running, 1);  // It still runs, and its answer comes late.
  EXPECT_TRUE(watched->answer_one());
}

TEST(StatsInterval, Words) {
  EXPECT_EQ(parse_interval("60s", "x"), Millis{60'000});
  for (const char* const off : {"0", "0s", "off"}) EXPECT_EQ(parse_interval(off, "x"), Millis{0}) << off;
  for (const char* const wrong : {"999ms", "never", "", "-1s"}) {
    EXPECT_THROW(parse_interval(wrong, "x"), Exception) << wrong;
  }
}

}  // namespace store_look_test
}  // namespace once::operators
