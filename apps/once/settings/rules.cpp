#include "settings/rules.hpp"

#include <algorithm>
#include <once/error.hpp>

#include "output/text.hpp"
#include "text/number.hpp"

namespace once::cli {

namespace {

std::optional<CommandFate> fate_from(std::string_view word) {
  if (word == "store") return CommandFate::store;
  if (word == "release") return CommandFate::release;
  if (word == "hold") return CommandFate::hold;
  return std::nullopt;
}

CommandFate fate_of_option(std::string_view word, std::string_view option) {
  if (const auto fate = fate_from(word)) return *fate;
  misuse(std::string(option) + " is '" + escaped(word) + "'; it is store, release or hold");
}

int exit_code_from(std::string_view text, const std::string& rule) {
  const int code = text::parse_whole<int>(text).value_or(0);
  if (code >= 1 && code <= 255) return code;
  misuse("--on-exit " + escaped(rule) + ": '" + escaped(text) + "' is not the exit code of a failure (1 to 255)");
}

}  // namespace

Rules::Rules(std::string_view on_failure, std::string_view on_signal, const std::vector<std::string>& on_exit,
             CommandFate failure)
    : on_failure_(failure) {
  if (!on_failure.empty()) on_failure_ = fate_of_option(on_failure, "--on-failure");
  if (!on_signal.empty())
    on_signal_ = fate_of_option(on_signal, "--on-signal");
  else if (!on_failure.empty())
    on_signal_ = on_failure_;  // --on-failure applies to signals too.
  for (const std::string& rule : on_exit) {
    const auto equals = rule.find('=');
    if (equals == std::string::npos) misuse("--on-exit " + escaped(rule) + ": write CODES=WHAT, as in 75=release");
    const std::string_view what = std::string_view(rule).substr(equals + 1);
    const std::optional<CommandFate> fate = what == "success" ? CommandFate::success : fate_from(what);
    if (!fate) misuse("--on-exit " + escaped(rule) + ": after the = write success, store, release or hold");
    for (const std::string& part : split(std::string_view(rule).substr(0, equals), ',')) {
      const auto dash = part.find('-');
      const int first = exit_code_from(std::string_view(part).substr(0, dash), rule);
      const int last =
          dash == std::string::npos ? first : exit_code_from(std::string_view(part).substr(dash + 1), rule);
      if (last < first) misuse("--on-exit " + escaped(rule) + ": " + part + " ends before it begins");
      for (int code = first; code <= last; ++code) by_code_[code] = *fate;
    }
  }
}

bool Rules::may_hold() const {
  return on_failure_ == CommandFate::hold || on_signal_ == CommandFate::hold ||
         std::ranges::any_of(by_code_, [](const auto& rule) { return rule.second == CommandFate::hold; });
}

CommandFate Rules::fate(CommandEnd end, bool interrupted, OnLapse on_lapse) const {
  // A killed command counts as a crash, as if `once` had been killed too.
  const CommandFate killed = on_signal_.value_or(on_lapse == OnLapse::hold ? CommandFate::hold : CommandFate::release);
  if (end.signaled) return killed;
  if (end.code == 0) return CommandFate::success;
  if (const auto rule = by_code_.find(end.code); rule != by_code_.end()) return rule->second;
  return interrupted ? killed : on_failure_;
}

}  // namespace once::cli
