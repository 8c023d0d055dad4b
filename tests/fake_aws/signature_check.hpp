// Judges AWS Signature Version 4, from its specification ("Signing AWS API requests" in the IAM user guide): what the
// server's side does. Shares nothing with once's own signer, so that neither can excuse the other.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/time.hpp>

#include "fake_aws/fake_dynamodb_server.hpp"

namespace once::testing::fake {

struct HttpRequest {
  std::string_view method;
  std::string_view target;
  std::vector<std::pair<std::string, std::string>> headers;  // Names in lower case, values trimmed.
  std::string_view body;

  [[nodiscard]] const std::string* header(std::string_view name) const;
};

// Throws Refusal unless one of the keys has signed the request at about `now`.
void check_signature(const HttpRequest& request, const std::vector<FakeAccessKey>& keys, std::string_view region,
                     Time now);

}  // namespace once::testing::fake
