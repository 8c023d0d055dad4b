// Metrics of a Lambda function: an observer that writes them to the function's log in CloudWatch's embedded metric
// format (EMF), from which CloudWatch takes them. docs/metrics.md lists them, and says what they cost.
//
//   once::Engine engine({.store = store, .observer = once::lambda::EmbeddedMetrics()});
//
// Needs no permission, agent or network. deploy/ has alarms on these metrics.
//
// Sources: AWS, "Specification: Embedded metric format", for the documents and their limits (100 metrics, 100 values of
// one, 256 KB): docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
// CloudWatch_Embedded_Metric_Format_Specification.html. AWS, "Using the embedded metric format with Lambda", for
// standard output, and for timeouts, at which what is not written is lost:
// docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Lambda.html. AWS,
// "Dimension", for names and values of dimensions:
// docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_Dimension.html
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <once/clock.hpp>
#include <once/engine/event.hpp>

namespace once::lambda {

// Texts here are 1 to 255 characters of printable ASCII and do not begin with ':'. That is what CloudWatch takes.
struct EmbeddedMetricsOptions {
  std::string cloudwatch_namespace = "once";  // Must not begin with "AWS/".

  // The dimension FunctionName, as in Lambda's own metrics. Empty: AWS_LAMBDA_FUNCTION_NAME.
  std::string function = {};

  // A second set of dimensions: `service` alone, for several functions that are one service. Empty: none. It doubles
  // the number of metrics that you pay for.
  std::string service = {};

  // How many scopes of keys get metrics of their own, with the dimensions FunctionName and scope: the first ones that
  // are seen, in each process. At most 100. Each costs as much as a function. Others are only in the function's.
  // Use it only if your code names the scopes: those of once::lambda::http() have the client in them.
  std::size_t max_scopes = 0;

  // Given one document, with a newline at its end, of at most 16 KiB. Returns whether it was taken. If not, its counts
  // are kept for the next one. Called by one thread at a time. It must not throw and must not use this object.
  // Empty: standard output, which is the function's log. That never waits for a reader. End what you write there with
  // a newline and flush it, or a document is not alone on its line, and CloudWatch does not see it.
  std::function<bool(std::string_view line)> write = {};

  std::shared_ptr<const Clock> clock = {};  // Empty: the host's.
};

// An Observer. Thread-safe. Copies share the counts, and may observe several engines.
//
// What it writes are differences: each event is in one line. Lines are written
//
//   - at each claim, before its work runs. So an invocation that is killed, as at its timeout, has begun in the metrics
//     and not ended: that difference has an alarm. All other counts of a killed invocation are lost;
//   - at the end of an invocation in which something else happened, before its answer is given. Invocations are those
//     of once::lambda::run(), and of handlers made by once::lambda::idempotent() and http(), once::sqs::batch(),
//     once::streams::batch() and once::kafka::batch(), also under another runtime. With several at once, the first one
//     that ends writes for all;
//   - outside invocations, at each event but renewals and steps, which go with the next one;
//   - earlier, when a duration has 100 values;
//   - when the last copy is destroyed.
//
// An invocation in which nothing happens writes nothing.
class EmbeddedMetrics {
 public:
  explicit EmbeddedMetrics(EmbeddedMetricsOptions options = {});  // Throws Exception(misuse) for a bad option.
  void operator()(const Event& event) const noexcept;             // Counts the event, and writes a line where due.
  void flush() const noexcept;                                    // Writes now what was counted since the last line.

 private:
  class Book;
  std::shared_ptr<Book> book_;
};

// The same by an environment variable, so that the log of a function shows nothing new until its template asks for it:
//
//   ONCE_METRICS=emf     EmbeddedMetrics()
//   ONCE_METRICS=off     an empty Observer. The same as not set, or empty
//
// If it is `emf`, calls `tell` once with "ONCE_METRICS=emf", for the log. Throws Exception(misuse) for another value.
// Do not call it while another thread sets variables (getenv(3)).
Observer metrics_from_environment(const std::function<void(std::string_view)>& tell);

}  // namespace once::lambda
