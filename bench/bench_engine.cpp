// What the engine costs over the memory store, by itself and against Powertools for AWS Lambda (TypeScript), which runs
// on the same event with the same key expression right after (installed by tools/node-tools).
//
//   bench_engine [--seconds S] [--without-powertools] [--json]
//
// Microseconds are processor time of the whole process (user and system) for each call; the best of several rounds,
// since other load only adds. Rates are calls a second of wall time, of one thread unless another number is named.
#include <fcntl.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <once/engine/log.hpp>
#include <once/engine/metrics.hpp>
#include <once/idempotent.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/stores/memory.hpp>
#include <once/tracing.hpp>

namespace {

using std::string_literals::operator""s;

constexpr const char* expression = "powertools_json(body).order_id";
constexpr int calls = 20'000;  // In a round.

// An API Gateway event of 574 bytes whose key is inside its JSON body.
std::string api_gateway_event() {
  std::string event =
      R"({"resource":"/orders","path":"/orders","httpMethod":"POST","headers":{"Accept":"application/json",)"
      R"("Content-Type":"application/json","Host":"abc123.execute-api.eu-central-1.amazonaws.com",)"
      R"("X-Forwarded-For":"203.0.113.7"},"queryStringParameters":null,"requestContext":{"accountId":"123456789012",)"
      R"("requestId":"c6af9ac6-7b61-11e6-9a41-93e8deadbeef","stage":"prod","identity":{"sourceIp":"203.0.113.7"}},)"
      R"("body":"{\"order_id\":\"o-20260517-000042\",\"customer\":\"c-981\",\"amount\":49.90,\"currency\":\"EUR\"}",)"
      R"("isBase64Encoded":false})";
  event.insert(event.size() - 1, ",\"pad\":\"" + std::string(574 - event.size() - 9, 'x') + "\"");
  return event;
}

// The event with another order's number.
std::string numbered(std::string event, int number) {
  std::string digits = std::to_string(number);
  digits.insert(0, 6 - std::min<std::size_t>(6, digits.size()), '0');
  const std::size_t place = event.find("000042");
  return event.replace(place, 6, digits);
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Cost {
  double microseconds = 1e9;  // Processor time a call.
  double per_second = 0;      // Calls a second of wall time.
};

// prepare() makes what a round needs and returns what is called `calls` times, with 0, 1, 2 ...
Cost measure(double seconds, const std::function<std::function<void(int)>()>& prepare) {
  Cost best;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int rounds = 0;
  while (rounds++ < 3 || std::chrono::steady_clock::now() < until) {
    const std::function<void(int)> call = prepare();
    const auto began = std::chrono::steady_clock::now();
    const double processor_began = processor_seconds();
    for (int i = 0; i < calls; ++i) call(i);
    const double processor = processor_seconds() - processor_began;
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
    best.microseconds = std::min(best.microseconds, processor * 1e6 / calls);
    best.per_second = std::max(best.per_second, calls / wall.count());
  }
  return best;
}

// The same by as many threads as there are processors, each with its part of the calls.
Cost measure_threads(double seconds, unsigned threads, const std::function<std::function<void(int)>()>& prepare) {
  Cost best;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int rounds = 0;
  while (rounds++ < 3 || std::chrono::steady_clock::now() < until) {
    const std::function<void(int)> call = prepare();
    std::latch ready(threads + 1);
    std::vector<std::jthread> pool;
    std::chrono::steady_clock::time_point began;
    double processor_began = 0;
    for (unsigned t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        ready.arrive_and_wait();
        for (int i = static_cast<int>(t); i < calls; i += static_cast<int>(threads)) call(i);
      });
    }
    processor_began = processor_seconds();
    began = std::chrono::steady_clock::now();
    ready.arrive_and_wait();
    pool.clear();  // Joins.
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
    best.microseconds = std::min(best.microseconds, (processor_seconds() - processor_began) * 1e6 / calls);
    best.per_second = std::max(best.per_second, calls / wall.count());
  }
  return best;
}

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

std::shared_ptr<once::Engine> new_engine(std::size_t cache_records = 0) {
  return std::make_shared<once::Engine>(once::EngineOptions{
      .store = once::stores::make_memory_store(), .scope = "bench", .cache_records = cache_records});
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (int i = 0; i < calls; ++i) names.push_back("order-" + std::to_string(1'000'000 + i));
  return names;
}

