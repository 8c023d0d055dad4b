// A DynamoDB store's URL as options, for tools that work on its table.
#pragma once

#include <string>
#include <string_view>

#include <once/stores/dynamodb.hpp>

namespace once::stores {

// The options that open_store() opens for dynamodb://table?…; `offload` is ignored. Throws Exception(misuse) as
// open_store() does, and for other schemes.
DynamoDbOptions dynamodb_options(std::string_view url);

// "BUCKET/PREFIX" where open_backend() would keep large results in S3. Empty: the URL names no S3.
std::string dynamodb_results(std::string_view url);

}  // namespace once::stores
