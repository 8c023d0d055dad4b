// The proxy's own answers, and the names of outcomes in the log.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// For a request of a page's script: the headers that let it read our problems, and see Retry-After and the mark of a
// replay in what it may read. Empty: the answer's own headers are all. `origins`: http::Options::cors_origins.
std::optional<http::Headers> readable_by_page(const http::Answer& answer, std::span<const http::HeaderView> request,
                                              const std::vector<std::string>& origins);

}  // namespace once::proxy
