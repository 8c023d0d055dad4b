#include <once/idempotent.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include <once/keys/key_deriver.hpp>

namespace once::detail {

namespace {

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

// "id, cents"
std::vector<std::string> list_of(std::string_view names) {
  std::vector<std::string> list;
  while (!names.empty()) {
    const std::string_view one = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), one.size() + 1));
    const auto first = one.find_first_not_of(' ');
    if (first != std::string_view::npos) list.emplace_back(one.substr(first, one.find_last_not_of(' ') - first + 1));
  }
  return list;
}

}  // namespace

struct OperationKeys::Parts {
  // What a deriver says of its events, as this operation's.
  template <class Read>
  auto read(Read&& from) const {
    try {
      return from();
    } catch (const Exception& error) {
      misuse(title + " was not run: " + error.what());
    }
  }

  std::string title;  // For messages: "operation 'payments/charge'".
  std::string scope;
  std::optional<Policy> policy;
  bool refuses_missing = true;
  std::optional<keys::KeyDeriver> deriver;
};

OperationKeys::OperationKeys(const Engine& engine, Operation operation, const Shape& shape) {
  auto parts = std::make_unique<Parts>();
  parts->scope = scope_of(engine, operation);
  parts->title = "operation '" + parts->scope + "'";
  if (operation.policy) check(*operation.policy);
  const Policy& usual = engine.options().policy;
  parts->refuses_missing =
      fill_in(operation.policy.value_or(usual), usual).on_missing_key != OnMissingKey::run_unprotected;
  compares_ = !operation.fingerprint.empty();

  if (shape.has_function) {
    source_ = Source::function;
    if (!operation.key.empty()) {
      misuse(parts->title + " has both a key function and the key expression '" + operation.key + "': leave one out");
    }
  } else if (!operation.key.empty()) {
    source_ = Source::expression;
  } else {
    source_ = Source::arguments;
    if (compares_) {
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

  if (source_ == Source::expression || compares_) {
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
    recipe.expression = operation.key;
    recipe.fingerprint = operation.fingerprint;
    recipe.require_key = parts->refuses_missing;
    recipe.names = list_of(shape.argument_names);
    try {
      parts->deriver.emplace(std::move(recipe));
    } catch (const Exception& error) {
      misuse(parts->title + ": " + error.what());
    }
  }
  parts->policy = std::move(operation.policy);
  parts_ = std::move(parts);
}

OperationKeys::OperationKeys(OperationKeys&&) noexcept = default;
OperationKeys::~OperationKeys() = default;

std::optional<Request> OperationKeys::from_expression(std::string_view json) const {
  keys::Derived derived = parts_->read([&] { return parts_->deriver->derive(json); });
  if (!derived.key) return std::nullopt;
  return request(std::move(*derived.key), derived.fingerprint);
}

std::optional<Request> OperationKeys::from_name(const std::optional<std::string>& name, std::string_view json) const {
  if (!name || name->empty()) return missing();
  return request(Key(parts_->scope, *name),
                 compares_ ? parts_->read([&] { return parts_->deriver->fingerprint(json); }) : Fingerprint());
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

const std::string& OperationKeys::scope() const noexcept { return parts_->scope; }

void OperationKeys::check_content_type(const Result& result, std::string_view expected) const {
  if (result.content_type.empty() || expected.empty() || result.content_type == expected) return;
  throw Exception(ErrorKind::corrupt, "the stored result of " + parts_->title + " is " + result.content_type +
                                          ", and the callable's result is " + std::string(expected) +
                                          ": the result's type has changed since it was stored");
}

std::optional<Request> OperationKeys::missing() const {
  if (!parts_->refuses_missing) return std::nullopt;
  misuse(parts_->title +
         " was not run: the key function gives no key for these arguments. If that may be, "
         "OnMissingKey::run_unprotected lets it run unprotected");
}

Request OperationKeys::request(Key key, Fingerprint fingerprint) const {
  return {.key = std::move(key), .fingerprint = fingerprint, .policy = parts_->policy, .holder = {}};
}

}  // namespace once::detail
