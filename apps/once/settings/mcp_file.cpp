#include "settings/mcp_file.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/policy.hpp>

#include "output/nearest.hpp"
#include "output/text.hpp"
#include "settings/proxy_file.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

using mcp::OnError;
using mcp::ToolRule;
using Kind = ToolRule::Kind;

constexpr Millis run_retention{600'000};  // An equal call later than this is most likely new work.
constexpr Millis usual_retention{86'400'000};

// What a setting does. Throws Exception(misuse), which begins with the setting's name.
template <class Target>
struct Meaning {
  Setting::Kind kind = Setting::Kind::text;
  std::function<void(Target&, const Setting::Words&)> apply;
};
template <class Target>
using Meanings = std::map<std::string, Meaning<Target>, std::less<>>;

const std::string& only(const Setting::Words& words) { return words.front(); }
bool is_on(const Setting::Words& words) { return words.front() == "true"; }

template <class Choice>
Choice choice(const std::string& word, const std::string& name,
              std::initializer_list<std::pair<const char*, Choice>> choices) {
  std::string known;
  for (const auto& [text, value] : choices) {
    if (word == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  misuse(name + " is '" + escaped(word) + "'; write one of " + known);
}

// Those of a tool that may also stand outside, for all tools.
const Meanings<ToolRule>& rule_meanings() {
  static const Meanings<ToolRule> meanings{
      {"lease",
       {.apply = [](ToolRule& rule, const auto& words) { rule.policy.lease = parse_duration(only(words), "lease"); }}},
      {"retention",
       {.apply = [](ToolRule& rule,
                    const auto& words) { rule.policy.retention = parse_retention(only(words), "retention"); }}},
      {"failure-retention",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              rule.policy.failure_retention = parse_retention(only(words), "failure-retention");
            }}},
      {"expect",
       {.apply = [](ToolRule& rule,
                    const auto& words) { rule.policy.expected = parse_duration(only(words), "expect"); }}},
      {"wait",
       {.apply = [](ToolRule& rule, const auto& words) { rule.policy.wait = parse_duration(only(words), "wait"); }}},
      {"on-lapse",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              rule.policy.on_lapse =
                  choice<OnLapse>(only(words), "on-lapse", {{"hold", OnLapse::hold}, {"takeover", OnLapse::takeover}});
            }}},
      {"on-error",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              rule.on_error =
                  choice<OnError>(only(words), "on-error",
                                  {{"store", OnError::store}, {"release", OnError::release}, {"hold", OnError::hold}});
            }}},
      {"label",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              rule.policy.label = choice<Label>(only(words), "label",
                                                {{"named", Label::named}, {"all", Label::all}, {"none", Label::none}});
            }}},
      {"keep-input",
       {.kind = Setting::Kind::toggle,
        .apply = [](ToolRule& rule, const auto& words) { rule.policy.keep_input = is_on(words); }}},
      {"input-without",
       {.kind = Setting::Kind::list,
        .apply =
            [](ToolRule& rule, const auto& words) {
              rule.input_without.insert(rule.input_without.end(), words.begin(), words.end());
            }}},
      {"tell-model",
       {.kind = Setting::Kind::toggle,
        .apply = [](ToolRule& rule, const auto& words) { rule.tells_model = is_on(words); }}},
  };
  return meanings;
}

void choose(ToolRule& rule, Kind kind, const char* name) {
  if (rule.kind != Kind::none)
    misuse(std::string(name) + ": the tool has another of key, key-meta, key-run, read-only and unprotected");
  rule.kind = kind;
}

