#include "operators/store_look.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/stores/sqlite.hpp>

#include "operators/free_space.hpp"
#include "operators/words.hpp"
#include "platform/thread.hpp"
#include "text/prometheus.hpp"

namespace once::operators {

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

constexpr std::size_t most_prefixes = 32;

bool& all_of(StoreFigures& figures, State state) {
  if (state == State::unknown) return figures.all_unknown;
  return state == State::failed ? figures.all_failed : figures.all_in_progress;
}

void add(const Record& record, Time now, StoreFigures& figures) {
  operate::count(record, now, figures.counts);
  if (record.state == State::in_progress && record.created_at != Time{} && !is_expired(record.expires_at, now)) {
    const auto keep = [&](std::optional<Time>& oldest) {
      oldest = std::min(oldest.value_or(never), record.created_at);
    };
    keep(figures.oldest_in_progress);
    const operate::Standing standing = operate::standing(record, now);
    if (standing == operate::Standing::running) keep(figures.oldest_running);
    if (standing == operate::Standing::released) keep(figures.oldest_released);
  }
  if (figures.prefixes.size() == most_prefixes) return;
  const std::size_t end = record.key.find('#');
  if (end == std::string::npos) return;
  const std::string_view prefix = std::string_view(record.key).substr(0, end);
  if (std::ranges::find(figures.prefixes, prefix) == figures.prefixes.end()) figures.prefixes.emplace_back(prefix);
}

}  // namespace

