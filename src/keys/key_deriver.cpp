#include <once/keys/key_deriver.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory_resource>
#include <once/error.hpp>
#include <once/record.hpp>
#include <once/rounding.hpp>
#include <optional>
#include <utility>

#include "core/digest.hpp"
#include "keys/dialects/decode.hpp"
#include "keys/dialects/hash.hpp"
#include "keys/dialects/write.hpp"
#include "keys/jmespath/functions.hpp"
#include "keys/jmespath/selector.hpp"
#include "keys/refuse.hpp"
#include "text/ascii.hpp"
#include "text/base64.hpp"
#include "text/hex.hpp"
#include "text/json.hpp"
#include "text/number.hpp"

namespace once::keys {

namespace {

using json::Kind;
using json::Value;

constexpr std::array<std::string_view, 5> dialect_names{"native", "powertools-python", "powertools-typescript",
                                                        "powertools-java", "powertools-dotnet"};

bool all_null(std::span<const Value> values) {
  return std::ranges::all_of(values, [](const Value& v) { return v.is_null(); });
}

// isMissingIdempotencyKey of TypeScript, which checks whether anything in it is truthy in JavaScript.
bool falsy(const Value& v) {
  switch (v.kind()) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !v.truth();
    case Kind::number: {
      const double d = text::to_double(v.text());
      return d == 0 || std::isnan(d);
    }
    case Kind::string:
      return v.text().empty();
    default:
      return false;
  }
}

bool missing_typescript(const Value& v) {
  if (v.kind() == Kind::array) return std::ranges::all_of(v.elements(), falsy);
  if (v.kind() == Kind::object) return std::ranges::all_of(v.members(), falsy, &json::Member::value);
  return falsy(v);
}

bool has_only_nulls(std::span<const json::Member> members) {
  return std::ranges::all_of(members, [](const json::Member& m) { return m.value.is_null(); });
}

bool is_missing(const Value& v, const Recipe& recipe) {
  switch (recipe.dialect) {
    case Dialect::native:
      return is_nothing(v);
    case Dialect::powertools_python:
      if (v.kind() == Kind::array) return all_null(v.elements());
      if (v.kind() == Kind::object) return has_only_nulls(v.members());
      return v.is_null() || (v.kind() == Kind::string && v.text().empty());
    case Dialect::powertools_typescript:
      if (recipe.require_key) return missing_typescript(v);
      return v.is_null() && !recipe.expression.empty();
    case Dialect::powertools_java:
      if (v.kind() == Kind::array) return all_null(v.elements());
      if (v.kind() == Kind::object) return has_only_nulls(v.members());
      return v.is_null();
    case Dialect::powertools_dotnet:
      // In TypeScript keys are missing only with the setting that throws.
      return recipe.require_key && (v.is_null() || (v.kind() == Kind::string && v.text().empty()));
  }
  return true;
}

// Only names and indexes: no filter, function or literal.
bool is_path(std::string_view expression) {
  return !expression.empty() && std::ranges::all_of(expression, [](char c) {
    return text::is_letter_or_digit(c) || std::string_view("_-.[]\" ").find(c) != std::string_view::npos;
  });
}

void check_numbers(const Value& selected) {
  switch (selected.kind()) {
    case Kind::number:
      if (const std::string problem = text::inexact(selected.text()); !problem.empty()) refuse("the key: " + problem);
      return;
    case Kind::array:
      for (const Value& element : selected.elements()) check_numbers(element);
      return;
    case Kind::object:
      for (const json::Member& member : selected.members()) check_numbers(member.value);
      return;
    default:
      return;
  }
}

std::optional<Selector> selector(const std::string& expression, const Recipe& recipe, std::string_view what) {
  if (expression.empty()) return std::nullopt;
  Selector made(expression, recipe.dialect, what);
  if (recipe.names.empty()) return made;
  for (const Selector::Path& path : made.reads()) {
    if (path.empty() || std::ranges::find(recipe.names, path.front()) != recipe.names.end()) continue;
    std::string known;
    for (const std::string& one : recipe.names) known += (known.empty() ? "" : ", ") + one;
    refuse(std::string(what) + " " + text::quoted(expression) + " reads " + text::quoted(path.front()) +
           ", which does not exist: there is " + known + made.hint());
  }
  return made;
}

std::string selects_nothing(std::string_view expression, const Selector& selector, Dialect dialect) {
  return text::quoted(expression) + " selects nothing" + (dialect == Dialect::native ? selector.hint() : std::string());
}

std::string lacks_a_part(std::string_view expression, const Selector& selector, const Selector::Selection& selection) {
  return "a part of what " + text::quoted(expression) + " puts together is " +
         (selection.null_part ? "null" : "empty") +
         (selector.hint().empty() ? "; the option allow_null_parts accepts that" : selector.hint());
}

}  // namespace

