#include "frontends/mcp/rules.hpp"

#include <memory_resource>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once {
namespace mcp_rules_test {

using mcp::CallKey;
using mcp::RuleOptions;
using mcp::Rules;
using mcp::ToolRule;
namespace json = mcp::json;

ToolRule argument_rule(const std::string& name, const std::string& expression) {
  ToolRule rule;
  rule.name = name;
  rule.kind = ToolRule::Kind::argument;
  rule.expression = expression;
  return rule;
}

class McpRules : public testing::Test {
 protected:
  json::Value read(const std::string& text) {
    return json::parse(json::keep(text, arena_), {.exact_numbers = false}, arena_, "it");
  }
  CallKey key(const RuleOptions& options, const std::string& tool, const std::string& arguments,
              const std::string& meta = "{}") {
    const Rules rules(options);
    return rules.key_of(*rules.find(tool), read(arguments), read(meta));
  }
  static std::string refusal(const RuleOptions& options) {
    try {
      const Rules rules(options);
    } catch (const Exception& error) {
      return error.what();
    }
    return {};
  }

  std::pmr::monotonic_buffer_resource arena_;
};

TEST_F(McpRules, ScopesOfDifferentToolsDiffer) {
  std::set<std::string> scopes;
  const auto add = [&](const std::string& scope, const std::string& tool, const std::string& principal) {
    RuleOptions options{.scope = scope, .principal = principal, .tools = {argument_rule(tool, "id")}};
    scopes.insert(key(options, tool, R"({"id":1})").key->scope());
  };
  add("a", "b", "");
  add("a/b", "c", "");
  add("a", "b/c", "");
  add("a", "b", "c");
  add("a", "b%2Fc", "");
  EXPECT_EQ(scopes.size(), 5U);
}

TEST_F(McpRules, FingerprintIsAllArgumentsUnlessSaid) {
  RuleOptions options{.scope = "s", .tools = {argument_rule("t", "id")}};
  EXPECT_EQ(key(options, "t", R"({"id":1,"a":2})").key, key(options, "t", R"({"id":1,"a":3})").key);
  EXPECT_NE(key(options, "t", R"({"id":1,"a":2})").fingerprint, key(options, "t", R"({"id":1,"a":3})").fingerprint);
  options.tools[0].fingerprint = "id";
  EXPECT_EQ(key(options, "t", R"({"id":1,"a":2})").fingerprint, key(options, "t", R"({"id":1,"a":3})").fingerprint);
  options.tools[0].fingerprint = "";
  EXPECT_TRUE(key(options, "t", R"({"id":1,"a":2})").fingerprint.empty());
}

TEST_F(McpRules, AKeyThatIsMissingIsRefused) {
  const RuleOptions options{.scope = "s", .tools = {argument_rule("t", "[id, part]")}};
  EXPECT_TRUE(key(options, "t", R"({"id":1,"part":2})").key);
  for (const char* const none : {"{}", R"({"id":1})", R"({"id":1,"part":null})", R"({"id":"","part":1})"}) {
    const CallKey found = key(options, "t", none);
    EXPECT_FALSE(found.key) << none;
    EXPECT_NE(found.refusal, "") << none;
  }
}

TEST_F(McpRules, TextsThatCannotBeComparedAreRefused) {
  const RuleOptions options{.scope = "s", .tools = {argument_rule("t", "id")}};
  EXPECT_FALSE(key(options, "t", R"({"id":1,"a":9007199254740993})").key);
  EXPECT_TRUE(key(options, "t", R"({"id":1,"a":9007199254740992})").key);
}

TEST_F(McpRules, RunsSeparateEqualArguments) {
  ToolRule rule;
  rule.name = "t";
  rule.kind = ToolRule::Kind::run;
  const RuleOptions options{.scope = "s", .run_meta = "r", .tools = {rule}};
  const auto in_run = [&](const std::string& run, const std::string& arguments) {
    return key(options, "t", arguments, R"({"r":")" + run + "\"}").key.value();
  };
  EXPECT_EQ(in_run("1", R"({"a":1,"b":2})"), in_run("1", R"({"b":2.0,"a":1})"));
  EXPECT_NE(in_run("1", R"({"a":1})"), in_run("2", R"({"a":1})"));
  EXPECT_NE(in_run("1", R"({"a":1})"), in_run("1", R"({"a":2})"));
  EXPECT_EQ(in_run("1", "{}"), in_run("1", "{}"));
}

TEST_F(McpRules, MistakesAreFoundAtTheStart) {
  EXPECT_NE(refusal({.tools = {}}), "");
  EXPECT_NE(refusal({.scope = "s", .run = "1", .run_meta = "r"}), "");
  ToolRule run;
  run.name = "t";
  run.kind = ToolRule::Kind::run;
  EXPECT_NE(refusal({.scope = "s", .tools = {run}}), "");
  EXPECT_EQ(refusal({.scope = "s", .run = "1", .tools = {run}}), "");
  EXPECT_NE(refusal({.scope = "s", .tools = {argument_rule("t", "a[")}}), "");
  EXPECT_NE(refusal({.scope = "s", .tools = {argument_rule("t", "a"), argument_rule("t", "b")}}), "");
  ToolRule constant = argument_rule("t", "a");
  constant.fingerprint = "'x'";
  EXPECT_NE(refusal({.scope = "s", .tools = {constant}}), "");
}

