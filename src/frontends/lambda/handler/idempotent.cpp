#include <once/frontends/lambda/idempotent.hpp>

#include <utility>

#include <once/engine/exceptions.hpp>
#include <once/error.hpp>
#include <once/keys/input_filter.hpp>

#include "frontends/lambda/handler/function.hpp"
#include "frontends/lambda/metrics/invocation_span.hpp"

namespace once::lambda {

namespace {

[[noreturn]] void refuse_options(const std::string& what) {
  throw Exception(ErrorKind::misuse, "lambda::IdempotentOptions::" + what);
}

std::string native_scope(const Engine& engine, const IdempotentOptions& options) {
  if (!options.key_prefix.empty()) refuse_options("key_prefix is for the dialects of Powertools: use scope");
  return handler_scope(engine.options().scope, options.function, options.name, *options.environment,
                       "lambda::IdempotentOptions");
}

std::string dialect_scope(const IdempotentOptions& options, const std::string& function) {
  const bool needs_name = options.dialect != keys::Dialect::powertools_typescript && options.key_prefix.empty();
  if (needs_name && options.name.empty()) {
    refuse_options(
        "name must be what the function was called where Powertools ran it ('app.handler' in Python, the "
        "method's name in Java and .NET): it is part of every id");
  }
  return keys::powertools_scope(options.dialect, function.empty() ? std::nullopt : std::optional(function),
                                options.name, options.key_prefix);
}

keys::Recipe recipe_of(const Engine& engine, const IdempotentOptions& options, bool require_key) {
  const std::string& function = options.function.empty() ? options.environment->function_name : options.function;
  keys::Recipe recipe;
  if (!options.scope.empty()) {
    recipe.scope = options.scope;
  } else if (options.dialect == keys::Dialect::native) {
    recipe.scope = native_scope(engine, options);
  } else {
    recipe.scope = dialect_scope(options, function);
  }
  recipe.expression = options.key;
  recipe.fingerprint = options.fingerprint;
  recipe.hash = options.hash;
  recipe.dialect = options.dialect;
  recipe.require_key = require_key;
  recipe.allow_null_parts = options.allow_null_parts;
  return recipe;
}

// Rethrows the current exception: one of the engine's as a typed error, others unchanged.
[[noreturn]] void throw_typed() {
  const auto typed = [](std::string_view type, const Exception& error) {
    return FunctionError(std::string(type), error.what());
  };
  try {
    throw;
  } catch (const Conflict& error) {
    throw typed(errors::conflict, error);
  } catch (const Mismatch& error) {
    throw typed(errors::mismatch, error);
  } catch (const OutcomeUnknown& error) {
    throw typed(errors::outcome_unknown, error);
  } catch (const StoredFailure& error) {
    const Failure& failure = error.record()->failure;
    throw FunctionError(failure.code.empty() ? "Once.StoredFailure" : failure.code, failure.message);
  } catch (const ClaimLost& error) {
    throw typed(errors::claim_lost, error);
  } catch (const ResultDropped& error) {
    throw typed(errors::result_dropped, error);
  } catch (const NoTimeLeft& error) {
    throw typed(errors::no_time_left, error);
  } catch (const StoreFailed& error) {
    const bool passing = error.kind() == ErrorKind::unavailable || error.kind() == ErrorKind::in_doubt;
    throw typed(passing ? errors::store_unavailable : errors::store_failed, error);
  } catch (const Unrecorded& error) {
    throw typed(errors::not_recorded, error);
  } catch (const Declined& error) {
    throw typed(errors::declined, error);
  }
}

class IdempotentHandler {
 public:
  // `environment` must be set.
  IdempotentHandler(Engine& engine, IdempotentOptions&& options, detail::Work&& work)
      : engine_(engine),
        policy_(handler_policy(engine, options.policy, options.dialect)),
        disabled_(is_disabled(*options.environment)),
        refuses_tenants_(options.dialect != keys::Dialect::native && !options.tenant_in_dialect),
        keys_(recipe_of(engine, options, refuses_missing())),
        input_(options.input_without),
        on_replay_(std::move(options.on_replay)),
        work_(std::move(work)) {
    check(policy_);
    static_cast<void>(Key(keys_.recipe().scope, std::string(longest_name, '0')));  // Throws if no key can fit.
    if (refuses_missing()) {
      keys::Recipe lenient = keys_.recipe();
      lenient.require_key = false;
      lenient_.emplace(std::move(lenient));
    }
  }

