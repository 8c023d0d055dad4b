// What the end of a command means: stored, released, or unknown. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/policy.hpp>

#include "operators/run_result.hpp"
#include "output/names.hpp"

namespace once::cli {

enum class CommandFate : std::uint8_t {
  success,  // Stored and replayed, as completed.
  store,    // Stored and replayed, as failed.
  release,  // The claim is released: the next call runs the command.
  hold,     // The outcome is unknown: an operator decides.
};

class Rules {
 public:
  // `on_failure` and `on_signal`: "store", "release", "hold", or empty for the defaults: `failure`, and the record's
  // on_lapse. `on_exit`: "75=release", "2,3=store", "10-19=hold", "1=success"; the last one for a code counts. Throws
  // Exception(misuse).
  Rules(std::string_view on_failure, std::string_view on_signal, const std::vector<std::string>& on_exit,
        CommandFate failure = CommandFate::store);

  // `interrupted`: the command was asked to end. `on_lapse`: the record's.
  [[nodiscard]] CommandFate fate(CommandEnd end, bool interrupted, OnLapse on_lapse) const;

  // Whether an end of the command may be unknown by these rules, whatever on_lapse says.
  [[nodiscard]] bool may_hold() const;

 private:
  CommandFate on_failure_;
  std::optional<CommandFate> on_signal_;
  std::map<int, CommandFate> by_code_;
};

}  // namespace once::cli
