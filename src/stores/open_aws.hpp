// The schemes of AWS's services; not in a build without ONCE_AWS.
#pragma once

#include <memory>

#include <once/offload.hpp>
#include <once/store.hpp>

#include "stores/url.hpp"

namespace once::stores {

// Each takes the parameters it knows and refuses the rest.
std::unique_ptr<Store> open_dynamodb(Url& url);
std::shared_ptr<Offload> open_s3(Url& url);

}  // namespace once::stores
