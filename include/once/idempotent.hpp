// once::idempotent(): a callable made idempotent. The result has the callable's signature.
//
//   once::Engine engine({.store = once::open_store("sqlite:payments.db")});
//   auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id}, charge_card);
//   Receipt receipt = charge(order);  // charge_card(order) runs once, every caller gets its receipt
//
// Its type has a name, for members and parameters: once::Idempotent<Receipt(const Order&)>.
//
// A call during another waits up to 10 s for its result, then throws Conflict (Policy::on_conflict, wait). A call
// without a key is refused, and so is one in which `fingerprint` selects nothing (Policy::on_missing_key).
//
// The key comes from the arguments:
//
//   {.name = "charge", .key = &Order::id}                              a member: a typo does not compile
//   {.name = "charge", .key = once::key(&Order::tenant, &Order::id)}   several members
//   {.name = "charge", .key = [](const Order& o) { return o.id; }}     a function of all arguments
//   {.name = "charge", .key = "order.id"}                              JMESPath over argument 0, as JSON
//   {.name = "charge"}                                                 the digest of all arguments
//
// idempotent<1>(...) reads expressions from argument 1. fn is a function, or an object with one operator() that is not
// a template. Its first parameter may be once::Context&: callers do not pass it, and it does not count as an argument.
//
// The result is void, a once::Result, or any type with a once::Codec. <once/codec_json.hpp> has one for all types that
// nlohmann::json converts. It may also be a boost::asio::awaitable of these: then the call is asynchronous, see
// <once/idempotent_asio.hpp>. Arguments that the key is taken from are encoded by once::Codec too. Strings
// (std::string, std::string_view, const char*) are taken as they are: for an expression they must contain JSON.
//
// A call throws
// - what fn throws,
// - the exceptions of once/engine/exceptions.hpp if there is no result,
// - Exception(misuse), without running fn, if no key can be taken from the arguments, or if fn calls its own key on its
//   own thread.
//
// A replay only returns the stored result. It does not repeat changes that fn made through its arguments.
//
// Threads: the object may be called from several at once if fn may. The engine must outlive it.
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
#include <vector>

#include <once/codec.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>

namespace once {

// An Outcome with the result in fn's own type.
template <class R>
struct OutcomeOf : Outcome {
  // Set if has_result(), except for a replay of a result that was too large to keep (Placement::dropped).
  std::optional<R> answer = {};

  // Moves the result out, so call it once. Throws like Outcome::value().
  R value() &&;
};

// The same for work without a result.
template <>
struct OutcomeOf<void> : Outcome {
  // Throws like Outcome::value() if has_result() is false.
  void value() const {
    if (!has_result()) static_cast<void>(Outcome::value());
  }
};

namespace detail {

// One argument as text, and whether that is JSON by its type.
struct ArgumentText {
  std::string text = {};
  bool json = false;
};

// Where keys come from: the part of idempotent() that does not depend on types, and is compiled once.
class OperationKeys {
 public:
  enum class Source : std::uint8_t { expression, function, arguments };

  // An operation's settings, and what is known about its arguments at compile time.
  struct Shape {
    std::string name = {};
    std::string scope = {};
    std::string fingerprint = {};
    bool allow_null_parts = false;
    std::vector<std::string> input_without = {};
    Policy policy = {};
    Source source = Source::arguments;
    std::string expression = {};

    std::size_t arguments = 0;
    std::size_t argument = 0;                     // The one that expressions read.
    std::string_view argument_content_type = {};  // Of its codec.
    std::string_view argument_names = {};         // Codec::names.
    bool argument_encodable = false;
  };

  OperationKeys(const Engine& engine, Shape shape);  // Throws Exception(misuse).
  OperationKeys(OperationKeys&&) noexcept;
  ~OperationKeys();

  [[nodiscard]] Source source() const noexcept { return source_; }
  [[nodiscard]] bool compares() const noexcept { return compares_; }
  [[nodiscard]] bool keeps_input() const noexcept { return keeps_input_; }
  [[nodiscard]] const std::string& scope() const noexcept;

  // Empty: there is no key, and the policy says to run without one. Each throws Exception(misuse), also for a missing
  // key that the policy refuses.
  [[nodiscard]] std::optional<Request> from_expression(std::string_view json) const;
  [[nodiscard]] std::optional<Request> from_name(const std::optional<std::string>& name, std::string_view json) const;
  [[nodiscard]] std::optional<Request> from_arguments(std::span<const ArgumentText> arguments) const;

