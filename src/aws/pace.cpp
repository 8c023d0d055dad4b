#include "aws/pace.hpp"

#include <algorithm>
#include <chrono>

namespace once::aws {

namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Uptime window = seconds(1);
constexpr Uptime least_window = milliseconds(100);  // The shortest time for a useful rate.
constexpr Uptime recovery = seconds(20);
// Answers to requests from before the last cut do not count.
constexpr Uptime between_cuts = milliseconds(500);
constexpr double least_rate = 1;
constexpr double cut = 0.7;
constexpr double growth = 0.05;  // A second.

double seconds_of(Uptime span) noexcept { return duration<double>(span).count(); }

}  // namespace

double Pace::limit(Uptime now) const noexcept {
  return std::max(least_rate, cut_rate_ * (cut + growth * seconds_of(now - *cut_at_)));
}

std::optional<Uptime> Pace::reserve(Uptime now, Uptime latest) noexcept {
  if (now - window_ >= window) {
    last_rate_ = in_window_ / seconds_of(now - window_);
    window_ = now;
    in_window_ = 0;
  }
  if (cut_at_ && now - *cut_at_ >= recovery) cut_at_.reset();
  if (!cut_at_) {
    ++in_window_;
    return now;
  }
  const Uptime at = std::max(slot_, now);
  if (at > latest) return std::nullopt;
  slot_ = at + std::chrono::duration_cast<Uptime>(duration<double>(1 / limit(now)));
  ++in_window_;
  return at;
}

void Pace::throttled(Uptime now) noexcept {
  if (cut_at_ && now - *cut_at_ < between_cuts) return;
  double rate = std::max(last_rate_, in_window_ / seconds_of(std::max(now - window_, least_window)));
  if (cut_at_) rate = std::min(rate, limit(now));  // Waiting requests were not sent that fast.
  cut_rate_ = std::max(rate, least_rate);
  cut_at_ = now;
}

}  // namespace once::aws
