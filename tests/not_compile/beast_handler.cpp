// A handler of another shape.
// Expect: once: a handler of async_serve\(\) takes
#include <string>

#include <once/frontends/http/beast.hpp>

void serve(once::http::Endpoint& endpoint, const once::http::BeastRequest& request) {
  const auto completion = [](const once::http::BeastResponse&) {};
#ifdef WRONG
  const auto handler = [](const once::http::BeastRequest&) { return std::string("done"); };
#else
  const auto handler = [](const once::http::BeastRequest&, once::http::Execution&) {
    return once::http::BeastResponse();
  };
#endif
  once::http::async_serve(endpoint, request, handler, completion);
}
