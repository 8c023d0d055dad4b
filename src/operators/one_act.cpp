#include "operators/one_act.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>
#include <once/operate.hpp>

#include "operators/answers.hpp"
#include "operators/changes.hpp"
#include "operators/record_json.hpp"
#include "operators/reporter.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

http::Answer answer_of(const Changed& changed, const std::string& key, bool dry_run) {
  http::Answer answer;
  switch (changed.kind) {
    case Changed::Kind::written:
    case Changed::Kind::planned:
      answer = json_answer(200, change_json(changed, dry_run));
      break;
    case Changed::Kind::no_record:
      return no_record(key);
    case Changed::Kind::refused:
      answer = refusal(changed, "refused", 409, "This change is not allowed in the record's state");
      break;
    case Changed::Kind::other:
    case Changed::Kind::raced:
      answer = refusal(changed, "record-changed", 412, "The record changed since you read it");
      break;
    case Changed::Kind::failed:
      return changed.unfit ? bad_request(changed.error.message) : store_problem(changed.error);
  }
  // A dry run changes nothing: the tag is the one that was sent.
  if (changed.record && changed.kind == Changed::Kind::written) {
    answer.headers.push_back({"ETag", etag(*changed.record)});
  }
  return answer;
}

// 8-4-4-4-12 hexadecimal digits.
bool is_uuid(std::string_view text) {
  constexpr std::string_view form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != form.size()) return false;
  for (std::size_t at = 0; at < form.size(); ++at) {
    const bool is_digit = (text[at] >= '0' && text[at] <= '9') || (text[at] >= 'a' && text[at] <= 'f');
    if (form[at] == '-' ? text[at] != '-' : !is_digit) return false;
  }
  return true;
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

// What the members say that only this act has.
Planner extend_planner(Members& members) {
  const auto by = members.text("by");
  const auto on_lapse = members.text("on_lapse");
  const auto retention = members.text("retention");
  if (by.has_value() == on_lapse.has_value()) throw wrong("give by, as in 10m, or on_lapse, and not both");
  if (by) {
    if (retention) throw wrong("retention goes with on_lapse");
    return [more = parse_duration(*by, "by")](const Record& seen, const operate::Reason& reason, Stamp stamp,
                                              Millis skew) {
      return operate::plan_extend(seen, more, reason, stamp, skew);
    };
  }
  const auto word = on_lapse_from_string(*on_lapse);
  if (!word) throw wrong("on_lapse must be takeover or hold");
  return [word, kept = parse_retention(retention.value_or("24h"), "retention")](
             const Record& seen, const operate::Reason& reason, Stamp stamp, Millis skew) {
    return operate::plan_on_lapse(seen, *word, kept, reason, stamp, skew);
  };
}

// What the service says of each record becomes its outcome.
Planner reconciled_planner(Members& members, const std::string& as, const Service& service) {
  for (const char* const own : {"result", "code", "message"}) {
    if (members.has(own)) throw wrong(std::string(own) + " and reconciled exclude each other");
  }
  const operate::Resolution resolution{.as = resolution_of(as, std::nullopt, {}, "").as,
                                       .any_payload = members.flag("any_payload"),
                                       .force = members.flag("force")};
  const auto retention = members.text("retention");
  const std::optional<Millis> kept = retention ? std::optional(parse_retention(*retention, "retention")) : std::nullopt;
  return [resolution, kept, &service](const Record& seen, const operate::Reason& reason, Stamp stamp, Millis) {
    constexpr std::array fitting{Finding::Kind::happened, Finding::Kind::failed, Finding::Kind::not_done};
    const auto wanted = fitting.at(static_cast<std::size_t>(resolution.as));
    const auto told = service.told(seen);
    if (std::string why = service.contradiction(told, wanted); !why.empty()) {
      return operate::Plan{.next = {}, .refusal = std::move(why)};
    }
    const Finding& finding = told->finding;
    operate::Resolution own = resolution;
    own.result = finding.result;
    own.failure = finding.failure;
    if (kept || finding.retention) own.retention = kept ? *kept : *finding.retention;
    operate::Reason with_answer = reason;
    with_answer.text += "; " + service_says(finding);
    operate::Plan plan = operate::plan_resolve(seen, own, with_answer, fresh_owner(), stamp);
    if (plan.next) drop_if_too_large(*plan.next, service.max_record_bytes());
    return plan;
  };
}

