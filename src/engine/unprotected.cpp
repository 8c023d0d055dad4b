// No other code of the library prints: missing protection is reported even without an observer.
#include <cstdio>
#include <mutex>
#include <string>

#include "engine/core.hpp"

namespace once {

void EngineCore::tell_unprotected(std::string_view operation, std::string_view key) {
  if (options.observer) return options.observer({.kind = EventKind::unprotected, .key = key});
  constexpr std::size_t most_told = 1'000;  // A limit for programs that make endlessly many operations.
  {
    const std::lock_guard lock(told_mutex_);
    if (told_unprotected_.size() == most_told || !told_unprotected_.emplace(operation).second) return;
  }
  const std::string line =
      "once: '" + std::string(operation) + "' runs unprotected, so that it may run twice: " +
      (key.empty() ? "it has no key, or protection is switched off" : "its store does not answer") +
      ". This is reported once; EngineOptions::observer gets an event each time.\n";
  std::fputs(line.c_str(), stderr);
}

}  // namespace once
