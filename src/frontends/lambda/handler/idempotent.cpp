#include <once/frontends/lambda/idempotent.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <once/engine/exceptions.hpp>
#include <once/error.hpp>
#include <once/frontends/lambda/idempotent_stream.hpp>
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

class IdempotentCall {
 public:
  using Work = std::function<Result(Context&)>;

  // `environment` must be set.
  IdempotentCall(Engine& engine, const IdempotentOptions& options)
      : engine_(engine),
        policy_(handler_policy(engine, options.policy, options.dialect)),
        disabled_(is_disabled(*options.environment)),
        refuses_tenants_(options.dialect != keys::Dialect::native && !options.tenant_in_dialect),
        keys_(recipe_of(engine, options, refuses_missing())),
        input_(options.input_without) {
    check(policy_);
    static_cast<void>(Key(keys_.recipe().scope, std::string(longest_name, '0')));  // Throws if no key can fit.
    if (refuses_missing()) {
      keys::Recipe lenient = keys_.recipe();
      lenient.require_key = false;
      lenient_.emplace(std::move(lenient));
    }
  }

  // The outcome has a result. Throws FunctionError without one, and the work's exceptions.
  [[nodiscard]] Outcome run(std::string_view event, const Invocation& invocation, const Work& work) const {
    if (disabled_) return engine_.run_unprotected(keys_.recipe().scope, work);
    if (refuses_tenants_ && !invocation.tenant_id.empty()) {
      throw FunctionError(std::string(errors::tenant_not_in_key),
                          "the invocation is tenant '" + invocation.tenant_id +
                              "', and the dialect's ids have no tenant, so tenants would share results. Nothing was "
                              "run: set IdempotentOptions::tenant_in_dialect, whose ids differ from the library's");
    }
    keys::Derived derived = derive(event);
    if (!derived.key) return engine_.run_unprotected(keys_.recipe().scope, work);
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
          return work(context);
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
    return outcome;
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

  Engine& engine_;
  const Policy policy_;
  const bool disabled_;
  const bool refuses_tenants_;
  const keys::KeyDeriver keys_;
  const keys::InputFilter input_;
  std::optional<keys::KeyDeriver> lenient_;  // Without Recipe::require_key, if that is set.
};

bool is_of_another(const Outcome& outcome) noexcept {
  return outcome.kind == Outcome::Kind::replayed || outcome.kind == Outcome::Kind::superseded;
}

// What the platform has between the head of an HTTP answer and its body (AWS, "Response streaming for Lambda
// functions").
constexpr std::string_view http_type = "application/vnd.awslambda.http-integration-response";
constexpr std::string_view after_head("\0\0\0\0\0\0\0\0", 8);

// Keeps what it passes on.
class RecordedStream final : public ResponseStream {
 public:
  RecordedStream(ResponseStream& to, std::size_t max_bytes) : to_(to), max_bytes_(max_bytes) {}

  void content_type(std::string_view type) override {
    require_unwritten("content_type()");
    if (type.size() > Result::max_content_type_bytes) {
      throw Exception(ErrorKind::misuse, "the content type of a stored response has at most 255 bytes");
    }
    to_.content_type(type);
    type_ = type;
    bytes_.clear();
  }

  void http_head(std::string_view json) override {
    require_unwritten("http_head()");
    to_.http_head(json);
    type_ = http_type;
    bytes_.assign(json).append(after_head);
  }

  // Does not throw if nobody reads on: the result counts all the same. finish() does.
  void write(std::string_view bytes) override {
    if (bytes.empty()) return;
    if (!broken_) {
      try {
        to_.write(bytes);
      } catch (const Exception& error) {
        if (error.kind() != ErrorKind::unavailable) throw;
        broken_ = std::current_exception();
      }
    }
    written_ += bytes.size();
    if (kept_ && bytes.size() <= max_bytes_ && bytes_.size() <= max_bytes_ - bytes.size()) {
      bytes_ += bytes;
    } else {
      kept_ = false;
      bytes_ = {};
    }
  }

  // The whole response, or a tombstone if it is too large.
  [[nodiscard]] Result result() const {
    if (kept_) return Result::inlined(bytes_, type_);
    Result out;
    out.content_type = type_;
    out.placement = Placement::dropped;
    out.size = written_;
    return out;
  }

  [[nodiscard]] bool has_written() const noexcept { return written_ > 0; }
  void finish() const {
    if (broken_) std::rethrow_exception(broken_);
  }

 private:
  void require_unwritten(const std::string& call) const {
    if (written_ > 0) throw Exception(ErrorKind::misuse, call + " comes before the first write()");
  }

  ResponseStream& to_;
  const std::size_t max_bytes_;
  std::string type_;
  std::string bytes_;  // The head of an HTTP answer, and what was written.
  std::uint64_t written_ = 0;
  bool kept_ = true;
  std::exception_ptr broken_;
};

// Writes a stored response.
void replay(const Result& result, ResponseStream& response) {
  std::string_view bytes = result.bytes;
  const std::size_t head = result.content_type == http_type ? bytes.find(after_head) : std::string_view::npos;
  if (head != std::string_view::npos) {
    response.http_head(bytes.substr(0, head));
    bytes.remove_prefix(head + after_head.size());
  } else if (!result.content_type.empty()) {
    response.content_type(result.content_type);
  }
  if (!bytes.empty()) response.write(bytes);
}

}  // namespace

Handler detail::make_idempotent(Engine& engine, IdempotentOptions options, Work work) {
  if (!work) throw Exception(ErrorKind::misuse, "lambda::idempotent() was given an empty function");
  options.environment = environment_or_process(options.environment);
  const auto call = std::make_shared<const IdempotentCall>(engine, options);
  const auto shared_work = std::make_shared<const Work>(std::move(work));
  return [call, shared_work, on_replay = std::move(options.on_replay)](std::string_view event,
                                                                       const Invocation& invocation) {
    const InvocationSpan span(invocation);
    Outcome outcome = call->run(event, invocation, [&](Context& context) {
      return Result::inlined((*shared_work)(event, invocation, context), "application/json");
    });
    if (!is_of_another(outcome) || !on_replay) return std::move(outcome.result.bytes);
    return on_replay(std::move(outcome.result.bytes), *outcome.record);
  };
}

StreamingHandler detail::make_idempotent_stream(Engine& engine, IdempotentOptions options, StreamWork work) {
  if (!work) throw Exception(ErrorKind::misuse, "lambda::idempotent_stream() was given an empty function");
  if (options.on_replay) refuse_options("on_replay is for responses that are not streamed");
  options.environment = environment_or_process(options.environment);
  const auto call = std::make_shared<const IdempotentCall>(engine, options);
  const auto shared_work = std::make_shared<const StreamWork>(std::move(work));
  return [call, shared_work, max_bytes = options.max_stream_bytes](std::string_view event, const Invocation& invocation,
                                                                   ResponseStream& response) {
    const InvocationSpan span(invocation);
    RecordedStream recorded(response, max_bytes);
    bool ran = false;
    const Outcome outcome = call->run(event, invocation, [&](Context& context) {
      ran = true;
      (*shared_work)(event, invocation, context, recorded);
      return recorded.result();
    });
    if (ran && !is_of_another(outcome)) return recorded.finish();
    if (recorded.has_written()) {
      throw FunctionError(std::string(errors::claim_lost),
                          "the lease was lost while the response was sent, and another attempt's response is stored; "
                          "a retry gets it");
    }
    replay(outcome.result, response);
  };
}

}  // namespace once::lambda
