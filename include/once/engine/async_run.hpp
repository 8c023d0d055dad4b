// Engine::run() as an asynchronous call, without the work's type and without a network library. once/engine/asio.hpp
// and once/idempotent_asio.hpp are built on it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <once/engine/engine.hpp>

namespace once::detail {

class AsyncRun;

// Only for its destructor: of a base that is not virtual and not protected, g++ warns (-Weffc++).
class SharedRun : public std::enable_shared_from_this<AsyncRun> {
 protected:
  ~SharedRun() = default;
};

// One call. Made by std::make_shared; running operations keep it alive, and the engine's parts that they need. The
// engine itself must live until finished() is called.
//
//   start() ─► ready() ─► begin_work() ─► the work ─► returned() or threw() ─► finished()
//                            └─ null: ready() or finished() comes later
//
// Threads: any. ready() and finished() are called from the store's threads, or before start() or another method
// returns, and never under a lock. They must not block and must not throw.
class AsyncRun : public SharedRun {
 public:
  struct End {
    std::exception_ptr error = {};  // What the blocking form throws.
    bool cancelled = false;         // The work did not run, and a claim is released.
  };

  AsyncRun(const AsyncRun&) = delete;
  AsyncRun& operator=(const AsyncRun&) = delete;
  virtual ~AsyncRun();

  [[nodiscard]] static Claim* claim_of(const Context& context) noexcept { return context.claim_; }

  // Call it after ready(), where the work is to run. Null: the work must not run.
  [[nodiscard]] Context* begin_work();
  // How the work ended: call one of them.
  void returned(Result result);
  void threw(std::exception_ptr error);

  // The caller no longer waits. Before the work has begun: it does not run, and its claim is released. While it runs:
  // `stop_work` sets its stop token.
  void cancel(bool stop_work);

 protected:
  explicit AsyncRun(Engine& engine);

  // Without a request there is no key, and the work runs unprotected, reported as `operation`. `outcome` must live as
  // long as this. It is set when finished() is called without an error.
  void start(std::optional<Request> request, std::string_view operation, Outcome& outcome);

  // Calls finished(), unless a cancellation has called it.
  void end(End end);

 private:
  enum class State : std::uint8_t { claiming, ready, working, over };

  virtual void ready() = 0;
  virtual void finished(End end) = 0;  // Once.

  void claim(std::shared_ptr<EngineAttempt> attempt);
  void claim_again(std::shared_ptr<EngineAttempt> attempt);  // After the claim was lost.
  void begun(Begin begin);
  void completed(Finish finish, bool companion);
  // After work that threw, or whose writes were declined. `superseded_counts`: another attempt's result replaces the
  // error.
  void end_thrown(const std::exception_ptr& error, bool superseded_counts);
  void end_with(const std::exception_ptr& error, Finish finish, bool superseded_counts);

  const std::shared_ptr<EngineCore> core_;
  Outcome* outcome_ = nullptr;
  EffectivePolicy policy_;
  std::string operation_;                         // For work without a claim.
  std::shared_ptr<const EngineAttempt> attempt_;  // Null: there is no key.
  unsigned times_ = 0;                            // How often its claim was lost before the work could begin.

  std::mutex mutex_;  // Guards state_, and claim_ until the work begins.
  State state_ = State::claiming;
  Claim claim_;  // Empty: unprotected.

  std::unique_ptr<Context> context_;
  std::stop_source stop_;
  std::optional<std::stop_callback<std::function<void()>>> lost_;  // Sets stop_ too.
};

}  // namespace once::detail
