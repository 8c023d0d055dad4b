// GET /v1/openapi.json: the operators' API for programs, as openapi.json beside this file says it.
#pragma once

#include <once/frontends/http/message.hpp>

namespace once::cli {

http::Answer description();

}  // namespace once::cli
