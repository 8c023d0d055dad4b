// Runs a command that prints a secret, such as a password manager's.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <once/time.hpp>

namespace once {

struct CommandRun {
  std::string name;                      // What messages call it. They never have the command's arguments.
  Millis limit{60'000};                  // Then it is killed.
  std::function<bool()> given_up{};      // Asked every 20 ms; true: it is killed.
  std::vector<std::string> variables{};  // "NAME=VALUE", for its environment. They replace ours of the same name.
  bool keeps_errors = false;             // Its standard error is for the exception, if it fails.
  int misuse_status = 0;                 // With this exit status it says that it is called wrongly. 0: none does.
};

// What the command prints: at most 64 KiB. Uses no shell: blanks separate the arguments, quotes and backslashes work as
// in a POSIX shell, nothing is expanded. Its standard input is empty, its standard error ours unless it is kept.
// Blocks. Throws Exception: misuse if the command cannot be split or started, or prints more, or ends with that status;
// unavailable if it fails, takes too long, or was given up.
std::string output_of(std::string_view command, const CommandRun& run);

}  // namespace once
