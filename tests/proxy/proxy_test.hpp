// A proxy between a scripted upstream and raw clients.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/frontends/proxy.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>

#include "wire.hpp"

namespace once::proxy {

inline void PrintTo(RequestOutcome outcome, std::ostream* out) { *out << to_string(outcome); }

// The entries of the access log, in order.
struct LogLine {
  RequestOutcome outcome;
  unsigned status;
  std::string fate;
  std::string cause;
  std::string key_hash;
  std::string path;
  unsigned upstream_status;
  std::string route;
  std::string client;
  std::string trace_id;
};

class ProxyTest : public ::testing::Test {
 protected:
  ProxyTest() {
    rules.scope = "shop";
    rules.policy.emplace().lease = Millis{30'000};
    options.aside.after_failures = 0;  // Many tests let their only upstream fail again and again.
    rules.policy->on_missing_key = OnMissingKey::run_unprotected;  // Most tests are about something else.
    options.listen = {"127.0.0.1", 0};
    options.threads = 2;
  }
  // Not in the destructor: by then what a derived fixture lends to the proxy's threads is gone.
  void TearDown() override {
    proxy.reset();
    engine.reset();
    upstream.reset();
  }

  // Answers each request with 201 and its number, and records it.
  [[nodiscard]] Upstream::Script counting() {
    return [this](Line& line) {
      while (auto request = line.read_request()) {
        if (!line.write(answer_text("201 Created", "run " + std::to_string(got(std::move(*request))),
                                    "Content-Type: text/plain\r\nSet-Cookie: s=1\r\nX-Tag: 1\r\nX-Tag: 2\r\n"))) {
          return;
        }
      }
    };
  }
  // Reads one request and sends this; then closes.
  [[nodiscard]] Upstream::Script sending(std::string bytes) {
    return [this, bytes = std::move(bytes)](Line& line) {
      if (auto request = line.read_request()) {
        got(std::move(*request));
        line.write(bytes);
      }
    };
  }
  // What a script is to send next.
  void say(std::string bytes) {
    const std::lock_guard lock(mutex);
    said_ = std::move(bytes);
  }
  std::string said() {
    const std::lock_guard lock(mutex);
    return said_;
  }

  std::size_t got(Message request) {
    const std::lock_guard lock(mutex);
    requests.push_back(std::move(request));
    return requests.size();
  }
  [[nodiscard]] std::size_t runs() {
    const std::lock_guard lock(mutex);
    return requests.size();
  }
  [[nodiscard]] Message request(std::size_t index) {
    const std::lock_guard lock(mutex);
    return requests.at(index);
  }

  void start(Upstream::Script script) {
    upstream = std::make_unique<Upstream>(std::move(script));
    start_for(upstream->port());
  }
  void start_for(std::uint16_t port) {  // 0: options.upstreams says where they are.
    engine =
        std::make_unique<Engine>(EngineOptions{.store = store, .tracer = tracer, .clock = clock, .timers = timers});
    if (port != 0) options.upstreams = {{.address = {"127.0.0.1", port}, .tls = upstream_tls}};
    options.on_served = [this](const Served& served) {
      const std::lock_guard lock(mutex);
      log.push_back({served.outcome, served.status, std::string(served.fate), std::string(served.cause),
                     key_hash(served.stored_key), std::string(served.path), served.upstream_status,
                     std::string(served.route), std::string(served.client),
                     served.trace.empty() ? std::string() : served.trace.trace_id_hex()});
      news.notify_all();
    };
    proxy = std::make_unique<Proxy>(*engine, rules, options);
  }

  [[nodiscard]] std::vector<Record> records() { return blocking::list(*store, {.limit = 100}).records; }

  // Why nothing is stored under this key.
  [[nodiscard]] std::string reason_of(const std::string& key) {
    for (const Record& record : records()) {
      if (record.label != key) continue;
      const auto& entries = record.history.entries;
      return record.failure.message + (entries.empty() ? std::string() : entries.back().why);
    }
    return "no record";
  }

  // The line for the request number `index`, when it is over.
  LogLine logged(std::size_t index) {
    std::unique_lock lock(mutex);
    if (!news.wait_for(lock, patience, [&] { return log.size() > index; })) throw std::runtime_error("no such line");
    return log[index];
  }

  [[nodiscard]] std::size_t lines() {
    const std::lock_guard lock(mutex);
    return log.size();
  }

  [[nodiscard]] Line client(int receive_buffer = 0) const { return Line::to(proxy->port(), receive_buffer); }

  static std::string post(const std::string& key, const std::string& body = "cents=500",
                          const std::string& lines = {}) {
    return "POST /charges HTTP/1.1\r\nHost: shop\r\n" +
           (key.empty() ? std::string() : "Idempotency-Key: " + key + "\r\n") + lines +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // One request on a new connection. Ends when it is in the log, so that the log has the order of these calls.
  Message ask(const std::string& request, bool bodiless = false) {
    const std::size_t before = lines();
    Line line = client();
    line.write(request);
    auto answer = line.read_message(bodiless);
    if (!answer) throw std::runtime_error("no answer");
    line.close();
    logged(before);
    return *answer;
  }
  // Again, while a request with this key is running.
  Message ask_until_decided(const std::string& request) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      Message answer = ask(request);
      if (answer.body.find("urn:once:problem:in-progress") == std::string::npos) return answer;
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("still in progress");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // Between two looks, not in place of one.
    }
  }

  // For scripts, which may live on for a moment when the test is over.
  Gate arrived;
  Gate go;
  std::mutex mutex;
  std::condition_variable news;
  std::vector<Message> requests;
  std::vector<LogLine> log;
  std::size_t closed = 0;  // For scripts that say when they have closed.
  std::shared_ptr<once::testing::FaultyStore> store = std::make_shared<once::testing::FaultyStore>(
      std::shared_ptr<Store>(stores::make_memory_store()), once::testing::no_faults());
  std::shared_ptr<Clock> clock;  // Of the engine. Empty: the system's, as are the timers.
  std::shared_ptr<Timers> timers;
  std::shared_ptr<const Tracer> tracer;
  http::Options rules{.principal = http::Principal::shared()};
  ProxyOptions options;
  bool upstream_tls = false;
  std::unique_ptr<Upstream> upstream;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Proxy> proxy;

 private:
  std::string said_;
};

}  // namespace once::proxy
