// A claim has one holder: it is handed on, never shared.
// Expect: deleted
#include <utility>

#include <once/engine/claim.hpp>

once::Claim hand_over(once::Claim claim) {
#ifdef WRONG
  once::Claim copy = claim;
#else
  once::Claim copy = std::move(claim);
#endif
  return copy;
}
