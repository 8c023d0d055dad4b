// A key without its scope could meet another tenant's: there is no way to leave the scope out.
// Expect: no matching (function|conversion)
#include <once/key.hpp>

once::Key make() {
#ifdef WRONG
  return once::Key("order-17");
#else
  return once::Key("payments/charge", "order-17");
#endif
}
