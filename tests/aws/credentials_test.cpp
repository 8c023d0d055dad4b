// Each place where credentials may be, and the order of all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "aws/credentials_search.hpp"
#include "aws/service_error.hpp"
#include "aws/signer.hpp"
#include "credentials_fake.hpp"
#include "platform/wait.hpp"

namespace once::aws {
namespace credentials_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* no_instance = "no route to host";
const std::string sts_us = "POST https://sts.us-east-1.amazonaws.com/";

std::string json_of(const std::string& key, const std::string& token_name) {
  return R"({"Code":"Success","AccessKeyId":")" + key + R"(","SecretAccessKey":"HIDDEN","Expiration":)" +
         R"("2026-01-01T06:00:00Z",")" + token_name + R"(":"TOKEN"})";
}

std::string sts_xml(const std::string& action, const std::string& key) {
  return "<" + action + "Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><" + action +
         "Result><AssumedRoleUser><Arn>arn</Arn></AssumedRoleUser><Credentials>\n  <AccessKeyId>" + key +
         "</AccessKeyId>\n  <SecretAccessKey>HIDDEN/&amp;+</SecretAccessKey>\n  <SessionToken>TOKEN==</SessionToken>\n"
         "  <Expiration>2026-01-01T01:00:00Z</Expiration></Credentials></" +
         action + "Result></" + action + "Response>";
}

class Places : public ::testing::Test {
 protected:
  Places() {
    variables_ = {{"HOME", folder_.path()}, {"AWS_REGION", "us-east-1"}};
    std::filesystem::create_directory(folder_.path() + "/.aws");
  }

  void config(std::string_view text) { folder_.write(".aws/config", text); }
  void credentials(std::string_view text) { folder_.write(".aws/credentials", text); }

  template <class Body>
  auto with_search(const Body& body) {
    const CredentialsOptions options{.profile = profile_, .environment = environment_of(variables_)};
    const CredentialsPorts ports{.http = http_, .clock = clock_, .random = nullptr};
    Search all{
        .options = options, .ports = ports, .cancellation = std::make_shared<Cancellation>(), .process_limit = limit_};
    return body(all);
  }
  Credentials look() {
    return with_search([](Search& all) { return search(all); });
  }

  // That there are none, and why. No secret may be shown.
  Error fail() {
    try {
      static_cast<void>(look());
    } catch (const Exception& error) {
      EXPECT_THAT(error.what(), Not(HasSubstr("HIDDEN")));
      EXPECT_THAT(error.what(), Not(HasSubstr("TOKEN=")));
      return error.error();
    }
    ADD_FAILURE() << "there are credentials";
    return {};
  }
  std::string misuse() {
    Error error = fail();
    EXPECT_EQ(error.kind, ErrorKind::misuse) << error.message;
    return std::move(error.message);
  }
  std::string unavailable() {
    Error error = fail();
    EXPECT_EQ(error.kind, ErrorKind::unavailable) << error.message;
    return std::move(error.message);
  }

  void no_instance_answers() {
    http_->expect("PUT http://169.254.169.254/latest/api/token", unanswered(ErrorKind::unavailable, no_instance));
  }

