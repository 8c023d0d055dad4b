// What a message becomes for a command, and what an answer means for a message.
#include "process/sqs_work.hpp"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once::cli {
namespace sqs_work_test {

using ::testing::Contains;
using ::testing::Not;
using ::testing::Pair;

TEST(SqsWork, TheEnvironmentTellsOfTheMessage) {
  sqs::Message message;
  message.id = "m-1";
  message.group_id = "g";
  message.receive_count = 3;
  message.sent = Time(Millis{1'767'225'600'000});
  message.attributes = {{.name = "tenant-id.v2", .type = "String", .value = "t 1"},
                        {.name = "large", .type = "String", .value = std::string(100'000, 'x')},
                        {.name = "PATH", .type = "String", .value = "/evil"}};
  const auto variables = message_environment(message);
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_MESSAGE_ID", "m-1")));
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_RECEIVE_COUNT", "3")));
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_SENT_MS", "1767225600000")));
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_GROUP_ID", "g")));
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_ATTRIBUTE_TENANT_ID_V2", "t 1")));
  EXPECT_THAT(variables, Contains(Pair("ONCE_SQS_ATTRIBUTE_PATH", "/evil"))) << "and no other variable";
  EXPECT_THAT(variables, Not(Contains(Pair("ONCE_SQS_ATTRIBUTE_LARGE", ::testing::_))));
}

TEST(SqsWork, OnlyWhatLastsSaysThatTheCommandCannotBeExecuted) {
  for (const int why : {ENOENT, EACCES, ENOEXEC, ENOTDIR, ELOOP}) EXPECT_TRUE(cannot_ever_run(why)) << why;
  for (const int why : {EAGAIN, ENOMEM, EMFILE, ENFILE, ETXTBSY, EIO, E2BIG}) EXPECT_FALSE(cannot_ever_run(why)) << why;
}

TEST(SqsWork, AnAnswerSaysWhatBecomesOfTheMessage) {
  for (const CommandFate on_failure : {CommandFate::release, CommandFate::store, CommandFate::hold}) {
    const auto fate = [&](int status, bool arrived = true) {
      return fate_of_answer(status, arrived, on_failure, OnLapse::hold);
    };
    for (const int status : {200, 201, 204, 299}) EXPECT_EQ(fate(status), CommandFate::success);
    for (const int status : {301, 400, 404, 422, 500, 501}) EXPECT_EQ(fate(status), on_failure);
    // Nothing was done, for every meaning of a failure.
    for (const int status : {408, 409, 425, 429}) EXPECT_EQ(fate(status), CommandFate::release);
    EXPECT_EQ(fate(0, false), CommandFate::release);
  }
  EXPECT_TRUE(is_down(0, false));
  EXPECT_TRUE(is_down(503, true));
  for (const int status : {0, 429, 500, 502, 504}) EXPECT_FALSE(is_down(status, true)) << status;
  for (const int status : {502, 503, 504, 0}) {
    EXPECT_EQ(fate_of_answer(status, true, CommandFate::store, OnLapse::takeover), CommandFate::release);
    EXPECT_EQ(fate_of_answer(status, true, CommandFate::store, OnLapse::hold), CommandFate::hold)
        << "what the record says";
  }
}

TEST(SqsWork, AUrlThatCannotBeIsRefused) {
  for (const char* url : {"", "127.0.0.1:80", "ftp://host/", "http://", "http://host/a b", "http://host/#part"}) {
    PostWork work;
    work.url = url;
    EXPECT_THROW(post_work(work, nullptr), Exception) << url;
  }
}

TEST(SqsWork, AContentTypeThatNoHeaderCanHaveIsRefused) {
  PostWork work;
  work.url = "http://127.0.0.1/";
  for (const char* type : {"a\nb", "a\r", "a\x7f"}) {
    work.content_type = type;
    EXPECT_THROW(post_work(work, nullptr), Exception) << type;
  }
}

}  // namespace sqs_work_test
}  // namespace once::cli
