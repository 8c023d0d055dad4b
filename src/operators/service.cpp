#include "operators/service.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>

#include "operators/answers.hpp"
#include "operators/one_act.hpp"
#include "operators/reporter.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "text/rfc3339.hpp"

namespace once::operators {

namespace {

constexpr std::array<std::string_view, 4> kind_words{"not_known", "done", "failed", "not_done"};

std::size_t bytes_of(const Service::Told& told) { return told.finding.result.bytes.size() + told.finding.why.size(); }

}  // namespace

std::string service_says(const Finding& finding) {
  return "the service says " + std::string(to_string(finding.kind)) + (finding.why.empty() ? "" : ": " + finding.why);
}

std::string_view to_string(Finding::Kind kind) { return kind_words.at(static_cast<std::size_t>(kind)); }

std::optional<Finding::Kind> finding_from_string(std::string_view word) {
  const auto* const found = std::ranges::find(kind_words, word);
  if (found == kind_words.end()) return std::nullopt;
  return static_cast<Finding::Kind>(found - kind_words.begin());
}

void Service::ask_by(std::optional<Reconciler> reconciler) {
  const std::lock_guard lock(mutex_);
  reconciler_ = std::move(reconciler);
}

bool Service::asks() const {
  const std::lock_guard lock(mutex_);
  return reconciler_.has_value();
}

std::string Service::refusal(const Record& record) const {
  if (record.state != State::unknown) {
    return "it is " + std::string(to_string(record.state)) + ": only of an unknown operation the service is asked";
  }
  const std::lock_guard lock(mutex_);
  if (!reconciler_) return "this process asks no service";
  return reconciler_->concerns(record) ? std::string() : "this process knows no service to ask about this record";
}

Service::ToldPtr Service::ask(const RecordPtr& unknown) {
  std::optional<Reconciler> reconciler;
  {
    const std::lock_guard lock(mutex_);
    reconciler = reconciler_;
  }
  const Time asked_at = clock_->now();
  const Uptime asked_at_uptime = clock_->uptime();
  Finding finding =
      reconciler ? reconciler->find_out(unknown) : Finding::not_known("this process asks no service any more");
  auto told = std::make_shared<const Told>(
      Told{.finding = std::move(finding), .asked_at = asked_at, .asked_at_uptime = asked_at_uptime});
  keep(*unknown, told);
  return told;
}

Service::ToldPtr Service::told(const Record& record) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(record.key);
  const bool is_of_now =
      found != kept_.end() && found->second.owner == record.owner && found->second.revision == record.revision;
  return is_of_now ? found->second.told : nullptr;
}

std::string Service::contradiction(const ToldPtr& told, Finding::Kind wanted) const {
  if (!told) return "the service was not asked about it as it is now";
  if (told->finding.kind != wanted) return service_says(told->finding);
  if (wanted == Finding::Kind::not_done && clock_->uptime() - told->asked_at_uptime >= not_done_life) {
    return "the service said not_done more than " + std::to_string(not_done_life.count()) +
           " minutes ago: ask it again";
  }
  return {};
}

std::string Service::objection(const Record& record) const {
  const ToldPtr told = this->told(record);
  if (!told || told->finding.kind != Finding::Kind::happened) return {};
  return service_says(told->finding) + ". Force the change if it shall run again";
}

void Service::keep(const Record& record, ToldPtr told) {
  const std::lock_guard lock(mutex_);
  const auto forget = [&](auto one) {
    bytes_ -= bytes_of(*one->second.told);
    kept_.erase(one);
  };
  if (const auto earlier = kept_.find(record.key); earlier != kept_.end()) forget(earlier);
  bytes_ += bytes_of(*told);
  kept_.emplace(record.key, Kept{record.owner, record.revision, std::move(told), ++count_});
  oldest_.emplace_back(count_, record.key);
  while (kept_.size() > most_kept || bytes_ > most_bytes || oldest_.size() > 2 * most_kept) {
    const auto [number, key] = std::move(oldest_.front());
    oldest_.pop_front();
    if (const auto found = kept_.find(key); found != kept_.end() && found->second.number == number) forget(found);
  }
}

nlohmann::ordered_json told_json(const Service::Told& told) {
  nlohmann::ordered_json json{{"says", to_string(told.finding.kind)}};
  if (!told.finding.why.empty()) json["why"] = clean_text(told.finding.why, HistoryEntry::max_text_bytes);
  return json;
}

nlohmann::ordered_json service_json(const Service& service, const Record& record) {
  if (record.state != State::unknown) return nullptr;
  nlohmann::ordered_json json{{"asks", service.refusal(record).empty()}, {"says", nullptr}};
  if (const auto told = service.told(record)) {
    json["says"] = to_string(told->finding.kind);
    json["why"] = told->finding.why;
    json["asked_at"] = text::rfc3339(told->asked_at);
  }
  return json;
}

http::Answer ask_about_one(const StoreAccess& access, Service& service, const http::Request& request,
                           const Caller& caller, const std::string& stored_key) {
  if (auto refused = refuse_other_than_json(request)) return std::move(*refused);
  Tag seen;
  if (auto refused = take_condition(request, seen)) return std::move(*refused);
  Members members(request.body);
  const std::string who = who_of(members, caller);
  members.end();
  if (!service.asks()) {
    return operators_problem(
        "asks-nobody", 409, "This process asks no service",
        "Start it with --reconcile, which says how to ask: once console, once sqs and the routes of "
        "once proxy have it.");
  }
  const Answer found = blocking::get(*access.store, stored_key);
  if (found.status == AnswerStatus::failed) return store_problem(found.error);
  if (!found.record) return no_record(stored_key);
  const RecordPtr& record = found.record;
  const auto refuse = [&](std::string_view name, unsigned status, std::string_view title, const std::string& why) {
    Changed changed{.record = record, .text = why, .now = store_now(access)};
    return refusal(changed, name, status, title);
  };
  if (record->owner != seen.owner || record->revision != seen.revision) {
    return refuse("record-changed", 412, "The record changed since you read it", "The service was not asked.");
  }
  if (const std::string why = service.refusal(*record); !why.empty()) {
    return refuse("refused", 409, "This change is not allowed in the record's state", why);
  }
  nlohmann::ordered_json line{
      {"event", "reconcile"}, {"stored_key_hex", to_hex(stored_key)}, {"revision", record->revision}, {"who", who}};
  if (!caller.note(line)) return not_audited();
  const auto told = service.ask(record);
  line["event"] = "reconciled";
  line.update(told_json(*told));
  if (!caller.note(std::move(line)))
    report("the audit log cannot be written: what the service says is not in it", LogLevel::err);
  http::Answer answer = json_answer(200, service_json(service, *record));
  answer.headers.push_back({"ETag", etag(*record)});
  return answer;
}

}  // namespace once::operators
