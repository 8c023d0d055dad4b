#include "frontends/mcp/words.hpp"

#include <memory_resource>
#include <utility>
#include <vector>

#include <once/key.hpp>

#include "text/ascii.hpp"
#include "text/rfc3339.hpp"

namespace once::mcp {

namespace {

std::string not_called(std::string_view tool) { return "The tool " + text::quoted(tool) + " was not called: "; }

json::Value text_block(std::string_view text, json::Arena& arena) {
  const json::Member members[] = {{"type", json::Value::string("text")},
                                  {"text", json::Value::string(json::keep(text, arena))}};
  return json::Value::object(json::keep(std::span<const json::Member>(members), arena));
}

}  // namespace

Told told_no_rule(std::string_view tool) {
  return {"refused",
          not_called(tool) +
              "the operator of this server has not said how it may be called safely. Nothing was done. Do not "
              "call it again. Tell the user that the operator must write a rule for it."};
}

Told told_changed(std::string_view tool) {
  return {"refused", not_called(tool) +
                         "its description or its arguments have changed since the operator reviewed it. Nothing was "
                         "done. Do not call it again. Tell the user that the operator must review it."};
}

Told told_refused(std::string_view tool, std::string_view why) {
  return {"refused", not_called(tool) + std::string(why) + ". Nothing was done."};
}

Told told_mismatch(const ToolRule& rule) {
  return {"mismatch", not_called(rule.name) + "an earlier call had the same " + key_words(rule) +
                          " and other arguments. This call did nothing. If you mean the earlier call, repeat it with "
                          "exactly its arguments to get its result. Otherwise do not call again with changed "
                          "arguments: ask the user."};
}

Told told_not_sent(std::string_view tool, std::string_view why) {
  return {"unavailable", not_called(tool) + std::string(why) +
                             ". Nothing was done. It is safe to call it again later "
                             "with the same arguments."};
}

Told told_store_down(std::string_view tool) {
  return told_not_sent(tool, "the store that prevents double calls does not answer");
}

Told told_in_progress(const ToolRule& rule) {
  return {"in-progress", "An earlier call of " + text::quoted(rule.name) + " with the same " + key_words(rule) +
                             " is still running. This call did nothing. Wait, then call it again with exactly the same "
                             "arguments: you will get the result of the earlier call."};
}

Told told_not_kept(const ToolRule& rule) {
  return {"not-kept",
          "An earlier call of " + text::quoted(rule.name) + " with the same " + key_words(rule) +
              " was carried out, but its result is not kept. This call did nothing. Do not call it again: read "
              "what you need with another tool, or ask the user."};
}

Told told_stored_failure(const ToolRule& rule, const Record& record) {
  return {"replayed", "An earlier call of " + text::quoted(rule.name) + " with the same " + key_words(rule) +
                          " failed for good: " + text::printable(record.failure.message) +
                          ". This call did nothing. Do not call it again: tell the user."};
}

Told told_too_long(std::string_view tool, std::string_view size) {
  return {"not-kept", "The tool " + text::quoted(tool) +
                          " was called and has ended, but its answer is too long to be passed "
                          "on (" +
                          std::string(size) +
                          "). Do not call it again: read what you need with another tool, or ask "
                          "the user."};
}

Told told_unknown(std::string_view tool, std::string_view why, std::string_view key_hash) {
  return {"unknown",
          "It is not known whether " + text::quoted(tool) + " was carried out: " + std::string(why) +
              ". It may have happened. Do not call it again, also not with other arguments. Tell the user that "
              "an operator must find out what happened, and decide" +
              (key_hash.empty() ? std::string() : " (the record " + std::string(key_hash) + ")") + "."};
}

std::string result_of(const Told& told, std::string_view key_hash, bool modern) {
  std::string out = R"({"content":[{"type":"text","text":)";
  json::append_quoted(out, told.text);
  out.append(R"(}],"isError":true,)").append(modern ? R"("resultType":"complete",)" : "");
  out.append(R"("_meta":{")").append(outcome_in_meta).append("\":").append(json::quoted(told.outcome));
  if (!key_hash.empty()) out.append(",\"").append(key_in_meta).append("\":").append(json::quoted(key_hash));
  return out + "}}";
}

