#include "world.hpp"

#include <algorithm>

namespace once::simulation {

namespace {
constexpr Uptime boot = std::chrono::hours(1);
}

std::uint64_t World::at(Instant when, Host* host, Callback<void()> what) {
  const std::uint64_t id = ++last_id_;
  when = std::max(when, now_);
  queue_.emplace(std::pair(when, id), Event{host, host == nullptr ? 0 : host->life_, std::move(what)});
  when_.emplace(id, when);
  return id;
}

bool World::cancel(std::uint64_t id) noexcept {
  const auto found = when_.find(id);
  if (found == when_.end()) return false;
  const auto node = queue_.extract(std::pair(found->second, id));
  when_.erase(found);
  return true;
}

bool World::step() {
  if (queue_.empty()) return false;
  auto node = queue_.extract(queue_.begin());
  when_.erase(node.key().second);
  now_ = node.key().first;
  ++events;
  Event& event = node.mapped();
  if (event.host != nullptr) {
    if (event.life != event.host->life_) return true;
    if (event.host->stopped_) {
      event.host->inbox_.push_back(std::move(event));
      return true;
    }
  }
  event.what();
  return true;
}

void World::keep_only(const Host& host) {
  for (auto event = queue_.begin(); event != queue_.end();) {
    const bool keeps = event->second.host == &host;
    if (!keeps) when_.erase(event->first.second);
    event = keeps ? std::next(event) : queue_.erase(event);
  }
}

class Host::HostClock final : public Clock {
 public:
  explicit HostClock(const Host& host) : host_(host) {}
  [[nodiscard]] Time now() const noexcept override { return host_.world_.utc() + host_.offset_; }
  [[nodiscard]] Uptime uptime() const noexcept override { return host_.uptime(); }

 private:
  const Host& host_;
};

class Host::HostTimers final : public Timers {
 public:
  explicit HostTimers(Host& host) : host_(host), life_(host.life_) {}
  Id at(Uptime at, Callback<void()> fire) override {
    if (host_.life_ != life_) return 0;
    return host_.world_.at(host_.instant_of(at), &host_, std::move(fire));
  }
  bool cancel(Id id) noexcept override { return host_.life_ == life_ && host_.world_.cancel(id); }

 private:
  Host& host_;
  const std::uint64_t life_;
};

Host::Host(World& world, std::int64_t drift_ppm, Millis utc_offset)
    : world_(world), drift_ppm_(drift_ppm), offset_(utc_offset) {}

Uptime Host::uptime() const noexcept {
  const std::int64_t span = (world_.now_ - slept_).count();
  return boot + Uptime{span + span / 1'000'000 * drift_ppm_ + span % 1'000'000 * drift_ppm_ / 1'000'000};
}

Instant Host::instant_of(Uptime uptime) const noexcept {
  const std::int64_t wanted = (uptime - boot).count();
  std::int64_t span = wanted - wanted / 1'000'000 * drift_ppm_ + wanted / 1'000'000'000'000 * drift_ppm_ * drift_ppm_;
  const auto shown = [&](std::int64_t s) {
    return s + s / 1'000'000 * drift_ppm_ + s % 1'000'000 * drift_ppm_ / 1'000'000;
  };
  // The guess is near; a timer must not fire early, or it would be set again for the same moment.
  while (shown(span) < wanted) span += std::max<std::int64_t>(1, wanted - shown(span));
  return Instant{span} + slept_;
}

void Host::resume() {
  stopped_ = false;
  if (sleeps_) slept_ += world_.now_ - stopped_at_;
  std::vector<World::Event> inbox = std::exchange(inbox_, {});
  for (std::size_t i = inbox.size(); i > 1; --i) std::swap(inbox[i - 1], inbox[world_.below(i)]);
  for (World::Event& event : inbox) {
    if (stopped_) {
      inbox_.push_back(std::move(event));
    } else if (event.life == life_) {
      event.what();
    }
  }
}

void Host::kill() {
  ++life_;
  stopped_ = false;
  inbox_.clear();
}

std::shared_ptr<Clock> Host::clock() { return std::make_shared<HostClock>(*this); }
std::shared_ptr<Timers> Host::timers() { return std::make_shared<HostTimers>(*this); }

}  // namespace once::simulation
