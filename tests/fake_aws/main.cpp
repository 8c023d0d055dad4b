// fake_dynamodb: the fake as a program, for tests and benchmarks in other languages. Prints its URL, with TLS the file
// of its certificate authority on a second line, and serves until SIGTERM or SIGINT. --help lists the options.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>
#include <once/testing/manual_time.hpp>

#include "fake_aws/fake_dynamodb_server.hpp"

int main(int argc, char** argv) {
  CLI::App app("A fake DynamoDB");
  once::testing::FakeServerOptions options;
  once::testing::FakeAccessKey key;
  std::vector<std::string> tables;
  app.add_option("--address", options.address, "An address of this host")->capture_default_str();
  app.add_option("--port", options.port, "Port; 0: any free one");
  app.add_flag("--tls", options.tls, "HTTPS");
  auto* access_key = app.add_option("--access-key", key.access_key_id, "Check signatures, with this access key");
  app.add_option("--secret", key.secret_access_key, "Secret of the access key")->needs(access_key);
  app.add_option("--region", options.region, "Refuse signatures for another region");
  app.add_option("--table", tables, "Create a table: name, or name:hash, or name:hash:range (texts; hash is 'id')");
  std::size_t creation_steps = 0;
  app.add_option("--creation-steps", creation_steps, "Tables are CREATING until they were looked at so often");
  app.add_option("--fixed-answer", options.fixed_answer, "Answer every request with this body, and do nothing");
  std::int64_t delay_ms = 0;
  app.add_option("--delay", delay_ms, "Milliseconds after which each answer is sent; not with --fixed-answer")
      ->check(CLI::Range(0, 60'000));
  std::int64_t clock_s = 0;
  app.add_option("--clock", clock_s, "Seconds by which the service's clock is ahead of this host's; negative: behind");
  bool until_eof = false;
  app.add_flag("--until-eof", until_eof,
               "End with the standard input as well: give it a pipe, and the fake ends with you. Each line of it is "
               "answered with how many requests for each operation have come so far, as JSON");
  CLI11_PARSE(app, argc, argv);
  if (!key.access_key_id.empty()) options.keys.push_back(key);

  // Blocked before the first thread, so that they arrive here only.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int signal_file = ::signalfd(-1, &signals, SFD_CLOEXEC);
  try {
    const auto fake = std::make_shared<once::testing::FakeDynamoDb>(
        std::make_shared<once::testing::DriftingClock>(once::system_clock(), 0, std::chrono::seconds(clock_s)));
    for (const auto& table : tables) {
      const auto first = table.find(':');
      const auto second = first == std::string::npos ? first : table.find(':', first + 1);
      const std::string hash = first == std::string::npos ? "id" : table.substr(first + 1, second - first - 1);
      fake->create_table(table.substr(0, first), hash, second == std::string::npos ? "" : table.substr(second + 1));
    }
    fake->set_creation_steps(creation_steps);
    if (delay_ms > 0) {
      fake->set_faults([delay_ms](const once::testing::FakeCall&) {
        return once::testing::FakeFault{.delay = once::Millis{delay_ms}};
      });
    }
    const once::testing::FakeDynamoDbServer server(fake, options);
    std::printf("%s\n", server.url().c_str());
    if (options.tls) std::printf("%s\n", server.ca_file().c_str());
    std::fflush(stdout);
    std::array<pollfd, 2> ends{{{.fd = signal_file, .events = POLLIN, .revents = 0},
                                {.fd = until_eof ? 0 : -1, .events = POLLIN, .revents = 0}}};
    while (true) {
      if (::poll(ends.data(), ends.size(), -1) < 0) continue;  // Interrupted.
      std::array<char, 256> input{};
      if (ends[0].revents != 0) return 0;
      if (ends[1].revents == 0) continue;
      const ssize_t size = ::read(0, input.data(), input.size());
      if (size <= 0) return 0;
      for (auto lines = std::count(input.begin(), input.begin() + size, '\n'); lines > 0; --lines) {
        std::printf(
            "%s\n",
            nlohmann::json(fake->round_trips()).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
        std::fflush(stdout);
      }
    }
  } catch (const once::Exception& error) {
    std::fprintf(stderr, "fake_dynamodb: %s\n", error.what());
    return 1;
  }
}
