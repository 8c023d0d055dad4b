// The schemes of AWS's services; not in a build without ONCE_AWS.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <once/offload.hpp>
#include <once/store.hpp>
#include <once/stores/dynamodb.hpp>

#include "stores/url.hpp"

namespace once::stores {

// Each takes the parameters it knows and refuses the rest.
std::unique_ptr<Store> open_dynamodb(Url& url);
std::shared_ptr<Offload> open_s3(Url& url);

// The options that open_store() opens for dynamodb://table?…; `offload` is ignored. Throws Exception(misuse) as
// open_store() does, and for other schemes.
DynamoDbOptions dynamodb_options(std::string_view url);

// "BUCKET/PREFIX" where open_backend() would keep large results in S3. Empty: the URL names no S3.
std::string dynamodb_results(std::string_view url);

}  // namespace once::stores
