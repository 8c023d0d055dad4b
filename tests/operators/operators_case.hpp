// The operators' API on a store of the test's own, asked without a server.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/faulty_store.hpp>
#include <once/testing/records.hpp>

#include "operators/admin_token.hpp"
#include "operators/operators.hpp"

namespace once::operators {

using nlohmann::json;

class OperatorsCase : public ::testing::Test {
 protected:
  // A record whose outcome is unknown, made an hour ago; a service may be asked about it at once.
  Record unknown(const std::string& name, const std::string& scope = "pay") {
    Record record = once::testing::plain_record(Key(scope, name).stored());
    record.state = State::unknown;
    record.created_at = now() - std::chrono::hours(1);
    record.finished_at = now() - std::chrono::seconds(1);
    record.expires_at = never;
    return keep(std::move(record));
  }
  Record running(const std::string& name) {
    Record record = once::testing::plain_record(Key("pay", name).stored());
    record.created_at = now();
    record.lease_until = now() + std::chrono::hours(1);
    record.expires_at = now() + std::chrono::hours(2);
    return keep(std::move(record));
  }
  Record keep(Record record) {
    EXPECT_EQ(blocking::insert(*store, record).status, AnswerStatus::done);
    return record;
  }
  Record stored(const Record& record) { return *blocking::get(*store, record.key).record; }
  static Time now() { return system_clock()->now(); }
  static std::string path_of(const Record& record) { return "/v1/records/" + to_hex(record.key); }
  static std::string tag_of(const Record& record) {
    return '"' + record.owner.hex() + "-" + std::to_string(record.revision) + '"';
  }

  http::Answer ask(const std::string& method, const std::string& target, const std::string& body = {},
                   std::vector<http::HeaderView> headers = {}) {
    if (!without_host) headers.push_back({"Host", "127.0.0.1:9100"});
    return operators.answer({.method = method, .target = target, .headers = headers, .body = body, .principal = {}});
  }
  http::Answer get(const std::string& target) { return ask("GET", target); }
  http::Answer post(const Record& record, const std::string& action, const json& body, const std::string& tag = {}) {
    const std::string match = tag.empty() ? tag_of(record) : tag;
    return ask("POST", path_of(record) + "/" + action, body.dump(),
               {{"content-type", "application/json; charset=utf-8"}, {"If-Match", match}});
  }
  static json read(const http::Answer& answer) { return json::parse(answer.body); }
  static void expect_problem(const http::Answer& answer, unsigned status, const std::string& name,
                             const std::string& detail = {}) {
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(*http::find_header(answer.headers, "Content-Type"), "application/problem+json");
    const json body = read(answer);
    EXPECT_EQ(body["type"], "urn:once:problem:" + name);
    EXPECT_EQ(body["status"], status);
    EXPECT_THAT(body["detail"].get<std::string>(), ::testing::HasSubstr(detail));
  }

  explicit OperatorsCase(std::shared_ptr<Store> inner = stores::make_memory_store(),
                         std::shared_ptr<Clock> clock = system_clock())
      : store(std::make_shared<once::testing::FaultyStore>(std::move(inner), once::testing::no_faults())),
        operators({.url = "memory:", .store = store}, token, {}, nullptr, std::move(clock)) {}

  std::shared_ptr<once::testing::FaultyStore> store;
  AdminToken token{"", "--admin-token-file"};
  Operators operators;
  bool without_host = false;
};

}  // namespace once::operators
