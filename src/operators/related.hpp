// GET /v1/records/KEY/related: where else to look when an operation seems to have run twice, or not at all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

#include "operators/store_access.hpp"

namespace once::operators {

// `prefixes`: as for list_records(). Blocks. Throws Exception(misuse) for a wrong query, StoreFailed.
http::Answer related_records(const StoreAccess& access, const std::vector<std::string>& prefixes,
                             const std::string& stored_key, std::string_view query);

}  // namespace once::operators
