// Items that are no records, for the conformance suite.
#pragma once

#include <cstddef>
#include <string>

#include <once/stores/dynamodb.hpp>

namespace once::testing {

inline constexpr std::size_t spoils = 9;

// The body of a PutItem that puts the item `which` under the key, which must be plain ASCII.
inline std::string spoiled_put(const stores::DynamoDbOptions& options, std::size_t which, const std::string& key) {
  static constexpr const char* items[spoils] = {
      // Somebody else's.
      R"("name":{"S":"a customer"})",
      // Powertools'.
      R"("status":{"S":"COMPLETED"},"expiration":{"N":"9999999999"},"data":{"S":"{}"})",
      // Ours, repaired by hand and badly.
      R"("status":{"S":"done"},"owner":{"S":"00112233445566778899aabbccddeeff"},"token":{"N":"1"},"attempt":{"N":"1"},)"
      R"("revision":{"N":"1048576"},"created_at":{"N":"1"})",
      R"("status":{"S":"completed"},"token":{"N":"1"},"attempt":{"N":"1"},"revision":{"N":"1048576"},"created_at":{"N":"1"})",
      R"("status":{"S":"completed"},"owner":{"B":"AAAA"},"token":{"N":"1"},"attempt":{"N":"1"},"revision":{"N":"1048576"})",
      R"("status":{"S":"completed"},"owner":{"S":"00112233445566778899aabbccddeeff"},"token":{"N":"1.5"},)"
      R"("attempt":{"N":"1"},"revision":{"N":"1048576"},"created_at":{"N":"1"})",
      R"("status":{"S":"completed"},"owner":{"S":"00112233445566778899aabbccddeeff"},"token":{"N":"1"},)"
      R"("attempt":{"N":"5000000000"},"revision":{"N":"1048576"},"created_at":{"N":"1"})",
      R"("status":{"S":"completed"},"owner":{"S":"00112233445566778899aabbccddeeff"},"token":{"N":"1"},)"
      R"("attempt":{"N":"1"},"revision":{"S":"1"},"created_at":{"N":"1"})",
      R"("status":{"S":"completed"},"owner":{"S":"00112233445566778899aabbccddeeff"},"token":{"N":"1"},)"
      R"("attempt":{"N":"1"},"revision":{"N":"7340032"},"created_at":{"N":"1"},"steps":{"L":[{"S":"a step"}]})",
  };
  std::string body = R"({"TableName":")" + options.table + R"(","Item":{")" + options.partition_key + R"(":{"S":")";
  body += options.sort_key.empty() ? key : options.partition_value + R"("},")" + options.sort_key + R"(":{"S":")" + key;
  return body + "\"}," + items[which] + "}}";
}

}  // namespace once::testing
