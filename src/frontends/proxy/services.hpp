// The upstreams: which one gets the next request, and which are put aside. Shared by all loops; thread-safe. The list
// never changes: a change makes a new Services, which shares the upstreams that stay.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/frontends/proxy.hpp>

namespace once::proxy {

class Services {
 public:
  using Clock = std::chrono::steady_clock;

  // `before`: upstreams that stay keep their state and their running requests.
  Services(std::vector<Service> services, const Aside& aside, std::function<void(std::string_view)> on_notice,
           const Services* before = nullptr);

  // Compared with `before`.
  [[nodiscard]] const UpstreamChange& change() const noexcept { return change_; }

  // A running request of one upstream. The Services must outlive it.
  class Use {
   public:
    Use() = default;
    Use(std::atomic<int>& in_flight, std::size_t index, bool is_trial, Clock::time_point since)
        : in_flight_(&in_flight), index_(index), is_trial_(is_trial), since_(since) {}
    Use(Use&& other) noexcept
        : in_flight_(std::exchange(other.in_flight_, nullptr)),
          index_(other.index_),
          is_trial_(other.is_trial_),
          since_(other.since_) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(in_flight_, other.in_flight_);
      std::swap(index_, other.index_);
      std::swap(is_trial_, other.is_trial_);
      std::swap(since_, other.since_);
      return *this;
    }
    ~Use() {
      if (in_flight_ != nullptr) --*in_flight_;
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    [[nodiscard]] std::size_t index() const noexcept { return index_; }
    [[nodiscard]] bool is_trial() const noexcept {
      return is_trial_;
    }  // Its answer shows whether a failing upstream has recovered.
    [[nodiscard]] Clock::time_point since() const noexcept { return since_; }

   private:
    std::atomic<int>* in_flight_ = nullptr;
    std::size_t index_ = 0;
    bool is_trial_ = false;
    Clock::time_point since_{};
  };

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] const Service& at(std::size_t index) const noexcept { return all_[index]->service; }
  [[nodiscard]] std::string_view name(std::size_t index) const noexcept { return all_[index]->name; }
  // For requests without a client's host.
  [[nodiscard]] std::string_view host() const noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return all_.front()->service.path; }  // Of all.
  // Unique, and the same in all Services that have the upstream.
  [[nodiscard]] std::uint64_t id(std::size_t index) const noexcept { return all_[index]->id; }
  [[nodiscard]] std::optional<std::size_t> find(std::uint64_t id) const noexcept;
  [[nodiscard]] bool any_tls() const noexcept;

  // The upstream with the fewest running requests, round-robin among equals, that is not in `tried`, aside or ill. A
  // failing one gets one trial request when its time aside is over, and no other until that answer is good. No answer
  // within that time again counts as bad. If none of the rest could be connected to, the one whose time ends first,
  // because trying costs nothing. Empty: none.
  std::optional<Use> choose(const std::vector<std::size_t>& tried, Clock::time_point now);
  // If none was chosen: how long until a failing one gets a trial. 0: none is failing.
  [[nodiscard]] Millis wait(Clock::time_point now) const noexcept;

  // Report how a request ended. An upstream that could not be connected to is put aside at once, a failing one by the
  // rules of Aside.
  void unreachable(const Use& use, std::string_view why, Clock::time_point now);
  void troubled(const Use& use, std::string_view why, Clock::time_point now);  // No answer, no HTTP.
  // No answer in time. Ignored if the service has answered others meanwhile.
  void late(const Use& use, std::string_view why, Clock::time_point now);
  void answered(const Use& use, unsigned status, Clock::time_point now);

  // Report a health check. Two bad ones in a row make it ill, a good one makes it well, and ends its time aside if it
  // could not be connected to. A failing one recovers only by an answer to a request.
  void checked(std::size_t index, std::string_view problem);

  [[nodiscard]] bool any_available(Clock::time_point now) const;
  [[nodiscard]] std::string metrics_text(Clock::time_point now) const;

 private:
  struct One {
    One(Service its, std::uint64_t number);
    const Service service;
    const std::string name;  // "pay:9000"
    const std::uint64_t id;
    std::atomic<int> in_flight{0};
    std::atomic<bool> ill{false};
    std::atomic<Clock::time_point> aside_until{Clock::time_point::min()};
    std::atomic<bool> failing{false};   // Aside because of its answers, until a trial succeeds.
    std::mutex mutex;                   // Guards changes of the following members.
    std::atomic<unsigned> troubles{0};  // In a row: 502 to 504, or no answer.
    std::atomic<unsigned> errors{0};    // In a row: those, and any other 5xx.
    std::atomic<unsigned> times_aside{0};
    std::atomic<Clock::time_point> answered_at{Clock::time_point::min()};  // Its last answer that was not 502 to 504.
    unsigned bad_looks = 0;
  };
  void put_aside(const Use& use, bool failing, std::string_view why, Clock::time_point now);
  void good(const Use& use);
  [[nodiscard]] bool may_go_without(const One& one, Clock::time_point now) const;
  [[nodiscard]] Clock::duration time_aside(unsigned times_before) const noexcept;
  void tell(const One& one, const std::string& what) const;
  static bool available(const One& one, Clock::time_point now) noexcept {
    return !one.ill && one.aside_until.load() <= now;
  }

  using Ones = std::vector<std::shared_ptr<One>>;
  static std::shared_ptr<One> take(Ones& from, const Service& service);

  Ones all_;
  Ones leaving_;  // Upstreams of `before` that may have running requests.
  UpstreamChange change_;
  std::uint64_t next_id_ = 0;
  const Aside aside_;
  std::function<void(std::string_view)> on_notice_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace once::proxy
