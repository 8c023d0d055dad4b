// The library cannot guess what distinguishes clients, and clients that share a principal get each other's answers.
// Expect: Principal
#include <once/frontends/http/rules.hpp>

once::http::Options options() {
#ifdef WRONG
  return once::http::Options{.route = "/charges"};
#else
  return once::http::Options{.principal = once::http::Principal::shared(), .route = "/charges"};
#endif
}
