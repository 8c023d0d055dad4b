// dynamodb:// URLs and their options.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>
#include <once/stores/open.hpp>

#include "stores/open_aws.hpp"

namespace once::stores {
namespace url_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::string refusal(const std::string& url) {
  try {
    dynamodb_options(url);
  } catch (const Exception& error) {
    EXPECT_EQ(error.kind(), ErrorKind::misuse);
    return error.what();
  }
  return {};
}

TEST(DynamoDbUrl, ATableAloneHasTheDefaults) {
  const DynamoDbOptions o = dynamodb_options("dynamodb://payments");
  const DynamoDbOptions d;
  EXPECT_EQ(o.table, "payments");
  EXPECT_EQ(o.partition_key, d.partition_key);
  EXPECT_EQ(o.attributes.status, d.attributes.status);
  EXPECT_EQ(o.dialect, DynamoDbDialect::native);
  EXPECT_EQ(o.request_timeout, d.request_timeout);
  EXPECT_EQ(dynamodb_options("dynamodb://arn:aws:dynamodb:eu-central-1:1234:table/payments").table,
            "arn:aws:dynamodb:eu-central-1:1234:table/payments");
}

TEST(DynamoDbUrl, EveryOptionHasAParameter) {
  const DynamoDbOptions o = dynamodb_options(
      "dynamodb://t?region=eu-central-1&endpoint=http://127.0.0.1:8000&profile=dev&ca_file=/etc/ca.pem"
      "&request_timeout=500ms&operation_timeout=2s&dialect=powertools-java&partition_key=PK&sort_key=SK"
      "&partition_value=idempotency%23f&attribute.status=state&attribute.validation=check&use_index=never"
      "&index=by_state&index_shards=3&consistent_fallback=0&read_first_over=9000&count_capacity=1&allow_eventual=1&"
      "offload=s3://b/p");
  EXPECT_EQ(o.region, "eu-central-1");
  EXPECT_EQ(o.endpoint, "http://127.0.0.1:8000");
  EXPECT_EQ(o.profile, "dev");
  EXPECT_EQ(o.ca_file, "/etc/ca.pem");
  EXPECT_EQ(o.request_timeout, 500ms);
  EXPECT_EQ(o.operation_timeout, 2s);
  EXPECT_EQ(o.dialect, DynamoDbDialect::powertools_java);
  EXPECT_EQ(o.partition_key, "PK");
  EXPECT_EQ(o.sort_key, "SK");
  EXPECT_EQ(o.partition_value, "idempotency#f");
  EXPECT_EQ(o.attributes.status, "state");
  EXPECT_EQ(o.attributes.validation, "check");
  EXPECT_EQ(o.use_index, DynamoDbOptions::UseIndex::never);
  EXPECT_EQ(o.index, "by_state");
  EXPECT_EQ(o.index_shards, 3U);
  EXPECT_FALSE(o.consistent_fallback);
  EXPECT_EQ(o.read_first_over, 9'000U);
  EXPECT_TRUE(o.count_capacity);
  EXPECT_TRUE(o.allow_eventual);
}

TEST(DynamoDbUrl, WhatIsWrongIsRefusedByName) {
  EXPECT_THAT(refusal("sqlite:x"), HasSubstr("must begin with dynamodb:"));
  EXPECT_THAT(refusal("dynamodb:t"), HasSubstr("two slashes"));
  EXPECT_THAT(refusal("dynamodb://"), HasSubstr("two slashes and the table"));
  EXPECT_THAT(refusal("dynamodb://t/x"), HasSubstr("'/'"));
  EXPECT_THAT(refusal("dynamodb://t?regoin=x"), HasSubstr("unknown parameter 'regoin'"));
  EXPECT_THAT(refusal("dynamodb://t?attribute.colour=x"), HasSubstr("unknown parameter 'attribute.colour'"));
  EXPECT_THAT(refusal("dynamodb://t?dialect=cobol"), HasSubstr("native, powertools-python"));
  EXPECT_THAT(refusal("dynamodb://t?use_index=1"), HasSubstr("if_there, always, never"));
  EXPECT_THAT(refusal("dynamodb://t?count_capacity=yes"), HasSubstr("'count_capacity' must be 0 or 1"));
  EXPECT_THAT(refusal("dynamodb://t?index_shards=many"), HasSubstr("whole number"));
  // Ranges are the store's own business.
  try {
    open_store("dynamodb://t?region=eu-central-1&endpoint=http://127.0.0.1:1&index_shards=99999999999");
    FAIL();
  } catch (const Exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 to 64 shards"));
  }
}

TEST(DynamoDbUrl, OpensAStoreWithoutAskingAnybody) {
  const auto store = open_store("dynamodb://t?region=eu-central-1&endpoint=http://127.0.0.1:1");
  EXPECT_EQ(store->name(), "dynamodb:t");
  EXPECT_TRUE(store->capabilities().shared);
}

}  // namespace url_test
}  // namespace once::stores
