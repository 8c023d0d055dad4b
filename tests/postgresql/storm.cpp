// postgresql_storm URL SCHEMA TIMEOUT_MS: makes the schema. Then sixteen threads write to few keys until standard input
// ends, while the test that started it breaks the server. Each write adds a step with a name of its own to a record, on
// condition of what was seen, as a holder does. At the end all records are read: what was acknowledged must be in them
// once, what was refused or was unavailable must not. Prints what it counted as JSON, and what is wrong to standard
// error; then it exits with 1.
//
// It prints a line each time another 200 writes were acknowledged, so that its starter knows that it goes on: when that
// was, in nanoseconds of the steady clock. And "in doubt" each time it cannot know whether a write was carried out.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <once/platform/blocking.hpp>
#include <once/stores/postgresql_schema.hpp>

namespace {

using namespace std::chrono_literals;
using once::Answer;
using once::ErrorKind;
using once::Record;
using Status = once::AnswerStatus;

constexpr unsigned threads = 16;
constexpr unsigned keys = 6;
constexpr std::uint64_t writes_of_a_key = 100;  // By one thread; then another key comes, so that records stay small.

struct Ledger {
  std::set<std::string> acknowledged;
  std::set<std::string> not_done;
  std::size_t in_doubt = 0;
};

std::mutex mutex;
std::map<std::string, Ledger> ledgers;
std::map<std::string, std::size_t> counts;
std::atomic<bool> ended{false};
std::atomic<std::size_t> acknowledged{0};

template <class Text>
void say(const Text& text) {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  std::cout << text << std::endl;
}

void count(const std::string& what) {
  const std::lock_guard lock(mutex);
  ++counts[what];
}

std::optional<Record> view(once::Store& store, const std::string& key) {
  for (int i = 0; i < 1'000; ++i) {
    const Answer answer = once::blocking::get(store, key);
    if (answer.status == Status::done) return once::copy_of(answer.record);
    count("get " + std::string(once::to_string(answer.error.kind)));
    if (answer.error.kind != ErrorKind::unavailable) {
      std::cerr << "get of " << key << ": " << answer.error.message << '\n';
      std::exit(2);
    }
  }
  std::cerr << "get failed 1000 times\n";
  std::exit(2);
}

void write(once::Store& store, unsigned thread, std::uint64_t number) {
  const std::string key =
      "ledger " + std::to_string(number / writes_of_a_key) + "." + std::to_string((number * 7 + thread * 3) % keys);
  const std::string mark = std::to_string(thread) + "." + std::to_string(number);
  const auto seen = view(store, key);
  Record next;
  if (seen) {
    next = *seen;
  } else {
    next.key = key;
    next.attempt = 1;
  }
  next.revision = once::next_revision(next.revision, static_cast<std::uint32_t>(number * threads + thread));
  next.owner.bytes[0] = static_cast<std::uint8_t>(thread);
  for (std::size_t i = 0; i < 8; ++i) next.owner.bytes.at(1 + i) = static_cast<std::uint8_t>(number >> (8 * i));
  next.steps.push_back({mark, ""});
  const Answer answer =
      seen ? once::blocking::replace(store, next, {seen->owner, seen->revision}) : once::blocking::insert(store, next);
  bool done = answer.status == Status::done;
  bool not_done = answer.status == Status::refused;
  std::string what = done ? "acknowledged" : "refused";
  if (answer.status == Status::failed) {
    what = once::to_string(answer.error.kind);
    if (answer.error.kind == ErrorKind::unavailable) not_done = true;
    if (answer.error.kind == ErrorKind::in_doubt) {
      say("in doubt");
      const auto now = view(store, key);
      done = now && now->owner == next.owner && now->revision == next.revision;
    } else if (!not_done) {
      std::cerr << "write of " << key << ": " << answer.error.message << '\n';
      std::exit(2);
    }
  }
  const std::lock_guard lock(mutex);
  ++counts[what];
  Ledger& ledger = ledgers[key];
  if (done) {
    ledger.acknowledged.insert(mark);
    if (++acknowledged % 200 == 0) say(std::chrono::steady_clock::now().time_since_epoch() / 1ns);
  } else if (not_done) {
    ledger.not_done.insert(mark);
  } else {
    ++ledger.in_doubt;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const once::stores::PostgresqlOptions options{
      .url = argv[1], .schema = argv[2], .operation_timeout = once::Millis{std::stoll(argv[3])}, .allow_unsafe = true};
  once::stores::create_postgresql_schema(options, {});
  const auto store = once::stores::make_postgresql_store(options);
  std::vector<std::thread> running;
  for (unsigned thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::uint64_t number = 0; !ended; ++number) write(*store, thread, number);
    });
  }
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  ended = true;
  for (std::thread& thread : running) thread.join();

  std::size_t wrong = 0;
  const auto complain = [&](const std::string& text) {
    if (++wrong < 20) std::cerr << text << '\n';
  };
  for (const auto& [key, ledger] : ledgers) {
    const auto there = view(*store, key);
    std::multiset<std::string> marks;
    if (there) {
      for (const once::Step& step : there->steps) marks.insert(step.name);
    }
    for (const std::string& mark : ledger.acknowledged) {
      if (marks.count(mark) != 1) {
        complain(key + ": " + mark + " was acknowledged, and is there " + std::to_string(marks.count(mark)) + " times");
      }
    }
    for (const std::string& mark : ledger.not_done) {
      if (marks.count(mark) != 0) complain(key + ": " + mark + " was refused, and is there");
    }
    if (marks.size() > ledger.acknowledged.size() + ledger.in_doubt) complain(key + ": too many writes");
    if (there && once::revision_count(there->revision) != marks.size()) complain(key + ": a write left no step");
  }
  std::cout << "{\"wrong\": " << wrong;
  for (const auto& [what, number] : counts) std::cout << ", \"" << what << "\": " << number;
  std::cout << "}" << std::endl;
  return wrong == 0 ? 0 : 1;
}
