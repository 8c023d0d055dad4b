// Every exit code of `once` itself. All others are the command's, returned by `once run`. docs/commands.md lists them.
// Scripts rely on the numbers, so they never change.
#pragma once

namespace once::cli {

enum ExitCode : int {
  exit_ok = 0,
  exit_found_problems = 1,  // doctor, table: something needs an operator. sqs --drain: messages are left. rm:
                            // something of the record is left. import: rows were refused or are in conflict.
  exit_usage = 64,          // Wrong flags, an impossible key or duration (EX_USAGE of sysexits.h). Nothing was run.
  exit_bad_event = 65,      // key: the event cannot be read, or the expression fails on it (EX_DATAERR of sysexits.h).
  exit_output = 74,         // Standard output or error could not be written (EX_IOERR of sysexits.h).
  exit_cannot_execute = 126,  // The command was found but could not be executed, as shells have it. Nothing was run.
  exit_not_found = 127,       // The command was not found, as shells have it. Nothing was run.
  exit_signal_base = 128,     // 128 + n: the command died of signal n, as shells have it.

  exit_function_error = 237,  // lambda invoke: an invocation was answered with an error.
  exit_function_died = 238,   // lambda invoke: an invocation timed out, or the function gave no answer.
  exit_no_record = 239,       // show, resolve, release, extend, rm: no record has this key. find: none was found.
  exit_conflict = 240,     // Another attempt is running it. Operator commands: refused because of the record's state.
                           // copy: operations still run in the store.
  exit_mismatch = 241,     // The key was used with another payload.
  exit_unknown = 242,      // It began, and its outcome is not known: see `once resolve`.
  exit_unavailable = 243,  // The store cannot be used. `once run` ran nothing.
  exit_corrupt = 244,      // A record cannot be read. `once run` ran nothing.
  exit_lost = 245,         // The claim was lost while the command ran, and no result is stored.
  exit_dropped = 246,      // It ran before, but its output was too large to keep: there is nothing to replay.
  exit_unrecorded = 247,   // The command ran, but its result could not be stored (only with --on-unrecorded fail).
  exit_superseded = 248,   // The command ran, but another attempt's result counts.
  exit_internal = 249,     // A bug of `once`.
};

}  // namespace once::cli
