// What the end of a command means: kept, run again, or unknown. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/policy.hpp>

#include "process/run_result.hpp"

namespace once::cli {

enum class CommandFate : std::uint8_t {
  success,  // Kept and replayed, as completed.
  store,    // Stored and replayed, as failed.
  release,  // The claim is given up: whoever asks next runs it.
  hold,     // Unknown: nobody runs it until somebody decides.
};

class Rules {
 public:
  // `on_failure` and `on_signal`: "store", "release", "hold", or empty for the default: `failure`, and what the record
  // says of a lapse. `on_exit`: "75=release", "2,3=store", "10-19=hold", "1=success"; the last one that names a code
  // counts. Throws Exception(misuse).
  Rules(std::string_view on_failure, std::string_view on_signal, const std::vector<std::string>& on_exit,
        CommandFate failure = CommandFate::store);

  // `interrupted`: somebody asked the command to end before it did. `on_lapse`: the record's.
  [[nodiscard]] CommandFate fate(CommandEnd end, bool interrupted, OnLapse on_lapse) const;

 private:
  CommandFate on_failure_;
  std::optional<CommandFate> on_signal_;
  std::map<int, CommandFate> by_code_;
};

}  // namespace once::cli
