// The native rules: RFC 8785, refusals, missing keys, and the text of key and fingerprint.
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cstdint>
#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "text/number.hpp"

namespace once::keys {
namespace native_test {

Derived derive(const std::string& event, const std::string& expression = "", const std::string& validation = "") {
  return KeyDeriver({.scope = "s", .expression = expression, .fingerprint = validation}).derive(event);
}

std::string refusal(const std::string& event, const std::string& expression = "") {
  try {
    static_cast<void>(derive(event, expression));
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << event;
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(NativeKeys, TheLabelIsWhatPeopleKnow) {
  EXPECT_EQ(derive(R"({"id": "order-\"17\""})", "id").label, "order-\"17\"") << "a string as it is";
  EXPECT_EQ(derive(R"({"id": 17})", "id").label, "17");
  EXPECT_EQ(derive(R"({"b": 1, "a": "x"})").label, R"({"a":"x","b":1})");
  EXPECT_EQ(derive(R"({"id": null})", "id").label, "");
  EXPECT_LE(derive("\"" + std::string(100'000, 'x') + "\"").label.size(), 1100U);
  EXPECT_EQ(KeyDeriver({.scope = "s", .expression = "id", .makes_label = false}).derive(R"({"id": "order-17"})").label,
            "");
}

TEST(NativeKeys, DoNotDependOnTheRoundingMode) {
  const int before = std::fegetround();
  for (const auto& [event, expression] : std::vector<std::pair<std::string, std::string>>{
           {R"({"amount":1234567.89})", "amount"},
           {R"({"lat":52.520008,"lon":13.404954,"price":19.99})", ""},
           {R"({"items":[{"cents":0.1},{"cents":0.2},{"cents":0.7}]})", "sum(items[].cents)"},
           {R"({"items":[0.1,0.2,0.7]})", "avg(items)"}}) {
    const Derived expected = derive(event, expression, expression.empty() ? "@" : expression);
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
      const Derived derived = derive(event, expression, expression.empty() ? "@" : expression);
      const std::string canonical = canonical_text(event);
      std::fesetround(before);
      EXPECT_EQ(derived.key, expected.key) << event;
      EXPECT_EQ(derived.fingerprint, expected.fingerprint) << event;
      EXPECT_EQ(derived.label, expected.label) << event;
      EXPECT_EQ(canonical, canonical_text(event));
    }
  }
}

// RFC 8785, section 3.2.4, the sample of section 3.2.2 in canonical form.
TEST(NativeKeys, SampleOfRfc8785) {
  const std::string sample = R"({
       "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
       "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
       "literals": [null, true, false]
     })";
  EXPECT_EQ(canonical_text(sample),
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],"
            "\"string\":\"\xE2\x82\xAC$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}");
}

// RFC 8785, section 3.2.3: order by UTF-16 code units, in which an emoji comes before U+FB33.
TEST(NativeKeys, NamesSortByUtf16) {
  EXPECT_EQ(canonical_text(R"({"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",)"
                           R"("1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",)"
                           R"("\u00f6":"Latin Small Letter O With Diaeresis"})"),
            "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\xC2\x80\":\"Control\","
            "\"\xC3\xB6\":\"Latin Small Letter O With Diaeresis\",\"\xE2\x82\xAC\":\"Euro Sign\","
            "\"\xF0\x9F\x98\x80\":\"Emoji: Grinning Face\",\"\xEF\xAC\xB3\":\"Hebrew Letter Dalet With Dagesh\"}");
}

// RFC 8785, appendix B.
// Strings are examined some bytes at a time: an escape, a character outside ASCII and the end of the text are found
// wherever they lie in such a step.
TEST(NativeKeys, EscapesAndEndsAtEveryPlace) {
  struct Part {
    std::string written;
    std::string canonical;
  };
  const std::vector<Part> parts{{"\\n", "\\n"},       {"\\\"", "\\\""},      {"\\/", "/"},
                                {"\\u0041", "A"},     {"\\u20ac", "\u20ac"}, {"\\ud83d\\ude00", "\U0001F600"},
                                {"\u00e9", "\u00e9"}, {"\\\\", "\\\\"}};
  for (std::size_t before = 0; before < 36; ++before) {
    for (std::size_t between = 0; between < 20; ++between) {
      for (const Part& first : parts) {
        const Part& second = parts[(before + between) % parts.size()];
        const auto text = [&](const std::string& a, const std::string& b) {
          return std::string(before, 'p') + a + std::string(between, 'q') + b + "r";
        };
        const std::string written = text(first.written, second.written);
        const std::string canonical = text(first.canonical, second.canonical);
        ASSERT_EQ(canonical_text("[\"" + written + "\",\"" + written + "\"]"),
                  "[\"" + canonical + "\",\"" + canonical + "\"]");
        if (&first != &parts[between % parts.size()]) continue;  // Exceptions take their time.
        ASSERT_TRUE(contains(refusal("[\"" + written), "ends inside a string")) << written;
        ASSERT_TRUE(contains(refusal("[\"" + written + "\x01 and more than a step\"]"), "a control character"))
            << written;
        ASSERT_TRUE(contains(refusal("[\"" + written + "\xFF and more than a step\"]"), "invalid UTF-8")) << written;
      }
    }
  }
}

// Names are told apart by a few bits first, which many share.
TEST(NativeKeys, FindsEachNameThatOccursTwice) {
  std::vector<std::string> names{""};
  for (int i = 0; i < 30; ++i)
    names.push_back(std::string(i % 3, 'n') + static_cast<char>('a' + i % 26) + std::to_string(i));
  for (std::size_t count = 1; count <= names.size(); ++count) {
    std::string members;
    for (std::size_t i = 0; i < count; ++i) members += "\"" + names[i] + "\":1,";
    EXPECT_NO_THROW(canonical_text("{" + members.substr(0, members.size() - 1) + "}"));
    for (std::size_t again = 0; again < count; ++again) {
      EXPECT_TRUE(contains(refusal("{" + members + "\"" + names[again] + "\":2}"), "occurs twice")) << again;
    }
  }
}

TEST(NativeKeys, NumbersOfRfc8785) {
  const std::vector<std::pair<std::uint64_t, std::string>> table{
      {0x0000000000000000, "0"},
      {0x8000000000000000, "0"},
      {0x0000000000000001, "5e-324"},
      {0x8000000000000001, "-5e-324"},
      {0x7fefffffffffffff, "1.7976931348623157e+308"},
      {0xffefffffffffffff, "-1.7976931348623157e+308"},
      {0x4340000000000000, "9007199254740992"},
      {0xc340000000000000, "-9007199254740992"},
      {0x4430000000000000, "295147905179352830000"},
      {0x44b52d02c7e14af5, "9.999999999999997e+22"},
      {0x44b52d02c7e14af6, "1e+23"},
      {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
      {0x444b1ae4d6e2ef4e, "999999999999999700000"},
      {0x444b1ae4d6e2ef4f, "999999999999999900000"},
      {0x444b1ae4d6e2ef50, "1e+21"},
      {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
      {0x3eb0c6f7a0b5ed8d, "0.000001"},
      {0x41b3de4355555553, "333333333.3333332"},
      {0x41b3de4355555554, "333333333.33333325"},
      {0x41b3de4355555555, "333333333.3333333"},
      {0x41b3de4355555556, "333333333.3333334"},
      {0x41b3de4355555557, "333333333.33333343"},
      {0xbecbf647612f3696, "-0.0000033333333333333333"},
      {0x43143ff3c1cb0959, "1424953923781206.2"},
  };
  for (const auto& [bits, expected] : table) {
    std::string text;
    text::append_ecmascript(std::bit_cast<double>(bits), text);
    EXPECT_EQ(text, expected);
    EXPECT_EQ(canonical_text(text), expected) << "does not read back as itself";
  }
}

TEST(NativeKeys, OneValueOneText) {
  EXPECT_EQ(canonical_text(" { \"b\" : [ 1.0 , -0 ] ,\r\n\t\"a\":\"\\u0041\" } "), R"({"a":"A","b":[1,0]})");
  EXPECT_EQ(derive(R"({"a":1,"b":2})").key, derive(R"({ "b": 2e0, "a": 1.00 })").key);
  EXPECT_NE(derive(R"({"a":1})").key, derive(R"({"a":"1"})").key);
  EXPECT_NE(derive(R"(["a"])").key, derive(R"("a")").key);
}

TEST(NativeKeys, KeyIsScopeAndDigest) {
  // echo -n '"o-1"' | sha256sum, | md5sum
  const Derived d = KeyDeriver({.scope = "pay#eu", .expression = "id", .fingerprint = "@"}).derive(R"({"id":"o-1"})");
  EXPECT_EQ(d.key_text, "\"o-1\"");
  EXPECT_EQ(d.key->stored(), "pay%23eu#00d5c8b71f851bbe47626a189b20fb19c11753e244bb658095c370ba3798f85c");
  EXPECT_EQ(d.fingerprint_text, R"({"id":"o-1"})");
  EXPECT_EQ(d.fingerprint, Fingerprint::of(R"({"id":"o-1"})"));
  const Derived md5 = KeyDeriver({.scope = "s", .expression = "id", .hash = "md5"}).derive(R"({"id":"o-1"})");
  EXPECT_EQ(md5.key->stored(), "s#cbcbdb948de16bfe7e49a81f91500ab1");
  EXPECT_TRUE(md5.fingerprint.empty());
}

TEST(NativeKeys, NothingSelectedIsNoKey) {
  for (const std::string event :
       {"null", "\"\"", "[]", "{}", "[null]", "[null,[null,{\"a\":null}]]", "{\"a\":{\"b\":[]}}"}) {
    const Derived d = derive(event, "", "@");
    EXPECT_FALSE(d.key) << event;
    EXPECT_TRUE(d.fingerprint.empty() && d.key_text.empty() && d.fingerprint_text.empty()) << event;
  }
  for (const std::string expression : {"x", "x.y[3]", "[x, y]", "{a: x, b: {c: y}}", "e", "l[5]", "[*]", "x[?y]"}) {
    EXPECT_FALSE(derive(R"({"e":"","l":[1]})", expression).key) << expression;
  }
  for (const std::string event : {"0", "false", "\" \"", "[0]", "[\"\"]", "{\"a\":\"\"}", "[null,1]", "[[],false]"}) {
    EXPECT_TRUE(derive(event).key) << event;
  }
}

// 1. Every user buys product 10000. 2. The event has no user. 3. "[user.uid, productId]" would be [null,10000] for all.
TEST(NativeKeys, APartThatIsMissingIsNoKey) {
  const std::string event =
      R"({"user":{"uid":7,"note":null},"id":10000,"none":null,"blank":"","list":[],"nulls":[null],)"
      R"("tags":["a",""],"holes":[null,1],"items":[{"sku":"a","n":1},{"sku":"b"}]})";
  const auto with = [&](const std::string& expression, bool allow) {
    return KeyDeriver({.scope = "s", .expression = expression, .allow_null_parts = allow}).derive(event);
  };
  for (const std::string expression : {
           R"(["user.uid", id])",
           "[none, id]",
           "[blank, id]",
           "[list, id]",
           "[nulls, id]",
           "{u: x, i: id}",
           "[[none], id]",
           "[{a: [blank]}, id]",
           "[id, user.[uid, x]]",
           // Behind a pipe, a projection, or a choice.
           "[none, id] | @",
           "[none, id] | {k: @}",
           "items[*].[sku, n]",
           "items[*].{s: sku, n: n}",
           "items[*].[sku, n] | [0:2]",
           "[id, items[*].[n]]",
           "none || [none, id]",
           "id && [none, id]",
           "not_null(none, [none, id])",
           // Nulls that a projection leaves out.
           "[none, id][]",
           "[none, id][*]",
           "[none, id][?@]",
           "{a: none, b: id}.*",
           "[[none, id]][]",
           "[user, id][*].uid",
           "[user, items[0]][*].sku",
           "[none, id][0:2]",
           // What functions make of it.
           "to_string([none, id])",
           "to_string({a: blank, b: id})",
           "[to_string(none), id]",
           "join('-', [blank, 'x'])",
           "join('-', ['a', to_string(none), to_string(id)])",
           "join('-', [to_string(id), blank])",
           "join('-', sort([blank, 'x']))",
           "join('-', map(&to_string(@), [none, id]))",
           "reverse([none, id])",
           "values({a: none, b: id})",
           "map(&n, items)",
           "sort_by([{k: id, v: none}], &k)",
           "merge({a: none}, {b: id})",
           "merge(user, {a: none})",
           "merge({a: id}, {a: none, b: id})",
           "[to_array(none), id]",
           "[to_number(blank), id]",
           "powertools_json(to_string([none, id]))",
           "powertools_json(join('', ['[', to_string(none), ',', to_string(id), ']']))",
           "length([none, id])",
           "[id, [length([none])]]",
       }) {
    EXPECT_FALSE(with(expression, false).key) << expression << ": " << with(expression, false).key_text;
    EXPECT_TRUE(with(expression, true).key) << expression;
  }
  for (const std::string expression : {
           // Selected whole: what is in it is data.
           "@",
           "user",
           "holes",
           "[user, id]",
           "{u: user, h: holes, t: tags}",
           "tags",
           "join('-', tags)",
           "items",
           "to_string(user)",
           "to_string(holes)",
           "merge(user, {i: id})",
           "reverse(tags)",
           "holes[*]",
           "tags[]",
           "items[*].n",
           "items[].sku",
           "user.*",
           "values(user)",
           "to_array(holes)",
           // Built of parts that are there.
           "[user.uid, id]",
           "{u: user.uid, i: id}",
           "user.[uid]",
           "[to_string(id), join('-', tags)]",
           "items[*].[sku]",
           "merge({a: none}, {a: id})",
           // A part of it that is there is selected.
           "[none, id][1]",
           "{a: none, b: id}.b",
           "[none, id][] | [0]",
           "[none, id][?@] | [0]",
           "max([id, `1`])",
           "[none, id][1:]",
           "not_null(none, id)",
           "items[*].[sku, n] | [*][0]",
           // The expression says what stands for a missing one, if only null.
           "[none || 'nobody', id]",
           "[none || `null`, id]",
           "{u: user.uid, x: x || `null`}",
           "join('-', [not_null(none, 'x'), to_string(id)])",
           // About the parts, not made of them.
           "contains(['a', blank], 'a') && id",
           "type([none]) && id",
           "[none, id] == [none, id] && id",
       }) {
    EXPECT_TRUE(with(expression, false).key) << expression;
  }
  // The text does not change where it is allowed.
  EXPECT_EQ(with("[none, id]", true).key_text, "[null,10000]");
  EXPECT_EQ(with("[none || `null`, id]", false).key_text, "[null,10000]");
  // All of it, or the event's part of it, is missing: it stays so.
  for (const std::string expression : {"[none, x]", "none || `null`", "['a', none]", "[none || `null`]"}) {
    EXPECT_FALSE(with(expression, true).key) << expression;
  }
}

TEST(NativeKeys, ARequiredKeySaysThatAPartIsMissing) {
  const auto error = [](const std::string& expression, const std::string& compared) -> std::string {
    try {
      static_cast<void>(
          KeyDeriver({.scope = "s", .expression = expression, .fingerprint = compared, .require_key = true})
              .derive(R"({"user":{"uid":7},"id":1,"note":""})"));
      return {};
    } catch (const Exception& thrown) {
      EXPECT_EQ(thrown.kind(), ErrorKind::misuse);
      return thrown.what();
    }
  };
  EXPECT_EQ(error("[uid, id]", ""),
            "the event has no key: a part of what \"[uid, id]\" puts together is null; the option allow_null_parts "
            "accepts that");
  EXPECT_TRUE(contains(error("[note, id]", ""), "puts together is empty"));
  EXPECT_TRUE(contains(error(R"(["user.uid", id])", ""), "did you mean user.uid without quotes?"));
  EXPECT_TRUE(contains(error("id", "[id, amount]"), "the fingerprint is incomplete"));
  EXPECT_EQ(error("id", "[id, note]"), "") << "compared as it is";
}

// The libraries take such keys, and a table that is moved has them.
TEST(NativeKeys, DialectsKeepKeysWithMissingParts) {
  for (const Dialect dialect : {Dialect::powertools_python, Dialect::powertools_typescript, Dialect::powertools_java,
                                Dialect::powertools_dotnet}) {
    const KeyDeriver deriver({.scope = "s",
                              .expression = "[uid, id]",
                              .fingerprint = "[amount, id]",
                              .dialect = dialect,
                              .require_key = true});
    EXPECT_TRUE(deriver.derive(R"({"id":1})").key) << to_string(dialect);
  }
}

// All that was selected, but constants of the expression, is null: all events would share the key.
TEST(NativeKeys, ConstantsAloneAreNoKeyWhereTheEventWasAsked) {
  const std::string event = R"({"user":{"uid":7},"kind":"a","items":[{"n":1}],"none":null,"empty":[]})";
  for (const std::string expression : {
           R"(["x", 'tenant'])",
           R"(['tenant', "user.uid"])",
           R"({tenant: 'acme', user: "user.uid"})",
           R"("user.uid" || 'none')",
           R"(not_null("user.uid", none, 'none'))",
           R"(to_string("user.uid"))",
           R"(type("user.uid"))",
           R"(join('-', ['a', to_string(user.id)]))",
           R"(['x', user.id, kind.x])",
           R"("user.uid" == 'x')",
           R"(!"user.uid")",
           R"(['x', items[?m == `1`]])",
           R"(items[*].m | ['x', [0]])",
           R"('x' | @)",
           R"(user.['x', id])",
           R"(length(items[*].m))",
       }) {
    EXPECT_FALSE(derive(event, expression).key) << expression << ": " << derive(event, expression).key_text;
  }
  for (const std::string expression : {
           R"(['tenant', user.uid])",
           R"([kind, user.uid])",
           R"(user.id || user.uid)",
           R"(kind && 'a constant that a condition selects')",
           R"(kind == 'b')",
           R"(to_string(items[*].n))",
           R"(['x', items[?n == `1`].n])",
           R"(items[?n == `2`] | length(@))",
           R"(length(empty))",
           R"(user.['x', uid])",
           R"(user | ['x', uid])",
           R"(map(&n, items))",
           R"('daily')",
           R"(['daily', `1`])",
       }) {
    EXPECT_TRUE(derive(event, expression).key) << expression;
  }
}

TEST(NativeKeys, AQuotedNameWithADotInItMayBeMeantWithout) {
  for (const std::string expression : {R"("user.uid")", R"(['tenant', "user.uid"])"}) {
    const KeyDeriver deriver({.scope = "s", .expression = expression, .require_key = true});
    try {
      static_cast<void>(deriver.derive(R"({"user":{"uid":7}})"));
      ADD_FAILURE() << expression;
    } catch (const Exception& error) {
      EXPECT_TRUE(contains(error.what(), "did you mean user.uid without quotes?")) << error.what();
    }
    EXPECT_TRUE(deriver.derive(R"({"user.uid":7})").key);
  }
}

TEST(NativeKeys, ANameThatNoEventHasIsRefusedAtOnce) {
  const auto make = [](const std::string& expression, const std::string& validation) {
    KeyDeriver({.scope = "s", .expression = expression, .fingerprint = validation, .names = {"id", "items"}});
  };
  EXPECT_NO_THROW(make("[id, items[?a == `1`].b]", "items[].c | d"));
  EXPECT_NO_THROW(make("", "@"));
  EXPECT_NO_THROW(make("sort_by(items, &n)[0].x", ""));
  for (const std::string typo : {"ids", "[id, itmes]", "id || order_id", "itmes[*].x", "@.ids", "items[?a] || ids"}) {
    EXPECT_THROW(make(typo, ""), Exception) << typo;
    EXPECT_THROW(make("id", typo), Exception) << typo;
  }
}

TEST(NativeKeys, MissingKeyMayBeRefused) {
  const KeyDeriver deriver({.scope = "s", .expression = "order.id", .require_key = true});
  EXPECT_THROW(static_cast<void>(deriver.derive("{}")), Exception);
  EXPECT_TRUE(deriver.derive(R"({"order":{"id":0}})").key);
}

TEST(NativeKeys, ValidationThatSelectsNothingIsNull) {
  const Derived d = derive(R"({"id":1})", "id", "amount");
  EXPECT_EQ(d.fingerprint_text, "null");
  EXPECT_EQ(d.fingerprint, Fingerprint::of("null"));
}

TEST(NativeKeys, AValidationThatSelectsNothingIsRefusedWhereAKeyIsRequired) {
  const std::string event = R"({"id":1,"note":"","none":null,"empty":[],"nulls":[null,{"a":null}],"items":[{"n":1}]})";
  const auto compares = [&](const std::string& validation) {
    const KeyDeriver deriver({.scope = "s", .expression = "id", .fingerprint = validation, .require_key = true});
    try {
      EXPECT_EQ(deriver.derive(event).fingerprint, deriver.fingerprint(event));
      return true;
    } catch (const Exception&) {
      return false;
    }
  };
  for (const std::string nothing : {"amount", "[amount, currency]", "none", "nulls", "items[*].m", "items[?m].n",
                                    "map(&m, items)", "['EUR', amount]", "{c: 'EUR', a: amount}", "length(items[*].m)",
                                    "[id, amount]", "{i: id, a: amount}", "to_string([id, none])", "items[*].[n, m]"}) {
    EXPECT_FALSE(compares(nothing)) << nothing;
  }
  for (const std::string something :
       {"note", "empty", "empty[*].n", "length(empty)", "items", "items[*].n", "[id, note, empty]",
        "items[?n == `2`].n", "@", "['EUR', note]", "[id, amount || `null`]", "[nulls[0] == id, id]"}) {
    EXPECT_TRUE(compares(something)) << something;
  }
  const KeyDeriver lenient(
      {.scope = "s", .expression = "id", .fingerprint = "[id, amount]", .require_key = true, .allow_null_parts = true});
  EXPECT_EQ(lenient.derive(event).fingerprint_text, "[1,null]");
  EXPECT_THROW(KeyDeriver({.scope = "s", .fingerprint = "'EUR'"}), Exception) << "it can compare nothing";
}

TEST(NativeKeys, RefusesWhatIsNoJson) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "empty"},
      {"  ", "ends where a value"},
      {"{\"a\":1} x", "line 1, byte 9"},
      {"{\"a\":1}{}", "follows the end"},
      {"{\"a\":\n  tru}", "line 2, byte 3"},
      {"[1,]", "expected a value"},
      {"{\"a\":1,}", "name in quotes"},
      {"{a:1}", "name in quotes"},
      {"{\"a\" 1}", "':'"},
      {"[1 2]", "',' or ']'"},
      {"[1", "inside an array"},
      {"{\"a\":1", "inside an object"},
      {"\"abc", "inside a string"},
      {"\"abc\\", "inside a string"},
      {"// x\n1", "no comments"},
      {"[1, /* x */ 2]", "no comments"},
      {"01", "does not begin with 0"},
      {"-", "a digit"},
      {"1.", "after the point"},
      {"1e", "exponent"},
      {"+1", "expected a value"},
      {".5", "expected a value"},
      {"NaN", "expected a value"},
      {"Infinity", "expected a value"},
      {"-Infinity", "a digit"},
      {"'a'", "expected a value"},
      {"\xEF\xBB\xBF{}", "expected a value"},
      {"\"a\nb\"", "control character"},
      {std::string("\"a\0b\"", 5), "control character"},
      {"\"\\x41\"", "unknown escape"},
      {"\"\\u12g4\"", "hexadecimal"},
      {"\"\\u12", "hexadecimal"},
      {"\"\xFF\"", "UTF-8"},
      {"\"\xC0\xAF\"", "UTF-8"},
      {"\"\xED\xA0\x80\"", "UTF-8"},
      {"\"\xF4\x90\x80\x80\"", "UTF-8"},
      {"\"abcdefgh\xE2\x82\"", "UTF-8"},
      {"{\"\xFF\":1}", "UTF-8"},
  };
  for (const auto& [event, part] : cases) {
    const std::string message = refusal(event);
    EXPECT_TRUE(contains(message, part)) << event << ": " << message;
  }
}

TEST(NativeKeys, RefusesWhatWouldMergePayloads) {
  EXPECT_TRUE(contains(refusal(R"({"a":1,"b":{"c":1,"c":2}})"), "\"c\" occurs twice"));
  EXPECT_TRUE(contains(refusal(R"({"a":1,"\u0061":1})"), "\"a\" occurs twice"));
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += "\"n" + std::to_string(i) + "\":0,";
  EXPECT_TRUE(derive(many + "\"n1000\":0}").key);
  EXPECT_TRUE(contains(refusal(many + "\"n17\":0}"), "\"n17\" occurs twice"));

  EXPECT_TRUE(contains(refusal(R"("\ud83d")"), "surrogate"));
  EXPECT_TRUE(contains(refusal(R"("\ude00x")"), "surrogate"));
  EXPECT_TRUE(contains(refusal(R"("\ud83d\u0041")"), "surrogate"));
  EXPECT_EQ(canonical_text(R"("\ud83d\ude00")"), "\"\xF0\x9F\x98\x80\"");

  // Refused wherever it stands: also outside of what is selected, and inside a body.
  EXPECT_TRUE(contains(refusal(R"({"id":1,"x":[1e400]})", "id"), "range of a double"));
  EXPECT_TRUE(contains(refusal(R"({"body":"{\"a\":1,\"a\":2}"})", "powertools_json(body).a"), "occurs twice"));
}

TEST(NativeKeys, NumbersThatADoubleHoldsOrNot) {
  for (const std::string number : {"9007199254740991",
                                   "-9007199254740991",
                                   "9007199254740992",
                                   "9007199254740994",
                                   "1e30",
                                   "1E+30",
                                   "100000e25",
                                   "1.7976931348623157e308",
                                   "0.1",
                                   "0.10000000000000001",
                                   "3.14159265358979323846",
                                   "5e-324",
                                   "4.9e-324",
                                   "0e999999999999999999999",
                                   "0.000e5",
                                   "295147905179352830000",
                                   "123456789012345680000",
                                   "1e-300",
                                   "4503599627370497.5",
                                   "-0.0"}) {
    const std::string text = canonical_text(number);
    EXPECT_EQ(canonical_text(text), text) << number;
  }
  for (const std::string number : {"9007199254740993",
                                   "-9007199254740993",
                                   "9007199254740993.0",
                                   "9007199254740993e0",
                                   "0.9007199254740993e16",
                                   "18446744073709551616",
                                   "18446744073709551615",
                                   "295147905179352825856",
                                   "1e309",
                                   "-1e309",
                                   "1e400",
                                   "1e-400",
                                   "1e-324",
                                   "2e-324",
                                   "1e99999999999999999999",
                                   "1e-99999999999999999999",
                                   "123456789012345678901234567890",
                                   "1.7976931348623159e308",
                                   "9007199254740993.5",
                                   "9007199254740991.6"}) {
    const std::string message = refusal("[" + number + "]");
    EXPECT_TRUE(contains(message, "double") && contains(message, "string")) << number << ": " << message;
  }
}

TEST(NativeKeys, NumbersMayBeHeldToExactnessWhereTheyAreSelectedAlone) {
  const std::string event = R"({"id":"a","n":9007199254740993,"m":[1e400],"i":[{"n":18446744073709551617,"k":7}]})";
  const auto derived = [&](const std::string& expression, const std::string& validation = {}) -> std::string {
    const KeyDeriver deriver(
        {.scope = "s", .expression = expression, .fingerprint = validation, .only_selected_exact = true});
    try {
      return deriver.derive(event).key_text;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_TRUE(contains(error.what(), "double")) << error.what();
      return "refused";
    }
  };
  EXPECT_EQ(derived("id"), "\"a\"");
  EXPECT_EQ(derived("i[0].k"), "7");
  EXPECT_EQ(derived("\"id\""), "\"a\"");
  for (const char* const selected : {"n", "m", "m[0]", "i", "i[].n", "i[0]"}) EXPECT_EQ(derived(selected), "refused");
  // They may be in what was computed, though it is no number.
  for (const char* const computed : {"to_string(n)", "i[?n > `1`].k", "[n, id]", "{a: n}", "n || id", "@", ""}) {
    EXPECT_EQ(derived(computed), "refused") << computed;
  }
  EXPECT_EQ(derived("id", "n"), "refused");
}

TEST(NativeKeys, DepthIsBounded) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + "1" + std::string(depth, ']'); };
  EXPECT_TRUE(derive(nested(max_event_depth)).key);
  EXPECT_TRUE(contains(refusal(nested(max_event_depth + 1)), "deep"));
  EXPECT_TRUE(contains(refusal(std::string(10'000'000, '[')), "deep"));
  EXPECT_TRUE(derive(nested(max_event_depth), "[*]").key) << "through the library's tree";
}

TEST(NativeKeys, BadRecipesAreRefusedAtOnce) {
  const auto refused = [](Recipe recipe) {
    try {
      const KeyDeriver deriver(std::move(recipe));
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      return std::string(error.what());
    }
    ADD_FAILURE() << "accepted";
    return std::string();
  };
  for (const std::string expression : {"a.[",
                                       "a.",
                                       "a[",
                                       "a[0",
                                       "(a",
                                       "a)",
                                       "a b",
                                       "a |",
                                       "| a",
                                       "[a,]",
                                       "{a}",
                                       "{a:}",
                                       "a.b..c",
                                       "`{`",
                                       "'open",
                                       "\"open",
                                       "a ||",
                                       "&& a",
                                       "powertools_json(a",
                                       "powertools_json a)",
                                       "*.[",
                                       "a[?b",
                                       "a.1",
                                       "#",
                                       "a[0:1:0]"}) {
    const std::string message = refused({.scope = "s", .expression = expression});
    EXPECT_TRUE(contains(message, "key expression")) << expression << ": " << message;
  }
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = "a.["}), "column"));
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = "a.nope(b)"}), "at column 3: unknown function nope()"));
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = "Sum(b)"}), "unknown function Sum()"));
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = "  "}), "blank"));
  EXPECT_TRUE(contains(refused({.scope = "s", .fingerprint = "a.["}), "fingerprint expression"));
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = std::string(max_expression_bytes + 1, 'a')}), "longer"));
  EXPECT_TRUE(
      contains(refused({.scope = "s", .expression = std::string(200, '(') + "a" + std::string(200, ')')}), "deep"));
  EXPECT_TRUE(contains(refused({.scope = "s", .expression = "\xFF"}), "UTF-8"));
  EXPECT_TRUE(contains(refused({.scope = "s", .hash = "sha1"}), "sha256 or md5"));
}

