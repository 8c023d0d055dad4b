// What partition_test.py runs in its network namespaces, a line of JSON on standard output for all that happens.
//
//   partition_process serve ADDRESS
//     A fake DynamoDB with a table `records`. Tells its URL, and every request as it is carried out.
//
//   partition_process work NAME URL LEDGER LEASE_MS SKEW_MS
//     A worker with an engine on the store URL. Takes commands, each on a thread of its own:
//       start KEY    claims the key. If it is claimed: adds "KEY NAME TOKEN" to the ledger, and waits for finish.
//       finish KEY   completes it; the result is what was added to the ledger.
//       run KEY      both.
//
// Ends with its standard input, at once.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/engine/engine.hpp>
#include <once/platform/system.hpp>
#include <once/stores/open.hpp>

#include "fake_aws/fake_dynamodb_server.hpp"

namespace {

using nlohmann::json;
using once::Begin;
using once::Claim;
using once::Millis;
using once::Result;

void say(json line) {
  static std::mutex mutex;
  line["now"] = once::system_clock()->now().time_since_epoch().count();
  const std::string text = line.dump() + '\n';
  const std::lock_guard lock(mutex);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Threads that wait for an answer are not waited for.
[[noreturn]] void leave() { std::_Exit(0); }

int serve(const std::string& address) {
  const auto fake = std::make_shared<once::testing::FakeDynamoDb>(once::system_clock());
  fake->create_table("records", "id");
  fake->set_faults([](const once::testing::FakeCall& call) {
    say({{"event", "request"}, {"operation", call.operation}, {"body", json::parse(call.body)}});
    return once::testing::FakeFault{};
  });
  const once::testing::FakeDynamoDbServer server(fake, {.address = address});
  say({{"event", "serving"}, {"url", server.url()}});
  for (std::string line; std::getline(std::cin, line);) {
  }
  leave();
}

class Worker {
 public:
  Worker(std::string name, const std::string& url, const char* ledger, Millis lease, Millis skew)
      : name_(std::move(name)), ledger_(::open(ledger, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) {
    if (ledger_ < 0) throw once::Exception(once::ErrorKind::misuse, std::string("cannot write ") + ledger);
    once::EngineOptions options;
    options.store = once::open_store(url);
    options.holder = name_;
    options.policy.lease = lease;
    options.policy.skew = skew;
    options.policy.on_conflict = once::OnConflict::wait;
    options.policy.wait = std::chrono::seconds(60);
    options.observer = [](const once::Event& event) {
      json line{{"event", to_string(event.kind)}, {"key", event.key}};
      if (event.error != nullptr) line["error"] = event.error->message;
      say(std::move(line));
    };
    engine_ = std::make_unique<once::Engine>(std::move(options));
    say({{"event", "ready"}});
  }

  bool start(const std::string& key) {
    Begin begin = engine_->begin({.key = once::Key("", key), .fingerprint = {}, .policy = {}, .holder = {}});
    if (begin.kind != Begin::Kind::claimed) {
      json line{{"event", "told"}, {"key", key}, {"how", how(begin.kind)}};
      if (begin.kind == Begin::Kind::replayed) line["result"] = begin.record->result.bytes;
      if (begin.kind == Begin::Kind::error) {
        line["kind"] = to_string(begin.error.kind);
        line["error"] = begin.error.message;
      }
      say(std::move(line));
      return false;
    }
    const std::string charge = key + ' ' + name_ + ' ' + std::to_string(begin.claim.token());
    const std::string line = charge + '\n';
    if (::write(ledger_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
    auto work = std::make_shared<Work>();
    work->claim = std::move(begin.claim);
    work->charge = charge;
    work->on_stop.emplace(work->claim.stop_token(), [key] { say({{"event", "told to stop"}, {"key", key}}); });
    say({{"event", "charged"}, {"key", key}, {"charge", charge}, {"attempt", work->claim.attempt()}});
    const std::lock_guard lock(mutex_);
    work_[key] = std::move(work);
    return true;
  }

  void finish(const std::string& key) {
    std::shared_ptr<Work> work;
    {
      const std::lock_guard lock(mutex_);
      work = std::move(work_.at(key));
    }
    const once::Finish finish = work->claim.complete(Result::inlined(work->charge));
    json line{{"event", "told"}, {"key", key}, {"how", how(finish.kind)}};
    line["result"] = finish.kind == once::Finish::Kind::superseded ? finish.record->result.bytes : work->charge;
    if (!finish.error.message.empty()) line["error"] = finish.error.message;
    say(std::move(line));
  }

  void take_commands() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command;
      std::string key;
      words >> command >> key;
      std::thread([this, command, key] {
        if (command != "finish" && !start(key)) return;
        if (command != "start") finish(key);
      }).detach();
    }
  }

 private:
  struct Work {
    Claim claim;
    std::string charge;
    std::optional<std::stop_callback<std::function<void()>>> on_stop;
  };

  static const char* how(Begin::Kind kind) {
    switch (kind) {
      case Begin::Kind::replayed:
        return "replayed";
      case Begin::Kind::conflict:
        return "conflict";
      case Begin::Kind::error:
        return "error";
      default:
        return "something else";
    }
  }
  static const char* how(once::Finish::Kind kind) {
    switch (kind) {
      case once::Finish::Kind::recorded:
        return "recorded";
      case once::Finish::Kind::superseded:
        return "superseded";
      case once::Finish::Kind::lost:
        return "lost";
      case once::Finish::Kind::unrecorded:
        return "unrecorded";
      default:
        return "something else";
    }
  }

  const std::string name_;
  const int ledger_;
  std::unique_ptr<once::Engine> engine_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Work>> work_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 2 && words[0] == "serve") return serve(words[1]);
    if (words.size() == 6 && words[0] == "work") {
      Worker worker(words[1], words[2], argv[4], Millis(std::stoll(words[4])), Millis(std::stoll(words[5])));
      worker.take_commands();
      leave();
    }
    std::fputs("usage: see the beginning of partition_process.cpp\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "partition_process: %s\n", error.what());
  }
  return 2;
}
