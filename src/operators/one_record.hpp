// GET /v1/records/KEY, and its payloads: what one record is, with as much of its bytes as is asked for.
#pragma once

#include <string>
#include <string_view>

#include <once/frontends/http/message.hpp>

#include "operators/console.hpp"
#include "operators/service.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// Both block. Throw Exception(misuse) for a wrong query.
http::Answer show_record(const StoreAccess& access, const Service& service, const Caller& caller,
                         const std::string& stored_key, std::string_view query);
// The bytes alone, as a file that no browser shows or runs.
http::Answer raw_payload(const StoreAccess& access, const Caller& caller, const std::string& stored_key,
                         std::string_view query);

}  // namespace once::operators
