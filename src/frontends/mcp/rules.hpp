// What an operator has said about the tools of a server: which calls are one call, and what becomes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/fingerprint.hpp>
#include <once/key.hpp>
#include <once/keys/input_filter.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/policy.hpp>

#include "frontends/mcp/message.hpp"
#include "frontends/mcp/tools.hpp"

namespace once::mcp {

// What an error of the tool means: a result with isError, or an error of JSON-RPC that does not say by its code that
// nothing was done.
enum class OnError : std::uint8_t {
  store,    // It is the result, and is replayed.
  release,  // Nothing was done: the next call runs.
  hold,     // Not known: an operator decides.
};

struct ToolRule {
  enum class Kind : std::uint8_t {
    none,         // Calls are refused.
    read_only,    // Calls pass: the tool changes nothing.
    unprotected,  // Calls pass, and may act twice.
    argument,     // The key is what `expression` selects of the arguments.
    meta,         // The key is the value of `meta` in the request's _meta.
    run,          // The key is the run and all arguments.
  };
  std::string name = {};
  std::string pin = {};  // Tool::pin of the tool that the rule was written for.
  Kind kind = Kind::none;
  std::string expression = {};    // JMESPath over the arguments.
  std::string meta = {};          // A name in _meta.
  std::string fingerprint = "@";  // JMESPath over the arguments: what a repeated call must have in common. Empty:
                                  // nothing. Not for `run`.
  bool allow_null_parts = false;  // As keys::Recipe::allow_null_parts.
  // Another tool of the server, which only reads: it is asked about a call whose outcome is unknown. Empty: an operator
  // decides. `ask_arguments`: JMESPath over the arguments of the call, an object. `ask_done`: JMESPath over
  // {"arguments": of the call, "result": of that tool}: true if the call was carried out, false if not. Anything else
  // does not say.
  std::string ask_tool = {};
  std::string ask_arguments = {};
  std::string ask_done = {};
  // How long after the attempt's end a false begins to count, as ReconcileOptions::settle. Empty: the longest of 5
  // minutes, the lease, and the time that the server has to answer.
  std::optional<Millis> settle = {};
  OnError on_error = OnError::store;
  bool tells_model = true;  // A replay says, in words, that nothing was done again.
  std::vector<std::string> input_without = {};
  Policy policy = {};  // Complete but for what engines have.
};

struct RuleOptions {
  std::string scope = {};              // The namespace of keys: names this server among others in the store.
  std::string principal = {};          // Whose calls they are. Empty: all callers share their keys.
  std::string run = {};                // The run of all calls. Empty: `run_meta` says it, or no rule needs it.
  std::string run_meta = {};           // A name in _meta whose value is the run.
  bool trusts_read_only_hint = false;  // Tools without a rule pass if the server says that they are read-only.
  std::vector<ToolRule> tools = {};
};

inline constexpr std::size_t max_name_in_meta_bytes = 255;  // Of a key or a run in _meta.

// The key of a call.
struct CallKey {
  std::optional<Key> key = {};  // Empty: the call is refused, and `refusal` says why, to the model.
  std::string refusal = {};
  Fingerprint fingerprint = {};
  std::string label = {};
  bool label_from_payload = false;
  std::string run = {};
  InputPtr input = {};  // With Policy::keep_input.
};

// What ToolRule::ask_tool is asked about a call. Both are JSON.
struct Question {
  std::string arguments = {};  // Of the call.
  std::string to_ask = {};     // Of ask_tool.
};

// Immutable: may be used by many threads at once.
class Rules {
 public:
  // Throws Exception(misuse), which names the tool: a rule twice, an expression that cannot be compiled, no run where
  // one is needed, no scope.
  explicit Rules(RuleOptions options);
  Rules(Rules&&) noexcept;
  Rules& operator=(Rules&&) noexcept;
  ~Rules();

  [[nodiscard]] const RuleOptions& options() const noexcept;
  [[nodiscard]] const ToolRule* find(std::string_view tool) const;

  // What is wrong with a rule, given the tool: an expression that reads an argument that does not exist. Empty:
  // nothing.
  [[nodiscard]] std::string mistake(const ToolRule& rule, const Tool& tool) const;

  // `rule` is one of these, of kind argument, meta or run. `arguments` is an object.
  [[nodiscard]] CallKey key_of(const ToolRule& rule, const json::Value& arguments, const json::Value& meta) const;

  // For a rule with ask_tool. `arguments`: those of the call. Empty: they do not have all that the question needs.
  [[nodiscard]] std::optional<Question> question(const ToolRule& rule, const json::Value& arguments) const;
  // Whether the call was carried out, as `result` says, the result of ask_tool as JSON. Empty: it does not say, as
  // where a result with nothing in it would say no as well.
  [[nodiscard]] std::optional<bool> was_done(const ToolRule& rule, const Question& question,
                                             const std::string& result) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// How the rules fit the tools that a server lists. Each text begins with the tool.
struct Fit {
  std::vector<std::string> mistakes = {};  // Rules for what the server does not have.
  std::vector<std::string> changed = {};   // Tools that are not those that the rules were written for.
};
Fit fit(const Rules& rules, const Tools& tools);

// Words for what the key of a rule is, in messages: "order_id".
std::string key_words(const ToolRule& rule);

}  // namespace once::mcp