std::string with_text(const json::Value& result, std::string_view text, std::string_view outcome,
                      std::string_view key_hash, json::Arena& arena) {
  json::Value out = result;
  if (!text.empty()) {
    const json::Value content = out.member("content");
    std::vector<json::Value> blocks;
    if (content.kind() == json::Kind::array) blocks.assign(content.elements().begin(), content.elements().end());
    blocks.push_back(text_block(text, arena));
    out =
        with_member(out, "content", json::Value::array(json::keep(std::span<const json::Value>(blocks), arena)), arena);
  }
  out = with_path(out, {"_meta", outcome_in_meta}, json::Value::string(outcome), arena);
  if (!key_hash.empty()) out = with_path(out, {"_meta", key_in_meta}, json::Value::string(key_hash), arena);
  return one_line(out);
}

std::string found_result(const json::Value& said, std::string_view asked, bool is_error) {
  std::pmr::monotonic_buffer_resource arena;
  std::vector<json::Value> blocks{
      text_block("This call was carried out. Its own result is not known; this is what the tool " +
                     text::quoted(asked) + " says of it:",
                 arena)};
  const json::Value content = said.member("content");
  if (content.kind() == json::Kind::array)
    blocks.insert(blocks.end(), content.elements().begin(), content.elements().end());
  const json::Member members[] = {
      {"content", json::Value::array(json::keep(std::span<const json::Value>(blocks), arena))},
      {"isError", json::Value::boolean(is_error)}};
  return one_line(json::Value::object(std::span<const json::Member>(members)));
}

namespace {

constexpr json::Rules as_clients_read{
    .unique_names = false, .exact_numbers = false, .lone_surrogates = true, .nan_and_infinity = true};

std::string stored_result(const Record& record, const ToolRule& rule, bool modern, const std::string& text,
                          std::string_view outcome) {
  const std::string hash = key_hash(record.key);
  if (record.state == State::failed) return result_of(told_stored_failure(rule, record), hash, modern);
  std::pmr::monotonic_buffer_resource arena;
  json::Value stored;
  const bool is_kept = record.result.placement == Placement::inlined &&
                       json::try_parse(record.result.bytes, as_clients_read, arena, stored) &&
                       stored.kind() == json::Kind::object;
  if (!is_kept) return result_of(told_not_kept(rule), hash, modern);
  if (modern && stored.member("resultType").is_null()) {
    stored = with_member(stored, "resultType", json::Value::string("complete"), arena);
  }
  return with_text(stored, text, outcome, hash, arena);
}

}  // namespace

std::string replayed(const Record& record, const ToolRule& rule, bool modern) {
  std::string text;
  if (rule.tells_model) {
    text =
        "(once: this is the result of an earlier call with the same " + key_words(rule) + ", from " +
        text::rfc3339(record.finished_at) +
        ". Nothing was done now. If the user really wants it a second time, tell the user that it was not repeated.)";
  }
  return stored_result(record, rule, modern, text, "replayed");
}

std::string superseded(const Record& record, const ToolRule& rule, bool modern) {
  return stored_result(record, rule, modern,
                       "(once: this call took so long that another call with the same " + key_words(rule) +
                           " was made. This is the other call's result. It may have happened twice: tell the user.)",
                       "lost");
}

std::string with_loss(const std::string& line, const ToolRule& rule) {
  const Message message = read_message(line, From::server);
  if (message.result.kind() != json::Kind::object) return line;
  return result_line(
      message.id, with_text(message.result,
                            "(once: this call was carried out, but could not be recorded. Another call with the same " +
                                key_words(rule) + " may do it a second time: do not call it again, and tell the user.)",
                            "lost", {}, *message.arena));
}

}  // namespace once::mcp