  std::string operator()(std::string_view event, const Invocation& invocation) const {
    if (disabled_) return unprotected(event, invocation);
    if (refuses_tenants_ && !invocation.tenant_id.empty()) {
      throw FunctionError(std::string(errors::tenant_not_in_key),
                          "the invocation is tenant '" + invocation.tenant_id +
                              "', and the dialect's ids have no tenant, so tenants would share results. Nothing was "
                              "run: set IdempotentOptions::tenant_in_dialect, whose ids differ from the library's");
    }
    keys::Derived derived = derive(event);
    if (!derived.key) return unprotected(event, invocation);
    Request request{.key = std::move(*derived.key),
                    .fingerprint = derived.fingerprint,
                    .policy = within_deadline(engine_, policy_, invocation),
                    .holder = invocation.request_id,
                    .label = std::move(derived.label),
                    .label_from_payload = true,
                    .trace = trace_from_xray(invocation.trace_id)};
    if (policy_.keep_input.value_or(false)) request.input = input_(event);
    Outcome outcome;
    bool of_work = false;  // The work may use other engines, whose exceptions are not about this operation.
    try {
      outcome = engine_.run(std::move(request), [&](Context& context) {
        try {
          return Result::inlined(work_(event, invocation, context), "application/json");
        } catch (const ClaimLost&) {  // Usually from a step of this context.
          throw;
        } catch (...) {  // Only marks it as the work's.
          of_work = true;
          throw;
        }
      });
      static_cast<void>(outcome.value());  // Throws if there is no result.
    } catch (...) {                        // Any exception, rethrown.
      if (of_work) throw;
      throw_typed();
    }
    const bool of_another = outcome.kind == Outcome::Kind::replayed || outcome.kind == Outcome::Kind::superseded;
    if (!of_another || !on_replay_) return std::move(outcome.result.bytes);
    return on_replay_(std::move(outcome.result.bytes), *outcome.record);
  }

 private:
  static constexpr std::size_t longest_name = 128;  // SHA-512 in hexadecimal digits.

  [[nodiscard]] bool refuses_missing() const noexcept { return policy_.on_missing_key == OnMissingKey::refuse; }

  [[nodiscard]] keys::Derived derive(std::string_view event) const {
    try {
      return keys_.derive(event);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      if (is_readable(event)) throw FunctionError(std::string(errors::no_key), error.what());
      refuse_event(std::string(error.what()) + "; the work was not run");
    }
  }

  // Whether an event fails only because its key is missing.
  [[nodiscard]] bool is_readable(std::string_view event) const {
    if (!lenient_) return false;
    try {
      static_cast<void>(lenient_->derive(event));
      return true;
    } catch (const Exception&) {  // Its error was reported already.
      return false;
    }
  }

  std::string unprotected(std::string_view event, const Invocation& invocation) const {
    return engine_
        .run_unprotected(keys_.recipe().scope,
                         [&](Context& context) { return Result::inlined(work_(event, invocation, context)); })
        .result.bytes;
  }

  Engine& engine_;
  const Policy policy_;
  const bool disabled_;
  const bool refuses_tenants_;
  const keys::KeyDeriver keys_;
  const keys::InputFilter input_;
  std::optional<keys::KeyDeriver> lenient_;  // Without Recipe::require_key, if that is set.
  const ReplayHook on_replay_;
  const detail::Work work_;
};

}  // namespace

Handler detail::make_idempotent(Engine& engine, IdempotentOptions options, Work work) {
  if (!work) throw Exception(ErrorKind::misuse, "lambda::idempotent() was given an empty function");
  options.environment = environment_or_process(options.environment);
  auto handler = std::make_shared<const IdempotentHandler>(engine, std::move(options), std::move(work));
  return [handler = std::move(handler)](std::string_view event, const Invocation& invocation) {
    const InvocationSpan span(invocation);
    return (*handler)(event, invocation);
  };
}

}  // namespace once::lambda
