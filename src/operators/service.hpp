// What the service says of unknown operations, when an operator asks: POST …/reconcile. Nothing is written then. The
// answer is kept here, for the record as it was, and an operator's resolve may take it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <once/clock.hpp>
#include <once/frontends/http/message.hpp>
#include <once/platform/system.hpp>
#include <once/reconcile.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "operators/console.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// "done", "failed", "not_done" or "not_known".
std::string_view to_string(Finding::Kind kind);
std::optional<Finding::Kind> finding_from_string(std::string_view word);
// The words, for texts: "done, failed, not_done or not_known".
inline constexpr std::string_view finding_words = "done, failed, not_done or not_known";

// Thread-safe.
class Service {
 public:
  // Answers that are kept. One more forgets the oldest.
  static constexpr std::size_t most_kept = 10'000;
  static constexpr std::size_t most_bytes = std::size_t{64} << 20U;  // Of their results.
  // So long "not_done" counts: an operation can be done at the service by hand since. As long as a plan lives.
  static constexpr std::chrono::minutes not_done_life{10};

  // `max_record_bytes`: of the store that keeps what is told.
  Service(std::size_t max_record_bytes, std::shared_ptr<Clock> clock)
      : clock_(std::move(clock)), max_record_bytes_(max_record_bytes) {}

  // From now on it is asked by a copy of this one. Empty: nobody is asked any more.
  void ask_by(std::optional<Reconciler> reconciler);

  [[nodiscard]] bool asks() const;
  [[nodiscard]] std::size_t max_record_bytes() const noexcept { return max_record_bytes_; }
  // Why nobody can be asked about this record. Empty: it can.
  [[nodiscard]] std::string refusal(const Record& record) const;

  struct Told {
    Finding finding;
    Time asked_at{};
    Uptime asked_at_uptime{};
  };
  using ToldPtr = std::shared_ptr<const Told>;
  // Asks, and keeps the answer. Blocks.
  ToldPtr ask(const RecordPtr& unknown);
  // What was told of the record as it is now. Null: nothing.
  [[nodiscard]] ToldPtr told(const Record& record) const;
  // Why an act must not count on this answer: it is not what was told, or is too old. Empty: it can. `told`: as told().
  [[nodiscard]] std::string contradiction(const ToldPtr& told, Finding::Kind wanted) const;
  // Why the operation must not run again without force: the service has done it. Empty: it does not say so.
  [[nodiscard]] std::string objection(const Record& record) const;

 private:
  struct Kept {
    Owner owner;
    std::uint64_t revision = 0;
    ToldPtr told;
    std::uint64_t number = 0;
  };
  void keep(const Record& record, ToldPtr told);

  const std::shared_ptr<Clock> clock_;
  const std::size_t max_record_bytes_;
  mutable std::mutex mutex_;  // Guards the following members.
  std::optional<Reconciler> reconciler_;
  std::map<std::string, Kept, std::less<>> kept_;             // By stored key.
  std::deque<std::pair<std::uint64_t, std::string>> oldest_;  // Numbers and keys; those of replaced answers, too.
  std::size_t bytes_ = 0;
  std::uint64_t count_ = 0;
};

// "the service says done: charge 4711 is in the ledger"
std::string service_says(const Finding& finding);

// The members of a line that says what was told.
nlohmann::ordered_json told_json(const Service::Told& told);

// Of a record: whether it can be asked about, and what was told. Null unless it is unknown.
nlohmann::ordered_json service_json(const Service& service, const Record& record);

// POST …/reconcile. Blocks for the store and the service. Throws Exception(misuse) for a wrong request.
http::Answer ask_about_one(const StoreAccess& access, Service& service, const http::Request& request,
                           const Caller& caller, const std::string& stored_key);

}  // namespace once::operators
