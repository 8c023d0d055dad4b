// GET /v1/openapi.json of once serve: the claims API, as openapi.json beside this file says it.
#pragma once

#include <once/frontends/http/message.hpp>

namespace once::cli::serve {

http::Answer description();

}  // namespace once::cli::serve
