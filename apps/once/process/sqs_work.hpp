// The work of a message for `once sqs`: a command that gets it on standard input, or a URL that it is posted to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/engine/event.hpp>
#include <once/frontends/sqs/poller.hpp>
#include <once/time.hpp>

#include "process/supervise.hpp"
#include "settings/rules.hpp"

namespace once::cli {

struct CommandWork {
  std::vector<std::string> command;
  Rules rules;
  Millis lease{};
  Millis grace{5'000};
  std::uint64_t output_limit = 0;  // Of the encoded result.
  std::string derive_name;
};

// Commands under claims, several at a time. Thread-safe.
class Commands {
 public:
  // `cannot_run` is told, with the errno, that the command itself can never be executed: no message is to blame.
  Commands(CommandWork work, Signals& signals, std::function<void(int)> cannot_run);
  ~Commands();

  sqs::WorkEnd run(const sqs::Message& message, Claim& claim);
  // For the engine's observer: tells whoever watches the lease of a command.
  void on_event(const Event& event);
  // Ends what runs: SIGTERM, and SIGKILL after the grace.
  void end_all();

 private:
  struct Running;
  class Register;

  const CommandWork work_;
  Signals& signals_;
  const std::function<void(int)> cannot_run_;
  const std::unique_ptr<Register> register_;
};

// Will executing the command fail for every message, as long as nobody mends it? Others pass by: too many processes or
// open files, no memory, a program that is just being written. Or they are one message's doing: too large an
// environment.
bool cannot_ever_run(int exec_errno) noexcept;

// ONCE_SQS_MESSAGE_ID and what else a command finds in its environment of a message.
std::vector<std::pair<std::string, std::string>> message_environment(const sqs::Message& message);

struct PostWork {
  std::string url;
  std::string content_type;
  Millis timeout{30'000};
  CommandFate on_failure = CommandFate::release;
  std::string derive_name;
  std::size_t parallel = 1;  // As PollerOptions has it.
};

// Throws Exception(misuse) for a URL or a content type that cannot be. `cannot_post` is told, as Commands' `cannot_run`
// is, why no message can be posted: the service's certificate is not good, say.
sqs::PolledWork post_work(PostWork work, std::function<void(const std::string&)> cannot_post);

// What an answer of the service means. `status` 0: none came, and `arrived` says whether the request may have.
// `on_lapse`: the record's. Pure.
CommandFate fate_of_answer(int status, bool arrived, CommandFate on_failure, OnLapse on_lapse);
// Does it say that the service is down, and would answer nobody else better? Pure.
bool is_down(int status, bool arrived) noexcept;

}  // namespace once::cli
