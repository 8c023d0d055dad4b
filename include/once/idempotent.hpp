// once::idempotent(): a callable made idempotent. The result has the callable's signature.
//
//   once::Engine engine({.store = once::open_store("sqlite:payments.db")});
//   auto charge = once::idempotent(engine, {.name = "charge", .key = "order_id"}, charge_card);
//   Receipt receipt = charge(order);  // charge_card(order) runs once, everybody gets its receipt
//
// Who calls while it runs waits for the result, 10 s at most, then it is a Conflict (Policy::on_conflict, wait). A call
// without a key, or one in which `fingerprint` finds nothing to compare, is refused (Policy::on_missing_key).
//
// The key comes from the arguments, in one of three ways:
//
//   idempotent(engine, {.name = "charge", .key = "order_id"}, fn)     JMESPath over argument 0, as JSON
//   idempotent<1>(engine, {.name = "charge", .key = "order_id"}, fn)  ... over argument 1
//   idempotent(engine, {.name = "charge"}, fn, &Order::id)            a function of the arguments
//   idempotent(engine, {.name = "charge"}, fn)                        the digest of all arguments
//
// fn is a function or an object with one operator(), not a template. Its first parameter may be once::Context&, which
// callers do not pass and which does not count as an argument. Its result is void, a once::Result, or any type that
// once::Codec can encode and decode (include <once/codec_json.hpp> for those that nlohmann::json converts).
// Arguments are encoded by once::Codec as well, only those that the key is taken from; strings (std::string,
// std::string_view, const char*) are taken as they are: for an expression they must hold JSON.
//
// A call throws what fn throws, the exceptions of once/engine/exceptions.hpp where there is no result to return, and
// Exception(misuse) for arguments that no key can be taken from, and for fn calling for its own key on its thread. fn
// did not run then. A replay returns the stored
// result and does nothing else: what fn would have changed through its arguments is not changed again.
//
// Threads: the object may be called from many at once if fn may. The engine must outlive it.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <once/codec.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>

namespace once {

// What is made idempotent, and what tells one call from another.
struct Operation {
  // Names the operation, so that "charge" and "refund" of one order are kept apart: its keys live in the scope
  // EngineOptions::scope + "/" + name. Without '/', so that no two pairs give the same scope. It is part of every
  // stored key: do not rename it while records live.
  std::string name;

  // JMESPath that selects the key from the argument. Empty: all arguments are the key, or the key function gives it.
  // "@" is the whole argument in canonical JSON, so that blanks and the order of names do not count. A name that the
  // argument can never have is refused when the object is made, if its codec knows the names (ONCE_JSON, Codec::names).
  std::string key;

  // JMESPath that selects what repeated calls must have in common with the first; otherwise they get Mismatch. Empty:
  // nothing is compared.
  std::string fingerprint;

  // The whole scope, in place of the engine's scope and the name; for sharing keys with other programs. Set this or
  // the name.
  std::string scope;

  std::optional<Policy> policy;  // Empty: the engine's.
};

// An Outcome with the result as fn returns it.
template <class R>
struct OutcomeOf : Outcome {
  // Set if has_result(), but for a replay of a result that was too large to keep: Placement::dropped.
  std::optional<R> answer;

  // The result. Throws like Outcome::value(). Once only: it is moved out.
  R value() &&;
};

template <>
struct OutcomeOf<void> : Outcome {
  void value() const {
    if (!has_result()) static_cast<void>(Outcome::value());
  }
};

namespace detail {

// One argument as text, and whether that is JSON by its type.
struct ArgumentText {
  std::string text;
  bool json = false;
};

// Where keys come from, without the types: the part of idempotent() that is compiled once.
class OperationKeys {
 public:
  enum class Source : std::uint8_t { expression, function, arguments };

  // What is known about the arguments at compile time, for errors that come when the object is made.
  struct Shape {
    std::size_t arguments = 0;
    std::size_t argument = 0;                // The one that expressions read.
    std::string_view argument_content_type;  // Of its codec.
    std::string_view argument_names;         // What its codec says.
    bool argument_encodable = false;
    bool all_encodable = false;
    bool has_function = false;
  };

  OperationKeys(const Engine& engine, Operation operation, const Shape& shape);  // Throws Exception(misuse).
  OperationKeys(OperationKeys&&) noexcept;
  ~OperationKeys();

  [[nodiscard]] Source source() const noexcept { return source_; }
  [[nodiscard]] bool compares() const noexcept { return compares_; }
  [[nodiscard]] const std::string& scope() const noexcept;

