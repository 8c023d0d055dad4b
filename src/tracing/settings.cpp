#include "tracing/settings.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <once/error.hpp>
#include <once/rounding.hpp>

#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"

namespace once::tracing {

namespace {

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // Empty is the same as not set.
  [[nodiscard]] std::string value(const std::string& name) const {
    return std::string(text::trim(environment_(name).value_or(std::string())));
  }
  [[noreturn]] static void refuse(const std::string& name, const std::string& what) {
    throw Exception(ErrorKind::misuse, name + ": " + what);
  }

  template <class Number>
  void whole(const std::string& name, Number low, Number high, Number& out) const {
    const std::string text = value(name);
    if (text.empty()) return;
    const auto number = text::parse_whole<Number>(text);
    if (!number || *number < low || *number > high) {
      refuse(name, "it is " + text::quoted(text) + ", and must be a whole number from " + std::to_string(low) + " to " +
                       std::to_string(high));
    }
    out = *number;
  }
  void millis(const std::string& name, Millis& out) const {
    constexpr Millis::rep most = 3'600'000;
    Millis::rep number = out.count();
    whole<Millis::rep>(name, 1, most, number);
    out = Millis(number);
  }

  // "a=1,b=two%20words" (W3C Baggage). The values may be secrets: they are in no error.
  [[nodiscard]] Pairs pairs(const std::string& name) const {
    Pairs out;
    const std::string whole = value(name);
    std::string_view rest = whole;
    while (!rest.empty()) {
      const std::size_t comma = rest.find(',');
      const std::string_view one = text::trim(rest.substr(0, comma));
      rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
      if (one.empty()) continue;
      const std::size_t equals = one.find('=');
      const std::string_view key = text::trim(one.substr(0, equals));
      const auto decoded = text::percent_decoded(text::trim(one.substr(std::min(one.size() - 1, equals) + 1)));
      if (equals == std::string_view::npos || key.empty() || !decoded) {
        refuse(name, "it must be a list of pairs, as in key=value,other=two%20words");
      }
      out.emplace_back(key, *decoded);
    }
    return out;
  }

 private:
  const Environment& environment_;
};

void put(Pairs& pairs, std::string_view name, std::string_view value) {
  std::erase_if(pairs, [&](const auto& pair) { return pair.first == name; });
  pairs.emplace_back(name, value);
}

Sampler read_sampler(const Variables& variables) {
  const std::string variable = "OTEL_TRACES_SAMPLER";
  std::string name = variables.value(variable);
  Sampler sampler;
  if (name.empty()) return sampler;
  const std::string given = name;
  constexpr std::string_view by_parent = "parentbased_";
  sampler.asks_parent = name.starts_with(by_parent);
  if (sampler.asks_parent) name.erase(0, by_parent.size());
  if (name == "always_on") return sampler;
  if (name == "always_off") {
    sampler.ratio = 0;
    return sampler;
  }
  if (name != "traceidratio") {
    Variables::refuse(variable, "it is " + text::quoted(given) +
                                    ", and must be always_on, always_off, traceidratio, or one of them after "
                                    "parentbased_");
  }
  const std::string argument = variables.value(variable + "_ARG");
  if (argument.empty()) return sampler;
  const detail::RoundToNearest rounding;
  const char* const end = argument.data() + argument.size();
  const auto [read, error] = std::from_chars(argument.data(), end, sampler.ratio);
  if (error != std::errc() || read != end || !(sampler.ratio >= 0 && sampler.ratio <= 1)) {
    Variables::refuse(variable + "_ARG", "it is " + text::quoted(argument) + ", and must be a number from 0 to 1");
  }
  return sampler;
}

// The collector's, or nothing. The general variable is the base of a path for each signal.
std::string read_url(const Variables& variables, std::string& name) {
  name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
  if (std::string url = variables.value(name); !url.empty()) return url;
  name = "OTEL_EXPORTER_OTLP_ENDPOINT";
  std::string url = variables.value(name);
  if (url.empty() && variables.value("OTEL_TRACES_EXPORTER") == "otlp") url = "http://localhost:4318";
  if (url.empty()) return url;
  while (url.ends_with('/')) url.pop_back();
  return url + "/v1/traces";
}

}  // namespace

std::optional<Settings> read_settings(const Environment& environment, std::string_view service_name) {
  const Variables variables(environment);
  if (text::same_letters(variables.value("OTEL_SDK_DISABLED"), "true")) return std::nullopt;
  const std::string exporter = variables.value("OTEL_TRACES_EXPORTER");
  if (exporter == "none") return std::nullopt;
  std::string name;
  const std::string url = read_url(variables, name);
  if (url.empty()) return std::nullopt;
  if (!exporter.empty() && exporter != "otlp") {
    Variables::refuse("OTEL_TRACES_EXPORTER", "it is " + text::quoted(exporter) + ", and must be otlp or none");
  }
  std::string protocol = variables.value("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL");
  if (protocol.empty()) protocol = variables.value("OTEL_EXPORTER_OTLP_PROTOCOL");
  if (!protocol.empty() && !protocol.starts_with("http/")) {
    Variables::refuse(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "it is " + text::quoted(protocol) +
            ", but once sends http/json. Name the collector's HTTP port, usually 4318, and set http/json");
  }
  Settings out;
  try {
    out.endpoint = aws::parse_endpoint(url, name);
  } catch (const Exception&) {  // Its text is about AWS. The URL may have a password.
    Variables::refuse(name, "it is no URL of a collector. Write it as in http://127.0.0.1:4318");
  }
  out.target = out.endpoint.path.empty() ? "/" : out.endpoint.path;
  out.headers = variables.pairs("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
  if (out.headers.empty()) out.headers = variables.pairs("OTEL_EXPORTER_OTLP_HEADERS");
  for (const auto& [header, value] : out.headers) {
    if (!text::is_token(header) || !text::is_field_text(value)) {
      Variables::refuse("OTEL_EXPORTER_OTLP_HEADERS", text::quoted(header) + " cannot be a header");
    }
  }
  out.resource = {{"service.name", std::string(service_name)}};
  for (const auto& [key, value] : variables.pairs("OTEL_RESOURCE_ATTRIBUTES")) put(out.resource, key, value);
  const std::string service = variables.value("OTEL_SERVICE_NAME");
  if (!service.empty()) put(out.resource, "service.name", service);
  put(out.resource, "telemetry.sdk.name", "once");
  put(out.resource, "telemetry.sdk.language", "cpp");
  put(out.resource, "telemetry.sdk.version", ONCE_VERSION);
  out.sampler = read_sampler(variables);
  variables.millis("OTEL_EXPORTER_OTLP_TIMEOUT", out.timeout);
  variables.millis("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", out.timeout);
  variables.millis("OTEL_BSP_SCHEDULE_DELAY", out.delay);
  constexpr std::size_t most_spans = 1'000'000;
  variables.whole<std::size_t>("OTEL_BSP_MAX_QUEUE_SIZE", 1, most_spans, out.max_queue);
  variables.whole<std::size_t>("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, most_spans, out.max_batch);
  out.max_batch = std::min(out.max_batch, out.max_queue);
  return out;
}

}  // namespace once::tracing
