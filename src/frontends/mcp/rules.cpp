#include "frontends/mcp/rules.hpp"

#include <map>
#include <utility>

#include <once/error.hpp>

#include "text/ascii.hpp"
#include "text/missing_value.hpp"
#include "text/netstring.hpp"

namespace once::mcp {

namespace {

// A part of a scope. '/' ends it, so a part has none.
std::string scope_part(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '%') {
      out += "%25";
    } else if (c == '/') {
      out += "%2F";
    } else {
      out += c;
    }
  }
  return out;
}

// payments/refund, or payments/refund/alice.
std::string scope_of(const RuleOptions& options, const ToolRule& rule) {
  std::string scope = scope_part(options.scope) + "/" + scope_part(rule.name);
  if (!options.principal.empty()) scope += "/" + scope_part(options.principal);
  return scope;
}

keys::Recipe recipe_of(const RuleOptions& options, const ToolRule& rule, std::vector<std::string> names = {}) {
  return {.scope = scope_of(options, rule),
          .expression = rule.kind == ToolRule::Kind::argument ? rule.expression : "@",
          .fingerprint = rule.kind == ToolRule::Kind::run ? std::string() : rule.fingerprint,
          .allow_null_parts = rule.allow_null_parts,
          .names = std::move(names)};
}

[[noreturn]] void refuse_rule(const ToolRule& rule, const std::string& why) {
  throw Exception(ErrorKind::misuse, "tool " + text::quoted(rule.name) + ": " + why);
}

// A key or a run that a client names. Empty: it is none, and `why` says so.
std::string named(const json::Value& meta, const std::string& name, std::string& why) {
  const json::Value value = meta.kind() == json::Kind::object ? meta.member(name) : json::Value();
  const std::string_view text = value.string_or_empty();
  if (value.is_null()) {
    why = "_meta has no " + text::quoted(name);
  } else if (value.kind() != json::Kind::string) {
    why = text::quoted(name) + " in _meta is not a string";
  } else if (text.empty() || text.size() > max_name_in_meta_bytes || text::is_missing_value(text)) {
    why = text::quoted(name) + " in _meta is empty, longer than " + std::to_string(max_name_in_meta_bytes) +
          " bytes, or the text of a missing value";
  } else {
    return std::string(text);
  }
  return {};
}

}  // namespace

std::string key_words(const ToolRule& rule) {
  switch (rule.kind) {
    case ToolRule::Kind::argument:
      return rule.expression;
    case ToolRule::Kind::meta:
      return rule.meta;
    default:
      return "arguments in this run";
  }
}

struct Rules::Parts {
  struct Compiled {
    ToolRule rule;
    std::optional<keys::KeyDeriver> deriver;
    keys::InputFilter input;
  };
  RuleOptions options;
  std::map<std::string, Compiled, std::less<>> tools;
};

Rules::Rules(RuleOptions options) {
  auto parts = std::make_unique<Parts>();
  if (options.scope.empty())
    throw Exception(ErrorKind::misuse, "scope is missing: name this server, as in \"payments\"");
  if (!options.run.empty() && !options.run_meta.empty()) {
    throw Exception(ErrorKind::misuse, "the run is said twice, by run and by run-meta: a call has one run");
  }
  if (options.run.size() > max_name_in_meta_bytes)
    throw Exception(ErrorKind::misuse, "the run is longer than 255 bytes");
  for (const ToolRule& rule : options.tools) {
    Parts::Compiled compiled{.rule = rule, .deriver = std::nullopt, .input = {}};
    try {
      check(rule.policy);
      if (rule.kind == ToolRule::Kind::argument || rule.kind == ToolRule::Kind::meta ||
          rule.kind == ToolRule::Kind::run) {
        compiled.deriver.emplace(recipe_of(options, rule));
        compiled.input = keys::InputFilter(rule.input_without);
      }
    } catch (const Exception& error) {
      refuse_rule(rule, error.what());
    }
    if (rule.kind == ToolRule::Kind::run && options.run.empty() && options.run_meta.empty()) {
      refuse_rule(rule, "its key is the run, and nothing says which run a call belongs to: set run-meta or --run");
    }
    if (!parts->tools.try_emplace(rule.name, std::move(compiled)).second) refuse_rule(rule, "it has two rules");
  }
  parts->options = std::move(options);
  parts_ = std::move(parts);
}