  // Empty: there is no key, and policy says to run without one. Each throws Exception(misuse), also for a missing key
  // that policy refuses.
  [[nodiscard]] std::optional<Request> from_expression(std::string_view json) const;
  [[nodiscard]] std::optional<Request> from_name(const std::optional<std::string>& name, std::string_view json) const;
  [[nodiscard]] std::optional<Request> from_arguments(std::span<const ArgumentText> arguments) const;

  // Throws Exception(corrupt) if a stored result is of another content type than expected; empty ones fit all.
  void check_content_type(const Result& result, std::string_view expected) const;

 private:
  struct Parts;
  [[nodiscard]] std::optional<Request> missing() const;
  [[nodiscard]] Request request(Key key, Fingerprint fingerprint) const;

  std::unique_ptr<const Parts> parts_;
  Source source_ = Source::arguments;
  bool compares_ = false;
};

template <class... A>
struct Types {};

// R(A...) of a callable with one signature. `context`: the first parameter is Context&, which A... leaves out.
template <class R, class... A>
struct Call {
  using Result = R;
  using Arguments = Types<A...>;
  static constexpr bool context = false;
};
template <class R, class... A>
struct Call<R, Context&, A...> {
  using Result = R;
  using Arguments = Types<A...>;
  static constexpr bool context = true;
};

template <class F>
struct CallOf;
template <class R, class... A>
struct CallOf<R (*)(A...)> : Call<R, A...> {};
template <class R, class... A>
struct CallOf<R (*)(A...) noexcept> : Call<R, A...> {};

template <class M>
struct CallOfMember;
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...)> : Call<R, A...> {};
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...) const> : Call<R, A...> {};
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...) noexcept> : Call<R, A...> {};
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...) const noexcept> : Call<R, A...> {};
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...)&> : Call<R, A...> {};
template <class C, class R, class... A>
struct CallOfMember<R (C::*)(A...) const&> : Call<R, A...> {};

template <class F>
  requires requires { &F::operator(); }
struct CallOf<F> : CallOfMember<decltype(&F::operator())> {};

template <class F>
concept HasSignature = requires { typename CallOf<F>::Result; };

template <class T>
concept StringLike = std::same_as<T, std::string> || std::same_as<T, std::string_view> ||
                     std::is_same_v<std::decay_t<T>, const char*> || std::is_same_v<std::decay_t<T>, char*>;

template <class T>
concept KeyMaterial = StringLike<T> || Encodable<T>;

template <class T>
ArgumentText argument_text(const T& value) {
  if constexpr (std::is_pointer_v<std::decay_t<T>> && StringLike<T>) {
    return {value == nullptr ? std::string() : std::string(value), false};
  } else if constexpr (StringLike<T>) {
    return {std::string(value), false};
  } else {
    return {std::string(Codec<T>::encode(value)), Codec<T>::content_type == "application/json"};
  }
}

template <class T>
constexpr std::string_view content_type_of() {
  if constexpr (Encodable<T> && !StringLike<T>) {
    return Codec<T>::content_type;
  } else {
    return {};
  }
}

template <class R>
constexpr bool result_is_codable = std::is_void_v<R> || std::is_same_v<R, Result> || Codable<R>;

// What a key function may return: text, an integer, or an optional of either.
template <class T>
concept KeyName = std::convertible_to<const T&, std::string_view> || (Number<T> && std::integral<T>);
template <class T>
struct IsKey : std::bool_constant<KeyName<T>> {};
template <class T>
struct IsKey<std::optional<T>> : std::bool_constant<KeyName<T>> {};

template <class T>
std::optional<std::string> key_name(const T& value) {
  if constexpr (std::convertible_to<const T&, std::string_view>) {
    return std::string(std::string_view(value));
  } else if constexpr (Number<T>) {
    return Codec<T>::encode(value);
  } else {
    return value ? key_name(*value) : std::nullopt;
  }
}

struct NoKeyFunction {};

template <std::size_t Argument, class Fn, class KeyFn, bool TakesContext, class R, class ArgumentTypes>
class Idempotent;

template <std::size_t Argument, class Fn, class KeyFn, bool TakesContext, class R, class... Args>
class Idempotent<Argument, Fn, KeyFn, TakesContext, R, Types<Args...>> {
  static constexpr bool has_key_function = !std::is_same_v<KeyFn, NoKeyFunction>;
  template <std::size_t I>
  using Plain = std::remove_cvref_t<std::tuple_element_t<I, std::tuple<Args...>>>;

 public:
  Idempotent(Engine& engine, Operation operation, Fn fn, KeyFn key_fn)
      : engine_(&engine),
        keys_(std::make_shared<const OperationKeys>(engine, std::move(operation), shape())),
        fn_(std::move(fn)),
        key_fn_(std::move(key_fn)) {}

