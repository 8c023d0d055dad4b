#include "operators/operators.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>

#include "operators/changes.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/filters.hpp"
#include "text/number.hpp"
#include "text/percent.hpp"

namespace once::cli {

namespace {

using http::Answer;
using Json = nlohmann::ordered_json;

constexpr std::size_t most_waiting = 16;
constexpr std::size_t usual_page = 100;
constexpr std::size_t largest_page = 500;
constexpr std::string_view records_path = "/v1/records";

Exception wrong(const std::string& text) { return {ErrorKind::misuse, text}; }

Answer json_answer(unsigned status, const Json& json, std::string_view type = "application/json") {
  return {.status = status,
          .reason = {},
          .headers = {{"Content-Type", std::string(type)}, {"Cache-Control", "no-store"}},
          .body = json_text(json)};
}

Json problem_json(std::string_view name, unsigned status, std::string_view title, std::string_view detail) {
  return {{"type", "urn:once:problem:" + std::string(name)}, {"title", title}, {"status", status}, {"detail", detail}};
}

Answer error_answer(const Error& error) {
  switch (error.kind) {
    case ErrorKind::misuse:
      return operators_problem("bad-request", 400, "The request is not valid", error.message);
    case ErrorKind::corrupt:
      return operators_problem("record-unreadable", 500, "The record cannot be read", error.message);
    case ErrorKind::unavailable:
    case ErrorKind::in_doubt:
      break;
  }
  return operators_problem("store-unavailable", 503, "The store does not answer", error.message);
}

std::string etag(const Record& record) {
  return '"' + record.owner.hex() + '-' + std::to_string(record.revision) + '"';
}

// "%2Fa+b" is "/a b".
std::string decoded(std::string_view part) {
  std::string blanks(part);
  std::ranges::replace(blanks, '+', ' ');
  auto text = text::percent_decoded(blanks);
  if (!text) throw wrong("a '%' in the query is not followed by two hexadecimal digits");
  return *std::move(text);
}

std::size_t page_limit(const std::string& text) {
  const std::size_t limit = text::parse_whole<std::size_t>(text).value_or(0);
  if (limit < 1 || limit > largest_page) {
    throw wrong("limit is '" + escaped(text) + "'; it must be a number from 1 to " + std::to_string(largest_page));
  }
  return limit;
}

struct Page {
  FilterOptions filter;
  std::size_t limit = usual_page;
  std::string cursor;
};

Page page_of(std::string_view query) {
  Page page;
  std::set<std::string> seen;
  for (const std::string& part : split(query, '&')) {
    if (part.empty()) continue;
    const auto equals = part.find('=');
    const std::string name = decoded(part.substr(0, equals));
    std::string value = equals == std::string::npos ? std::string() : decoded(part.substr(equals + 1));
    if (!seen.insert(name).second) throw wrong(escaped(name) + " is given more than once");
    if (name == "state") {
      page.filter.state = std::move(value);
    } else if (name == "scope") {
      page.filter.scope = std::move(value);
      page.filter.has_scope = true;
    } else if (name == "prefix") {
      page.filter.prefix = std::move(value);
    } else if (name == "label") {
      page.filter.label = std::move(value);
    } else if (name == "holder") {
      page.filter.holder = std::move(value);
    } else if (name == "older-than") {
      page.filter.older_than = std::move(value);
    } else if (name == "newer-than") {
      page.filter.newer_than = std::move(value);
    } else if (name == "overdue") {
      if (value != "true" && value != "false") throw wrong("overdue must be true or false");
      page.filter.overdue = value == "true";
    } else if (name == "limit") {
      page.limit = page_limit(value);
    } else if (name == "after") {
      page.cursor = parse_hex(value, "after");
    } else {
      throw wrong(
          "unknown parameter '" + escaped(name) +
          "'; the parameters are state, scope, prefix, label, holder, older-than, newer-than, overdue, limit and "
          "after");
    }
  }
  return page;
}

// The members of a body; checks their types and names.
class Members {
 public:
  explicit Members(std::string_view body) : json_(Json::parse(body, nullptr, false)) {
    if (!json_.is_object()) throw wrong("the body is not a JSON object");
  }
  explicit Members(Json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {
    if (!json_.is_object()) throw wrong(where_ + " is not a JSON object");
  }

  std::optional<std::string> text(const char* name) {
    const Json* const value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) throw wrong(where_ + name + " must be a string");
    return value->get<std::string>();
  }
  bool flag(const char* name) {
    const Json* const value = find(name);
    if (value != nullptr && !value->is_boolean()) throw wrong(where_ + name + " must be true or false");
    return value != nullptr && value->get<bool>();
  }
  std::optional<Members> object(const char* name) {
    const Json* const value = find(name);
    if (value == nullptr) return std::nullopt;
    return Members(*value, std::string(name) + ".");
  }
  // Refuses unknown members.
  void end() const {
    for (const auto& [name, value] : json_.items()) {
      if (!known_.contains(name)) throw wrong("unknown member '" + escaped(where_ + name) + "'");
    }
  }

