#include <once/idempotent.hpp>

#include <utility>

#include <once/keys/key_deriver.hpp>

namespace once::detail {

namespace {

// A constant: the deriver then only compares payloads, and the key function's name is what counts.
constexpr const char* no_key_expression = "'-'";

[[noreturn]] void misuse(const std::string& text) { throw Exception(ErrorKind::misuse, text); }

std::string scope_of(const Engine& engine, const Operation& operation) {
  if (operation.name.empty() == operation.scope.empty()) {
    misuse(
        "idempotent() needs either Operation::name, which keeps this operation's keys apart from others', or the "
        "whole Operation::scope");
  }
  if (!operation.scope.empty()) return operation.scope;
  if (operation.name.find('/') != std::string::npos) {
    misuse("the operation's name '" + operation.name +
           "' contains '/', which separates it from the engine's scope: put what stands before it into "
           "EngineOptions::scope, or give the whole Operation::scope");
  }
  const std::string& engine_scope = engine.options().scope;
  return engine_scope.empty() ? operation.name : engine_scope + "/" + operation.name;
}

}  // namespace

struct OperationKeys::Parts {
  std::string title;  // For messages: "operation 'payments/charge'".
  std::string scope;
  std::string where;  // What the key is taken from, for messages.
  std::optional<Policy> policy;
  OnMissingKey on_missing_key = OnMissingKey::run_unprotected;
  std::optional<keys::KeyDeriver> deriver;
};

OperationKeys::OperationKeys(const Engine& engine, Operation operation, const Shape& shape) {
  auto parts = std::make_unique<Parts>();
  parts->scope = scope_of(engine, operation);
  parts->title = "operation '" + parts->scope + "'";
  if (operation.policy) check(*operation.policy);
  parts->on_missing_key = operation.policy.value_or(engine.options().policy).on_missing_key;
  validates_ = !operation.validate.empty();

  if (shape.has_function) {
    source_ = Source::function;
    parts->where = "the key function";
    if (!operation.key.empty()) {
      misuse(parts->title + " has both a key function and the key expression '" + operation.key + "': leave one out");
    }
  } else if (!operation.key.empty()) {
    source_ = Source::expression;
    parts->where = "'" + operation.key + "'";
  } else {
    source_ = Source::arguments;
    if (validates_) {
      misuse(parts->title +
             " compares payloads, but all arguments are its key, so that they can never differ: set Operation::key or "
             "give a key function");
    }
    if (!shape.all_encodable) {
      misuse(parts->title +
             " has all arguments as its key, but not each has a once::Codec: set Operation::key, give a key function, "
             "or include <once/codec_json.hpp>");
    }
  }

  if (source_ == Source::expression || validates_) {
    const std::string argument = "argument " + std::to_string(shape.argument);
    if (shape.argument >= shape.arguments) {
      misuse(parts->title + " has an expression, but the callable has no arguments that it could read");
    }
    if (!shape.argument_encodable) {
      misuse(parts->title + " has an expression over " + argument +
             ", which has no once::Codec: include <once/codec_json.hpp> or choose another with idempotent<N>");
    }
    if (!shape.argument_content_type.empty() && shape.argument_content_type != "application/json") {
      misuse(parts->title + " has an expression over " + argument + ", which is encoded as " +
             std::string(shape.argument_content_type) + ": expressions read application/json only");
    }
    keys::Recipe recipe;
    recipe.scope = parts->scope;
    recipe.expression = source_ == Source::expression ? operation.key : no_key_expression;
    recipe.validation = operation.validate;
    parts->deriver.emplace(std::move(recipe));
  }
  parts->policy = std::move(operation.policy);
  parts_ = std::move(parts);
}

OperationKeys::OperationKeys(OperationKeys&&) noexcept = default;
OperationKeys::~OperationKeys() = default;

std::optional<Request> OperationKeys::from_expression(std::string_view json) const {
  keys::Derived derived = parts_->deriver->derive(json);
  if (!derived.key) return missing();
  return request(std::move(*derived.key), derived.fingerprint);
}

std::optional<Request> OperationKeys::from_name(const std::optional<std::string>& name, std::string_view json) const {
  if (!name || name->empty()) return missing();
  return request(Key(parts_->scope, *name), validates_ ? parts_->deriver->derive(json).fingerprint : Fingerprint());
}

std::optional<Request> OperationKeys::from_arguments(std::span<const ArgumentText> arguments) const {
  std::string text;
  for (const ArgumentText& argument : arguments) {
    const std::string canonical = argument.json ? keys::canonical_text(argument.text) : std::string();
    const std::string& part = argument.json ? canonical : argument.text;
    // The lengths keep ("ab", "c") and ("a", "bc") apart.
    if (arguments.size() > 1) text.append(std::to_string(part.size())).append(":");
    text.append(part);
  }
  return request(Key(parts_->scope, to_hex(sha256(text))), Fingerprint());
}

void OperationKeys::check_content_type(const Result& result, std::string_view expected) const {
  if (result.content_type.empty() || expected.empty() || result.content_type == expected) return;
  throw Exception(ErrorKind::corrupt, "the stored result of " + parts_->title + " is " + result.content_type +
                                          ", and the callable's result is " + std::string(expected) +
                                          ": the result's type has changed since it was stored");
}

std::optional<Request> OperationKeys::missing() const {
  if (parts_->on_missing_key == OnMissingKey::run_unprotected) return std::nullopt;
  misuse(parts_->title + " was called without a key: " + parts_->where +
         " gives nothing for these arguments, and Policy::on_missing_key says to refuse");
}

Request OperationKeys::request(Key key, Fingerprint fingerprint) const {
  return {.key = std::move(key), .fingerprint = fingerprint, .policy = parts_->policy, .holder = {}};
}

}  // namespace once::detail