  const Folder folder_;
  Variables variables_;
  std::string profile_;
  Millis limit_{60'000};
  const std::shared_ptr<FakeHttp> http_ = std::make_shared<FakeHttp>();
  const std::shared_ptr<once::testing::ManualClock> clock_ = std::make_shared<once::testing::ManualClock>();
};

// ---- Environment, and all together

TEST_F(Places, TheEnvironmentComesFirst) {
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  variables_["AWS_SESSION_TOKEN"] = "TOKEN";
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/nowhere";
  variables_["AWS_PROFILE"] = "nobody";
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "ENV");
  EXPECT_EQ(found.secret_access_key, "HIDDEN");
  EXPECT_EQ(found.session_token, "TOKEN");
  EXPECT_EQ(found.expires_at, std::nullopt);
  EXPECT_EQ(found.source, "environment");
}

TEST_F(Places, HalfAnEnvironmentIsAnError) {
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  EXPECT_THAT(misuse(), HasSubstr("only one is set"));
}

TEST_F(Places, AProfileThatIsNamedComesBeforeTheEnvironment) {
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  credentials("[dev]\naws_access_key_id = DEV\naws_secret_access_key = HIDDEN\n");
  profile_ = "dev";
  EXPECT_EQ(look().access_key_id, "DEV");
  profile_ = "other";
  EXPECT_THAT(misuse(), HasSubstr("there is no profile other in " + folder_.path()));
}

TEST_F(Places, NamesAllOfThemWhenThereIsNothing) {
  no_instance_answers();
  const std::string message = misuse();
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("environment (AWS_ACCESS_KEY_ID is not set)"), HasSubstr("AWS_WEB_IDENTITY_TOKEN_FILE"),
            HasSubstr("profile default (not in " + folder_.path() + "/.aws/config and "),
            HasSubstr("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            HasSubstr("EC2 instance metadata http://169.254.169.254 (no route to host)"), HasSubstr("aws configure")));
}

TEST_F(Places, AFailureNamesWhatWasTriedBefore) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/";
  config("[default]\nregion = x\n");
  EXPECT_THAT(misuse(), AllOf(HasSubstr("http://example.com"), HasSubstr("Looked before in: environment ("),
                              HasSubstr("profile default (has no credentials in ")));
}

TEST_F(Places, KeysThatCannotBeKeysAreRefused) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"AWS_ACCESS_KEY_ID", "A HIDDEN"},
           {"AWS_ACCESS_KEY_ID", "A/HIDDEN"},
           {"AWS_SECRET_ACCESS_KEY", "HIDDEN\n"},
           {"AWS_SESSION_TOKEN", "HIDDEN\r\nX-Injected: yes"},
       }) {
    variables_["AWS_ACCESS_KEY_ID"] = "ENV";
    variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
    variables_[name] = value;
    EXPECT_THAT(misuse(), HasSubstr("copy it again")) << name;
  }
}

TEST_F(Places, StaticAndEnvironmentCredentialsNeedNoThread) {
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  const auto provider = make_credentials({.profile = {}, .environment = environment_of(variables_)}, {});
  bool called = false;
  provider->get([&](CredentialsAnswer answer) {
    called = true;
    EXPECT_EQ(answer.credentials->access_key_id, "ENV");
    provider->reject(*answer.credentials);
  });
  EXPECT_TRUE(called);
}

TEST_F(Places, TheProviderLooksOnAThreadOfItsOwn) {
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  const auto provider =
      make_credentials({.profile = {}, .environment = environment_of(variables_)},
                       {.http = http_, .clock = clock_, .random = std::make_shared<once::testing::SeededRandom>(1)});
  const auto answer = wait_for<CredentialsAnswer>([&](Callback<void(CredentialsAnswer)> done) {
    provider->get([done = std::move(done), caller = std::this_thread::get_id()](CredentialsAnswer got) mutable {
      EXPECT_NE(std::this_thread::get_id(), caller);
      done(std::move(got));
    });
  });
  EXPECT_EQ(answer.credentials, nullptr);
  EXPECT_THAT(answer.error.message, HasSubstr("only one is set"));
}

TEST(ProcessEnvironment, IsACopy) {
  ASSERT_EQ(setenv("ONCE_TEST_COPY", "a=b", 1), 0);
  const Environment copy = process_environment();
  ASSERT_EQ(unsetenv("ONCE_TEST_COPY"), 0);
  EXPECT_EQ(copy("ONCE_TEST_COPY"), "a=b");
  EXPECT_EQ(process_environment()("ONCE_TEST_COPY"), std::nullopt);
}

// ---- Web identity

class WebIdentity : public Places {
 protected:
  WebIdentity() {
    variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = folder_.write("token", "HIDDEN.jwt+/=\n");
    variables_["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/app";
  }
};

TEST_F(WebIdentity, ComesFromSts) {
  variables_["AWS_ROLE_SESSION_NAME"] = "me@here";
  http_->expect(sts_us, answered(200, sts_xml("AssumeRoleWithWebIdentity", "ASIA1")));
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "ASIA1");
  EXPECT_EQ(found.secret_access_key, "HIDDEN/&+");
  EXPECT_EQ(found.session_token, "TOKEN==");
  EXPECT_EQ(found.expires_at, once::testing::manual_start + std::chrono::hours(1));
  EXPECT_THAT(found.source, AllOf(StartsWith("web identity /"), EndsWith(" as arn:aws:iam::123456789012:role/app")));
  EXPECT_EQ(http_->sent[0].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2F"
            "app&RoleSessionName=me%40here&WebIdentityToken=HIDDEN.jwt%2B%2F%3D");
  EXPECT_EQ(http_->header(0, "Host"), "sts.us-east-1.amazonaws.com");
  EXPECT_EQ(http_->header(0, "Content-Type"), "application/x-www-form-urlencoded");
  EXPECT_EQ(http_->header(0, "Authorization"), "");
}