// The same, but what the service has done does not run again.
Planner unless_done(Planner planner, const Service& service) {
  return [planner = std::move(planner), &service](const Record& seen, const operate::Reason& reason, Stamp stamp,
                                                  Millis skew) {
    std::string why = service.objection(seen);
    return why.empty() ? planner(seen, reason, stamp, skew) : operate::Plan{.next = {}, .refusal = std::move(why)};
  };
}

Planner planner_of(Members& members, OneAct act, const Service& service) {
  if (act == OneAct::extend) return extend_planner(members);
  if (act == OneAct::reconcile) {
    return [&service](const Record& seen, const operate::Reason&, Stamp, Millis) {
      std::string why = service.refusal(seen);
      return why.empty() ? operate::Plan{.next = seen, .refusal = {}}
                         : operate::Plan{.next = {}, .refusal = std::move(why)};
    };
  }
  operate::Resolution resolution;
  if (act == OneAct::resolve) {
    const auto as = members.text("as");
    if (!as) throw wrong("as must be completed, failed or released");
    if (members.flag("reconciled")) return reconciled_planner(members, *as, service);
    Failure failure{.code = members.text("code").value_or(""), .message = members.text("message").value_or("")};
    resolution = resolution_of(*as, result_of(members), std::move(failure), "");
  }
  resolution.force = members.flag("force");
  if (act == OneAct::remove) {
    Planner remove = [force = resolution.force](const Record& seen, const operate::Reason& reason, Stamp stamp,
                                                Millis) {
      return operate::plan_remove(seen, force, reason, stamp.now);
    };
    return resolution.force ? remove : unless_done(std::move(remove), service);
  }
  resolution.any_payload = members.flag("any_payload");
  resolution.retention = parse_retention(members.text("retention").value_or("24h"), "retention");
  const bool runs_again = act == OneAct::release || resolution.as == operate::As::released;
  const bool is_forced = resolution.force;
  Planner planner = [plan = act == OneAct::resolve ? operate::plan_resolve : operate::plan_release,
                     resolution = std::move(resolution)](const Record& seen, const operate::Reason& reason, Stamp stamp,
                                                         Millis) {
    return plan(seen, resolution, reason, fresh_owner(), stamp);
  };
  return runs_again && !is_forced ? unless_done(std::move(planner), service) : planner;
}

constexpr std::array<std::string_view, 5> act_words{"resolve", "release", "extend", "remove", "reconcile"};
constexpr std::array<const char*, 5> done_words{"resolved", "released", "extended", "removed", "asked about"};

// What became of an act, by the status of its answer. in_doubt: nobody knows.
const char* outcome_of(const Changed& changed, unsigned status) {
  if (changed.kind == Changed::Kind::failed && changed.error.kind == ErrorKind::in_doubt) return "in_doubt";
  switch (status) {
    case 200:
      return "done";
    case 404:
      return "gone";
    case 409:
      return "refused";
    case 412:
      return "changed";
    default:
      return "failed";
  }
}

}  // namespace

std::string_view to_string(OneAct act) { return act_words.at(static_cast<std::size_t>(act)); }

std::optional<OneAct> act_from_string(std::string_view word) {
  const auto* const found = std::ranges::find(act_words, word);
  if (found == act_words.end()) return std::nullopt;
  return static_cast<OneAct>(found - act_words.begin());
}

http::Answer refusal(const Changed& changed, std::string_view name, unsigned status, std::string_view title) {
  Json json = problem_json(name, status, title, changed.text);
  json["record"] = changed.record ? record_json(*changed.record, changed.now, false) : Json(nullptr);
  http::Answer answer = json_answer(status, json, "application/problem+json");
  if (changed.record) answer.headers.push_back({"ETag", etag(*changed.record)});
  return answer;
}

