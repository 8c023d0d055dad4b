// What a row of another program's table means: which key, which state, which result, until when.
//
// One rule comes before all others: a row never becomes a record that lets the work run again, and no row is left out
// in silence. What cannot be mapped is refused with its reason. An operation that the row calls in progress becomes an
// unknown record, whatever its lease or expiry: it began, and only a person, or the old program, knows what became of
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <once/record.hpp>
#include <once/time.hpp>

#include "import/rows.hpp"

namespace once::cli::importing {

// As on the command line; expressions are JMESPath over a row, or "one of a, b": the only one of these columns that the
// row has. A row with two of them is refused. Empty: the preset's, or none.
struct MappingOptions {
  std::string preset;       // One of preset_names().
  std::string key;          // Selects the key.
  std::string key_prefix;   // What the selected text begins with, and the key does not: "IDEMPOTENCY#".
  std::string hash;         // "sha256" or "md5": the key's name is the digest, as KeyDeriver makes it. Empty: the text.
  std::string scope;        // The scope of all keys …
  std::string scope_from;   // … or an expression that selects it.
  std::string where;        // Rows for which this is false are left out.
  std::string state;        // Selects a word …
  std::string completed;    // … which is one of these, separated by commas. Upper and lower case count as the same.
  std::string failed;       // Words of operations whose failure is replayed.
  std::string in_progress;  // Words of operations that become unknown.
  std::string may_run;      // Words of operations that may run again: their rows are left out.
  std::string result;       // Selects what is replayed.
  std::string result_as;    // "json", "json-text", "json-any", "text", "http". Empty: the preset's, or "json".
  std::string no_result;    // A completed row without a result: "tombstone", "null" or "empty".
  std::string http_status;  // http: selects the status …
  std::string http_headers;         // … and the headers.
  std::string error;                // Selects the message of a failure.
  std::string fingerprint;          // Selects what a retry must repeat, as the key recipe of the new program does.
  std::string expires;              // Selects when the row counts no more; also "latest of a, b". Nothing: never.
  std::string created;              // Selects when the operation began …
  std::string finished;             // … and ended.
  std::string holder;               // Selects who ran it, for people.
  std::string expired;              // Rows that have expired: "skip" or "keep". Empty: "skip", and not decided.
  bool utc = false;                 // Times without a time zone are UTC. Otherwise they are refused.
  Millis retention = keep_forever;  // For rows without an expiry, and for kept ones: from the import on.
};

struct Mapped {
  enum class Kind : std::uint8_t {
    record,    // `record` is to be inserted.
    expired,   // The old program lets the work run again, and so does once: nothing is inserted.
    left_out,  // Because of MappingOptions::where.
    may_run,   // Because of MappingOptions::may_run.
    refused,   // It cannot be mapped: see `why`.
  };
  Kind kind = Kind::refused;
  std::string why = {};
  Record record = {};                 // Without owner, token and revision.
  std::set<std::string> absent = {};  // Those of Mapping::where_columns() that the row does not have.
};

class Mapping {
 public:
  // Throws Exception(misuse) for options that make no sense, and expressions that cannot be compiled.
  explicit Mapping(MappingOptions options);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Does not throw for what is wrong with a row. `from`: Rows::name().
  [[nodiscard]] Mapped map(const Row& row, Time now, const std::string& from) const;

  // The columns that MappingOptions::where names.
  [[nodiscard]] const std::set<std::string>& where_columns() const noexcept;

  // With what the preset adds.
  [[nodiscard]] const MappingOptions& options() const noexcept;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

std::vector<std::string_view> preset_names();

// A completed record whose result is not kept: a replay says so, and the work does not run again.
void make_tombstone(Record& record);

// HistoryEntry::what of imported records, and Failure::code of those that were in progress.
inline constexpr std::string_view imported = "imported";

// A row's time: a number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size, also
// as a text; or a date with a time of day, as RFC 3339 and SQL write it. Of two readings of a number, the later one.
// 0 is `never`. `json`: the selected value. Throws Exception(misuse) for anything else.
Time row_time(std::string_view json, bool utc);

}  // namespace once::cli::importing
