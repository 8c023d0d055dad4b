#include "operators/bulk.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>

#include "operators/acts.hpp"
#include "operators/answers.hpp"
#include "operators/lists.hpp"
#include "operators/one_act.hpp"
#include "operators/record_json.hpp"
#include "operators/reporter.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "platform/thread.hpp"
#include "text/rfc3339.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

enum class BulkState : std::uint8_t { counting, planned, running, done, stopped, expired, failed };

const char* to_string(BulkState state) {
  constexpr std::array words{"counting", "planned", "running", "done", "stopped", "expired", "failed"};
  return words.at(static_cast<std::size_t>(state));
}

bool has_ended(BulkState state) { return state > BulkState::running; }

const char* to_string(LeftBecause because) {
  switch (because) {
    case LeftBecause::refused:
      return "refused";
    case LeftBecause::gone:
      return "gone";
    case LeftBecause::failed:
      return "failed";
    case LeftBecause::changed:
    case LeftBecause::not_reached:
      break;
  }
  return "changed";
}

struct Leftover {
  std::string stored_key;
  LeftBecause because;
  std::string text;
};

Json leftover_json(const Leftover& left) {
  return {{"stored_key_hex", to_hex(left.stored_key)},
          {"key", escaped(key_parts(left.stored_key).name)},
          {"kind", to_string(left.because)},
          {"text", left.text}};
}

template <typename Number>
Json number_json(const std::optional<Number>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json maybe_time(const std::optional<Time>& time) { return time ? Json(text::rfc3339(*time)) : Json(nullptr); }

http::Answer bulk_refused(std::string_view detail) {
  return operators_problem("bulk-refused", 409, "This bulk act does not start", detail);
}

http::Answer no_bulk() {
  return operators_problem("no-bulk", 404, "There is no such bulk act",
                           "It was never planned here, or is forgotten: a program keeps the last 20, until it ends.");
}

std::vector<std::string> keys_in(const std::vector<std::string>& digits) {
  if (digits.empty() || digits.size() > BulkActs::most_records) {
    throw wrong("keys must have 1 to " + std::to_string(BulkActs::most_records) + " of them");
  }
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const std::string& text : digits) {
    std::string key = parse_hex(text, "keys");
    if (key.empty() || key.size() > max_key_bytes) throw wrong("keys must be records' stored_key_hex");
    if (seen.insert(key).second) keys.push_back(std::move(key));
  }
  return keys;
}

// The ETags of the records with these keys, as the operator saw them.
std::map<std::string, Tag> tags_in(const std::vector<std::string>& texts, const std::vector<std::string>& digits) {
  if (texts.size() != digits.size()) throw wrong("tags must have one ETag for each of keys");
  std::map<std::string, Tag> tags;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto tag = tag_of(texts[i]);
    if (!tag) throw wrong("tags must be records' ETags: \"OWNER-REVISION\"");
    tags.insert_or_assign(parse_hex(digits[i], "keys"), *tag);
  }
  return tags;
}

}  // namespace

struct BulkActs::Bulk {
  // These stay as they are.
  std::string id;
  OneAct what = OneAct::release;
  std::optional<std::string> as;
  std::map<std::string, std::string> filter_texts;
  ListedFilter filter;
  std::vector<std::string> keys;    // Instead of a filter.
  std::map<std::string, Tag> seen;  // Of these keys, if they were told. Others are not in it.
  Act act;
  Json line;  // As AskedAct has it.
  Time made_at{};

  operate::Reason reason;
  Caller caller;  // Who has planned it, and then who has started it.
  BulkState state = BulkState::counting;
  bool stops = false;  // Somebody wants it to.
  std::optional<Time> expires_at;
  Uptime expires_at_uptime{};
  std::uint64_t searched = 0;
  std::optional<std::uint64_t> count;
  std::optional<std::uint64_t> refused;
  std::optional<bool> bounded;
  std::optional<std::uint64_t> written;
  std::optional<std::uint64_t> left_alone;
  std::optional<std::uint64_t> failed;
  std::optional<std::string> error;
  std::vector<std::string> remarks;  // The first of them.
  std::vector<Leftover> refusals;    // By the plan.
  std::vector<Leftover> left;        // When it was carried out.
  Json planned = Json::array();
  std::vector<Counted> records;
  std::array<std::uint64_t, 4> says{};  // Of an act that asks the service: how often what. By Finding::Kind.

  void end(BulkState how) {
    state = how;
    records = {};
  }

