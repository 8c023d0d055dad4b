#include "import/mapping.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <optional>
#include <set>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/key.hpp>
#include <once/keys/key_deriver.hpp>

#include "frontends/http/stored_answer.hpp"
#include "keys/jmespath/selector.hpp"
#include "output/text.hpp"
#include "text/ascii.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"
#include "text/number.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;
using json::Kind;
using json::Value;
using keys::Dialect;
using Selection = keys::Selector::Selection;

constexpr std::string_view json_type = "application/json";
constexpr json::Rules row_rules{.exact_numbers = false};

void append_as_it_is(std::string_view number, std::string& out) { out += number; }
constexpr json::Style as_read{.number = append_as_it_is, .order = nullptr};

// ---- Presets.

// Attributes of the articles that build idempotency from a DynamoDB table and a conditional write. See Expression.
constexpr std::string_view article_key = "one of idempotencyKey, idempotency_key, id, pk";
constexpr std::string_view article_expiry = "latest of expiry, expiration, expiresAt, expires_at, ttl";
constexpr std::string_view done_words = "COMPLETED,COMPLETE,DONE,SUCCESS,SUCCEEDED,FINISHED,PROCESSED";
constexpr std::string_view running_words =
    "IN_PROGRESS,INPROGRESS,IN-PROGRESS,STARTED,PROCESSING,PENDING,LOCKED,RUNNING,CLAIMED";
constexpr std::string_view failed_words = "FAILED,FAILURE,ERROR";

// A table in the manner of Rails: a response means that it is done; where there is a recovery point, its end does.
constexpr std::string_view rails_state =
    "(recovery_point && (recovery_point == 'finished' && 'completed' || 'in_progress')) || "
    "(not_null(response_code, response_status, status_code) && 'completed') || 'in_progress'";

struct Preset {
  std::string_view name;
  MappingOptions options;
  std::optional<Dialect> dialect;  // Of Powertools: its rules for ids, results and validation.
};

MappingOptions article() {
  MappingOptions o;
  o.key = article_key;
  o.state = "one of status, state";
  o.completed = done_words;
  o.in_progress = running_words;
  o.failed = failed_words;
  o.result = "one of response, result, data";
  o.result_as = "json-any";  // Some keep the value, and some JSON.stringify() of it.
  o.error = "not_null(error, errorMessage, error_message)";
  o.expires = article_expiry;
  o.created = "not_null(createdAt, created_at)";
  o.finished = "not_null(completedAt, completed_at)";
  o.holder = "not_null(lockedBy, locked_by)";
  return o;
}

MappingOptions rails() {
  MappingOptions o;
  o.key = "one of idempotency_key, key";
  o.state = rails_state;
  o.completed = "completed";
  o.in_progress = "in_progress";
  o.result = "one of response_body, response";
  o.result_as = "http";
  o.http_status = "one of response_code, response_status, status_code";
  o.http_headers = "response_headers";
  o.expires = "latest of expires_at, expiry";
  o.created = "created_at";
  o.utc = true;  // As ActiveRecord stores times, unless it is told otherwise.
  return o;
}

MappingOptions powertools(Dialect dialect) {
  MappingOptions o;
  o.key = "id";
  o.state = "status";
  o.completed = "COMPLETED";
  o.in_progress = "INPROGRESS";
  o.result = "data";
  o.result_as = dialect == Dialect::powertools_typescript ? "json" : "json-text";
  o.no_result = "null";
  o.expires = "expiration";
  o.fingerprint = "validation";
  o.expired = "skip";  // The libraries compare the expiry, and run the function again.
  return o;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> list{{"article", article(), std::nullopt}, {"rails", rails(), std::nullopt}};
    for (const Dialect dialect : {Dialect::powertools_python, Dialect::powertools_typescript, Dialect::powertools_java,
                                  Dialect::powertools_dotnet}) {
      list.push_back({keys::to_string(dialect), powertools(dialect), dialect});
    }
    return list;
  }();
  return all;
}

// ---- Values.

// What a row has that cannot be mapped. Caught by Mapping::map().
struct Refused {
  std::string why;
};
[[noreturn]] void refuse(std::string why) { throw Refused{std::move(why)}; }

