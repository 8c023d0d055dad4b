// What `once sqs` counts of its messages: docs/metrics.md.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <once/frontends/sqs/poller.hpp>

namespace once::cli {

// Thread-safe.
class SqsMetrics {
 public:
  void count(const sqs::PollEvent& event) noexcept;
  [[nodiscard]] std::string text(const sqs::PollCounts& counts) const;  // Prometheus' text format.

 private:
  static constexpr std::size_t ends = static_cast<std::size_t>(queues::RecordEnd::out_of_time) + 1;
  static constexpr std::size_t kinds = static_cast<std::size_t>(sqs::PollEvent::Kind::abandoned) + 1;
  static constexpr std::array<const char*, 3> fates{"deleted", "parked", "left"};

  std::array<std::array<std::atomic<std::uint64_t>, fates.size()>, ends> messages_{};
  std::array<std::atomic<std::uint64_t>, kinds> events_{};
};

}  // namespace once::cli
