// Looks at the store now and then, for gauges on a page of metrics: docs/metrics.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <once/clock.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

#include "output/store_metrics.hpp"

namespace once::cli {

// "60s". 0 for "off", "0" and "0s". Throws Exception(misuse), which begins with `what`: less than 1s, or no duration.
Millis parse_stats_interval(std::string_view text, std::string_view what);

// Help text of the flag.
extern const char* const stats_interval_help;

struct StoreLookOptions {
  std::shared_ptr<Store> store;
  Millis interval{60'000};  // From the end of a look to the next one, at least; see StoreLook.
  std::size_t max_scopes = StoreCounts::usual_scopes;  // 0: no label says the scope.
  // Where a look stops, and is told to be incomplete. A page is one request of up to 500 records.
  std::size_t max_pages = 200;
  Millis max_time{30'000};
  std::shared_ptr<Clock> clock = system_clock();
};

// Counts the records that are not completed, on a thread of its own, which begins at once. There is never more than one
// look, and never more than one request. The next one begins after `interval`, or after 20 times the look's duration if
// that is longer: a slow or large store is not asked without pause. A store that gave no answer is asked again after
// `interval`.
//
// A look that fails changes no figures. They are left out of the page once they are older than three of these pauses.
class StoreLook {
 public:
  explicit StoreLook(StoreLookOptions options);
  StoreLook(const StoreLook&) = delete;
  StoreLook& operator=(const StoreLook&) = delete;
  // Does not wait for a running request of the store, whose answer is dropped.
  ~StoreLook();

  // Prometheus' text format. Never asks the store. From any thread.
  [[nodiscard]] std::string text() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // Also of a request's completion, which may come after the end of this.
  std::jthread worker_;
};

}  // namespace once::cli
