#include "frontends/mcp/tools.hpp"

#include <memory_resource>
#include <string>

#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once {
namespace mcp_tools_test {

using mcp::Tool;
namespace json = mcp::json;

class McpTools : public testing::Test {
 protected:
  json::Value read(const std::string& text) { return json::parse(json::keep(text, arena_), {}, arena_, "the tool"); }
  Tool tool(const std::string& text) { return mcp::tool_of(read(text)).value(); }
  std::string pin(const std::string& text) { return tool(text).pin; }

  std::pmr::monotonic_buffer_resource arena_;
};

TEST_F(McpTools, PinChangesWithWhatAPersonReviewed) {
  const std::string usual =
      R"({"name":"refund","description":"d","inputSchema":{"type":"object","maximum":1},"annotations":{"readOnlyHint":false}})";
  EXPECT_TRUE(pin(usual).starts_with("sha256:"));
  EXPECT_EQ(pin(usual).size(), 71U);
  EXPECT_EQ(pin(usual), pin(R"({ "annotations":{"readOnlyHint":false}, "title":"T","icons":[1],"_meta":{"a":1},
      "inputSchema":{"maximum":1,"type":"object"},"description":"d","name":"refund"})"));
  for (
      const char* const other :
      {R"({"name":"refund2","description":"d","inputSchema":{"type":"object","maximum":1},"annotations":{"readOnlyHint":false}})",
       R"({"name":"refund","description":"e","inputSchema":{"type":"object","maximum":1},"annotations":{"readOnlyHint":false}})",
       R"({"name":"refund","description":"d","inputSchema":{"type":"object","maximum":2},"annotations":{"readOnlyHint":false}})",
       R"({"name":"refund","description":"d","inputSchema":{"type":"object","maximum":1},"annotations":{"readOnlyHint":true}})",
       R"({"name":"refund","description":"d","inputSchema":{"type":"object","maximum":1}})",
       R"({"name":"refund","description":"d","inputSchema":{"type":"object","maximum":1},"outputSchema":{},"annotations":{"readOnlyHint":false}})"}) {
    EXPECT_NE(pin(usual), pin(other)) << other;
  }
}

TEST_F(McpTools, ReadsArgumentsAndHints) {
  const Tool found = tool(
      R"({"name":"refund","description":"d","annotations":{"readOnlyHint":true},)"
      R"("inputSchema":{"properties":{"order_id":{"type":"string"},"cents":{"type":["integer","null"]}},"required":["order_id"]}})");
  EXPECT_TRUE(found.says_read_only);
  EXPECT_TRUE(found.has_all_arguments);
  ASSERT_EQ(found.arguments.size(), 2U);
  EXPECT_EQ(found.arguments[0].name, "order_id");
  EXPECT_EQ(found.arguments[0].type, "string");
  EXPECT_TRUE(found.arguments[0].is_required);
  EXPECT_EQ(found.arguments[1].type, "");
  EXPECT_FALSE(found.arguments[1].is_required);
}

TEST_F(McpTools, BelievesOnlyAClearHint) {
  for (const char* const hint : {"\"true\"", "1", "null", "false", "{}"}) {
    EXPECT_FALSE(tool(std::string(R"({"name":"a","annotations":{"readOnlyHint":)") + hint + "}}").says_read_only)
        << hint;
  }
  EXPECT_FALSE(tool(R"({"name":"a","annotations":[]})").says_read_only);
}

TEST_F(McpTools, KnowsWhenASchemaMayHaveMore) {
  for (const char* const more : {R"("$ref":"#/x")", R"("allOf":[])", R"("anyOf":[])", R"("patternProperties":{})"}) {
    EXPECT_FALSE(
        tool(std::string(R"({"name":"a","inputSchema":{"properties":{"b":{}},)") + more + "}}").has_all_arguments);
  }
}

TEST_F(McpTools, ArgumentsThatTheSchemaRefusesAreSeen) {
  const Tool refund = tool(
      R"({"name":"refund","inputSchema":{"properties":{"id":{"type":"string"},"cents":{"type":"integer"},"other":{"type":["string","null"]}},)"
      R"("required":["id","unnamed"]}})");
  EXPECT_EQ(mcp::misfit(refund, read(R"({"id":"1","unnamed":1,"cents":1.5,"other":5,"more":{}})")), "");
  for (const char* const wrong : {"{}", R"({"id":"1"})", R"({"id":1,"unnamed":1})", R"({"id":null,"unnamed":1})",
                                  R"({"id":"1","unnamed":1,"cents":"5"})"}) {
    EXPECT_NE(mcp::misfit(refund, read(wrong)), "") << wrong;
  }
}

TEST_F(McpTools, LeftOutArgumentsAreWhatTheSchemaSays) {
  const Tool refund = tool(
      R"({"name":"refund","inputSchema":{"properties":{"id":{"type":"string"},"cents":{"default":0},"to":{"default":null},"why":{"default":{"a":"\u20ac"}}}}})");
  const auto filled = [&](const char* arguments) {
    return mcp::sorted_text(mcp::with_usual(refund, read(arguments), arena_));
  };
  EXPECT_EQ(filled(R"({"id":"1"})"), "{\"cents\":0,\"id\":\"1\",\"to\":null,\"why\":{\"a\":\"\u20ac\"}}");
  EXPECT_EQ(filled(R"({"id":"1","cents":5,"to":"x","why":1})"), R"({"cents":5,"id":"1","to":"x","why":1})");
}

TEST_F(McpTools, AToolThatIsListedTwiceHasNoPin) {
  mcp::Tools tools;
  const std::string refund = R"({"name":"refund","inputSchema":{}})";
  tools.add(read(R"({"tools":[)" + refund + "]}"));
  EXPECT_EQ(tools.find("refund")->pin, pin(refund));
  tools.add(read(R"({"tools":[{"name":"refund"}]})"));
  EXPECT_FALSE(tools.find("refund")->pin.starts_with("sha256:"));
  tools.update(read(R"({"tools":[)" + refund + "]}"));
  EXPECT_EQ(tools.find("refund")->pin, pin(refund));
  tools.update(read(R"({"tools":[)" + refund + "," + refund + "]}"));
  EXPECT_FALSE(tools.find("refund")->pin.starts_with("sha256:"));
}

TEST_F(McpTools, ListsAreBounded) {
  std::string list = R"({"tools":[)";
  for (std::size_t i = 0; i <= mcp::max_tools; ++i)
    list += std::string(i == 0 ? "" : ",") + R"({"name":"t)" + std::to_string(i) + "\"}";
  mcp::Tools tools;
  EXPECT_THROW(tools.add(read(list + "]}")), Exception);
  EXPECT_THROW(tools.add(read("{}")), Exception);
  mcp::Tools few;
  few.add(read(R"({"tools":[{"name":""},{"name":5},7,{"name":"a"}]})"));
  EXPECT_EQ(few.all().size(), 1U);
}

}  // namespace mcp_tools_test
}  // namespace once
