// What the recorded vectors do not reach: .NET, hashes by name, prefixes, and where a dialect is stricter than the
// library it follows.
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <vector>

namespace once::keys {
namespace dialects_test {

constexpr Dialect python = Dialect::powertools_python;
constexpr Dialect typescript = Dialect::powertools_typescript;
constexpr Dialect java = Dialect::powertools_java;
constexpr Dialect dotnet = Dialect::powertools_dotnet;

Derived derive(Dialect dialect, const std::string& event, const std::string& expression = "") {
  return KeyDeriver({.scope = "f", .expression = expression, .dialect = dialect}).derive(event);
}

bool fails(Dialect dialect, const std::string& event, const std::string& expression = "") {
  try {
    static_cast<void>(derive(dialect, event, expression));
  } catch (const Exception& error) {
    return error.kind() == ErrorKind::misuse;
  }
  return false;
}

TEST(Dialects, Names) {
  for (const Dialect d : {Dialect::native, python, typescript, java, dotnet}) EXPECT_EQ(dialect_from(to_string(d)), d);
  EXPECT_EQ(to_string(python), "powertools-python");
  EXPECT_FALSE(dialect_from("powertools-ruby"));
  EXPECT_FALSE(dialect_from(""));
}

// The example that POWERTOOLS users compare first: one event, one id for each library.
TEST(Dialects, OneEvent) {
  const std::string event = R"({"a":1,"b":"x"})";
  EXPECT_EQ(derive(python, event).key->stored(), "f#4f5f4713d180fb0cb1041f7caf4faaaa");
  EXPECT_EQ(derive(typescript, event).key->stored(), "f#dabOS+BPUHUxYEe3WpjY6w==");
  EXPECT_EQ(derive(java, event).key->stored(), "f#75a6ce4be04f5075316047b75a98d8eb");
  EXPECT_EQ(derive(dotnet, event).key->stored(), "f#75a6ce4be04f5075316047b75a98d8eb");
}

TEST(Dialects, ScopeIsTakenAsItIs) {
  EXPECT_EQ(KeyDeriver({.scope = "a#b%", .dialect = python}).derive("1").key->stored(),
            "a#b%#c4ca4238a0b923820dcc509a6f75849b");
  EXPECT_EQ(KeyDeriver({.scope = "", .dialect = typescript}).derive("1").key->stored(), "#xMpCOKC5I4INzFCab3WEmw==");
}

TEST(Dialects, Prefixes) {
  EXPECT_EQ(powertools_scope(python, "my-func", "app.handler"), "my-func.app.handler");
  EXPECT_EQ(powertools_scope(python, std::nullopt, "app.handler"), "test-func.app.handler");
  EXPECT_EQ(powertools_scope(python, "my-func", "app.handler", " p "), " p ");
  EXPECT_EQ(powertools_scope(typescript, "my-func", ""), "my-func");
  EXPECT_EQ(powertools_scope(typescript, std::nullopt, ""), "");
  EXPECT_EQ(powertools_scope(typescript, "my-func", " charge "), "my-func.charge");
  EXPECT_EQ(powertools_scope(typescript, "my-func", "", " p\n"), "p");
  EXPECT_EQ(powertools_scope(typescript, "my-func", "", "  "), "my-func");
  EXPECT_EQ(powertools_scope(java, "my-func", "handleRequest"), "my-func.handleRequest");
  EXPECT_EQ(powertools_scope(java, std::nullopt, "handleRequest"), "testFunction.handleRequest");
  EXPECT_THROW(powertools_scope(java, "my-func", "handleRequest", "p"), Exception);
  EXPECT_EQ(powertools_scope(dotnet, "my-func", "Handle"), "my-func.Handle");
  EXPECT_EQ(powertools_scope(dotnet, std::nullopt, "Handle", " p"), " p");
  EXPECT_THROW(powertools_scope(Dialect::native, "my-func", "x"), Exception);
}

TEST(Dialects, HashesByName) {
  const auto name = [](Dialect dialect, const std::string& hash) {
    return std::string(KeyDeriver({.scope = "f", .hash = hash, .dialect = dialect}).derive("\"x\"").key->name());
  };
  EXPECT_EQ(name(python, "sha256").size(), 64U);
  EXPECT_EQ(name(python, "blake2b").size(), 128U);
  EXPECT_EQ(name(python, "sha3_256").size(), 64U);
  for (const std::string hash : {"SHA256", "shake_128", "nope", "sha-256"})
    EXPECT_THROW(name(python, hash), Exception) << hash;

  EXPECT_EQ(name(typescript, "sha256"), name(typescript, "SHA256"));
  EXPECT_EQ(name(typescript, "RSA-SHA256"), name(typescript, "sha256"));
  EXPECT_EQ(name(typescript, "ripemd160"), name(typescript, "RMD160"));
  EXPECT_EQ(name(typescript, "sha512").size(), 88U);
  for (const std::string hash : {"nope", "shake256"}) EXPECT_THROW(name(typescript, hash), Exception) << hash;

  EXPECT_EQ(name(java, "SHA-256"), name(java, "sha256"));
  EXPECT_EQ(name(java, "sha-512").size(), 128U);
  EXPECT_EQ(name(java, "no such thing"), name(java, "MD5"));

  EXPECT_EQ(name(dotnet, "md5"), name(dotnet, ""));
  EXPECT_THROW(name(dotnet, "sha256"), Exception);
}

TEST(Dialects, DigestTexts) {
  const std::string zero_first = std::string("\x00\x0a", 2) + std::string(30, '\x11');
  EXPECT_EQ(digest_text(python, zero_first).size(), 64U);
  EXPECT_EQ(digest_text(java, zero_first), "a" + std::string(60, '1'));
  EXPECT_EQ(digest_text(java, std::string(16, '\0')), std::string(32, '0'));
  EXPECT_EQ(digest_text(typescript, std::string("\xfb\xff", 2)), "+/8=");
  for (const Dialect dialect : {Dialect::native, python, typescript, java, dotnet}) {
    for (const std::size_t size : {16U, 20U, 32U, 48U, 64U}) {
      for (const char fill : {'\0', '\x01', '\xfe'}) {
        const std::string digest = std::string("\0", 1) + std::string(size - 1, fill);
        const auto back = digest_from_text(dialect, digest_text(dialect, digest));
        ASSERT_TRUE(back);
        // Java's text of nothing but zeros does not say how many.
        const bool lost = dialect == java && fill == '\0';
        EXPECT_TRUE(lost || back->bytes() == digest) << to_string(dialect) << size;
      }
    }
    for (const std::string text : {"", "x y", "zz", "AB", "#", "===="}) {
      EXPECT_FALSE(digest_from_text(dialect, text)) << to_string(dialect) << " " << text;
    }
  }
}

TEST(Dialects, FailuresThatTypescriptHidesAreErrors) {
  EXPECT_TRUE(fails(typescript, R"({"body":"{x"})", "powertools_json(body)"));
  EXPECT_TRUE(fails(typescript, R"({"body":""})", "powertools_json(body).id"));
  EXPECT_TRUE(fails(typescript, R"({"b":"aGVsbG8"})", "powertools_base64(b)"));
  EXPECT_TRUE(fails(typescript, R"({"b":"cGxhaW4="})", "powertools_base64_gzip(b)"));
}

TEST(Dialects, TypeErrorsThatJavaHidesAreErrors) {
  EXPECT_TRUE(fails(java, "{}", "powertools_json(body)"));
  EXPECT_TRUE(fails(java, R"({"body":"{x"})", "powertools_json(body)"));
}

TEST(Dialects, Base64AsEachLanguageReadsIt) {
  const auto text = [](Dialect dialect, const std::string& encoded) {
    return derive(dialect, "{\"b\":\"" + encoded + "\"}", "powertools_base64(b)").key_text;
  };
  EXPECT_EQ(text(python, "aGV$s\\nbG8="), "\"hello\"");
  EXPECT_EQ(text(python, "aGVsbG8=ignored"), "\"hello\"");
  EXPECT_TRUE(fails(python, R"({"b":"aGVsbG8"})", "powertools_base64(b)"));
  EXPECT_TRUE(fails(python, R"({"b":"/w=="})", "powertools_base64(b)"));
  EXPECT_EQ(text(typescript, "/w=="), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(text(typescript, "77u/YQ=="), "\"a\"") << "a byte order mark";
  EXPECT_TRUE(fails(typescript, R"({"b":"aGVs\nbG8="})", "powertools_base64(b)"));
  EXPECT_EQ(text(java, "aGVsbG8"), "hello");
  EXPECT_EQ(text(java, "aGVsbG8="), "hello");
  EXPECT_EQ(text(java, "/2E="),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_TRUE(fails(java, R"({"b":"aGVs\nbG8="})", "powertools_base64(b)"));
  EXPECT_EQ(text(dotnet, "eyJhIjog\\nMX0="), R"({"a":1})");
  EXPECT_TRUE(fails(dotnet, R"({"b":"aGVsbG8="})", "powertools_base64(b)"));
}

TEST(Dialects, GzipTextInJavaLosesItsLineEnds) {
  const std::string lines = R"({"b":"H4sIAAAAAAACA8vJzEs15MoBkkZcAFddjToMAAAA"})";  // "line1\nline2\n"
  EXPECT_EQ(derive(java, lines, "powertools_base64_gzip(b)").key_text, "line1line2");
  EXPECT_EQ(derive(python, lines, "powertools_base64_gzip(b)").key_text, "\"line1\\nline2\\n\"");
  EXPECT_EQ(derive(java, R"({"b":"cGxhaW4="})", "powertools_base64_gzip(b)").key_text, "plain");
}

// libraries/src/AWS.Lambda.Powertools.JMESPath: a member that is read by its name and holds JSON becomes that JSON.
TEST(Dialects, DotnetReadsMembersAsJson) {
  const std::string event =
      R"({"id":"123","n":123,"f":"1.0","t":"true","s":"abc","o":{"id":"123"},"l":["5"],"z":null})";
  EXPECT_EQ(derive(dotnet, event, "id").key, derive(dotnet, event, "n").key);
  EXPECT_EQ(derive(dotnet, event, "f").key_text, "1.0");
  EXPECT_EQ(derive(dotnet, event, "t").key_text, "True");
  EXPECT_EQ(derive(dotnet, event, "s").key_text, "abc");
  EXPECT_EQ(derive(dotnet, event, "o").key_text, R"({"id":"123"})") << "not what is inside of what was read";
  EXPECT_EQ(derive(dotnet, event, "o.id").key_text, "123");
  EXPECT_EQ(derive(dotnet, event, "l[0]").key_text, "5");
  EXPECT_EQ(derive(dotnet, event, "[l[0], id]").key_text, R"(["5",123])");
  const std::string body = R"({"Body":"{\"message\": \"Lambda rocks\", \"id\": 43876123454654}"})";
  EXPECT_EQ(derive(dotnet, body, "Body.id").key, derive(dotnet, body, "powertools_json(Body).id").key);
  // Missing is not missing there.
  EXPECT_EQ(derive(dotnet, event, "nothing").key->stored(), "f#d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(derive(dotnet, event, "z").key->stored(), "f#d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_THROW(static_cast<void>(
                   KeyDeriver({.scope = "f", .expression = "z", .dialect = dotnet, .require_key = true}).derive(event)),
               Exception);
  EXPECT_THROW(KeyDeriver({.scope = "f", .expression = "l[*]", .dialect = dotnet}), Exception);
}

TEST(Dialects, DotnetEscapes) {
  EXPECT_EQ(derive(dotnet, R"(["<a b='\"'>&+`/\u00e9\ud83d\ude00\u007f\b\t\n\f\r\u000b\\"])").key_text,
            R"(["\u003Ca b=\u0027\u0022\u0027\u003E\u0026\u002B\u0060/\u00E9\uD83D\uDE00\u007F\b\t\n\f\r\u000B\\"])");
  EXPECT_EQ(derive(dotnet, R"("<\u00e9>")").key_text, "<\xC3\xA9>");
  EXPECT_EQ(derive(dotnet, R"([1.50, 1E+2, true, null])").key_text, "[1.50,1E+2,true,null]");
}

TEST(Dialects, MissingWithTheSettingThatThrows) {
  const auto refuses = [](Dialect dialect, const std::string& value) {
    try {
      return !KeyDeriver({.scope = "f", .expression = "v", .dialect = dialect, .require_key = true})
                  .derive("{\"v\":" + value + "}")
                  .key;
    } catch (const Exception&) {
      return true;
    }
  };
  for (const std::string value : {"0", "false", "[0,\"\"]", "{\"a\":0.0}", "\"\"", "[]", "1e-400"}) {
    EXPECT_TRUE(refuses(typescript, value)) << value;
  }
  for (const std::string value : {"1", "\" \"", "[[]]", "{\"a\":{}}"})
    EXPECT_FALSE(refuses(typescript, value)) << value;
  EXPECT_FALSE(refuses(python, "0"));
  EXPECT_FALSE(refuses(java, "\"\""));
  EXPECT_TRUE(refuses(python, "\"\""));
  EXPECT_TRUE(refuses(python, R"({"a":null,"b":null})"));
  EXPECT_FALSE(refuses(python, R"({"a":null,"b":0})"));
}

TEST(Dialects, WhatTypescriptChangesTheEventWithIsRefused) {
  EXPECT_THROW(KeyDeriver({.scope = "f", .expression = "reverse(a)", .dialect = typescript}), Exception);
}

// As Powertools for TypeScript 2.35 has it: String.replace() with a text replaces once.
TEST(Dialects, OnlyTheFirstEscapedQuoteOfATypescriptLiteralIsOne) {
  const std::string raw = R"('it\'s \'x\'')";
  EXPECT_EQ(derive(typescript, "{}", raw).key_text, R"("it's \\'x\\'")");
  EXPECT_EQ(derive(python, "{}", raw).key_text, R"("it's 'x'")");
  EXPECT_EQ(derive(typescript, "{}", R"('x\\')").key_text, R"("x\\\\")");
}

// Only jmespath.py reads a literal that is no JSON, and only Python refuses to order a number and a string.
TEST(Dialects, WhatOnlyPythonDoes) {
  for (const Dialect dialect : {Dialect::native, typescript, java}) {
    EXPECT_THROW(KeyDeriver({.scope = "f", .expression = "`x`", .dialect = dialect}), Exception);
    EXPECT_FALSE(fails(dialect, R"({"a":1,"s":"2"})", "[a < s, a]"));
  }
  EXPECT_EQ(derive(python, "{}", "`x`").key_text, "\"x\"");
  EXPECT_TRUE(fails(python, R"({"a":1,"s":"2"})", "[a < s, a]"));
  // Nested too deep for an event is refused, and no string of brackets.
  EXPECT_TRUE(fails(python, "{}", "`" + std::string(600, '[') + std::string(600, ']') + "`"));
}

}  // namespace dialects_test
}  // namespace once::keys
