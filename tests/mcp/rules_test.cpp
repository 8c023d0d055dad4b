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

TEST_F(McpRules, InputIsKeptWithoutItsSecrets) {
  RuleOptions options{.scope = "s", .tools = {argument_rule("t", "id")}};
  EXPECT_EQ(key(options, "t", R"({"id":1,"card":"4111"})").input, nullptr);
  options.tools[0].policy.keep_input = true;
  options.tools[0].input_without = {"card"};
  EXPECT_EQ(*key(options, "t", R"({"id":1,"card":"4111"})").input, "{\"id\":1,\"card\":\"(left out)\"}");
}

}  // namespace mcp_rules_test
}  // namespace once