const Meanings<ToolRule>& tool_meanings() {
  static const Meanings<ToolRule> meanings{
      {"name", {.apply = [](ToolRule& rule, const auto& words) { rule.name = only(words); }}},
      {"pin", {.apply = [](ToolRule& rule, const auto& words) { rule.pin = only(words); }}},
      {"key",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              choose(rule, Kind::argument, "key");
              rule.expression = only(words);
              if (rule.expression.empty())
                misuse("key is empty: write JMESPath over the arguments, as in \"order_id\"");
            }}},
      {"key-meta",
       {.apply =
            [](ToolRule& rule, const auto& words) {
              choose(rule, Kind::meta, "key-meta");
              rule.meta = only(words);
              if (rule.meta.empty())
                misuse("key-meta is empty: write a name in _meta, as in \"com.example/idempotency-key\"");
            }}},
      {"key-run",
       {.kind = Setting::Kind::toggle,
        .apply =
            [](ToolRule& rule, const auto& words) {
              if (is_on(words)) choose(rule, Kind::run, "key-run");
            }}},
      {"read-only",
       {.kind = Setting::Kind::toggle,
        .apply =
            [](ToolRule& rule, const auto& words) {
              if (is_on(words)) choose(rule, Kind::read_only, "read-only");
            }}},
      {"unprotected",
       {.kind = Setting::Kind::toggle,
        .apply =
            [](ToolRule& rule, const auto& words) {
              if (is_on(words)) choose(rule, Kind::unprotected, "unprotected");
            }}},
      {"fingerprint",
       {.apply = [](ToolRule& rule,
                    const auto& words) { rule.fingerprint = only(words) == "none" ? "" : only(words); }}},
      {"reconcile", {.apply = [](ToolRule& rule, const auto& words) { rule.ask_tool = only(words); }}},
      {"reconcile-arguments", {.apply = [](ToolRule& rule, const auto& words) { rule.ask_arguments = only(words); }}},
      {"reconcile-done", {.apply = [](ToolRule& rule, const auto& words) { rule.ask_done = only(words); }}},
      {"reconcile-settle",
       {.apply = [](ToolRule& rule,
                    const auto& words) { rule.settle = parse_duration(only(words), "reconcile-settle"); }}},
      {"allow-null-parts",
       {.kind = Setting::Kind::toggle,
        .apply = [](ToolRule& rule, const auto& words) { rule.allow_null_parts = is_on(words); }}},
  };
  return meanings;
}

