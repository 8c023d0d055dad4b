// A finish that was handed out to a transaction of the user's: what its handle, the claim and the call share.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include <once/finish.hpp>
#include <once/result.hpp>
#include <once/stores/sql.hpp>

#include "core/claim_machine.hpp"

namespace once {

class ClaimState;

class Handing : public std::enable_shared_from_this<Handing> {
 public:
  // Without a result there is no statement.
  Handing(std::shared_ptr<ClaimState> state, std::optional<Result> result) noexcept
      : state_(std::move(state)), result_(std::move(result)) {}

  [[nodiscard]] const std::optional<Result>& result() const noexcept { return result_; }
  // The statement that finishes the claim now. Throws Exception, as Store::finish_statement().
  [[nodiscard]] stores::SqlStatement statement() const;

  // How it ended. What is known already is given at once; otherwise `outcome` is told to the claim. Throws
  // Exception(misuse) during another such call.
  void ask(ClaimMachine::Outcome outcome, FinishDone done);
  // For the claim: gives the answer to who asks, now or later.
  [[nodiscard]] FinishDone answer();
  // It is known that nothing was or will be written, so the claim may be finished otherwise.
  [[nodiscard]] bool is_over_without() const;
  void forget();  // The handle is gone.
  // The claim continues as if it had not been handed out. Empty: so it does. Otherwise how it has ended already.
  std::optional<Finish> take_back();

 private:
  void deliver(Finish finish);

  const std::shared_ptr<ClaimState> state_;
  const std::optional<Result> result_;
  mutable std::mutex mutex_;
  std::optional<Finish> known_;
  FinishDone asks_;
};

}  // namespace once
