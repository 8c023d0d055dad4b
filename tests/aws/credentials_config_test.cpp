// The shared config and credentials files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "aws/shared_config.hpp"
#include "credentials_fake.hpp"

namespace once::aws {
namespace credentials_config_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SharedConfig, ReadsProfilesOfBothFiles) {
  const auto config = SharedConfig::parse(
      "[default]\nregion = eu-central-1\naws_access_key_id = CONFIG\n\n[profile dev]\nregion=us-west-2\n",
      "[default]\naws_access_key_id = CREDENTIALS\n[dev]\naws_secret_access_key = a/b+c=\n[only here]\nregion = x\n");
  EXPECT_EQ(config.get("default", "region"), "eu-central-1");
  EXPECT_EQ(config.get("default", "aws_access_key_id"), "CREDENTIALS") << "the credentials file wins";
  EXPECT_EQ(config.get("dev", "region"), "us-west-2");
  EXPECT_EQ(config.get("dev", "aws_secret_access_key"), "a/b+c=");
  EXPECT_EQ(config.get("only here", "region"), "x");
  EXPECT_EQ(config.get("nobody", "region"), "");
  EXPECT_EQ(config.profile("nobody"), nullptr);
}

TEST(SharedConfig, TellsSectionsOfTheConfigFileApart) {
  const auto config = SharedConfig::parse(
      "[dev]\nregion = not-a-profile\n[sso-session dev]\nsso_region = x\n[profilex]\na = b\n"
      "[profile \"two words\"]\nregion = a\n[ profile\ttabbed ] # and a comment\nregion = b\n[plugins]\nc = d\n",
      "[profile odd]\nregion = by its whole name\n");
  EXPECT_EQ(config.profile("dev"), nullptr);
  EXPECT_EQ(config.profile("x"), nullptr);
  EXPECT_EQ(config.profile("plugins"), nullptr);
  EXPECT_EQ(config.get("two words", "region"), "a");
  EXPECT_EQ(config.get("tabbed", "region"), "b");
  EXPECT_EQ(config.profile("odd"), nullptr);
  EXPECT_EQ(config.get("profile odd", "region"), "by its whole name");
}

TEST(SharedConfig, PrefersProfileDefault) {
  for (const char* text : {"[default]\nregion = a\noutput = json\n[profile default]\nregion = b\n",
                           "[profile default]\nregion = b\n[default]\nregion = a\noutput = json\n"}) {
    const auto config = SharedConfig::parse(text, "");
    EXPECT_EQ(config.get("default", "region"), "b");
    EXPECT_EQ(config.get("default", "output"), "");
  }
}

TEST(SharedConfig, PassesOverCommentsAndBlankLines) {
  const auto config = SharedConfig::parse(
      "\xEF\xBB\xBF# first\r\n; second\r\n\r\n[default] ; third\r\nREGION = eu-west-1 # Ireland\r\n"
      "  # indented\r\noutput = json ; said\r\npassword = a#b;c\r\nempty =\r\nnothing = # here\r\n",
      "");
  EXPECT_EQ(config.get("default", "region"), "eu-west-1");
  EXPECT_EQ(config.get("default", "output"), "json");
  EXPECT_EQ(config.get("default", "password"), "a#b;c") << "a mark without a blank before it is part of the value";
  EXPECT_EQ(config.get("default", "empty"), "");
  EXPECT_EQ(config.get("default", "nothing"), "");
}

TEST(SharedConfig, KeepsNestedSettingsApart) {
  const auto config = SharedConfig::parse(
      "[default]\ns3 =\n  max_concurrent_requests = 20\n  region = nested\n\tendpoint_url = nested\nregion = real\n"
      "credential_process = run\n  --with this\noutput = json\n",
      "");
  EXPECT_EQ(config.get("default", "region"), "real");
  EXPECT_EQ(config.get("default", "endpoint_url"), "");
  EXPECT_EQ(config.get("default", "s3.max_concurrent_requests"), "20");
  EXPECT_EQ(config.get("default", "credential_process"), "run\n--with this");
  EXPECT_EQ(config.get("default", "output"), "json");
  // A file that is indented throughout has no nested settings.
  EXPECT_EQ(SharedConfig::parse("[default]\n  region = a\n  output = b\n", "").get("default", "output"), "b");
}

