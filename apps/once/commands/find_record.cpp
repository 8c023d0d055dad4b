#include "commands/find_record.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "operators/filters.hpp"
#include "operators/search.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"

namespace once::cli {

namespace {

bool is_stored(const StoreAccess& access, const std::string& key) {
  const once::Answer answer = blocking::get(*access.store, key);  // Another file of this folder has Answer of http.
  if (answer.status == once::AnswerStatus::failed) throw Exception(answer.error);
  return answer.record != nullptr;
}

// Whether only one key can have this text as its label: not one that was cut, or had bytes replaced that are no text.
bool is_whole_label(std::string_view text) {
  constexpr std::size_t longest_character = 4;
  return text.size() + longest_character <= Record::max_text_bytes && text.find("\xEF\xBF\xBD") == std::string::npos;
}

std::string told(const Record& record, Time now) {
  return to_hex(record.key) + "  " + std::string(operate::to_string(operate::standing(record, now))) + "  " +
         quoted_stored(record.key) + (record.label.empty() ? "" : ", label '" + escaped(record.label) + "'");
}

}  // namespace

RecordFound find_record(const StoreAccess& access, const RecordName& name, const KeyOptions& options) {
  RecordFound found{.key = name.in_store(access.raw_scopes), .label = {}};
  if (!(options.has_text || options.has_argument) || is_stored(access, found.key)) return found;

  // Whoever has this key or label may be meant.
  const Search search(options.text);
  FilterOptions in_scope;
  in_scope.scope = options.scope;
  in_scope.has_scope = options.has_scope;
  const Time now = operate::now(*access.store, *system_clock());
  constexpr std::size_t most_told = 10;
  std::vector<std::string> candidates;
  std::uint64_t count = 0;
  RecordFound labelled;
  Progress progress("read");
  const auto error = operate::for_each(
      *access.store, filter_of(in_scope, now, access.raw_scopes), now,
      [&](const Record& record) {
        if (!is_exact(search.match(record))) return true;
        count += 1;
        if (candidates.size() < most_told) candidates.push_back(told(record, now));
        if (record.label == options.text && is_whole_label(record.label)) labelled = {record.key, record.label};
        return true;
      },
      [&](std::uint64_t read) {
        progress.show(read);
        return true;
      });
  progress.end();
  const std::string none = "no record has the key " + quoted_stored(found.key);
  if (error) {
    const std::string why = none + ", and whether exactly one has it as its label cannot be told: " + error->message;
    if (error->kind != ErrorKind::misuse) throw Exception(error->kind, why);
    say(why);  // Such as missing permission to list: as if there were no labels.
    return found;
  }
  if (count == 0 || is_stored(access, found.key)) return found;  // A key wins over a label, also one just inserted.
  if (count == 1 && !labelled.key.empty()) {
    say(none + "; this one has it as its label: " + quoted_stored(labelled.key));
    return labelled;
  }
  std::string list;
  for (const std::string& candidate : candidates) list += "\n  " + candidate;
  if (count > candidates.size()) list += "\n  and " + std::to_string(count - candidates.size()) + " more";
  if (count == 1) {
    say(none + ", and none has it as its label. To mean this one, give --stored-key-hex:" + list);
    return found;
  }
  misuse(none + ", and it may mean " + std::to_string(count) +
         " records. Nothing was changed. Give --stored-key-hex, for one of:" + list);
}

}  // namespace once::cli
