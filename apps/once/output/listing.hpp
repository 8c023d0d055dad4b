// The records that `ls` and `find` print: rows for people, or a JSON array. Written as they come, in pieces, because
// there may be millions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "output/exit_codes.hpp"
#include "output/progress.hpp"
#include "output/text.hpp"

namespace CLI {
class App;
}

namespace once::cli {

struct ListingOptions {
  std::string columns;
  std::string sort;
  std::optional<std::uint64_t> limit;
  bool reverse = false;
  bool json = false;
};

void add_listing_options(CLI::App& command, ListingOptions& options);

struct Column;  // What a record is listed by.

class Listing {
 public:
  // `matches`: each record comes with the reason why it was found. Throws Exception(misuse) for unknown columns.
  Listing(ListingOptions options, bool matches);

  // False: there is no use in more records. The limit is reached, or the output failed.
  bool add(const Record& record, Time now, std::string_view match = {});
  // How many records were read so far, for people who wait.
  void read(std::uint64_t records) { progress_.show(records); }
  // How many records were added, also those that the limit cut off.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  // Prints the rest. `error`: why records may be missing. Returns the exit code.
  int end(const std::optional<Error>& error);

 private:
  using Row = std::vector<std::string>;  // Its cells, or its JSON.

  void put(Row row);
  void write(std::string_view text);

  const ListingOptions options_;
  const bool matches_;
  std::vector<const Column*> columns_;
  const Column* order_ = nullptr;
  std::uint64_t limit_ = 0;
  std::multimap<std::string, Row> sorted_;  // At most limit_.
  Table table_;
  std::string text_;
  Progress progress_{"read"};
  std::uint64_t count_ = 0;
  bool any_ = false;
  int written_ = exit_ok;
};

}  // namespace once::cli