Millis parse_interval(std::string_view text, std::string_view what) {
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
  bool asking = false;                                                         // A request has no answer yet.
  std::optional<std::variant<ListPage, Answer, std::optional<Error>>> answer;  // Of the last request.

  std::optional<StoreCounts> counts;
  StoreFigures figures;  // Meaningful if there are counts.
  StoreHealth health;
  Steady::time_point good_until;    // Then the counts are too old to be shown.
  std::optional<Time> complete_at;  // Of the last look that read everything.
  bool complete = false;            // The last look did.
  Steady::duration took{0};
  Millis pause;
  bool has_viewer = false;  // refresh() was called since the last look began.
  std::array<std::uint64_t, error_kinds.size()> errors{};

  [[nodiscard]] bool is_fresh() const { return counts && Steady::now() <= good_until; }

  void count_error(ErrorKind kind) {
    const auto* const found = std::ranges::find(error_kinds, kind);
    errors.at(found == error_kinds.end() ? 0 : static_cast<std::size_t>(found - error_kinds.begin())) += 1;
  }

  // Null: the time is over, or this ends. `request` gets the completion, which may come at once, on this thread, or
  // after the end of StoreLook.
  template <class Kind>
  static std::optional<Kind> ask(const std::shared_ptr<Shared>& shared, Steady::time_point until, auto request) {
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->ending) return std::nullopt;
      shared->asking = true;
    }
    request([shared](Kind got) {
      const std::lock_guard lock(shared->mutex);
      shared->asking = false;
      shared->answer = std::move(got);
      shared->news.notify_all();
    });
    std::unique_lock lock(shared->mutex);
    shared->news.wait_until(lock, until, [&] { return shared->ending || shared->answer; });
    if (shared->ending || !shared->answer) return std::nullopt;
    Kind got = std::get<Kind>(*std::move(shared->answer));
    shared->answer.reset();
    return got;
  }

  // False: there was no answer yet.
  static bool try_a_write(const std::shared_ptr<Shared>& shared, Steady::time_point until, StoreHealth& health) {
    const StoreLookOptions& options = shared->options;
    if (health.error || options.probes_as.empty() || options.store->capabilities().expires_itself) return true;
    auto failure = ask<std::optional<Error>>(shared, until, [&](Callback<void(std::optional<Error>)> done) {
      operate::probe(*options.store, *options.clock, *system_random(), options.probes_as, std::move(done));
    });
    const bool answered = failure.has_value();
    if (!answered) failure = Error{ErrorKind::unavailable, options.store->name() + " has not answered a write"};
    health.refusal = *std::move(failure);
    return answered;
  }

  // Asks for a record that does not exist. False: there was no answer yet, so nothing else can be asked.
  static bool look_at_health(const std::shared_ptr<Shared>& shared, Steady::time_point until) {
    const StoreLookOptions& options = shared->options;
    const Steady::time_point began = Steady::now();
    StoreHealth health{.asked_at = options.clock->now()};
    const auto answer = ask<Answer>(shared, until, [&](Done done) {
      options.store->get(Key("once", "is anybody there").stored(), std::move(done));
    });
    if (!answer) {
      health.error = Error{ErrorKind::unavailable, options.store->name() + " has not answered"};
    } else if (answer->status == AnswerStatus::failed) {
      health.error = answer->error;
    } else {
      health.latency = Steady::now() - began;
      const std::optional<StoreTime> told = answer->time ? answer->time : options.store->time();
      if (told) {
        health.clock_ahead = std::chrono::duration_cast<Millis>(told->now - options.clock->now());
        health.clock_error = told->error;
      }
    }
    if (const auto status = stores::sqlite_status(*options.store)) {
      health.about_records = status->about_records;
      health.bytes = status->file_bytes + status->log_bytes;
      if (const auto space = free_space(status->path)) health.free_bytes = space->free_bytes;
    }
    if (health.latency && options.size) {
      if (const auto size = options.size()) {
        health.about_records = size->records;
        health.bytes = size->bytes;
      }
    }
    const bool answered = answer.has_value() && try_a_write(shared, until, health);
    const std::lock_guard lock(shared->mutex);
    if (!shared->ending) shared->health = std::move(health);
    return answered;
  }

  static void look(const std::shared_ptr<Shared>& shared) {
    const StoreLookOptions& options = shared->options;
    const Steady::time_point began = Steady::now();
    const Steady::time_point until = began + options.max_time;
    StoreCounts counts(options.max_scopes);
    StoreFigures figures{.all_unknown = true, .all_failed = true, .all_in_progress = true};
    std::optional<Time> now;
    std::size_t pages = 0;
    std::size_t unreadable = 0;
    bool whole = look_at_health(shared, until);
    std::optional<ErrorKind> error;
    if (!whole) error = ErrorKind::unavailable;
    std::deque<ListQuery> left;
    for (const State state : looked_at) {
      left.emplace_back();
      left.back().state = state;
      left.back().limit = page_records;
    }
    while (!left.empty() && !error) {
      ListQuery query = left.front();
      if (pages == options.max_pages || Steady::now() >= until) {
        whole = false;
        break;
      }
      auto page = ask<ListPage>(shared, until,
                                [&](Callback<void(ListPage)> done) { options.store->list(query, std::move(done)); });
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
      left.pop_front();
      pages += 1;
      unreadable += page->unreadable.size();
      if (!page->unreadable.empty()) all_of(figures, *query.state) = false;
      if (!now) now = operate::now(*options.store, *options.clock);  // Some stores know the time after an answer.
      for (const Record& record : page->records) {
        counts.add(record, *now);
        add(record, *now, figures);
      }
      query.cursor = std::move(page->cursor);
      if (!query.cursor.empty()) left.push_back(std::move(query));
    }
    for (const ListQuery& query : left) all_of(figures, *query.state) = false;
    if (now) figures.as_of = *now;
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
    shared->figures = std::move(figures);
    shared->good_until = Steady::now() + shared->pause * pauses_until_old;
    if (shared->complete) shared->complete_at = now;
  }

  static void work(const std::shared_ptr<Shared>& shared) {
    std::unique_lock lock(shared->mutex);
    while (!shared->ending) {
      lock.unlock();
      look(shared);
      lock.lock();
      const Steady::time_point ended = Steady::now();
      const Steady::duration shorter =
          std::max<Steady::duration>(shared->options.refresh_pause, shared->took * pause_per_duration);
      const auto next = [&] {
        return ended + (shared->has_viewer ? std::min<Steady::duration>(shorter, shared->pause) : shared->pause);
      };
      while (!shared->ending && Steady::now() < next()) shared->news.wait_until(lock, next());
      shared->has_viewer = false;
      // A request that is late is waited for: another one would overlap it.
      shared->news.wait(lock, [&] { return shared->ending || !shared->asking; });
      shared->answer.reset();
    }
  }
};

StoreLook::StoreLook(StoreLookOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))),
      worker_(start_thread<std::jthread>([shared = shared_] { Shared::work(shared); })) {}

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

void StoreLook::refresh() {
  const std::lock_guard lock(shared_->mutex);
  shared_->has_viewer = true;
  shared_->news.notify_all();
}

std::optional<StoreFigures> StoreLook::figures() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->is_fresh() ? std::optional(shared_->figures) : std::nullopt;
}

StoreHealth StoreLook::health() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->health;
}

std::string StoreLook::text() const {
  text::Exposition out;
  const std::lock_guard lock(shared_->mutex);
  if (shared_->is_fresh()) {
    shared_->counts->write_open(out);
  } else {
    StoreCounts(1).write_open(out);  // Families without samples.
  }
  out.family("once_store_records_estimate", "gauge",
             "About how many records a store in SQLite or PostgreSQL has, expired ones included.");
  if (const auto& records = shared_->health.about_records) out.sample({}, *records);
  out.family("once_store_bytes", "gauge",
             "The size of a SQLite store's file and its log, or of PostgreSQL's table with its indexes.");
  if (const auto& bytes = shared_->health.bytes) out.sample({}, *bytes);
  out.family("once_store_free_bytes", "gauge", "What the file system of a SQLite store has left.");
  if (const auto& bytes = shared_->health.free_bytes) out.sample({}, *bytes);
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

}  // namespace once::operators