  // `whole`: with its records.
  [[nodiscard]] Json json(bool whole) const {
    Json json{{"id", id}, {"state", to_string(state)}, {"act", operators::to_string(what)}};
    if (as) json["as"] = *as;
    if (keys.empty()) {
      json["filter"] = filter_texts;
    } else {
      json["keys"] = keys.size();
    }
    json["reason"] = reason.text;
    json["who"] = reason.by;
    json["made_at"] = text::rfc3339(made_at);
    json["expires_at"] = maybe_time(expires_at);
    json["searched"] = searched;
    json["count"] = number_json(count);
    json["refused"] = number_json(refused);
    json["bounded"] = number_json(bounded);
    json["written"] = number_json(written);
    json["left_alone"] = number_json(left_alone);
    json["failed"] = number_json(failed);
    if (what == OneAct::reconcile) {
      for (std::size_t kind = 0; kind < says.size(); ++kind) {
        json["says"][std::string(operators::to_string(static_cast<Finding::Kind>(kind)))] = says.at(kind);
      }
    }
    json["error"] = error ? Json(*error) : Json(nullptr);
    json["remarks"] = remarks;
    if (!whole) return json;
    json["leftovers"] = Json::array();
    for (const auto* const list : {&left, &refusals}) {
      for (const Leftover& one : *list) {
        if (json["leftovers"].size() < most_leftovers) json["leftovers"].push_back(leftover_json(one));
      }
    }
    json["planned"] = planned;
    return json;
  }
};

BulkActs::BulkActs(const StoreAccess& access, Service& service, std::shared_ptr<Clock> clock)
    : access_(access), service_(service), clock_(std::move(clock)) {
  try {
    planner_ = start_thread<std::jthread>([this] { make_plans(); });
    runner_ = start_thread<std::jthread>([this] { carry_out_plans(); });
  } catch (...) {  // At the limit of threads: the first one must not wait for work for ever.
    stop_all();
    throw;
  }
}

BulkActs::~BulkActs() { stop_all(); }

void BulkActs::stop_all() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  news_.notify_all();
}

BulkActs::BulkPtr BulkActs::find(std::string_view id) const {
  expire();
  const auto found = std::ranges::find_if(acts_, [&](const BulkPtr& bulk) { return bulk->id == id; });
  return found == acts_.end() ? nullptr : *found;
}

// By a clock that nobody sets, and that runs during suspend.
void BulkActs::expire() const {
  for (const BulkPtr& bulk : acts_) {
    if (bulk->state == BulkState::planned && bulk != starting_ && clock_->uptime() >= bulk->expires_at_uptime)
      bulk->end(BulkState::expired);
  }
}

http::Answer BulkActs::plan(const http::Request& request, const Caller& caller) {
  if (auto answer = refuse_other_than_json(request)) return *std::move(answer);
  Members members(request.body);
  const auto what = act_from_string(members.text("act").value_or(""));
  if (!what) throw wrong("act must be resolve, release, extend, remove or reconcile");
  const auto bulk = std::make_shared<Bulk>();
  bulk->what = *what;
  const auto texts = members.texts_by_name("filter");
  const auto digits = members.texts("keys");
  const auto tags = members.texts("tags");
  if (tags && !digits) throw wrong("tags go with keys");
  if (texts.has_value() == digits.has_value()) throw wrong("give filter or keys, and not both");
  if (texts) {
    Query query(*texts);
    bulk->filter = take_filter(query);
    query.end();
    if (bulk->filter.is_empty()) {
      throw wrong("filter is empty: an act on all records of a store is refused. Say which, as in standing");
    }
    filter_of(bulk->filter.filter, Time{}, access_.raw_scopes, "filter.");
    bulk->filter_texts = *texts;
  } else {
    bulk->keys = keys_in(*digits);
    if (tags) bulk->seen = tags_in(*tags, *digits);
  }
  if (*what == OneAct::resolve) bulk->as = members.text("as");
  AskedAct asked = asked_act(members, *what, caller, service_);
  members.end();
  bulk->act = std::move(asked.act);
  bulk->line = std::move(asked.line);
  // A group by what the service says is one as long as it says so. It may be asked again at any time.
  if (const auto& says = bulk->filter.reconciled; says && *what != OneAct::reconcile) {
    bulk->act.planner = [planner = std::move(bulk->act.planner), says = *says, this](
                            const Record& seen, const operate::Reason& reason, Stamp stamp, Millis skew) {
      std::string why = service_.contradiction(service_.told(seen), says);
      return why.empty() ? planner(seen, reason, stamp, skew) : operate::Plan{.next = {}, .refusal = std::move(why)};
    };
  }
  bulk->reason = std::move(asked.reason);
  bulk->caller = caller;
  bulk->made_at = clock_->now();
  bulk->id = fresh_owner().hex();

  const std::lock_guard lock(mutex_);
  expire();
  if (ending_) return stopping();
  if (acts_.size() == most_acts) {
    const auto oldest = std::ranges::find_if(acts_, [](const BulkPtr& one) { return has_ended(one->state); });
    if (oldest == acts_.end()) return bulk_refused("20 others are planned or under way. Stop one of them first.");
    acts_.erase(oldest);
  }
  acts_.push_back(bulk);
  news_.notify_all();
  http::Answer answer = json_answer(202, bulk->json(true));
  answer.headers.push_back({"Location", "bulk/" + bulk->id});
  return answer;
}

