// The output of commands, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <once/engine/log.hpp>
#include <once/error.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "operators/record_json.hpp"
#include "output/exit_codes.hpp"
#include "output/names.hpp"

namespace once::cli {

// Writes "once: <text>" to standard error, or a line of a JSON log: {"time":…,"level":…,"event":"note","why":"<text>"}.
// A failed write is ignored.
void say(std::string_view text, LogLevel level = LogLevel::notice);

// How this process says it, from now on (default: text). Any thread.
void say_as(LogFormat format) noexcept;
// The same from where nothing can be allocated, such as a signal's handler. `text`: ASCII without quotes, backslashes
// and controls.
void say_at_the_end(std::string_view text) noexcept;

// The first fields of a line of a JSON log, and the line: all that nobody sees is escaped, and it ends with a newline.
nlohmann::ordered_json log_head(LogLevel level, std::string_view event);
std::string log_line(const nlohmann::ordered_json& line);

// The exit code of a kind of failure.
ExitCode exit_code_of(ErrorKind kind) noexcept;
// Of what a store answered: misuse, such as a missing table, is no fault of the command line.
ExitCode exit_code_of_store(ErrorKind kind) noexcept;

// Prints the error and returns its exit code.
int fail_with(const Error& error);

// Writes to standard output. If that fails, prints why and returns exit_output. A closed pipe is not a failure.
int print(std::string_view text, int exit_code = exit_ok);

// The exit code that `once run` gives for this record, if it has such a result, in the record itself.
std::optional<int> run_exit_code(const Record& record);

// Every field of a record, for people.
std::string record_text(const Record& record, Time now);

// "3m12s ago", "in 4h"; "unknown" for the epoch, which means no time.
std::string relative(Time time, Time now);

// "alice@host": the user of this program.
std::string who();

}  // namespace once::cli