  // Runs fn, or gives the result that is there. See the top of this file.
  R operator()(Args... args) const { return call(make_request(args...), args...).value(); }

  // The same as a value: what the other form throws for want of a result is the outcome's kind here, also for
  // arguments that no key can be taken from (Kind::error, misuse) and stored results that cannot be decoded
  // (Kind::error, corrupt). What fn throws still passes through.
  OutcomeOf<R> outcome(Args... args) const {
    std::optional<Request> request;
    try {
      request = make_request(args...);
    } catch (const Exception& error) {
      return failure(error);
    }
    return call(std::move(request), args...);
  }

 private:
  static constexpr OperationKeys::Shape shape() {
    OperationKeys::Shape shape{.arguments = sizeof...(Args),
                               .argument = Argument,
                               .argument_content_type = {},
                               .argument_names = {},
                               .argument_encodable = false,
                               .all_encodable = (KeyMaterial<std::remove_cvref_t<Args>> && ...),
                               .has_function = has_key_function};
    if constexpr (Argument < sizeof...(Args)) {
      shape.argument_encodable = KeyMaterial<Plain<Argument>>;
      shape.argument_content_type = content_type_of<Plain<Argument>>();
      if constexpr (requires { Codec<Plain<Argument>>::names; }) shape.argument_names = Codec<Plain<Argument>>::names;
    }
    return shape;
  }

  // The text of the argument that the expressions read.
  static auto selected_text([[maybe_unused]] const std::remove_cvref_t<Args>&... args) {
    if constexpr (Argument < sizeof...(Args)) {
      using T = Plain<Argument>;
      const T& value = std::get<Argument>(std::tie(args...));
      if constexpr (std::same_as<T, std::string>) {
        return std::string_view(value);
      } else if constexpr (KeyMaterial<T>) {
        return argument_text(value).text;
      } else {
        return std::string_view();  // The constructor of OperationKeys has refused expressions.
      }
    } else {
      return std::string_view();  // As above.
    }
  }

  std::optional<Request> make_request(const std::remove_cvref_t<Args>&... args) const {
    if constexpr (has_key_function) {
      auto name = key_name(std::invoke(key_fn_, args...));
      if (keys_->compares()) return keys_->from_name(name, selected_text(args...));
      return keys_->from_name(name, {});
    } else {
      if (keys_->source() == OperationKeys::Source::expression) return keys_->from_expression(selected_text(args...));
      if constexpr ((KeyMaterial<std::remove_cvref_t<Args>> && ...)) {
        const std::array<ArgumentText, sizeof...(Args)> texts{argument_text(args)...};
        return keys_->from_arguments(texts);
      }
      return std::nullopt;  // The constructor of OperationKeys has refused it.
    }
  }

  R invoke(Context& context, Args&... args) const {
    if constexpr (TakesContext) {
      return fn_(context, static_cast<Args&&>(args)...);
    } else {
      return fn_(static_cast<Args&&>(args)...);
    }
  }

  OutcomeOf<R> call(std::optional<Request>&& request, Args&... args) const {
    OutcomeOf<R> outcome;
    const auto run = [&](auto&& work) {
      if (request) {
        RunInto::run(*engine_, outcome, std::move(*request), work);
      } else {
        RunInto::run_unprotected(*engine_, outcome, keys_->scope(), work);
      }
    };
    if constexpr (std::is_void_v<R>) {
      run([&](Context& context) { invoke(context, args...); });
    } else {
      std::exception_ptr encode_failed;
      run([&](Context& context) -> Result {
        outcome.answer.emplace(invoke(context, args...));
        if (!context.is_protected()) return {};  // Nothing will be kept.
        if constexpr (std::is_same_v<R, Result>) {
          return *outcome.answer;
        } else {
          return encode_or_drop<R>(*outcome.answer, encode_failed);
        }
      });
      if (outcome.kind == Outcome::Kind::replayed || outcome.kind == Outcome::Kind::superseded) {
        outcome.answer.reset();
        if (outcome.result.placement != Placement::dropped) decode(outcome);
      } else if (!outcome.has_result()) {
        outcome.answer.reset();
      } else if (encode_failed) {
        std::rethrow_exception(encode_failed);
      }
    }
    return outcome;
  }

  void decode(OutcomeOf<R>& outcome) const {
    if constexpr (std::is_same_v<R, Result>) {
      outcome.answer = outcome.result;
    } else {
      try {
        keys_->check_content_type(outcome.result, Codec<R>::content_type);
        outcome.answer.emplace(Codec<R>::decode(outcome.result.bytes));
      } catch (const Exception& error) {
        outcome.kind = Outcome::Kind::error;
        outcome.error = error.error();
      }
    }
  }

