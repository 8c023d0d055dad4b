// Seal keys from KMS, with a KMS that answers as it is told.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <once/seal_kms.hpp>

#include "seal_keys.hpp"

namespace once::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr const char* arn = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd";
constexpr const char* base64_of_ones = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

class ToldKms final : public aws::Transport {
 public:
  explicit ToldKms(aws::Reply reply) : reply_(std::move(reply)) {}
  void call(aws::Call call, Callback<void(aws::Reply)> done) override {
    calls.push_back(std::move(call));
    done(reply_);
  }
  [[nodiscard]] std::string name() const override { return "https://kms.test"; }

  std::vector<aws::Call> calls;

 private:
  const aws::Reply reply_;
};

aws::Reply reply(int status, std::string body) {
  return {.status = status, .body = std::move(body), .time = {}, .false_time = false, .error = {}};
}
aws::Reply no_reply(ErrorKind kind, std::string text) {
  return {.status = 0, .body = {}, .time = {}, .false_time = false, .error = Error{kind, std::move(text)}};
}

const std::string line = std::string("2026-11 kms:QUJD ") + arn + "\n";

Error error_of(const aws::Reply& reply) {
  const auto kms = std::make_shared<ToldKms>(reply);
  try {
    parse_seal_keys(line, "keys", kms_unwrapper({.transport = kms}));
  } catch (const Exception& error) {
    return error.error();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Kms, AKeyIsDecryptedUnderItsId) {
  const auto kms = std::make_shared<ToldKms>(
      reply(200, std::string(R"({"KeyId":")") + arn + R"(","Plaintext":")" + base64_of_ones + R"("})"));
  const SealKeys keys = parse_seal_keys(line, "keys", kms_unwrapper({.transport = kms}));
  ASSERT_EQ(keys.size(), 1U);
  EXPECT_EQ(keys[0].id, "2026-11");
  EXPECT_EQ(keys[0].bytes, seal_key("x", 1).bytes);
  ASSERT_EQ(kms->calls.size(), 1U);
  EXPECT_EQ(kms->calls[0].operation, "Decrypt");
  EXPECT_TRUE(kms->calls[0].repeatable);
  EXPECT_EQ(Json::parse(kms->calls[0].body),
            Json({{"CiphertextBlob", "QUJD"}, {"KeyId", arn}, {"EncryptionContext", {{"once-seal-key", "2026-11"}}}}));
}

TEST(Kms, FaultsSayWhatToDo) {
  const auto refusal = [](int status, const std::string& code) {
    return error_of(reply(status, R"({"__type":")" + code + R"(","message":"its words"})"));
  };
  const Error context = refusal(400, "InvalidCiphertextException");
  EXPECT_EQ(context.kind, ErrorKind::corrupt);
  EXPECT_THAT(context.message, AllOf(HasSubstr("keys, line 1: KMS Decrypt: InvalidCiphertextException"),
                                     HasSubstr("another id"), HasSubstr(arn)));
  const Error missing = refusal(400, "NotFoundException");
  EXPECT_EQ(missing.kind, ErrorKind::misuse);
  EXPECT_THAT(missing.message, HasSubstr("NotFoundException: its words"));
  EXPECT_EQ(refusal(400, "DisabledException").kind, ErrorKind::misuse);
  // As the client reports them.
  const Error denied = error_of(no_reply(ErrorKind::misuse, "Decrypt at https://kms.test: AccessDeniedException"));
  EXPECT_EQ(denied.kind, ErrorKind::misuse);
  EXPECT_THAT(denied.message, HasSubstr("AccessDeniedException"));
  EXPECT_EQ(error_of(no_reply(ErrorKind::unavailable, "the service is throttling")).kind, ErrorKind::unavailable);
  EXPECT_EQ(error_of(no_reply(ErrorKind::in_doubt, "no whole answer")).kind, ErrorKind::unavailable);
}

TEST(Kms, ATruncatedOrStrangeAnswerIsNoKeyAndIsNotShown) {
  const std::string whole = std::string(R"({"Plaintext":")") + base64_of_ones + R"("})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Error error = error_of(reply(200, whole.substr(0, size)));
    EXPECT_EQ(error.kind, ErrorKind::unavailable) << size;
    EXPECT_THAT(error.message, Not(HasSubstr("AQEB"))) << size;
  }
  for (const char* const body : {R"({})", R"({"Plaintext":7})", R"({"Plaintext":"AQEB"})", R"({"Plaintext":"!"})"}) {
    const Error error = error_of(reply(200, body));
    EXPECT_EQ(error.kind, ErrorKind::corrupt) << body;
    EXPECT_THAT(error.message, AllOf(HasSubstr("not a key of 32 bytes"), Not(HasSubstr("AQEB")))) << body;
  }
}

TEST(Kms, ANewKeyIsALineOfTheFile) {
  const auto kms =
      std::make_shared<ToldKms>(reply(200, std::string(R"({"CiphertextBlob":"QUJD","KeyId":")") + arn + R"("})"));
  EXPECT_EQ(new_kms_seal_key("2026-11", "alias/once", {.transport = kms}), line);
  ASSERT_EQ(kms->calls.size(), 1U);
  EXPECT_EQ(kms->calls[0].operation, "GenerateDataKeyWithoutPlaintext");
  EXPECT_EQ(
      Json::parse(kms->calls[0].body),
      Json({{"KeyId", "alias/once"}, {"NumberOfBytes", 32}, {"EncryptionContext", {{"once-seal-key", "2026-11"}}}}));
  EXPECT_THROW(new_kms_seal_key("a b", "alias/once", {.transport = kms}), Exception);
  for (const char* const body : {R"({})", R"({"CiphertextBlob":"QUJD"})", R"({"CiphertextBlob":"QUJD","KeyId":"x"})",
                                 R"({"CiphertextBlob":"!","KeyId":"arn:aws:kms:eu-central-1:1:key/a"})"}) {
    const auto strange = std::make_shared<ToldKms>(reply(200, body));
    EXPECT_THROW(new_kms_seal_key("k1", "alias/once", {.transport = strange}), Exception) << body;
  }
}

}  // namespace
}  // namespace once::testing