http::Answer BulkActs::list() const {
  const std::lock_guard lock(mutex_);
  expire();
  Json json{{"bulk", Json::array()}};
  for (auto bulk = acts_.rbegin(); bulk != acts_.rend(); ++bulk) json["bulk"].push_back((*bulk)->json(false));
  return json_answer(200, json);
}

http::Answer BulkActs::show(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const BulkPtr bulk = find(id);
  return bulk ? json_answer(200, bulk->json(true)) : no_bulk();
}

std::string BulkActs::line(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const BulkPtr bulk = find(id);
  const Json json = bulk ? bulk->json(false) : Json{{"id", id}, {"state", nullptr}};
  return json_line(json);
}

http::Answer BulkActs::start(std::string_view id, const http::Request& request, const Caller& caller) {
  if (auto answer = refuse_other_than_json(request)) return *std::move(answer);
  refuse_long(request);
  Members members(request.body);
  const auto count = members.number("count");
  members.end();
  if (!count) throw wrong("count is missing: it must be the number of records that the plan would change");

  std::unique_lock lock(mutex_);
  const BulkPtr bulk = find(id);
  if (!bulk) return no_bulk();
  if (ending_) return stopping();
  if (bulk->state == BulkState::expired) return bulk_refused("The plan is more than 10 minutes old. Make another one.");
  if (bulk->state != BulkState::planned)
    return bulk_refused(std::string("It is not planned, but ") + to_string(bulk->state) + ".");
  if (*bulk->bounded) {
    return bulk_refused("More than " + std::to_string(most_records) +
                        " records match. Select fewer, and make another plan.");
  }
  if (*count != *bulk->count) {
    return bulk_refused("count is " + std::to_string(*count) + ", but the plan would change " +
                        std::to_string(*bulk->count) + " records. Nothing was changed.");
  }
  if (*count == 0) return bulk_refused("The plan would change no record.");
  if (const BulkPtr& other = running_ ? running_ : starting_) {
    return bulk_refused("Another one is running: " + other->id + ". Wait for its end, or stop it.");
  }
  // What it does is done in the name of who starts it.
  operate::Reason reason = bulk->reason;
  if (caller.session) {
    reason.by = caller.session->name;
  } else if (bulk->caller.session) {
    reason.by = std::string(no_session_name);
  }
  Json line{{"event", "bulk-start"}, {"act", operators::to_string(bulk->what)},
            {"bulk", bulk->id},      {"count", *count},
            {"reason", reason.text}, {"who", reason.by}};
  line.update(bulk->line);
  // Whoever looks at it must not wait for a disk.
  starting_ = bulk;
  lock.unlock();
  const bool is_noted = caller.note(std::move(line));
  lock.lock();
  starting_ = nullptr;
  news_.notify_all();
  if (!is_noted) {
    if (bulk->stops) bulk->end(BulkState::stopped);
    return not_audited();
  }
  bulk->reason = std::move(reason);
  bulk->caller = caller;
  bulk->written = bulk->left_alone = bulk->failed = 0;
  bulk->state = BulkState::running;
  running_ = bulk;
  news_.notify_all();
  return json_answer(202, bulk->json(true));
}

http::Answer BulkActs::stop(std::string_view id, const http::Request& request, const Caller& caller) {
  if (auto answer = refuse_other_than_json(request)) return *std::move(answer);
  refuse_long(request);
  Members(request.body).end();
  std::unique_lock lock(mutex_);
  const BulkPtr bulk = find(id);
  if (!bulk) return no_bulk();
  const bool is_first = !has_ended(bulk->state) && !bulk->stops;
  if (is_first) {
    bulk->stops = true;
    // One that starts goes on until it has its line at the start, and then it has one at the end.
    if (bulk->state != BulkState::running && bulk != starting_) bulk->end(BulkState::stopped);
  }
  http::Answer answer = json_answer(202, bulk->json(true));
  lock.unlock();
  const Json line{{"event", "bulk-stop"}, {"bulk", bulk->id}, {"who", caller.session ? "" : no_session_name}};
  if (is_first && !caller.note(line)) {
    report("the audit log cannot be written: that a bulk act is stopped is not in it", LogLevel::err);
  }
  return answer;
}