  // Request::input of a call with these arguments.
  [[nodiscard]] InputPtr input(std::span<const ArgumentText> arguments) const;

  // Throws Exception(corrupt) if a stored result has another content type than expected. An empty one matches all.
  void check_content_type(const Result& result, std::string_view expected) const;

 private:
  struct Parts;
  [[nodiscard]] std::optional<Request> missing() const;
  [[nodiscard]] Request request(Key key, Fingerprint fingerprint, std::string label) const;

  std::unique_ptr<const Parts> parts_;
  Source source_ = Source::arguments;
  bool compares_ = false;
  bool keeps_input_ = false;
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

// "acme/17": '/' and '%' within a part become %2F and %25, so that two different lists of parts never give one key.
// Empty if a part is empty.
std::optional<std::string> join_key(std::span<const std::optional<std::string>> parts);

// The result of once::key().
template <class... Parts>
struct KeyParts {
  std::tuple<Parts...> parts = {};
};

// One part of the key: a member of the one argument that has it, or a function of all arguments.
template <class Part, class... A>
std::optional<std::string> key_part(const Part& part, const A&... args) {
  const auto name_of = [](const auto& value) {
    constexpr bool good = IsKey<std::remove_cvref_t<decltype(value)>>::value;
    static_assert(good, "once: the key must be a string, an integer, or a std::optional of one of them");
    if constexpr (good) {
      return key_name(value);
    } else {
      return std::optional<std::string>();
    }
  };
  if constexpr (std::is_member_pointer_v<Part>) {
    constexpr std::size_t owners = (std::size_t{std::is_invocable_v<const Part&, const A&>} + ... + 0);
    static_assert(owners > 0, "once: no argument has the member that the key is taken from");
    static_assert(
        owners < 2,
        "once: several arguments have the member that the key is taken from; give a function of the arguments");
    std::optional<std::string> name;
    const auto look = [&]<class T>(const T& argument) {
      if constexpr (std::is_invocable_v<const Part&, const T&>) name = name_of(std::invoke(part, argument));
    };
    (look(args), ...);
    return name;
  } else {
    constexpr bool callable = std::is_invocable_v<const Part&, const A&...>;
    static_assert(callable, "once: the key function must be callable with the callable's arguments, as constants");
    if constexpr (callable) {
      return name_of(std::invoke(part, args...));
    } else {
      return std::nullopt;
    }
  }
}

// Operation::key: where the key of a call with these arguments comes from.
template <std::size_t Argument, class... Args>
class KeyOf {
 public:
  using Function = std::function<std::optional<std::string>(const std::remove_cvref_t<Args>&...)>;

  // All arguments.
  KeyOf() {
    static_assert((KeyMaterial<std::remove_cvref_t<Args>> && ...),
                  "once: without a key all arguments are the key, but one has no once::Codec; set Operation::key, "
                  "include <once/codec_json.hpp>, or specialise once::Codec");
  }

  // JMESPath.
  template <class T>
    requires std::convertible_to<const T&, std::string_view>
  KeyOf(const T& text) : source(OperationKeys::Source::expression), expression(std::string_view(text)) {
    if constexpr (Argument < sizeof...(Args)) {
      static_assert(KeyMaterial<std::remove_cvref_t<std::tuple_element_t<Argument, std::tuple<Args...>>>>,
                    "once: no once::Codec for the argument that the key is taken from; include "
                    "<once/codec_json.hpp>, specialise once::Codec, choose another with idempotent<N>, or give a "
                    "member or a function as the key");
    }
  }

  template <class... Parts>
  KeyOf(KeyParts<Parts...> key) : source(OperationKeys::Source::function) {
    function = [key = std::move(key)](const std::remove_cvref_t<Args>&... args) {
      return std::apply(
          [&](const Parts&... part) {
            if constexpr (sizeof...(Parts) == 1) {
              return key_part(part..., args...);
            } else {
              const std::array<std::optional<std::string>, sizeof...(Parts)> names{key_part(part, args...)...};
              return join_key(names);
            }
          },
          key.parts);
    };
  }

  // A member, or a function of the arguments.
  template <class F>
    requires(!std::convertible_to<const F&, std::string_view> && !std::is_same_v<F, KeyOf>)
  KeyOf(F key) : KeyOf(KeyParts<F>{{std::move(key)}}) {}