TEST_F(WebIdentity, AsksStsWhereverItIs) {
  for (const auto& [variables, url] : std::vector<std::pair<Variables, std::string>>{
           {{{"AWS_REGION", ""}}, "https://sts.amazonaws.com/"},
           {{{"AWS_REGION", ""}, {"AWS_DEFAULT_REGION", "eu-west-1"}}, "https://sts.eu-west-1.amazonaws.com/"},
           {{{"AWS_REGION", "cn-north-1"}}, "https://sts.cn-north-1.amazonaws.com.cn/"},
           {{{"AWS_ENDPOINT_URL_STS", "http://127.0.0.1:5000/base"}}, "http://127.0.0.1:5000/base/"},
       }) {
    for (const auto& [name, value] : variables) variables_[name] = value;
    http_->expect("POST " + url, answered(200, sts_xml("AssumeRoleWithWebIdentity", "ASIA1")));
    EXPECT_EQ(look().access_key_id, "ASIA1");
  }
}

TEST_F(WebIdentity, SaysWhatStsSays) {
  http_->expect(sts_us, answered(400,
                                 "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredTokenException</Code>"
                                 "<Message>Token is &lt;expired&gt;</Message></Error></ErrorResponse>"));
  EXPECT_THAT(misuse(), AllOf(HasSubstr("HTTP status 400, ExpiredTokenException: Token is <expired>"),
                              HasSubstr("https://sts.us-east-1.amazonaws.com"), HasSubstr("role/app")));
  http_->expect(sts_us, answered(403, "HIDDEN not XML"));
  EXPECT_THAT(misuse(), HasSubstr("HTTP status 403"));
}

TEST_F(WebIdentity, AsksAgainWhenStsIsBusy) {
  http_->expect(sts_us, answered(503));
  http_->expect(sts_us, unanswered(ErrorKind::in_doubt, "reset"));
  http_->expect(sts_us, answered(200, sts_xml("AssumeRoleWithWebIdentity", "ASIA1")));
  EXPECT_EQ(look().access_key_id, "ASIA1");
  for (int i = 0; i < 3; ++i) http_->expect(sts_us, answered(503));
  EXPECT_THAT(unavailable(), HasSubstr("503"));
  for (int i = 0; i < 3; ++i) http_->expect(sts_us, unanswered(ErrorKind::unavailable, "refused"));
  EXPECT_THAT(unavailable(), HasSubstr("gave no answer: refused"));
  http_->expect(sts_us, unanswered(ErrorKind::misuse, "bad certificate"));
  EXPECT_THAT(misuse(), HasSubstr("bad certificate"));
}

TEST_F(WebIdentity, WantsAllThatItNeeds) {
  const std::string file = variables_["AWS_WEB_IDENTITY_TOKEN_FILE"];
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = folder_.path() + "/missing";
  EXPECT_THAT(misuse(), HasSubstr("/missing, which the web identity names: No such file"));
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {" \n", "it is empty"}, {"HIDDEN\nSECRET", "more than one line"}, {std::string(70'000, 'x'), "64 KiB"}}) {
    variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = folder_.write("bad", text);
    EXPECT_THAT(misuse(), HasSubstr(what));
  }
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = file;
  variables_["AWS_ROLE_ARN"] = "";
  EXPECT_THAT(misuse(), HasSubstr("AWS_ROLE_ARN is not"));
}

TEST(StsAnswer, IsReadStrictly) {
  const std::string good = sts_xml("AssumeRole", "ASIA1");
  EXPECT_EQ(parse_sts_answer(good, "here").access_key_id, "ASIA1");
  const auto without = [&](const std::string& what, const std::string& with) {
    std::string text = good;
    EXPECT_NE(text.find(what), std::string::npos);
    return text.replace(text.find(what), what.size(), with);
  };
  for (const auto& [xml, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "<Credentials>"},
           {"HIDDEN", "<Credentials>"},
           {good.substr(0, good.size() / 2), "<Credentials>"},
           {good + good, "exactly one <Credentials>"},
           {without("ASIA1", ""), "AccessKeyId"},
           {without("<AccessKeyId>", "<AccessKeyId>HIDDEN</AccessKeyId><AccessKeyId>"), "AccessKeyId"},
           {without("ASIA1", "<b>HIDDEN</b>"), "AccessKeyId"},
           {without("/&amp;", "&nbsp;"), "SecretAccessKey"},
           {without("/&amp;", "&"), "SecretAccessKey"},
           {without("SessionToken>", "sessionToken>"), "SessionToken"},
           {without("2026-01-01T01:00:00Z", "soon"), "Expiration"},
           {without("ASIA1", "AS IA"), "access key id"},
       }) {
    try {
      static_cast<void>(parse_sts_answer(xml, "here"));
      FAIL() << xml;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("here"), HasSubstr(what), Not(HasSubstr("HIDDEN"))));
    }
  }
}

