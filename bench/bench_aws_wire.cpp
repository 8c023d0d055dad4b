// What a call of an AWS service costs this process: bench/bench_aws_wire [calls] [in flight].
//
// CPU time (user and system, all threads) for a signed POST of 600 bytes and its answer, over connections that are kept
// alive, to a server in another process that always says the same. So many calls are in flight all the time.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <memory>
#include <optional>
#include <string>

#include <once/aws/client.hpp>

#include "../tests/aws/wire_server.hpp"

namespace {

using namespace once::aws;

double cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

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

// Keeps one call under way until all have been made.
struct Loop {
  Client& client;
  const std::string& body;
  std::atomic<int>& left;
  std::atomic<int>& failed;
  std::latch& over;

  void next() {
    if (left.fetch_sub(1) <= 0) return over.count_down();
    client.call({.operation = "PutItem", .body = body}, [this](const Reply& reply) {
      if (reply.error) ++failed;
      next();
    });
  }
};

void measure(const char* name, bool tls, int calls, int in_flight) {
  const auto identity = tls ? std::optional(testing::make_identity()) : std::nullopt;
  const ServerProcess server(identity);
  const auto client =
      make_client({.region = "eu-central-1",
                   .endpoint = (tls ? "https://localhost:" : "http://localhost:") + std::to_string(server.port),
                   .credentials = static_credentials({.access_key_id = "AKIDEXAMPLE",
                                                      .secret_access_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}),
                   .ca_file = identity ? identity->ca_file : "",
                   .max_connections = static_cast<std::size_t>(in_flight)});
  const std::string body = R"({"TableName":"once","Item":{"id":{"S":")" + std::string(540, 'x') + R"("}}})";
  for (const bool warm_up : {true, false}) {
    std::atomic<int> left{warm_up ? calls / 10 : calls};
    std::atomic<int> failed{0};
    std::latch over(in_flight);
    Loop loop{*client, body, left, failed, over};
    const double cpu = cpu_us();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < in_flight; ++i) loop.next();
    over.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (warm_up) continue;
    std::printf("%-6s %d calls, %d in flight: %.2f us CPU a call, %.0f calls/s, %d failed\n", name, calls, in_flight,
                (cpu_us() - cpu) / calls, calls / took.count(), failed.load());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 50'000;
  const int in_flight = argc > 2 ? std::atoi(argv[2]) : 64;
  measure("plain", false, calls, in_flight);
  measure("TLS", true, calls, in_flight);
  return 0;
}