  OperationKeys::Source source = OperationKeys::Source::arguments;
  std::string expression = {};
  Function function = {};
};

}  // namespace detail

// A key of several parts, which are members or functions of the arguments: "acme/17". Two different lists of parts
// never give one key. If a part is empty, the key is missing.
template <class... Parts>
detail::KeyParts<Parts...> key(Parts... parts) {
  static_assert(sizeof...(Parts) > 0, "once: a key needs a part");
  return {{std::move(parts)...}};
}

// The operation, and how to distinguish its calls.
template <class Signature, std::size_t Argument = 0>
struct Operation;

// For R(Args...) only: without once::Context&, which callers do not pass.
template <class R, class... Args, std::size_t Argument>
struct Operation<R(Args...), Argument> {
  // Names the operation, so that "charge" and "refund" of one order are kept apart. The scope of its keys is
  // EngineOptions::scope + "/" + name. It must not contain '/'. It is part of every stored key: do not rename it while
  // records exist.
  std::string name = {};

  // Distinguishes two calls; see the top of this file. Default: the SHA-256 of the one argument's text, or of several
  // arguments' texts with their lengths. JSON is used in its canonical form (RFC 8785), strings as they are. Without
  // arguments there is only one key.
  // - A member, or once::key() of several. Exactly one argument must have it.
  // - A function of the arguments, as constants. Both return text, an integer, or an optional of these. Empty: a
  //   missing key.
  // - JMESPath. "@" is the whole argument in canonical JSON: blanks and the order of names do not matter. If the codec
  //   lists the names (ONCE_JSON, Codec::names), the constructor refuses a name that the argument can never have.
  detail::KeyOf<Argument, Args...> key = {};

  // JMESPath that selects what a repeated call must have in common with the first one. Otherwise it throws Mismatch.
  // Empty: nothing is compared.
  std::string fingerprint = {};

  // Accept a null or empty part of what an expression in `key` puts together, "[tenant, id]", and a null one of
  // `fingerprint`: see keys::Recipe. once::key() never does.
  bool allow_null_parts = false;

  // Fields that are left out of the input before it is stored, as "card.number": see once/keys/input_filter.hpp. With
  // Policy::keep_input, the input is the text of the one argument, or a JSON array of several arguments' texts, with
  // null for one that has no once::Codec. Then a path begins with the argument: "[0].card.number". If the codec of the
  // one argument lists its names, the constructor refuses other names.
  std::vector<std::string> input_without = {};

  // The whole scope, instead of the engine's scope and the name. For keys shared with other programs. Set this or the
  // name.
  std::string scope = {};

  Policy policy = {};  // What it leaves open is the engine's.
};

namespace detail {

// The keys of an operation's calls.
template <std::size_t Argument, class... Args>
class CallKeys {
  template <std::size_t Index>
  using Plain = std::remove_cvref_t<std::tuple_element_t<Index, std::tuple<Args...>>>;

 public:
  template <class R>
  CallKeys(const Engine& engine, Operation<R(Args...), Argument>&& operation)
      : keys_(engine, shape(operation)), function_(std::move(operation.key.function)) {
    static_assert(Argument == 0 || Argument < sizeof...(Args),
                  "once: idempotent<N>: the callable has no argument N; they count from 0, without once::Context&");
  }

  [[nodiscard]] const OperationKeys& operation() const noexcept { return keys_; }

  // Empty: there is no key, and the policy says to run without one. Throws Exception(misuse).
  std::optional<Request> request(const std::remove_cvref_t<Args>&... args) const {
    std::optional<Request> made = without_input(args...);
    if constexpr (sizeof...(Args) > 0) {
      if (keys_.keeps_input() && made) {
        const std::array<ArgumentText, sizeof...(Args)> texts{input_text(args)...};
        made->input = keys_.input(texts);
      }
    }
    return made;
  }

 private:
  std::optional<Request> without_input(const std::remove_cvref_t<Args>&... args) const {
    switch (keys_.source()) {
      case OperationKeys::Source::function: {
        auto name = function_(args...);
        if (keys_.compares()) return keys_.from_name(name, selected_text(args...));
        return keys_.from_name(name, {});
      }
      case OperationKeys::Source::expression:
        return keys_.from_expression(selected_text(args...));
      case OperationKeys::Source::arguments:
        break;
    }
    if constexpr ((KeyMaterial<std::remove_cvref_t<Args>> && ...)) {
      const std::array<ArgumentText, sizeof...(Args)> texts{argument_text(args)...};
      return keys_.from_arguments(texts);
    } else {
      return std::nullopt;  // Not reached: KeyOf() does not compile then.
    }
  }