std::string shown(const Value& value) {
  constexpr std::size_t most = 60;
  std::string text = json::written(value, as_read);
  if (text.size() > most) text = text.substr(0, most) + "...";
  return escaped(text);
}

// A text or a number, as a text. Empty: another kind.
std::optional<std::string> plain_text(const Value& value) {
  if (value.kind() == Kind::string || value.kind() == Kind::number) return std::string(value.text());
  return std::nullopt;
}

class Expression {
 public:
  // `text`: JMESPath; or "one of a, b", the column of these that the row has; or, for times, "latest of a, b".
  Expression(const std::string& text, const char* option) : option_(option) {
    if (text.empty()) return;
    for (const std::string_view list : {std::string_view("one of "), std::string_view("latest of ")}) {
      if (!text.starts_with(list)) continue;  // JMESPath has no two words side by side.
      for (const std::string& name : split(text.substr(list.size()), ',')) names_.emplace_back(text::trim(name));
      return;
    }
    selector_.emplace(text, Dialect::native, option);
    reads_ = selector_->reads();
    computes_ = !selector_->keeps_numbers();
  }
  [[nodiscard]] bool is_set() const noexcept { return selector_.has_value() || !names_.empty(); }

  // Null if it is not set, or selects nothing. Refuses the row if the expression fails on it.
  [[nodiscard]] Value operator()(const Value& row, json::Arena& arena) const { return select(row, arena).value; }
  [[nodiscard]] Selection select(const Value& row, json::Arena& arena) const {
    if (!names_.empty()) return one_of(row);
    if (!selector_) return {};
    if (computes_) check_what_it_reads(row);
    try {
      return selector_->select(row, arena);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      refuse(error.what());
    }
  }
  // Of a list of columns: the values of all that the row has.
  [[nodiscard]] std::vector<Value> all(const Value& row, json::Arena& arena) const {
    if (names_.empty()) return {(*this)(row, arena)};
    std::vector<Value> values;
    for (const json::Member& member : row.members()) {
      if (std::ranges::find(names_, member.name) != names_.end()) values.push_back(member.value);
    }
    return values;
  }
  [[nodiscard]] bool reads(std::string_view column) const {
    return std::ranges::find(names_, column) != names_.end() ||
           std::ranges::any_of(
               reads_, [&](const keys::Selector::Path& path) { return path.empty() || path.front() == column; });
  }
  // Those that it names.
  [[nodiscard]] std::set<std::string> columns() const {
    std::set<std::string> columns(names_.begin(), names_.end());
    for (const keys::Selector::Path& path : reads_) {
      if (!path.empty()) columns.insert(path.front());
    }
    return columns;
  }
  [[nodiscard]] const char* option() const noexcept { return option_; }

 private:
  // By the column, and not by its value: {"idempotencyKey": null, "id": 7} has no key.
  [[nodiscard]] Selection one_of(const Value& row) const {
    const json::Member* found = nullptr;
    for (const json::Member& member : row.members()) {
      if (std::ranges::find(names_, member.name) == names_.end()) continue;
      if (found != nullptr) {
        refuse("it has '" + escaped(found->name) + "' and '" + escaped(member.name) +
               "', and the preset knows both: say " + option_);
      }
      found = &member;
    }
    if (found == nullptr) return {};
    return {.value = found->value, .found = true};
  }

  // Refuses 1801234567890123457, which a double makes 1801234567890123500.
  void check_what_it_reads(const Value& row) const {
    for (const keys::Selector::Path& path : reads_) {
      Value value = row;
      for (const std::string& name : path) value = value.member(name);
      check_exact(value);
    }
  }
  void check_exact(const Value& value) const {
    if (value.kind() == Kind::number) {
      if (const std::string why = text::inexact(value.text()); !why.empty()) {
        refuse(std::string(option_) + " computes with " + escaped(value.text()) + ", which it would round (" + why +
               "): select the number itself, or give it as a text");
      }
    }
    if (value.kind() == Kind::array) {
      for (const Value& element : value.elements()) check_exact(element);
    }
    if (value.kind() == Kind::object) {
      for (const json::Member& member : value.members()) check_exact(member.value);
    }
  }

