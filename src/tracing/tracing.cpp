#include <once/tracing.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <once/aws/credentials.hpp>
#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "aws/http_client.hpp"
#include "engine/invocation_end.hpp"
#include "platform/forks.hpp"
#include "platform/thread.hpp"
#include "text/number.hpp"
#include "text/prometheus.hpp"
#include "tracing/otlp_json.hpp"
#include "tracing/settings.hpp"

namespace once {

namespace {

using Steady = std::chrono::steady_clock;

constexpr unsigned most_tries = 5;
constexpr Millis most_backoff{30'000};
constexpr Millis at_the_end{1'000};  // For the spans that are left.
constexpr Millis at_invocation_end{500};
constexpr std::chrono::minutes warning_pause{1};

bool may_pass(const aws::HttpAnswer& answer) {
  if (answer.error) return answer.error->kind != ErrorKind::misuse;
  return answer.status == 429 || answer.status == 502 || answer.status == 503 || answer.status == 504;
}

Millis retry_after(const aws::HttpAnswer& answer) {
  const auto seconds = text::parse_whole<std::int64_t>(answer.header("retry-after"));
  return seconds ? Millis(std::chrono::seconds(std::min<std::int64_t>(*seconds, 60))) : Millis{0};
}

}  // namespace

// The queue and its thread, which is started with the first span. In the child of a fork the thread does not exist, and
// its locks may be held for ever: there it only counts what is dropped, and is not destroyed.
class Tracing::Exporter final : public AtInvocationEnd {
 public:
  Exporter(TracingOptions options, tracing::Settings settings)
      : settings_(std::move(settings)), warn_(std::move(options.warn)), first_retry_(options.first_retry) {
    enter();
  }

  ~Exporter() override {
    remove();
    std::unique_lock lock(mutex_);
    end_at_ = Steady::now() + at_the_end;
    changed_.notify_all();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
  }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  static std::shared_ptr<Exporter> make(TracingOptions options, tracing::Settings settings) {
    return {new Exporter(std::move(options), std::move(settings)), [](Exporter* exporter) {
              if (!exporter->is_forked()) delete exporter;
            }};
  }

  std::shared_ptr<const Tracer> tracer;

  void add(Span&& span) {
    if (is_forked()) {
      dropped_in_child_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (end_at_ || queue_.size() >= settings_.max_queue || !start()) {
      ++counts_.dropped;
      if (why_.empty()) why_ = "the queue of " + std::to_string(settings_.max_queue) + " spans is full";
      return;
    }
    if (queue_.empty()) due_ = Steady::now() + settings_.delay;
    queue_.push_back(std::move(span));
    if (queue_.size() == 1 || queue_.size() == settings_.max_batch) changed_.notify_all();
  }

  bool flush(Millis most) {
    if (is_forked()) return true;  // What waits is the parent's.
    std::unique_lock lock(mutex_);
    const auto until = Steady::now() + most;
    flush_until_ = std::max(flush_until_, until);
    changed_.notify_all();
    return idle_.wait_until(lock, until, [&] { return queue_.empty() && sending_ == 0; });
  }

  [[nodiscard]] Counts counts() {
    if (is_forked()) return {.exported = 0, .dropped = dropped_in_child_.load(std::memory_order_relaxed)};
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  // One exchange. Outlives this object if it is given up.
  struct Exchange {
    std::mutex mutex;
    std::condition_variable come;
    std::optional<aws::HttpAnswer> answer;
  };

  bool start() noexcept try {
    if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
    return true;
  } catch (...) {  // No thread can be started: the span is dropped, and the next one tries again.
    why_ = "no thread can be started";
    return false;
  }

  // The platform freezes the process afterwards, with what waits in it. A collector that did not take the spans in time
  // is not waited for again until it has taken some.
  void invocation_ended(Time deadline) noexcept override {
    if (is_forked()) return;
    std::unique_lock lock(mutex_);
    if (queue_.empty() && sending_ == 0) return;
    Millis most = at_invocation_end;
    if (deadline != never) {
      const Time now = std::chrono::floor<Millis>(std::chrono::system_clock::now());
      most = std::clamp((deadline - now) / 2, Millis{0}, most);
    }
    hurry_until_ = Steady::now() + most;
    changed_.notify_all();
    if (lags_ || most == Millis{0}) return;
    lags_ = !idle_.wait_until(lock, hurry_until_, [&] { return queue_.empty() && sending_ == 0; });
  }

  [[nodiscard]] bool is_forked() const noexcept { return forks() != forks_; }
  [[nodiscard]] bool is_flushing() const { return end_at_.has_value() || Steady::now() < flush_until_; }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      tell(lock);
      if (queue_.empty()) {
        idle_.notify_all();
        if (end_at_) return;
        changed_.wait(lock, [&] { return !queue_.empty() || end_at_; });
        continue;
      }
      const auto is_due = [&] {
        return queue_.size() >= settings_.max_batch || is_flushing() || Steady::now() < hurry_until_;
      };
      if (!is_due() && Steady::now() < due_) {
        changed_.wait_until(lock, due_);
        continue;
      }
      if (end_at_ && Steady::now() >= *end_at_) {
        drop(queue_.size(), "the program ended before they could be sent");
        queue_.clear();
        continue;
      }
      const std::size_t size = std::min(queue_.size(), settings_.max_batch);
      const auto last = queue_.begin() + static_cast<std::ptrdiff_t>(size);
      std::vector<Span> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(last));
      queue_.erase(queue_.begin(), last);
      if (!queue_.empty()) due_ = Steady::now() + settings_.delay;
      sending_ = size;
      send(lock, batch);
      sending_ = 0;
    }
  }

  void send(std::unique_lock<std::mutex>& lock, const std::vector<Span>& batch) {
    lock.unlock();
    const std::string body = tracing::otlp_json(batch, settings_.resource);
    lock.lock();
    Millis pause = first_retry_;
    for (unsigned tries = 1;; ++tries) {
      const aws::HttpAnswer answer = ask(lock, body);
      if (!answer.error && answer.status >= 200 && answer.status < 300) {
        const std::uint64_t rejected = std::min<std::uint64_t>(tracing::rejected_spans(answer.body), batch.size());
        counts_.exported += batch.size() - rejected;
        lags_ = false;
        if (rejected != 0) drop(rejected, "the collector refused them");
        return;
      }
      const std::string why =
          answer.error ? answer.error->message : "the collector answered " + std::to_string(answer.status);
      if (!may_pass(answer) || tries == most_tries || is_flushing()) return drop(batch.size(), why);
      const auto again = Steady::now() + std::max(pause, retry_after(answer));
      while (!is_flushing() && Steady::now() < again) {
        tell(lock);
        changed_.wait_until(lock, again);
      }
      pause = std::min(2 * pause, most_backoff);
    }
  }

  aws::HttpAnswer ask(std::unique_lock<std::mutex>& lock, const std::string& body) {
    const auto exchange = std::make_shared<Exchange>();
    const auto limit = [&] { return end_at_ ? *end_at_ : Steady::now() + settings_.timeout; }();
    lock.unlock();
    aws::HttpRequest request{.method = "POST",
                             .tls = settings_.endpoint.tls,
                             .host = settings_.endpoint.host,
                             .port = settings_.endpoint.port,
                             .target = settings_.target,
                             .headers = settings_.headers,
                             .body = body,
                             .timeout = settings_.timeout};
    request.headers.emplace_back("Content-Type", "application/json");
    request.headers.emplace_back("User-Agent", "once/" ONCE_VERSION);
    try {
      if (client_ == nullptr) client_ = aws::make_http_client({.max_connections = 1});
      client_->send(std::move(request), [exchange](aws::HttpAnswer answer) {
        const std::lock_guard guard(exchange->mutex);
        exchange->answer = std::move(answer);
        exchange->come.notify_all();
      });
    } catch (const Exception& error) {
      lock.lock();
      aws::HttpAnswer failed;
      failed.error = error.error();
      return failed;
    }
    aws::HttpAnswer answer;
    answer.error = Error{ErrorKind::unavailable, "the collector did not answer in time"};
    constexpr Millis look{50};  // Between two looks whether the program ends.
    std::unique_lock waiting(exchange->mutex);
    for (;;) {
      if (exchange->come.wait_for(waiting, look, [&] { return exchange->answer.has_value(); })) {
        answer = std::move(*exchange->answer);
        break;
      }
      waiting.unlock();
      lock.lock();
      const bool is_over = Steady::now() >= (end_at_ ? std::min(*end_at_, limit) : limit);
      lock.unlock();
      waiting.lock();
      if (is_over) break;
    }
    waiting.unlock();
    lock.lock();
    return answer;
  }

  void drop(std::uint64_t spans, const std::string& why) {
    counts_.dropped += spans;
    why_ = why;
  }

  // The loss since the last warning.
  void tell(std::unique_lock<std::mutex>& lock) {
    if (counts_.dropped == told_ || !warn_) return;
    const auto now = Steady::now();
    if (warned_at_ && now - *warned_at_ < warning_pause) return;
    warned_at_ = now;
    const std::string text = "traces: " + std::to_string(counts_.dropped - std::exchange(told_, counts_.dropped)) +
                             " spans for " + settings_.endpoint.url() + " were dropped: " + std::exchange(why_, {});
    lock.unlock();
    warn_(text);
    lock.lock();
  }

  const tracing::Settings settings_;
  const std::function<void(std::string_view)> warn_;
  const Millis first_retry_;
  const unsigned forks_ = forks();
  std::atomic<std::uint64_t> dropped_in_child_{0};
  std::shared_ptr<aws::HttpClient> client_;  // Only for thread_.

  std::mutex mutex_;  // Of what follows.
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::deque<Span> queue_;
  std::size_t sending_ = 0;
  Steady::time_point due_;
  Steady::time_point flush_until_;
  Steady::time_point hurry_until_;            // Spans are sent without delay, and tried again as usual.
  bool lags_ = false;                         // An invocation has waited for the collector in vain.
  std::optional<Steady::time_point> end_at_;  // The destructor runs.
  Counts counts_;
  std::uint64_t told_ = 0;
  std::string why_;
  std::optional<Steady::time_point> warned_at_;
  std::thread thread_;
};

Tracing::Tracing(TracingOptions options) {
  if (!options.environment) options.environment = aws::process_environment();
  auto settings = tracing::read_settings(options.environment, options.service_name);
  if (!settings) return;
  TracerOptions with{.sampler = settings->sampler,
                     .call_kind = options.call_kind,
                     .work_kind = options.work_kind,
                     .store = options.store,
                     .scopes = options.scopes,
                     .current = options.current};
  exporter_ = Exporter::make(std::move(options), *std::move(settings));
  // An engine may outlive this object: its spans go nowhere then.
  with.sink = [to = std::weak_ptr<Exporter>(exporter_)](Span&& span) {
    if (const auto exporter = to.lock()) exporter->add(std::move(span));
  };
  exporter_->tracer = std::make_shared<const Tracer>(std::move(with));
}

std::shared_ptr<const Tracer> Tracing::tracer() const noexcept {
  return exporter_ == nullptr ? nullptr : exporter_->tracer;
}

bool Tracing::flush(Millis most) const { return exporter_ == nullptr || exporter_->flush(most); }

Tracing::Counts Tracing::counts() const noexcept { return exporter_ == nullptr ? Counts() : exporter_->counts(); }

std::string Tracing::metrics() const {
  if (exporter_ == nullptr) return {};
  const Counts counts = exporter_->counts();
  text::Exposition out;
  out.family("once_spans_exported_total", "counter", "Spans that the collector of traces has taken.");
  out.sample({}, counts.exported);
  out.family("once_spans_dropped_total", "counter",
             "Spans that were lost, as the collector of traces was slow or failed.");
  out.sample({}, counts.dropped);
  return std::move(out).take();
}

}  // namespace once
