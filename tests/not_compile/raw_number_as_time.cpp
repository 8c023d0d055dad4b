// A raw number has no unit: 30 could be seconds or milliseconds.
// Expect: (could not convert|cannot convert|no viable conversion|no known conversion)
#include <once/policy.hpp>

once::Policy make() {
#ifdef WRONG
  return {.lease = 30};
#else
  return {.lease = once::Millis(30)};
#endif
}
