// What the commands say to people and to programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "process/exit_codes.hpp"

namespace once::cli {

// "once: <text>" on standard error. Failing to write it changes nothing.
void say(std::string_view text);

// The exit code that stands for a kind of failure.
ExitCode exit_code_of(ErrorKind kind) noexcept;

// Says the error and gives its exit code.
int fail_with(const Error& error);

// Writes to standard output; exit_output after saying why, if that fails. A reader that has gone is no failure.
int print(std::string_view text, int exit_code = exit_ok);

// "'order-17'" or "'order-17' in scope 'payments'", for messages.
std::string quoted(const Key& key);
std::string quoted_stored(std::string_view stored);

// The scope and name of a stored key; one without '#', from other programs, is all name.
struct KeyParts {
  std::string scope;
  std::string name;
};
KeyParts key_parts(std::string_view stored);

// Every field of a record; docs/commands.md has the names. With `payloads`, also the bytes of result and steps.
nlohmann::ordered_json record_json(const Record& record, Time now, bool payloads);

// Pretty-printed, with a newline at its end.
std::string json_text(const nlohmann::ordered_json& json);

// The same for people.
std::string record_text(const Record& record, Time now);

// "3m12s ago", "in 4h"; "unknown" for the epoch, which stands for no time.
std::string relative(Time time, Time now);

// "alice@host": who runs this program.
std::string who();

}  // namespace once::cli