  template <class T>
  static ArgumentText input_text([[maybe_unused]] const T& value) {
    if constexpr (KeyMaterial<T>) {
      return argument_text(value);
    } else {
      return {"null", true};  // It cannot be written down.
    }
  }

  template <class R>
  static OperationKeys::Shape shape(Operation<R(Args...), Argument>& operation) {
    OperationKeys::Shape shape{.name = std::move(operation.name),
                               .scope = std::move(operation.scope),
                               .fingerprint = std::move(operation.fingerprint),
                               .allow_null_parts = operation.allow_null_parts,
                               .input_without = std::move(operation.input_without),
                               .policy = operation.policy,
                               .source = operation.key.source,
                               .expression = std::move(operation.key.expression),
                               .arguments = sizeof...(Args),
                               .argument = Argument,
                               .argument_content_type = {},
                               .argument_names = {},
                               .argument_encodable = false};
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

  OperationKeys keys_;
  typename KeyOf<Argument, Args...>::Function function_;
};

template <class R>
constexpr bool good_result() {
  static_assert(!std::is_reference_v<R>,
                "once: the result must not be a reference: a replay has no object to refer to; return a value");
  static_assert(std::is_reference_v<R> || result_is_codable<R>,
                "once: no once::Codec for the result; return a string, a number or void, include "
                "<once/codec_json.hpp> (<once/idempotent_asio.hpp> for an awaitable), or specialise once::Codec");
  return true;
}

// Encodes the work's result, `answer`, for the record into `kept`, which is new. `failed` gets the codec's exception.
template <class R>
void keep_answer(OutcomeOf<R>& outcome, const Context& context, Result& kept, std::exception_ptr& failed) {
  if (!context.is_protected()) return;  // Nothing will be kept.
  if constexpr (std::is_same_v<R, Result>) {
    kept = *outcome.answer;
  } else {
    encode_or_drop<R>(*outcome.answer, kept, failed);
  }
}

// Sets the answer of a call that has ended. Rethrows the exception of encoding the work's result.
template <class R>
void settle_answer(const OperationKeys& keys, OutcomeOf<R>& outcome, const std::exception_ptr& encode_failed) {
  const bool stored = outcome.kind == Outcome::Kind::replayed || outcome.kind == Outcome::Kind::superseded;
  if (stored || !outcome.has_result()) {
    outcome.answer.reset();
  } else if (encode_failed) {
    std::rethrow_exception(encode_failed);
  }
  if (!stored || outcome.result.placement == Placement::dropped) return;
  if constexpr (std::is_same_v<R, Result>) {
    outcome.answer = outcome.result;
  } else {
    try {
      keys.check_content_type(outcome.result, Codec<R>::content_type);
      outcome.answer.emplace(Codec<R>::decode(outcome.result.bytes));
    } catch (const Exception& error) {
      outcome.kind = Outcome::Kind::error;
      outcome.error = error.error();
    }
  }
}

template <class R>
OutcomeOf<R> refused_call(Error error) {
  OutcomeOf<R> outcome;
  outcome.kind = Outcome::Kind::error;
  outcome.error = std::move(error);
  return outcome;
}

// Calls fn with the context if it takes one.
template <class R, class... Args, class Fn>
R call_with(Fn& fn, Context& context, Args&... args) {
  constexpr bool with_context = std::is_invocable_r_v<R, Fn&, Context&, Args...>;
  constexpr bool good = with_context || std::is_invocable_r_v<R, Fn&, Args...>;
  static_assert(good,
                "once: the callable must take the arguments of the signature, or once::Context& and them, and give its "
                "result");
  if constexpr (with_context) {
    return fn(context, static_cast<Args&&>(args)...);
  } else if constexpr (good) {
    return fn(static_cast<Args&&>(args)...);
  }
}

}  // namespace detail

// A callable made idempotent: what idempotent() returns. Copies are cheap, and share the callable.
//
//   class Shop {
//     explicit Shop(once::Engine& engine)
//         : charge_(engine, {.name = "charge", .key = &Order::id}, [this](const Order& order) { ... }) {}
//     once::Idempotent<Receipt(const Order&)> charge_;
//   };
template <class Signature, std::size_t Argument = 0>
class Idempotent;

// For R(Args...) only, as its operation.
template <class R, class... Args, std::size_t Argument>
class Idempotent<R(Args...), Argument> {
 public:
  // Throws Exception(misuse) for an operation without name and scope, an invalid expression, a policy out of range, or
  // arguments that the key cannot be taken from.
  template <class Fn>
  Idempotent(Engine& engine, Operation<R(Args...), Argument> operation, Fn&& fn)
      : made_(std::make_shared<Made>(engine, std::move(operation), std::forward<Fn>(fn))) {
    static_assert(detail::good_result<R>());
  }

