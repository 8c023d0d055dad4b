// --all of resolve, release, extend and rm.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/operate.hpp>
#include <once/platform/system.hpp>

#include "commands/change.hpp"
#include "operators/acts.hpp"
#include "output/listing.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/file.hpp"
#include "process/signals.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

// Most records that --all selects. Each costs its key and about 100 bytes until the act ends.
constexpr std::size_t most_selected = 1'000'000;
constexpr std::size_t most_shown = 10;

std::string counted(std::uint64_t records) { return std::to_string(records) + (records == 1 ? " record" : " records"); }

std::uint64_t count_of(const Left& left, LeftBecause because) {
  std::uint64_t count = 0;
  for (const auto& [why, keys] : left) count += why.first == because ? keys.size() : 0;
  return count;
}

Json key_json(std::string_view stored, std::string_view why) {
  const KeyParts parts = key_parts(stored);
  Json json{{"key", escaped(parts.name)}, {"scope", escaped(parts.scope)}, {"stored_key_hex", to_hex(stored)}};
  if (!why.empty()) json["why"] = why;
  return json;
}

std::string left_text(const Left::key_type& why, const std::vector<std::string>& keys) {
  std::string text = why.second + ": " + std::to_string(keys.size()) +
                     (why.first == LeftBecause::changed ? ", left alone" : "") +
                     (keys.size() > most_shown ? "; the first are " : "; ");
  for (std::size_t at = 0; at < std::min(keys.size(), most_shown); ++at) {
    text += (at == 0 ? "" : ", ") + quoted_stored(keys[at]);
  }
  return text;
}

// What an act did, or would do.
struct Report {
  const ChangeOptions& options;
  const Act& act;
  Selection selection;
  CarriedOut carried = {};
  std::string message = {};  // Why nothing was written. Empty: it was, or nothing was to be.

  [[nodiscard]] int exit_code(int otherwise) const {
    if (carried.error) return exit_code_of(carried.error->kind);
    if (otherwise != exit_ok) return otherwise;
    if (!selection.left.empty()) return exit_conflict;
    if (selection.error) return exit_code_of(selection.error->kind);
    return act.removes && !carried.remarks.empty() ? exit_found_problems : exit_ok;
  }

  [[nodiscard]] Json json() const {
    const Left& left = selection.left;
    Json json{{"dry_run", options.dry_run},
              {"message", message},
              {"matched", selection.matched},
              {"changed", carried.done},
              {"refused", count_of(left, LeftBecause::refused)},
              {"changed_meanwhile", count_of(left, LeftBecause::changed)},
              {"failed", count_of(left, LeftBecause::failed)},
              {"not_reached", count_of(left, LeftBecause::not_reached)}};
    const auto& error = carried.error ? carried.error : selection.error;
    json["error"] = error ? Json(error->message) : Json(nullptr);
    json["remarks"] = carried.remarks;
    json["left"] = Json::array();
    for (const auto& [why, keys] : left) {
      for (const std::string& key : keys) json["left"].push_back(key_json(key, why.second));
    }
    if (options.dry_run) {
      json["would_change"] = Json::array();
      for (const Counted& one : selection.records) json["would_change"].push_back(key_json(one.stored_key, {}));
    }
    return json;
  }

  // Tells the end. `otherwise`: the exit code if nothing else went wrong.
  int end(int otherwise = exit_ok) const {
    const int code = exit_code(otherwise);
    if (options.json) return print(json_text(json()), code);
    if (!message.empty()) say(message);
    if (carried.error) say(carried.error->message);
    for (const auto& [why, keys] : selection.left) {
      if (why.first != LeftBecause::refused) say(left_text(why, keys));  // summary() has told the others.
    }
    for (std::size_t at = 0; at < std::min(carried.remarks.size(), most_shown); ++at) say(carried.remarks[at]);
    if (carried.remarks.size() > most_shown) {
      say("and " + std::to_string(carried.remarks.size() - most_shown) + " more such results");
    }
    if (options.dry_run || !message.empty()) return code;
    return print(counted(carried.done) + " " + act.done + "\n", code);
  }

