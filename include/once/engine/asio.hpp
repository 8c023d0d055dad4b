// Engine::run() for programs on Boost.Asio, with any completion token: co_await needs no wrapper.
//
//   once::Outcome outcome = co_await once::async_run(engine, engine.request(job, {}), [&](once::Context& context)
//       -> boost::asio::awaitable<std::string> { co_return co_await ask_the_service(context.derived_key("service"));
//       });
//
// For a callable made idempotent: once/idempotent_asio.hpp. Needs the headers of Boost 1.81 or later, only where this
// file is included.
//
// The work is work(once::Context&) or work(). It returns a boost::asio::awaitable of a type that Engine::run() takes,
// or that type itself, and then must not block. The work runs, and the call completes, on the executor associated with
// the completion token: with co_await the coroutine's. Without one (boost::asio::bind_executor()) it is Asio's system
// executor. Waiting for another attempt's claim blocks no thread. Context::step() blocks for its one write,
// and async_step() below does not.
//
// To cancel a call: boost::asio::bind_cancellation_slot(), the operators of awaitables, co_spawn's slot.
// - Before the work has begun, the call completes with boost::asio::error::operation_aborted, and the work does not
//   run. A claim that it has, or gets later, is released: the next caller runs the work.
// - While the work runs, Context::stop_token() is set (not by cancellation_type::total). The work may have acted, so it
//   is not interrupted: it decides, and the call completes when it ends. Its result is stored as usual, and
//   Policy::on_throw decides about its exceptions.
//
// The engine and everything the work refers to must live until the call completes. If the executor's context (an
// io_context) is destroyed before, the call never completes, and its handler is destroyed with the context. The claim
// is released if its work has not begun, and otherwise lapses. Emit a slot on the executor, as everywhere in Asio. Work
// that calls its own key is detected only where Engine::begin() detects it. Otherwise that call ends as a conflict
// after its wait.
#pragma once

#include <concepts>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>

#include <once/codec.hpp>
#include <once/engine/asio_delivery.hpp>
#include <once/engine/async_run.hpp>
#include <once/engine/engine.hpp>

namespace once {

// For Engine::run() and Context::step(): they block, and no coroutine runs meanwhile.
template <class T, class E>
struct Codec<boost::asio::awaitable<T, E>> {
  static_assert(std::is_void_v<E>, "once: a coroutine is awaited: use once::async_run() and once::async_step()");
  static std::string encode(const boost::asio::awaitable<T, E>&);
  static boost::asio::awaitable<T, E> decode(std::string_view);
  static constexpr std::string_view content_type = {};
};

namespace detail {

// The type that the work returns, without its awaitable.
template <class T>
struct Awaited {
  using Value = T;
  using Executor = boost::asio::any_io_executor;
  static constexpr bool is_awaitable = false;
};
template <class T, class E>
struct Awaited<boost::asio::awaitable<T, E>> {
  using Value = T;
  using Executor = E;
  static constexpr bool is_awaitable = true;
};

class AsioCall : public AsyncRun {
 public:
  // Its executor's context is being destroyed: drops all that refers to the context.
  virtual void drop() noexcept = 0;

 protected:
  using AsyncRun::AsyncRun;
};

// The calls on one execution context. It ends them when the context is destroyed, as stores answer later, too.
class AsioCalls final : public boost::asio::execution_context::service {
 public:
  using key_type = AsioCalls;
  static inline boost::asio::execution_context::id id;

  // Outlives the context.
  struct Living {
    std::recursive_mutex mutex = {};  // Dropping a call may destroy another one.
    std::set<AsioCall*> calls = {};
    bool is_over = false;
  };
  const std::shared_ptr<Living> living = std::make_shared<Living>();

  explicit AsioCalls(boost::asio::execution_context& context) : service(context) {}

