#include "operators/acts.hpp"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "output/listing.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/wait.hpp"
#include "process/signals.hpp"
#include "settings/filters.hpp"

namespace once::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_shown = 10;
constexpr std::size_t keys_at_once = 16;  // That are read from the store.

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

// Puts a record where it belongs in a selection.
struct Planned {
  const StoreAccess& access;
  Time now;
  const operate::Reason& reason;
  const Act& act;
  const Selecting& selecting;
  Selection& selection;

  void add(const Record& record) const {
    ++selection.matched;
    if (record.created_at != Time{}) {
      selection.oldest = std::min(selection.oldest.value_or(never), record.created_at);
    }
    if (selecting.as_seen && !selecting.as_seen(record)) {
      selection.left[{LeftBecause::changed, "changed since it was selected"}].push_back(record.key);
      return;
    }
    operate::Plan plan = act.planner(record, reason, fresh_stamp(now), access.store->capabilities().default_skew);
    if (!plan.next) {
      selection.left[{LeftBecause::refused, std::move(plan.refusal)}].push_back(record.key);
      return;
    }
    if (selecting.each) selecting.each(record);
    selection.records.push_back({.stored_key = record.key, .owner = record.owner, .revision = record.revision});
  }
};

// The answers for all of these keys, which are asked for at the same time.
std::vector<Answer> get_all(Store& store, std::span<const std::string> keys) {
  struct Gathered {
    std::mutex mutex;
    std::vector<Answer> answers;
    std::size_t missing = 0;
  };
  return wait_for<std::vector<Answer>>([&](Callback<void(std::vector<Answer>)> done) {
    const auto all = std::make_shared<Gathered>();
    all->answers.resize(keys.size());
    all->missing = keys.size();
    const auto end = std::make_shared<Callback<void(std::vector<Answer>)>>(std::move(done));
    for (std::size_t at = 0; at < keys.size(); ++at) {
      store.get(keys[at], [all, end, at](Answer answer) {
        {
          const std::lock_guard lock(all->mutex);
          all->answers[at] = std::move(answer);
          if (--all->missing > 0) return;
        }
        (*end)(std::move(all->answers));
      });
    }
  });
}

}  // namespace

Selection select(const StoreAccess& access, const operate::Filter& filter, Time now, const operate::Reason& reason,
                 const Act& act, std::size_t most, const Selecting& selecting) {
  Selection selection;
  Planned planned{access, now, reason, act, selecting, selection};
  selection.error = operate::for_each(
      *access.store, filter, now,
      [&](const Record& record) {
        if (selecting.matches && !selecting.matches(record)) return true;
        selection.bounded = selection.matched == most;
        if (!selection.bounded) planned.add(record);
        return !selection.bounded;
      },
      selecting.go_on);
  return selection;
}

Selection select_keys(const StoreAccess& access, const std::vector<std::string>& keys, Time now,
                      const operate::Reason& reason, const Act& act, const Selecting& selecting) {
  Selection selection;
  Planned planned{access, now, reason, act, selecting, selection};
  std::uint64_t read = 0;
  for (std::size_t first = 0; first < keys.size(); first += keys_at_once) {
    if (selecting.go_on && !selecting.go_on(read)) break;
    const std::vector<Answer> answers =
        get_all(*access.store, std::span(keys).subspan(first).first(std::min(keys_at_once, keys.size() - first)));
    for (std::size_t at = 0; at < answers.size(); ++at) {
      const Answer& found = answers[at];
      const std::string& key = keys[first + at];
      ++read;
      if (found.status == AnswerStatus::failed && found.error.kind != ErrorKind::corrupt) {
        selection.error = found.error;
        if (selecting.go_on) selecting.go_on(read);
        return selection;
      }
      if (found.status == AnswerStatus::failed) {
        selection.left[{LeftBecause::failed, found.error.message}].push_back(key);
      } else if (!found.record) {
        selection.left[{LeftBecause::gone, "there is no such record"}].push_back(key);
      } else {
        planned.add(*found.record);
      }
    }
  }
  if (selecting.go_on) selecting.go_on(read);
  return selection;
}

Carried carry_out_one(const StoreAccess& access, const Counted& record, const operate::Reason& reason, const Act& act) {
  Changed changed = change_record(access,
                                  {.stored_key = record.stored_key,
                                   .reason = reason,
                                   .if_revision = record.revision,
                                   .if_owner = record.owner,
                                   .removes = act.removes},
                                  act.planner);
  Carried carried{.left = {}, .why = {}, .remark = std::move(changed.remark), .ends = {}};
  switch (changed.kind) {
    case Changed::Kind::written:
    case Changed::Kind::planned:
      break;
    case Changed::Kind::no_record:
      carried.left = LeftBecause::gone;
      carried.why = "gone meanwhile";
      break;
    case Changed::Kind::other:
    case Changed::Kind::raced:
      carried.left = LeftBecause::changed;
      carried.why = "changed meanwhile";
      break;
    case Changed::Kind::refused:  // It has expired, or the service was asked again, for example.
      carried.left = LeftBecause::refused;
      carried.why = std::move(changed.refusal);
      break;
    case Changed::Kind::failed:
      carried.left = LeftBecause::failed;
      carried.why = changed.error.message;
      // One damaged record does not stop the others. After another failure all of them would fail, each in its time.
      if (changed.error.kind != ErrorKind::corrupt && !changed.unfit) carried.ends = std::move(changed.error);
      break;
  }
  return carried;
}

CarriedOut carry_out(const StoreAccess& access, const std::vector<Counted>& records, const operate::Reason& reason,
                     const Act& act, const std::function<bool(std::uint64_t done)>& go_on, Left& left) {
  CarriedOut carried;
  for (auto at = records.begin(); at != records.end(); ++at) {
    const auto leave = [&](LeftBecause because, std::string why) {
      left[{because, std::move(why)}].push_back(at->stored_key);
    };
    if (carried.error || !go_on(carried.done)) {
      leave(LeftBecause::not_reached, "not reached");
      for (++at; at != records.end(); ++at) leave(LeftBecause::not_reached, "not reached");
      break;
    }
    Carried one = carry_out_one(access, *at, reason, act);
    if (!one.remark.empty()) carried.remarks.push_back(std::move(one.remark));
    if (!one.left) {
      carried.done += 1;
    } else if (*one.left == LeftBecause::failed) {
      leave(LeftBecause::failed, std::move(one.why));
      carried.error = std::move(one.ends);
    } else {
      leave(LeftBecause::changed, "changed meanwhile");
    }
  }
  return carried;
}

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
