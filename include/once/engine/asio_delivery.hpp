// Delivers what another thread has, such as a store's answer, to a completion handler of Boost.Asio. Internal: for
// once/engine/asio.hpp and the adapters for servers.
//
// The other thread may come later than the handler's execution context lives. So each context keeps a list of its
// deliveries, and drops their handlers when it is destroyed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution/executor.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/query.hpp>

#include <once/compiler.hpp>

namespace once::detail {

// What a call returns that a static_assert has refused: of the right type, so that it is the only error.
template <class Signature, class Token>
auto refused(Token& token) {
  return boost::asio::async_initiate<Token, Signature>([](auto&&...) {}, token);
}

template <class Executor>
boost::asio::execution_context& asio_context_of(const Executor& executor) {
  if constexpr (boost::asio::execution::is_executor<Executor>::value) {
    return boost::asio::query(executor, boost::asio::execution::context);
  } else {
    return executor.context();
  }
}

class AsioDroppable {
 public:
  AsioDroppable() = default;
  AsioDroppable(const AsioDroppable&) = delete;
  AsioDroppable& operator=(const AsioDroppable&) = delete;
  virtual ~AsioDroppable() = default;
  virtual void drop() noexcept = 0;                // The context is being destroyed.
  [[nodiscard]] virtual bool is_over() const = 0;  // It was.
};

template <class... Values>
class AsioDelivery : public AsioDroppable {
 public:
  virtual void deliver(Values... values) = 0;  // From any thread. Only the first call counts.
};

// Those of one execution context.
class AsioDeliveries final : public boost::asio::execution_context::service {
 public:
  using key_type = AsioDeliveries;
  static inline boost::asio::execution_context::id id;

  // Outlives the context.
  struct Living {
    std::recursive_mutex mutex = {};  // Dropping a handler may destroy another delivery.
    std::set<AsioDroppable*> all = {};
    bool is_over = false;
  };
  const std::shared_ptr<Living> living = std::make_shared<Living>();

  explicit AsioDeliveries(boost::asio::execution_context& context) : service(context) {}

 private:
  void shutdown() noexcept override {
    const std::lock_guard lock(living->mutex);
    living->is_over = true;
    while (!living->all.empty()) living->all.extract(living->all.begin()).value()->drop();
  }
};

// Until it has delivered, it keeps the loop of the handler's executor running.
template <class Handler, class... Values>
class AsioHandlerDelivery final : public AsioDelivery<Values...> {
 public:
  using Executor = boost::asio::associated_executor_t<Handler>;

  explicit AsioHandlerDelivery(Handler handler)
      : handler_(std::move(handler)),
        executor_(boost::asio::get_associated_executor(*handler_)),
        work_(*executor_),
        living_(boost::asio::use_service<AsioDeliveries>(asio_context_of(*executor_)).living) {
    const std::lock_guard lock(living_->mutex);
    living_->all.insert(this);
  }
  ~AsioHandlerDelivery() override {
    const std::lock_guard lock(living_->mutex);
    living_->all.erase(this);
    drop();
  }

  // Not run if the context is destroyed before.
  template <class Work>
  void post(Work work) {
    const std::lock_guard lock(living_->mutex);
    if (executor_ && !living_->is_over) boost::asio::post(*executor_, std::move(work));
  }

  void deliver(Values... values) override {
    const std::lock_guard lock(living_->mutex);
    if (!handler_) return;
    post([handler = std::move(*handler_), kept = std::make_tuple(std::move(values)...)]() mutable {
      std::apply(std::move(handler), std::move(kept));
    });
    drop();
  }

  void drop() noexcept override {
    [[maybe_unused]] const auto dropped = std::exchange(handler_, std::nullopt);  // May be what owns this.
    work_.reset();
    executor_.reset();
  }

  [[nodiscard]] bool is_over() const override {
    const std::lock_guard lock(living_->mutex);
    return living_->is_over;
  }

 private:
  std::optional<Handler> handler_;  // These three until the delivery.
  std::optional<Executor> executor_;
  std::optional<boost::asio::executor_work_guard<Executor>> work_;
  const std::shared_ptr<AsioDeliveries::Living> living_;
};

}  // namespace once::detail
