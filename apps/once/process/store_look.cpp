#include "process/store_look.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/operate.hpp>

#include "output/text.hpp"
#include "text/prometheus.hpp"

namespace once::cli {

namespace {

// By pages in turns. A store may have to read all records to find those in progress, and there may be very many
// failures: a look that meets its limit has read the others all the same.
constexpr std::array looked_at{State::unknown, State::failed, State::in_progress};
constexpr std::size_t page_records = 500;
constexpr int pause_per_duration = 20;
constexpr int pauses_until_old = 3;
constexpr std::array error_kinds{ErrorKind::unavailable, ErrorKind::in_doubt, ErrorKind::corrupt, ErrorKind::misuse};
using Steady = std::chrono::steady_clock;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

const char* const stats_interval_help =
    "How often to count unknown, failed, lapsed and overdue records in the store, for\n"
    "/metrics of --admin; 0 or off: never";

Millis parse_stats_interval(std::string_view text, std::string_view what) {
  if (text == "off" || text == "0" || text == "0s") return Millis{0};
  const Millis interval = parse_duration(text, what);
  constexpr Millis least{1'000};
  if (interval < least) throw Exception(ErrorKind::misuse, std::string(what) + " must be 1s or longer, or off");
  return interval;
}

struct StoreLook::Shared {
  explicit Shared(StoreLookOptions the_options) : options(std::move(the_options)), pause(options.interval) {}

  StoreLookOptions options;  // Does not change while the worker runs.
  mutable std::mutex mutex;  // Guards the following members.
  std::condition_variable news;
  bool ending = false;
  bool asking = false;             // A request has no answer yet.
  std::optional<ListPage> answer;  // Of the last request.

  std::optional<StoreCounts> counts;
  Steady::time_point good_until;    // Then the counts are too old to be shown.
  std::optional<Time> complete_at;  // Of the last look that read everything.
  bool complete = false;            // The last look did.
  Steady::duration took{0};
  Millis pause;
  std::array<std::uint64_t, error_kinds.size()> errors{};

  void count_error(ErrorKind kind) {
    const auto* const found = std::ranges::find(error_kinds, kind);
    errors.at(found == error_kinds.end() ? 0 : static_cast<std::size_t>(found - error_kinds.begin())) += 1;
  }

  // Null: the time is over, or this ends.
  static std::optional<ListPage> ask(const std::shared_ptr<Shared>& shared, ListQuery query, Steady::time_point until) {
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->ending) return std::nullopt;
      shared->asking = true;
    }
    // The completion may come at once, on this thread, or after the end of StoreLook.
    shared->options.store->list(std::move(query), [shared](ListPage page) {
      const std::lock_guard lock(shared->mutex);
      shared->asking = false;
      shared->answer = std::move(page);
      shared->news.notify_all();
    });
    std::unique_lock lock(shared->mutex);
    shared->news.wait_until(lock, until, [&] { return shared->ending || shared->answer; });
    if (shared->ending) return std::nullopt;
    return std::exchange(shared->answer, std::nullopt);
  }

  static void look(const std::shared_ptr<Shared>& shared) {
    const StoreLookOptions& options = shared->options;
    const Steady::time_point began = Steady::now();
    const Steady::time_point until = began + options.max_time;
    StoreCounts counts(options.max_scopes);
    std::optional<Time> now;
    std::size_t pages = 0;
    std::size_t unreadable = 0;
    bool whole = true;
    std::optional<ErrorKind> error;
    std::deque<ListQuery> left;
    for (const State state : looked_at) {
      left.emplace_back();
      left.back().state = state;
      left.back().limit = page_records;
    }
    while (!left.empty()) {
      ListQuery query = std::move(left.front());
      left.pop_front();
      if (pages == options.max_pages || Steady::now() >= until) {
        whole = false;
        break;
      }
      auto page = ask(shared, query, until);
      if (!page) {
        // The time is over. A store that answered nothing at all is down; otherwise it has much to read.
        if (pages == 0) error = ErrorKind::unavailable;
        whole = false;
        break;
      }
      if (page->error) {
        error = page->error->kind;
        break;
      }
      pages += 1;
      unreadable += page->unreadable.size();
      if (!now) now = operate::now(*options.store, *options.clock);  // Some stores know the time after an answer.
      for (const Record& record : page->records) counts.add(record, *now);
      query.cursor = std::move(page->cursor);
      if (!query.cursor.empty()) left.push_back(std::move(query));
    }
    const std::lock_guard lock(shared->mutex);
    if (shared->ending) return;
    shared->took = Steady::now() - began;
    // A store that was down is asked again soon; one that read a lot is not.
    const Millis long_pause = std::chrono::duration_cast<Millis>(shared->took) * pause_per_duration;
    shared->pause = pages == 0 ? options.interval : std::max(options.interval, long_pause);
    shared->complete = whole && !error;
    if (error) return shared->count_error(*error);
    for (; unreadable > 0; --unreadable) shared->count_error(ErrorKind::corrupt);
    shared->counts.emplace(std::move(counts));
    shared->good_until = Steady::now() + shared->pause * pauses_until_old;
    if (shared->complete) shared->complete_at = now;
  }

  static void work(const std::shared_ptr<Shared>& shared) {
    std::unique_lock lock(shared->mutex);
    while (!shared->ending) {
      lock.unlock();
      look(shared);
      lock.lock();
      const Steady::time_point next = Steady::now() + shared->pause;
      shared->news.wait_until(lock, next, [&] { return shared->ending; });
      // A request that is late is waited for: another one would overlap it.
      shared->news.wait(lock, [&] { return shared->ending || !shared->asking; });
      shared->answer.reset();
    }
  }
};

StoreLook::StoreLook(StoreLookOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))), worker_([shared = shared_] { Shared::work(shared); }) {}

StoreLook::~StoreLook() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ending = true;
    shared_->news.notify_all();
  }
  worker_.join();
  // The completion of a late request keeps the rest. If it kept the store, neither would ever end.
  shared_->options.store.reset();
}

std::string StoreLook::text() const {
  text::Exposition out;
  const std::lock_guard lock(shared_->mutex);
  const bool fresh = shared_->counts && Steady::now() <= shared_->good_until;
  if (fresh) {
    shared_->counts->write_open(out);
  } else {
    StoreCounts(1).write_open(out);  // Families without samples.
  }
  out.family("once_store_look_timestamp_seconds", "gauge",
             "When a look at the store last read all that it counts, since 1970. 0: never.");
  out.sample({}, shared_->complete_at ? seconds(shared_->complete_at->time_since_epoch()) : 0.0);
  out.family("once_store_look_complete", "gauge", "Whether the last look at the store read all that it counts.");
  out.sample({}, shared_->complete ? 1 : 0);
  out.family("once_store_look_duration_seconds", "gauge", "How long the last look at the store took.");
  out.sample({}, seconds(shared_->took));
  out.family("once_store_look_interval_seconds", "gauge", "How long the pause until the next look at the store is.");
  out.sample({}, seconds(shared_->pause));
  out.family("once_store_look_errors_total", "counter", "Failed looks at the store, and records that it cannot read.");
  for (std::size_t i = 0; i < error_kinds.size(); ++i) {
    out.sample({{"kind", to_string(error_kinds.at(i))}}, shared_->errors.at(i));
  }
  return std::move(out).take();
}

}  // namespace once::cli
