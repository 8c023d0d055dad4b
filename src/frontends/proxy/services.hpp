// The upstreams: who is asked next, and who is left in peace for a while. Shared by all loops; thread-safe. Which there
// are never changes: when that is to change, another one is made, in which those that stay are the same as before.
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

  // `before`: of those that are named again, what is known of them is kept, and their requests under way count.
  Services(std::vector<Service> services, const Aside& aside, std::function<void(std::string_view)> on_notice,
           const Services* before = nullptr);

  // Against those it came from.
  [[nodiscard]] const UpstreamChange& change() const noexcept { return change_; }

  // A request that one of them has under way. The Services must outlive it.
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
    [[nodiscard]] bool is_trial() const noexcept { return is_trial_; }  // Shows whether a failing one is well again.
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
  // The same in all Services that have it, and never another's.
  [[nodiscard]] std::uint64_t id(std::size_t index) const noexcept { return all_[index]->id; }
  [[nodiscard]] std::optional<std::size_t> find(std::uint64_t id) const noexcept;
  [[nodiscard]] bool any_tls() const noexcept;

  // The one with the fewest requests under way, in turn among equals, of those that are not in `tried`, not aside and
  // not ill. One that was failing gets one request when its time is over, and no other until that one's answer is good;
  // one that gives no answer counts as bad after as long again. If all that are left could not be connected to, the one
  // whose time is over first: it may be back, and nothing is lost by asking. None: it cannot be helped.
  std::optional<Use> choose(const std::vector<std::size_t>& tried, Clock::time_point now);
  // None was chosen: how long until a failing one may be asked. 0: none is failing.
  [[nodiscard]] Millis wait(Clock::time_point now) const noexcept;

  // What became of a request. One that could not be connected to is put aside at once; one that fails, when Aside says.
  void unreachable(const Use& use, std::string_view why, Clock::time_point now);
  void troubled(const Use& use, std::string_view why, Clock::time_point now);  // No answer, no HTTP.
  // No answer in the time that we gave it. Says nothing of a service that has answered others meanwhile.
  void late(const Use& use, std::string_view why, Clock::time_point now);
  void answered(const Use& use, unsigned status, Clock::time_point now);

  // What a look at its health has shown. Ill after two bad ones, well after a good one, which also ends the time aside
  // of one that could not be connected to. Of one that fails only its answers to requests say that it does not.
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
    std::atomic<bool> failing{false};   // Aside for its answers, until a trial has shown that it is well.
    std::mutex mutex;                   // Of changes of what follows.
    std::atomic<unsigned> troubles{0};  // In a row: 502 to 504, or no answer.
    std::atomic<unsigned> errors{0};    // In a row: those, and any other 5xx.
    std::atomic<unsigned> times_aside{0};
    std::atomic<Clock::time_point> answered_at{Clock::time_point::min()};  // Last, and not with 502 to 504.
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
  Ones leaving_;  // Were in the ones before, and may have requests under way.
  UpstreamChange change_;
  std::uint64_t next_id_ = 0;
  const Aside aside_;
  std::function<void(std::string_view)> on_notice_;
  std::atomic<std::size_t> turn_{0};
};

}  // namespace once::proxy
