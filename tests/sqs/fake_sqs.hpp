// A queue in this process, on the test's clock: which messages are hidden until when, in which order, and how often
// received.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/aws/transport.hpp>
#include <once/clock.hpp>
#include <once/error.hpp>

namespace once::testing {

inline aws::Reply good_reply(const nlohmann::json& body) { return {.status = 200, .body = body.dump()}; }

inline aws::Reply error_reply(const std::string& code, int status = 400) {
  return {
      .status = status,
      .body = nlohmann::json{{"__type", "com.amazonaws.sqs#" + code}, {"message", "in the service's words"}}.dump()};
}

inline aws::Reply no_reply(ErrorKind kind, const std::string& message) {
  aws::Reply reply;
  reply.error = Error{kind, message};
  return reply;
}

class FakeSqs final : public aws::Transport {
 public:
  struct Entry {
    std::string id;
    std::string body;
    std::string group;
    int receipts = 0;
    Uptime received_at{0};
    Uptime visible_at{0};
    bool deleted = false;
    bool dead = false;  // In the dead-letter queue.
    nlohmann::json attributes = nlohmann::json::object();
  };
  struct Fault {
    std::optional<aws::Reply> instead;  // Not carried out.
    std::optional<aws::Reply> after;    // Carried out, and answered with this.
    bool hold = false;                  // Answered by answer_held().
  };

  explicit FakeSqs(std::shared_ptr<Clock> clock, bool fifo = false) : clock_(std::move(clock)), fifo_(fifo) {}

