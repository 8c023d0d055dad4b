// One invocation of an idempotent handler as a process, for freeze_test.py: URL of the store, name, milliseconds until
// the deadline, "hold" or "takeover". Its work charges (a step), says "working NAME", waits for a line on standard
// input, and responds with its name. What happens is a line each on standard output.
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include <once/frontends/lambda/idempotent.hpp>
#include <once/stores/open.hpp>

namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string name = argv[2];
  try {
    once::EngineOptions engine_options{.store = once::open_store(argv[1])};
    engine_options.observer = [](const once::Event& event) {
      if (event.kind == once::EventKind::finish_refused) say("the finish was refused");
    };
    once::Engine engine(engine_options);
    once::lambda::IdempotentOptions options{.key = "id", .name = "pay"};
    options.policy =
        once::Policy{.on_conflict = once::OnConflict::wait,
                     .on_lapse = std::string_view(argv[4]) == "hold" ? once::OnLapse::hold : once::OnLapse::takeover};
    options.on_replay = [](const std::string& response, const once::Record&) { return response + ", of another"; };
    const once::lambda::Handler handler =
        once::lambda::idempotent(engine, options, [&](std::string_view, once::Context& context) {
          context.step("charge", [&] { say("charged by " + name); });
          say("working " + name);
          std::string line;
          std::getline(std::cin, line);
          return name;
        });
    once::lambda::Invocation invocation{.request_id = name};
    invocation.deadline =
        once::Time(std::chrono::floor<once::Millis>(std::chrono::system_clock::now().time_since_epoch())) +
        once::Millis(std::stol(argv[3]));
    say("response: " + handler(R"({"id":"order-17"})", invocation));
  } catch (const once::lambda::FunctionError& error) {
    say("error: " + error.type());
  } catch (const std::exception& error) {
    say(std::string("unexpected: ") + error.what());
    return 1;
  }
}
