#include "testing/conformance/subject.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <exception>
#include <set>
#include <thread>

namespace once::testing {

namespace {

// Stores that did not answer may hang in their destructor, so they are kept until the process ends.
struct Left {
  std::unique_ptr<StoreHarness> harness;
  std::vector<std::unique_ptr<Store>> stores;
};

std::vector<Left>& left_behind() {
  static auto* const all = new std::vector<Left>;
  return *all;
}

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text, &end, 0);
  if (*end != '\0') throw Broken(std::string(name) + " must be a number, not " + quote(text));
  return number;
}

}  // namespace

Subject::Subject(const StoreTraits& traits, std::unique_ptr<StoreHarness> harness)
    : traits_(traits), harness_(std::move(harness)) {
  if (!harness_) throw Broken("the factory gave no harness");
  stores_.resize(2);
}

Subject::~Subject() = default;

Store& Subject::store(std::size_t connection) {
  std::unique_ptr<Store>& place = stores_.at(connection);
  if (connection >= connections()) throw Broken("the suite asked for a connection that the store does not have");
  if (!place) place = harness_->open();
  if (!place) throw Broken("the harness opened no store");
  return *place;
}

void Subject::close() {
  for (auto& place : stores_) place.reset();
  std::vector<std::shared_ptr<WatchedCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  std::size_t none = 0;
  std::size_t several = 0;
  for (const auto& call : calls) {
    none += call->answers() == 0 ? 1 : 0;
    several += call->answers() > 1 ? 1 : 0;
  }
  EXPECT_EQ(none, 0U) << "operations were not answered before the store's destructor returned, of " << calls.size();
  EXPECT_EQ(several, 0U) << "operations were answered more than once, of " << calls.size();
}

void Subject::abandon() noexcept { left_behind().push_back({std::move(harness_), std::move(stores_)}); }

std::shared_ptr<Pending<Answer>> Subject::start_insert(Store& store, Record record) {
  auto pending = watch<Answer>();
  store.insert(share(std::move(record)), [pending](Answer answer) { pending->answer(std::move(answer)); });
  return pending;
}

std::shared_ptr<Pending<Answer>> Subject::start_replace(Store& store, Record record, Seen seen) {
  auto pending = watch<Answer>();
  store.replace(share(std::move(record)), seen, [pending](Answer answer) { pending->answer(std::move(answer)); });
  return pending;
}

std::shared_ptr<Pending<Answer>> Subject::start_remove(Store& store, std::string key, Seen seen) {
  auto pending = watch<Answer>();
  store.remove(std::move(key), seen, [pending](Answer answer) { pending->answer(std::move(answer)); });
  return pending;
}

std::shared_ptr<Pending<Answer>> Subject::start_get(Store& store, std::string key) {
  auto pending = watch<Answer>();
  store.get(std::move(key), [pending](Answer answer) { pending->answer(std::move(answer)); });
  return pending;
}

Answer Subject::replace_with(Store& store, Record record, Seen seen, std::shared_ptr<const Companion> companion) {
  auto pending = watch<Answer>();
  store.replace_with(share(std::move(record)), seen, std::move(companion),
                     [pending](Answer answer) { pending->answer(std::move(answer)); });
  return wait(pending);
}

ListPage Subject::list(Store& store, ListQuery query) {
  auto pending = watch<ListPage>();
  store.list(std::move(query), [pending](ListPage page) { pending->answer(std::move(page)); });
  return wait(pending);
}

SweepAnswer Subject::sweep(Store& store, Time now, std::size_t limit) {
  auto pending = watch<SweepAnswer>();
  store.sweep(now, limit, [pending](SweepAnswer answer) { pending->answer(std::move(answer)); });
  return wait(pending);
}

std::optional<Record> Subject::read(Store& store, const std::string& key) {
  Answer answer = get(store, key);
  if (answer.status != AnswerStatus::done) throw Broken("get of " + quote(key) + " " + describe(answer));
  return copy_of(answer.record);
}

std::uint64_t Subject::put(Record record) {
  const std::string key = record.key;
  const Answer answer = insert(std::move(record));
  if (answer.status != AnswerStatus::done) throw Broken("insert of " + quote(key) + " " + describe(answer));
  return answer.place;
}

std::vector<Record> Subject::list_all(Store& store, ListQuery query) {
  std::vector<Record> all;
  std::set<std::string> keys;
  for (std::size_t pages = 0;; ++pages) {
    if (pages > 20'000) throw Broken("list gave 20 000 pages and no end");
    ListPage page = list(store, query);
    if (page.error) throw Broken("list failed: " + page.error->message);
    EXPECT_LE(page.records.size(), query.limit) << "list gave more records than the page's limit";
    for (Record& record : page.records) {
      EXPECT_TRUE(keys.insert(record.key).second) << "list gave " << quote(record.key) << " twice";
      all.push_back(std::move(record));
    }
    if (page.cursor.empty()) return all;
    query.cursor = std::move(page.cursor);
  }
}

void expect_done(const Answer& answer, std::string_view what) {
  EXPECT_EQ(answer.status, AnswerStatus::done) << what << ": expected done, got " << describe(answer);
}

void expect_refused(const Answer& answer, const std::optional<Record>& in_the_way, std::string_view what) {
  EXPECT_EQ(answer.status, AnswerStatus::refused) << what << ": expected refused, got " << describe(answer);
  if (answer.status != AnswerStatus::refused) return;
  EXPECT_EQ(differences(in_the_way, copy_of(answer.record)), "") << what << ": the record in the way is another one";
}

void expect_record(const std::optional<Record>& expected, const std::optional<Record>& got, std::string_view what) {
  EXPECT_EQ(differences(expected, got), "") << what;
}

void expect_failed(const Answer& answer, ErrorKind kind, std::string_view what) {
  EXPECT_EQ(answer.status, AnswerStatus::failed) << what << ": expected a failure, got " << describe(answer);
  if (answer.status != AnswerStatus::failed) return;
  EXPECT_EQ(answer.error.kind, kind) << what << ": got " << describe(answer);
  EXPECT_FALSE(answer.error.message.empty()) << what << ": the error says nothing";
}

void expect_unfit(const Answer& answer, std::string_view what) {
  expect_failed(answer, ErrorKind::misuse, what);
  EXPECT_TRUE(answer.unfit || answer.status != AnswerStatus::failed)
      << what << ": Answer::unfit says that the record is why, so that the engine drops its result";
}

std::uint64_t test_seed() { return number_from_environment("ONCE_TEST_SEED", 20'260'101); }

void on_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::barrier start(static_cast<std::ptrdiff_t>(count));
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        start.arrive_and_wait();
        body(i);
      } catch (...) {  // Passed to the test's thread, which rethrows it.
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace once::testing