std::string_view to_string(Dialect dialect) noexcept { return dialect_names[static_cast<std::size_t>(dialect)]; }

std::optional<Dialect> dialect_from(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(dialect_names, name);
  if (found == dialect_names.end()) return std::nullopt;
  return static_cast<Dialect>(found - dialect_names.begin());
}

struct KeyDeriver::Parts {
  explicit Parts(Recipe r)
      : recipe(std::move(r)),
        scope(recipe.scope),
        hash(recipe.dialect, recipe.hash),
        expression(selector(recipe.expression, recipe, "the key expression")),
        compared(selector(recipe.fingerprint, recipe, "the fingerprint expression")) {
    if (recipe.dialect == Dialect::native && compared && !compared->reads_event()) {
      refuse("the fingerprint expression " + text::quoted(recipe.fingerprint) +
             " has nothing but constants: it compares nothing");
    }
    checks_selection = recipe.only_selected_exact && rules.exact_numbers && !compared && is_path(recipe.expression);
    if (checks_selection) rules.exact_numbers = false;
  }

  // The text to compare. Throws if the recipe requires one and there is none.
  [[nodiscard]] std::string text_to_compare(const Value& event, json::Arena& arena) const;
  [[nodiscard]] Fingerprint fingerprint(std::string_view text) const;

  Recipe recipe;
  KeyScope scope;  // native
  Hash hash;
  std::optional<Selector> expression;
  std::optional<Selector> compared;
  json::Rules rules = rules_of(recipe.dialect);
  bool checks_selection = false;  // Checks the selected numbers, because `rules` accepts all.
};

KeyDeriver::KeyDeriver(Recipe recipe) : parts_(std::make_unique<const Parts>(std::move(recipe))) {}
KeyDeriver::KeyDeriver(KeyDeriver&&) noexcept = default;
KeyDeriver& KeyDeriver::operator=(KeyDeriver&&) noexcept = default;
KeyDeriver::~KeyDeriver() = default;

const Recipe& KeyDeriver::recipe() const noexcept { return parts_->recipe; }

std::string KeyDeriver::Parts::text_to_compare(const Value& event, json::Arena& arena) const {
  const Selector::Selection selected = compared->select(event, arena);
  if (recipe.require_key && recipe.dialect == Dialect::native) {
    if (!selected.found || only_nulls(selected.value)) {
      refuse("there is nothing to compare: " + selects_nothing(recipe.fingerprint, *compared, recipe.dialect));
    }
    if (selected.null_part && !recipe.allow_null_parts) {
      refuse("the fingerprint is incomplete: " + lacks_a_part(recipe.fingerprint, *compared, selected));
    }
  }
  return hashed_text(selected.value, recipe.dialect);
}

Fingerprint KeyDeriver::Parts::fingerprint(std::string_view text) const {
  return recipe.dialect == Dialect::native ? Fingerprint::of(text) : Fingerprint(hash(text));
}

Fingerprint KeyDeriver::fingerprint(std::string_view json_text) const {
  const once::detail::RoundToNearest rounding;  // For sum() and avg() of an expression.
  if (!parts_->compared) return {};
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  return parts_->fingerprint(parts_->text_to_compare(json::parse(json_text, parts_->rules, arena, "the event"), arena));
}

