#include "frontends/mcp/rules.hpp"

#include <algorithm>
#include <map>
#include <memory_resource>
#include <utility>

#include <once/error.hpp>

#include "keys/jmespath/selector.hpp"
#include "text/ascii.hpp"
#include "text/missing_value.hpp"
#include "text/netstring.hpp"

namespace once::mcp {

namespace {

constexpr json::Rules as_the_server_reads{
    .unique_names = false, .exact_numbers = false, .lone_surrogates = true, .nan_and_infinity = true};

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

using Paths = std::vector<keys::Selector::Path>;

// Whether calls of one key and fingerprint have the same value there. `same`: where they have.
bool is_the_same(const keys::Selector::Path& path, const Paths& same) {
  return std::ranges::any_of(same, [&](const keys::Selector::Path& one) {
    return one.size() <= path.size() && std::equal(one.begin(), one.end(), path.begin());
  });
}

// A repeated call asks about the first one. What it asks by must be that of the first one too.
void check_question(const ToolRule& rule, const keys::Selector& arguments, const keys::Selector& done) {
  Paths same;
  const auto add = [&](const std::string& expression) {
    if (expression.empty()) return;
    const Paths more = keys::Selector(expression, keys::Dialect::native, "the expression").reads();
    same.insert(same.end(), more.begin(), more.end());
  };
  if (rule.kind == ToolRule::Kind::run) add("@");
  if (rule.kind == ToolRule::Kind::argument) add(rule.expression);
  add(rule.fingerprint);
  Paths asked = arguments.reads();
  bool reads_result = false;
  for (const keys::Selector::Path& path : done.reads()) {
    if (path.empty() || path.front() != "arguments") reads_result = true;
    if (path.empty()) asked.emplace_back();
    if (!path.empty() && path.front() == "arguments") asked.emplace_back(path.begin() + 1, path.end());
  }
  if (!reads_result) throw Exception(ErrorKind::misuse, "reconcile-done reads nothing of the result");
  for (const keys::Selector::Path& path : asked) {
    if (is_the_same(path, same)) continue;
    std::string name = path.empty() ? "all arguments" : path.front();
    throw Exception(ErrorKind::misuse, "reconcile asks by " + name +
                                           ", which another call of the same key may have otherwise: let key or "
                                           "fingerprint read it too");
  }
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
    std::optional<keys::Selector> ask_arguments;
    std::optional<keys::Selector> ask_done;
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
    Parts::Compiled compiled{
        .rule = rule, .deriver = std::nullopt, .input = {}, .ask_arguments = std::nullopt, .ask_done = std::nullopt};
    try {
      check(rule.policy);
      if (rule.kind == ToolRule::Kind::argument || rule.kind == ToolRule::Kind::meta ||
          rule.kind == ToolRule::Kind::run) {
        compiled.deriver.emplace(recipe_of(options, rule));
        compiled.input = keys::InputFilter(rule.input_without);
      }
      if (rule.ask_tool.empty() != rule.ask_arguments.empty() || rule.ask_tool.empty() != rule.ask_done.empty()) {
        throw Exception(ErrorKind::misuse, "reconcile, reconcile-arguments and reconcile-done go together");
      }
      if (!rule.ask_tool.empty()) {
        compiled.ask_arguments.emplace(rule.ask_arguments, keys::Dialect::native, "reconcile-arguments");
        compiled.ask_done.emplace(rule.ask_done, keys::Dialect::native, "reconcile-done");
        check_question(rule, *compiled.ask_arguments, *compiled.ask_done);
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

std::optional<Question> Rules::question(const ToolRule& rule, const json::Value& arguments) const {
  std::pmr::monotonic_buffer_resource arena;
  try {
    const json::Value asked = (*parts_->tools.find(rule.name)->second.ask_arguments)(arguments, arena);
    if (asked.kind() != json::Kind::object) return std::nullopt;
    for (const json::Member& member : asked.members()) {
      if (keys::is_nothing(member.value)) return std::nullopt;
    }
    return Question{.arguments = one_line(arguments), .to_ask = one_line(asked)};
  } catch (const Exception&) {
    return std::nullopt;
  }
}

std::optional<bool> Rules::was_done(const ToolRule& rule, const Question& question, const std::string& result) const {
  const keys::Selector& says = *parts_->tools.find(rule.name)->second.ask_done;
  const auto said_by = [&](const std::string& text) -> std::optional<bool> {
    std::pmr::monotonic_buffer_resource arena;
    try {
      const std::string both = R"({"arguments":)" + question.arguments + R"(,"result":)" + text + "}";
      const json::Value done = says(json::parse(both, as_the_server_reads, arena, "the result"), arena);
      if (done.kind() == json::Kind::boolean) return done.truth();
    } catch (const Exception&) {  // NOLINT(bugprone-empty-catch): it does not say.
    }
    return std::nullopt;
  };
  const std::optional<bool> done = said_by(result);
  if (done != false) return done;
  for (const char* const nothing : {R"({"content":[]})", R"({"content":[],"structuredContent":{"other":null}})"}) {
    if (said_by(nothing) == false) return std::nullopt;
  }
  return false;
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
      const ToolRule* const asked = rule.ask_tool.empty() ? nullptr : rules.find(rule.ask_tool);
      if (!rule.ask_tool.empty() && (asked == nullptr || asked->kind != ToolRule::Kind::read_only)) {
        out.mistakes.push_back(name + "reconcile names " + text::quoted(rule.ask_tool) +
                               ", which has no rule with read-only");
      }
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