// ---- Profiles

TEST_F(Places, AProfileMayHaveKeys) {
  variables_["AWS_PROFILE"] = "dev";
  config("[profile dev]\nregion = x\n");
  credentials("[dev]\naws_access_key_id = DEV\naws_secret_access_key = HIDDEN\naws_session_token = TOKEN\n");
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "DEV");
  EXPECT_EQ(found.secret_access_key, "HIDDEN");
  EXPECT_EQ(found.session_token, "TOKEN");
  EXPECT_THAT(found.source, StartsWith("profile dev in " + folder_.path()));
}

TEST_F(Places, ErrorsOfProfilesSayWhatToChange) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"aws_secret_access_key = HIDDEN", "only one of aws_access_key_id and aws_secret_access_key"},
           {"sso_session = corp\nsso_account_id = 1", "aws configure export-credentials --profile default"},
           {"sso_start_url = https://x", "which is not supported here"},
           {"role_arn = arn", "exactly one of source_profile, credential_source and web_identity_token_file"},
           {"role_arn = arn\nsource_profile = a\ncredential_source = Environment", "exactly one of"},
           {"role_arn = arn\nsource_profile = a\nmfa_serial = x", "has an mfa_serial"},
           {"role_arn = arn\nsource_profile = nobody", "source_profile = nobody, which is not in"},
           {"role_arn = arn\nsource_profile = empty", "profile empty, the source_profile of default, has no cred"},
           {"role_arn = arn\nsource_profile = default", "profile default, the source_profile of default, has no cred"},
           {"role_arn = arn\nsource_profile = ring", "default -> ring -> default"},
           {"role_arn = arn\ncredential_source = Nonsense", "unknown credential_source"},
           {"role_arn = arn\ncredential_source = Environment", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not"},
           {"credential_process = 'open", "a quote that is left open"},
           {"credential_process = ''", "names no command"},
           {"no setting", "line 2"},
       }) {
    config("[default]\n" + text +
           "\n[profile empty]\nregion = x\n[profile ring]\nrole_arn = a\nsource_profile=default\n");
    EXPECT_THAT(misuse(), HasSubstr(what)) << text;
  }
}

TEST_F(Places, AProfileThatAVariableNamesMustBeThere) {
  variables_["AWS_PROFILE"] = "nobody";
  EXPECT_THAT(misuse(), HasSubstr("correct AWS_PROFILE, or unset it"));
}

TEST_F(Places, ARoleIsAssumedWithTheKeysOfItsSource) {
  config(
      "[default]\nrole_arn = arn:r\nsource_profile = keys\nrole_session_name = s n\nexternal_id = e/x\n"
      "duration_seconds = 900\n");
  credentials("[keys]\naws_access_key_id = SRC\naws_secret_access_key = HIDDEN\naws_session_token = T\n");
  http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "ASIA1")));
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "ASIA1");
  EXPECT_EQ(found.source, "profile default as arn:r");
  HttpRequest sent = http_->sent[0];
  EXPECT_EQ(sent.body,
            "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Ar&RoleSessionName=s%20n&DurationSeconds=900&"
            "ExternalId=e%2Fx");
  // As the keys of the source sign it, in STS's own scope.
  Credentials source;
  source.access_key_id = "SRC";
  source.secret_access_key = "HIDDEN";
  source.session_token = "T";
  Signer("sts", "us-east-1").sign(sent, source, once::testing::manual_start);
  EXPECT_EQ(sent.headers, http_->sent[0].headers);
}

