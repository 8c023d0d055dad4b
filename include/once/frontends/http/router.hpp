// Finds the route of a request, and so its rules. Pure: no socket, no engine.
//
//   once::http::Router router({others, {{"/charges", charges}, {"/orders/{id}/pay", pay}}});
//   const auto index = router.find(request); // 0 or 1: that route. 2: none of them. Empty: refuse the request.
//
// With an engine: once::http::Endpoints (once/frontends/http/endpoint.hpp).
//
// Servers read paths differently: to some, "/public/..;/charges%2f" is "/charges". So a path with several readings gets
// a route only if all of them have the same rules. docs/decisions/proxy-routes.md has more.
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

// The rules of some paths.
struct Route {
  // A pattern of paths, segment by segment:
  //   "/charges"            this one
  //   "/orders/{id}/pay"    with any segment in place of {id}; the name is for people
  //   "/v1/*"               "/v1" and all that is below; '*' is the last segment
  // Case and a final slash do not matter. Letters, digits and -._~!$&'(),=:@ only; at most 1024 bytes. The most
  // specific route wins, in any order of the list.
  std::string path = {};

  // Two routes may have the same path if their `methods` do not overlap. Other methods pass through unprotected.
  Options options;
};

// The rules of a whole service: at most 1000 routes, and the options for all other paths.
struct Routes {
  Routes(Options others) : otherwise(std::move(others)) {}  // NOLINT(google-explicit-constructor): the same for all.
  // Checked by Router.
  Routes(Options others, std::vector<Route> own) : otherwise(std::move(others)), routes(std::move(own)) {}

  Options otherwise;               // For the paths of no route.
  std::vector<Route> routes = {};  // In any order. Empty: `otherwise` holds for all paths.
};

// Immutable: any number of threads may use it at once.
class Router {
 public:
  // Throws Exception(misuse) with the first of faults(). Rules checks the options.
  explicit Router(Routes routes);
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;
  ~Router();

  // The route's index. routes().routes.size(): no route, use `otherwise`. Empty: servers may read the path in ways that
  // have different rules, so the request must not run.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view method, std::string_view target) const;
  // The same for a request, of which it reads method and target.
  [[nodiscard]] std::optional<std::size_t> find(const Request& request) const {
    return find(request.method, request.target);
  }

  [[nodiscard]] const Routes& routes() const noexcept;  // As given. Lives as long as the router.

  // What is wrong with a route: a path that is not a pattern; a path that overlaps an earlier one while neither is more
  // specific; a path and a method that an earlier route has too.
  struct Fault {
    std::size_t route = 0;  // Its index in the list.
    std::string text = {};  // For people.
  };
  // At most one for each route, in their order. Empty: a Router takes them.
  static std::vector<Fault> faults(const std::vector<Route>& routes);

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace once::http