TEST(SharedConfig, FindsEndpointsOfServices) {
  const auto config = SharedConfig::parse(
      "[profile a]\nendpoint_url = http://all\nservices = mine\n[profile b]\nservices = none\n"
      "[services mine]\ndynamodb =\n  endpoint_url = http://one\ns3 =\n  endpoint_url =\n",
      "");
  EXPECT_EQ(config.endpoint_url("a", "dynamodb"), "http://one");
  EXPECT_EQ(config.endpoint_url("a", "s3"), "http://all");
  EXPECT_EQ(config.endpoint_url("a", "sts"), "http://all");
  EXPECT_EQ(config.endpoint_url("b", "dynamodb"), "");
  EXPECT_EQ(config.endpoint_url("c", "dynamodb"), "");
}

TEST(SharedConfig, NamesTheLineThatIsWrongAndNotWhatItSays) {
  for (const auto& [text, line] : std::vector<std::pair<std::string, int>>{
           {"aws_secret_access_key = SECRET\n", 1},
           {"[default\naws_secret_access_key = SECRET\n", 1},
           {"[default]\n\nSECRET\n", 3},
           {"[default]\n= SECRET\n", 2},
           {"[default]\ns3 =\n  SECRET\n", 3},
       }) {
    try {
      static_cast<void>(SharedConfig::parse("", text, "c", "/home/me/.aws/credentials"));
      FAIL() << text;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("/home/me/.aws/credentials, line " + std::to_string(line) + ":"),
                                      Not(HasSubstr("SECRET"))));
    }
  }
}

TEST(SharedConfig, ReadsTheFilesThatTheEnvironmentNames) {
  const Folder folder;
  const std::string mine = folder.write("mine", "[profile a]\nregion = from mine\n");
  std::filesystem::create_directory(folder.path() + "/.aws");
  folder.write(".aws/config", "[profile a]\nregion = from home\n");
  folder.write(".aws/credentials", "[a]\naws_access_key_id = K\n");

  const auto home = SharedConfig::read(environment_of({{"HOME", folder.path()}}));
  EXPECT_EQ(home.get("a", "region"), "from home");
  EXPECT_EQ(home.get("a", "aws_access_key_id"), "K");
  EXPECT_EQ(home.places(), folder.path() + "/.aws/config and " + folder.path() + "/.aws/credentials");

  const auto named = SharedConfig::read(environment_of(
      {{"HOME", folder.path()}, {"AWS_CONFIG_FILE", mine}, {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"}}));
  EXPECT_EQ(named.get("a", "region"), "from mine");
  EXPECT_EQ(named.get("a", "aws_access_key_id"), "");

  const auto tilde = SharedConfig::read(environment_of({{"HOME", folder.path()}, {"AWS_CONFIG_FILE", "~/mine"}}));
  EXPECT_EQ(tilde.get("a", "region"), "from mine");
}

TEST(SharedConfig, TakesMissingFilesForEmptyOnes) {
  EXPECT_THAT(SharedConfig::read(environment_of({})).places(), HasSubstr("HOME is not set"));
  EXPECT_EQ(SharedConfig::read(environment_of({{"HOME", "/nowhere"}, {"AWS_CONFIG_FILE", "/nowhere/at/all"}}))
                .profile("default"),
            nullptr);
}

TEST(SharedConfig, RefusesWhatItCannotRead) {
  const Folder folder;
  const std::string large = folder.write("large", std::string((1U << 20U) + 1, '#'));
  for (const std::string& file : {large, folder.path()}) {
    try {
      static_cast<void>(SharedConfig::read(environment_of({{"AWS_CONFIG_FILE", file}})));
      FAIL() << file;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr("cannot read " + file));
    }
  }
}

TEST(ProfileName, IsDefaultUnlessTheEnvironmentSaysOtherwise) {
  EXPECT_EQ(profile_name(environment_of({})), "default");
  EXPECT_EQ(profile_name(environment_of({{"AWS_PROFILE", ""}})), "default");
  EXPECT_EQ(profile_name(environment_of({{"AWS_PROFILE", "dev"}})), "dev");
}

}  // namespace credentials_config_test
}  // namespace once::aws
