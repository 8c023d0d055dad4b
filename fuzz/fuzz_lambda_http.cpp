// Any bytes as an event of API Gateway, a function URL or a load balancer, through the handler of HTTP events.
//
// Besides not crashing: what is refused is refused as an invalid event; a response is JSON that can be read, with a
// status; and the same event again is no second run of an operation, but a replay with the same body.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/frontends/lambda/http.hpp>
#include <once/stores/memory.hpp>

#include "text/json.hpp"

namespace {

using once::text::json::Kind;

void require(bool condition) {
  if (!condition) std::abort();
}

// The body, as it stands in the response.
std::string body_of(const std::string& response) {
  std::pmr::monotonic_buffer_resource arena;
  const auto root = once::text::json::parse(response, {.unique_names = false}, arena, "the response");
  require(root.member("statusCode").kind() == Kind::number);
  require(root.member("isBase64Encoded").kind() == Kind::boolean);
  require(root.member("body").kind() == Kind::string);
  return std::string(root.member("body").text());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view event(reinterpret_cast<const char*>(data), size);
  once::Engine engine({.store = once::stores::make_memory_store()});
  once::lambda::HttpOptions options{.routes = once::http::Options{.principal = once::http::Principal::given()}};
  options.environment = once::lambda::Environment{.function_name = "f", .handler = {}, .disabled = {}};
  int runs = 0;
  bool protects = false;
  const once::lambda::Handler handler =
      once::lambda::http(engine, options, [&](const once::http::Request& request, once::http::Execution& execution) {
        protects = execution.is_protected();
        require(request.target.starts_with('/'));
        once::http::Answer answer{.status = 201, .reason = {}, .headers = {}, .body = std::string(request.body)};
        for (const auto& [name, value] : request.headers) {
          answer.headers.push_back({std::string(name), std::string(value)});
        }
        answer.body += std::to_string(++runs);
        return answer;
      });
  try {
    const std::string first = body_of(handler(event, {}));
    const std::string second = body_of(handler(event, {}));
    require(runs <= 2);
    if (protects) require(runs == 1 && first == second);
  } catch (const once::lambda::FunctionError& error) {
    require(error.type() == once::lambda::errors::invalid_event && runs == 0);
  }
  return 0;
}