 private:
  const Json* find(const char* name) {
    known_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  Json json_;
  std::string where_;  // "result."
  std::set<std::string> known_;
};

std::optional<Result> result_of(Members& members) {
  std::optional<Members> result = members.object("result");
  if (!result) return std::nullopt;
  const auto text = result->text("text");
  const auto bytes = result->text("text_base64");
  const std::string type = result->text("content_type").value_or("");
  result->end();
  if (text && bytes) throw wrong("give text or text_base64 in result, not both");
  return Result::inlined(bytes ? parse_base64(*bytes, "result.text_base64") : text.value_or(""), type);
}

struct Tag {
  Owner owner;
  std::uint64_t revision = 0;
};

// A tag as this API returns it. Empty for anything else, also for weak tags and lists.
std::optional<Tag> tag_of(std::string_view text) {
  constexpr std::size_t owner_digits = 32;
  if (text.size() < owner_digits + 4 || !text.starts_with('"') || !text.ends_with('"')) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  const auto owner = Owner::from_hex(text.substr(0, owner_digits));
  const std::string_view digits = text.substr(owner_digits + 1);
  const auto revision = text::parse_whole<std::uint64_t>(digits);
  if (!owner || text[owner_digits] != '-' || !revision) return std::nullopt;
  return Tag{.owner = *owner, .revision = *revision};
}

const std::string_view* header(const http::Request& request, std::string_view name) {
  for (const http::HeaderView& line : request.headers) {
    if (http::same_name(line.name, name)) return &line.value;
  }
  return nullptr;
}

Answer list(const StoreAccess& access, std::string_view query) {
  Page wanted = page_of(query);
  const Time now = operate::learn_now(*access.store, *system_clock()).now;
  const ListPage page = operate::page(*access.store, filter_of(wanted.filter, now, access.raw_scopes, ""), now,
                                      std::move(wanted.cursor), wanted.limit);
  if (page.error) return error_answer(*page.error);
  Json records = Json::array();
  for (const Record& record : page.records) records.push_back(record_json(record, now, false));
  Json json{{"records", std::move(records)}, {"next", page.cursor.empty() ? Json(nullptr) : Json(to_hex(page.cursor))}};
  for (const Error& error : page.unreadable) json["unreadable"].push_back(error.message);
  return json_answer(200, json);
}

Answer no_record(const std::string& key) {
  return operators_problem("no-record", 404, "There is no such record", "there is no record for " + quoted_stored(key));
}

Answer show(const StoreAccess& access, const std::string& key) {
  const once::Answer found = blocking::get(*access.store, key);
  if (found.status == once::Answer::Status::failed) return error_answer(found.error);
  if (!found.record) return no_record(key);
  Record record = *found.record;
  const std::vector<std::string> problems = fetch_result(access, record);
  Json json = record_json(record, operate::now(*access.store, *system_clock()), true);
  if (!problems.empty()) json["problems"] = problems;
  Answer answer = json_answer(200, json);
  answer.headers.push_back({"ETag", etag(record)});
  return answer;
}

Answer answer_of(const Changed& changed, const std::string& key, bool dry_run) {
  const auto refusal = [&](std::string_view name, unsigned status, std::string_view title) {
    Json json = problem_json(name, status, title, changed.text);
    json["record"] = changed.record ? record_json(*changed.record, changed.now, false) : Json(nullptr);
    return json_answer(status, json, "application/problem+json");
  };
  Answer answer;
  switch (changed.kind) {
    case Changed::Kind::written:
    case Changed::Kind::planned: {
      Json json = change_json(changed, dry_run);
      answer = json_answer(200, json);
      break;
    }
    case Changed::Kind::no_record:
      return no_record(key);
    case Changed::Kind::refused:
      answer = refusal("refused", 409, "This change is not allowed in the record's state");
      break;
    case Changed::Kind::other:
    case Changed::Kind::raced:
      answer = refusal("record-changed", 412, "The record changed since you read it");
      break;
    case Changed::Kind::failed:
      return error_answer(changed.error);
  }
  // A dry run changes nothing: the tag is the one that was sent.
  if (changed.record && changed.kind != Changed::Kind::planned)
    answer.headers.push_back({"ETag", etag(*changed.record)});
  return answer;
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

enum class Action : std::uint8_t { resolve, release, remove };

Answer change(const StoreAccess& access, const http::Request& request, std::string key, Action action) {
  const std::string_view* const type = header(request, "Content-Type");
  if (type == nullptr || !http::same_name(type->substr(0, type->find_first_of("; ")), "application/json")) {
    return operators_problem("unsupported-media-type", 415, "The body must be JSON",
                             "Send Content-Type: application/json.");
  }
  const std::string_view* const condition = header(request, "If-Match");
  if (condition == nullptr) {
    return operators_problem(
        "precondition-required", 428, "The request needs If-Match",
        "Send If-Match with the ETag from GET: then a record that changed since you read it stays as it is.");
  }
  const std::optional<Tag> seen = tag_of(*condition);
  if (!seen) {
    throw wrong("If-Match must be an ETag from GET: \"<owner>-<revision>\", with the quotation marks");
  }
  Members members(request.body);
  ChangeRequest wanted{
      .stored_key = std::move(key),
      .reason = {.by = members.text("who").value_or("the operators' API"), .text = members.text("reason").value_or("")},
      .if_revision = seen->revision,
      .if_owner = seen->owner,
      .dry_run = members.flag("dry_run"),
      .removes = action == Action::remove};
  if (is_blank(wanted.reason.text)) throw wrong("reason is empty: say why you change the record");
  if (is_blank(wanted.reason.by)) throw wrong("who is empty: say who changes the record, or leave it out");
  operate::Resolution resolution;
  if (action == Action::resolve) {
    const auto as = members.text("as");
    if (!as) throw wrong("as must be completed, failed or released");
    Failure failure{.code = members.text("code").value_or(""), .message = members.text("message").value_or("")};
    resolution = resolution_of(*as, result_of(members), std::move(failure), "");
  }
  resolution.force = members.flag("force");
  if (action != Action::remove) {
    resolution.any_payload = members.flag("any_payload");
    resolution.retention = parse_retention(members.text("retention").value_or("24h"), "retention");
  }
  members.end();
  Changed changed =
      change_record(access, wanted, [&](const Record& record, const operate::Reason& reason, Stamp stamp, Millis) {
        switch (action) {
          case Action::resolve:
            return operate::plan_resolve(record, resolution, reason, fresh_owner(), stamp);
          case Action::release:
            return operate::plan_release(record, resolution, reason, fresh_owner(), stamp);
          case Action::remove:
            break;
        }
        return operate::plan_remove(record, resolution.force, reason, stamp.now);
      });
  if (action == Action::remove && changed.kind == Changed::Kind::written) {
    // The others keep who and why in the record.
    say("operators' API: removed " + quoted_stored(wanted.stored_key) + " by " + escaped(wanted.reason.by) + ": " +
        escaped(wanted.reason.text));
    const std::string left = cut_log(access);
    changed.remark += (changed.remark.empty() || left.empty() ? "" : "; ") + left;
  }
  return answer_of(changed, wanted.stored_key, wanted.dry_run);
}

Answer not_allowed(const char* allowed) {
  Answer answer =
      operators_problem("method-not-allowed", 405, "Method not allowed", std::string("Allowed: ") + allowed);
  answer.headers.push_back({"Allow", allowed});
  return answer;
}

Answer not_found() {
  return operators_problem(
      "not-found", 404, "There is nothing at this path",
      "The paths are /v1/records, /v1/records/KEY, /v1/records/KEY/resolve and /v1/records/KEY/release, "
      "where KEY is stored_key_hex.");
}

Answer route(const StoreAccess& access, const http::Request& request) {
  const auto question = request.target.find('?');
  const std::string_view query =
      question == std::string_view::npos ? std::string_view() : request.target.substr(question + 1);
  std::string_view path = request.target.substr(0, question);
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (path == records_path) return reads ? list(access, query) : not_allowed("GET, HEAD");
  if (!path.starts_with(records_path) || path[records_path.size()] != '/') return not_found();
  path.remove_prefix(records_path.size() + 1);
  const auto slash = path.find('/');
  const std::string_view action = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  if (slash != std::string_view::npos && action != "resolve" && action != "release") return not_found();
  if (!query.empty()) throw wrong("the path of a record takes no query");
  std::string key = parse_hex(path.substr(0, slash), "the key in the path");
  if (key.empty() || key.size() > max_key_bytes) throw wrong("the key in the path must be a record's stored_key_hex");
  if (slash == std::string_view::npos) {
    if (request.method == "DELETE") return change(access, request, std::move(key), Action::remove);
    return reads ? show(access, key) : not_allowed("GET, HEAD, DELETE");
  }
  if (request.method != "POST") return not_allowed("POST");
  return change(access, request, std::move(key), action == "resolve" ? Action::resolve : Action::release);
}

}  // namespace

Answer operators_problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail) {
  return json_answer(status, problem_json(name, status, title, detail), "application/problem+json");
}

// A copy of the request, because the original is gone when its turn comes.
struct Operators::Waiting {
  std::string method;
  std::string target;
  http::Headers headers;
  std::string body;
  Callback<void(Answer)> done;
};

Operators::Operators(StoreAccess access, const AdminToken& token)
    : access_(std::move(access)), token_(token), worker_([this] { work(); }) {}

Operators::~Operators() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  news_.notify_all();
}

Answer Operators::answer(const http::Request& request) const {
  if (auto refused = token_.refuse(request)) return std::move(*refused);
  try {
    return route(access_, request);
  } catch (const Exception& error) {
    return error_answer(error.error());
  }
}

void Operators::answer_later(const http::Request& request, Callback<void(Answer)> done) {
  if (auto refused = token_.refuse(request))
    return done(std::move(*refused));  // Refused requests must not delay others.
  Waiting waiting{.method = std::string(request.method),
                  .target = std::string(request.target),
                  .headers = {},
                  .body = std::string(request.body),
                  .done = std::move(done)};
  for (const http::HeaderView& line : request.headers) {
    waiting.headers.push_back({std::string(line.name), std::string(line.value)});
  }
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < most_waiting) {
      waiting_.push_back(std::move(waiting));
      news_.notify_all();
      return;
    }
  }
  Answer busy = operators_problem("busy", 503, "Too many requests are waiting", "Retry in a second.");
  busy.headers.push_back({"Retry-After", "1"});
  waiting.done(std::move(busy));
}

void Operators::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    news_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    http::Request request{
        .method = next.method, .target = next.target, .headers = {}, .body = next.body, .principal = {}};
    for (const http::Header& line : next.headers) request.headers.push_back({line.name, line.value});
    next.done(answer(request));
    lock.lock();
  }
}

}  // namespace once::cli
