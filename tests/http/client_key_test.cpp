// Keys as clients send them.
#include "frontends/http/client_key.hpp"

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace once::http {

using ::testing::HasSubstr;

void PrintTo(ClientKey::Kind kind, std::ostream* out) {
  static constexpr const char* names[] = {"found", "missing", "invalid", "differ"};
  *out << names[static_cast<std::size_t>(kind)];
}

namespace client_key_test {

using Kind = ClientKey::Kind;

ClientKey read(const std::vector<std::string_view>& lines) { return key_from_lines(lines); }

struct Case {
  std::vector<std::string_view> lines;
  Kind kind = Kind::found;
  std::string_view key = {};
};

void expect(const Case& c) {
  SCOPED_TRACE(::testing::PrintToString(c.lines));
  const ClientKey got = read(c.lines);
  EXPECT_EQ(got.kind, c.kind) << got.why;
  EXPECT_EQ(got.key, c.key);
  EXPECT_EQ(got.why.empty(), c.kind != Kind::invalid);
}

TEST(ClientKey, QuotedAndBareAreTheSameKey) {
  for (const Case& c : std::vector<Case>{
           // The draft's example, and what Stripe's clients send.
           {{"\"8e03978e-40d5-43e8-bc93-6894a57f9324\""}, Kind::found, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
           {{"8e03978e-40d5-43e8-bc93-6894a57f9324"}, Kind::found, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
           {{"stripe-node-retry-b2c0e5d6"}, Kind::found, "stripe-node-retry-b2c0e5d6"},
           {{"  \"a\"\t"}, Kind::found, "a"},
           {{"\t a \t"}, Kind::found, "a"},
           {{R"("a \"b\" \\ c")"}, Kind::found, R"(a "b" \ c)"},
           {{R"(back\slash)"}, Kind::found, R"(back\slash)"},
           {{"two words"}, Kind::found, "two words"},
           {{"\" padded \""}, Kind::found, " padded "},
           {{"\"a,b\""}, Kind::found, "a,b"},
           {{"\"a;b\""}, Kind::found, "a;b"},
           {{":YWJj:"}, Kind::found, ":YWJj:"},
           {{"?1"}, Kind::found, "?1"},
           {{"42"}, Kind::found, "42"},
           {{"a;b=c"}, Kind::found, "a;b=c"},  // Only a quoted key has parameters.
           {{"!#$%&'()*+-./:<=>?@[]^_`{|}~"}, Kind::found, "!#$%&'()*+-./:<=>?@[]^_`{|}~"},
       }) {
    expect(c);
  }
}

TEST(ClientKey, ParametersSayNothingAboutTheKey) {
  for (const std::string_view line : {R"("k";v=1)", R"("k";a)", R"("k"; a=b;*c="x \" ;,y" )",
                                      R"("k";a=:YQ==:;b=?1;c=-1.5)", R"("k";a-b_c.d*e=tok/en)"}) {
    expect({{line}, Kind::found, "k"});
  }
  for (const std::string_view line : {R"("k";)", R"("k";A=1)", R"("k";a=)", R"("k";1=2)", R"("k";a="x)", R"("k" ;a)",
                                      R"("k"a)", R"("k""l")", R"("k" l)", R"("k";a=b c)"}) {
    expect({{line}, Kind::invalid});
  }
}

TEST(ClientKey, SeveralLinesAreOneKeyIfTheyAreTheSame) {
  for (const Case& c : std::vector<Case>{{{"a", "a"}, Kind::found, "a"},
                                         {{"a", "\"a\"", "\"a\";p"}, Kind::found, "a"},
                                         {{"a, a"}, Kind::found, "a"},  // As an intermediary joins two lines.
                                         {{"\"a\", \"a\""}, Kind::found, "a"},
                                         {{"\"a,b\" , \"a,b\""}, Kind::found, "a,b"},
                                         {{"a", "b"}, Kind::differ},
                                         {{"a,b"}, Kind::differ},
                                         {{"\"a\", \"b\""}, Kind::differ},
                                         {{"a", "A"}, Kind::differ},
                                         {{"a", "a", "b", "a"}, Kind::differ}}) {
    expect(c);
  }
}

TEST(ClientKey, WhatIsNoKeyIsRefusedAndSaysWhy) {
  expect({{}, Kind::missing});
  struct Wrong {
    std::string_view line;
    const char* says;
  };
  for (const Wrong& w :
       {Wrong{"", "empty"}, Wrong{"  \t", "empty"}, Wrong{R"("")", "empty"}, Wrong{"a,", "empty"}, Wrong{",a", "empty"},
        Wrong{"a,,a", "empty"}, Wrong{R"("" , "a")", "empty"}, Wrong{"a\tb", "printable"},
        Wrong{"caf\xC3\xA9", "printable"}, Wrong{"\"caf\xC3\xA9\"", "printable"},
        Wrong{std::string_view("a\0b", 3), "printable"}, Wrong{"a\x7F", "printable"}, Wrong{"a\nb", "printable"},
        Wrong{"\"abc", "quotation marks"}, Wrong{"abc\"", "quotation marks"}, Wrong{"a\"b", "quotation marks"},
        Wrong{R"("a\b")", "quotation marks"}, Wrong{R"("a\)", "quotation marks"}, Wrong{"\"", "quotation marks"}}) {
    SCOPED_TRACE(w.line);
    const ClientKey got = read({w.line});
    EXPECT_EQ(got.kind, Kind::invalid);
    EXPECT_THAT(std::string(got.why), HasSubstr(w.says));
  }
  EXPECT_EQ(read({"a", "a\tb"}).kind, Kind::invalid);
  EXPECT_EQ(read({"a", "b", ""}).kind, Kind::invalid) << "an invalid key counts before two different ones";
}

TEST(ClientKey, TextsOfMissingValuesAreRefused) {
  const std::vector<std::string> bugs{"undefined",
                                      "null",
                                      "nil",
                                      "none",
                                      "nan",
                                      "true",
                                      "false",
                                      "[object Object]",
                                      "00000000-0000-0000-0000-000000000000"};
  for (const std::string& bug : bugs) {
    std::string capitals = bug;
    for (char& c : capitals) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    for (const std::string& line : {bug, capitals, "\"" + bug + "\"", " " + bug + "\t", "\"" + bug + "\";v=1"}) {
      const ClientKey got = read({line});
      EXPECT_EQ(got.kind, Kind::invalid) << line;
      EXPECT_THAT(std::string(got.why), HasSubstr("missing value")) << line;
    }
    EXPECT_EQ(key_from_json("\"" + bug + "\"").kind, Kind::invalid) << bug;
    EXPECT_EQ(key_from_text(bug).kind, Kind::invalid) << bug;
    // Only exactly these.
    for (const std::string& key : {bug + "1", "x" + bug, bug + " " + bug}) {
      const std::string quoted = "\"" + key + "\"";
      expect({{quoted}, Kind::found, key});
    }
  }
  for (const std::string_view key :
       {"0", "nul", "undefine", "[object Promise]", "00000000-0000-0000-0000-000000000001"}) {
    expect({{key}, Kind::found, key});
  }
}

TEST(ClientKey, FromSeveralValues) {
  EXPECT_EQ(key_from_values({}).kind, Kind::missing);
  EXPECT_EQ(key_from_values({"a", "a"}).key, "a");
  EXPECT_EQ(key_from_values({"a", "b"}).kind, Kind::differ);
  EXPECT_EQ(key_from_values({"a", ""}).kind, Kind::invalid);
  EXPECT_EQ(key_from_values({"a,b"}).key, "a,b") << "no list";
  EXPECT_EQ(key_from_values({"a\"b"}).key, "a\"b") << "no quotes";
}

TEST(ClientKey, TheLongestKeyHas255Characters) {
  const std::string longest(255, 'k');
  const std::string too_long(256, 'k');
  expect({{longest}, Kind::found, longest});
  EXPECT_THAT(std::string(read({too_long}).why), HasSubstr("255"));
  const std::string quoted = "\"" + longest + "\"";
  expect({{quoted}, Kind::found, longest});
  std::string escapes = "\"";
  for (int i = 0; i < 255; ++i) escapes += "\\\\";
  escapes += "\"";
  expect({{escapes}, Kind::found, std::string(255, '\\')});
  EXPECT_EQ(read({"\"" + too_long + "\""}).kind, Kind::invalid);
}

TEST(ClientKey, FromCanonicalJson) {
  struct FromJson {
    std::string_view json;
    Kind kind;
    std::string_view key;
  };
  for (const FromJson& c : std::vector<FromJson>{{R"("order-17")", Kind::found, "order-17"},
                                                 {R"("a\"b\\c")", Kind::found, R"(a"b\c)"},
                                                 {"17", Kind::found, "17"},
                                                 {"-1.5", Kind::found, "-1.5"},
                                                 {R"("")", Kind::invalid, ""},
                                                 {R"("a\nb")", Kind::invalid, ""},
                                                 {R"("a\u0000b")", Kind::invalid, ""},
                                                 {"\"caf\xC3\xA9\"", Kind::invalid, ""},
                                                 {"true", Kind::invalid, ""},
                                                 {R"({"a":1})", Kind::invalid, ""},
                                                 {R"(["a"])", Kind::invalid, ""},
                                                 {"", Kind::invalid, ""}}) {
    SCOPED_TRACE(c.json);
    const ClientKey got = key_from_json(c.json);
    EXPECT_EQ(got.kind, c.kind) << got.why;
    EXPECT_EQ(got.key, c.key);
  }
}

}  // namespace client_key_test
}  // namespace once::http
