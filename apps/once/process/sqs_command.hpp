// The work of `once sqs`: a command, or a post to a URL, once for each message of a queue.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "settings/access.hpp"
#include "settings/admin_flags.hpp"
#include "settings/log.hpp"
#include "settings/work_options.hpp"

namespace once::cli {

// As on the command line.
struct SqsOptions : WorkOptions {
  StoreOptions store;
  bool unshared_store = false;
  std::string queue;
  std::string region;
  std::string endpoint;
  std::string profile;
  std::string scope;
  std::string key;
  std::string key_from;
  std::string fingerprint;
  bool allow_null_parts = false;
  std::string label = "none";
  bool keep_input = false;
  std::vector<std::string> input_without;
  std::string on_poison = "leave";
  std::string on_mismatch = "leave";
  std::string on_unknown = "leave";
  std::size_t parallel = 1;
  std::string visibility = "30s";
  std::string receive_wait;
  std::string stop_within;
  std::string retry_after;
  std::string post;
  std::string post_timeout = "30s";
  std::string content_type = "application/json";
  std::string output_limit = "64KiB";
  std::string derive_name;
  std::string reconcile_interval = "30s";
  std::string sweep_interval = "60s";
  bool drain = false;
  LogFlags log;
  AdminFlags admin;
  bool verbose = false;
};

// Blocks until a signal ends it, or with `drain` until the queue is empty. Without a command it posts. Returns the exit
// code. Throws Exception.
int sqs_command(const SqsOptions& options, std::vector<std::string> command);

}  // namespace once::cli
