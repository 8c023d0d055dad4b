// What DynamoDB costs this process, against a server in another process with constant answers:
//
//   bench_dynamodb [calls]
//
// CPU time (user and system, all threads) of a signed POST of 600 bytes and its answer, of a store's write (encode,
// sign, send, parse, decode) and of an engine's new call (two writes), over connections that are kept alive, with so
// many in flight all the time. Then ten thousand claims at once, what a handler of Lambda adds to a warm invocation,
// one after the other, and a process that starts, runs one operation over TLS and ends.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/aws/client.hpp>
#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/lambda/http.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/platform/system.hpp>
#include <once/stores/dynamodb.hpp>

#include "../tests/aws/wire_server.hpp"
#include "in_flight.hpp"

namespace {

using namespace once::aws;
using once::bench::cpu_us;
using once::bench::keep_in_flight;
using once::bench::Start;

extern "C" char** environ;

// Serves in a child process until it is destroyed.
class ServerProcess {
 public:
  explicit ServerProcess(const std::optional<testing::Identity>& identity) {
    int ports[2];
    int stop[2];
    if (pipe(ports) != 0 || pipe(stop) != 0) std::abort();
    child_ = fork();
    if (child_ < 0) std::abort();
    if (child_ == 0) {
      close(stop[1]);
      const std::string answer =
          testing::answer("{}",
                          "Server: Server\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
                          "Content-Type: application/x-amz-json-1.0\r\nConnection: keep-alive\r\n"
                          "x-amzn-RequestId: ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGHIJKLMNOP\r\n"
                          "x-amz-crc32: 2745614147\r\n");
      const testing::Server server(
          [&](testing::Peer& peer) {
            while (peer.request()) peer.send(answer);
          },
          identity);
      const std::uint16_t chosen = server.port();
      if (write(ports[1], &chosen, sizeof(chosen)) != sizeof(chosen)) std::abort();
      char byte = 0;
      while (read(stop[0], &byte, 1) > 0) {
      }
      _exit(0);
    }
    close(stop[0]);
    stop_ = stop[1];
    if (read(ports[0], &port, sizeof(port)) != sizeof(port)) std::abort();
    close(ports[0]);
    close(ports[1]);
  }
  ~ServerProcess() {
    close(stop_);
    waitpid(child_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::uint16_t port = 0;

 private:
  pid_t child_ = -1;
  int stop_ = -1;
};

// A number of /proc/self/status, such as "VmRSS" in KiB or "Threads".
long of_this_process(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::atol(line.c_str() + name.size() + 1);
  }
  return 0;
}

// Keeps `in_flight` operations running until all are done.
void measure(const std::string& name, int operations, int in_flight, const Start& start) {
  for (const bool warm_up : {true, false}) {
    const double cpu = cpu_us();
    const auto begin = std::chrono::steady_clock::now();
    const int failed = keep_in_flight(warm_up ? operations / 10 : operations, in_flight, start);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (failed != 0) {
      std::fprintf(stderr, "bench_dynamodb: %d of %d failed: %s\n", failed, operations, name.c_str());
      std::exit(1);
    }
    if (warm_up) continue;
    std::printf("%-38s %6d in flight  %7.2f us CPU each  %8.0f/s\n", name.c_str(), in_flight,
                (cpu_us() - cpu) / operations, operations / took.count());
    std::fflush(stdout);
  }
}

std::shared_ptr<Client> client_of(const std::string& endpoint, const std::string& ca_file) {
  return make_client(
      {.region = "eu-central-1",
       .endpoint = endpoint,
       .credentials = static_credentials(
           {.access_key_id = "AKIDEXAMPLE", .secret_access_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}),
       .ca_file = ca_file,
       .max_connections = 64});
}

std::shared_ptr<once::Store> store_of(std::shared_ptr<Transport> client) {
  return once::stores::make_dynamodb_store({.table = "once", .transport = std::move(client)});
}

// An HTTP API's event with a key of its own each time, as a function gets them: the next when the last has its
// response. The work itself does nothing, so all of it is what the handler adds.
void measure_invocations(const std::string& name, once::lambda::Handler handler, int invocations) {
  std::ifstream file(ONCE_BENCH_EVENT);
  const std::string event{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string key = "order-17\"";
  once::lambda::Invocation invocation{.request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"};
  invocation.deadline = once::system_clock()->now() + std::chrono::minutes(15);
  int number = 0;
  for (const bool warm_up : {true, false}) {
    const int count = warm_up ? invocations / 10 : invocations;
    std::vector<std::string> events;
    for (int i = 0; i < count; ++i) {
      std::string one = event;
      one.replace(one.find(key), key.size() - 1, "order-" + std::to_string(++number));
      events.push_back(std::move(one));
    }
    const double cpu = cpu_us();
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& one : events) static_cast<void>(handler(one, invocation));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (warm_up) continue;
    std::printf("%-38s %6d in flight  %7.2f us CPU each  %8.0f/s\n", name.c_str(), 1, (cpu_us() - cpu) / count,
                count / took.count());
  }
}

void measure_handlers(once::Engine& engine, const std::string& over, int invocations) {
  const once::lambda::Environment environment{.function_name = "bench", .handler = "bench", .disabled = {}};
  measure_invocations(
      "lambda::idempotent, new" + over,
      once::lambda::idempotent(
          engine, {.key = "headers.\"idempotency-key\"", .fingerprint = "body", .environment = environment},
          [](std::string_view) { return R"({"statusCode":201})"; }),
      invocations);
  measure_invocations("lambda::http, new" + over,
                      once::lambda::http(engine,
                                         {.routes = once::http::Options{.principal = once::http::Principal::shared()},
                                          .environment = environment},
                                         [](const once::http::Request&, once::http::Execution&) {
                                           return once::http::Answer{.status = 201, .body = "{}"};
                                         }),
                      invocations);
}

void measure_all(bool tls, int calls) {
  const auto identity = tls ? std::optional(testing::make_identity()) : std::nullopt;
  const ServerProcess server(identity);
  const std::string endpoint = (tls ? "https://localhost:" : "http://localhost:") + std::to_string(server.port);
  const std::string ca_file = identity ? identity->ca_file : "";
  const std::string over = tls ? ", TLS" : ", plain";

  const auto client = client_of(endpoint, ca_file);
  const std::string body = R"({"TableName":"once","Item":{"id":{"S":")" + std::string(540, 'x') + R"("}}})";
  measure("call" + over, calls, 64, [&](int, std::function<void(bool)> done) {
    client->call({.operation = "PutItem", .body = body},
                 [done = std::move(done)](const Reply& reply) { done(!reply.error && reply.status == 200); });
  });

  const std::shared_ptr<once::Store> store = store_of(client);
  once::Attempt attempt;
  attempt.key = "bench/orders#" + std::string(64, '0');
  once::system_random()->fill(attempt.owner.bytes);
  attempt.holder = once::process_name();
  const auto record = once::share(once::claimed(
      attempt, once::EffectivePolicy{}, once::Stamp(once::system_clock()->now(), 0), nullptr, once::Verdict::execute));
  measure("store's write" + over, calls, 64, [&](int, std::function<void(bool)> done) {
    store->insert(record, [done = std::move(done)](const once::Answer& answer) {
      done(answer.status == once::AnswerStatus::done);
    });
  });

  once::Engine engine({.store = store, .scope = "bench"});
  const Start new_call = [&](int number, std::function<void(bool)> done) {
    engine.begin(engine.request(std::to_string(number), {}), [done = std::move(done)](once::Begin begin) mutable {
      if (begin.kind != once::Begin::Kind::claimed) return done(false);
      // The claim lives until its finish is over.
      auto claim = std::make_shared<once::Claim>(std::move(begin.claim));
      once::Claim& held = *claim;
      held.complete(once::Result::inlined("done"),
                    [done = std::move(done), claim = std::move(claim)](const once::Finish& finish) {
                      done(finish.kind == once::Finish::Kind::recorded);
                    });
    });
  };
  measure("engine's new call" + over, calls / 2, 64, new_call);
  measure("the same, ten thousand claims" + over, calls / 2, 10'000, new_call);
  measure_handlers(engine, over, calls / 10);
  std::printf("%-38s %6ld threads  %4ld MiB resident\n", "", of_this_process("Threads:"),
              of_this_process("VmRSS:") / 1024);
}

// In another process: opens the store, runs one operation, prints its peak memory, ends.
int run_one(const char* endpoint, const char* ca_file) {
  once::Engine engine({.store = store_of(client_of(endpoint, ca_file)), .scope = "bench"});
  const auto outcome = engine.run("first", {}, [] { return std::string("done"); });
  const long kib = of_this_process("VmHWM:");
  return outcome.kind == once::Outcome::Kind::executed && write(STDOUT_FILENO, &kib, sizeof(kib)) == sizeof(kib) ? 0
                                                                                                                 : 1;
}

void measure_start(const char* program) {
  const auto identity = testing::make_identity();
  const ServerProcess server(identity);
  const std::string endpoint = "https://localhost:" + std::to_string(server.port);
  std::string words[] = {program, "--one", endpoint, identity.ca_file};
  char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  std::vector<double> took;
  long most_kib = 0;
  int memory[2];  // Read from the process, because its rusage would include this one's memory (getrusage(2),
                  // ru_maxrss).
  posix_spawn_file_actions_t actions;
  if (pipe(memory) != 0 || posix_spawn_file_actions_init(&actions) != 0) std::abort();
  posix_spawn_file_actions_adddup2(&actions, memory[1], STDOUT_FILENO);
  for (int i = 0; i < 50; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    pid_t child = 0;
    int status = 0;
    long kib = 0;
    if (posix_spawn(&child, program, &actions, nullptr, arguments, environ) != 0 ||
        waitpid(child, &status, 0) != child || status != 0 || read(memory[0], &kib, sizeof(kib)) != sizeof(kib)) {
      std::fprintf(stderr, "bench_dynamodb: the process of one operation failed\n");
      std::exit(1);
    }
    took.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    most_kib = std::max(most_kib, kib);
  }
  std::ranges::sort(took);
  std::printf("%-38s %7.1f ms from exec to its end (median of 50), at most %.1f MiB resident\n",
              "a process of one operation, TLS", took[took.size() / 2], static_cast<double>(most_kib) / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--one") return run_one(argv[2], argv[3]);
  const int calls = argc > 1 ? std::max(1'000, std::atoi(argv[1])) : 50'000;
  measure_all(false, calls);
  measure_all(true, calls);
  measure_start(argv[0]);
}
