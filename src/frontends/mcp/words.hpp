// What a model is told instead of a result. Never an error of the protocol, which a client or a model may answer by a
// new call: each says whether something was done, and what to do now. The packages for Python and Node say the same:
// clients/python/src/once_idempotency/_words.py and clients/node/lib/words.cjs. A test compares them, so change all.
#pragma once

#include <string>
#include <string_view>

#include <once/record.hpp>

#include "frontends/mcp/message.hpp"
#include "frontends/mcp/rules.hpp"

namespace once::mcp {

// The names in _meta of what once answers, or changes in an answer.
inline constexpr std::string_view outcome_in_meta = "once/outcome";  // To programs: see Told, and "replayed".
inline constexpr std::string_view key_in_meta = "once/key-hash";     // key_hash()

// Of stored results: JSON, the result of tools/call.
inline constexpr std::string_view tool_content_type = "application/vnd.once.tool";

struct Told {
  // "refused", "in-progress", "mismatch", "unknown", "unavailable", "not-kept", "lost". For programs.
  std::string_view outcome;
  std::string text;
};

// Nothing was done.
Told told_no_rule(std::string_view tool);
Told told_changed(std::string_view tool);
Told told_refused(std::string_view tool, std::string_view why);
Told told_mismatch(const ToolRule& rule);
Told told_not_sent(std::string_view tool, std::string_view why);  // Calling again is safe.
Told told_store_down(std::string_view tool);
// Another call of the key does it, or has done it.
Told told_in_progress(const ToolRule& rule);
Told told_not_kept(const ToolRule& rule);
Told told_stored_failure(const ToolRule& rule, const Record& record);
// It was done, by this call.
Told told_too_long(std::string_view tool, std::string_view size);
// It may have been done.
Told told_unknown(std::string_view tool, std::string_view why, std::string_view key_hash);

// A result of tools/call, as JSON, with isError. `modern`: for a request of a revision since 2026-07-28.
std::string result_of(const Told& told, std::string_view key_hash, bool modern);

// A stored result, as the result of a later call.
std::string replayed(const Record& record, const ToolRule& rule, bool modern);
// The same for a call that ran as well, because its claim was lost meanwhile.
std::string superseded(const Record& record, const ToolRule& rule, bool modern);
// The line with the result of such a call, if no other result is stored.
std::string with_loss(const std::string& line, const ToolRule& rule);

// The result of a call that was carried out and has none: what another tool, `asked`, says of it. `is_error`: so that
// no client compares its form with the schema of the tool that acted.
std::string found_result(const json::Value& said, std::string_view asked, bool is_error);

// The result with one more text at its end.
std::string with_text(const json::Value& result, std::string_view text, std::string_view outcome,
                      std::string_view key_hash, json::Arena& arena);

}  // namespace once::mcp