 private:
  void shutdown() noexcept override {
    std::vector<std::shared_ptr<AsioCall>> calls;
    {
      const std::lock_guard lock(living->mutex);
      living->is_over = true;
      for (AsioCall* const call : std::exchange(living->calls, {})) {
        if (auto kept = call->weak_from_this().lock()) {
          calls.push_back(std::static_pointer_cast<AsioCall>(std::move(kept)));
        } else {
          call->drop();  // Its destructor waits for the lock.
        }
      }
    }
    for (const auto& call : calls) {
      call->cancel(false);
      call->drop();
    }
  }
};

// One call with its handler. A Task has
//   Outcome& outcome(); std::string_view operation(); std::optional<Request> request();  // May throw.
//   boost::asio::awaitable<Result, Executor> run(Context&);
//   void complete(Handler&&, std::exception_ptr);
template <class Task, class Handler>
class AsioRun final : public AsioCall {
 public:
  AsioRun(Engine& engine, Task task, Handler handler)
      : AsioCall(engine),
        task_(std::move(task)),
        handler_(std::move(handler)),
        executor_(boost::asio::get_associated_executor(*handler_)),
        busy_(*executor_),
        living_(boost::asio::use_service<AsioCalls>(asio_context_of(*executor_)).living) {
    const std::lock_guard lock(living_->mutex);
    living_->calls.insert(this);
  }
  ~AsioRun() override {
    const std::lock_guard lock(living_->mutex);
    living_->calls.erase(this);
    drop();
  }

  void begin() {
    auto slot = boost::asio::get_associated_cancellation_slot(*handler_);
    if (slot.is_connected()) {
      auto on_cancel = [weak = std::weak_ptr(self())](boost::asio::cancellation_type type) {
        using boost::asio::cancellation_type;
        const bool stop_work =
            (type & (cancellation_type::terminal | cancellation_type::partial)) != cancellation_type();
        if (const auto call = weak.lock()) call->cancel(stop_work);
      };
      slot.assign(std::move(on_cancel));
    }
    std::optional<Request> request;
    try {
      request = task_.request();
    } catch (...) {  // misuse, for the caller.
      return end({.error = std::current_exception()});
    }
    start(std::move(request), task_.operation(), task_.outcome());
  }

 private:
  using Executor = boost::asio::associated_executor_t<Handler>;

  std::shared_ptr<AsioRun> self() { return std::static_pointer_cast<AsioRun>(shared_from_this()); }

  // From any thread: the context may be destroyed meanwhile.
  template <class Work>
  void post(Work work) {
    const std::lock_guard lock(living_->mutex);
    if (!living_->is_over) boost::asio::post(*executor_, std::move(work));
  }

  void drop() noexcept override {
    handler_.reset();
    busy_.reset();
    executor_.reset();
  }

  void ready() override {
    post([self = self()] {
      if (Context* const context = self->begin_work()) self->run(*context);
    });
  }

  void run(Context& context) {
    using ItsExecutor = typename Awaited<decltype(task_.run(context))>::Executor;
    constexpr bool can_run = std::convertible_to<const Executor&, ItsExecutor>;
    static_assert(can_run,
                  "once: the coroutine runs on the executor of the completion token, which is not of its awaitable's "
                  "type; return a boost::asio::awaitable<T>");
    if constexpr (can_run) {
      boost::asio::co_spawn(
          *executor_,
          [self = self(), &context]() -> boost::asio::awaitable<void, ItsExecutor> {
            std::exception_ptr thrown;
            std::optional<Result> result;
            try {
              result = co_await self->task_.run(context);
            } catch (...) {  // The work's exception: AsyncRun decides about the claim.
              thrown = std::current_exception();
            }
            if (result) {
              self->returned(std::move(*result));
            } else {
              self->threw(std::move(thrown));
            }
          },
          boost::asio::detached);
    }
  }

  void finished(End end) override {
    post([self = self(), end = std::move(end)] {
      boost::asio::get_associated_cancellation_slot(*self->handler_).clear();
      Handler handler = std::move(*self->handler_);
      self->handler_.reset();
      self->busy_.reset();
      self->task_.complete(std::move(handler), end.cancelled ? aborted() : end.error);
    });
  }

  static std::exception_ptr aborted() {
    return std::make_exception_ptr(boost::system::system_error(boost::asio::error::operation_aborted, "once"));
  }

  Task task_;
  std::optional<Handler> handler_ = {};  // Until it is called.
  std::optional<Executor> executor_ = {};
  std::optional<boost::asio::executor_work_guard<Executor>> busy_ = {};
  const std::shared_ptr<AsioCalls::Living> living_;
};

// boost::asio::yield_context: the token of a stackful coroutine, which this call suspends until it completes.
template <class Token>
concept StackfulToken = requires(const Token& token, boost::system::error_code& error) {
  { token[error] } -> std::same_as<Token>;
};

// A Task whose end goes to a variable of a suspended coroutine: Boost 1.81's yield_context cannot take an exception.
template <class Value>
struct SuspendedEnd {
  std::exception_ptr error = {};
  std::optional<Value> value = {};
};
template <class Task, class Value>
class SuspendedTask : public Task {
 public:
  SuspendedTask(Task&& task, SuspendedEnd<Value>& end) : Task(std::move(task)), end_(&end) {}