// This host's clock may be wrong; the service's counts.
TEST_F(Places, StsIsAskedOnceMoreByItsOwnTime) {
  config("[default]\nrole_arn = arn:r\nsource_profile = keys\nrole_session_name = s\n");
  credentials("[keys]\naws_access_key_id = SRC\naws_secret_access_key = HIDDEN\n");
  const auto refusal = [](const std::string& code, const char* date) {
    HttpAnswer answer =
        answered(403, "<ErrorResponse><Error><Code>" + code + "</Code><Message>No.</Message></Error></ErrorResponse>");
    answer.headers = {{"date", date}};
    return answer;
  };
  const char* const later = "Thu, 01 Jan 2026 01:00:00 GMT";
  for (const char* const code : {"SignatureDoesNotMatch", "RequestExpired"}) {
    http_->sent.clear();
    http_->expect(sts_us, refusal(code, later));
    http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "ASIA1")));
    EXPECT_EQ(look().access_key_id, "ASIA1");
    EXPECT_EQ(http_->header(0, "X-Amz-Date"), "20260101T000000Z");
    HttpRequest sent = http_->sent[1];
    Credentials source;
    source.access_key_id = "SRC";
    source.secret_access_key = "HIDDEN";
    Signer("sts", "us-east-1").sign(sent, source, once::testing::manual_start + std::chrono::hours(1));
    EXPECT_EQ(sent.headers, http_->sent[1].headers);
    EXPECT_EQ(sent.body, http_->sent[0].body);
  }
  // Once, and not for what time is no reason for.
  http_->expect(sts_us, refusal("SignatureDoesNotMatch", later));
  http_->expect(sts_us, refusal("SignatureDoesNotMatch", "Thu, 01 Jan 2026 02:00:00 GMT"));
  EXPECT_THAT(misuse(), HasSubstr("SignatureDoesNotMatch"));
  http_->expect(sts_us, refusal("SignatureDoesNotMatch", "Thu, 01 Jan 2026 00:00:59 GMT"));
  EXPECT_THAT(misuse(), HasSubstr("SignatureDoesNotMatch"));
  http_->expect(sts_us, refusal("AccessDenied", later));
  EXPECT_THAT(misuse(), HasSubstr("AccessDenied"));
  http_->expect(sts_us, refusal("SignatureDoesNotMatch", ""));
  EXPECT_THAT(misuse(), HasSubstr("SignatureDoesNotMatch"));
}

TEST_F(Places, RolesMayStandOnRoles) {
  config(
      "[default]\nrole_arn = arn:outer\nsource_profile = middle\n[profile middle]\nrole_arn = arn:inner\n"
      "source_profile = middle\naws_access_key_id = SRC\naws_secret_access_key = HIDDEN\n");
  http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "MID")));
  http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "OUT")));
  EXPECT_EQ(look().access_key_id, "OUT");
  EXPECT_THAT(http_->sent[0].body, HasSubstr("RoleArn=arn%3Ainner&RoleSessionName=once-1767225600000"));
  EXPECT_THAT(http_->header(0, "Authorization"), HasSubstr("Credential=SRC/20260101/us-east-1/sts/"));
  EXPECT_THAT(http_->header(1, "Authorization"), HasSubstr("Credential=MID/"));
  EXPECT_EQ(http_->header(1, "X-Amz-Security-Token"), "TOKEN==");
}

TEST_F(Places, RolesMayStandOnOtherPlaces) {
  config("[default]\nrole_arn = arn:r\ncredential_source = EcsContainer\n");
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/me";
  http_->expect("GET http://169.254.170.2/me", answered(200, json_of("ECS", "Token")));
  http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "OUT")));
  EXPECT_EQ(look().access_key_id, "OUT");
  EXPECT_THAT(http_->header(1, "Authorization"), HasSubstr("Credential=ECS/"));

  config("[default]\nrole_arn = arn:r\ncredential_source = Ec2InstanceMetadata\n");
  no_instance_answers();
  EXPECT_THAT(unavailable(), HasSubstr("credential_source = Ec2InstanceMetadata, but there are none: EC2 instance"));

  config("[profile p]\nrole_arn = arn:r\ncredential_source = Environment\n");
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "HIDDEN";
  profile_ = "p";
  http_->expect(sts_us, answered(200, sts_xml("AssumeRole", "OUT")));
  EXPECT_EQ(look().access_key_id, "OUT");

  config("[profile p]\nrole_arn = arn:r\nweb_identity_token_file = " + folder_.write("t", "jwt") + "\n");
  http_->expect(sts_us, answered(200, sts_xml("AssumeRoleWithWebIdentity", "WEB")));
  EXPECT_EQ(look().access_key_id, "WEB");
}