TEST(NativeKeys, FailingExpressionsAreErrors) {
  EXPECT_TRUE(contains(refusal("{}", "powertools_json(body)"), "is the field missing?"));
  EXPECT_TRUE(contains(refusal(R"({"body":{"a":1}})", "powertools_json(body)"), "an object"));
  EXPECT_TRUE(contains(refusal(R"({"body":"{x"})", "powertools_json(body).id"), "powertools_json()"));
  EXPECT_TRUE(contains(refusal(R"({"body":""})", "powertools_json(body)"), "empty"));
  EXPECT_TRUE(contains(refusal(R"({"b":"aGVsbG8"})", "powertools_base64(b)"), "padding"));
  EXPECT_TRUE(contains(refusal(R"({"b":"aGVs\nbG8="})", "powertools_base64(b)"), "byte 5"));
  EXPECT_TRUE(contains(refusal(R"({"b":"8J-YgA=="})", "powertools_base64(b)"), "byte 3"));
  EXPECT_TRUE(contains(refusal(R"({"b":"aGVsbG9="})", "powertools_base64(b)"), "bits"));
  EXPECT_TRUE(contains(refusal(R"({"b":"/w=="})", "powertools_base64(b)"), "not UTF-8"));
  EXPECT_TRUE(contains(refusal(R"({"b":"cGxhaW4="})", "powertools_base64_gzip(b)"), "not gzip"));
  // The same by way of the library.
  EXPECT_TRUE(contains(refusal(R"({"l":[{"body":"{x"}]})", "l[*].powertools_json(body)"), "powertools_json()"));
  EXPECT_TRUE(contains(refusal(R"({"l":["a"]})", "sum(l)"), "sum()"));
  EXPECT_TRUE(contains(refusal(R"({"l":5})", "sort(l)"), "sort() needs an array"));
}

TEST(NativeKeys, Functions) {
  const auto text = [](const std::string& event, const std::string& expression) {
    return derive(event, expression).key_text;
  };
  EXPECT_EQ(text(R"({"body":"{\"order\":{\"b\":1.0,\"a\":2}}"})", "powertools_json(body).order"), R"({"a":2,"b":1})");
  EXPECT_EQ(text(R"({"b":"aGVsbG8gw6k="})", "powertools_base64(b)"), "\"hello \xC3\xA9\"");
  EXPECT_EQ(text(R"({"b":"H4sIAAAAAAACA6tWyslPdy/KLy1QslJKV9JRylOyMtQzqAUAR8w8AxgAAAA="})",
                 "powertools_json(powertools_base64_gzip(b)).n"),
            "1");
  EXPECT_EQ(text(R"({"l":[1,2.5]})", "sum(l)"), "3.5");
  EXPECT_EQ(text(R"({"l":[2,2]})", "avg(l)"), "2");
  EXPECT_EQ(text(R"({"f":-1.5})", "[abs(f), ceil(f), floor(f)]"), "[1.5,-1,-2]");
  EXPECT_EQ(text(R"({"o":{"b":1.0,"a":"x"}})", "to_string(o)"), R"("{\"a\":\"x\",\"b\":1}")");
  EXPECT_EQ(text(R"({"s":"1.50"})", "to_number(s)"), "1.5");
  EXPECT_EQ(text(R"({"s":"\u00e9\ud83d\ude00"})", "length(s)"), "2");
  EXPECT_EQ(text(R"({"l":[{"id":"b"},{"id":"a"}]})", "sort_by(l, &id)[*].id"), R"(["a","b"])");
  EXPECT_EQ(text(R"({"l":["b","a"]})", "sort(l)"), R"(["a","b"])");
}

TEST(NativeKeys, OneDeriverForManyThreads) {
  const KeyDeriver deriver({.scope = "s", .expression = "powertools_json(body).id", .fingerprint = "items[*].n"});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string id = std::to_string(i);
        const Derived d = deriver.derive("{\"body\":\"{\\\"id\\\":" + id + "}\",\"items\":[{\"n\":" + id + "}]}");
        if (d.key_text != id || d.fingerprint_text != "[" + id + "]") ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace native_test
}  // namespace once::keys
