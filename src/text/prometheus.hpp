// Metrics in Prometheus' text exposition format 0.0.4.
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace once::text {

// A label without a value is not written: to Prometheus both are the same.
struct Label {
  std::string_view name;
  std::string_view value;  // UTF-8.
};
using Labels = std::initializer_list<Label>;

// Families one after the other, each followed by its samples.
class Exposition {
 public:
  // `type`: counter, gauge or histogram. `help`: one line. Begins the family that the next samples belong to.
  void family(std::string_view name, std::string_view type, std::string_view help);

  template <class Number>
    requires std::is_arithmetic_v<Number>
  void sample(Labels labels, Number value) {
    begin_line({});
    add_labels(labels);
    end_line(value);
  }

  // Not cumulative: how many were in each bucket. One more of them than bounds.
  void histogram(Labels labels, std::span<const double> bounds, std::span<const std::uint64_t> counts, double sum);

  std::string take() && { return std::move(out_); }

 private:
  void begin_line(std::string_view suffix);
  void add_labels(Labels labels);
  void add_label(Label label);
  void end_line(double value);
  template <class Number>
    requires std::is_integral_v<Number>
  void end_line(Number value) {
    end_line(std::string_view(std::to_string(value)));
  }
  void end_line(std::string_view value);

  std::string out_;
  std::string_view name_;
  bool has_labels_ = false;  // The line has one.
};

// Durations in buckets. Adding takes no lock. `bounds`: of the buckets, in seconds, ascending.
template <const auto& bounds>
class Histogram {
 public:
  void add(std::chrono::nanoseconds took) noexcept {
    const double seconds = std::chrono::duration<double>(took).count();
    std::size_t bucket = 0;
    while (bucket < bounds.size() && bounds[bucket] < seconds) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(took.count(), std::memory_order_relaxed);
  }

  void write(Exposition& out, Labels labels) const {
    std::array<std::uint64_t, bounds.size() + 1> counts{};
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
    const std::chrono::nanoseconds sum(sum_ns_.load(std::memory_order_relaxed));
    out.histogram(labels, bounds, counts, std::chrono::duration<double>(sum).count());
  }

 private:
  std::array<std::atomic<std::uint64_t>, bounds.size() + 1> counts_{};  // The last one: over all bounds.
  std::atomic<std::int64_t> sum_ns_{0};
};

}  // namespace once::text
