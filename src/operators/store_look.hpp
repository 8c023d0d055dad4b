// Looks at the store now and then, for gauges on a page of metrics: docs/metrics.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <once/clock.hpp>
#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

#include "operators/store_metrics.hpp"

namespace once::operators {

// "60s". 0 for "off", "0" and "0s". Throws Exception(misuse), which begins with `what`: less than 1s, or no duration.
Millis parse_interval(std::string_view text, std::string_view what);

// How large a store is, about.
struct StoreSize {
  std::uint64_t records = 0;  // Expired ones included.
  std::uint64_t bytes = 0;
};

struct StoreLookOptions {
  std::shared_ptr<Store> store;
  Millis interval{60'000};  // From the end of a look to the next one, at least; see StoreLook.
  std::size_t max_scopes = StoreCounts::usual_scopes;  // 0: no label says the scope.
  // Where a look stops, and is told to be incomplete. A page is one request of up to 500 records.
  std::size_t max_pages = 200;
  Millis max_time{30'000};
  Millis refresh_pause{5'000};  // The least pause between looks that refresh() brings forward.
  // Asked at each look, if the store has answered; may block. Empty: nobody but SQLite tells.
  std::function<std::optional<StoreSize>()> size = {};
  // Each look also tries whether the store takes new operations, as operate::probe() does, with this Record::holder.
  // Not done if it is empty, or if the store is charged for writes (StoreCapabilities::expires_itself).
  std::string probes_as = {};
  std::shared_ptr<Clock> clock = system_clock();
};

// What a look has counted, over all scopes.
struct StoreFigures {
  operate::Counts counts = {};                  // Of the records that are not completed.
  std::optional<Time> oldest_in_progress = {};  // created_at, also of lapsed and released ones.
  std::optional<Time> oldest_running = {};      // created_at.
  std::optional<Time> oldest_released = {};     // created_at.
  // Whether all such records were read. If not, their counts are lower bounds, and there may be older ones.
  bool all_unknown = false;
  bool all_failed = false;
  bool all_in_progress = false;
  Time as_of{};                            // By the store's clock.
  std::vector<std::string> prefixes = {};  // Of stored keys, up to their '#': scopes that were seen. At most 32.
};

// How the store answered a look's first question, which is for one record.
struct StoreHealth {
  std::optional<Time> asked_at = {};                     // By this host's clock. Empty: never.
  std::optional<Error> error = {};                       // Of that question. unavailable, if there was no answer.
  std::optional<Error> refusal = {};                     // Why the store takes no new operations, as far as is known.
  std::optional<std::chrono::nanoseconds> latency = {};  // From question to answer.
  std::optional<Millis> clock_ahead = {};                // The store's clock against this host's, ...
  Millis clock_error{0};                                 // ... give or take this. Empty: it tells no time.
  std::optional<std::uint64_t> about_records = {};       // Of SQLite and PostgreSQL: see SqliteStatus, SchemaSize.
  std::optional<std::uint64_t> bytes = {};               // Of SQLite: the file and its log. Of PostgreSQL: SchemaSize.
  std::optional<std::uint64_t> free_bytes = {};          // Of SQLite: what their file system has left.
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

  // Brings the next look forward, for a viewer who has just come: to now, or to the end of refresh_pause, or of 20
  // times the last look's duration. From any thread.
  void refresh();

  // These never ask the store. From any thread.
  [[nodiscard]] std::string text() const;                     // Prometheus' text format.
  [[nodiscard]] std::optional<StoreFigures> figures() const;  // Empty: none yet, or too old.
  [[nodiscard]] StoreHealth health() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // Also of a request's completion, which may come after the end of this.
  std::jthread worker_;
};

}  // namespace once::operators
