// What is left out of an input, and which expressions say where something stands.
#include <once/keys/input_filter.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <once/error.hpp>

namespace once::keys {
namespace input_filter_test {

using ::testing::HasSubstr;

// "null" if nothing is kept.
std::string kept(const std::vector<std::string>& expressions, std::string_view input) {
  const InputPtr out = InputFilter(expressions)(input);
  return out == nullptr ? "nothing" : *out;
}

std::string refusal(const std::string& expression, const std::vector<std::string>& names = {}) {
  try {
    const InputFilter filter({expression}, names);
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    return error.what();
  }
  return "none";
}

TEST(InputFilter, WhatAPathSelectsIsReplaced) {
  const auto one = [](const char* expression, const char* input) { return kept({expression}, input); };
  EXPECT_EQ(one("card", R"j({"order": 17, "card": {"number": "4111"}})j"), R"j({"order":17,"card":"(left out)"})j");
  EXPECT_EQ(one("card.number", R"j({"card":{"number":4111,"cvc":"1"}})j"),
            R"j({"card":{"number":"(left out)","cvc":"1"}})j");
  EXPECT_EQ(one("\"card number\"", R"j({"card number":"4111"})j"), R"j({"card number":"(left out)"})j");
  EXPECT_EQ(one("@.cvc", R"j({"cvc":false})j"), R"j({"cvc":"(left out)"})j");
  EXPECT_EQ(one("items[0].cvc", R"({"items":[{"cvc":1},{"cvc":2}]})"),
            R"j({"items":[{"cvc":"(left out)"},{"cvc":2}]})j");
  EXPECT_EQ(one("items[-1]", R"j({"items":[1,2,3]})j"), R"j({"items":[1,2,"(left out)"]})j");
  EXPECT_EQ(one("items[7]", R"({"items":[1,2,3]})"), R"({"items":[1,2,3]})");
  EXPECT_EQ(one("items[*].cvc", R"({"items":[{"cvc":1},{"x":0},{"cvc":[2]}]})"),
            R"j({"items":[{"cvc":"(left out)"},{"x":0},{"cvc":"(left out)"}]})j");
  EXPECT_EQ(one("*.cvc", R"({"a":{"cvc":1},"b":{"cvc":2,"c":3}})"),
            R"j({"a":{"cvc":"(left out)"},"b":{"cvc":"(left out)","c":3}})j");
  EXPECT_EQ(one("[].cvc", R"([[{"cvc":1},{"cvc":2}],{"cvc":3}])"),
            R"j([[{"cvc":"(left out)"},{"cvc":"(left out)"}],{"cvc":"(left out)"}])j");
  EXPECT_EQ(one("a[*].b[].c", R"({"a":[{"b":[{"c":1},{"c":2}]},{"b":{"c":3}}]})"),
            R"j({"a":[{"b":[{"c":"(left out)"},{"c":"(left out)"}]},{"b":{"c":"(left out)"}}]})j");
  EXPECT_EQ(one("[*][*]", R"j([[1,2],[3]])j"), R"j([["(left out)","(left out)"],["(left out)"]])j");
  EXPECT_EQ(kept({"card.number", "card", "cvc"}, R"({"card":{"number":1},"cvc":2})"),
            R"j({"card":"(left out)","cvc":"(left out)"})j");
}

TEST(InputFilter, TheSameNameIsFoundHoweverItIsWritten) {
  EXPECT_EQ(kept({"card"}, R"j({"c\u0061rd":"4111"})j"), R"j({"card":"(left out)"})j");
  EXPECT_EQ(kept({"\"\xC3\xA9\""}, R"j({"\u00e9":"4111"})j"), "{\"\xC3\xA9\":\"(left out)\"}");
}

TEST(InputFilter, TheRestStaysAsItIs) {
  EXPECT_EQ(kept({"x"}, R"({ "b": 1.50, "a": 12345678901234567890, "c": "\ud800é", "x": 1 })"),
            "{\"b\":1.50,\"a\":12345678901234567890,\"c\":\"\\ud800\xC3\xA9\",\"x\":\"(left out)\"}");
  EXPECT_EQ(kept({"x", "y.z", "l[*].z"}, R"({"y":{},"l":[],"n":null})"), R"({"y":{},"l":[],"n":null})");
  EXPECT_EQ(kept({"n", "n.x"}, R"({"n":null})"), R"({"n":null})");
}

// 1. A path expects {"card": {"number": ...}}.
// 2. An old client sends {"card": "4111 ..."}: the secret stands one level higher.
TEST(InputFilter, WhatIsOfAnotherTypeThanThePathNeedsIsLeftOutAsAWhole) {
  EXPECT_EQ(kept({"card.number"}, R"j({"card":"4111"})j"), R"j({"card":"(left out)"})j");
  EXPECT_EQ(kept({"card.number"}, R"j({"card":[{"number":"4111"}]})j"), R"j({"card":"(left out)"})j");
  EXPECT_EQ(kept({"cards[*].number"}, R"j({"cards":{"number":"4111"}})j"), R"j({"cards":"(left out)"})j");
  EXPECT_EQ(kept({"cards[0]"}, R"j({"cards":{"0":"4111"}})j"), R"j({"cards":"(left out)"})j");
  EXPECT_EQ(kept({"cards.*"}, R"j({"cards":["4111"]})j"), R"j({"cards":"(left out)"})j");
  EXPECT_EQ(kept({"card"}, R"j([{"card":"4111"}])j"), R"j("(left out)")j");
  EXPECT_EQ(kept({"card"}, "4111111111111111"), R"j("(left out)")j");
}

TEST(InputFilter, WhatIsNotJsonIsNotKeptAtAll) {
  for (const std::string_view input :
       {"", "card=4111&cvc=1", "{\"card\":\"4111\"", "{\"card\":1}{\"card\":2}", "{\"card\":1,\"card\":2}",
        "{\"a\":\"\xFF\"}", "\xEF\xBB\xBF{\"card\":1}", "{\"card\":NaN}", "{'card':1}"}) {
    EXPECT_EQ(kept({"card"}, input), "nothing") << input;
  }
  std::string deep(2000, '[');
  EXPECT_EQ(kept({"card"}, deep + std::string(2000, ']')), "nothing");
}

TEST(InputFilter, WithoutExpressionsAnythingIsKept) {
  EXPECT_TRUE(InputFilter().empty());
  EXPECT_TRUE(InputFilter(std::vector<std::string>()).empty());
  EXPECT_FALSE(InputFilter({"a"}).empty());
  EXPECT_EQ(kept({}, "card=4111\xFF"), "card=4111\xFF");
  EXPECT_EQ(kept({}, ""), "");
}

TEST(InputFilter, WhatDoesNotSayWhereSomethingStandsIsRefused) {
  for (const char* const expression :
       {"length(card)", "powertools_json(body).card", "items[?cvc].cvc", "items[0:2].cvc", "a || b", "a && b", "!a",
        "a == b", "[a, b]", "{x: a}", "'a'", "`1`", "items[*].cvc | [0]", "(items[*].cvc)[0]", "(a[*].b)[*]",
        "items[*].[cvc]"}) {
    EXPECT_THAT(refusal(expression), HasSubstr("does not say where a field stands")) << expression;
  }
  EXPECT_THAT(refusal("@"), HasSubstr("selects all of it"));
  for (const char* const expression : {"", "card.", "card number", "a[", "$.card"}) {
    EXPECT_THAT(refusal(expression), HasSubstr("the expression of what to leave out")) << expression;
  }
}

TEST(InputFilter, ANameThatInputsCannotHaveIsRefused) {
  EXPECT_EQ(refusal("card.number", {"order", "card"}), "none");
  EXPECT_EQ(refusal("*.number", {"order", "card"}), "none");
  EXPECT_THAT(refusal("crad.number", {"order", "card"}), HasSubstr(R"(begins with "crad", which does not exist)"));
}

}  // namespace input_filter_test
}  // namespace once::keys
