// /v1/bulk: one act on all records that match, in the background.
//
// 1. POST /v1/bulk reads the records, and keeps key, owner and revision of each that the act may change. Nothing is
//    written. This is the plan.
// 2. POST /v1/bulk/ID/start names the plan's number, within ten minutes.
// 3. Each record is read again, and written only if it has that owner and revision still. What changed is left alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <thread>

#include <once/clock.hpp>
#include <once/frontends/http/message.hpp>
#include <once/platform/system.hpp>

#include "operators/acts.hpp"
#include "operators/console.hpp"
#include "operators/service.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// Thread-safe. It has two threads: one makes plans, one after the other, and one carries them out.
class BulkActs {
 public:
  static constexpr std::size_t most_records = 10'000;  // Of one act. Each costs its key and about 100 bytes.
  static constexpr std::size_t most_acts = 20;         // In memory. One more forgets the oldest that has ended.
  static constexpr std::size_t most_leftovers = 1000;  // That are listed of one act.
  static constexpr std::size_t most_shown = 100;       // Of the planned records.
  static constexpr std::chrono::minutes plan_life{Service::not_done_life};

  // `access` and `service` must outlive it.
  BulkActs(const StoreAccess& access, Service& service, std::shared_ptr<Clock> clock = system_clock());
  BulkActs(const BulkActs&) = delete;
  BulkActs& operator=(const BulkActs&) = delete;
  ~BulkActs();  // Waits for the call of the store that is under way.

  // POST /v1/bulk. None of these blocks for the store, and all throw Exception(misuse) for a wrong request.
  http::Answer plan(const http::Request& request, const Caller& caller);
  http::Answer list() const;
  http::Answer show(std::string_view id) const;
  http::Answer start(std::string_view id, const http::Request& request, const Caller& caller);
  http::Answer stop(std::string_view id, const http::Request& request, const Caller& caller);

  // One without its records, in one line of JSON: {"id": …, "state": null} if there is none.
  [[nodiscard]] std::string line(std::string_view id) const;

  // Nothing begins any more; what is being written ends. Does not wait.
  void stop_all();

 private:
  struct Bulk;
  using BulkPtr = std::shared_ptr<Bulk>;

  [[nodiscard]] BulkPtr find(std::string_view id) const;
  void expire() const;
  void make_plans();
  void make_plan(Bulk& bulk);
  void carry_out_plans();
  void carry_out(Bulk& bulk);
  bool goes_on(const Bulk& bulk) const;
  static void count_one(Bulk& bulk, const Counted& record, Carried carried);
  Carried ask_about(Bulk& bulk, const Counted& record, nlohmann::ordered_json& line);

  const StoreAccess& access_;
  Service& service_;
  const std::shared_ptr<Clock> clock_;
  mutable std::mutex mutex_;  // Guards the following members, and what Bulk says.
  std::condition_variable news_;
  std::deque<BulkPtr> acts_;  // Oldest first.
  BulkPtr starting_;          // Its line is being written. No other starts.
  BulkPtr running_;
  bool ending_ = false;
  std::jthread planner_;
  std::jthread runner_;
};

}  // namespace once::operators
