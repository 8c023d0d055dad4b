#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "fake_aws/fake_dynamodb.hpp"

namespace once::testing {
namespace {

// What is shared with answers that are still held when the transport goes.
class Answers {
 public:
  using Done = Callback<void(aws::Reply)>;

  std::uint64_t add(Done done) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(++last_, std::move(done));
    return last_;
  }

  void complete(std::uint64_t number, aws::Reply reply) {
    Done done;
    {
      const std::lock_guard lock(mutex_);
      const auto found = waiting_.find(number);
      if (found == waiting_.end()) return;
      done = std::move(found->second);
      waiting_.erase(found);
    }
    done(std::move(reply));
  }

  void close() {
    std::map<std::uint64_t, Done> rest;
    {
      const std::lock_guard lock(mutex_);
      rest.swap(waiting_);
    }
    for (auto& [number, done] : rest) {
      done({.error = Error{ErrorKind::in_doubt, "the transport was closed before the answer came"}});
    }
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Done> waiting_;
};

aws::Reply reply_from(const FakeFault& fault, FakeAnswer answer, Time now) {
  using Kind = FakeFault::Kind;
  if (fault.kind == Kind::unreachable) {
    return {.error = Error{ErrorKind::unavailable, "the fake cannot be reached; nothing was sent"}};
  }
  if (fault.kind == Kind::lost_before || fault.kind == Kind::lost_after || fault.kind == Kind::half_answer ||
      fault.kind == Kind::damaged) {
    return {.error = Error{ErrorKind::in_doubt, "the connection was lost before the answer came"}};
  }
  aws::Reply reply{.status = answer.status, .body = std::move(answer.body)};
  const Time second = std::chrono::floor<std::chrono::seconds>(now);  // As the Date header has it.
  reply.time = StoreTime{.now = second + Millis{500}, .error = Millis{500}};
  return reply;
}

class FakeTransport final : public aws::Transport {
 public:
  FakeTransport(std::shared_ptr<FakeDynamoDb> fake, std::size_t threads) : fake_(std::move(fake)) {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~FakeTransport() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    more_.notify_all();
    for (auto& thread : threads_) thread.join();
    answers_->close();
  }

  void call(aws::Call call, Callback<void(aws::Reply)> done) override {
    const std::uint64_t number = answers_->add(std::move(done));
    if (threads_.empty()) return send(call, number);
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(call), number);
    more_.notify_one();
  }

  [[nodiscard]] std::string name() const override { return "fake-dynamodb"; }

 private:
  void send(const aws::Call& call, std::uint64_t number) {
    fake_->receive(call.operation, call.body,
                   [answers = answers_, number, now = fake_->now()](FakeFault fault, FakeAnswer answer) {
                     answers->complete(number, reply_from(fault, std::move(answer), now));
                   });
  }

  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (closed_) return;
      const auto [call, number] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      send(call, number);
    }
  }

  const std::shared_ptr<FakeDynamoDb> fake_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::pair<aws::Call, std::uint64_t>> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::shared_ptr<aws::Transport> make_fake_transport(std::shared_ptr<FakeDynamoDb> fake, std::size_t threads) {
  return std::make_shared<FakeTransport>(std::move(fake), threads);
}

}  // namespace once::testing