bool BulkActs::goes_on(const Bulk& bulk) const { return !ending_ && !bulk.stops; }

void BulkActs::make_plans() {
  std::unique_lock lock(mutex_);
  for (;;) {
    BulkPtr next;
    news_.wait(lock, [&] {
      const auto found =
          std::ranges::find_if(acts_, [](const BulkPtr& one) { return one->state == BulkState::counting; });
      next = found == acts_.end() ? nullptr : *found;
      return ending_ || next;
    });
    if (ending_) return;
    lock.unlock();
    make_plan(*next);
    lock.lock();
  }
}

void BulkActs::make_plan(Bulk& bulk) {
  Selection selection;
  Json planned = Json::array();
  std::optional<std::string> error;
  operate::Reason reason;
  {
    const std::lock_guard lock(mutex_);
    reason = bulk.reason;
  }
  try {
    const Time now = store_now(access_);
    const Selecting selecting{.matches = [&](const Record& record) { return is_found(bulk.filter, service_, record); },
                              .as_seen =
                                  [&](const Record& record) {
                                    const auto seen = bulk.seen.find(record.key);
                                    return seen == bulk.seen.end() || (seen->second.owner == record.owner &&
                                                                       seen->second.revision == record.revision);
                                  },
                              .each =
                                  [&](const Record& record) {
                                    if (planned.size() == most_shown) return;
                                    const KeyParts parts = key_parts(record.key);
                                    planned.push_back({{"stored_key_hex", to_hex(record.key)},
                                                       {"key", escaped(parts.name)},
                                                       {"scope", escaped(parts.scope)},
                                                       {"label", escaped(record.label)},
                                                       {"standing", operate::to_string(operate::standing(record, now))},
                                                       {"revision", record.revision}});
                                    if (Json told = service_json(service_, record); told.is_object()) {
                                      planned.back()["service"] = std::move(told);
                                    }
                                  },
                              .go_on =
                                  [&](std::uint64_t read) {
                                    const std::lock_guard lock(mutex_);
                                    bulk.searched = read;
                                    return goes_on(bulk);
                                  }};
    selection = bulk.keys.empty() ? select(access_, filter_of(bulk.filter.filter, now, access_.raw_scopes, "filter."),
                                           now, reason, bulk.act, most_records, selecting)
                                  : select_keys(access_, bulk.keys, now, reason, bulk.act, selecting);
  } catch (const std::exception& failure) {
    error = failure.what();
  }

  const std::lock_guard lock(mutex_);
  if (bulk.state != BulkState::counting) return;  // It was stopped.
  if (!goes_on(bulk)) return bulk.end(BulkState::stopped);
  if (selection.error) error = selection.error->message;
  if (error && !(selection.error && selection.error->kind == ErrorKind::corrupt)) {
    bulk.error = std::move(error);
    return bulk.end(BulkState::failed);
  }
  if (error) bulk.error = "some records cannot be read, and are left: " + *error;
  bulk.count = selection.records.size();
  bulk.bounded = selection.bounded;
  bulk.refused = 0;
  for (auto& [why, keys] : selection.left) {
    *bulk.refused += keys.size();
    for (std::string& key : keys) {
      if (bulk.refusals.size() == most_leftovers) break;
      bulk.refusals.push_back({.stored_key = std::move(key), .because = why.first, .text = why.second});
    }
  }
  bulk.planned = std::move(planned);
  if (!selection.bounded) bulk.records = std::move(selection.records);
  bulk.expires_at_uptime = clock_->uptime() + plan_life;
  bulk.expires_at = clock_->now() + plan_life;
  bulk.state = BulkState::planned;
}

void BulkActs::carry_out_plans() {
  std::unique_lock lock(mutex_);
  for (;;) {
    news_.wait(lock, [&] { return (ending_ && !starting_) || running_; });
    if (!running_) return;  // One that has been started has its line at the end in any case.
    const BulkPtr bulk = running_;
    lock.unlock();
    carry_out(*bulk);
    lock.lock();
  }
}

