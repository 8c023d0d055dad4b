// Metrics of an engine: an observer that counts its events, for Prometheus. docs/metrics.md lists them.
//
//   const once::Metrics metrics;
//   once::Engine engine({.store = store, .observer = metrics});
//   ...
//   answer(metrics.text() + once::process_metrics());  // To GET /metrics.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <once/engine/event.hpp>

namespace once {

// What the counts are split by.
struct MetricsOptions {
  // How many scopes get a label, the first ones that are seen. Later ones, and scopes that are not UTF-8, are counted
  // together under otel_metric_overflow="true". 0: no label, for scopes that tell who a client is. At most 10000.
  std::size_t max_scopes = 100;
};

// An Observer. Thread-safe. Copies share the counts, and may observe several engines.
//
// An event takes no lock and allocates nothing, except the first one of each scope: about 3 KiB for a scope's counts.
class Metrics {
 public:
  explicit Metrics(MetricsOptions options = {});       // Throws Exception(misuse) if max_scopes is out of range.
  void operator()(const Event& event) const noexcept;  // Counts the event.

  // Prometheus' text format 0.0.4, whose media type is "text/plain; version=0.0.4".
  [[nodiscard]] std::string text() const;

 private:
  class Counts;
  std::shared_ptr<Counts> counts_;
};

// In the same format: once_build_info, and process_* as Prometheus' client libraries have it. What the system does not
// tell is left out.
std::string process_metrics();

}  // namespace once