// An engine that is watched in one of the ways that there are.
struct Watched {
  std::string name;  // In JSON.
  std::string row;
  std::function<void(once::EngineOptions&)> set;
  double microseconds = 1e9;
};

std::vector<Watched> ways_to_watch() {
  const auto traced = [](once::Sampler sampler) {
    return [sampler](once::EngineOptions& options) {
      options.tracer =
          std::make_shared<once::Tracer>(once::TracerOptions{.sink = [](const once::Span&) {}, .sampler = sampler});
    };
  };
  const auto logged = [](once::EngineOptions& options) {
    static const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    options.observer = once::LogObserver({.descriptor = nowhere});
  };
  const auto off = [](once::EngineOptions& options) {
    const auto no_variables = [](const std::string&) { return std::optional<std::string>(); };
    options.tracer = once::Tracing({.environment = no_variables}).tracer();
  };
  const auto counted = [](once::EngineOptions& options) { options.observer = once::Metrics(); };
  std::vector<Watched> ways;
  ways.push_back({"none", "run: neither traced, counted nor logged", [](once::EngineOptions&) {}});
  ways.push_back({"tracing_off", "... Tracing that no variable switches on", off});
  ways.push_back({"tracing_samples_none", "... a Tracer that samples no call", traced({.ratio = 0})});
  ways.push_back({"tracing_samples_all", "... a Tracer that samples every call, spans dropped", traced({})});
  ways.push_back({"metrics", "... Metrics", counted});
  ways.push_back({"log", "... LogObserver to /dev/null, level info", logged});
  return ways;
}

// The ways take turns, so that other load falls on all of them. The best round of each counts.
std::vector<Watched> measure_watching(double seconds, const std::vector<std::string>& names) {
  std::vector<Watched> ways = ways_to_watch();
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds * 3);
  int rounds = 0;
  while (rounds++ < 3 || std::chrono::steady_clock::now() < until) {
    for (Watched& way : ways) {
      const Cost cost = measure(0, [&] {
        once::EngineOptions options{.store = once::stores::make_memory_store(), .scope = "bench"};
        way.set(options);
        return [&names, engine = std::make_shared<once::Engine>(std::move(options))](int i) {
          const auto outcome = engine->run(names[static_cast<std::size_t>(i)], {}, [] { return "done"s; });
          require(outcome.kind == once::Outcome::Kind::executed, "run: not executed");
        };
      });
      way.microseconds = std::min(way.microseconds, cost.microseconds);
    }
  }
  return ways;
}

const auto handler = [](const std::string& event) {
  return R"({"statusCode":201,"body":"/orders"})" + event.substr(0, 0);
};

struct Powertools {
  struct Way {
    Cost fresh;
    Cost replay;
  };
  Way object;  // Gets the parsed event.
  Way text;    // Parses it first.
  std::string node;
};