// Under the mutex.
void BulkActs::count_one(Bulk& bulk, const Counted& record, Carried carried) {
  if (!carried.left) {
    ++*bulk.written;
  } else {
    ++*(*carried.left == LeftBecause::failed ? bulk.failed : bulk.left_alone);
    if (bulk.left.size() < most_leftovers) {
      bulk.left.push_back({.stored_key = record.stored_key, .because = *carried.left, .text = std::move(carried.why)});
    }
  }
  constexpr std::size_t most_remarks = 10;
  if (!carried.remark.empty() && bulk.remarks.size() < most_remarks) {
    bulk.remarks.push_back(std::move(carried.remark));
  }
}

// Asks the service about a record that is as it was planned. `line` gets what it says.
Carried BulkActs::ask_about(Bulk& bulk, const Counted& record, Json& line) {
  const Answer found = blocking::get(*access_.store, record.stored_key);
  const auto left = [](LeftBecause because, std::string why) {
    return Carried{.left = because, .why = std::move(why), .remark = {}, .ends = {}};
  };
  if (found.status == AnswerStatus::failed) {
    Carried carried = left(LeftBecause::failed, found.error.message);
    if (found.error.kind != ErrorKind::corrupt) carried.ends = found.error;
    return carried;
  }
  if (!found.record) return left(LeftBecause::gone, "gone meanwhile");
  if (found.record->owner != record.owner || found.record->revision != record.revision) {
    return left(LeftBecause::changed, "changed meanwhile");
  }
  const auto told = service_.ask(found.record);
  line.update(told_json(*told));
  const std::lock_guard lock(mutex_);
  ++bulk.says.at(static_cast<std::size_t>(told->finding.kind));
  return {};
}

void BulkActs::carry_out(Bulk& bulk) {
  std::unique_lock lock(mutex_);
  const std::vector<Counted> records = std::move(bulk.records);
  const operate::Reason reason = bulk.reason;
  const Caller caller = bulk.caller;
  lock.unlock();
  BulkState how = BulkState::done;
  std::optional<std::string> error;
  const auto fail = [&](std::string text) {
    how = BulkState::failed;
    error = std::move(text);
  };
  try {
    for (const Counted& record : records) {
      lock.lock();
      const bool stops = !goes_on(bulk);
      lock.unlock();
      if (how != BulkState::done) break;  // It failed, whether or not an operator also stops it.
      if (stops) {
        how = BulkState::stopped;
        break;
      }
      Json line{{"event", bulk.what == OneAct::reconcile ? "reconcile" : "act"},
                {"act", operators::to_string(bulk.what)},
                {"stored_key_hex", to_hex(record.stored_key)},
                {"revision", record.revision},
                {"reason", reason.text},
                {"who", reason.by},
                {"bulk", bulk.id}};
      line.update(bulk.line);
      if (!caller.note(line)) {
        fail("stopped, as the audit log cannot be written");
        break;
      }
      const bool is_question = bulk.what == OneAct::reconcile;
      line["event"] = is_question ? "reconciled" : "acted";
      Carried carried = is_question ? ask_about(bulk, record, line) : carry_out_one(access_, record, reason, bulk.act);
      const bool in_doubt = !is_question && carried.ends && carried.ends->kind == ErrorKind::in_doubt;
      if (in_doubt) carried.why = "may be written: " + carried.why;
      if (carried.left || !is_question) {
        line["outcome"] = in_doubt ? "in_doubt" : carried.left ? to_string(*carried.left) : "done";
      }
      if (!carried.left && bulk.act.removes) say_removed(record.stored_key, reason);
      if (!caller.note(std::move(line))) {
        fail("stopped, as the audit log cannot be written. The last record's outcome is not in it");
      }
      if (carried.ends) fail(carried.why);
      lock.lock();
      count_one(bulk, record, std::move(carried));
      lock.unlock();
    }
  } catch (const std::exception& failure) {  // A mistake here, or no memory. It must not end the process.
    if (lock.owns_lock()) lock.unlock();
    fail(std::string("stopped by an error of the program: ") + failure.what());
  }
  std::string log_left = bulk.act.removes ? cut_log(access_) : std::string();
  lock.lock();
  const Json line{{"event", "bulk-end"},      {"act", operators::to_string(bulk.what)},
                  {"bulk", bulk.id},          {"outcome", to_string(how)},
                  {"written", *bulk.written}, {"left_alone", *bulk.left_alone},
                  {"failed", *bulk.failed},   {"reason", reason.text},
                  {"who", reason.by}};
  if (!log_left.empty()) bulk.remarks.push_back(std::move(log_left));
  lock.unlock();
  if (!caller.note(line)) report("the audit log cannot be written: the end of a bulk act is not in it", LogLevel::err);
  lock.lock();
  if (error) bulk.error = std::move(error);  // Else it keeps what the plan could not read.
  bulk.end(how);
  running_ = nullptr;
}

}  // namespace once::operators