  static OutcomeOf<R> failure(const Exception& error) {
    OutcomeOf<R> outcome;
    outcome.kind = Outcome::Kind::error;
    outcome.error = error.error();
    return outcome;
  }

  Engine* engine_;
  std::shared_ptr<const OperationKeys> keys_;
  mutable Fn fn_;  // Called through const, as std::function does.
  KeyFn key_fn_;
};

template <std::size_t Argument, class Fn, class KeyFn>
auto make_idempotent(Engine& engine, Operation operation, Fn&& fn, KeyFn&& key_fn) {
  using Function = std::decay_t<Fn>;
  using Key = std::decay_t<KeyFn>;
  static_assert(HasSignature<Function>,
                "once: idempotent() needs a callable with one signature; wrap an overloaded or generic one, or a "
                "member function, in a lambda with plain parameter types");
  if constexpr (HasSignature<Function>) {
    using Call = CallOf<Function>;
    using R = std::remove_cv_t<typename Call::Result>;
    using Arguments = typename Call::Arguments;
    constexpr bool good = []<class... A>(Types<A...>) {
      constexpr std::size_t count = sizeof...(A);
      static_assert(Argument == 0 || Argument < count,
                    "once: idempotent<N>: the callable has no argument N; they count from 0, without once::Context&");
      static_assert(!std::is_reference_v<R>,
                    "once: the result must not be a reference: a replay has no object to refer to; return a value");
      static_assert(std::is_reference_v<R> || result_is_codable<R>,
                    "once: no once::Codec for the result; return a string, a number or void, include "
                    "<once/codec_json.hpp>, or specialise once::Codec");
      if constexpr (std::is_same_v<Key, NoKeyFunction>) {
        if constexpr (Argument < count) {
          static_assert(KeyMaterial<std::remove_cvref_t<std::tuple_element_t<Argument, std::tuple<A...>>>>,
                        "once: no once::Codec for the argument that the key is taken from; include "
                        "<once/codec_json.hpp>, specialise once::Codec, choose another with idempotent<N>, or give a "
                        "key function");
        }
        return !std::is_reference_v<R> && result_is_codable<R>;
      } else {
        constexpr bool callable = std::is_invocable_v<const Key&, const std::remove_cvref_t<A>&...>;
        static_assert(callable, "once: the key function must be callable with the callable's arguments, as constants");
        if constexpr (callable) {
          static_assert(
              IsKey<std::remove_cvref_t<std::invoke_result_t<const Key&, const std::remove_cvref_t<A>&...>>>::value,
              "once: the key function must return a string, an integer, or a std::optional of one of them");
        }
        return callable && !std::is_reference_v<R> && result_is_codable<R>;
      }
    }(Arguments{});
    if constexpr (good) {
      return Idempotent<Argument, Function, Key, Call::context, R, Arguments>(
          engine, std::move(operation), std::forward<Fn>(fn), std::forward<KeyFn>(key_fn));
    }
  }
}

}  // namespace detail

template <class R>
R OutcomeOf<R>::value() && {
  if (!answer) static_cast<void>(Outcome::value());
  return std::move(*answer);
}

// The key by JMESPath over argument `Argument`, or by the digest of all arguments: see the top of this file. Throws
// Exception(misuse) for an operation that has neither name nor scope, an expression that cannot be compiled, and
// arguments that the key cannot be taken from.
//
// The digest is the SHA-256 of the one argument's text, or of several arguments' texts with their lengths; JSON in
// its canonical form (RFC 8785), strings as they are. Without arguments there is one key altogether.
template <std::size_t Argument = 0, class Fn>
auto idempotent(Engine& engine, Operation operation, Fn&& fn) {
  return detail::make_idempotent<Argument>(engine, std::move(operation), std::forward<Fn>(fn), detail::NoKeyFunction{});
}

// The key by a function of the arguments: std::invoke(key_fn, args...), so that a member pointer will do. It returns
// the key's name (text or an integer) or an optional of it; empty is no key. Operation::key stays empty;
// Operation::fingerprint reads argument `Argument`.
template <std::size_t Argument = 0, class Fn, class KeyFn>
auto idempotent(Engine& engine, Operation operation, Fn&& fn, KeyFn&& key_fn) {
  return detail::make_idempotent<Argument>(engine, std::move(operation), std::forward<Fn>(fn),
                                           std::forward<KeyFn>(key_fn));
}

}  // namespace once
