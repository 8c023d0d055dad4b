// GET /v1/openapi.json: the operators' API for programs, as openapi.json beside this file says it.
#pragma once

#include <once/frontends/http/message.hpp>

namespace once::operators {

http::Answer description();

}  // namespace once::operators
