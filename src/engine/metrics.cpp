#include <once/engine/metrics.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>

#include "engine/event_metrics.hpp"
#include "text/prometheus.hpp"
#include "text/utf8.hpp"

namespace once {

namespace {

using Counter = std::atomic<std::uint64_t>;

// In seconds. A memory store answers in microseconds, one over the network in milliseconds; work may take an hour.
constexpr std::array begin_bounds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                  0.05,   0.1,     0.25,   0.5,   1.0,    2.5,   5.0,  10.0};
constexpr std::array work_bounds{0.001, 0.005, 0.01, 0.025, 0.05, 0.1,   0.25,  0.5,   1.0,
                                 2.5,   5.0,   10.0, 30.0,  60.0, 300.0, 900.0, 3600.0};

constexpr std::size_t event_kinds = static_cast<std::size_t>(EventKind::store_error) + 1;
constexpr std::size_t error_kinds = static_cast<std::size_t>(ErrorKind::misuse) + 1;
constexpr std::size_t index_of(EventKind kind) { return static_cast<std::size_t>(kind); }

// Of one scope.
struct Scope {
  std::string prefix;  // Of its stored keys, escaped and without the '#'.
  std::string label;
  std::string_view overflow{};
  std::array<Counter, event_kinds> events{};
  Counter stored_failures{0};
  text::Histogram<work_bounds> work;

  void count(const Event& event) noexcept {
    Counter& counter = event_metrics::is_stored_failure(event) ? stored_failures : events[index_of(event.kind)];
    counter.fetch_add(1, std::memory_order_relaxed);
    if (event.kind == EventKind::work_done) work.add(event.took);
  }
  [[nodiscard]] std::uint64_t of(EventKind kind) const noexcept {
    return events[index_of(kind)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool has_counted() const noexcept {
    return stored_failures != 0 || std::ranges::any_of(events, [](const Counter& counter) { return counter != 0; });
  }
};

// The scopes that have a label, found without a lock.
class Scopes {
 public:
  explicit Scopes(std::size_t most) : most_(most), places_(std::bit_ceil(2 * most + 1)) {}
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;
  ~Scopes() {
    for (const auto& place : places_) delete place.load(std::memory_order_relaxed);
  }

  // Null: it gets no label. Throws std::bad_alloc.
  Scope* find_or_add(std::string_view prefix) {
    std::size_t at = std::hash<std::string_view>()(prefix);
    if (Scope* const found = find(prefix, at)) return found;
    if (full_.load(std::memory_order_relaxed)) return nullptr;
    const std::lock_guard lock(adding_);
    if (Scope* const found = find(prefix, at)) return found;  // Another thread added it.
    std::string label = Key::from_stored(std::string(prefix) + "#.").scope();
    if (size_ == most_ || !text::valid_utf8(label)) return nullptr;
    auto scope = std::make_unique<Scope>();
    scope->prefix = prefix;
    scope->label = std::move(label);
    full_.store(++size_ == most_, std::memory_order_relaxed);
    places_[at & (places_.size() - 1)].store(scope.get(), std::memory_order_release);
    return scope.release();
  }

  // Sorted by label, so that a page changes little.
  [[nodiscard]] std::vector<const Scope*> all() const {
    std::vector<const Scope*> found;
    for (const auto& place : places_) {
      if (const Scope* const scope = place.load(std::memory_order_acquire)) found.push_back(scope);
    }
    std::ranges::sort(found, {}, &Scope::label);
    return found;
  }

 private:
  // `at` is moved to the scope's place, or to the free one for it: there always is one.
  Scope* find(std::string_view prefix, std::size_t& at) const noexcept {
    for (;; ++at) {
      Scope* const scope = places_[at & (places_.size() - 1)].load(std::memory_order_acquire);
      if (scope == nullptr || scope->prefix == prefix) return scope;
    }
  }

  const std::size_t most_;
  std::vector<std::atomic<Scope*>> places_;
  std::atomic<bool> full_{false};
  std::mutex adding_;
  std::size_t size_ = 0;  // Under that mutex.
};

}  // namespace

class Metrics::Counts {
 public:
  explicit Counts(std::size_t max_scopes) : has_scopes_(max_scopes != 0), scopes_(max_scopes) {
    others_.overflow = "true";
  }