ToolRule asking_rule(const std::string& arguments, const std::string& done) {
  ToolRule rule = argument_rule("t", "id");
  rule.ask_tool = "find";
  rule.ask_arguments = arguments;
  rule.ask_done = done;
  return rule;
}

TEST_F(McpRules, QuestionsNeedAllTheirParts) {
  const auto question = [&](const std::string& expression, const std::string& arguments) {
    const Rules rules({.scope = "s", .tools = {asking_rule(expression, "result.found")}});
    const auto made = rules.question(*rules.find("t"), read(arguments));
    return made ? made->to_ask : "none";
  };
  EXPECT_EQ(question("{order: id, part: part}", R"({"id":1,"part":2})"), R"({"order":1,"part":2})");
  EXPECT_EQ(question("`{}`", R"({"id":1})"), "{}");
  for (const char* const lacking : {R"({"id":1})", R"({"id":1,"part":null})", R"({"id":1,"part":""})"}) {
    EXPECT_EQ(question("{order: id, part: part}", lacking), "none") << lacking;
  }
  EXPECT_EQ(question("id", R"({"id":1})"), "none");
  EXPECT_EQ(question("{order: length(id)}", R"({"id":1})"), "none");
}

TEST_F(McpRules, ANoMustComeFromTheResult) {
  const auto says = [&](const std::string& done, const std::string& result) {
    const Rules rules({.scope = "s", .tools = {asking_rule("{order: id}", done)}});
    const auto found = rules.was_done(*rules.find("t"), *rules.question(*rules.find("t"), read(R"({"id":1})")), result);
    return !found ? "nothing" : *found ? "yes" : "no";
  };
  const char* const usual = "result.structuredContent.found";
  EXPECT_STREQ(says(usual, R"({"structuredContent":{"found":true}})"), "yes");
  EXPECT_STREQ(says(usual, R"({"structuredContent":{"found":false}})"), "no");
  for (const char* const other :
       {"{}", R"({"structuredContent":{"found":null}})", R"({"structuredContent":{"found":0}})",
        R"({"structuredContent":{"found":"false"}})", R"({"structuredContent":[]})"}) {
    EXPECT_STREQ(says(usual, other), "nothing") << other;
  }
  // A comparison with null is false: of such an expression no false is believed.
  for (const char* const careless : {"result.structuredContent.refunds == `1`",
                                     "result.structuredContent && result.structuredContent.refunds == `1`"}) {
    EXPECT_STREQ(says(careless, R"({"structuredContent":{"refunds":1}})"), "yes");
    EXPECT_STREQ(says(careless, R"({"structuredContent":{"refunds":0}})"), "nothing");
    EXPECT_STREQ(says(careless, R"({"structuredContent":{}})"), "nothing");
  }
  const char* const listed = "contains(result.structuredContent.result, arguments.id)";
  EXPECT_STREQ(says(listed, R"({"structuredContent":{"result":[1]}})"), "yes");
  EXPECT_STREQ(says(listed, R"({"structuredContent":{"result":[]}})"), "no");
  EXPECT_STREQ(says(listed, R"({"structuredContent":{"error":"busy"}})"), "nothing");
}

TEST_F(McpRules, QuestionsAreAboutTheFirstCall) {
  ToolRule rule = asking_rule("{order: id, invoice: invoice}", "result.found == arguments.invoice");
  EXPECT_EQ(refusal({.scope = "s", .tools = {rule}}), "");
  rule.fingerprint = "[invoice, cents]";
  EXPECT_EQ(refusal({.scope = "s", .tools = {rule}}), "");
  for (const char* const less : {"", "cents", "invoice.id"}) {
    rule.fingerprint = less;
    EXPECT_NE(refusal({.scope = "s", .tools = {rule}}).find("reconcile asks by invoice"), std::string::npos) << less;
  }
  rule.ask_arguments = "{order: id}";
  EXPECT_NE(refusal({.scope = "s", .tools = {rule}}).find("reconcile asks by invoice"), std::string::npos);
  rule.ask_done = "result.found";
  EXPECT_EQ(refusal({.scope = "s", .tools = {rule}}), "");
  rule.ask_done = "arguments.id";
  EXPECT_NE(refusal({.scope = "s", .tools = {rule}}).find("reads nothing of the result"), std::string::npos);
}

TEST_F(McpRules, InputIsKeptWithoutItsSecrets) {
  RuleOptions options{.scope = "s", .tools = {argument_rule("t", "id")}};
  EXPECT_EQ(key(options, "t", R"({"id":1,"card":"4111"})").input, nullptr);
  options.tools[0].policy.keep_input = true;
  options.tools[0].input_without = {"card"};
  EXPECT_EQ(*key(options, "t", R"({"id":1,"card":"4111"})").input, "{\"id\":1,\"card\":\"(left out)\"}");
}

}  // namespace mcp_rules_test
}  // namespace once
