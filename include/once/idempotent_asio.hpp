// Makes a coroutine idempotent, for programs on Boost.Asio: include this, and pass a coroutine to idempotent().
//
//   auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id},
//                                  [&](const Order& order) -> boost::asio::awaitable<Receipt> { ... });
//   Receipt receipt = co_await charge(order);
//
// Its type is once::Idempotent<boost::asio::awaitable<Receipt>(const Order&)>. A call takes any completion token after
// the arguments: charge(order, boost::asio::use_future). Where it runs, and what cancelling does: once/engine/asio.hpp.
// Arguments are copied or moved into the call, except non-const references. What those refer to, and the engine, must
// live until the call completes; the object itself need not.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <once/engine/asio.hpp>
#include <once/idempotent.hpp>

namespace once {

namespace detail {

// Shared by the copies and calls of an asynchronous operation.
template <class R, class E, std::size_t Argument, class... Args>
struct AsioOperation {
  using Awaitable = boost::asio::awaitable<R, E>;

  template <class Fn>
  AsioOperation(Engine& its_engine, Operation<Awaitable(Args...), Argument>&& operation, Fn&& its_fn)
      : engine(its_engine),
        keys(its_engine, std::move(operation)),
        fn([fn = std::decay_t<Fn>(std::forward<Fn>(its_fn))](Context& context, Args&... args) mutable -> Awaitable {
          return call_with<Awaitable, Args...>(fn, context, args...);
        }) {}

  Engine& engine;
  CallKeys<Argument, Args...> keys;
  Callback<Awaitable(Context&, Args&...)> fn;
};

// One call. It completes with an OutcomeOf<R> if `as_outcome`, otherwise with an R.
template <bool as_outcome, class R, class E, std::size_t Argument, class... Args>
class CallTask {
  template <class T>
  using Kept = std::conditional_t<std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>, T,
                                  std::remove_cvref_t<T>>;

 public:
  template <class... A>
  explicit CallTask(std::shared_ptr<AsioOperation<R, E, Argument, Args...>> operation, A&&... args)
      : operation_(std::move(operation)), args_(std::forward<A>(args)...) {}

  Outcome& outcome() { return outcome_; }
  [[nodiscard]] std::string_view operation() const { return operation_->keys.operation().scope(); }

  std::optional<Request> request() {
    try {
      return std::apply([&](const auto&... args) { return operation_->keys.request(args...); }, args_);
    } catch (const Exception& error) {
      if (as_outcome) refused_ = error.error();
      throw;
    }
  }

  boost::asio::awaitable<Result, E> run(Context& context) {
    auto work = std::apply([&](auto&... args) { return operation_->fn(context, args...); }, args_);
    if constexpr (std::is_void_v<R>) {
      co_await std::move(work);
      co_return Result();
    } else {
      outcome_.answer.emplace(co_await std::move(work));
      Result kept;
      keep_answer(outcome_, context, kept, encode_failed_);
      co_return kept;
    }
  }

  template <class Handler>
  void complete(Handler&& handler, std::exception_ptr error) {
    if (refused_) {
      outcome_.kind = Outcome::Kind::error;
      outcome_.error = *std::move(refused_);
      error = nullptr;
    } else if constexpr (!std::is_void_v<R>) {
      if (!error) error = thrown_by([&] { settle_answer(operation_->keys.operation(), outcome_, encode_failed_); });
    }
    if constexpr (as_outcome) {
      std::forward<Handler>(handler)(std::move(error), std::move(outcome_));
    } else if constexpr (std::is_void_v<R>) {
      if (!error) error = thrown_by([&] { outcome_.value(); });
      std::forward<Handler>(handler)(std::move(error));
    } else {
      std::optional<R> answer;
      if (!error) error = thrown_by([&] { answer.emplace(std::move(outcome_).value()); });
      std::forward<Handler>(handler)(std::move(error), answer ? *std::move(answer) : R());
    }
  }

 private:
  template <class F>
  static std::exception_ptr thrown_by(F&& f) {
    try {
      std::forward<F>(f)();
      return nullptr;
    } catch (...) {  // Passed to the caller.
      return std::current_exception();
    }
  }

  std::shared_ptr<AsioOperation<R, E, Argument, Args...>> operation_;
  std::tuple<Kept<Args>...> args_;
  OutcomeOf<R> outcome_ = {};
  std::exception_ptr encode_failed_ = {};
  std::optional<Error> refused_ = {};  // Set: no key could be taken.
};

template <class R>
struct AnswerSignature {
  static_assert(std::is_default_constructible_v<R>,
                "once: Asio gives an exception together with an empty result, and this one cannot be empty: call "
                "outcome() in place of operator()");
  using type = void(std::exception_ptr, R);
};
template <>
struct AnswerSignature<void> {
  using type = void(std::exception_ptr);
};

}  // namespace detail

template <class R, class E, class... Args, std::size_t Argument>
class Idempotent<boost::asio::awaitable<R, E>(Args...), Argument> {
 public:
  // Throws as the other Idempotent does. fn is called on the executor of each call. It may be called again, for another
  // key, while earlier coroutines run.
  template <class Fn>
  Idempotent(Engine& engine, Operation<boost::asio::awaitable<R, E>(Args...), Argument> operation, Fn&& fn)
      : made_(std::make_shared<Made>(engine, std::move(operation), std::forward<Fn>(fn))) {
    static_assert(detail::good_result<R>());
  }

  // Completes with void(std::exception_ptr, R): the result or exception of the other Idempotent, or
  // boost::system::system_error (operation_aborted) if the call was cancelled before its work began.
  template <class Token = boost::asio::use_awaitable_t<E>>
  auto operator()(Args... args, Token&& token = Token()) const {
    return initiate<false, typename detail::AnswerSignature<R>::type, Token>(token, args...);
  }

  // Completes with void(std::exception_ptr, OutcomeOf<R>): see the other Idempotent.
  template <class Token = boost::asio::use_awaitable_t<E>>
  auto outcome(Args... args, Token&& token = Token()) const {
    return initiate<true, void(std::exception_ptr, OutcomeOf<R>), Token>(token, args...);
  }

 private:
  using Made = detail::AsioOperation<R, E, Argument, Args...>;

  template <bool as_outcome, class Signature, class Token>
  auto initiate(std::remove_reference_t<Token>& token, Args&... args) const {
    using Task = detail::CallTask<as_outcome, R, E, Argument, Args...>;
    return detail::AsioStart<Signature>::template with<Token>(token, made_->engine,
                                                              Task(made_, static_cast<Args&&>(args)...));
  }

  std::shared_ptr<Made> made_;
};

}  // namespace once