// ---- Processes

class Process : public Places {
 protected:
  Process() { json_ = folder_.write("two words.json", R"({"Version":1,)" + json_of("PROC", "SessionToken").substr(1)); }

  void command(const std::string& line) { config("[default]\ncredential_process = " + line + "\n"); }

  std::string json_;
};

TEST_F(Process, PrintsCredentials) {
  command("cat \"" + json_ + "\"");
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "PROC");
  EXPECT_EQ(found.session_token, "TOKEN");
  EXPECT_EQ(found.expires_at, once::testing::manual_start + std::chrono::hours(6));
  EXPECT_EQ(found.source, "credential_process of profile default");
  for (const std::string& line : {"cat '" + json_ + "'", "  cat   " + folder_.path() + "/two\\ words.json",
                                  "cat \"" + folder_.path() + "/t\"'wo words'.json"}) {
    command(line);
    EXPECT_EQ(look().access_key_id, "PROC") << line;
  }
}

TEST_F(Process, RunsWithoutAShell) {
  for (const auto& [argument, meant] : std::vector<std::pair<std::string, std::string>>{
           {"$HOME", "$HOME"},
           {"a;b", "a;b"},
           {"a|b", "a|b"},
           {"`id`", "`id`"},
           {"*", "*"},
           {"~", "~"},
           {R"("\$x")", R"(\$x)"},
           {R"("a\"b\\c")", R"(a"b\c)"},
           {R"('a\b')", R"(a\b)"},
           {R"(a\b)", "ab"},
       }) {
    const std::string out = folder_.path() + "/argument";
    command(R"(sh -c 'printf "%s" "$1" > "$2"; cat "$3"' sh )" + argument + " " + out + " '" + json_ + "'");
    EXPECT_EQ(look().access_key_id, "PROC") << argument;
    std::ifstream file(out);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), meant) << argument;
  }
}

TEST_F(Process, HasAnEmptyInput) {
  command("sh -c 'read line || cat \"" + json_ + "\"'");
  EXPECT_EQ(look().access_key_id, "PROC");
}

TEST_F(Process, FailuresSaySoAndNothingSecret) {
  command("sh -c 'echo HIDDEN; exit 3' --password HIDDEN");
  EXPECT_THAT(unavailable(), HasSubstr("credential_process of profile default failed with status 3"));
  command("sh -c 'kill -9 $$' --password HIDDEN");
  EXPECT_THAT(unavailable(), HasSubstr("failed with status 137"));
  command("/nowhere/tool --password HIDDEN");
  EXPECT_THAT(misuse(), HasSubstr("cannot be started: /nowhere/tool: No such file"));
  for (const char* output :
       {"", "HIDDEN", "[1]", R"({"AccessKeyId":"HIDDEN"})", R"({"Version":2})", R"({"Version":"1"})"}) {
    command(std::string("printf '%s' '") + output + "'");
    EXPECT_THAT(misuse(), HasSubstr(R"("Version": 1)")) << output;
  }
  for (const auto& [output, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"Version":1})", "it has no AccessKeyId"},
           {R"({"Version":1,"AccessKeyId":7,"SecretAccessKey":"HIDDEN"})", "it has no AccessKeyId"},
           {R"({"Version":1,"AccessKeyId":"A"})", "it has no SecretAccessKey"},
           {R"({"Version":1,"AccessKeyId":"A","SecretAccessKey":"HIDDEN","Expiration":"HIDDEN"})", "its Expiration"},
           {R"({"Version":1,"AccessKeyId":"A","SecretAccessKey":"HIDDEN","Expiration":1})", "its Expiration"}}) {
    command("printf '%s' '" + output + "'");
    EXPECT_THAT(misuse(), HasSubstr(what)) << output;
  }
  command("head -c 100000 /dev/zero");
  EXPECT_THAT(misuse(), HasSubstr("more than 64 KiB"));
}

