// The file of `once proxy`: what is read, and where it says that something is wrong.
#include "settings/proxy_file.hpp"
#include "output/nearest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "settings/proxy_check.hpp"

namespace once::cli {
namespace proxy_file_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const std::string least = "listen = '127.0.0.1:0'\nupstream = 'http://pay:9000'\n";  // Two lines.
const std::string one_client = "no-principal = true\n";

// As it is done by the program, without flags.
std::vector<std::string> complaints_about(const std::string& text) {
  std::vector<Complaint> complaints;
  const ProxyFile file = parse_proxy_file("p.toml", text, complaints);
  // What they are about is something else.
  if (file.read)
    settle(merged({{"no-principal", {.words = {"true"}, .place = {}}}}, file.settings), file.routes, complaints);
  std::vector<std::string> texts;
  for (const Complaint& complaint : complaints) texts.push_back(to_string(complaint));
  return texts;
}

ProxyFile read(const std::string& text) {
  std::vector<Complaint> complaints;
  ProxyFile file = parse_proxy_file("p.toml", text, complaints);
  settle(file.settings, file.routes, complaints);
  for (const Complaint& complaint : complaints) ADD_FAILURE() << to_string(complaint);
  return file;
}

ProxySettings settled(const std::string& text) {
  std::vector<Complaint> complaints;
  const ProxyFile file = read(text);
  return settle(file.settings, file.routes, complaints);
}

TEST(ProxyFile, HasWhatTheFlagsHave) {
  const ProxySettings settings = settled(least + one_client + R"(
lease = "5m"                    # a text,
body-limit = 65536              # which may be a whole number,
optional-key = true
methods = ["POST", 'PUT']
fate = [
  "503=release",
  "500,501=ambiguous",
]
operation = "charge"            # --route
)");
  const http::Options& rules = settings.rules.otherwise;
  EXPECT_EQ(rules.policy->lease, Millis{300'000});
  EXPECT_EQ(rules.policy->on_missing_key, OnMissingKey::run_unprotected);
  EXPECT_EQ(rules.max_body_bytes, 65536U);
  EXPECT_THAT(rules.methods, ElementsAre("POST", "PUT"));
  EXPECT_EQ(rules.fates.size(), 3U);
  EXPECT_EQ(rules.route, "charge");
}

TEST(ProxyFile, FlagsOverruleIt) {
  Given flags;
  flags["lease"].words = {"1m"};
  std::vector<Complaint> complaints;
  const Given file = read(least + one_client + "lease = '5m'\nretention = '1h'\n").settings;
  const http::Options rules = settle(merged(file, flags), {}, complaints).rules.otherwise;
  EXPECT_EQ(rules.policy->lease, Millis{60'000});
  EXPECT_EQ(rules.policy->retention, Millis{3'600'000});
}

TEST(ProxyFile, EveryComplaintHasItsPlaceAndTheyComeAtOnce) {
  EXPECT_THAT(complaints_about(least + "  lease = true\n"
                                       "threads  =  500\n"
                                       "leese = '5m'\n"
                                       "methods = ['POST', 5, false]\n"
                                       "optional-key = 'yes'\n"
                                       "scope = 5.5\n"
                                       "retention = '1 day'\n"),
              UnorderedElementsAre("p.toml:3:11: lease must be a string, as in \"30s\", not a boolean",
                                   "p.toml:4:13: threads: threads must be at most 256",
                                   "p.toml:5:1: unknown setting 'leese': did you mean 'lease'?",
                                   "p.toml:6:23: methods must be an array of strings, not a boolean",
                                   "p.toml:7:16: optional-key must be true or false, not a string",
                                   "p.toml:8:9: scope must be a string, not a number with a point",
                                   StartsWith("p.toml:9:13: retention is '1 day'; write a whole number and a unit")));
  EXPECT_THAT(complaints_about("listen = '127.0.0.1:0'\n"), ElementsAre(StartsWith("--upstream is required")));
  // Where the value in the array begins.
  EXPECT_THAT(complaints_about(least + "fingerprint-header = ['e', 5.5]\n"), ElementsAre(StartsWith("p.toml:3:28: ")));
}

TEST(ProxyFile, UnknownNames) {
  const auto complaint = [](const std::string& line) { return complaints_about(least + line + "\n").at(0); };
  const std::string there_is_no = "p.toml:3:1: unknown setting ";
  EXPECT_EQ(complaint("idle_timeout = '5s'"), there_is_no + "'idle_timeout': did you mean 'idle-timeout'?");
  EXPECT_EQ(complaint("Lease = '5s'"), there_is_no + "'Lease': did you mean 'lease'?");
  EXPECT_EQ(complaint("key_headr = 'X'"), there_is_no + "'key_headr': did you mean 'key-header'?");
  EXPECT_EQ(complaint("completely-else = 1"), there_is_no + "'completely-else'");
  EXPECT_EQ(complaint("[timeouts]\nidle = '5s'"), "p.toml:3:2: unknown setting 'timeouts'");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), {"lease"}), "");
}

TEST(ProxyFile, WhatIsNoToml) {
  EXPECT_THAT(complaints_about("methods = ['POST', }"),
              ElementsAre("p.toml: the file is not TOML: a bracket or a comma stands in place of a value"));
  EXPECT_THAT(complaints_about("listen = '127.0.0.1:0\nx"), ElementsAre(StartsWith("p.toml:1:22: ")));
  EXPECT_THAT(complaints_about(least + "lease = '5m'\nlease = '6m'\n"), ElementsAre(StartsWith("p.toml:4:")));
  EXPECT_THAT(complaints_about("listen = '\xff'\n"), ElementsAre(StartsWith("p.toml:1:")));
  EXPECT_THAT(complaints_about(std::string(2'000'000, '\n')),
              ElementsAre("p.toml: the file is larger than 1 MiB, the limit for settings"));
}

// The parser calls itself for each of them, and some of its versions have no limit.
TEST(ProxyFile, WhatGoesDeepIsRefusedBeforeItIsParsed) {
  const auto deep = [](const std::string& text) { return complaints_about(text).at(0); };
  const std::string too_deep = "more than 16 nested brackets or dots";
  const std::string brackets(1'000'000, '[');
  EXPECT_EQ(deep("a = " + brackets), "p.toml:1:1: " + too_deep);
  EXPECT_EQ(deep("\n\na = ['x', # ]]]\n \"]]\\\"]]\", '''\n]]''', " + brackets), "p.toml:5:1: " + too_deep);
  std::string inner = "x = 1";
  for (int i = 0; i < 100; ++i) inner = "a = { " + inner + " }";
  EXPECT_EQ(deep(inner), "p.toml:1:1: " + too_deep);
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  EXPECT_EQ(deep(dotted + " = 1"), "p.toml:1:1: " + too_deep);
  EXPECT_EQ(deep("[" + dotted + "]"), "p.toml:1:1: " + too_deep);
  EXPECT_EQ(deep("\n\u034B = 1"), "p.toml:2:1: a character that is not ASCII: write it in quotes, as in \"\\u00E9\"");
  EXPECT_EQ(deep("# \u034B\na = '#' # \u034B\nb = '# \u034B'"),
            "p.toml:3:1: a character that is not ASCII: write it in quotes, as in \"\\u00E9\"");
  // Quotes and comments may have as many as they like.
  EXPECT_THAT(complaints_about(least + "key-field = '" + std::string(40, '.') + "' # " + brackets),
              ElementsAre(StartsWith("p.toml:3:13: key-field")));
  EXPECT_THAT(complaints_about("# Zahlungen \u00FC\n" + least + "# \u4E2D\u6587"), IsEmpty());
  EXPECT_THAT(complaints_about(least + "# " + brackets + "\nscope = \"" + std::string(40, '[') + "\"\n"), IsEmpty());
}

TEST(ProxyFile, RoutesHaveRulesOfTheirOwnAndTheOthersFromOutside) {
  const http::Routes rules = settled(least + R"(
lease = "5m"
optional-key = true
fate = ["503=release"]
no-principal = true

[[route]]
path = "/health"
protect = false

[[route]]
path = "/orders/{id}/pay"
methods = ["PUT"]
lease = "10m"
optional-key = false
principal-header = "Authorization"
fate = ["500=ambiguous"]
operation = "pay"
)")
                                 .rules;
  ASSERT_EQ(rules.routes.size(), 2U);
  EXPECT_TRUE(rules.otherwise.protect);
  const http::Options& health = rules.routes[0].options;
  EXPECT_EQ(rules.routes[0].path, "/health");
  EXPECT_FALSE(health.protect);
  EXPECT_EQ(health.policy->lease, Millis{300'000});
  EXPECT_EQ(health.principal, http::Principal::shared());
  const http::Options& pay = rules.routes[1].options;
  EXPECT_TRUE(pay.protect);
  EXPECT_THAT(pay.methods, ElementsAre("PUT"));
  EXPECT_EQ(pay.policy->lease, Millis{600'000});
  EXPECT_EQ(pay.policy->on_missing_key, OnMissingKey::refuse);
  EXPECT_EQ(pay.principal, http::Principal::header("Authorization"));
  EXPECT_EQ(pay.fates, (std::map<unsigned, http::Fate>{{500, http::Fate::ambiguous}}));
  EXPECT_EQ(pay.route, "pay");
  EXPECT_EQ(rules.otherwise.route, "");
}

TEST(ProxyFile, WhatIsWrongWithRoutes) {
  EXPECT_THAT(complaints_about(least + "lease = '1'\n"
                                       "[[route]]\n"
                                       "path = '/a/*'\n"
                                       "threads = 4\n"
                                       "leese = '5m'\n"
                                       "retention = 5.5\n"
                                       "[[route]]\n"
                                       "lease = '5m'\n"
                                       "[[route]]\n"
                                       "path = '/{x}/b'\n"
                                       "[[route]]\n"
                                       "path = 'c'\n"
                                       "[[route]]\n"
                                       "path = 5\n"
                                       "[[route]]\n"
                                       "path = '/A/*'\n"
                                       "body-limit = '2GiB'\n"),
              UnorderedElementsAre(StartsWith("p.toml:3:9: lease is '1'"),
                                   "p.toml:6:1: threads is a setting of the whole proxy, not of a route",
                                   "p.toml:7:1: unknown setting 'leese': did you mean 'lease'?",
                                   StartsWith("p.toml:8:13: retention must be a string"),
                                   "p.toml:9:1: a route needs a path, as in path = \"/v1/*\"",
                                   StartsWith("p.toml:12:8: the paths '/{x}/b' and '/a/*' both match /a/b"),
                                   StartsWith("p.toml:14:8: the path 'c' must begin with a slash"),
                                   "p.toml:16:8: path must be a string, as in \"/v1/*\", not a whole number",
                                   StartsWith("p.toml:18:8: the path"), "p.toml:19:14: body-limit must be 1 to 1GiB"));
  for (const char* const text : {"route = 'pay'\n", "route = ['pay']\n", "[route]\npath = '/'\n"}) {
    EXPECT_THAT(complaints_about(least + text), ElementsAre(HasSubstr("routes are tables, each under [[route]]")))
        << text;
  }
}

TEST(ProxyCheck, WhatIsPrintedIsAFileWithTheSameEffect) {
  const ProxyFile file = read(least + one_client +
                              "methods = ['PUT']\noperation = 'a\"b\\\\c'\nignore-body = true\nthreads = 3\n"
                              "[[route]]\npath = '/x'\nprotect = false\n[[route]]\npath = '/{y}'\nwait = '2s'\n");
  const std::string text = settings_text(file.settings, file.routes);
  EXPECT_THAT(text, HasSubstr("retention = \"24h\"\n"));
  EXPECT_THAT(text, HasSubstr("\n[[route]]\npath = \"/{y}\"\nwait = \"2s\"\n"));
  const ProxyFile again = read(text);
  EXPECT_EQ(settings_text(again.settings, again.routes), text);
}

}  // namespace proxy_file_test
}  // namespace once::cli
