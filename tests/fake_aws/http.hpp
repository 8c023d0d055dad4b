// What the service's HTTP is made of: for the server, and for a wire without sockets.
#pragma once

#include <string>
#include <string_view>

#include <once/time.hpp>

#include "fake_aws/fake_dynamodb.hpp"
#include "fake_aws/refusal.hpp"

namespace once::testing::fake {

inline constexpr std::string_view target_prefix = "DynamoDB_20120810.";  // Of X-Amz-Target, before the operation.

std::string date_header(Time time);  // "Thu, 01 Jan 2026 00:00:00 GMT"
FakeAnswer refusal_answer(const Refusal& refusal);

}  // namespace once::testing::fake