TEST_F(Process, IsStoppedWhenItTakesTooLong) {
  limit_ = Millis(1'000);
  const std::string pid_file = folder_.path() + "/pid";
  command("sh -c 'echo $$ > \"" + pid_file + "\"; exec sleep 1000'");
  EXPECT_THAT(unavailable(), HasSubstr("did not end within 1 s"));
  pid_t pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), -1) << "it still runs";
}

TEST_F(Process, IsGivenUpWithPatience) {
  command("sleep 1000");
  with_search([](Search& all) {
    all.cancellation->cancel();
    EXPECT_THROW(static_cast<void>(from_profile(all)), Exception);
    return 0;
  });
}

// ---- Containers

TEST_F(Places, AContainerHasAnAgent) {
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials?id=1";
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://not.asked/";
  http_->expect("GET http://169.254.170.2/v2/credentials?id=1", answered(200, json_of("ECS", "Token")));
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "ECS");
  EXPECT_EQ(found.session_token, "TOKEN");
  EXPECT_EQ(found.expires_at, once::testing::manual_start + std::chrono::hours(6));
  EXPECT_EQ(found.source, "container endpoint http://169.254.170.2");
  EXPECT_EQ(http_->header(0, "Host"), "169.254.170.2");
  EXPECT_EQ(http_->header(0, "Authorization"), "");
}

TEST_F(Places, AContainersTokenIsSent) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://169.254.170.23/v1/credentials";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "Basic abc";
  http_->expect("GET http://169.254.170.23/v1/credentials", answered(200, json_of("EKS", "Token")));
  EXPECT_EQ(look().access_key_id, "EKS");
  EXPECT_EQ(http_->header(0, "Authorization"), "Basic abc");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = folder_.write("token", "from the file\n");
  http_->expect("GET http://169.254.170.23/v1/credentials", answered(200, json_of("EKS", "Token")));
  EXPECT_EQ(look().access_key_id, "EKS");
  EXPECT_EQ(http_->header(1, "Authorization"), "from the file");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = folder_.path() + "/missing";
  EXPECT_THAT(misuse(), HasSubstr("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names: No such file"));
  variables_.erase("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "HIDDEN\r\nX: y";
  EXPECT_THAT(misuse(), HasSubstr("more than one line"));
}