  const char* option_;
  std::optional<keys::Selector> selector_;
  std::vector<keys::Selector::Path> reads_;
  bool computes_ = false;
  std::vector<std::string> names_;  // Of columns, in place of an expression.
};

std::vector<std::string> words(const std::string& list, const char* option) {
  std::vector<std::string> out;
  if (list.empty()) return out;
  for (const std::string& word : split(list, ',')) {
    const std::string_view trimmed = text::trim(word);
    if (trimmed.empty()) misuse(std::string(option) + " has an empty word");
    out.push_back(text::lower(trimmed));
  }
  return out;
}

bool has(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

constexpr std::int64_t last_ms = 253'402'300'799'000;  // The last second of the year 9999, as programs write it.

// Fractions are rounded up, so that no record expires too early; what a double adds to 0.9 s is none.
Time time_from_ms(double ms) {
  constexpr double error_ms = 1e-3;
  if (!(ms < static_cast<double>(last_ms))) return never;
  return Time(Millis(std::llround(std::ceil(ms - error_ms))));
}

Time time_of_number(double number) {
  // 2001 to 5138 in each unit; what lies between two units is the later time of both readings.
  constexpr double least = 1e9;
  if (number == 0) return never;
  if (!(number >= least)) misuse("it is before 2001");
  if (number < 1e12) return time_from_ms(number * 1e3);
  if (number < 1e15) return time_from_ms(number);
  if (number < 1e18) return time_from_ms(number / 1e3);
  return time_from_ms(number / 1e6);
}

// "2026-11-28 13:00:00.5+01" in the form of RFC 3339. Its time zone may be missing.
std::string as_rfc3339(std::string text, bool utc) {
  constexpr std::size_t date_end = 10;  // "2026-11-28"
  if (text.size() > date_end && text[date_end] == ' ') text[date_end] = 'T';
  if (text.ends_with(" UTC")) text = text.substr(0, text.size() - 4) + "Z";
  if (text.size() <= date_end || !text::is_digit(text.front())) misuse("it is not a time");
  const auto sign = text.find_last_of("+-");
  const bool has_offset = sign != std::string::npos && sign > date_end;
  if (has_offset) {
    if (sign > 0 && text[sign - 1] == ' ') text.erase(sign - 1, 1);
    const auto digits = text.size() - text.find_last_of("+-") - 1;
    const bool is_short = digits == 2;      // +01
    const bool has_no_colon = digits == 4;  // +0100
    if (is_short) text += ":00";
    if (has_no_colon) text.insert(text.size() - 2, ":");
    return text;
  }
  if (text.ends_with('Z') || text.ends_with('z')) return text;
  if (!utc) misuse("it has no time zone: add --utc if it is UTC, or select it with one");
  return text + "Z";
}

Time time_of(const Value& value, bool utc) {
  if (value.kind() == Kind::number) return time_of_number(text::to_double(value.text()));
  if (value.kind() != Kind::string) misuse("it is not a time");
  const std::string text(text::trim(value.text()));
  std::pmr::monotonic_buffer_resource arena;
  Value number;
  if (json::try_parse(text, row_rules, arena, number) && number.kind() == Kind::number) return time_of(number, utc);
  if (text == "infinity") return never;  // PostgreSQL's.
  const std::string date = as_rfc3339(text, utc);
  const auto time = text::from_rfc3339(date);
  if (!time) misuse("it is not a time");
  const auto point = date.find_first_of(".,");
  if (point == std::string::npos) return *time;
  const auto end = std::min(date.find_first_not_of("0123456789", point + 1), date.size());
  // Three digits are whole milliseconds; what follows rounds them up.
  const std::string digits = date.substr(point + 1, end - point - 1);
  const auto ms = text::parse_whole<int>((digits + "00").substr(0, 3));
  const bool has_more = digits.size() > 3 && digits.find_first_not_of('0', 3) != std::string::npos;
  return *time + Millis(ms.value_or(0) + (has_more ? 1 : 0));
}

bool is_json(std::string_view text) {
  std::pmr::monotonic_buffer_resource arena;
  Value value;
  const json::Rules rules{
      .unique_names = false, .exact_numbers = false, .lone_surrogates = true, .nan_and_infinity = true};
  return json::try_parse(text, rules, arena, value);
}

// The one way to write this number: not 1.0, 1e2 or -0.
bool is_canonical(std::string_view number) {
  if (text::is_integer_text(number)) return number != "-0";
  std::string canonical;
  text::append_ecmascript(text::to_double(number), canonical);
  return canonical == number;
}

// A text with a JSON object or list in it.
bool holds_json(const Value& value) {
  if (value.kind() != Kind::string) return false;
  const std::string_view text = text::trim(value.text(), " \t\r\n");
  return (text.starts_with('{') || text.starts_with('[')) && is_json(text);
}

void check_word(const std::string& word, std::initializer_list<std::string_view> known, const char* option) {
  if (std::ranges::find(known, word) != known.end()) return;
  std::string list;
  for (const std::string_view one : known) list += (list.empty() ? "" : ", ") + std::string(one);
  misuse(std::string(option) + " is '" + escaped(word) + "'; use one of " + list);
}

}  // namespace

