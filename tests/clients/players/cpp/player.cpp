// Plays calls for tests/clients/clients_test.py with the C++ library, by a store of a server.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/fingerprint.hpp>
#include <once/stores/open.hpp>

#include "text/missing_value.hpp"

namespace {

using nlohmann::json;

constexpr const char* json_type = "application/json";

void say(const json& event) {
  const std::string line = event.dump() + "\n";  // One write: lines of threads do not mix.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

// What the work throws.
struct Rejected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Gates {
 public:
  void open(const std::string& name) {
    const std::lock_guard lock(mutex_);
    open_[name] = true;
    changed_.notify_all();
  }
  void pass(const std::string& name) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_[name]; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, bool> open_;
};

std::string text_of(const json& from, const char* name) { return from.value(name, std::string()); }

// A URL, as a user writes it.
std::string url_of(const json& client) {
  const std::string timeout = "timeout=" + std::to_string(client.at("timeout_ms").get<int>()) + "ms";
  std::string server = text_of(client, "server");
  if (server.empty() && !client.contains("store")) server = std::getenv("ONCE_SERVER");
  if (server.empty()) {
    setenv("ONCE_PROGRAM", text_of(client, "program").c_str(), 1);
    return "once+" + client.at("store").get<std::string>();
  }
  if (server.starts_with("unix:")) return "once://" + once::escape_url(server.substr(5)) + "?" + timeout;
  std::string url = "once" + server.substr(server.find(':')) + "?" + timeout;
  if (server.starts_with("http:")) url += "&tls=0";
  for (const char* const file : {"token_file", "ca_file", "cert_file", "key_file"}) {
    if (client.contains(file)) url += "&" + std::string(file) + "=" + once::escape_url(text_of(client, file));
  }
  return url;
}

class Player {
 public:
  void connect(const json& message) {
    engine_ = std::make_unique<once::Engine>(once::EngineOptions{.store = once::open_store(url_of(message))});
  }

  void call(const json& message) {
    const auto ended = [&](const std::string& word, const std::string& why) {
      say({{"id", message.at("id")}, {"error", word}, {"message", why}});
    };
    const json& key = message.at("key");
    if (!key.is_string() || once::text::is_missing_value(key.get<std::string>()) || key.get<std::string>().empty()) {
      return ended("key-missing", "there is no key");
    }
    const std::string name = message.at("scope").get<std::string>() + "#" + key.get<std::string>();
    if (std::find(running_.begin(), running_.end(), name) != running_.end()) {
      return ended("in-progress", "the work calls itself");  // The library calls it a bug.
    }
    try {
      once::Outcome outcome = engine_->run(request_of(message), [&](once::Context& context) {
        running_.push_back(name);
        const auto left = std::shared_ptr<void>(nullptr, [](void*) { running_.pop_back(); });
        return work(message, context, message.at("work"));
      });
      // The work of this call returned it: its caller has it.
      if (unserialisable_) return say({{"id", message.at("id")}, {"result", nullptr}});
      const std::string bytes = outcome.value();
      if (outcome.result.content_type != json_type) return ended("result-unreadable", outcome.result.content_type);
      say({{"id", message.at("id")}, {"result", json::parse(bytes)}});
    } catch (const Rejected& error) {
      ended("thrown", error.what());
    } catch (const once::Conflict& error) {
      ended("in-progress", error.what());
    } catch (const once::Mismatch& error) {
      ended("key-reused", error.what());
    } catch (const once::OutcomeUnknown& error) {
      ended("outcome-unknown", error.what());
    } catch (const once::StoredFailure& error) {
      ended("failed", error.record()->failure.message);
    } catch (const once::ClaimLost& error) {
      ended("claim-lost", error.what());
    } catch (const once::ResultDropped& error) {
      ended("result-not-kept", error.what());
    } catch (const once::StoreFailed& error) {
      const bool is_refused = std::string(error.what()).find("the server answered") != std::string::npos;
      ended(is_refused && error.kind() == once::ErrorKind::misuse ? "refused" : "unavailable",
            error.what() + std::string("; nothing was run"));
    } catch (const once::Exception& error) {  // Before a request was sent.
      ended("refused", error.what());
    }
  }

  Gates gates;

 private:
  static once::Request request_of(const json& message) {
    const json& options = message.at("options");
    once::Policy policy;
    policy.lease = once::Millis{options.at("lease_ms").get<int>()};
    policy.wait = once::Millis{options.at("wait_ms").get<int>()};
    policy.on_conflict = *policy.wait > once::Millis{0} ? once::OnConflict::wait : once::OnConflict::fail;
    if (options.contains("retention_ms")) policy.retention = once::Millis{options.at("retention_ms").get<int>()};
    if (text_of(options, "on_lapse") == "hold") policy.on_lapse = once::OnLapse::hold;
    const std::string on_error = text_of(options, "on_error");
    if (on_error == "fail") policy.on_throw = once::OnThrow::store;
    if (on_error == "hold") policy.on_throw = once::OnThrow::hold;
    once::Request request{
        .key = once::Key(message.at("scope").get<std::string>(), message.at("key").get<std::string>()),
        .policy = policy};
    if (message.contains("payload")) request.fingerprint = once::Fingerprint::of(message.at("payload").dump());
    return request;
  }

  once::Result work(const json& message, once::Context& context, const json& actions) {
    for (const json& action : actions) {
      if (action.contains("effect")) {
        say({{"id", message.at("id")}, {"effect", action.at("effect")}, {"attempt", context.attempt()}});
      } else if (action.contains("gate")) {
        say({{"id", message.at("id")}, {"at", action.at("gate")}});
        gates.pass(action.at("gate").get<std::string>());
      } else if (action.contains("step")) {
        context.step(action.at("step").get<std::string>(),
                     [&] { return work(message, context, action.at("work")).bytes; });
      } else if (action.contains("check")) {
        if (context.stop_token().stop_requested()) {
          throw once::ClaimLost(once::ErrorKind::unavailable, "the claim was lost", nullptr);
        }
      } else if (action.contains("call")) {
        call(action.at("call"));
      } else if (action.contains("throw")) {
        throw Rejected(action.at("throw").get<std::string>());
      } else if (action.contains("unserialisable")) {
        unserialisable_ = true;
        once::Result dropped;
        dropped.placement = once::Placement::dropped;
        return dropped;
      } else if (action.contains("large")) {
        return once::Result::inlined("\"" + std::string(action.at("large").get<std::size_t>(), 'x') + "\"", json_type);
      } else {
        return once::Result::inlined(action.at("return").dump(), json_type);
      }
    }
    return once::Result::inlined("null", json_type);
  }

  std::unique_ptr<once::Engine> engine_;
  static inline thread_local std::vector<std::string> running_;
  static inline thread_local bool unserialisable_ = false;
};

}  // namespace

int main() {
  Player& player = *new Player;  // Not destroyed: calls may run until the end.
  say({{"ready", "cpp"}, {"can", json::array()}});
  std::string line;
  while (std::getline(std::cin, line)) {
    const json message = json::parse(line);
    const std::string what = message.at("do");
    if (what == "client") {
      player.connect(message);
    } else if (what == "open") {
      player.gates.open(message.at("gate"));
    } else {
      std::thread([&player, message] { player.call(message); }).detach();
    }
  }
  std::_Exit(0);
}