std::optional<Powertools> run_powertools(const std::string& event, double seconds) {
  const std::string file = "bench_engine_event.json";
  std::ofstream(file) << event;
  const std::string command =
      std::string(ONCE_BENCH_POWERTOOLS) + " " + file + " '" + expression + "' " + std::to_string(seconds);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string output;
  std::array<char, 512> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) output += buffer.data();
  if (pclose(pipe) != 0) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(output);
  const auto way = [&](const char* name) {
    const nlohmann::json& costs = json.at(name);
    return Powertools::Way{.fresh = {costs.at("new_us"), costs.at("new_per_second")},
                           .replay = {costs.at("replay_us"), costs.at("replays_per_second")}};
  };
  return Powertools{.object = way("object"), .text = way("text"), .node = json.at("node")};
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2;
  bool with_powertools = true;
  bool as_json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      as_json = true;
    } else if (word == "--without-powertools") {
      with_powertools = false;
    } else if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: bench_engine [--seconds S] [--without-powertools] [--json]\n");
      return 2;
    }
  }

  // As in a long-running process: freed memory is reused, not returned to the system.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);

  const std::string event = api_gateway_event();
  const std::vector<std::string> names = key_names();
  std::vector<std::string> events;
  for (int i = 0; i < calls; ++i) events.push_back(numbered(event, i));
  const auto make = [](once::Engine& engine) {
    return once::idempotent(engine, {.name = "orders", .key = expression}, handler);
  };

  const Cost run = measure(seconds, [&] {
    return [&, engine = new_engine()](int i) {
      const auto outcome = engine->run(names[static_cast<std::size_t>(i)], {}, [] { return std::string("done"); });
      require(outcome.kind == once::Outcome::Kind::executed, "run: not executed");
    };
  });
  const Cost cycle = measure(seconds, [&] {
    return [&, engine = new_engine()](int i) {
      bool finished = false;
      engine->begin(engine->request(names[static_cast<std::size_t>(i)], {}), [&](once::Begin begin) {
        begin.claim.complete(once::Result::inlined("done"), [&](const once::Finish& finish) {
          finished = finish.kind == once::Finish::Kind::recorded;
        });
      });
      require(finished, "begin and complete: not recorded");  // The memory store completes before it returns.
    };
  });
  const auto replay = [&](std::size_t cache_records) {
    const auto engine = new_engine(cache_records);
    std::vector<once::Request> requests;
    for (int i = 0; i < 1000; ++i) {
      requests.push_back(engine->request(names[static_cast<std::size_t>(i)], {}));
      engine->run(requests.back(), [] { return std::string("done"); });
    }
    return measure(seconds, [engine, requests] {
      return [engine, &requests](int i) {
        const once::Begin begin = engine->begin(requests[static_cast<std::size_t>(i % 1000)]);
        require(begin.kind == once::Begin::Kind::replayed, "begin: not replayed");
      };
    });
  };
  const Cost replay_store = replay(0);
  const Cost replay_cache = replay(10'000);
  const Cost run_cache = [&] {
    const auto engine = new_engine(10'000);
    return measure(seconds, [&] {
      for (int i = 0; i < 1000; ++i) engine->run(names[static_cast<std::size_t>(i)], {}, [] { return "done"s; });
      return [&](int i) {
        const auto outcome = engine->run(names[static_cast<std::size_t>(i % 1000)], {}, [] { return "done"s; });
        require(outcome.kind == once::Outcome::Kind::replayed, "run: not replayed");
      };
    });
  }();

  const once::keys::KeyDeriver deriver({.scope = "bench/orders", .expression = expression});
  std::size_t used = 0;
  const Cost derive = measure(seconds, [&] {
    return [&](int i) { used += deriver.derive(events[static_cast<std::size_t>(i % 1000)]).key->stored().size(); };
  });
  require(used > 0, "no key");

  const auto prepare_new = [&] {
    auto engine = new_engine();
    return [&events, engine, call = make(*engine)](int i) {
      require(call.outcome(events[static_cast<std::size_t>(i)]).kind == once::Outcome::Kind::executed, "not executed");
    };
  };
  const auto prepare_replay = [&](std::size_t cache_records) {
    const auto engine = new_engine(cache_records);
    const auto call = make(*engine);
    for (int i = 0; i < 1000; ++i) call(events[static_cast<std::size_t>(i)]);
    return [&events, engine, call](int i) {
      require(call.outcome(events[static_cast<std::size_t>(i % 1000)]).kind == once::Outcome::Kind::replayed,
              "not replayed");
    };
  };
  const auto replay_store_call = prepare_replay(0);
  const auto replay_cache_call = prepare_replay(10'000);
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  const Cost typed_new = measure(seconds, prepare_new);
  const Cost typed_replay_store = measure(seconds, [&] { return replay_store_call; });
  const Cost typed_replay_cache = measure(seconds, [&] { return replay_cache_call; });
  const Cost typed_new_all = measure_threads(seconds, threads, prepare_new);
  const Cost typed_replay_all = measure_threads(seconds, threads, [&] { return replay_store_call; });

  const std::vector<Watched> watched = measure_watching(seconds, names);

  const std::optional<Powertools> powertools =
      with_powertools ? run_powertools(event, seconds) : std::optional<Powertools>();
  if (with_powertools && !powertools) {
    std::fprintf(stderr,
                 "bench_engine: Powertools did not run, so nothing is compared; it needs npm: run tools/setup node\n");
  }

  if (as_json) {
    const auto both = [](const Cost& cost) {
      return nlohmann::ordered_json{{"cpu_us", cost.microseconds}, {"per_second", cost.per_second}};
    };
    nlohmann::ordered_json json{{"run", both(run)},
                                {"begin_complete", both(cycle)},
                                {"replay_from_store", both(replay_store)},
                                {"replay_from_cache", both(replay_cache)},
                                {"run_replay_from_cache", both(run_cache)},
                                {"derive", both(derive)},
                                {"idempotent_new", both(typed_new)},
                                {"idempotent_replay_from_store", both(typed_replay_store)},
                                {"idempotent_replay_from_cache", both(typed_replay_cache)}};
    for (const Watched& way : watched) {
      json["watched"][way.name] = {{"cpu_us", way.microseconds},
                                   {"ratio", way.microseconds / watched.front().microseconds}};
    }
    json["threads"] = threads;
    json["idempotent_new_all_threads"] = both(typed_new_all);
    json["idempotent_replay_all_threads"] = both(typed_replay_all);
    if (powertools) {
      const auto ways = [&](const Powertools::Way& way) {
        return nlohmann::ordered_json{
            {"new", both(way.fresh)},
            {"replay", both(way.replay)},
            {"ratio_new", typed_new.per_second / way.fresh.per_second},
            {"ratio_replay", typed_replay_store.per_second / way.replay.per_second},
            {"ratio_new_all_threads", typed_new_all.per_second / way.fresh.per_second},
            {"ratio_replay_all_threads", typed_replay_all.per_second / way.replay.per_second}};
      };
      json["powertools"] = {
          {"node", powertools->node}, {"object", ways(powertools->object)}, {"text", ways(powertools->text)}};
    }
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  std::printf("engine over the memory store, one thread          CPU µs a call   calls/s\n");
  const auto row = [](const char* name, const Cost& cost, const char* budget = "") {
    std::printf("  %-46s %10.2f %12.0f   %s\n", name, cost.microseconds, cost.per_second, budget);
  };
  row("run: claim, work, finish", run, "budget 2 µs");
  row("begin and complete, by completion", cycle, "budget 2 µs");
  row("replay from the store, key at hand", replay_store);
  row("replay from the local cache, key at hand", replay_cache, "budget 0.5 µs");
  row("the same by run, key joined from its name", run_cache);
  std::printf("\nwhat it costs to be watched, in turns             CPU µs a call   ratio\n");
  for (const Watched& way : watched) {
    std::printf("  %-54s %8.2f %7.2f\n", way.row.c_str(), way.microseconds,
                way.microseconds / watched.front().microseconds);
  }
  std::printf("\nan API Gateway event of %zu bytes, key inside its JSON body\n", event.size());
  row("deriving the key", derive);
  row("idempotent(): new", typed_new);
  row("idempotent(): replay from the store", typed_replay_store);
  row("idempotent(): replay from the local cache", typed_replay_cache);
  std::printf("  %-46s %10.2f %12s   budget 0.5 µs\n", "  beyond deriving the key",
              typed_replay_cache.microseconds - derive.microseconds, "");
  const std::string by_threads = " by " + std::to_string(threads) + " threads";
  row(("idempotent(): new" + by_threads).c_str(), typed_new_all);
  row(("idempotent(): replay from the store" + by_threads).c_str(), typed_replay_all);
  if (powertools) {
    std::printf("\nPowertools for AWS Lambda (TypeScript) on node %s, in memory, the same event and expression\n",
                powertools->node.c_str());
    const auto compare = [&](const char* name, const Cost& theirs, const Cost& ours, const Cost& all) {
      std::printf("  %-46s %10.2f %12.0f   once: %.1f times the calls, %.1f with %u threads; target 10\n", name,
                  theirs.microseconds, theirs.per_second, ours.per_second / theirs.per_second,
                  all.per_second / theirs.per_second, threads);
    };
    compare("new, from the event's text as above", powertools->text.fresh, typed_new, typed_new_all);
    compare("replay, the same", powertools->text.replay, typed_replay_store, typed_replay_all);
    compare("new, handed the parsed event", powertools->object.fresh, typed_new, typed_new_all);
    compare("replay, the same", powertools->object.replay, typed_replay_store, typed_replay_all);
  }
}
