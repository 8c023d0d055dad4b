// The work of `once run`: a command that runs once for its key.
#pragma once

#include <string>
#include <vector>

#include "settings/access.hpp"
#include "settings/key_options.hpp"
#include "settings/log.hpp"
#include "settings/work_options.hpp"

namespace once::cli {

// As on the command line.
struct RunOptions : WorkOptions {
  StoreOptions store;
  LogFlags log;
  KeyOptions key;
  std::string wait;
  std::string if_running = "fail";
  std::string on_stored_failure = "replay";
  std::string on_store_down = "refuse";
  std::string on_lost = "kill";
  std::string label = "named";
  std::string keep_input;  // "args", "stdin". Empty: none.
  std::vector<std::string> input_without;
  std::string on_unrecorded = "return";
  std::string fingerprint = "args";
  std::string output_limit = "1MiB";
  std::string offload_limit = "64MiB";
  std::string input_limit = "16GiB";
  std::string output_wait = "1s";
  std::string derive_name = "command";
  std::string metrics_file;  // Empty: none.
  bool allow_null_parts = false;
  bool no_output = false;
  bool drain_input = false;
  bool no_sweep = false;
  bool survive = false;
  bool terminal = false;
  bool verbose = false;
  bool unshared_store = false;
};

// Blocks. Returns the exit code. Throws Exception(misuse) for contradicting options.
int run_command(const RunOptions& options, std::vector<std::string> command);

}  // namespace once::cli
