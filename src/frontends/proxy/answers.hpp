// The proxy's own answers, and the names of outcomes in the log.
#pragma once

#include <string_view>

#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/proxy.hpp>

#include "frontends/proxy/incoming.hpp"
#include "frontends/proxy/upstream.hpp"

namespace once::proxy {

RequestOutcome outcome_of(http::Opening::Kind kind) noexcept;

// Status, reason and forwarded headers, to be stored.
http::Answer head_of(const Incoming& answer);

// To a request that cannot be taken: 400, 431, 501 or 505. `detail` as in Refusal.
http::Answer malformed(unsigned status, std::string_view detail);
http::Answer overloaded();
http::Answer answer_to(Trouble trouble, Millis retry_after = Millis{0});  // Of Exchange::retry_after().

}  // namespace once::proxy