  // Runs fn, or returns the stored result. See the top of this file.
  R operator()(Args... args) const { return call(made_->keys.request(args...), args...).value(); }

  // The same, with the outcome as a value. Instead of throwing, it sets the outcome's kind if there is no result.
  // Arguments that no key can be taken from are Kind::error (misuse), stored results that cannot be decoded are
  // Kind::error (corrupt). Exceptions of fn still pass through.
  OutcomeOf<R> outcome(Args... args) const {
    std::optional<Error> refused;
    std::optional<Request> request = [&]() -> std::optional<Request> {  // In place: a request has many members.
      try {
        return made_->keys.request(args...);
      } catch (const Exception& error) {
        refused = error.error();
        return std::nullopt;
      }
    }();
    if (refused) return detail::refused_call<R>(*std::move(refused));
    return call(std::move(request), args...);
  }

 private:
  struct Made {
    template <class Fn>
    Made(Engine& its_engine, Operation<R(Args...), Argument>&& operation, Fn&& its_fn)
        : engine(its_engine),
          keys(its_engine, std::move(operation)),
          fn([fn = std::decay_t<Fn>(std::forward<Fn>(its_fn))](Context& context, Args&... args) mutable -> R {
            return detail::call_with<R, Args...>(fn, context, args...);
          }) {}

    Engine& engine;
    detail::CallKeys<Argument, Args...> keys;
    Callback<R(Context&, Args&...)> fn;
  };

  OutcomeOf<R> call(std::optional<Request>&& request, Args&... args) const {
    OutcomeOf<R> outcome;
    const auto run = [&](auto&& work) {
      if (request) {
        detail::RunInto::run(made_->engine, outcome, std::move(*request), work);
      } else {
        detail::RunInto::run_unprotected(made_->engine, outcome, made_->keys.operation().scope(), work);
      }
    };
    if constexpr (std::is_void_v<R>) {
      run([&](Context& context, Result&) { made_->fn(context, args...); });
    } else {
      std::exception_ptr encode_failed;
      run([&](Context& context, Result& kept) {
        outcome.answer.emplace(made_->fn(context, args...));
        detail::keep_answer(outcome, context, kept, encode_failed);
      });
      detail::settle_answer(made_->keys.operation(), outcome, encode_failed);
    }
    return outcome;
  }

  std::shared_ptr<Made> made_;
};

namespace detail {

// R(A...) of a callable, without the Context& that may come first. A callable without one signature gives void().
template <class F>
struct SignatureOf {
  using type = void();
};
template <class R, class... A>
using Signature = std::remove_cv_t<R>(A...);
template <class F>
  requires HasSignature<F>
struct SignatureOf<F> {
  template <class... A>
  static auto of(Types<A...>) -> std::type_identity<Signature<typename CallOf<F>::Result, A...>>;
  using type = typename decltype(of(typename CallOf<F>::Arguments{}))::type;
};

// Not deduced, so that an operation can be written as a list in braces before the callable.
template <class Fn, std::size_t Argument>
struct OperationFor {
  using Signature = typename SignatureOf<std::decay_t<Fn>>::type;
  using type = Operation<Signature, Argument>;
};

}  // namespace detail

template <class R>
R OutcomeOf<R>::value() && {
  if (!answer) static_cast<void>(Outcome::value());
  return std::move(*answer);
}

// Makes `fn` idempotent: see the top of this file, and Idempotent for what is thrown. Expressions read argument
// `Argument`.
template <std::size_t Argument = 0, class Fn>
auto idempotent(Engine& engine, typename detail::OperationFor<Fn, Argument>::type operation, Fn&& fn) {
  static_assert(detail::HasSignature<std::decay_t<Fn>>,
                "once: idempotent() needs a callable with one signature; wrap an overloaded or generic one, or a "
                "member function, in a lambda with plain parameter types");
  if constexpr (detail::HasSignature<std::decay_t<Fn>>) {
    return Idempotent<typename detail::OperationFor<Fn, Argument>::Signature, Argument>(engine, std::move(operation),
                                                                                        std::forward<Fn>(fn));
  }
}

}  // namespace once