  void send(std::string id, std::string body = "{}", std::string group = {}) {
    const std::lock_guard lock(mutex_);
    entries_.push_back({.id = std::move(id), .body = std::move(body), .group = std::move(group)});
  }
  void send(Entry entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  void dead_letters_after(int receipts) { most_receipts_ = receipts; }
  // Asked before each call, under a lock of the queue.
  void on_call(std::function<Fault(const std::string& operation, const nlohmann::json& body)> plan) {
    const std::lock_guard lock(mutex_);
    plan_ = std::move(plan);
  }

  void call(aws::Call call, Callback<void(aws::Reply)> done) override {
    const Asked asked(asked_);
    const nlohmann::json body = nlohmann::json::parse(call.body);
    std::unique_lock lock(mutex_);
    calls_.emplace_back(call.operation, body);
    arrived_.notify_all();
    Fault fault = plan_ ? plan_(call.operation, body) : Fault{};
    if (fault.hold) {
      held_.emplace_back(call.operation, body, std::move(done), fault.instead);
      arrived_.notify_all();
      return;
    }
    aws::Reply reply = fault.instead ? *fault.instead : carry_out(call.operation, body);
    if (fault.after) reply = *fault.after;
    lock.unlock();
    done(std::move(reply));
  }
  [[nodiscard]] std::string name() const override { return "fake SQS"; }

  // Somebody is in the middle of a call, or of what its answer makes them do.
  [[nodiscard]] bool is_asked() const { return asked_ > 0; }

  void answer_held() {
    const Asked asked(asked_);
    std::unique_lock lock(mutex_);
    auto held = std::move(held_);
    held_.clear();
    for (auto& [operation, body, done, instead] : held) {
      aws::Reply reply = instead ? *instead : carry_out(operation, body);
      lock.unlock();
      done(std::move(reply));
      lock.lock();
    }
  }
  void wait_for_held() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !held_.empty(); });
  }

  [[nodiscard]] Entry entry(const std::string& id) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& each : entries_) {
      if (each.id == id) return each;
    }
    throw std::out_of_range("no message " + id);
  }
  [[nodiscard]] std::size_t left() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return !e.deleted && !e.dead; }));
  }
  [[nodiscard]] std::vector<nlohmann::json> calls(const std::string& operation) const {
    const std::lock_guard lock(mutex_);
    std::vector<nlohmann::json> out;
    for (const auto& [name, body] : calls_) {
      if (name == operation) out.push_back(body);
    }
    return out;
  }

 private:
  class Asked {
   public:
    explicit Asked(std::atomic<int>& count) : count_(count) { ++count_; }
    ~Asked() { --count_; }
    Asked(const Asked&) = delete;
    Asked& operator=(const Asked&) = delete;

   private:
    std::atomic<int>& count_;
  };
  struct Held {
    std::string operation;
    nlohmann::json body;
    Callback<void(aws::Reply)> done;
    std::optional<aws::Reply> instead;
    Held(std::string o, nlohmann::json b, Callback<void(aws::Reply)> d, std::optional<aws::Reply> i)
        : operation(std::move(o)), body(std::move(b)), done(std::move(d)), instead(std::move(i)) {}
  };

  aws::Reply carry_out(const std::string& operation, const nlohmann::json& body) {
    if (operation == "GetQueueUrl") {
      return good_reply({{"QueueUrl", "http://sqs.test/123/" + body.at("QueueName").get<std::string>()}});
    }
    if (operation == "GetQueueAttributes") {
      return good_reply(
          {{"Attributes",
            {{"QueueArn", std::string("arn:aws:sqs:eu-central-1:123:orders") + (fifo_ ? ".fifo" : "")}}}});
    }
    if (operation == "ReceiveMessage") return receive(body);
    // The handle is the id and the number of the receipt. An older one neither shows nor hides.
    const auto handle = body.at("ReceiptHandle").get<std::string>();
    const std::size_t slash = handle.rfind('/');
    for (Entry& each : entries_) {
      if (each.id != handle.substr(0, slash)) continue;
      if (operation == "DeleteMessage") {
        each.deleted = true;
        return good_reply(nlohmann::json::object());
      }
      if (each.deleted || std::to_string(each.receipts) != handle.substr(slash + 1) ||
          each.visible_at <= clock_->uptime()) {
        return error_reply("MessageNotInflight");
      }
      const Uptime until = clock_->uptime() + std::chrono::seconds(body.at("VisibilityTimeout").get<int>());
      if (until > each.received_at + std::chrono::hours(12)) return error_reply("InvalidParameterValue");
      each.visible_at = until;
      return good_reply(nlohmann::json::object());
    }
    return error_reply("ReceiptHandleIsInvalid");
  }

  aws::Reply receive(const nlohmann::json& body) {
    nlohmann::json messages = nlohmann::json::array();
    const Uptime now = clock_->uptime();
    std::vector<std::string> blocked;
    for (Entry& each : entries_) {
      if (each.deleted || each.dead) continue;
      const bool follows = fifo_ && std::find(blocked.begin(), blocked.end(), each.group) != blocked.end();
      if (each.visible_at > now || follows) {
        blocked.push_back(each.group);
        continue;
      }
      if (messages.size() >= body.at("MaxNumberOfMessages").get<std::size_t>()) break;
      if (each.receipts >= most_receipts_) {
        each.dead = true;
        continue;
      }
      ++each.receipts;
      each.received_at = now;
      each.visible_at = now + std::chrono::seconds(body.at("VisibilityTimeout").get<int>());
      nlohmann::json system{{"ApproximateReceiveCount", std::to_string(each.receipts)},
                            {"SentTimestamp", "1767225600000"}};
      if (!each.group.empty()) {
        system["MessageGroupId"] = each.group;
        system["MessageDeduplicationId"] = "d-" + each.id;
      }
      messages.push_back({{"MessageId", each.id},
                          {"ReceiptHandle", each.id + "/" + std::to_string(each.receipts)},
                          {"Body", each.body},
                          {"MD5OfBody", ""},
                          {"Attributes", system},
                          {"MessageAttributes", each.attributes}});
    }
    return good_reply(messages.empty() ? nlohmann::json::object() : nlohmann::json{{"Messages", messages}});
  }

  const std::shared_ptr<Clock> clock_;
  const bool fifo_;
  std::atomic<int> asked_{0};
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Entry> entries_;
  int most_receipts_ = 1'000;
  std::function<Fault(const std::string&, const nlohmann::json&)> plan_;
  std::vector<std::pair<std::string, nlohmann::json>> calls_;
  std::vector<Held> held_;
};

}  // namespace once::testing