  template <class Handler>
  void complete(Handler&& handler, std::exception_ptr error) {
    const auto keep = [end = end_, &handler](std::exception_ptr its_error, auto... value) {
      end->error = std::move(its_error);
      (end->value.emplace(std::move(value)), ...);
      std::forward<Handler>(handler)();
    };
    Task::complete(keep, std::move(error));
  }

 private:
  SuspendedEnd<Value>* end_;
};

template <class Task, class Handler>
void start_asio_run(Engine& engine, Task task, Handler handler) {
  std::make_shared<AsioRun<Task, Handler>>(engine, std::move(task), std::move(handler))->begin();
}

template <class Signature, class Token, class Task>
auto initiate_asio_run(std::remove_reference_t<Token>& token, Engine& engine, Task task) {
  return boost::asio::async_initiate<Token, Signature>(
      [](auto handler, Engine* on, Task its_task) { start_asio_run(*on, std::move(its_task), std::move(handler)); },
      token, &engine, std::move(task));
}

// Starts a call that completes with `Signature`: void(std::exception_ptr), or void(std::exception_ptr, Value).
template <class Signature>
struct AsioStart;
template <class... Value>
struct AsioStart<void(std::exception_ptr, Value...)> {
  template <class Token, class Task>
  static auto with(std::remove_reference_t<Token>& token, Engine& engine, Task task) {
    if constexpr (StackfulToken<std::remove_cvref_t<Token>>) {
      using Kept = std::tuple_element_t<0, std::tuple<Value..., bool>>;
      SuspendedEnd<Kept> end;
      initiate_asio_run<void(), Token>(token, engine, SuspendedTask<Task, Kept>(std::move(task), end));
      if (end.error) std::rethrow_exception(std::move(end.error));
      if constexpr (sizeof...(Value) > 0) return *std::move(end.value);
    } else {
      return initiate_asio_run<void(std::exception_ptr, Value...), Token>(token, engine, std::move(task));
    }
  }
  template <class Token>
  static auto refused(std::remove_reference_t<Token>& token) {
    if constexpr (StackfulToken<std::remove_cvref_t<Token>>) {
      return std::get<0>(std::tuple<Value..., bool>());
    } else {
      return detail::refused<void(std::exception_ptr, Value...)>(token);
    }
  }
};

// The write of a step's result, awaited. Its thread is the store's, and it may come after the context was destroyed.
template <class Executor>
boost::asio::awaitable<Finish, Executor> async_keep_step(Claim& claim, std::string name, std::string result) {
  const boost::asio::use_awaitable_t<Executor> token;
  co_return co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<Executor>,
                                                 void(std::exception_ptr, Finish)>(
      [](auto handler, Claim* on, std::string its_name, std::string its_result) {
        using Delivery = AsioHandlerDelivery<decltype(handler), std::exception_ptr, Finish>;
        const auto delivery = std::make_shared<Delivery>(std::move(handler));
        try {
          on->add_step(std::move(its_name), std::move(its_result),
                       [delivery](Finish finish) { delivery->deliver(nullptr, std::move(finish)); });
        } catch (const Exception&) {  // misuse: for the coroutine, not for whoever runs the loop.
          delivery->deliver(std::current_exception(), {});
        }
      },
      token, &claim, std::move(name), std::move(result));
}

template <class Step>
using StepResult = Awaited<std::remove_cvref_t<std::invoke_result_t<Step&>>>;

// As run_step().
template <class Step>
auto run_async_step(Claim* claim, std::string name, Step step)
    -> boost::asio::awaitable<typename StepResult<Step>::Value, typename StepResult<Step>::Executor> {
  using Given = StepResult<Step>;
  using Value = typename Given::Value;
  using Executor = typename Given::Executor;
  std::optional<std::string> kept = finished_step(claim, name);
  if constexpr (std::is_void_v<Value>) {
    if (kept) co_return;
    if constexpr (Given::is_awaitable) {
      co_await step();
    } else {
      step();
    }
    if (claim == nullptr) co_return;
    const Finish finish = co_await async_keep_step<Executor>(*claim, name, std::string());
    check_step(*claim, name, finish);
  } else {
    if (kept) co_return Codec<Value>::decode(*kept);
    std::optional<Value> value;
    if constexpr (Given::is_awaitable) {
      value.emplace(co_await step());
    } else {
      value.emplace(step());
    }
    if (claim != nullptr) {
      std::string encoded = Codec<Value>::encode(*value);
      const Finish finish = co_await async_keep_step<Executor>(*claim, name, std::move(encoded));
      check_step(*claim, name, finish);
    }
    co_return *std::move(value);
  }
}

template <class Step>
auto async_step(Claim* claim, std::string name, Step step) {
  static_assert(std::invocable<Step&>, "once: a step must be callable as step()");
  if constexpr (std::invocable<Step&>) {
    using Value = typename StepResult<Step>::Value;
    constexpr bool can_be_kept = std::is_void_v<Value> || Codable<Value>;
    static_assert(can_be_kept,
                  "once: no once::Codec for the result of the step; return a string or void, include "
                  "<once/codec_json.hpp>, or specialise once::Codec");
    if constexpr (can_be_kept) {
      return run_async_step<Step>(claim, std::move(name), std::move(step));
    } else {
      return boost::asio::awaitable<Value>();
    }
  } else {
    return boost::asio::awaitable<void>();
  }
}

// async_run().
template <class Work>
class WorkTask {
  static constexpr auto call(Work& work, Context& context) {
    if constexpr (std::is_invocable_v<Work&, Context&>) {
      return work(context);
    } else {
      return work();
    }
  }
  using Given = Awaited<std::remove_cvref_t<decltype(call(std::declval<Work&>(), std::declval<Context&>()))>>;

