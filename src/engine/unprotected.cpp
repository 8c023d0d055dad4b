// No other code of the library prints: missing protection, and what must not go unnoticed, is reported even without an
// observer.
#include <cstdio>
#include <mutex>
#include <string>

#include "engine/core.hpp"
#include "engine/run.hpp"
#include "text/utf8.hpp"

namespace once {

namespace {

void print(std::string_view operation, std::string_view text) {
  std::string line = "once: '" + text::escape_invisible(text::replace_invalid_utf8(operation)) + "' ";
  line.append(text).append("\n");
  std::fputs(line.c_str(), stderr);
}

constexpr std::string_view once_for_each = ". This is reported once; EngineOptions::observer gets an event each time.";

}  // namespace

void EngineCore::warn_once(EventKind kind, std::string_view operation, std::string_view text) const {
  constexpr std::size_t most_told = 1'000;  // A limit for programs that make endlessly many operations.
  {
    const std::lock_guard lock(told_mutex_);
    if (told_.size() == most_told || !told_.emplace(kind, operation).second) return;
  }
  print(operation, std::string(text) + std::string(once_for_each));
}

void EngineCore::warn(const Event& event) const {
  const std::string_view operation = scope_of(event.key);
  const std::string why = event.error == nullptr ? "" : " (" + event.error->message + ")";
  switch (event.kind) {
    case EventKind::unrecorded:
      return warn_once(event.kind, operation,
                       "ran, but its result is not recorded" + why + ", so that it may run again after its lease");
    case EventKind::finish_refused:
      return warn_once(event.kind, operation,
                       "ran, but had lost its claim, so that its result is not stored: it took longer than its lease, "
                       "and may have run twice");
    case EventKind::unknown:
      return warn_once(event.kind, operation,
                       "is not run: how an earlier attempt ended is unknown, and an operator must decide (once ls "
                       "--state unknown)");
    default:
      return;
  }
}

void EngineCore::tell_unprotected(std::string_view operation, std::string_view key) {
  if (options.observer) options.observer({.kind = EventKind::unprotected, .key = key});
  if (is_observed) return;
  if (*options.disabled) return print(operation, "runs unprotected, so that it may run twice: ONCE_DISABLED is set");
  warn_once(EventKind::unprotected, operation,
            std::string("runs unprotected, so that it may run twice: ") +
                (key.empty() ? "it has no key, or protection is switched off" : "its store does not answer"));
}

}  // namespace once
