// once as one of the clients of compare.py, which says what is asked and answered on each line:
//
//   postgresql_once URL [WRITE_CONNECTIONS]
//   postgresql_once --create URL      makes the schema
//   postgresql_once --versions
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/platform/system.hpp>
#include <once/stores/postgresql.hpp>
#include <once/stores/postgresql_schema.hpp>

#include "../in_flight.hpp"

namespace {

using nlohmann::json;
using Done = std::function<void(bool)>;

// "pay#" and 15 digits, in no order: neighbouring numbers lie as far apart as random ones (splitmix64). Two of some
// million numbers have one key once in thousands of runs, and then the comparison fails.
std::string key_name(std::uint64_t number) {
  std::uint64_t mixed = number * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBU;
  mixed ^= mixed >> 31U;
  const std::string digits = std::to_string(mixed % 1'000'000'000'000'000);
  return std::string(15 - digits.size(), '0') + digits;
}

once::Result receipt() { return once::Result::inlined(std::string(100, 'r'), "text/plain"); }

// The servers of tests run without fsync.
once::stores::PostgresqlOptions options(const std::string& url) { return {.url = url, .allow_unsafe = true}; }

class Client {
 public:
  explicit Client(const once::stores::PostgresqlOptions& options)
      : store_(once::stores::make_postgresql_store(options)) {}

  json answer(const json& line) {
    const std::string what = line.at("do");
    runs_ = 0;
    const double cpu = once::bench::cpu_us();
    const auto begin = std::chrono::steady_clock::now();
    int wrong = 0;
    if (what == "cycles") {
      wrong = cycles(line);
    } else if (what == "writes") {
      wrong = writes(line);
    } else if (what == "work") {
      wrong = work(line);
    } else {
      throw std::runtime_error("what is '" + what + "'?");
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return {
        {"seconds", took.count()}, {"cpu_us", once::bench::cpu_us() - cpu}, {"runs", runs_.load()}, {"wrong", wrong}};
  }

 private:
  // New calls of the engine: claim, work, finish.
  int cycles(const json& line) {
    const std::uint64_t first = line.at("first");
    const int count = line.at("count");
    const int in_flight = line.at("in_flight");
    once::Engine engine({.store = store_, .scope = "pay"});
    if (in_flight > 1) {
      return once::bench::keep_in_flight(count, in_flight, [&](int number, Done done) {
        start(engine, key_name(first + static_cast<std::uint64_t>(number)), std::move(done));
      });
    }
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
      const auto outcome = engine.run(key_name(first + static_cast<std::uint64_t>(i)), {}, [&] {
        ++runs_;
        return receipt();
      });
      if (outcome.kind != once::Outcome::Kind::executed) ++wrong;
    }
    return wrong;
  }

  void start(once::Engine& engine, const std::string& name, Done done) {
    engine.begin({.key = once::Key("pay", name)}, [this, done = std::move(done)](once::Begin begin) mutable {
      if (begin.kind != once::Begin::Kind::claimed) return done(false);
      ++runs_;
      // The claim lives until its finish is over.
      auto claim = std::make_shared<once::Claim>(std::move(begin.claim));
      once::Claim& held = *claim;
      held.complete(receipt(), [done = std::move(done), claim = std::move(claim)](const once::Finish& finish) {
        done(finish.kind == once::Finish::Kind::recorded);
      });
    });
  }

  // The same two writes of the store, without an engine.
  int writes(const json& line) {
    const std::uint64_t first = line.at("first");
    return once::bench::keep_in_flight(line.at("count"), line.at("in_flight"), [&](int number, Done done) {
      once::Record record;
      record.key = once::Key("pay", key_name(first + static_cast<std::uint64_t>(number))).stored();
      std::memcpy(record.owner.bytes.data(), record.key.data() + record.key.size() - 15, 15);
      record.attempt = 1;
      record.revision = std::uint64_t{1} << once::revision_random_bits;
      const once::Time now = once::system_clock()->now();
      record.token = static_cast<std::uint64_t>(now.time_since_epoch().count());
      record.created_at = now;
      record.lease_until = now + std::chrono::seconds(30);
      record.expires_at = now + std::chrono::hours(72);
      record.holder = "host.example:12345";
      const auto claimed = std::make_shared<const once::Record>(std::move(record));
      store_->insert(claimed, [this, claimed, now, done = std::move(done)](const once::Answer& inserted) mutable {
        if (inserted.status != once::AnswerStatus::done) return done(false);
        ++runs_;
        auto finished = std::make_shared<once::Record>(*claimed);
        finished->state = once::State::completed;
        finished->revision += std::uint64_t{1} << once::revision_random_bits;
        finished->lease_until = once::Time{};
        finished->finished_at = now;
        finished->result = receipt();
        store_->replace(std::move(finished), {.owner = claimed->owner, .revision = claimed->revision},
                        [done = std::move(done)](const once::Answer& replaced) {
                          done(replaced.status == once::AnswerStatus::done);
                        });
      });
    });
  }

  // Work that leaves a line in a file and then takes a while, on a thread for each. Until the client is killed, or all
  // is done. "wrong" counts the calls without a result.
  int work(const json& line) {
    const std::uint64_t first = line.at("first");
    const int count = line.at("count");
    const std::chrono::milliseconds takes(line.at("work_ms"));
    once::EngineOptions of_engine{.store = store_, .scope = "pay"};
    of_engine.policy.lease = std::chrono::milliseconds(line.at("lease_ms"));
    if (line.at("hold")) of_engine.policy.on_lapse = once::OnLapse::hold;
    once::Engine engine(std::move(of_engine));
    std::ofstream effects(line.at("effects").get<std::string>(), std::ios::app);
    std::mutex mutex;
    std::atomic<int> begun{0};
    std::atomic<int> wrong{0};
    const std::size_t in_flight = line.at("in_flight");
    std::vector<std::thread> threads;
    threads.reserve(in_flight);
    while (threads.size() < in_flight) {
      threads.emplace_back([&] {
        for (int i = begun++; i < count; i = begun++) {
          const std::string name = key_name(first + static_cast<std::uint64_t>(i));
          const auto outcome = engine.run(name, {}, [&] {
            ++runs_;
            {
              const std::lock_guard lock(mutex);
              effects << i << std::endl;
            }
            std::this_thread::sleep_for(takes);
            return receipt();
          });
          if (!outcome.has_result()) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong;
  }

  const std::shared_ptr<once::Store> store_;
  std::atomic<int> runs_{0};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--versions") {
    std::cout << json{{"once", ONCE_VERSION}, {"g++", __VERSION__}} << '\n';
    return 0;
  }
  const bool create = argc == 3 && std::string_view(argv[1]) == "--create";
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: postgresql_once [--create] URL [WRITE_CONNECTIONS]\n";
    return 2;
  }
  try {
    if (create) {
      once::stores::create_postgresql_schema(options(argv[2]), {});
      return 0;
    }
    once::stores::PostgresqlOptions its = options(argv[1]);
    if (argc == 3) its.write_connections = static_cast<std::uint32_t>(std::stoul(argv[2]));
    Client client(its);
    for (std::string line; std::getline(std::cin, line);) std::cout << client.answer(json::parse(line)) << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "postgresql_once: " << error.what() << '\n';
    return 1;
  }
}
