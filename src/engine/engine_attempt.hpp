// An attempt with the policy of its call: shared by its caller, its conversations and its claim. Only a conversation
// changes it, of which one at a time runs: it gives the attempt an owner when it writes a claim, not before. So a copy
// of this process that was made while the caller waited claims under another one.
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
  boost::container::small_vector<std::uint64_t, 1> may_be_stored = {};
  std::string alone =
      {};  // Names a flight of its own, which nobody joins (EngineOptions::disabled). Empty: the key does.

  // Nothing that was written for it may be stored, so its next claim has another owner.
  void forget_owner() noexcept {
    may_be_stored.clear();
    owner = {};
  }
  [[nodiscard]] const std::string& flight() const noexcept { return alone.empty() ? key : alone; }
};

}  // namespace once