Time row_time(std::string_view json_text, bool utc) {
  std::pmr::monotonic_buffer_resource arena;
  return time_of(json::parse(json_text, row_rules, arena, "the time"), utc);
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

void make_tombstone(Record& record) {
  Result lost;
  lost.placement = Placement::dropped;
  lost.content_type = record.result.content_type;
  lost.size = record.result.bytes.size();
  lost.digest = sha256(record.result.bytes);
  record.result = std::move(lost);
}

struct Mapping::Parts {
  explicit Parts(MappingOptions given) : options(with_preset(std::move(given), dialect)) {
    if (!key.is_set()) misuse("say which part of a row is its key: --key EXPRESSION, or --preset");
    if (!state.is_set()) {
      misuse(
          "say what became of a row's operation: --state EXPRESSION with --completed, --failed and --in-progress, "
          "or --preset. If every row is a finished one: --state \"'done'\" --completed done");
    }
    const std::array<const std::vector<std::string>*, 4> lists{&completed, &failed, &in_progress, &may_run};
    for (std::size_t at = 0; at < lists.size(); ++at) {
      for (const std::string& word : *lists.at(at)) {
        for (std::size_t other = at + 1; other < lists.size(); ++other) {
          if (has(*lists.at(other), word)) misuse("the state '" + escaped(word) + "' is named for two kinds of rows");
        }
      }
    }
    if (completed.empty()) misuse("--completed is missing: the words of operations that are done");
    if (!options.scope.empty() && scope_from.is_set()) misuse("give only one of --scope and --scope-from");
    if (!options.hash.empty()) {
      if (!options.key_prefix.empty()) misuse("--key-prefix does not go with --hash");
      if (dialect) misuse("--hash does not go with a preset of Powertools: its ids have their digest already");
      deriver.emplace(keys::Recipe{.hash = options.hash, .makes_label = false});
    }
    check_word(options.result_as, {"json", "json-text", "json-any", "text", "http"}, "--result-as");
    check_word(options.no_result, {"tombstone", "null", "empty"}, "--no-result");
    check_word(options.expired, {"", "skip", "keep"}, "--expired");
    if ((options.result_as == "http") != http_status.is_set()) {
      misuse("--http-status and --result-as http go together");
    }
    if (http_headers.is_set() && !http_status.is_set()) misuse("--http-headers goes with --result-as http");
  }

  static MappingOptions with_preset(MappingOptions options, std::optional<Dialect>& dialect) {
    if (!options.preset.empty()) {
      const auto preset = std::ranges::find(presets(), options.preset, &Preset::name);
      if (preset == presets().end()) {
        std::string known;
        for (const Preset& one : presets()) known += (known.empty() ? "" : ", ") + std::string(one.name);
        misuse("there is no preset '" + escaped(options.preset) + "': use one of " + known);
      }
      dialect = preset->dialect;
      const auto add = [&](std::string MappingOptions::*member) {
        if ((options.*member).empty()) options.*member = preset->options.*member;
      };
      // Words that the caller gives another meaning are taken out of the preset's list, not named twice.
      const std::array lists{&MappingOptions::completed, &MappingOptions::failed, &MappingOptions::in_progress,
                             &MappingOptions::may_run};
      std::vector<std::string> chosen;
      for (const auto list : lists) {
        for (std::string& word : words(options.*list, "the list of states")) chosen.push_back(std::move(word));
      }
      for (const auto list : lists) {
        if (!(options.*list).empty() || (preset->options.*list).empty()) continue;
        for (const std::string& word : split(preset->options.*list, ',')) {
          if (has(chosen, text::lower(word))) continue;
          options.*list += ((options.*list).empty() ? "" : ",") + word;
        }
      }
      const bool other_form = !options.result_as.empty() && options.result_as != preset->options.result_as;
      for (const auto member :
           {&MappingOptions::key, &MappingOptions::state, &MappingOptions::result, &MappingOptions::result_as,
            &MappingOptions::no_result, &MappingOptions::error, &MappingOptions::fingerprint, &MappingOptions::expires,
            &MappingOptions::created, &MappingOptions::finished, &MappingOptions::holder, &MappingOptions::expired}) {
        add(member);
      }
      if (!other_form) {
        add(&MappingOptions::http_status);
        add(&MappingOptions::http_headers);
      }
      options.utc = options.utc || preset->options.utc;
    }
    if (options.result_as.empty()) options.result_as = options.http_status.empty() ? "json" : "http";
    if (options.no_result.empty()) options.no_result = "tombstone";
    return options;
  }

  [[nodiscard]] Mapped map(const Value& row, const Row& read, json::Arena& arena, Time now,
                           const std::string& from) const {
    if (where.is_set()) {
      const Value chosen = where(row, arena);
      if (chosen.is_null()) refuse("--where selects nothing in it");
      if (chosen.kind() != Kind::boolean) refuse("--where selects " + shown(chosen) + ", not true or false");
      if (!chosen.truth()) return {.kind = Mapped::Kind::left_out};
    }
    check_binary(row, read);
    Mapped mapped{.kind = Mapped::Kind::record};
    Record& record = mapped.record;
    const Value selected = state(row, arena);
    const State found = state_of(selected, mapped);
    if (mapped.kind == Mapped::Kind::may_run) return mapped;
    add_key(record, row, arena);
    record.state = found;
    record.attempt = 1;
    std::string unread;
    record.created_at = time_for_people(created, row, arena, now, unread);
    record.finished_at = time_for_people(finished, row, arena, record.created_at, unread);
    record.holder = clean_text(plain_text(holder(row, arena)).value_or(""));
    const std::string was_held = record.holder.empty() ? std::string() : ", held by " + record.holder;
    if (record.holder.empty()) record.holder = clean_text(from);
    record.note = clean_text("imported from " + from + unread);
    add_fingerprint(record, row, arena);
    if (found == State::unknown) {
      record.expires_at = never;
      record.failure = {.code = std::string(imported),
                        .message = clean_text("it was in progress in " + from + was_held + " when it was imported",
                                              Failure::max_message_bytes)};
      return mapped;
    }
    record.expires_at = time(expires, row, arena).value_or(kept_until(now));
    if (is_expired(record.expires_at, now)) {
      if (options.expired != "keep") {
        mapped.kind = Mapped::Kind::expired;
        return mapped;
      }
      record.expires_at = kept_until(now);
    }
    if (found == State::failed) {
      const Value message = error(row, arena);
      record.failure = {
          .code = std::string(imported),
          .message = clean_text(plain_text(message).value_or(message.is_null() ? std::string("it failed")
                                                                               : json::written(message, as_read)),
                                Failure::max_message_bytes)};
    }
    add_result(record, row, arena);
    return mapped;
  }

  [[nodiscard]] Time kept_until(Time now) const {
    return options.retention == keep_forever ? never : now + options.retention;
  }

  State state_of(const Value& selected, Mapped& mapped) const {
    const std::string word = text::lower(selected.kind() == Kind::string ? std::string(text::trim(selected.text()))
                                                                         : json::written(selected, as_read));
    if (has(completed, word)) return State::completed;
    if (has(failed, word)) return State::failed;
    if (has(in_progress, word)) return State::unknown;
    if (!has(may_run, word)) {
      refuse("its state is " + shown(selected) +
             ", which none of --completed, --failed, --in-progress and --may-run names");
    }
    mapped.kind = Mapped::Kind::may_run;
    return State::unknown;
  }

  void add_key(Record& record, const Value& row, json::Arena& arena) const {
    const Selection selection = key.select(row, arena);
    const Value& value = selection.value;
    if (keys::is_nothing(value) || !selection.found) refuse("it has no key: --key selects " + shown(value));
    if (selection.null_part || selection.empty_part) refuse("a part of its key is null or empty: " + shown(value));
    check_blanks(value.string_or_empty(), "--key");
    std::string scope = options.scope;
    if (scope_from.is_set()) {
      const Value chosen = scope_from(row, arena);
      if (chosen.kind() != Kind::string || chosen.text().empty())
        refuse("--scope-from selects " + shown(chosen) + ", not a text");
      check_blanks(chosen.text(), "--scope-from");
      scope = chosen.text();
    }
    try {
      if (deriver) {
        const auto derived = deriver->derive(json::written(value, as_read));
        record.key = Key(scope, derived.key->name()).stored();
        return;
      }
      auto text = plain_text(value);
      if (!text) refuse("its key is " + shown(value) + ", not a text or a number: select one, or add --hash sha256");
      if (value.kind() == Kind::number && !is_canonical(*text)) {
        refuse("its key is the number " + shown(value) + ", which can be written in other ways: give it as a text");
      }
      if (!text->starts_with(options.key_prefix))
        refuse("its key '" + escaped(*text) + "' does not begin with --key-prefix");
      text->erase(0, options.key_prefix.size());
      if (text->empty()) refuse("its key has nothing behind --key-prefix");
      if (dialect) {
        const auto hash = text->rfind('#');
        const bool is_other = !options.scope.empty() || scope_from.is_set();
        // The partition of a table with a sort key is idempotency#FUNCTION.
        if (hash == std::string::npos || text->starts_with("idempotency#") ||
            !keys::digest_from_text(*dialect, std::string_view(*text).substr(hash + 1))) {
          refuse("its id '" + escaped(*text) +
                 "' has no '#' with a digest behind it: if the table has a sort key, the id is there: --key sort_key");
        }
        // As the new program derives it: the scope stands there as it is, also with a '#'.
        record.key = Key::from_stored(is_other ? scope + text->substr(hash) : *text).stored();
        return;
      }
      record.key = Key(scope, *text).stored();
      record.label = clean_text(*text);
    } catch (const Exception& problem) {
      if (problem.kind() != ErrorKind::misuse) throw;
      refuse(problem.what());
    }
  }

  // The latest, if there are several. Empty: one of them says that there is none.
  [[nodiscard]] std::optional<Time> time(const Expression& expression, const Value& row, json::Arena& arena) const {
    std::optional<Time> latest;
    bool has_none = false;
    for (const Value& value : expression.all(row, arena)) {
      if (value.is_null() || (value.kind() == Kind::string && text::trim(value.text()).empty())) {
        has_none = true;
        continue;
      }
      try {
        latest = std::max(time_of(value, options.utc), latest.value_or(Time::min()));
      } catch (const Exception& problem) {
        if (problem.kind() != ErrorKind::misuse) throw;
        refuse(std::string(expression.option()) + " selects " + shown(value) + ": " + problem.what());
      }
    }
    return has_none ? std::nullopt : latest;
  }

  // A time that decides nothing: if it cannot be read, `unread` says so.
  [[nodiscard]] Time time_for_people(const Expression& expression, const Value& row, json::Arena& arena, Time otherwise,
                                     std::string& unread) const {
    try {
      const Time read = time(expression, row, arena).value_or(otherwise);
      return read == never ? otherwise : read;
    } catch (const Refused& refused) {
      unread += "; " + refused.why;
      return otherwise;
    }
  }

  // The text in which a row has bytes, Base64 or \x and digits, is no key of the new program, and no result.
  void check_binary(const Value& row, const Row& read) const {
    for (const std::string& column : read.binary) {
      if (row.member(column).is_null()) continue;
      for (const Expression* const expression :
           {&key, &scope_from, &state, &fingerprint, &result, &http_status, &http_headers}) {
        if (!expression->reads(column)) continue;
        refuse("'" + escaped(column) + "', which " + expression->option() +
               " reads, is binary: give it as a text, as by CAST(x AS TEXT), convert_from(x, 'UTF8') or hex(x) in "
               "--query");
      }
    }
  }

  // What the new program would not ask for: the padding of a char(36), or a blank that the old database ignores.
  static void check_blanks(std::string_view text, const char* option) {
    if (text::trim(text, " \t\r\n\v\f").size() == text.size()) return;
    refuse(std::string(option) + " selects '" + escaped(text) +
           "', with a blank at its beginning or end: cut it, as by trim(x) in --query");
  }

  void add_fingerprint(Record& record, const Value& row, json::Arena& arena) const {
    const Value value = fingerprint(row, arena);
    if (!fingerprint.is_set()) return;
    if (dialect) {
      if (value.is_null()) return;  // Validation was off.
      const auto read = keys::digest_from_text(*dialect, value.string_or_empty());
      if (!read)
        refuse("its validation is " + shown(value) + ", no digest of " + std::string(keys::to_string(*dialect)));
      record.fingerprint = *read;
      return;
    }
    if (value.is_null()) refuse("--fingerprint selects nothing in it");
    try {
      static const keys::KeyDeriver whole({.fingerprint = "@"});
      record.fingerprint = whole.fingerprint(json::written(value, as_read));
    } catch (const Exception& problem) {
      if (problem.kind() != ErrorKind::misuse) throw;
      refuse(problem.what());
    }
  }

  void add_result(Record& record, const Value& row, json::Arena& arena) const {
    const Value value = result(row, arena);
    if (options.result_as == "http") {
      add_answer(record, value, row, arena);
    } else if (value.is_null() && record.state == State::failed) {
      return;
    } else if (value.is_null()) {
      if (options.no_result == "tombstone") make_tombstone(record);
      if (options.no_result == "null") record.result = Result::inlined("null", std::string(json_type));
    } else if (options.result_as == "text") {
      record.result =
          Result::inlined(value.kind() == Kind::string ? std::string(value.text()) : json::written(value, as_read));
    } else if (options.result_as == "json-text" || (options.result_as == "json-any" && holds_json(value))) {
      record.result = Result::inlined(json_text(value), std::string(json_type));
    } else {
      record.result = Result::inlined(json::written(value, as_read), std::string(json_type));
    }
  }

  // A text that is JSON already.
  [[nodiscard]] std::string json_text(const Value& value) const {
    if (value.kind() != Kind::string) refuse("its result is " + shown(value) + ", not a text with JSON in it");
    if (value.text().empty() && dialect == Dialect::powertools_python) return "null";
    if (is_json(value.text())) return std::string(value.text());
    // Java writes a text without quotes.
    if (dialect == Dialect::powertools_java) return json::quoted(value.text());
    refuse("its result is not JSON: " + shown(value));
  }

  void add_answer(Record& record, const Value& body, const Value& row, json::Arena& arena) const {
    const Value status = http_status(row, arena);
    if (status.is_null()) {
      if (record.state == State::failed) return;
      return make_tombstone(record);
    }
    const auto number = text::parse_whole<unsigned>(plain_text(status).value_or(""));
    if (!number || *number < 200 || *number > 599) refuse("its HTTP status is " + shown(status));
    http::Answer answer;
    answer.status = *number;
    add_headers(answer.headers, http_headers(row, arena), arena);
    const bool is_text = body.kind() == Kind::string;
    if (is_text) {
      answer.body = body.text();
    } else if (!body.is_null()) {
      answer.body = json::written(body, as_read);
    }
    const bool is_json_body = !body.is_null() && (!is_text || holds_json(body));
    if (is_json_body && http::find_header(answer.headers, "Content-Type") == nullptr) {
      answer.headers.push_back({"Content-Type", std::string(json_type)});
    }
    record.result = http::encode_answer(answer, std::numeric_limits<std::size_t>::max());
    // What is replayed is the response, also of an operation that failed.
    record.state = State::completed;
    record.failure = {};
  }

  // {"Content-Type": "text/plain", "Link": ["a", "b"]}, a list of pairs, or a text with either of them.
  void add_headers(http::Headers& headers, Value value, json::Arena& arena) const {
    if (value.kind() == Kind::string && !json::try_parse(json::keep(value.text(), arena), row_rules, arena, value)) {
      refuse("its headers are not JSON: " + shown(value));
    }
    const auto add = [&](std::string_view name, const Value& text) {
      const auto plain = plain_text(text);
      if (!plain) refuse("the header '" + escaped(name) + "' is " + shown(text));
      headers.push_back({std::string(name), *plain});
    };
    switch (value.kind()) {
      case Kind::null:
        return;
      case Kind::object:
        for (const json::Member& member : value.members()) {
          if (member.value.kind() != Kind::array) {
            add(member.name, member.value);
            continue;
          }
          for (const Value& one : member.value.elements()) add(member.name, one);
        }
        return;
      case Kind::array:
        for (const Value& pair : value.elements()) {
          const bool is_pair = pair.kind() == Kind::array && pair.elements().size() == 2;
          if (!is_pair || pair.elements()[0].kind() != Kind::string) refuse("a header is " + shown(pair));
          add(pair.elements()[0].text(), pair.elements()[1]);
        }
        return;
      default:
        refuse("its headers are " + shown(value));
    }
  }

  std::optional<Dialect> dialect;
  MappingOptions options;
  std::optional<keys::KeyDeriver> deriver;
  const Expression key{options.key, "--key"};
  const Expression scope_from{options.scope_from, "--scope-from"};
  const Expression where{options.where, "--where"};
  const std::set<std::string> where_columns = where.columns();
  const Expression state{options.state, "--state"};
  const Expression result{options.result, "--result"};
  const Expression http_status{options.http_status, "--http-status"};
  const Expression http_headers{options.http_headers, "--http-headers"};
  const Expression error{options.error, "--error"};
  const Expression fingerprint{options.fingerprint, "--fingerprint"};
  const Expression expires{options.expires, "--expires"};
  const Expression created{options.created, "--created"};
  const Expression finished{options.finished, "--finished"};
  const Expression holder{options.holder, "--holder"};
  const std::vector<std::string> completed = words(options.completed, "--completed");
  const std::vector<std::string> failed = words(options.failed, "--failed");
  const std::vector<std::string> in_progress = words(options.in_progress, "--in-progress");
  const std::vector<std::string> may_run = words(options.may_run, "--may-run");
};

Mapping::Mapping(MappingOptions options) : parts_(std::make_unique<const Parts>(std::move(options))) {}
Mapping::~Mapping() = default;

const MappingOptions& Mapping::options() const noexcept { return parts_->options; }

const std::set<std::string>& Mapping::where_columns() const noexcept { return parts_->where_columns; }

Mapped Mapping::map(const Row& row, Time now, const std::string& from) const {
  std::set<std::string> absent = parts_->where_columns;
  Mapped mapped;
  try {
    if (!row.problem.empty()) refuse(row.problem);
    std::pmr::monotonic_buffer_resource arena;
    const Value value = json::parse(row.json, row_rules, arena, "it");
    for (const json::Member& member : value.members()) absent.erase(std::string(member.name));
    mapped = parts_->map(value, row, arena, now, from);
  } catch (const Refused& refused) {
    mapped.why = refused.why;
  } catch (const Exception& error) {  // The row is not JSON that can be read: two columns of one name.
    if (error.kind() != ErrorKind::misuse) throw;
    mapped.why = error.what();
  }
  mapped.absent = std::move(absent);
  return mapped;
}

}  // namespace once::cli::importing