Rules::Rules(Rules&&) noexcept = default;
Rules& Rules::operator=(Rules&&) noexcept = default;
Rules::~Rules() = default;

const RuleOptions& Rules::options() const noexcept { return parts_->options; }

const ToolRule* Rules::find(std::string_view tool) const {
  const auto found = parts_->tools.find(tool);
  return found == parts_->tools.end() ? nullptr : &found->second.rule;
}

std::string Rules::mistake(const ToolRule& rule, const Tool& tool) const {
  const bool reads_arguments = rule.kind == ToolRule::Kind::argument || rule.kind == ToolRule::Kind::meta;
  if (!reads_arguments || !tool.has_all_arguments || tool.arguments.empty()) return {};
  std::vector<std::string> names;
  names.reserve(tool.arguments.size());
  for (const Argument& argument : tool.arguments) names.push_back(argument.name);
  try {
    const keys::KeyDeriver checked(recipe_of(parts_->options, rule, std::move(names)));
  } catch (const Exception& error) {
    return error.what();
  }
  return {};
}

CallKey Rules::key_of(const ToolRule& rule, const json::Value& arguments, const json::Value& meta) const {
  const Parts::Compiled& compiled = parts_->tools.find(rule.name)->second;
  const RuleOptions& options = parts_->options;
  CallKey out;
  const std::string text = one_line(arguments);
  try {
    if (rule.kind == ToolRule::Kind::argument) {
      keys::Derived derived = compiled.deriver->derive(text);
      if (!derived.key) {
        out.refusal = "the arguments have no key: " + text::quoted(rule.expression) +
                      " selects nothing of them, or is partly empty";
        return out;
      }
      out.key = std::move(derived.key);
      out.fingerprint = derived.fingerprint;
      out.label = std::move(derived.label);
      out.label_from_payload = true;
    } else if (rule.kind == ToolRule::Kind::meta) {
      const std::string name = named(meta, rule.meta, out.refusal);
      if (name.empty()) return out;
      out.key = Key(scope_of(options, rule), name);
      out.fingerprint = compiled.deriver->fingerprint(text);
      out.label = name;
    } else {
      out.run = options.run.empty() ? named(meta, options.run_meta, out.refusal) : options.run;
      if (out.run.empty()) return out;
      std::string joined;
      text::append_netstring(joined, "once-mcp-run");
      text::append_netstring(joined, out.run);
      text::append_netstring(joined, keys::canonical_text(text));
      out.key = Key(scope_of(options, rule), to_hex(sha256(joined)));
    }
  } catch (const Exception& error) {
    out.key.reset();
    out.refusal = std::string("the arguments cannot be compared: ") + error.what();
    return out;
  }
  if (rule.policy.keep_input.value_or(false)) out.input = compiled.input(text);
  return out;
}

Fit fit(const Rules& rules, const Tools& tools) {
  Fit out;
  for (const ToolRule& rule : rules.options().tools) {
    const std::string name = "tool " + text::quoted(rule.name) + ": ";
    const Tool* const tool = tools.find(rule.name);
    if (tool == nullptr) {
      out.mistakes.push_back(name + "the server has no such tool");
    } else if (tool->pin == rule.pin) {
      if (std::string mistake = rules.mistake(rule, *tool); !mistake.empty()) out.mistakes.push_back(name + mistake);
    } else {
      out.changed.push_back(name +
                            "it has changed since its rule was written, so its calls are refused. Look at it with " +
                            "once mcp --suggest. If the rule still fits, write pin = \"" + tool->pin + "\"");
    }
  }
  return out;
}

}  // namespace once::mcp