  void count(const Event& event) {
    if (event.kind == EventKind::store_error) {
      const ErrorKind kind = event.error == nullptr ? ErrorKind::unavailable : event.error->kind;
      store_errors_[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
      return;
    }
    scope_of(event.key).count(event);
    if (event.coalesced) return;
    constexpr auto& begins = event_metrics::begins;
    const auto* const begin = std::ranges::find(begins, event.kind);
    if (begin != begins.end()) begins_[static_cast<std::size_t>(begin - begins.begin())].add(event.took);
  }

  [[nodiscard]] std::string text() const {
    using namespace event_metrics;
    std::vector<const Scope*> scopes = scopes_.all();
    if (!has_scopes_ || nameless_.has_counted()) scopes.insert(scopes.begin(), &nameless_);
    if (others_.has_counted()) scopes.push_back(&others_);
    text::Exposition out;
    const auto each = [&](const auto& write) {
      for (const Scope* const scope : scopes) write(*scope);
    };
    const auto by_kind = [&](std::string_view name, const auto& kinds, const Scope& scope) {
      for (const EventKind kind : kinds) {
        out.sample({{"scope", scope.label}, {"otel_metric_overflow", scope.overflow}, {name, to_string(kind)}},
                   scope.of(kind));
      }
    };
    out.family(operations, "counter", "Calls, by how they ended.");
    each([&](const Scope& scope) {
      by_kind("outcome", ends, scope);
      out.sample({{"scope", scope.label}, {"otel_metric_overflow", scope.overflow}, {"outcome", stored_failure}},
                 scope.stored_failures.load(std::memory_order_relaxed));
    });
    out.family(claims, "counter", "Claims, by how they were made.");
    each([&](const Scope& scope) { by_kind("kind", claim_kinds, scope); });
    out.family(reconcile, "counter", "Questions about unknown operations, by what came of them.");
    each([&](const Scope& scope) { by_kind("outcome", questions, scope); });
    for (const Single& single : singles) {
      out.family(single.name, "counter", single.help);
      each([&](const Scope& scope) {
        out.sample({{"scope", scope.label}, {"otel_metric_overflow", scope.overflow}}, scope.of(single.kind));
      });
    }
    out.family(work_duration, "histogram", "From a claim to the end of its work.");
    each([&](const Scope& scope) {
      scope.work.write(out, {{"scope", scope.label}, {"otel_metric_overflow", scope.overflow}});
    });
    out.family(begin_duration, "histogram", "From a call to the store's answer whether it may run.");
    for (std::size_t i = 0; i < begins.size(); ++i) begins_[i].write(out, {{"outcome", to_string(begins[i])}});
    out.family(store_errors, "counter", "Failures of the store.");
    for (std::size_t i = 0; i < error_kinds; ++i) {
      out.sample({{"kind", to_string(static_cast<ErrorKind>(i))}}, store_errors_[i].load(std::memory_order_relaxed));
    }
    return std::move(out).take();
  }

 private:
  Scope& scope_of(std::string_view key) noexcept {
    const std::size_t end = key.find('#');
    if (!has_scopes_ || end == std::string_view::npos || end == 0) return nameless_;
    try {
      Scope* const scope = scopes_.find_or_add(key.substr(0, end));
      return scope == nullptr ? others_ : *scope;
    } catch (...) {  // Out of memory: it is still counted.
      return others_;
    }
  }

  const bool has_scopes_;
  Scopes scopes_;
  Scope nameless_;  // Without a key or a scope, or with no labels for scopes.
  Scope others_;
  std::array<text::Histogram<begin_bounds>, event_metrics::begins.size()> begins_;
  std::array<Counter, error_kinds> store_errors_{};
};

Metrics::Metrics(MetricsOptions options) {
  constexpr std::size_t most = 10'000;
  if (options.max_scopes > most) {
    throw Exception(ErrorKind::misuse, "MetricsOptions::max_scopes must be at most " + std::to_string(most));
  }
  counts_ = std::make_shared<Counts>(options.max_scopes);
}

void Metrics::operator()(const Event& event) const noexcept { counts_->count(event); }

std::string Metrics::text() const { return counts_->text(); }

}  // namespace once
