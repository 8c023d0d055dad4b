#include <once/idempotent.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/keys/input_filter.hpp>
#include <once/keys/key_deriver.hpp>

#include "text/json_write.hpp"
#include "text/utf8.hpp"

namespace once::detail {

namespace {

[[noreturn]] void misuse(const std::string& text) { throw Exception(ErrorKind::misuse, text); }

std::string scope_of(const Engine& engine, const OperationKeys::Shape& operation) {
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

void append_escaped(std::string& to, std::string_view part) {
  for (const char c : part) {
    switch (c) {
      case '/':
        to += "%2F";
        break;
      case '%':
        to += "%25";
        break;
      default:
        to += c;
    }
  }
}

}  // namespace

std::optional<std::string> join_key(std::span<const std::optional<std::string>> parts) {
  std::string joined;
  for (const std::optional<std::string>& part : parts) {
    if (!part || part->empty()) return std::nullopt;
    if (!joined.empty()) joined += '/';
    append_escaped(joined, *part);
  }
  return joined;
}

struct OperationKeys::Parts {
  // Adds the operation's name to a deriver's errors.
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
  std::optional<KeyScope> keys;
  std::optional<Policy> policy;  // Empty: no own policy.
  bool refuses_missing = true;
  bool labels = false;  // Label::all
  std::optional<keys::KeyDeriver> deriver;
  keys::InputFilter input;
};

OperationKeys::OperationKeys(const Engine& engine, Shape shape) : source_(shape.source) {
  auto parts = std::make_unique<Parts>();
  parts->scope = scope_of(engine, shape);
  parts->keys.emplace(parts->scope);
  parts->title = "operation '" + parts->scope + "'";
  check(shape.policy);
  const EffectivePolicy policy = effective(fill_in(shape.policy, engine.options().policy));
  parts->refuses_missing = policy.on_missing_key != OnMissingKey::run_unprotected;
  parts->labels = policy.label == Label::all;
  compares_ = !shape.fingerprint.empty();
  keeps_input_ = policy.keep_input;
  try {
    parts->input = keys::InputFilter(shape.input_without,
                                     shape.arguments == 1 ? list_of(shape.argument_names) : std::vector<std::string>());
  } catch (const Exception& error) {
    misuse(parts->title + ": " + error.what());
  }

  if (source_ == Source::expression && shape.expression.empty()) {
    misuse(parts->title + " has an empty expression as its key: leave Operation::key out if all arguments are the key");
  }
  if (source_ == Source::arguments && compares_) {
    misuse(parts->title +
           " compares payloads, but all arguments are its key, so they can never differ: set Operation::key");
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
    recipe.expression = std::move(shape.expression);
    recipe.fingerprint = std::move(shape.fingerprint);
    recipe.require_key = parts->refuses_missing;
    recipe.allow_null_parts = shape.allow_null_parts;
    recipe.names = list_of(shape.argument_names);
    recipe.makes_label = parts->labels;
    try {
      parts->deriver.emplace(std::move(recipe));
    } catch (const Exception& error) {
      misuse(parts->title + ": " + error.what());
    }
  }
  if (shape.policy != Policy{}) parts->policy = shape.policy;
  parts_ = std::move(parts);
}

OperationKeys::OperationKeys(OperationKeys&&) noexcept = default;
OperationKeys::~OperationKeys() = default;

std::optional<Request> OperationKeys::from_expression(std::string_view json) const {
  keys::Derived derived = parts_->read([&] { return parts_->deriver->derive(json); });
  if (!derived.key) return std::nullopt;
  return request(std::move(*derived.key), derived.fingerprint, std::move(derived.label));
}

std::optional<Request> OperationKeys::from_name(const std::optional<std::string>& name, std::string_view json) const {
  if (!name || name->empty()) return missing();
  return request(parts_->keys->key(*name),
                 compares_ ? parts_->read([&] { return parts_->deriver->fingerprint(json); }) : Fingerprint(),
                 parts_->labels ? *name : std::string());
}

std::optional<Request> OperationKeys::from_arguments(std::span<const ArgumentText> arguments) const {
  std::string text;
  std::string label;
  for (const ArgumentText& argument : arguments) {
    const std::string canonical = argument.json ? keys::canonical_text(argument.text) : std::string();
    const std::string& part = argument.json ? canonical : argument.text;
    if (parts_->labels) label.append(label.empty() ? "" : " ").append(clean_text(part));
    // The lengths distinguish ("ab", "c") and ("a", "bc").
    if (arguments.size() > 1) text.append(std::to_string(part.size())).append(":");
    text.append(part);
  }
  return request(parts_->keys->key(to_hex(sha256(text))), Fingerprint(), std::move(label));
}

InputPtr OperationKeys::input(std::span<const ArgumentText> arguments) const {
  if (arguments.size() == 1) return parts_->input(arguments.front().text);
  std::string list = "[";
  for (const ArgumentText& argument : arguments) {
    if (list.size() > 1) list += ',';
    list += argument.json ? argument.text : text::json::quoted(text::replace_invalid_utf8(argument.text));
  }
  return parts_->input(list + "]");
}

const std::string& OperationKeys::scope() const noexcept { return parts_->scope; }

void OperationKeys::check_content_type(const Result& result, std::string_view expected) const {
  if (result.content_type.empty() || expected.empty() || result.content_type == expected) return;
  throw Exception(ErrorKind::corrupt, "the stored result of " + parts_->title + " is " + result.content_type +
                                          ", and the callable's result is " + std::string(expected) +
                                          ": the result's type changed since it was stored");
}

std::optional<Request> OperationKeys::missing() const {
  if (!parts_->refuses_missing) return std::nullopt;
  misuse(parts_->title +
         " was not run: these arguments have no key. To run such calls unprotected, set "
         "OnMissingKey::run_unprotected");
}

Request OperationKeys::request(Key key, Fingerprint fingerprint, std::string label) const {
  return {.key = std::move(key),
          .fingerprint = fingerprint,
          .policy = parts_->policy,
          .holder = {},
          .label = std::move(label),
          .label_from_payload = true};
}

}  // namespace once::detail
