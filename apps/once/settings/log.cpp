#include "settings/log.hpp"

#include <CLI/CLI.hpp>

#include <once/platform/environment.hpp>

#include "output/report.hpp"

namespace once::cli {

void add_log_flags(CLI::App& command, LogFlags& flags, const std::string& usual_format) {
  flags.format = usual_format;
  command
      .add_option("--log", flags.format,
                  "A line on standard error for each claim, replay, conflict …: text, json or none")
      ->check(CLI::IsMember({"text", "json", "none"}));
  command.add_option("--log-level", flags.level, "The least severe lines: err, warning, notice, info or debug")
      ->check(CLI::IsMember({"err", "warning", "notice", "info", "debug"}));
}

std::optional<LogOptions> log_options(const LogFlags& flags) {
  if (flags.format == "none") return std::nullopt;
  return LogOptions{.format = flags.format == "json" ? LogFormat::json : LogFormat::text,
                    .level = log_level_from_string(flags.level).value()};
}

Observer log_observer(const std::optional<LogOptions>& options) {
  if (!options) return [](const Event&) {};
  return LogObserver(*options);
}

Observer service_log_observer(const std::optional<LogOptions>& options) {
  const bool is_logged = options && options->level >= level_of(EventKind::unprotected);
  if (is_logged || !is_disabled_by_environment()) return log_observer(options);
  return [log = log_observer(options)](const Event& event) {
    if (event.kind == EventKind::unprotected)
      say("ONCE_DISABLED is set: an operation runs unprotected, so that it may run twice", LogLevel::warning);
    log(event);
  };
}

}  // namespace once::cli
