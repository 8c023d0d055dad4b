// An attempt with the policy of its call: shared by its caller, its conversation and its claim, and never changed.
#pragma once

#include <once/decide.hpp>
#include <once/policy.hpp>

namespace once {

struct EngineAttempt : Attempt {
  EffectivePolicy policy;
};

}  // namespace once
