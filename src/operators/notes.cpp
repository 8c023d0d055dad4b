#include "operators/notes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/key.hpp>
#include <once/platform/system.hpp>

#include "operators/answers.hpp"
#include "operators/record_json.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "text/hex.hpp"
#include "text/number.hpp"
#include "text/rfc3339.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

// Between the line before an act and the one after it, others may lie. So many bytes behind a page are searched for it.
constexpr std::size_t most_between = 1U << 16U;

Json member_of(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found == line.end() ? Json(nullptr) : *found;
}

std::string text_of(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_ours(const Json& line) {
  return line.is_object() && !text_of(line, "time").empty() && !text_of(line, "event").empty();
}

struct WantedActs {
  std::optional<std::string> who = {};
  std::optional<std::string> key = {};
  std::optional<std::string> act = {};
  std::optional<std::string> id = {};
  std::size_t limit = 0;
  std::optional<std::uint64_t> after = {};

  [[nodiscard]] bool matches(const Json& act_json) const {
    return (!who || act_json["who"] == *who) && (!key || member_of(act_json, "stored_key_hex") == *key) &&
           (!act || act_json["act"] == *act) && (!id || member_of(act_json, "id") == *id);
  }
};

// Lines, the newest first, made into acts. An act has a line before it, and one after it with what became of it. They
// are one, and its time is the first one's.
class ActsJson {
 public:
  explicit ActsJson(const WantedActs& wanted) : wanted_(wanted) {}

  [[nodiscard]] bool is_full() const { return acts_.size() == wanted_.limit; }

  // A line behind the page: only what became of acts that are on it.
  void expect(const Json& line) {
    if (is_after(text_of(line, "event"))) after_[name_of(line)].push_back(line);
  }

  void add(const Json& line) {
    const std::string event = text_of(line, "event");
    if (is_after(event)) return expect(line);
    Json act{
        {"at", line["time"]}, {"who", text_of(line, "who")}, {"act", event == "act" ? text_of(line, "act") : event}};
    if (const std::string hex = text_of(line, "stored_key_hex"); !hex.empty()) {
      if (const auto bytes = text::from_hex(hex)) act["key"] = escaped(key_parts(*bytes).name);
      act["stored_key_hex"] = hex;
    }
    const auto copy = [&act](const Json& from, std::initializer_list<const char*> names) {
      for (const char* const name : names) {
        if (Json value = member_of(from, name); value.is_string() || value == true) act[name] = std::move(value);
      }
    };
    copy(line, {"as", "reconciled", "force", "reason", "bulk", "id"});
    if (event == "act" || event == "reconcile") {
      const auto found = after_.find(name_of(line));
      // Nobody wrote what became of it: it may have been done.
      act[event == "act" ? "outcome" : "says"] = nullptr;
      if (found != after_.end() && !found->second.empty()) {
        copy(found->second.back(), {"outcome", "says", "why"});
        found->second.pop_back();
      }
    } else if (Json outcome = member_of(line, "outcome"); outcome.is_string()) {
      act["outcome"] = std::move(outcome);
    }
    if (wanted_.matches(act)) acts_.push_back(std::move(act));
  }

  Json take() { return std::move(acts_); }

 private:
  static bool is_after(std::string_view event) { return event == "acted" || event == "reconciled"; }
  static std::string name_of(const Json& line) {
    return Json{text_of(line, "who"),        text_of(line, "act"),  text_of(line, "stored_key_hex"),
                member_of(line, "revision"), text_of(line, "bulk"), text_of(line, "id")}
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const WantedActs& wanted_;
  Json acts_ = Json::array();
  std::map<std::string, std::vector<Json>> after_;
};

std::optional<Json> parsed_line(std::string_view line) {
  Json json = Json::parse(line, nullptr, false);
  return is_ours(json) ? std::optional(std::move(json)) : std::nullopt;
}

// Calls `each` with the lines of `bytes`, the last first, and where each begins; false ends it.
void lines_back(std::string_view bytes, const std::function<bool(std::string_view line, std::size_t begins)>& each) {
  while (!bytes.empty()) {
    const auto newline = bytes.find_last_of('\n', bytes.size() - 2);
    const std::size_t begins = bytes.size() < 2 || newline == std::string_view::npos ? 0 : newline + 1;
    if (!each(bytes.substr(begins), begins)) return;
    bytes = bytes.substr(0, begins);
  }
}

Json answer_json(Json acts, const std::optional<std::uint64_t>& next, const char* source, Json since,
                 std::optional<std::size_t> searched, std::uint64_t skipped) {
  return {{"acts", std::move(acts)},
          {"next", next ? Json(std::to_string(*next)) : Json(nullptr)},
          {"source", source},
          {"since", std::move(since)},
          {"searched_bytes", searched ? Json(*searched) : Json(nullptr)},
          {"skipped", skipped}};
}

// Empty: the file is none that can be read again, such as a pipe.
std::optional<http::Answer> list_file(const AuditLog& audit, const WantedActs& wanted) {
  const auto file = audit.open_again();
  if (!file) return std::nullopt;
  const std::uint64_t size = file->size();
  const std::uint64_t end = wanted.after.value_or(size);
  if (end > size) throw wrong("after is behind the end of the audit log: begin again without it");
  const std::uint64_t begin = end - std::min<std::uint64_t>(end, Notes::most_read);
  const std::string bytes = file->read(begin, end - begin);
  ActsJson acts(wanted);
  const std::string behind = file->read(end, std::min<std::uint64_t>(size - end, most_between));
  lines_back(behind, [&](std::string_view line, std::size_t /*begins*/) {
    if (const auto json = parsed_line(line)) acts.expect(*json);
    return true;
  });
  std::uint64_t skipped = 0;
  std::uint64_t next = begin;
  lines_back(bytes, [&](std::string_view line, std::size_t begins) {
    const bool is_cut = begins == 0 && begin > 0;
    if (is_cut && line.size() < bytes.size()) {  // Its beginning is on the next page, and so is the whole of it.
      next = begin + line.size();
      return false;
    }
    if (acts.is_full()) {
      next = begin + begins + line.size();
      return false;
    }
    next = begin + begins;
    const auto json = line.ends_with('\n') ? parsed_line(line) : std::nullopt;
    json ? acts.add(*json) : void(++skipped);
    return true;
  });
  const std::string first = file->read(0, std::min<std::uint64_t>(size, most_between));
  const auto oldest = parsed_line(std::string_view(first).substr(0, first.find('\n')));
  return json_answer(200, answer_json(acts.take(), next == 0 ? std::nullopt : std::optional(next), "audit log",
                                      oldest ? member_of(*oldest, "time") : Json(nullptr), bytes.size(), skipped));
}

}  // namespace

Notes::Notes(AuditLog* audit) : audit_(audit), began_(system_clock()->now()) {}

bool Notes::write(const Json& line) {
  Json whole{{"time", text::rfc3339(system_clock()->now())}};
  whole.update(line);
  if (audit_ != nullptr && !audit_->write(whole)) return false;
  for (Json& value : whole) {  // A key in hexadecimal digits is not longer.
    if (value.is_string()) value = clean_text(value.get_ref<const std::string&>(), 2 * max_key_bytes);
  }
  const std::lock_guard lock(mutex_);
  if (kept_.size() == most_kept) kept_.pop_front();
  kept_.push_back(std::move(whole));
  ++count_;
  return true;
}

http::Answer Notes::list(std::string_view text) const {
  Query query(text);
  WantedActs wanted{
      .who = query.take("who"), .key = query.take("key"), .act = query.take("act"), .id = query.take("id")};
  wanted.limit = query.take_limit();
  const auto after = query.take("after");
  query.end();
  if (wanted.key) wanted.key = to_hex(parse_hex(*wanted.key, "key"));
  if (after) {
    wanted.after = text::parse_whole<std::uint64_t>(*after);
    if (!wanted.after) throw wrong("after is not the next of an answer");
  }
  if (audit_ != nullptr) {
    if (auto answer = list_file(*audit_, wanted)) return *std::move(answer);
  }
  const std::lock_guard lock(mutex_);
  const std::uint64_t first = count_ - kept_.size();
  std::uint64_t next = std::min(count_, wanted.after.value_or(count_));
  ActsJson acts(wanted);
  for (std::uint64_t at = count_; at > std::max(next, first); --at) acts.expect(kept_.at(at - 1 - first));
  for (; next > first && !acts.is_full(); --next) acts.add(kept_.at(next - 1 - first));
  return json_answer(
      200, answer_json(acts.take(), next > first ? std::optional(next) : std::nullopt, "this process",
                       first > 0 ? member_of(kept_.front(), "time") : Json(text::rfc3339(began_)), std::nullopt, 0));
}

}  // namespace once::operators
