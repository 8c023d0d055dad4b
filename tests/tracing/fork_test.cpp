// fork() while the exporter's thread waits, and while it sends.
#include <once/tracing.hpp>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <netinet/in.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/stores/memory.hpp>

namespace once {
namespace {

using namespace std::chrono_literals;

// A port that takes connections, and never answers.
class Silent {
 public:
  Silent() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Silent() { close(socket_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;

  [[nodiscard]] int port() const noexcept { return port_; }
  void wait_for_a_connection() const { close(accept(socket_, nullptr, nullptr)); }

 private:
  int socket_;
  int port_ = 0;
};

std::unique_ptr<Tracing> tracing_to(int port, const std::string& delay_ms) {
  return std::make_unique<Tracing>(TracingOptions{
      .environment = [port, delay_ms](const std::string& name) -> std::optional<std::string> {
        if (name == "OTEL_EXPORTER_OTLP_ENDPOINT") return "http://127.0.0.1:" + std::to_string(port);
        if (name == "OTEL_BSP_SCHEDULE_DELAY") return delay_ms;
        return std::nullopt;
      },
  });
}

void call(const Tracing& tracing, const std::string& key) {
  Engine engine({.store = stores::make_memory_store(), .tracer = tracing.tracer()});
  EXPECT_EQ(engine.run(key, {}, [] { return std::string("done"); }).value(), "done");
}

// The exit status of a child that uses what it inherited.
int status_of_child(std::unique_ptr<Tracing>& tracing) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // Ends it if it waits for the parent's thread.
    call(*tracing, "child");
    std::string wrong;
    if (!tracing->flush(10s)) wrong += "it waits; ";
    if (tracing->counts().exported != 0 || tracing->counts().dropped == 0) wrong += "it did not count; ";
    if (tracing->metrics().find("once_spans_dropped_total") == std::string::npos) wrong += "it shows no counts; ";
    if (!wrong.empty()) std::fprintf(stderr, "in the child: %s\n", wrong.c_str());
    tracing.reset();
    Silent own;  // Made anew, it sends.
    auto anew = tracing_to(own.port(), "1");
    call(*anew, "child");
    own.wait_for_a_connection();
    _exit(wrong.empty() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(TracingFork, TheChildNeitherSendsNorWaits) {
  const Silent collector;
  auto tracing = tracing_to(collector.port(), "3600000");
  call(*tracing, "parent");  // Its thread waits for the delay.
  EXPECT_EQ(status_of_child(tracing), 0);
  EXPECT_EQ(tracing->counts().dropped, 0U);
}

TEST(TracingFork, NorWhileTheParentSends) {
  const Silent collector;
  auto tracing = tracing_to(collector.port(), "1");
  call(*tracing, "parent");
  collector.wait_for_a_connection();
  EXPECT_EQ(status_of_child(tracing), 0);
}

}  // namespace
}  // namespace once
