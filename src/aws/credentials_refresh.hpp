// Credentials that are looked for again before they expire.
#pragma once

#include <functional>
#include <memory>

#include <once/aws/credentials.hpp>
#include <once/clock.hpp>

#include "aws/credentials_search.hpp"

namespace once::aws {

// May block; throws Exception. Called on a thread of its own, one call at a time. It should come to an end soon when
// patience ends.
using Look = std::function<Credentials(const std::shared_ptr<Patience>& patience)>;

// Keeps what `look` gave until shortly before it expires, as default_credentials() says.
std::shared_ptr<CredentialsProvider> refreshing_credentials(Look look, std::shared_ptr<Clock> clock,
                                                            std::shared_ptr<Random> random);

}  // namespace once::aws