Derived KeyDeriver::derive(std::string_view json_text) const {
  const once::detail::RoundToNearest rounding;
  const Recipe& recipe = parts_->recipe;
  // Most events fit, so that parsing one costs no allocation.
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  const Value event = json::parse(json_text, parts_->rules, arena, "the event");

  const bool native = recipe.dialect == Dialect::native;
  const Selector::Selection selection = parts_->expression ? parts_->expression->select(event, arena)
                                                           : Selector::Selection{.value = event, .found = true};
  const Value& selected = selection.value;
  if (parts_->checks_selection) check_numbers(selected);
  Derived derived;
  const bool nothing = is_missing(selected, recipe) || (native && !selection.found);
  const bool partly = !recipe.allow_null_parts && (selection.null_part || selection.empty_part);
  if (nothing || partly) {
    if (recipe.require_key) {
      refuse("the event has no key: " + (!parts_->expression ? "it is empty or null"
                                         : nothing
                                             ? selects_nothing(recipe.expression, *parts_->expression, recipe.dialect)
                                             : lacks_a_part(recipe.expression, *parts_->expression, selection)));
    }
    return derived;
  }
  derived.key_text = hashed_text(selected, recipe.dialect);
  if (recipe.makes_label) {
    const std::string_view label =
        selected.kind() == Kind::string ? selected.text() : std::string_view(derived.key_text);
    derived.label = label.substr(0, Record::max_text_bytes + 4);  // With all of the character that the engine cuts.
  }
  const Hash::Digest digest = parts_->hash(derived.key_text);
  if (native) {
    std::array<char, std::size_t{2} * EVP_MAX_MD_SIZE> digits{};
    const char* const end = text::put_hex(digest, digits.data());
    derived.key = parts_->scope.key({digits.data(), end});
  } else {
    derived.key = Key::from_stored(recipe.scope + "#" + digest_text(recipe.dialect, digest));
  }
  if (parts_->compared) {
    derived.fingerprint_text = parts_->text_to_compare(event, arena);
    derived.fingerprint = parts_->fingerprint(derived.fingerprint_text);
  }
  return derived;
}

std::string digest_text(Dialect dialect, std::string_view digest) {
  if (dialect == Dialect::powertools_typescript) return text::encode_base64(digest);
  std::string hex = to_hex(digest);
  constexpr std::size_t java_digits = 32;
  if (dialect == Dialect::powertools_java && hex.size() > java_digits) {
    hex.erase(0, std::min(hex.find_first_not_of('0'), hex.size() - java_digits));
  }
  return hex;
}

std::optional<Fingerprint> digest_from_text(Dialect dialect, std::string_view text) {
  if (dialect == Dialect::powertools_typescript) {
    const auto decoded = text::decode_base64(text);
    if (!decoded || decoded->empty() || decoded->size() > Fingerprint::max_bytes) return std::nullopt;
    return Fingerprint(*decoded);
  }
  std::string hex(text);
  if (dialect == Dialect::powertools_java && hex.size() >= 32) {
    // The digest had one of these lengths before its zeros were dropped.
    for (const std::size_t digits : {32U, 40U, 48U, 56U, 64U, 96U, 128U}) {
      if (hex.size() > digits) continue;
      hex.insert(0, digits - hex.size(), '0');
      break;
    }
  }
  const auto bytes = text::from_hex(hex);
  if (!bytes || bytes->empty() || bytes->size() > Fingerprint::max_bytes || text::lower(hex) != hex)
    return std::nullopt;
  return Fingerprint(*bytes);
}

std::string powertools_scope(Dialect dialect, std::optional<std::string_view> lambda_function,
                             std::string_view function, std::string_view key_prefix) {
  const auto trim = [](std::string_view text) { return text::trim(text, " \t\n\v\f\r"); };
  const auto joined = [&](std::string_view fallback) {
    return std::string(lambda_function.value_or(fallback)) + "." + std::string(function);
  };
  switch (dialect) {
    case Dialect::native:
      break;
    case Dialect::powertools_python:
      return key_prefix.empty() ? joined("test-func") : std::string(key_prefix);
    case Dialect::powertools_typescript:
      if (!trim(key_prefix).empty()) return std::string(trim(key_prefix));
      return trim(function).empty() ? std::string(lambda_function.value_or(""))
                                    : std::string(lambda_function.value_or("")) + "." + std::string(trim(function));
    case Dialect::powertools_java:
      if (!key_prefix.empty()) refuse("Powertools for Java has no key prefix: leave it out");
      return joined("testFunction");
    case Dialect::powertools_dotnet:
      return key_prefix.empty() ? joined("testFunction") : std::string(key_prefix);
  }
  refuse("native keys have no prescribed scope: choose one, such as \"payments/charge\"");
}

std::string canonical_text(std::string_view json_text) {
  std::array<std::byte, 16384> first;  // NOLINT(cppcoreguidelines-pro-type-member-init): raw room
  std::pmr::monotonic_buffer_resource arena(first.data(), first.size());
  return hashed_text(json::parse(json_text, rules_of(Dialect::native), arena, "the text"), Dialect::native);
}

}  // namespace once::keys
