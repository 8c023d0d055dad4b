// The places of credentials. Each is read by blocking code on the thread that refreshes them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <once/aws/credentials.hpp>
#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/time.hpp>

#include "aws/credentials.hpp"
#include "aws/http.hpp"
#include "aws/shared_config.hpp"

namespace once::aws {

// Cancels a search that no caller waits for. Thread-safe.
class Cancellation {
 public:
  void cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept;

  // Calls `start` and waits for the answer. Throws Exception(unavailable) once cancelled; the answer is dropped
  // then.
  static HttpAnswer wait(const std::shared_ptr<Cancellation>& cancellation,
                         const std::function<void(Callback<void(HttpAnswer)>)>& start);
  static HttpAnswer exchange(const std::shared_ptr<Cancellation>& cancellation, HttpClient& http, HttpRequest request);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
};

// One search for credentials.
struct Search {
  const CredentialsOptions& options;
  const CredentialsPorts& ports;
  std::shared_ptr<Cancellation> cancellation;
  Millis process_limit{60'000};  // For a credential_process.
  std::vector<std::string>
      tried{};  // The places without credentials, and why: "environment (AWS_ACCESS_KEY_ID is not set)".

  // A variable's value, or empty.
  [[nodiscard]] std::string variable(const std::string& name) const;

  static constexpr std::uint32_t attempts = 3;

  // Retries while there is no answer, or 429 or 5xx. Returns the last answer.
  HttpAnswer fetch(const HttpRequest& request) const;
};

// Searches all places, in the order of default_credentials(). Throws Exception with the tried places.
Credentials search(Search& search);

// Each of these returns nothing, and adds a line to `tried`, if its place is not set up. It throws Exception if the
// place is set up but has no credentials. misuse: the setup must be changed. unavailable: it may work later.
std::optional<Credentials> from_environment(Search& search);
std::optional<Credentials> from_web_identity(Search& search);
std::optional<Credentials> from_profile(Search& search);
std::optional<Credentials> from_container(Search& search);
std::optional<Credentials> from_instance(Search& search);

// Runs a command and reads the JSON that it prints:
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
// Uses no shell: blanks separate the arguments, quotes and backslashes work as in a POSIX shell, nothing is expanded.
// Its standard input is empty, its standard error is ours. It is killed after `search.process_limit`.
Credentials from_process(const Search& search, std::string_view command, const std::string& place);

// A role's credentials from STS.
struct Role {
  std::string arn;
  std::string session_name;  // Empty: a generated one.
  std::string external_id;
  std::string duration_seconds;
};
Credentials assume_role(const Search& search, const Role& role, const Credentials& source, std::string_view profile,
                        const std::string& place);
Credentials assume_role_with_token(const Search& search, const Role& role, const std::string& token_file,
                                   std::string_view profile, const std::string& place);

// Parses the JSON of containers, instances and processes. `token`: the name of the session token in it. Throws
// Exception(misuse), without any of the text. `place` becomes Credentials::source.
Credentials parse_credentials(std::string_view json, std::string_view token, const std::string& place);

// Parses the XML of STS: the four elements of its one <Credentials>. Throws as above.
Credentials parse_sts_answer(std::string_view xml, const std::string& place);

// The contents of a small file, without white space at its ends. Throws Exception(misuse), which names the file.
std::string read_token(const std::string& file, std::string_view origin);

// Returns the credentials. Throws Exception(misuse) for invalid keys, such as one with a line break.
Credentials checked(Credentials credentials);

}  // namespace once::aws
