// For the suite's test bodies: the store under test, blocking calls, and a check of every completion.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/store.hpp>
#include <once/testing/conformance.hpp>
#include <once/testing/records.hpp>

namespace once::testing {

// Thrown to end a test that cannot go on; GoogleTest reports its text.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class WatchedCall {
 public:
  virtual ~WatchedCall() = default;
  [[nodiscard]] virtual std::size_t answers() const = 0;
};

// One running call, kept until its store is closed, so that a second completion is always noticed.
template <class T>
class Pending final : public WatchedCall {
 public:
  void answer(T value) {
    const std::lock_guard lock(mutex_);
    if (++answers_ == 1) value_.emplace(std::move(value));
    ready_.notify_all();
  }
  [[nodiscard]] std::size_t answers() const override {
    const std::lock_guard lock(mutex_);
    return answers_;
  }
  // Throws Broken after `patience`.
  T wait(Millis patience) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, patience, [this] { return answers_ != 0; })) {
      throw Broken("an operation was not answered within " + std::to_string(patience.count()) + " ms");
    }
    return take();
  }
  std::optional<T> try_take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(value_, std::nullopt);
  }

 private:
  T take() {
    if (!value_) throw Broken("an answer was waited for twice");
    T value = std::move(*value_);
    value_.reset();
    return value;
  }

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::size_t answers_ = 0;
  std::optional<T> value_;
};

class Subject {
 public:
  Subject(const StoreTraits& traits, std::unique_ptr<StoreHarness> harness);
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  ~Subject();

  [[nodiscard]] const StoreTraits& traits() const noexcept { return traits_; }
  StoreHarness& harness() { return *harness_; }

  // Connections 0 and, if shared, 1: opened when first asked for.
  [[nodiscard]] std::size_t connections() const noexcept { return traits_.shared ? 2 : 1; }
  Store& store(std::size_t connection = 0);
  // Closes every connection and checks that each call was answered exactly once.
  void close();
  // As close(), but abandons stores that may hang, after an unanswered call.
  void abandon() noexcept;

  // Start a call on `store`, any thread. It is watched until close().
  std::shared_ptr<Pending<Answer>> start_insert(Store& store, Record record);
  std::shared_ptr<Pending<Answer>> start_replace(Store& store, Record record, Seen seen);
  std::shared_ptr<Pending<Answer>> start_remove(Store& store, std::string key, Seen seen);
  std::shared_ptr<Pending<Answer>> start_get(Store& store, std::string key);
  template <class T>
  std::shared_ptr<Pending<T>> watch() {
    auto pending = std::make_shared<Pending<T>>();
    const std::lock_guard lock(mutex_);
    calls_.push_back(pending);
    return pending;
  }

  // Call and wait, any thread, on the first connection unless a store is given.
  Answer insert(Record record) { return insert(store(), std::move(record)); }
  Answer insert(Store& store, Record record) { return wait(start_insert(store, std::move(record))); }
  Answer replace(Record record, Seen seen) { return replace(store(), std::move(record), seen); }
  Answer replace(Store& store, Record record, Seen seen) { return wait(start_replace(store, std::move(record), seen)); }
  Answer replace_with(Record record, Seen seen, std::shared_ptr<const Companion> companion) {
    return replace_with(store(), std::move(record), seen, std::move(companion));
  }
  Answer replace_with(Store& store, Record record, Seen seen, std::shared_ptr<const Companion> companion);
  Answer remove(std::string key, Seen seen) { return remove(store(), std::move(key), seen); }
  Answer remove(Store& store, std::string key, Seen seen) { return wait(start_remove(store, std::move(key), seen)); }
  Answer get(std::string key) { return get(store(), std::move(key)); }
  Answer get(Store& store, std::string key) { return wait(start_get(store, std::move(key))); }
  ListPage list(ListQuery query) { return list(store(), std::move(query)); }
  ListPage list(Store& store, ListQuery query);
  SweepAnswer sweep(Time now, std::size_t limit) { return sweep(store(), now, limit); }
  SweepAnswer sweep(Store& store, Time now, std::size_t limit);

  template <class T>
  T wait(const std::shared_ptr<Pending<T>>& pending) const {
    return pending->wait(traits_.patience);
  }

  // With checks: read() must succeed; put() must write; all pages are read.
  std::optional<Record> read(const std::string& key) { return read(store(), key); }
  std::optional<Record> read(Store& store, const std::string& key);
  std::uint64_t put(Record record);  // Inserts; returns the answer's place.
  std::vector<Record> list_all(ListQuery query) { return list_all(store(), std::move(query)); }
  std::vector<Record> list_all(Store& store, ListQuery query);

 private:
  const StoreTraits traits_;
  std::unique_ptr<StoreHarness> harness_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<WatchedCall>> calls_;
};

// One test of the suite. `needs`: the traits for which it exists.
struct Test {
  const char* name;
  void (*body)(Subject&);
  enum class Needs { nothing, shared, durable, companions, hands_out } needs = Needs::nothing;
};

std::span<const Test> round_trip_tests() noexcept;
std::span<const Test> law_tests() noexcept;
std::span<const Test> list_tests() noexcept;
std::span<const Test> model_tests() noexcept;
std::span<const Test> race_tests() noexcept;
std::span<const Test> companion_law_tests() noexcept;
std::span<const Test> companion_race_tests() noexcept;
std::span<const Test> hand_out_law_tests() noexcept;
std::span<const Test> hand_out_race_tests() noexcept;
std::span<const Test> fault_tests() noexcept;
void foreign_record(Subject& subject, std::size_t which);
void outage(Subject& subject, const std::string& name);
void outage_with_companion(Subject& subject, const std::string& name);

// Checks with messages. `what` names the situation.
void expect_done(const Answer& answer, std::string_view what);
// Refused, with exactly this record in the way (none: nothing there).
void expect_refused(const Answer& answer, const std::optional<Record>& in_the_way, std::string_view what);
void expect_record(const std::optional<Record>& expected, const std::optional<Record>& got, std::string_view what);
void expect_failed(const Answer& answer, ErrorKind kind, std::string_view what);
void expect_unfit(const Answer& answer, std::string_view what);

std::uint64_t test_seed();

// Runs body(0) … body(count - 1) at once, each on its own thread. Throws the first exception of one.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace once::testing
