// What the environment says about tracing, by OpenTelemetry's names.
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and .../protocol/exporter/
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/engine/tracer.hpp>
#include <once/time.hpp>

#include "aws/endpoint.hpp"

namespace once::tracing {

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Settings {
  aws::Endpoint endpoint;
  std::string target;  // Of requests: "/v1/traces".
  Pairs headers;
  Pairs resource;  // service.name among them.
  Sampler sampler;
  Millis timeout{10'000};  // Of a request.
  Millis delay{5'000};     // How long a span waits for others.
  std::size_t max_queue = 2048;
  std::size_t max_batch = 512;
};

// Empty: off. Throws Exception(misuse), which names the variable.
std::optional<Settings> read_settings(const Environment& environment, std::string_view service_name);

}  // namespace once::tracing
