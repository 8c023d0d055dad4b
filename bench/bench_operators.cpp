// How long the operators' API (docs/operators-api.md) takes for a request, in a store of many records in SQLite:
//
//   bench_operators [RECORDS]      default: 100000
//
// Of a hundred records one is unknown, one has failed and one is in progress; the others are completed. Each has a
// label. No network: the time is that of the thread that answers. Beside it stands what the store alone takes to list
// one page of as many records, in the same run.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/sqlite.hpp>
#include <once/testing/records.hpp>

#include "engine/forwarding_store.hpp"
#include "operators/admin_token.hpp"
#include "operators/operators.hpp"
#include "sqlite/scratch_directory.hpp"

namespace {

using namespace once;
using Steady = std::chrono::steady_clock;

constexpr int rounds = 50;
constexpr std::size_t page_records = 100;

// Counts what the API asks of the store.
class Counting final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void get(std::string key, Done done) override {
    ++requests;
    inner_->get(std::move(key), std::move(done));
  }
  void list(ListQuery query, Callback<void(ListPage)> done) override {
    ++requests;
    inner_->list(std::move(query), std::move(done));
  }
  std::atomic<std::uint64_t> requests{0};
};

void fill(Store& store, std::size_t count) {
  const Time now = system_clock()->now();
  std::atomic<std::size_t> left{count};
  std::atomic<bool> failed{false};
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = "order-" + std::to_string(i);
    Record record = testing::plain_record(Key(i % 2 == 0 ? "pay" : "mail", name).stored());
    record.label = name;
    record.holder = "web-" + std::to_string(i % 5);
    record.created_at = now;
    record.expires_at = never;
    record.state = State::completed;
    if (i % 100 == 0) record.state = State::unknown;
    if (i % 100 == 1) record.state = State::failed;
    if (i % 100 == 2) {
      record.state = State::in_progress;
      record.lease_until = now + std::chrono::hours(1);
    } else {
      record.finished_at = now;
    }
    store.insert(share(std::move(record)), [&](const Answer& answer) {
      if (answer.status != AnswerStatus::done) failed = true;
      --left;
    });
    while (count - i < left && left > 10'000) std::this_thread::yield();
  }
  while (left > 0) std::this_thread::yield();
  if (failed) throw std::runtime_error("the records cannot be written");
}

struct Spread {
  double median_ms = 0;
  double most_ms = 0;
};

template <class Do>
Spread timed(Do what) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto began = Steady::now();
    what();
    times.push_back(std::chrono::duration<double, std::milli>(Steady::now() - began).count());
  }
  std::sort(times.begin(), times.end());
  return {.median_ms = times[times.size() / 2], .most_ms = times.back()};
}

void run(std::size_t count) {
  const testing::Scratch folder;
  const auto store = std::make_shared<Counting>(stores::make_sqlite_store({.path = folder.file()}));
  fill(*store, count);
  const operators::AdminToken token("", "--admin-token-file");
  const operators::Operators operators({.url = "", .store = store}, token);
  const std::vector<http::HeaderView> headers{{"Host", "127.0.0.1"}};
  const auto ask = [&](const std::string& target) {
    http::Answer answer =
        operators.answer({.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}});
    if (answer.status != 200) throw std::runtime_error(target + ": " + answer.body);
    return std::move(answer.body);
  };
  const std::string limit = "limit=" + std::to_string(page_records);
  const std::string middle = "order-" + std::to_string(count / 2);
  std::string next;
  for (int page = 0; page < 10; ++page) {
    const auto list = nlohmann::json::parse(ask("/v1/records?" + limit + (next.empty() ? "" : "&after=" + next)));
    if (list["next"].is_null()) break;
    next = list["next"].get<std::string>();
  }
  const Spread floor = timed([&] { static_cast<void>(blocking::list(*store, {.limit = page_records})); });
  std::printf("%zu records; %d rounds. The store alone lists %zu records in %.3f ms (median; at most %.3f)\n", count,
              rounds, page_records, floor.median_ms, floor.most_ms);
  std::printf("%-44s %10s %10s %8s %8s %8s\n", "request", "median ms", "most ms", "ratio", "requests", "records");
  for (const std::string& target :
       {"/v1/records?" + limit, "/v1/records?" + limit + "&after=" + next, "/v1/records?" + limit + "&standing=unknown",
        "/v1/records?" + limit + "&standing=in_progress", "/v1/records?" + limit + "&scope=pay",
        "/v1/records?" + limit + "&label=" + middle, "/v1/records?" + limit + "&q=" + middle,
        "/v1/records?" + limit + "&q=" + middle + "&scope=pay", "/v1/records?" + limit + "&q=nowhere",
        "/v1/records/" + to_hex(Key("pay", "order-0").stored()), std::string("/v1/overview")}) {
    const std::uint64_t before = store->requests;
    const auto answer = nlohmann::json::parse(ask(target));
    const std::uint64_t requests = store->requests - before;
    const Spread spread = timed([&] { ask(target); });
    const std::size_t records = answer.contains("records") ? answer["records"].size() : 0;
    std::printf("%-44.44s %10.3f %10.3f %8.1f %8llu %8zu\n", target.c_str(), spread.median_ms, spread.most_ms,
                spread.median_ms / floor.median_ms, static_cast<unsigned long long>(requests), records);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_operators: %s\n", error.what());
  return 1;
}
