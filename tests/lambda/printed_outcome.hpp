// How GoogleTest prints what became of an invocation.
#pragma once

#include <ostream>

#include <once/frontends/lambda/local_api.hpp>

namespace once::lambda {

inline void PrintTo(InvocationOutcome::Kind kind, std::ostream* out) { *out << to_string(kind); }

}  // namespace once::lambda