 public:
  WorkTask(Request request, Work work) : request_(std::move(request)), work_(std::move(work)) {}

  Outcome& outcome() { return outcome_; }
  static std::string_view operation() { return {}; }
  std::optional<Request> request() { return std::move(request_); }

  boost::asio::awaitable<Result, typename Given::Executor> run(Context& context) {
    if constexpr (!Given::is_awaitable) {
      Result result;
      call_work(work_, context, result, encode_failed_);
      co_return result;
    } else if constexpr (std::is_void_v<typename Given::Value>) {
      co_await call(work_, context);
      co_return Result();
    } else if constexpr (std::is_same_v<typename Given::Value, Result>) {
      co_return co_await call(work_, context);
    } else {
      static_assert(Codable<typename Given::Value>,
                    "once: no once::Codec for the result of the work; return a string, void or a Result, include "
                    "<once/codec_json.hpp>, or specialise once::Codec");
      Result result;
      encode_or_drop<typename Given::Value>(co_await call(work_, context), result, encode_failed_);
      co_return result;
    }
  }

  template <class Handler>
  void complete(Handler&& handler, std::exception_ptr error) {
    std::forward<Handler>(handler)(error ? std::move(error) : encode_failed_, std::move(outcome_));
  }

 private:
  Request request_;
  Work work_;
  Outcome outcome_ = {};
  std::exception_ptr encode_failed_ = {};
};

}  // namespace detail

// Engine::run() with a completion token: void(std::exception_ptr, once::Outcome). The exceptions are those of
// Engine::run(), and boost::system::system_error for a cancelled call: see the top of this file.
template <class Work, class Token = boost::asio::use_awaitable_t<>>
auto async_run(Engine& engine, Request request, Work work, Token&& token = Token()) {
  using Start = detail::AsioStart<void(std::exception_ptr, Outcome)>;
  constexpr bool is_work = std::invocable<Work&, Context&> || std::invocable<Work&>;
  static_assert(is_work, "once: the work must be callable as work(once::Context&) or work()");
  if constexpr (is_work) {
    return Start::template with<Token>(token, engine, detail::WorkTask<Work>(std::move(request), std::move(work)));
  } else {
    return Start::template refused<Token>(token);
  }
}

// Context::step() for work that is a coroutine: awaits the step, and the write of its result, and blocks no thread.
//
//   const std::string id = co_await once::async_step(context, "charge", [&]() -> boost::asio::awaitable<std::string> {
//     co_return co_await charge_card(order);
//   });
//
// `step` returns void or a type with a Codec, or a boost::asio::awaitable of it. It runs on the coroutine's executor,
// unless an attempt has finished the step. Throws what it throws, and ClaimLost if the claim was lost before it or
// after it; Exception(misuse) as Claim::add_step(). The context must live until the awaitable is done. If the
// executor's context is destroyed meanwhile, the coroutine is destroyed at its co_await, and the claim lapses with the
// step that was being written.
template <class Step>
auto async_step(Context& context, std::string name, Step step) {
  return detail::async_step<Step>(detail::AsyncRun::claim_of(context), std::move(name), std::move(step));
}

}  // namespace once
