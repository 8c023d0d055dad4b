#include "output/sqs_metrics.hpp"

#include <utility>

#include "text/prometheus.hpp"

namespace once::cli {

namespace {

using queues::RecordEnd;

// Those that a poller has.
constexpr std::array poller_ends{RecordEnd::executed, RecordEnd::replayed,   RecordEnd::stored_failure,
                                 RecordEnd::failed,   RecordEnd::unrecorded, RecordEnd::lost,
                                 RecordEnd::conflict, RecordEnd::error,      RecordEnd::mismatch,
                                 RecordEnd::unknown,  RecordEnd::poison};

}  // namespace

void SqsMetrics::count(const sqs::PollEvent& event) noexcept {
  events_[static_cast<std::size_t>(event.kind)].fetch_add(1, std::memory_order_relaxed);
  if (event.kind != sqs::PollEvent::Kind::ended) return;
  const std::size_t fate = event.parked ? 1 : (event.deleted ? 0 : 2);
  messages_[static_cast<std::size_t>(event.end)][fate].fetch_add(1, std::memory_order_relaxed);
}

std::string SqsMetrics::text(const sqs::PollCounts& counts) const {
  text::Exposition out;
  out.family("once_sqs_received_total", "counter", "Messages that were received.");
  out.sample({}, counts.received);
  out.family("once_sqs_messages_total", "counter", "Messages that were processed, by how they ended.");
  for (const RecordEnd end : poller_ends) {
    for (std::size_t fate = 0; fate < fates.size(); ++fate) {
      out.sample({{"outcome", to_string(end)}, {"fate", fates[fate]}},
                 messages_[static_cast<std::size_t>(end)][fate].load(std::memory_order_relaxed));
    }
  }
  out.family("once_sqs_events_total", "counter", "What else happened to messages and to the queue.");
  for (std::size_t kind = static_cast<std::size_t>(sqs::PollEvent::Kind::ended) + 1; kind < kinds; ++kind) {
    out.sample({{"event", to_string(static_cast<sqs::PollEvent::Kind>(kind))}},
               events_[kind].load(std::memory_order_relaxed));
  }
  out.family("once_sqs_messages_in_flight", "gauge", "Messages that were received, and have not ended.");
  out.sample({}, counts.in_flight);
  out.family("once_sqs_receiving", "gauge", "1: the last request for messages was answered. 0: it failed.");
  out.sample({}, counts.refusal.empty() ? 1U : 0U);
  return std::move(out).take();
}

}  // namespace once::cli
