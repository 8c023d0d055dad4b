// GET /v1/records: a page of the records that match, or of those that a text is found in. However many records a store
// has, one request reads a bounded number of its pages, and the answer says where the next one goes on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

#include "settings/access.hpp"

namespace once::cli {

// `prefixes`: beginnings of stored keys up to the '#', one for each scope in which a searched key is looked up at once.
// Blocks. Throws Exception(misuse) for a wrong query, StoreFailed.
http::Answer list_records(const StoreAccess& access, const std::vector<std::string>& prefixes, std::string_view query);

}  // namespace once::cli
