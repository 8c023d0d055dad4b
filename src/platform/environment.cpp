#include <once/platform/environment.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include <once/error.hpp>

#include "text/ascii.hpp"

namespace once {

namespace {

std::optional<Millis> time_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [unit, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view name(unit, static_cast<std::size_t>(text.data() + text.size() - unit));
  using namespace std::chrono;
  if (name == "ms") return milliseconds(number);
  if (name == "s") return seconds(number);
  if (name == "m") return minutes(number);
  if (name == "h") return hours(number);
  if (name == "d") return days(number);
  return std::nullopt;
}

}  // namespace

Policy policy_from_environment(const std::function<void(std::string_view)>& tell) {
  Policy policy;
  std::string told;
  const auto read = [&](const std::string& name, std::optional<Millis> Policy::*member) {
    const char* const value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): the header says so.
    if (value == nullptr || *value == '\0') return;
    const std::string setting = name + "=" + value;
    const bool is_retention = member == &Policy::retention || member == &Policy::failure_retention;
    policy.*member = is_retention && std::string_view(value) == "never" ? keep_forever : time_of(value);
    if (!(policy.*member)) {
      throw Exception(ErrorKind::misuse,
                      setting +
                          " is not a duration: write a whole number and a unit, as in 500ms, 30s, 5m, "
                          "24h or 7d" +
                          (is_retention ? ", or never" : ""));
    }
    Policy alone;  // So that the error names this member.
    alone.*member = policy.*member;
    try {
      check(alone);
    } catch (const Exception& error) {
      throw Exception(error.kind(), setting + ": " + error.what());
    }
    told += (told.empty() ? "" : ", ") + setting;
  };
  read("ONCE_LEASE", &Policy::lease);
  read("ONCE_RETENTION", &Policy::retention);
  read("ONCE_FAILURE_RETENTION", &Policy::failure_retention);
  read("ONCE_EXPECT", &Policy::expected);
  read("ONCE_WAIT", &Policy::wait);
  if (policy.wait) policy.on_conflict = *policy.wait > Millis{0} ? OnConflict::wait : OnConflict::fail;
  if (!told.empty()) tell(told);
  return policy;
}

bool is_disabled(std::string_view word) {
  const std::string small = text::lower(word);
  constexpr std::array<std::string_view, 4> yes{"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 5> no{"", "0", "false", "no", "off"};
  if (std::ranges::find(yes, small) != yes.end()) return true;
  if (std::ranges::find(no, small) != no.end()) return false;
  throw Exception(ErrorKind::misuse, "ONCE_DISABLED is '" + std::string(word) +
                                         "': 1 runs everything unprotected, 0 (or leaving it out) protects it");
}

bool is_disabled_by_environment() {
  const char* const value = std::getenv("ONCE_DISABLED");  // NOLINT(concurrency-mt-unsafe): the header says so.
  return value != nullptr && is_disabled(value);
}

}  // namespace once