TEST_F(Places, AContainersAgentIsNear) {
  for (const auto& [url, line] : std::vector<std::pair<std::string, std::string>>{
           {"https://agent.example.com/x", "https://agent.example.com/x"},
           {"http://localhost:8080", "http://localhost:8080/"},
           {"http://127.0.0.2:81?a=b", "http://127.0.0.2:81/?a=b"},
           {"http://[::1]:81/x#f", "http://::1:81/x"},
           {"http://[fd00:ec2::23]/x", "http://fd00:ec2::23/x"},
       }) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    http_->expect("GET " + line, answered(200, json_of("C", "Token")));
    EXPECT_EQ(look().access_key_id, "C") << url;
  }
  for (const char* url : {"http://example.com/", "http://10.0.0.1/", "http://169.254.170.3/", "http://[fd00:ec2::24]/",
                          "http://localhost.example.com/", "http://128.0.0.1", "http://[::2]/"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_THAT(misuse(), HasSubstr("over plain http only from this host")) << url;
  }
  for (const char* url :
       {"localhost/x", "ftp://localhost/", "http://", "http://localhost/a b", "http://me:HIDDEN@localhost/"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_THAT(misuse(), HasSubstr("AWS_CONTAINER_CREDENTIALS_FULL_URI")) << url;
  }
}

TEST_F(Places, AContainersFailureIsTheError) {
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/me";
  const std::string line = "GET http://169.254.170.2/me";
  http_->expect(line, answered(500));
  http_->expect(line, answered(200, json_of("ECS", "Token")));
  EXPECT_EQ(look().access_key_id, "ECS");
  for (int i = 0; i < 3; ++i) http_->expect(line, answered(500, "HIDDEN"));
  EXPECT_THAT(unavailable(), HasSubstr("gave none: HTTP status 500"));
  for (int i = 0; i < 3; ++i) http_->expect(line, unanswered(ErrorKind::unavailable, "refused"));
  EXPECT_THAT(unavailable(), HasSubstr("refused"));
  http_->expect(line, answered(404, "HIDDEN"));
  EXPECT_THAT(misuse(), HasSubstr("HTTP status 404"));
  http_->expect(line, answered(200, "HIDDEN"));
  EXPECT_THAT(misuse(), HasSubstr("not a JSON object"));
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "me";
  EXPECT_THAT(misuse(), HasSubstr("does not begin with '/'"));
}

// ---- Instances

class Instance : public Places {
 protected:
  void token(const std::string& base = "http://169.254.169.254") {
    http_->expect("PUT " + base + "/latest/api/token", answered(200, "IMDS-TOKEN"));
  }
  const std::string roles_ = "http://169.254.169.254/latest/meta-data/iam/security-credentials/";
};

TEST_F(Instance, HasARole) {
  token();
  http_->expect("GET " + roles_, answered(200, "my-role\n"));
  http_->expect("GET " + roles_ + "my-role", answered(200, json_of("EC2", "Token")));
  const Credentials found = look();
  EXPECT_EQ(found.access_key_id, "EC2");
  EXPECT_EQ(found.session_token, "TOKEN");
  EXPECT_EQ(found.source, "EC2 instance metadata http://169.254.169.254 (role my-role)");
  EXPECT_EQ(http_->header(0, "X-aws-ec2-metadata-token-ttl-seconds"), "21600");
  EXPECT_EQ(http_->header(1, "X-aws-ec2-metadata-token"), "IMDS-TOKEN");
  EXPECT_EQ(http_->header(2, "X-aws-ec2-metadata-token"), "IMDS-TOKEN");
  EXPECT_EQ(http_->sent[0].timeout, Millis(1'000));
}

TEST_F(Instance, MayBeElsewhereOrDisabled) {
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"] = "IPv6";
  http_->expect("PUT http://fd00:ec2::254/latest/api/token", unanswered(ErrorKind::unavailable, no_instance));
  EXPECT_THAT(misuse(), HasSubstr("http://[fd00:ec2::254] (no route to host)"));
  EXPECT_EQ(http_->header(0, "Host"), "[fd00:ec2::254]");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338/base/";
  http_->expect("PUT http://127.0.0.1:1338/base/latest/api/token", answered(404));
  EXPECT_THAT(misuse(), HasSubstr("no token for IMDSv2: HTTP status 404"));
  variables_["AWS_EC2_METADATA_DISABLED"] = "True";
  EXPECT_THAT(misuse(), HasSubstr("AWS_EC2_METADATA_DISABLED is true"));
}

TEST_F(Instance, WithoutARoleHasNothing) {
  token();
  http_->expect("GET " + roles_, answered(404));
  EXPECT_THAT(misuse(), HasSubstr("attach an instance profile"));
  for (const char* role : {"", "\n", "<html>", "../../x"}) {
    token();
    http_->expect("GET " + roles_, answered(200, role));
    EXPECT_THAT(misuse(), HasSubstr("something else answers there")) << role;
  }
  for (const char* other : {"", "<html> </html>", "a\r\nb"}) {
    http_->expect("PUT http://169.254.169.254/latest/api/token", answered(200, other));
    EXPECT_THAT(misuse(), HasSubstr("something else answers there")) << other;
  }
}

TEST_F(Instance, ThatIsBusyIsAskedAgain) {
  const std::string token_line = "PUT http://169.254.169.254/latest/api/token";
  for (int i = 0; i < 4; ++i) http_->expect(token_line, answered(503));
  EXPECT_THAT(unavailable(), HasSubstr("gave no token: HTTP status 503"));
  http_->expect(token_line, answered(503));
  token();
  for (int i = 0; i < 3; ++i) http_->expect("GET " + roles_, answered(500));
  EXPECT_THAT(unavailable(), HasSubstr("did not name the instance's role: HTTP status 500"));
  token();
  http_->expect("GET " + roles_, answered(200, "r"));
  http_->expect("GET " + roles_ + "r", unanswered(ErrorKind::in_doubt, "reset"));
  http_->expect("GET " + roles_ + "r", answered(200, R"({"Code":"Failed","Message":"HIDDEN"})"));
  EXPECT_THAT(unavailable(), HasSubstr("(role r) gave none: Failed"));
}

}  // namespace credentials_test
}  // namespace once::aws
