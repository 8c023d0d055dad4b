// A Lambda function for tests of processes: does what its events say.
//
//   {"do": "echo"}                gives the event back
//   {"do": "double", "text": ""}  gives {"text": ""} with the text twice over
//   {"do": "fail"}                throws FunctionError "Declined"
//   {"do": "exit"}                ends the process with exit code 3
//   {"do": "hang"}                never answers
//   {"do": "note"}                appends a line to $NOTES, then answers with how many the process has handled
//   {"do": "log"}                 writes to both standard streams
//   {"do": "environment"}         answers with the variables that Lambda sets
//   {"do": "tenant"}              answers with the invocation's tenant
//   {"do": "charge", "id": "x"}   an operation made idempotent on $ONCE_STORE: charges once, by a line in $NOTES
//   {"do": "charge", "id": "x", "gate": true}   the same, and then waits for $GATE, a fifo, under a lease of 1 s
//   {"do": "charge", "id": "x", "hold": true}   the same, and nobody takes it over
//
// STREAM=1 in its environment: it streams. {"pieces": ["a", "b"]} is written piece by piece; with "break": true it
// throws FunctionError "Broken" behind them; with "head": {...} that is the head of an HTTP answer.
//
// ONCE_METRICS=emf: its charges are in metrics.
//
// INIT=fail in its environment: it cannot be made; INIT=exit: it ends before it asks; INIT=hang: it never asks.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include <once/engine/engine.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/frontends/lambda/metrics.hpp>
#include <once/frontends/lambda/runtime.hpp>

#include <once/stores/open.hpp>

namespace {

using nlohmann::json;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void append(const std::string& line) {
  const int fd = open(variable("NOTES").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("cannot write to $NOTES");
  }
  close(fd);
}

void wait_for_gate() {
  const int fd = open(variable("GATE").c_str(), O_RDONLY | O_CLOEXEC);
  char byte = 0;
  if (fd < 0 || read(fd, &byte, 1) < 0) throw std::runtime_error("cannot wait for $GATE");
  close(fd);
}

[[noreturn]] void hang() {
  for (;;) pause();
}

class TestFunction {
 public:
  std::string handle(std::string_view event_text, const once::lambda::Invocation& invocation) {
    const int number = ++handled_;
    const json event = json::parse(event_text);
    const std::string what = event.at("do");
    if (what == "echo") return std::string(event_text);
    if (what == "double") {
      const std::string text = event.at("text");
      return json({{"text", text + text}}).dump();
    }
    if (what == "fail") throw once::lambda::FunctionError("Declined", "the card was declined");
    if (what == "exit") _exit(3);
    if (what == "hang") {
      append("hang");
      hang();
    }
    if (what == "note") {
      append("note " + invocation.request_id);
      return json({{"handled", number}, {"pid", getpid()}}).dump();
    }
    if (what == "log") {
      constexpr std::string_view out = "to standard output\n";
      constexpr std::string_view err = "to standard error\n";
      if (write(STDOUT_FILENO, out.data(), out.size()) < 0 || write(STDERR_FILENO, err.data(), err.size()) < 0) {
        throw std::runtime_error("cannot write");
      }
      return "{}";
    }
    if (what == "environment") {
      json out;
      for (const char* const name :
           {"AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_VERSION", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "_HANDLER",
            "LAMBDA_TASK_ROOT", "AWS_LAMBDA_MAX_CONCURRENCY", "AWS_LAMBDA_LOG_GROUP_NAME", "EXTRA"}) {
        out[name] = variable(name);
      }
      out["arn"] = invocation.function_arn;
      return out.dump();
    }
    if (what == "tenant") return json({{"tenant", invocation.tenant_id}}).dump();
    if (what == "charge") return charge(event);
    throw std::runtime_error("unknown event");
  }

 private:
  std::string charge(const json& event) {
    const std::lock_guard lock(mutex_);
    if (!engine_) {
      engine_ = std::make_unique<once::Engine>(once::EngineOptions{
          .store = once::open_store(variable("ONCE_STORE")), .scope = "payments", .observer = observer_});
    }
    const once::WithinInvocation unbounded({});  // The lease of 1 s counts, and is renewed.
    once::Request request = engine_->request(event.at("id").get<std::string>(), {});
    request.policy = once::Policy{.lease = once::Millis{1'000},
                                  .on_conflict = once::OnConflict::fail,
                                  .on_lapse = event.contains("hold") ? once::OnLapse::hold : once::OnLapse::takeover};
    const once::Outcome outcome = engine_->run(std::move(request), [&](once::Context& context) {
      append("charge " + event.at("id").get<std::string>());
      if (event.contains("gate")) wait_for_gate();
      return once::Result::inlined(json({{"charged", true}, {"attempt", context.attempt()}}).dump(),
                                   "application/json");
    });
    if (outcome.kind == once::Outcome::Kind::replayed || outcome.kind == once::Outcome::Kind::superseded) {
      json response = json::parse(outcome.result.bytes);
      response[std::string(to_string(outcome.kind))] = true;
      return response.dump();
    }
    if (outcome.kind == once::Outcome::Kind::conflict) throw once::lambda::FunctionError("Conflict", "under way");
    if (!outcome.has_result()) {
      throw once::lambda::FunctionError("NotCharged",
                                        std::string(to_string(outcome.kind)) + ": " + outcome.error.message);
    }
    return outcome.result.bytes;
  }

  std::atomic<int> handled_{0};
  std::mutex mutex_;
  const once::Observer observer_ = once::lambda::metrics_from_environment([](std::string_view setting) {
    const std::string line = "from the environment: " + std::string(setting) + "\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) throw std::runtime_error("cannot write");
  });
  std::unique_ptr<once::Engine> engine_;
};

void stream(std::string_view event_text, const once::lambda::Invocation&, once::lambda::ResponseStream& response) {
  const json event = json::parse(event_text);
  if (event.contains("head")) response.http_head(event.at("head").dump());
  for (const std::string piece : event.at("pieces")) response.write(piece);
  if (event.contains("break")) throw once::lambda::FunctionError("Broken", "no more of it");
}

}  // namespace

int main() {
  if (variable("INIT") == "exit") return 7;
  if (variable("INIT") == "hang") hang();
  if (variable("STREAM") == "1") return once::lambda::run(once::lambda::StreamingHandler(stream));
  return once::lambda::run([]() -> once::lambda::Handler {
    if (variable("INIT") == "fail") throw std::runtime_error("no configuration");
    const auto function = std::make_shared<TestFunction>();
    return [function](std::string_view event, const once::lambda::Invocation& invocation) {
      return function->handle(event, invocation);
    };
  });
}
