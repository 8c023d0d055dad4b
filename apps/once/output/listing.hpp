// The records that `ls` and `find` print: rows for people, or a JSON array. Written as they come, in pieces, because
// there may be millions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "output/progress.hpp"
#include "output/text.hpp"
#include "process/exit_codes.hpp"

namespace once::cli {

class Listing {
 public:
  // `matches`: each record comes with the reason why it was found.
  Listing(bool json, bool matches, Time now);

  // False: the output failed, so there is no use in more.
  bool add(const Record& record, std::string_view match = {});
  // How many records were read so far, for people who wait.
  void read(std::uint64_t records) { progress_.show(records); }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  // Prints the rest. `error`: why records may be missing. Returns the exit code.
  int end(const std::optional<Error>& error);

 private:
  void write(std::string_view text);

  const bool json_;
  const bool matches_;
  const Time now_;
  Table table_;
  std::string text_;
  Progress progress_{"read"};
  std::uint64_t count_ = 0;
  int written_ = exit_ok;
};

}  // namespace once::cli