std::string who_of(Members& members, const Caller& caller) {
  auto said = members.text("who");
  if (!caller.session) return said.value_or(std::string(no_session_name));
  if (said && *said != caller.session->name) {
    throw wrong("who is not the name of this session, which is '" + escaped(caller.session->name) + "': leave it out");
  }
  return caller.session->name;
}

std::optional<http::Answer> take_condition(const http::Request& request, Tag& seen) {
  const std::string_view* const condition = header_of(request, "If-Match");
  if (condition == nullptr) {
    return operators_problem(
        "precondition-required", 428, "The request needs If-Match",
        "Send If-Match with the ETag from GET: then a record that changed since you read it stays as it is.");
  }
  const std::optional<Tag> tag = tag_of(*condition);
  if (!tag) {
    throw wrong("If-Match must be an ETag from GET: \"<owner>-<revision>\", with the quotation marks");
  }
  seen = *tag;
  return std::nullopt;
}

AskedAct asked_act(Members& members, OneAct act, const Caller& caller, const Service& service) {
  AskedAct asked{.reason = {.by = who_of(members, caller), .text = members.text("reason").value_or("")},
                 .act = {},
                 .line = Json::object()};
  if (act != OneAct::reconcile && is_blank(asked.reason.text))
    throw wrong("reason is empty: say why you change the record");
  if (is_blank(asked.reason.by)) throw wrong("who is empty: say who changes the record, or leave it out");
  asked.act = {.planner = planner_of(members, act, service),
               .done = done_words.at(static_cast<std::size_t>(act)),
               .removes = act == OneAct::remove};
  const bool resolves = act == OneAct::resolve;
  if (resolves) asked.line["as"] = members.text("as").value_or("");
  if (resolves && members.flag("reconciled")) asked.line["reconciled"] = true;
  if ((resolves || act == OneAct::release || asked.act.removes) && members.flag("force")) asked.line["force"] = true;
  return asked;
}

void say_removed(const std::string& stored_key, const operate::Reason& reason) {
  report("operators' API: removed " + quoted_stored(stored_key) + " by " + escaped(reason.by) + ": " +
         escaped(reason.text));
}

http::Answer act_on_one(const StoreAccess& access, const Service& service, const http::Request& request,
                        const Caller& caller, std::string stored_key, OneAct act) {
  if (auto refused = refuse_other_than_json(request)) return std::move(*refused);
  Tag seen;
  if (auto refused = take_condition(request, seen)) return std::move(*refused);
  Members members(request.body);
  AskedAct asked = asked_act(members, act, caller, service);
  const bool removes = asked.act.removes;
  const ChangeRequest wanted{.stored_key = std::move(stored_key),
                             .reason = std::move(asked.reason),
                             .if_revision = seen.revision,
                             .if_owner = seen.owner,
                             .dry_run = members.flag("dry_run"),
                             .removes = removes};
  const auto id = members.text("act");
  members.end();
  if (id && !is_uuid(*id)) throw wrong("act must be a UUID that you made for this act, in lower case");
  Json line{{"event", "act"},
            {"act", to_string(act)},
            {"stored_key_hex", to_hex(wanted.stored_key)},
            {"revision", seen.revision},
            {"reason", wanted.reason.text},
            {"who", wanted.reason.by}};
  line.update(asked.line);
  if (id) line["id"] = *id;
  if (!wanted.dry_run && !caller.note(line)) return not_audited();
  Changed changed = change_record(access, wanted, asked.act.planner);
  if (removes && changed.kind == Changed::Kind::written) {
    say_removed(wanted.stored_key, wanted.reason);
    const std::string left = cut_log(access);
    changed.remark += (changed.remark.empty() || left.empty() ? "" : "; ") + left;
  }
  http::Answer answer = answer_of(changed, wanted.stored_key, wanted.dry_run);
  line["event"] = "acted";
  line["status"] = answer.status;
  line["outcome"] = outcome_of(changed, answer.status);
  if (!wanted.dry_run && !caller.note(line))
    report("the audit log cannot be written: an act's outcome is not in it", LogLevel::err);
  return answer;
}

}  // namespace once::operators
