#include "frontends/proxy/services.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "text/prometheus.hpp"

namespace once::proxy {

namespace {

constexpr unsigned most_bad_looks = 2;

// "pay:9000", "unix:/run/pay.sock", with the path: "pay:9000/v1", "unix:/run/pay.sock:/v1".
std::string name_of(const Service& service) {
  const Address& address = service.address;
  if (!address.socket.empty()) return "unix:" + address.socket + (service.path.empty() ? "" : ':' + service.path);
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? '[' + address.host + ']' : address.host) + ':' + std::to_string(address.port) + service.path;
}

std::string url_of(const Service& service) { return (service.tls ? "https://" : "http://") + name_of(service); }

}  // namespace

Services::One::One(Service its, std::uint64_t number) : service(std::move(its)), name(name_of(service)), id(number) {}

Services::Services(std::vector<Service> services, const Aside& aside, std::function<void(std::string_view)> on_notice,
                   const Services* before)
    : aside_(aside), on_notice_(std::move(on_notice)) {
  Ones present;
  if (before != nullptr) {
    present = before->all_;
    next_id_ = before->next_id_;
    std::ranges::copy_if(before->leaving_, std::back_inserter(leaving_),
                         [](const auto& one) { return one->in_flight != 0; });
  }
  for (Service& service : services) {
    std::shared_ptr<One> one = take(present, service);
    if (one) {
      ++change_.kept;
    } else {
      change_.added.push_back(url_of(service));
      one = take(leaving_, service);
      if (!one) one = std::make_shared<One>(std::move(service), next_id_++);
    }
    all_.push_back(std::move(one));
  }
  for (std::shared_ptr<One>& one : present) {
    change_.removed.push_back(url_of(one->service));
    leaving_.push_back(std::move(one));
  }
}

// Each is taken once, even if it is named several times.
std::shared_ptr<Services::One> Services::take(Ones& from, const Service& service) {
  const auto at = std::ranges::find_if(from, [&](const auto& one) { return one->service == service; });
  if (at == from.end()) return nullptr;
  std::shared_ptr<One> one = std::move(*at);
  from.erase(at);
  return one;
}

std::string_view Services::host() const noexcept {
  const Address& first = all_.front()->service.address;
  return first.socket.empty() ? std::string_view(first.host) : "localhost";
}

std::optional<std::size_t> Services::find(std::uint64_t id) const noexcept {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i]->id == id) return i;
  }
  return std::nullopt;
}

bool Services::any_tls() const noexcept {
  return std::ranges::any_of(all_, [](const auto& one) { return one->service.tls; });
}

std::optional<Services::Use> Services::choose(const std::vector<std::size_t>& tried, Clock::time_point now) {
  const std::size_t first = all_.size() == 1 ? 0 : turn_.fetch_add(1, std::memory_order_relaxed);
  // Better: available; if neither is, the one whose time aside ends first; then fewer running requests.
  const auto better = [&](const One& one, const One& other) {
    const bool can = available(one, now);
    if (can != available(other, now)) return can;
    if (!can && one.aside_until.load() != other.aside_until.load())
      return one.aside_until.load() < other.aside_until.load();
    return one.in_flight < other.in_flight;
  };
  for (;;) {
    One* best = nullptr;
    std::size_t best_index = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const std::size_t index = (first + i) % all_.size();
      One& one = *all_[index];
      if (one.ill || std::ranges::find(tried, index) != tried.end()) continue;
      if (one.failing && one.aside_until.load() > now) continue;  // The outcome of its requests might be unknown.
      if (best != nullptr && !better(one, *best)) continue;
      best = &one;
      best_index = index;
    }
    // A request tries at most one upstream that is aside.
    if (best == nullptr || (!tried.empty() && !available(*best, now))) return std::nullopt;
    const bool is_trial = best->failing;
    if (is_trial) {
      Clock::time_point seen = best->aside_until;
      const unsigned times = best->times_aside;
      const auto until = now + time_aside(times == 0 ? 0 : times - 1);
      if (seen > now || !best->aside_until.compare_exchange_strong(seen, until))
        continue;  // Another request has begun the trial.
    }
    ++best->in_flight;
    return Use(best->in_flight, best_index, is_trial, now);
  }
}

Millis Services::wait(Clock::time_point now) const noexcept {
  auto soonest = Clock::time_point::max();
  for (const auto& one : all_) {
    if (one->failing && !one->ill) soonest = std::min(soonest, one->aside_until.load());
  }
  if (soonest == Clock::time_point::max()) return Millis{0};
  return std::max(Millis{1}, std::chrono::ceil<Millis>(soonest - now));
}

Services::Clock::duration Services::time_aside(unsigned times_before) const noexcept {
  Clock::duration time = aside_.time;
  for (unsigned i = 0; i < times_before && time < aside_.time_limit; ++i) time *= 2;
  return std::min<Clock::duration>(time, aside_.time_limit);
}

