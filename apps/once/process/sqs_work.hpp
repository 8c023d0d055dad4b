// The work of a message for `once sqs`: a command with the message as standard input, or a POST to a URL.
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
  // `cannot_run` is called with the errno if the command can never be executed, for any message.
  Commands(CommandWork work, Signals& signals, std::function<void(int)> cannot_run);
  ~Commands();

  sqs::WorkEnd run(const sqs::Message& message, Claim& claim);
  // For the engine's observer: wakes the supervisor of the command's lease.
  void on_event(const Event& event);
  // Ends running commands: SIGTERM, and SIGKILL after the grace.
  void end_all();

 private:
  struct Running;
  class Register;

  const CommandWork work_;
  Signals& signals_;
  const std::function<void(int)> cannot_run_;
  const std::unique_ptr<Register> register_;
};

// Whether executing the command fails for every message until an operator fixes it. Other errors pass (too many
// processes or open files, no memory, a program just being written), or are due to one message (too large an
// environment).
bool cannot_ever_run(int exec_errno) noexcept;

// ONCE_SQS_MESSAGE_ID and the other variables of a message for its command.
std::vector<std::pair<std::string, std::string>> message_environment(const sqs::Message& message);

struct PostWork {
  std::string url;
  std::string content_type;
  Millis timeout{30'000};
  CommandFate on_failure = CommandFate::release;
  std::string derive_name;
  std::size_t parallel = 1;  // As PollerOptions has it.
};

// Throws Exception(misuse) for an invalid URL or content type. `cannot_post` is called with the reason if no message
// can be posted, for example an invalid certificate of the service.
sqs::PolledWork post_work(PostWork work, std::function<void(const std::string&)> cannot_post);

// What an answer of the service means. `status` 0: no answer; `arrived`: the request may have arrived. `on_lapse`: the
// record's. Pure.
CommandFate fate_of_answer(int status, bool arrived, CommandFate on_failure, OnLapse on_lapse);
// Whether the service is down for all messages. Pure.
bool is_down(int status, bool arrived) noexcept;

}  // namespace once::cli