  // What would be done, before it is.
  void summary(Time now) const {
    const Selection& all = selection;
    if (all.error) say("some records cannot be read, and are left: " + all.error->message);
    if (all.matched == 0) return say("no records match");
    say(counted(all.matched) + (all.matched == 1 ? " matches" : " match") +
        (all.oldest ? "; the oldest was created " + relative(*all.oldest, now) : std::string()));
    for (const auto& [why, keys] : all.left) say(std::to_string(keys.size()) + " refused: " + why.second);
    say(counted(all.records.size()) + " can be " + act.done +
        (act.removes ? ", and their operations can run again then" : ""));
  }
};

// Why the act must not go on, or empty.
std::string unconfirmed(const ChangeOptions& options, std::size_t count, int& exit_code) {
  const std::string number = std::to_string(count);
  exit_code = exit_conflict;
  if (options.confirm) {
    if (*options.confirm == count) return {};
    return "--confirm is " + std::to_string(*options.confirm) + ", but the number is " + number +
           ". Nothing was changed";
  }
  if (isatty(STDIN_FILENO) != 1) {
    exit_code = exit_usage;
    return "give --confirm " + number + " to go on, as this is not a terminal. Nothing was changed";
  }
  write_all(STDERR_FILENO, "Type " + number + " to go on: ");
  std::string line;
  std::getline(std::cin, line);
  return line == number ? std::string() : "that is not " + number + ". Nothing was changed";
}

}  // namespace

int act_on_all(const ChangeOptions& options, const Act& act) {
  if (options.key.has_text || options.key.has_argument || options.key.has_hex || options.key.has_file ||
      !options.key.stored_hex.empty()) {
    misuse("give a key, or --all, not both");
  }
  if (options.if_revision) misuse("--if-revision is for one record: --all checks the revision of each by itself");
  FilterOptions filtered = options.filter;
  filtered.scope = options.key.scope;
  filtered.has_scope = options.key.has_scope;
  if (is_empty(filtered)) misuse("--all needs a condition, as in --all --state unknown");
  const operate::Reason reason{.by = options.by.empty() ? who() : options.by, .text = options.reason};
  const StoreAccess access = open_to_look(options.store, Missing::refuse);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const bool lists = options.dry_run && !options.json;
  Listing listing({}, false);
  Progress reading("read");
  Report report{
      .options = options,
      .act = act,
      .selection = select(access, filter_of(filtered, now, access.raw_scopes), now, reason, act, most_selected,
                          {.each =
                               [&](const Record& record) {
                                 if (lists) listing.add(record, now);
                               },
                           .go_on =
                               [&](std::uint64_t read) {
                                 lists ? listing.read(read) : reading.show(read);
                                 return true;
                               }})};
  reading.end();
  if (report.selection.bounded) {
    misuse("more than " + std::to_string(most_selected) +
           " records match, which is too many for one act. Nothing was changed. Select fewer, for example by --prefix, "
           "--older-than or --scope, and repeat it for the others");
  }
  const int listed = lists ? listing.end(std::nullopt) : exit_ok;
  Selection& selection = report.selection;
  if (selection.error && selection.error->kind != ErrorKind::corrupt) {
    report.message = "nothing was changed";
    report.carried.error = std::move(selection.error);
    return report.end();
  }
  if (!options.json || !options.confirm) report.summary(now);
  if (options.dry_run) return report.end(listed);
  const std::size_t count = selection.records.size();
  // Whoever named a number expects that many, also if there are none left.
  if (count > 0 || options.confirm) {
    int exit_code = exit_ok;
    report.message = unconfirmed(options, count, exit_code);
    if (!report.message.empty()) return report.end(exit_code);
  }
  const FirstSignal first_signal;
  Progress progress("of " + std::to_string(count) + " " + act.done);
  report.carried = carry_out(
      access, selection.records, reason, act,
      [&](std::uint64_t so_far) {
        progress.show(so_far);
        return !first_signal.came();
      },
      selection.left);
  progress.end();
  if (act.removes) {
    // Also if there was none: the last removal may have left the log.
    if (std::string left = cut_log(access); !left.empty()) {
      report.carried.remarks.insert(report.carried.remarks.begin(), std::move(left));
    }
  }
  return report.end();
}

}  // namespace once::cli
