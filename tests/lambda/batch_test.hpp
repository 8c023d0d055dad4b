// What the tests of batches share: a world with one clock and one store, and events as the platform writes them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/batch.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/manual_time.hpp>

#include "../engine/forwarding_store.hpp"
#include "../engine/virtual_time.hpp"

namespace once::testing {

using namespace std::chrono_literals;
using lambda::BatchOptions;
using lambda::FunctionError;
using lambda::Invocation;
using lambda::RecordEvent;
using queues::KeySource;
using queues::OnDeadEnd;
using queues::RecordEnd;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

inline constexpr std::string_view nothing_failed = R"({"batchItemFailures":[]})";

inline std::string failures(const std::vector<std::string>& ids) {
  std::string out = R"({"batchItemFailures":[)";
  for (const std::string& id : ids) {
    if (out.back() == '}') out += ',';
    out += R"({"itemIdentifier":")" + id + "\"}";
  }
  return out + "]}";
}

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

struct Sent {
  std::string id = {};
  std::string body = "{}";
  std::string group = {};
  std::string deduplication_id = {};
  std::string more = {};  // Members of the record, each followed by a comma.
};

// As in https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
inline std::string sqs_event(const std::vector<Sent>& messages, const std::string& queue = "orders") {
  std::string out = R"({"Records": [)";
  for (const Sent& each : messages) {
    if (out.back() == '}') out += ",\n ";
    out += "{" + each.more + R"("messageId": )" + json_string(each.id) +
           R"(, "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a", "body": )" + json_string(each.body) +
           R"(, "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183",)";
    if (!each.group.empty()) out += R"( "MessageGroupId": )" + json_string(each.group) + ",";
    if (!each.deduplication_id.empty()) {
      out += R"( "MessageDeduplicationId": )" + json_string(each.deduplication_id) + ",";
    }
    out += R"( "SenderId": "AIDAIENQZJOLO23YVJ4VO", "ApproximateFirstReceiveTimestamp": "1545082649185"},)"
           R"( "messageAttributes": {}, "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3", "eventSource": "aws:sqs",)"
           R"( "eventSourceARN": "arn:aws:sqs:us-east-2:123456789012:)" +
           queue + R"(", "awsRegion": "us-east-2"})";
  }
  return out + "]}";
}

// The same records as EventBridge Pipes passes them.
inline std::string as_piped(const std::string& event) {
  const std::size_t from = event.find('[');
  return event.substr(from, event.rfind(']') + 1 - from);
}

inline std::vector<Sent> ten_messages() {
  std::vector<Sent> out;
  for (int i = 0; i < 10; ++i) {
    out.push_back({.id = "m" + std::to_string(i), .body = "{\"order\":" + std::to_string(i) + "}"});
  }
  return out;
}

// The events of the observer. Thread-safe.
struct Ends {
  struct One {
    RecordEnd end{};
    bool reported = false;
    bool parked = false;
    std::string key;
    std::string why;
  };
  void add(const RecordEvent& event) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(told.count(std::string(event.id)), 0U) << event.id << " is told twice";
    told[std::string(event.id)] = {event.end, event.reported, event.parked, std::string(event.key),
                                   std::string(event.why)};
  }
  [[nodiscard]] std::string of(const std::string& id) {
    const std::lock_guard lock(mutex);
    const auto found = told.find(id);
    return found == told.end() ? "not told" : std::string(to_string(found->second.end));
  }
  [[nodiscard]] One whole(const std::string& id) {
    const std::lock_guard lock(mutex);
    return told.at(id);
  }
  void clear() {
    const std::lock_guard lock(mutex);
    told.clear();
  }
  std::mutex mutex;
  std::map<std::string, One> told;
};

// What the handlers did, in their order. Thread-safe.
struct Effects {
  void add(std::string what) {
    const std::lock_guard lock(mutex);
    all.push_back(std::move(what));
  }
  [[nodiscard]] std::size_t count(const std::string& what) {
    const std::lock_guard lock(mutex);
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), what));
  }
  [[nodiscard]] std::vector<std::string> list() {
    const std::lock_guard lock(mutex);
    return all;
  }
  // Those that begin with it.
  [[nodiscard]] std::vector<std::string> list(std::string_view prefix) {
    std::vector<std::string> out = list();
    std::erase_if(out, [&](const std::string& each) { return !each.starts_with(prefix); });
    return out;
  }
  std::mutex mutex;
  std::vector<std::string> all;
};

// Answers nothing until the test says so.
class HeldStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  void insert(RecordPtr record, Done done) override {
    hold([this, record = std::move(record), done = std::move(done)]() mutable {
      inner_->insert(std::move(record), std::move(done));
    });
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    hold([this, record = std::move(record), seen, done = std::move(done)]() mutable {
      inner_->replace(std::move(record), seen, std::move(done));
    });
  }
  [[nodiscard]] std::string name() const override { return "held:" + inner_->name(); }

  // Waits until exactly so many are asked at a time, and answers them.
  void answer(std::size_t calls) {
    std::vector<Callback<void()>> now;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return held_.size() >= calls; });
      EXPECT_EQ(held_.size(), calls);
      now.swap(held_);
    }
    for (auto& each : now) each();
  }
  [[nodiscard]] std::size_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  void hold(Callback<void()> call) {
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(call));
    ++calls_;
    arrived_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Callback<void()>> held_;
  std::size_t calls_ = 0;
};

class BatchTest : public VirtualTimeTest {
 protected:
  BatchOptions options() {
    BatchOptions o;
    o.scope = "f/batch";
    o.observer = [this](const RecordEvent& event) { ends.add(event); };
    return o;
  }
  template <class Change>
  BatchOptions options(Change change) {
    BatchOptions o = options();
    change(o);
    return o;
  }
  [[nodiscard]] Invocation invocation(Millis left = 30s) const {
    Invocation out;
    out.request_id = "request-1";
    out.deadline = clock->now() + left;
    return out;
  }
  std::optional<Record> stored(std::string_view name, std::string_view scope = "f/batch") {
    return copy_of(blocking::get(*store, Key(scope, name).stored()).record);
  }
  static std::string step(const Record& record, std::string_view name) {
    for (const Step& each : record.steps) {
      if (each.name == name) return each.result;
    }
    return "no such step";
  }
  std::size_t records() {
    const ListPage page = blocking::list(*store, {});
    EXPECT_FALSE(page.error.has_value());
    return page.records.size();
  }

  Ends ends;
  Effects effects;
};

}  // namespace once::testing
