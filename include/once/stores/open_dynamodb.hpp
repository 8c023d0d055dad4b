// A DynamoDB store's URL as options, for tools that work on its table.
#pragma once

#include <string>
#include <string_view>

#include <once/stores/dynamodb.hpp>

namespace once::stores {

// What open_store() makes of dynamodb://table?… before it opens it; `offload` is left to open_backend(). Throws
// Exception(misuse) as it does, for other schemes too.
DynamoDbOptions dynamodb_options(std::string_view url);

// "BUCKET/PREFIX", where open_backend() keeps large results if the URL says that they go to S3. Empty: it does not.
std::string dynamodb_results(std::string_view url);

}  // namespace once::stores
