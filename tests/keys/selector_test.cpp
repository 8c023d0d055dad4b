// Expressions under native rules, against answers of the reference implementation (jmespath.py 1.1.0), and against
// what no key may depend on.
#include "keys/jmespath/selector.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <memory_resource>
#include <nlohmann/json.hpp>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <vector>

#include "keys/dialects/write.hpp"

namespace once::keys {
namespace selector_test {

std::string select(const std::string& expression, const std::string& event, Dialect dialect = Dialect::native) {
  std::pmr::monotonic_buffer_resource arena;
  const json::Value root = json::parse(event, rules_of(dialect), arena, "the event");
  const Selector selector(expression, dialect, "the expression");
  return hashed_text(selector(root, arena), dialect);
}

nlohmann::json recorded() {
  std::ifstream file(ONCE_KEYS_DATA "/jmespath.json");
  EXPECT_TRUE(file);
  return nlohmann::json::parse(file);
}

TEST(Selectors, SayWhatTheReferenceImplementationSays) {
  const nlohmann::json cases = recorded().at("cases");
  ASSERT_EQ(cases.size(), 428U);
  for (const auto& one : cases) {
    const auto expression = one.at("expression").get<std::string>();
    const std::string event = one.at("event").dump();
    SCOPED_TRACE(expression + " on " + event);
    if (one.contains("error")) {
      EXPECT_THROW(static_cast<void>(select(expression, event)), Exception);
    } else {
      EXPECT_EQ(select(expression, event), canonical_text(one.at("result").dump()));
    }
  }
}

TEST(Selectors, MalformedOnesAreRefusedWithTheirPlace) {
  const nlohmann::json malformed = recorded().at("malformed");
  for (const auto& one : malformed) {
    const auto expression = one.get<std::string>();
    try {
      const Selector selector(expression, Dialect::native, "the expression");
      ADD_FAILURE() << "accepted: " << expression;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_NE(std::string(error.what()).find("the expression"), std::string::npos);
    }
  }
}

TEST(Selectors, OnlyTheSideThatIsNeededIsEvaluated) {
  EXPECT_EQ(select("id || powertools_json(body).id", R"({"id":"x"})"), "\"x\"");
  EXPECT_EQ(select("body && powertools_json(body).id", R"({"id":"x"})"), "null");
  EXPECT_EQ(select("not_null(id, powertools_json(body).id)", R"({"id":"x"})"), "\"x\"");
  EXPECT_THROW(static_cast<void>(select("nothing || powertools_json(body).id", R"({"id":"x"})")), Exception);
}

// The paths in one text: "a.b c @" for the first, the second, and the whole event.
std::string reads(const std::string& expression) {
  std::string out;
  for (const Selector::Path& path : Selector(expression, Dialect::native, "the expression").reads()) {
    std::string text;
    for (const std::string& name : path) text += (text.empty() ? "" : ".") + name;
    out += (out.empty() ? "" : " ") + (path.empty() ? "@" : text);
  }
  return out;
}

TEST(Selectors, SayWhatTheyRead) {
  struct Case {
    const char* expression;
    const char* reads;
  };
  for (const Case& one : std::vector<Case>{{"@", "@"},
                                           {"a", "a"},
                                           {"a.b.c", "a.b.c"},
                                           {"@.a | @ | b", "a.b"},
                                           {"\"a\".\"b.c\"", "a.b.c"},
                                           {"'a'", ""},
                                           {"`{\"a\":1}`.a", ""},
                                           {"[a, b.c]", "a b.c"},
                                           {"{x: a, a: b}.a", "a b"},
                                           {"a.[b, c.d]", "a.b a.c.d"},
                                           {"a.{x: b}", "a.b"},
                                           {"[@][0].a", "@"},
                                           {"a[0].b", "a"},
                                           {"a[*].b", "a"},
                                           {"a.*.b", "a"},
                                           {"*.b", "@"},
                                           {"a[].b", "a"},
                                           {"a[1:].b", "a"},
                                           {"a.b[?c == d].e", "a.b"},
                                           {"[?a]", "@"},
                                           {"a || b.c", "a b.c"},
                                           {"(a || b).c", "a b"},
                                           {"a && b", "a b"},
                                           {"!a.b", "a"},
                                           {"a.b == c", "a.b c"},
                                           {"length(a.b)", "a.b"},
                                           {"powertools_json(a.b).c.d", "a.b"},
                                           {"join('-', [a, powertools_json(b).c])", "a b"},
                                           {"sort_by(a, &b)[0].c", "a"},
                                           {"map(&a, [@])", "@"},
                                           {"to_string(@)", "@"}}) {
    EXPECT_EQ(reads(one.expression), one.reads) << one.expression;
  }
}

TEST(Selectors, QuotedNamesAndLiterals) {
  EXPECT_EQ(select(R"("\u00E9\n")", R"({"\u00e9\n":1})"), "1");
  EXPECT_EQ(select(R"("a.b")", R"({"a.b":2,"a":{"b":3}})"), "2");
  EXPECT_EQ(select(R"(`"a\`b"`)", "{}"), "\"a`b\"");
  EXPECT_EQ(select(R"('it\'s \n')", "{}"), R"("it's \\n")");
}

TEST(Selectors, IntegersOfPythonAreExact) {
  const std::string event = R"({"l":[9007199254740993,9007199254740992],"n":-18446744073709551617,"f":2.0})";
  const Dialect python = Dialect::powertools_python;
  EXPECT_EQ(select("max(l)", event, python), "9007199254740993");
  EXPECT_EQ(select("sum(l)", event, python), "18014398509481985");
  EXPECT_EQ(select("abs(n)", event, python), "18446744073709551617");
  EXPECT_EQ(select("l[0] == l[1]", event, python), "false");
  EXPECT_EQ(select("[ceil(f), floor(f), abs(f)]", event, python), "[2, 2, 2.0]");
  EXPECT_THROW(static_cast<void>(select("sum([n, n])", event, python)), Exception);
}

// As jmespath.py 1.1.0 has it.
TEST(Selectors, TruthIsOneInPythonButNotAtTheTop) {
  const std::string event = R"({"l":[1,0],"t":[true],"o":[1],"m":{"a":false},"n":{"a":0.0},"one":1,"two":[2]})";
  const Dialect python = Dialect::powertools_python;
  EXPECT_EQ(select("contains(l, `true`)", event, python), "true");
  EXPECT_EQ(select("contains(two, `true`)", event, python), "false");
  EXPECT_EQ(select("t == o", event, python), "true");
  EXPECT_EQ(select("m != n", event, python), "false");
  EXPECT_EQ(select("one == `true`", event, python), "false");
  for (const char* const expression : {"contains(l, `true`)", "t == o", "m == n"}) {
    EXPECT_EQ(select(expression, event), "false") << expression;
    EXPECT_EQ(select(expression, event, Dialect::powertools_typescript), "false") << expression;
  }
}

TEST(Selectors, SayWhetherTheyKeepTheTextOfNumbers) {
  for (const char* const expression : {"id", "a.b[0].\"c d\"", "[id, user]", "{x: id}", "a || b", "not_null(a, b)",
                                       "join('/', [a, b])", "powertools_json(body).id", "starts_with(a, 'x')", "'x'"}) {
    EXPECT_TRUE(Selector(expression, Dialect::native, "it").keeps_numbers()) << expression;
  }
  for (const char* const expression :
       {"to_string(id)", "[id, to_string(user)]", "join('/', ['x', to_string(id)])", "a == b", "l[?id == `1`].x",
        "max(l)", "to_string(powertools_json(body).id)", "!(a < b)"}) {
    EXPECT_FALSE(Selector(expression, Dialect::native, "it").keeps_numbers()) << expression;
  }
}

TEST(Selectors, LengthsAndOrderByLanguage) {
  const std::string event = R"({"s":"\ud83d\ude00","l":[{"k":"\ud83d\ude00"},{"k":"\uffff"}]})";
  EXPECT_EQ(select("length(s)", event), "1");
  EXPECT_EQ(select("length(s)", event, Dialect::powertools_typescript), "2");
  EXPECT_EQ(select("max_by(l, &k).k == s", event), "true");
  EXPECT_EQ(select("max_by(l, &k).k == s", event, Dialect::powertools_typescript), "false");
}

}  // namespace selector_test
}  // namespace once::keys
