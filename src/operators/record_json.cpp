#include "operators/record_json.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <once/error.hpp>
#include <once/operate.hpp>

#include "operators/run_result.hpp"
#include "operators/words.hpp"
#include "text/base64.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;

// "text" if the bytes are text, else "base64"; both keys are always there.
void put_bytes(Json& json, const std::string& name, std::string_view bytes) {
  const bool text = text::valid_utf8(bytes);
  json[name] = text ? Json(bytes) : Json(nullptr);
  json[name + "_base64"] = text ? Json(nullptr) : Json(text::encode_base64(bytes));
}

Json time_json(Time time) { return time == never || time == Time{} ? Json(nullptr) : Json(text::rfc3339(time)); }

Json run_json(const Result& result) {
  try {
    const std::optional<RunResult> run = run_result_of(result);
    if (!run) return nullptr;
    Json json;
    json["exit_code"] = run->end.exit_code();
    json["signal"] = run->end.signaled ? Json(run->end.code) : Json(nullptr);
    json["output_kept"] = !run->dropped;
    json["stdout_bytes"] = run->output_bytes;
    json["stderr_bytes"] = run->error_bytes;
    if (!run->dropped) {
      put_bytes(json, "stdout", run->of(Stream::output));
      put_bytes(json, "stderr", run->of(Stream::error));
    }
    return json;
  } catch (const Exception& error) {
    return Json{{"error", error.what()}};
  }
}

Json result_json(const Result& result, bool payloads) {
  const bool at_hand =
      result.placement == Placement::inlined || (!result.bytes.empty() && result.placement != Placement::sealed);
  Json json;
  json["placement"] = to_string(result.placement);
  json["content_type"] = result.content_type;
  json["size"] = result.placement == Placement::inlined ? result.bytes.size() : result.size;
  json["location"] = result.placement == Placement::offloaded ? Json(result.location) : Json(nullptr);
  json["sha256"] = result.placement == Placement::inlined ? Json(nullptr) : Json(to_hex(result.digest));
  if (!payloads) return json;
  json["run"] = run_json(result);
  if (json["run"].is_null() && at_hand) {
    put_bytes(json, "text", result.bytes);
  } else {
    json["text"] = nullptr;
    json["text_base64"] = nullptr;
  }
  return json;
}

Json trace_id_json(const TraceParent& trace) { return trace.empty() ? Json(nullptr) : Json(trace.trace_id_hex()); }
Json span_id_json(const TraceParent& trace) { return trace.empty() ? Json(nullptr) : Json(trace.span_id_hex()); }

Json history_json(const History& history) {
  Json entries = Json::array();
  for (const HistoryEntry& entry : history.entries) {
    entries.push_back({{"what", entry.what},
                       {"who", entry.who},
                       {"why", entry.why},
                       {"attempt", entry.attempt},
                       {"began_at", time_json(entry.began_at)},
                       {"at", time_json(entry.at)},
                       {"trace_id", trace_id_json(entry.trace)},
                       {"span_id", span_id_json(entry.trace)},
                       {"revision", entry.revision == 0 ? Json(nullptr) : Json(entry.revision)}});
  }
  return entries;
}

}  // namespace

bool has_result(const Record& record) { return record.state == State::completed || record.state == State::failed; }

KeyParts key_parts(std::string_view stored) {
  if (stored.find('#') == std::string_view::npos || stored.back() == '#') return {{}, std::string(stored)};
  const Key key = Key::from_stored(stored);
  return {key.scope(), std::string(key.name())};
}

std::string quoted_stored(std::string_view stored) {
  const KeyParts parts = key_parts(stored);
  std::string out = "'" + escaped(parts.name) + "'";
  if (!parts.scope.empty()) out += " in scope '" + escaped(parts.scope) + "'";
  return out;
}

std::string quoted(const Key& key) { return quoted_stored(key.stored()); }

nlohmann::ordered_json record_json(const Record& record, Time now, bool payloads) {
  return record_json(record, now, Payloads{.result = payloads, .steps = payloads, .input = payloads});
}

nlohmann::ordered_json record_json(const Record& record, Time now, const Payloads& payloads) {
  const KeyParts parts = key_parts(record.key);
  Json json;
  put_bytes(json, "key", parts.name);
  put_bytes(json, "scope", parts.scope);
  json["stored_key_hex"] = to_hex(record.key);
  json["key_hash"] = key_hash(record.key);
  json["state"] = to_string(record.state);
  json["standing"] = operate::to_string(operate::standing(record, now));
  json["attempt"] = record.attempt;
  json["token"] = record.token;
  json["owner"] = record.owner.hex();
  json["revision"] = record.revision;
  json["holder"] = record.holder;
  json["note"] = record.note;
  json["label"] = record.label;
  json["trace_id"] = trace_id_json(record.history.trace);
  json["span_id"] = span_id_json(record.history.trace);
  json["created_at"] = time_json(record.created_at);
  json["lease_until"] = time_json(record.lease_until);
  json["finished_at"] = time_json(record.finished_at);
  json["expires_at"] = time_json(record.expires_at);
  json["expected_until"] = time_json(record.expected_until);
  json["overdue"] = is_overdue(record, now);
  json["on_lapse"] = to_string(record.on_lapse);
  json["fingerprint"] = record.fingerprint.empty() ? Json(nullptr) : Json(record.fingerprint.hex());
  json["failure"] = record.failure == Failure{}
                        ? Json(nullptr)
                        : Json{{"code", record.failure.code}, {"message", record.failure.message}};
  json["result"] = has_result(record) ? result_json(record.result, payloads.result) : Json(nullptr);
  Json steps = Json::array();
  for (const Step& step : record.steps) {
    Json one;
    put_bytes(one, "name", step.name);
    one["size"] = step.result.size();
    if (payloads.steps) put_bytes(one, "result", step.result);
    steps.push_back(std::move(one));
  }
  json["steps"] = std::move(steps);
  json["history"] = history_json(record.history);
  json["history_dropped"] = record.history.dropped;
  json["input_bytes"] = record.input_bytes;
  if (payloads.input) put_bytes(json, "input", record.input);
  return json;
}

std::string json_text(const nlohmann::ordered_json& json) {
  return text::show_invisible(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string json_line(const nlohmann::ordered_json& json) {
  return text::show_invisible(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace once::operators
