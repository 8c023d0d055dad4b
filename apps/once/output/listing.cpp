#include "output/listing.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/decide.hpp>
#include <once/operate.hpp>

#include "output/nearest.hpp"
#include "output/report.hpp"
#include "text/ascii.hpp"

namespace once::cli {

// Not in the anonymous namespace, since Column has its name in a header.
struct Listed {
  const Record& record;
  const KeyParts parts;
  const operate::Standing standing;
  const Time now;
  const std::string_view match;
};

namespace {

std::string until(const Listed& one) {
  const Record& record = one.record;
  const std::string overdue =
      is_overdue(record, one.now) ? ", overdue since " + relative(record.expected_until, one.now) : "";
  switch (one.standing) {
    case operate::Standing::running:
      return "lease " + relative(record.lease_until, one.now) + overdue;
    case operate::Standing::lapsed:
      return "lapsed " + relative(record.lease_until, one.now) + overdue;
    case operate::Standing::unknown:
      return "since " + relative(record.finished_at, one.now);
    case operate::Standing::released:
    case operate::Standing::completed:
    case operate::Standing::failed:
    case operate::Standing::expired:
      break;
  }
  return (one.standing == operate::Standing::expired ? "expired " : "expires ") + relative(record.expires_at, one.now) +
         overdue;
}

// The time that until() tells.
Time until_time(const Listed& one) {
  switch (one.standing) {
    case operate::Standing::running:
    case operate::Standing::lapsed:
      return one.record.lease_until;
    case operate::Standing::unknown:
      return one.record.finished_at;
    case operate::Standing::released:
    case operate::Standing::completed:
    case operate::Standing::failed:
    case operate::Standing::expired:
      break;
  }
  return one.record.expires_at;
}

std::string or_dash(std::string text) { return text.empty() ? "-" : text; }

// One line of a text that may be long; `once show` has all of it.
std::string shortened(std::string_view text) {
  constexpr std::size_t most_bytes = 80;
  if (text.size() <= most_bytes) return or_dash(escaped(text));
  return escaped(clean_text(text, most_bytes)) + "...";
}

// Why it failed or is unknown, otherwise why it was changed last.
std::string reason(const Listed& one) {
  const Failure& failure = one.record.failure;
  if (failure == Failure{}) return shortened(one.record.note);
  return shortened(failure.code + (failure.message.empty() ? "" : ": " + failure.message));
}

std::string exit_text(const Listed& one) {
  const std::optional<int> code = run_exit_code(one.record);
  return code ? std::to_string(*code) : "-";
}

std::string time_text(Time time, const Listed& one) { return time == Time{} ? "-" : relative(time, one.now); }

// In the order of the numbers, as text.
std::string ordered(std::uint64_t number) {
  std::string digits = std::to_string(number);
  return std::string(static_cast<std::size_t>(std::numeric_limits<std::uint64_t>::digits10) + 1 - digits.size(), '0') +
         digits;
}
std::string ordered(Time time) {
  constexpr auto sign = std::uint64_t{1} << 63U;
  return ordered(static_cast<std::uint64_t>(time.time_since_epoch().count()) ^ sign);
}

}  // namespace

struct Column {
  std::string_view name;
  std::string (*cell)(const Listed&);
  std::string (*order)(const Listed&) = nullptr;  // What it is sorted by. Null: the cell.
};

namespace {

constexpr std::array<Column, 18> all_columns{{
    {"match", [](const Listed& one) { return std::string(one.match); }},
    {"state", [](const Listed& one) { return std::string(operate::to_string(one.standing)); }},
    {"scope", [](const Listed& one) { return or_dash(escaped(one.parts.scope)); },
     [](const Listed& one) { return one.parts.scope; }},
    {"key", [](const Listed& one) { return escaped(one.parts.name); },
     [](const Listed& one) { return one.parts.name; }},
    {"stored-key", [](const Listed& one) { return to_hex(one.record.key); }},
    {"attempt", [](const Listed& one) { return std::to_string(one.record.attempt); },
     [](const Listed& one) { return ordered(one.record.attempt); }},
    {"revision", [](const Listed& one) { return std::to_string(one.record.revision); },
     [](const Listed& one) { return ordered(one.record.revision); }},
    {"created", [](const Listed& one) { return relative(one.record.created_at, one.now); },
     [](const Listed& one) { return ordered(one.record.created_at); }},
    {"until", until, [](const Listed& one) { return ordered(until_time(one)); }},
    {"finished", [](const Listed& one) { return time_text(one.record.finished_at, one); },
     [](const Listed& one) { return ordered(one.record.finished_at); }},
    {"expires", [](const Listed& one) { return relative(one.record.expires_at, one.now); },
     [](const Listed& one) { return ordered(one.record.expires_at); }},
    {"expected", [](const Listed& one) { return time_text(one.record.expected_until, one); },
     [](const Listed& one) { return ordered(one.record.expected_until); }},
    // Unless it says what the key says already.
    {"label",
     [](const Listed& one) {
       return one.record.label == one.parts.name ? std::string("-") : or_dash(escaped(one.record.label));
     },
     [](const Listed& one) { return one.record.label; }},
    {"holder", [](const Listed& one) { return or_dash(escaped(one.record.holder)); }},
    {"exit", exit_text,
     [](const Listed& one) {
       const std::optional<int> code = run_exit_code(one.record);
       return code ? ordered(static_cast<std::uint64_t>(*code)) : std::string();
     }},
    {"reason", reason},
    {"note", [](const Listed& one) { return shortened(one.record.note); }},
    {"token", [](const Listed& one) { return std::to_string(one.record.token); },
     [](const Listed& one) { return ordered(one.record.token); }},
}};
constexpr const char* usual_columns = "state,scope,key,attempt,created,until,label,holder,exit,reason";
constexpr const char* column_names =
    "state, scope, key, stored-key, attempt, revision,\ncreated, until, finished, expires, expected, label, holder, "
    "exit, reason, note, token";

// How many rows are kept for sorting.
constexpr std::uint64_t usual_sorted = 1'000;
constexpr std::uint64_t most_sorted = 10'000;

const Column* column_of(const std::string& name, std::string_view option, bool matches) {
  std::vector<std::string> known;
  for (const Column& column : all_columns) {
    if (column.name == "match" && !matches) continue;
    if (column.name == name) return &column;
    known.emplace_back(column.name);
  }
  const std::string meant = nearest(name, known);
  std::string list;
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  misuse(std::string(option) + ": there is no column '" + escaped(name) + "'" +
         (meant.empty() ? "" : ". Did you mean " + meant + "?") + (meant.empty() ? "; " : " ") + "The columns are " +
         list);
}

std::vector<const Column*> columns_of(const ListingOptions& options, bool matches) {
  std::vector<const Column*> columns;
  const std::string usual = std::string(matches ? "match," : "") + usual_columns;
  for (const std::string& name : split(options.columns.empty() ? usual : options.columns, ',')) {
    columns.push_back(column_of(name, "--columns", matches));
  }
  return columns;
}

std::vector<std::string> head_of(const std::vector<const Column*>& columns) {
  std::vector<std::string> head;
  for (const Column* const column : columns) {
    head.emplace_back(column->name);
    std::transform(head.back().begin(), head.back().end(), head.back().begin(), [](char c) { return text::upper(c); });
  }
  return head;
}

}  // namespace

void add_listing_options(CLI::App& command, ListingOptions& options) {
  command
      .add_option("--limit", options.limit,
                  "List at most this many records, from 1 (default: all; with --sort 1000, at most 10000)")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  CLI::Option* const sort = command.add_option(
      "--sort", options.sort, "Sort by this column, smallest or earliest first (default: the store's order)");
  command.add_flag("--reverse", options.reverse, "With --sort: largest or latest first")->needs(sort);
  CLI::Option* const columns = command.add_option(
      "--columns", options.columns, std::string("Show these columns, as in state,label,reason: ") + column_names);
  command.add_flag("--json", options.json, "Write a JSON array of records, without their results")->excludes(columns);
}

Listing::Listing(ListingOptions options, bool matches)
    : options_(std::move(options)),
      matches_(matches),
      columns_(columns_of(options_, matches)),
      order_(options_.sort.empty() ? nullptr : column_of(options_.sort, "--sort", matches)),
      limit_(options_.limit.value_or(order_ == nullptr ? std::numeric_limits<std::uint64_t>::max() : usual_sorted)),
      table_(head_of(columns_)),
      text_(options_.json ? "[" : "") {
  if (order_ != nullptr && limit_ > most_sorted) {
    misuse("--limit is " + std::to_string(limit_) + "; with --sort it is at most " + std::to_string(most_sorted));
  }
}

void Listing::write(std::string_view text) {
  progress_.end();
  written_ = print(text);
}

bool Listing::add(const Record& record, Time now, std::string_view match) {
  count_ += 1;
  if (order_ == nullptr && count_ > limit_) return false;
  const Listed one{.record = record,
                   .parts = key_parts(record.key),
                   .standing = operate::standing(record, now),
                   .now = now,
                   .match = match};
  std::string place = order_ == nullptr ? std::string() : (order_->order ? order_->order : order_->cell)(one);
  // What would be cut off is not written out first.
  if (order_ != nullptr && sorted_.size() == limit_) {
    const auto last = options_.reverse ? sorted_.begin() : std::prev(sorted_.end());
    if (options_.reverse ? place <= last->first : place >= last->first) return true;
    sorted_.erase(last);
  }
  Row row;
  if (options_.json) {
    nlohmann::ordered_json json = record_json(record, now, false);
    if (matches_) json["match"] = match;
    row.push_back(json_text(json));
    row.back().pop_back();
  } else {
    for (const Column* const column : columns_) row.push_back(column->cell(one));
  }
  if (order_ != nullptr) {
    sorted_.emplace(std::move(place), std::move(row));
  } else {
    put(std::move(row));
  }
  return written_ == exit_ok;
}

void Listing::put(Row row) {
  constexpr std::size_t piece_bytes = 65536;
  constexpr std::size_t piece_rows = 500;
  if (!options_.json) {
    if (table_.rows() > piece_rows) write(table_.take());
    table_.add(std::move(row));
    return;
  }
  text_ += (std::exchange(any_, true) ? ",\n" : "\n") + row.front();
  if (text_.size() > piece_bytes) write(std::exchange(text_, {}));
}

int Listing::end(const std::optional<Error>& error) {
  progress_.end();
  const auto put_all = [&](auto from, auto to) {
    for (; from != to && written_ == exit_ok; ++from) put(std::move(from->second));
  };
  if (options_.reverse) {
    put_all(sorted_.rbegin(), sorted_.rend());
  } else {
    put_all(sorted_.begin(), sorted_.end());
  }
  if (written_ != exit_ok) return written_;
  if (options_.json) {
    // An array without its end shows that records are missing. Unreadable records do not count as missing.
    if (!error || error->kind == ErrorKind::corrupt) text_ += any_ ? "\n]\n" : "]\n";
    write(text_);
  } else if (count_ > 0) {
    write(table_.take());
  }
  if (count_ > limit_ && order_ == nullptr) say("there are more records than --limit " + std::to_string(limit_));
  if (count_ > limit_ && order_ != nullptr) {
    say("these are " + std::to_string(limit_) + " of " + std::to_string(count_) +
        " records; --limit lists more, up to " + std::to_string(most_sorted));
  }
  return error ? fail_with(*error) : written_;
}

}  // namespace once::cli
