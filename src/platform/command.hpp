// Runs a command that prints a secret, such as a password manager's.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <once/time.hpp>

namespace once {

struct CommandRun {
  std::string name;                  // What messages call it. They never have the command's arguments.
  Millis limit{60'000};              // Then it is killed.
  std::function<bool()> given_up{};  // Asked every 20 ms; true: it is killed.
};

// What the command prints: at most 64 KiB. Uses no shell: blanks separate the arguments, quotes and backslashes work as
// in a POSIX shell, nothing is expanded. Its standard input is empty, its standard error is ours. Blocks. Throws
// Exception: misuse if the command cannot be split or started, or prints more; unavailable if it fails, takes too long,
// or was given up.
std::string output_of(std::string_view command, const CommandRun& run);

}  // namespace once
