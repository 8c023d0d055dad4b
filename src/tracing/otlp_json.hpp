// Spans as OTLP's JSON: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <once/engine/tracer.hpp>

#include "tracing/settings.hpp"

namespace once::tracing {

// An ExportTraceServiceRequest. Texts over 1024 bytes are cut; what is not UTF-8 becomes U+FFFD.
std::string otlp_json(std::span<const Span> spans, const Pairs& resource);

// How many spans an answer of status 200 says it did not take. 0 if it says nothing, or nothing readable.
std::uint64_t rejected_spans(std::string_view answer);

}  // namespace once::tracing
