// An attempt with the policy of its call: shared by its caller, its conversations and its claim, and never changed.
#pragma once

#include <cstdint>
#include <string>

#include <boost/container/small_vector.hpp>

#include <once/decide.hpp>
#include <once/policy.hpp>

namespace once {

struct EngineAttempt : Attempt {
  EffectivePolicy policy;
  bool attaches = false;  // To the claim that its owner has: it never makes one.
  // The revisions of claims that were written for it and may be stored, by which a copy's claim is told from its own.
  // After a conversation: those of one that was in doubt. While there are any, the owner is kept, to know them.
  // Only for its conversations, of which one at a time runs.
  mutable boost::container::small_vector<std::uint64_t, 1> may_be_stored = {};
  std::string alone =
      {};  // Names a flight of its own, which nobody joins (EngineOptions::disabled). Empty: the key does.

  [[nodiscard]] const std::string& flight() const noexcept { return alone.empty() ? key : alone; }
};

}  // namespace once
