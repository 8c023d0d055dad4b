#include "operators/related.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>

#include "operators/answers.hpp"
#include "operators/record_json.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "text/rfc3339.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t records_at_once = 500;
constexpr unsigned most_reads = 20;
constexpr std::size_t most_scopes = 64;
constexpr std::size_t most_found = 100;
constexpr std::chrono::hours around{1};  // A client that retries under a new key does so soon.

// The part of a stored key up to its name, and the name: see Key.
std::string_view prefix_of(std::string_view stored_key) { return stored_key.substr(0, stored_key.find('#') + 1); }
std::string_view name_in(std::string_view stored_key) { return stored_key.substr(stored_key.find('#') + 1); }

// Keys that the programs derive for what is behind them, and which its log has. Any other name is the caller's own.
Json downstream_json(const Record& record, const std::optional<std::string>& name) {
  Json json = Json::array();
  const auto add = [&](const std::string& one) {
    json.push_back({{"name", escaped(one)}, {"key", derived_key(record.key, one)}});
  };
  if (name) {
    add(*name);
    return json;
  }
  for (const char* const usual : {"command", "post"}) add(usual);
  for (const Step& step : record.steps) add(step.name);
  return json;
}

// The same name in other scopes, as far as scopes are known.
Json same_key_json(const StoreAccess& access, const std::vector<std::string>& prefixes, const Record& record, Time now,
                   std::size_t& looked_up) {
  Json json = Json::array();
  const std::string_view own = prefix_of(record.key);
  if (own.empty()) return json;
  for (const std::string& prefix : prefixes) {
    if (looked_up == most_scopes) break;
    if (prefix + '#' == own) continue;
    const std::string key = prefix + '#' + std::string(name_in(record.key));
    if (key.size() > max_key_bytes) continue;
    ++looked_up;
    const Answer found = blocking::get(*access.store, key);
    if (found.status == AnswerStatus::failed && found.error.kind != ErrorKind::corrupt) {
      throw StoreFailed(found.error);
    }
    if (found.record) json.push_back(record_json(*found.record, now, false));
  }
  return json;
}

struct SamePayload {
  Json records = Json::array();
  std::uint64_t searched = 0;
  std::string cursor;  // Empty: nothing is left.
  bool is_wrong = false;
};

// Records of the same scope with the same fingerprint, of about the same time.
SamePayload same_payload(const StoreAccess& access, const Record& record, Time now, std::string cursor) {
  SamePayload found;
  const bool is_later = !cursor.empty();
  const operate::Filter filter{.key_prefix = std::string(prefix_of(record.key)),
                               .created_before = record.created_at + around,
                               .created_not_before = record.created_at - around};
  ListQuery query = operate::query_of(filter, now);
  query.cursor = std::move(cursor);
  query.limit = records_at_once;
  for (unsigned reads = 0; reads < most_reads && found.records.size() < most_found; ++reads) {
    ListPage page = blocking::list(*access.store, query);
    if (page.error && page.error->kind == ErrorKind::misuse && reads == 0 && is_later) {
      found.is_wrong = true;
      return found;
    }
    if (page.error) throw StoreFailed(*page.error);
    found.searched += page.records.size();
    for (const Record& one : page.records) {
      const bool matches = one.key != record.key && one.fingerprint == record.fingerprint;
      if (matches && operate::matches(filter, one, now)) found.records.push_back(record_json(one, now, false));
    }
    query.cursor = found.cursor = std::move(page.cursor);
    if (found.cursor.empty()) break;
  }
  return found;
}

}  // namespace

http::Answer related_records(const StoreAccess& access, const std::vector<std::string>& prefixes,
                             const std::string& stored_key, std::string_view text) {
  Query query(text);
  const auto after = query.take("after");
  const auto name = query.take("name");
  query.end();
  if (name && name->empty()) throw wrong("name is empty: leave it out for the usual names");
  const Answer found = blocking::get(*access.store, stored_key);
  if (found.status == AnswerStatus::failed) return store_problem(found.error);
  if (!found.record) return no_record(stored_key);
  const Record& record = *found.record;
  const Time now = store_now(access);
  const bool checks_payload = !record.fingerprint.empty() && record.created_at != Time{};
  std::size_t looked_up = 0;
  Json json;
  json["same_key"] = same_key_json(access, prefixes, record, now, looked_up);
  json["scopes_searched"] = looked_up;
  json["same_payload"] = nullptr;
  json["searched"] = nullptr;
  json["from"] = json["until"] = json["next"] = nullptr;
  if (checks_payload) {
    SamePayload same = same_payload(access, record, now, after ? parse_hex(*after, "after") : std::string());
    if (same.is_wrong) throw wrong("after is not the next of an answer");
    json["same_payload"] = std::move(same.records);
    json["searched"] = same.searched;
    json["from"] = text::rfc3339(record.created_at - around);
    json["until"] = text::rfc3339(record.created_at + around);
    if (!same.cursor.empty()) json["next"] = to_hex(same.cursor);
  }
  json["downstream"] = downstream_json(record, name);
  return json_answer(200, json);
}

}  // namespace once::operators
