// POST …/resolve, …/release and …/extend, DELETE …: an operator's change of one record, as the commands make it.
#pragma once

#include <cstdint>
#include <string>

#include <once/frontends/http/message.hpp>

#include "operators/console.hpp"
#include "settings/access.hpp"

namespace once::cli {

enum class OneAct : std::uint8_t { resolve, release, extend, remove };

// Blocks. Throws Exception(misuse) for a wrong request.
http::Answer act_on_one(const StoreAccess& access, const http::Request& request, const Caller& caller,
                        std::string stored_key, OneAct act);

}  // namespace once::cli