std::uint64_t count_of(const std::string& text, const char* name) {
  const auto count = text::parse_whole<std::uint64_t>(text);
  if (!count || *count == 0 || *count > 100'000)
    misuse(std::string(name) + " is '" + escaped(text) + "'; write a number from 1 to 100000");
  return *count;
}

const Meanings<McpFile>& file_meanings() {
  static const Meanings<McpFile> meanings{
      {"scope", {.apply = [](McpFile& file, const auto& words) { file.rules.scope = only(words); }}},
      {"principal", {.apply = [](McpFile& file, const auto& words) { file.rules.principal = only(words); }}},
      {"run-meta", {.apply = [](McpFile& file, const auto& words) { file.rules.run_meta = only(words); }}},
      {"trust-read-only-hint",
       {.kind = Setting::Kind::toggle,
        .apply = [](McpFile& file, const auto& words) { file.rules.trusts_read_only_hint = is_on(words); }}},
      {"store", {.apply = [](McpFile& file, const auto& words) { file.store = only(words); }}},
      {"offload", {.apply = [](McpFile& file, const auto& words) { file.offload = only(words); }}},
      {"answer-timeout",
       {.apply = [](McpFile& file,
                    const auto& words) { file.answer_timeout = parse_duration(only(words), "answer-timeout"); }}},
      {"stop-within",
       {.apply = [](McpFile& file,
                    const auto& words) { file.stop_within = parse_duration(only(words), "stop-within"); }}},
      {"sweep-interval",
       {.apply = [](McpFile& file,
                    const auto& words) { file.sweep_interval = parse_interval(only(words), "sweep-interval"); }}},
      {"message-limit",
       {.apply = [](McpFile& file,
                    const auto& words) { file.message_limit = parse_size(only(words), "message-limit"); }}},
      {"buffer-limit",
       {.apply = [](McpFile& file,
                    const auto& words) { file.buffer_limit = parse_size(only(words), "buffer-limit"); }}},
      {"max-requests",
       {.apply = [](McpFile& file, const auto& words) { file.max_requests = count_of(only(words), "max-requests"); }}},
  };
  return meanings;
}

class McpReader {
 public:
  McpReader(const TablesFile& file, std::vector<Complaint>& complaints) : file_(file), complaints_(complaints) {}

  McpFile read() {
    McpFile out;
    ToolRule usual;
    usual.policy.on_lapse = OnLapse::hold;
    usual.policy.on_conflict = OnConflict::wait;
    usual.policy.wait = Millis{30'000};
    for (const TableSetting& setting : file_.settings) {
      if (!apply(setting, file_meanings(), out) && !apply(setting, rule_meanings(), usual)) {
        unknown(setting, {"tool"}, names(file_meanings()), names(rule_meanings()));
      }
    }
    for (const TablesFile::Table& table : file_.tables) out.rules.tools.push_back(tool(table, usual));
    return out;
  }

 private:
  ToolRule tool(const TablesFile::Table& table, const ToolRule& usual) {
    ToolRule rule = usual;
    for (const TableSetting& setting : table.settings) {
      if (apply(setting, tool_meanings(), rule) || apply(setting, rule_meanings(), rule)) continue;
      if (file_meanings().contains(setting.key)) {
        complain(setting.place,
                 setting.key + " is a setting of the whole file, not of a tool: write it before the first [[tool]]");
      } else {
        unknown(setting, {}, names(tool_meanings()), names(rule_meanings()));
      }
    }
    if (!rule.policy.retention) rule.policy.retention = rule.kind == Kind::run ? run_retention : usual_retention;
    if (rule.name.empty()) complain(table.place, "a tool needs a name, as in name = \"refund\"");
    if (rule.pin.empty() && !rule.name.empty()) {
      complain(table.place,
               "tool '" + escaped(rule.name) +
                   "' needs the pin that `once mcp --suggest` prints: it says which tool you have looked at");
    }
    return rule;
  }

  template <class Target>
  bool apply(const TableSetting& setting, const Meanings<Target>& meanings, Target& target) {
    const auto found = meanings.find(setting.key);
    if (found == meanings.end()) return false;
    const Meaning<Target>& meaning = found->second;
    // A list of one may be written as one.
    const bool fits =
        meaning.kind == setting.kind || (meaning.kind == Setting::Kind::list && setting.kind == Setting::Kind::text);
    if (!fits) {
      const char* const what = meaning.kind == Setting::Kind::toggle ? "true or false"
                               : meaning.kind == Setting::Kind::list ? "an array of strings"
                                                                     : "a string";
      complain(setting.place, setting.key + " must be " + what);
      return true;
    }
    try {
      meaning.apply(target, setting.words);
    } catch (const Exception& error) {
      complain(setting.place, error.what());
    }
    return true;
  }

  template <class Target>
  static std::vector<std::string> names(const Meanings<Target>& meanings) {
    std::vector<std::string> out;
    for (const auto& [name, meaning] : meanings) out.push_back(name);
    return out;
  }

  void unknown(const TableSetting& setting, std::vector<std::string> known, const std::vector<std::string>& more,
               const std::vector<std::string>& others) {
    known.insert(known.end(), more.begin(), more.end());
    known.insert(known.end(), others.begin(), others.end());
    const std::string near = nearest(setting.key, known);
    complain(setting.place, "unknown setting '" + escaped(setting.key) + "'" +
                                (near.empty() ? std::string() : ": did you mean '" + near + "'?"));
  }

  void complain(const Place& place, std::string text) {
    complaints_.push_back({.place = place, .text = std::move(text)});
  }

  const TablesFile& file_;
  std::vector<Complaint>& complaints_;
};

}  // namespace

McpFile parse_mcp_file(const std::string& name, std::string text, std::vector<Complaint>& complaints) {
  const TablesFile file = parse_tables_file(name, std::move(text), "tool", complaints);
  return McpReader(file, complaints).read();
}

McpFile read_mcp_file(const std::string& name, std::vector<Complaint>& complaints) {
  const TablesFile file = read_tables_file(name, "tool", complaints);
  return McpReader(file, complaints).read();
}

}  // namespace once::cli
