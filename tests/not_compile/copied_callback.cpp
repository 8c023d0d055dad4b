// A completion is called once, so it is moved from hand to hand and never copied.
// Expect: deleted
#include <once/callback.hpp>

once::Callback<void()> hand_over(once::Callback<void()> done) {
#ifdef WRONG
  const once::Callback<void()> copy = done;
#endif
  return done;
}
