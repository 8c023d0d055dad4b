#include "operators/reporter.hpp"

#include <utility>

namespace once::operators {

namespace {

Reporter& the_reporter() {
  static auto& reporter = *new Reporter;  // Never destroyed: threads may outlive main().
  return reporter;
}

}  // namespace

void set_reporter(Reporter reporter) { the_reporter() = std::move(reporter); }

void report(std::string_view text, LogLevel level) {
  if (the_reporter()) the_reporter()(text, level);
}

}  // namespace once::operators
