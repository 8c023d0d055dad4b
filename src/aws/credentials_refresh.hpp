// Credentials that are fetched again before they expire.
#pragma once

#include <functional>
#include <memory>

#include <once/aws/credentials.hpp>
#include <once/clock.hpp>

#include "aws/credentials_search.hpp"

namespace once::aws {

// May block; throws Exception. Called on its own thread, one call at a time. It should return soon after a
// cancellation.
using Look = std::function<Credentials(const std::shared_ptr<Cancellation>& cancellation)>;

// Keeps the result of `look` until shortly before it expires: see default_credentials().
std::shared_ptr<CredentialsProvider> refreshing_credentials(Look look, std::shared_ptr<Clock> clock,
                                                            std::shared_ptr<Random> random);

}  // namespace once::aws
