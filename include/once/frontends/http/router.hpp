// Rules by path: which of a service's routes a request belongs to. Pure: no socket, no engine.
//
//   once::http::Router router({others, {{"/charges", charges}, {"/orders/{id}/pay", pay}}});
//   const auto index = router.find(request);  // 0 or 1: that route. 2: none of them. Nothing: refuse the request.
//
// Together with an engine: once::http::Endpoints (once/frontends/http/endpoint.hpp).
//
// Servers differ in how they read a path: "/public/..;/charges%2f" is "/charges" to some. So a path that has more than
// one reading gets a route only if all its readings get the same rules. docs/decisions/proxy-routes.md has more.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/frontends/http/rules.hpp>

namespace once::http {

struct Route {
  // What paths it is for, segment by segment:
  //   "/charges"            this one
  //   "/orders/{id}/pay"    with any segment in place of {id}; the name is for people
  //   "/v1/*"               "/v1" and all that is below; '*' is the last segment
  // Case and a final slash make no difference. Letters, digits and -._~!$&'(),=:@ only; at most 1024 bytes. Of two that
  // match a path the more specific one wins, whatever their order.
  std::string path;

  // Two routes may have one path if their `methods` do not overlap. Other methods pass through on it.
  Options options;
};

// The rules of a whole service: at most 1000 routes, and what holds for all other paths.
struct Routes {
  Routes(Options others) : otherwise(std::move(others)) {}  // NOLINT(google-explicit-constructor): the same for all.
  Routes(Options others, std::vector<Route> own) : otherwise(std::move(others)), routes(std::move(own)) {}

  Options otherwise;
  std::vector<Route> routes;
};

// Immutable; for any number of threads at a time.
class Router {
 public:
  // Throws Exception(misuse) with the first of faults(). Options are not checked: Rules does that.
  explicit Router(Routes routes);
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;
  ~Router();

  // The route's index; routes().routes.size(): none, so that `otherwise` counts. Nothing: servers may read the path in
  // ways that have different rules, so it must not be run.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view method, std::string_view target) const;
  [[nodiscard]] std::optional<std::size_t> find(const Request& request) const {
    return find(request.method, request.target);
  }

  [[nodiscard]] const Routes& routes() const noexcept;

  // What is wrong with routes: a path that is not a pattern; one that matches some of what an earlier one matches,
  // while neither is more specific; one that an earlier route with a common method has.
  struct Fault {
    std::size_t route = 0;
    std::string text;
  };
  static std::vector<Fault> faults(const std::vector<Route>& routes);

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace once::http