void Services::put_aside(const Use& use, bool failing, std::string_view why, Clock::time_point now) {
  One& one = *all_[use.index()];
  Clock::duration limit{};
  {
    const std::lock_guard lock(one.mutex);
    if (one.aside_until.load() > now && !use.is_trial()) return;  // Another request has reported it already.
    limit = time_aside(one.times_aside++);
    one.troubles = 0;
    one.errors = 0;
    one.failing = failing;
    one.aside_until = now + limit;
  }
  const std::int64_t ms = std::chrono::duration_cast<Millis>(limit).count();
  const std::string text = ms % 1'000 == 0 ? std::to_string(ms / 1'000) + " s" : std::to_string(ms) + " ms";
  tell(one, "is put aside for " + text + ": " + std::string(why));
}

// Whether enough others remain without it: at least one that answers, and within Aside::percent.
bool Services::may_go_without(const One& one, Clock::time_point now) const {
  std::size_t aside = 0;
  bool has_other = false;
  for (const auto& other : all_) {
    if (other.get() == &one) continue;
    const bool is_well = available(*other, now) && !other->failing;
    has_other = has_other || is_well;
    if (!is_well) ++aside;
  }
  return has_other && aside + 1 <= std::max(std::size_t{1}, all_.size() * aside_.percent / 100);
}

void Services::unreachable(const Use& use, std::string_view why, Clock::time_point now) {
  put_aside(use, false, why, now);
}

void Services::troubled(const Use& use, std::string_view why, Clock::time_point now) {
  One& one = *all_[use.index()];
  const unsigned errors = ++one.errors;
  const unsigned troubles = ++one.troubles;
  const auto enough = [&](unsigned count, unsigned most) { return most != 0 && (use.is_trial() || count >= most); };
  if (enough(troubles, aside_.after_failures) || (enough(errors, aside_.after_5xx) && may_go_without(one, now))) {
    put_aside(use, true, why, now);
  }
}

void Services::late(const Use& use, std::string_view why, Clock::time_point now) {
  const One& one = *all_[use.index()];
  const bool is_slow_page = !one.failing && one.answered_at.load() > use.since();
  if (!is_slow_page) troubled(use, why, now);
}

void Services::answered(const Use& use, unsigned status, Clock::time_point now) {
  const auto what = [&] { return "it answered " + std::to_string(status); };
  if (status >= 502 && status <= 504) return troubled(use, what(), now);
  One& one = *all_[use.index()];
  one.answered_at = now;
  if (status < 500) return good(use);
  one.troubles = 0;
  const unsigned errors = ++one.errors;
  if (aside_.after_5xx != 0 && (use.is_trial() || errors >= aside_.after_5xx) && may_go_without(one, now)) {
    return put_aside(use, true, what(), now);
  }
  // It is an answer, and there is no other upstream.
  if (use.is_trial()) good(use);
}

void Services::good(const Use& use) {
  One& one = *all_[use.index()];
  if (one.errors == 0 && one.times_aside == 0) return;  // The usual case.
  bool back = false;
  {
    const std::lock_guard lock(one.mutex);
    one.troubles = 0;
    one.errors = 0;
    // An answer to an earlier request does not show its present health.
    if (one.failing && !use.is_trial()) return;
    back = one.times_aside != 0;
    one.times_aside = 0;
    one.failing = false;
    one.aside_until = Clock::time_point::min();
  }
  if (back) tell(one, "answers again");
}

void Services::checked(std::size_t index, std::string_view problem) {
  One& one = *all_[index];
  bool changed = false;
  {
    const std::lock_guard lock(one.mutex);
    one.bad_looks = problem.empty() ? 0 : one.bad_looks + 1;
    const bool ill = one.bad_looks >= most_bad_looks || (one.ill && one.bad_looks > 0);
    changed = one.ill.exchange(ill) != ill;
    if (problem.empty() && !one.failing) one.aside_until = Clock::time_point::min();
  }
  if (changed) tell(one, problem.empty() ? "is healthy again" : "is unhealthy: " + std::string(problem));
}

void Services::tell(const One& one, const std::string& what) const {
  if (on_notice_) on_notice_("upstream " + one.name + ' ' + what);
}

bool Services::any_available(Clock::time_point now) const {
  return std::ranges::any_of(all_, [&](const auto& one) { return available(*one, now); });
}

std::string Services::metrics_text(Clock::time_point now) const {
  text::Exposition out;
  // By name, because Prometheus wants one line for each.
  std::map<std::string_view, int> availabilities;
  std::map<std::string_view, int> in_flight;
  for (const auto& one : all_) {
    int& availability = availabilities[one->name];
    availability = std::max(availability, available(*one, now) ? 1 : 0);
    in_flight[one->name] += one->in_flight;
  }
  for (const auto& one : leaving_) {
    if (const int count = one->in_flight; count != 0) in_flight[one->name] += count;
  }
  const auto metric = [&](std::string_view name, std::string_view help, const std::map<std::string_view, int>& values) {
    out.family(name, "gauge", help);
    for (const auto& [upstream, value] : values) out.sample({{"upstream", upstream}}, value);
  };
  metric("once_proxy_upstream_available", "1, or 0 while the upstream is put aside or unhealthy.", availabilities);
  metric("once_proxy_upstream_active_requests", "Requests that the upstream is processing.", in_flight);
  return std::move(out).take();
}

}  // namespace once::proxy
