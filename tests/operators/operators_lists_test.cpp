// GET /v1/records of a store with many records: what a page costs, where the next one goes on, and what a search finds.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/stores/sqlite.hpp>

#include "../engine/forwarding_store.hpp"
#include "../sqlite/scratch_directory.hpp"
#include "operators_case.hpp"

namespace once::operators {
namespace operators_lists_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Store> store_of(const std::string& kind, const once::testing::Scratch& folder) {
  if (kind == "memory") return stores::make_memory_store();
  stores::SqliteOptions options;
  options.path = folder.file();
  return stores::make_sqlite_store(options);
}

// The folder is made first and removed last.
class Lists : private once::testing::Scratch, public OperatorsCase, public ::testing::WithParamInterface<const char*> {
 protected:
  Lists() : OperatorsCase(store_of(GetParam(), *this)) {
    store->set_plan([this](const once::testing::StoreCall& call) {
      if (call.operation == once::testing::StoreCall::Operation::list) ++lists;
      if (call.operation == once::testing::StoreCall::Operation::get) ++gets;
      return once::testing::Fault{};
    });
  }

  // Keys "k0000" to ..., each 97th with a label of its own; every third unknown, every third running.
  void fill(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      std::string name = std::to_string(10'000 + i);
      name.front() = 'k';
      Record record = once::testing::plain_record(Key(i % 2 == 0 ? "pay" : "mail", name).stored());
      record.created_at = now();
      record.expires_at = never;
      record.holder = "web-" + std::to_string(i % 5);
      record.label = i % 97 == 0 ? "order " + std::to_string(i) : "";
      if (i % 3 == 0) record.state = State::unknown;
      if (i % 3 == 1) record.lease_until = now() + std::chrono::hours(1);
      if (i % 3 == 2) record.state = State::completed;
      record.finished_at = record.state == State::in_progress ? Time{} : now();
      begin(std::move(record));
    }
    while (running_inserts > 0) std::this_thread::yield();
  }
  // All at once, so that a file is synchronised for many together.
  void begin(Record record) {
    ++running_inserts;
    store->insert(share(std::move(record)), [this](const Answer& answer) {
      EXPECT_EQ(answer.status, AnswerStatus::done);
      --running_inserts;
    });
  }

  struct All {
    std::vector<std::string> keys;  // As stored, in hexadecimal digits.
    std::size_t requests = 0;
    std::uint64_t searched = 0;
  };
  // Follows `next` to the end. `between` is called with the keys of each page.
  All all(const std::string& query, const std::function<void(const std::vector<std::string>&)>& between = {}) {
    All all;
    std::string after;
    do {
      const int before = lists;
      const http::Answer answer = get("/v1/records?" + query + (after.empty() ? "" : "&after=" + after));
      EXPECT_EQ(answer.status, 200U) << answer.body;
      if (answer.status != 200) break;
      EXPECT_LE(lists - before, 20);
      const json page = read(answer);
      std::vector<std::string> keys;
      for (const json& record : page["records"]) keys.push_back(record["stored_key_hex"]);
      if (between) between(keys);
      all.keys.insert(all.keys.end(), keys.begin(), keys.end());
      all.searched += page.value("searched", std::uint64_t{0});
      ++all.requests;
      after = page["next"].is_null() ? "" : page["next"].get<std::string>();
    } while (!after.empty() && all.requests < 1'000);
    return all;
  }
  void remove(const std::string& hex) {
    const std::string key = *text_of(hex);
    const Answer found = blocking::get(*store, key);
    ASSERT_TRUE(found.record);
    ASSERT_EQ(blocking::remove(*store, key, once::testing::seen_of(*found.record, found.place)).status,
              AnswerStatus::done);
  }
  static std::optional<std::string> text_of(const std::string& hex) {
    std::string bytes;
    for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
    }
    return bytes;
  }

  std::atomic<int> running_inserts = 0;
  int lists = 0;
  int gets = 0;
};

INSTANTIATE_TEST_SUITE_P(Stores, Lists, ::testing::Values("memory", "sqlite"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Lists, EveryPageSizeHasEveryRecordOnce) {
  fill(1'300);
  std::map<std::string, std::size_t> expected{{"", 1'300},
                                              {"state=unknown", 434},
                                              {"standing=running", 433},
                                              {"label=order", 14},
                                              {"scope=mail", 650},
                                              {"holder=web-3", 260},
                                              {"standing=unknown&holder=web-1", 87},
                                              {"standing=lapsed", 0},
                                              {"q=order", 14},
                                              {"q=k0", 1'000},
                                              {"standing=completed", 433}};
  for (const auto& [query, count] : expected) {
    for (const std::size_t limit : {1, 3, 97, 499, 500}) {
      if (limit <= 3 && count > 100) continue;
      const All found = all(query + (query.empty() ? "" : "&") + "limit=" + std::to_string(limit));
      EXPECT_EQ(found.keys.size(), count) << query << " by " << limit;
      EXPECT_EQ(std::set<std::string>(found.keys.begin(), found.keys.end()).size(), count) << query << " by " << limit;
    }
  }
}

// As the proxy writes its scopes. Other programs' scopes belong to no client.
TEST_P(Lists, TheRecordsOfOneClient) {
  const std::string alice(64, 'a');
  const std::string bob(64, 'b');
  const auto put = [this](const std::string& scope, const std::string& name) {
    begin(once::testing::plain_record(Key(scope, name).stored()));
  };
  for (int i = 0; i < 700; ++i) put("shop/POST /charges " + bob, "b" + std::to_string(i));
  for (int i = 0; i < 5; ++i) put("shop/POST /charges " + alice, "a" + std::to_string(i));
  put("PATCH /orders/{id} " + alice, "a5");
  put("a shop/POST /%23 " + alice, "a6");
  put("shop/POST /charges " + alice + "x", "no digest");
  put(alice, "no route");
  put("jobs " + alice, "no method");
  while (running_inserts > 0) std::this_thread::yield();
  for (const std::size_t limit : {1, 3, 500}) {
    const All found = all("client=" + alice + "&limit=" + std::to_string(limit));
    EXPECT_EQ(std::set<std::string>(found.keys.begin(), found.keys.end()).size(), 7U) << limit;
    EXPECT_EQ(found.keys.size(), 7U) << limit;
  }
  EXPECT_EQ(read(get("/v1/records?limit=500&client=" + std::string(64, 'A')))["searched"], 710);
  EXPECT_EQ(all("client=" + bob + "&q=b699").keys.size(), 1U);
  EXPECT_EQ(all("client=" + std::string(64, 'c')).keys.size(), 0U);
  for (const char* const wrong : {"alice", "", "5f0c"}) {
    EXPECT_EQ(get(std::string("/v1/records?client=") + wrong).status, 400U) << wrong;
  }
}

// Reading `limit` records at a time would take some 300 requests for these 14 records.
TEST_P(Lists, ASmallLimitReadsLargePages) {
  fill(1'300);
  lists = 0;
  const All found = all("label=order&limit=5");
  EXPECT_EQ(found.keys.size(), 14U);
  EXPECT_EQ(found.requests, 3U);
  EXPECT_LE(lists, 8);
}

// What the store can select is read as it is needed.
TEST_P(Lists, APageThatIsFullAtOnceIsOneRequestOfItsSize) {
  fill(600);
  lists = 0;
  EXPECT_EQ(read(get("/v1/records?standing=unknown&limit=7"))["searched"], 7);
  EXPECT_EQ(lists, 1);
}

TEST_P(Lists, WorkIsBoundedHoweverManyRecordsThereAre) {
  fill(1'300);
  const json first = read(get("/v1/records?q=no-such-text"));
  EXPECT_EQ(first["records"].size(), 0U);
  EXPECT_EQ(first["searched"], 1'300);
  EXPECT_EQ(first["next"], nullptr);
  // Of a store without end.
  class Endless final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void list(ListQuery query, Callback<void(ListPage)> done) override {
      ++lists;
      ListPage page;
      for (std::size_t i = 0; i < query.limit; ++i) {
        page.records.push_back(once::testing::plain_record("s#" + query.cursor + std::to_string(i)));
      }
      page.cursor = query.cursor.size() < 40 ? query.cursor + "c" : "";
      done(std::move(page));
    }
    int lists = 0;
  };
  const auto endless = std::make_shared<Endless>(store);
  const Operators many({.url = "x:", .store = endless}, token);
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  std::string target = "/v1/records?q=no-such-text&limit=1";
  std::vector<std::uint64_t> searched;
  for (std::string after; searched.size() < 10;) {
    const int before = endless->lists;
    const std::string asked = target + (after.empty() ? "" : "&after=" + after);
    const json page =
        read(many.answer({.method = "GET", .target = asked, .headers = headers, .body = {}, .principal = {}}));
    searched.push_back(page["searched"]);
    EXPECT_LE(endless->lists - before, 20);
    if (page["next"].is_null()) break;
    after = page["next"];
  }
  EXPECT_THAT(searched, ElementsAre(10'000, 10'000, 500));
}

// The place of the next page is told by the records before it, and those may be gone.
TEST_P(Lists, WhatIsRemovedBetweenPagesHidesNothing) {
  fill(1'300);
  for (const std::size_t removed_of_each : {1, 2, 4}) {
    std::set<std::string> gone;
    const All found = all("label=order&limit=4", [&](const std::vector<std::string>& page) {
      for (std::size_t i = 0; i < std::min(removed_of_each, page.size()); ++i) {
        gone.insert(page.at(page.size() - 1 - i));
        remove(page.at(page.size() - 1 - i));
      }
    });
    EXPECT_GE(found.requests, 4U);
    // All that were there are seen, each once.
    const std::set<std::string> seen(found.keys.begin(), found.keys.end());
    EXPECT_EQ(found.keys.size(), 14U) << removed_of_each;
    EXPECT_EQ(seen.size(), 14U) << removed_of_each;
    for (const std::string& key : all("label=order").keys) EXPECT_TRUE(seen.contains(key)) << key;
    for (const std::string& key : gone) {
      Record again = once::testing::plain_record(*text_of(key));
      again.state = State::unknown;
      again.label = "order again";
      again.expires_at = never;
      keep(std::move(again));
    }
  }
}

// Even if every record is gone that the place is told by, at the price that some come twice.
TEST_P(Lists, AWholePageThatIsRemovedHidesNothing) {
  fill(600);
  const json first = read(get("/v1/records?holder=web-1&limit=50"));
  const std::string next = first["next"];
  std::set<std::string> gone;
  for (const json& record : first["records"]) gone.insert(record["stored_key_hex"]);
  // Also those between them, which did not match.
  const std::string last = first["records"].back()["stored_key_hex"];
  for (const std::string& key : all("").keys) {
    gone.insert(key);
    if (key == last) break;
  }
  for (const std::string& key : gone) remove(key);
  std::set<std::string> rest;
  for (std::string after = next; !after.empty();) {
    const json page = read(get("/v1/records?holder=web-1&limit=50&after=" + after));
    for (const json& record : page["records"]) rest.insert(record["stored_key_hex"]);
    after = page["next"].is_null() ? "" : page["next"].get<std::string>();
  }
  EXPECT_EQ(rest.size(), 120U - 50U);
}

TEST_P(Lists, ASearchFindsByKeyLabelAndHolderAndSaysWhy) {
  Record record = once::testing::plain_record(Key("pay", "order-17").stored());
  record.expires_at = never;
  keep(record);
  record.key = Key("", "x1").stored();
  record.label = "about ORDER-17";
  keep(record);
  record.key = Key("pay", "x2").stored();
  record.label = "order-17";
  keep(record);
  record.key = Key("pay", "x3").stored();
  record.label = "";
  record.holder = "worker of order-17";
  keep(record);
  record.key = Key("pay", "x4").stored();
  record.holder = "order-17";
  keep(record);
  record.key = Key("pay", "x5").stored();
  record.holder = "web-1";
  keep(record);
  const json page = read(get("/v1/records?q=order-17"));
  std::vector<std::pair<std::string, std::string>> found;
  for (const json& one : page["records"]) found.emplace_back(one["key"], one["match"]);
  std::sort(found.begin(), found.begin() + 3);
  std::sort(found.begin() + 3, found.end());
  EXPECT_THAT(found, ElementsAre(std::pair("order-17", "key"), std::pair("x2", "label"), std::pair("x4", "holder"),
                                 std::pair("x1", "part of label"), std::pair("x3", "part of holder")));
  EXPECT_EQ(page["searched"], 6);
  EXPECT_EQ(page["next"], nullptr);
  EXPECT_EQ(read(get("/v1/records?q=order-17&scope=pay"))["records"].size(), 4U);
  EXPECT_EQ(read(get("/v1/records?q=order-17&standing=completed"))["records"].size(), 0U);
}

// In the scopes that are known, without reading what is before it.
TEST_P(Lists, TheKeyItselfIsLookedUpAtOnceAndComesOnce) {
  fill(1'200);
  OverviewSources sources;
  sources.figures = [] { return std::optional(StoreFigures{.prefixes = {"mail", "pay"}}); };
  const Operators knowing({.url = "x:", .store = store}, token, sources);
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  const auto ask_it = [&](const std::string& target) {
    return read(knowing.answer({.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}}));
  };
  lists = gets = 0;
  const json first = ask_it("/v1/records?q=k1199&limit=1");  // In scope mail.
  ASSERT_EQ(first["records"].size(), 1U);
  EXPECT_EQ(first["records"][0]["match"], "key");
  EXPECT_EQ(first["searched"], 1);
  EXPECT_EQ(lists, 0);
  EXPECT_EQ(gets, 2);  // In the empty scope, then in mail.
  const json next = ask_it("/v1/records?q=k1199&limit=1&after=" + first["next"].get<std::string>());
  EXPECT_EQ(next["records"].size(), 0U);
  EXPECT_EQ(next["next"], nullptr);
  // As stored, in hexadecimal digits, and as lists print it.
  for (const std::string& text : {std::string("mail%23k1199"), to_hex("mail#k1199"), std::string("mail/k1199")}) {
    lists = 0;
    EXPECT_EQ(ask_it("/v1/records?limit=1&q=" + text)["records"][0]["match"], "scope and key") << text;
    EXPECT_EQ(lists, 0) << text;
  }
  EXPECT_EQ(ask_it("/v1/records?q=k1199&scope=pay")["records"].size(), 0U);
}

TEST_P(Lists, TheCursorIsOpaqueAndBelongsToItsList) {
  fill(700);
  const std::string next = read(get("/v1/records?label=order&limit=2"))["next"];
  EXPECT_EQ(get("/v1/records?label=order&limit=3&after=" + next).status, 200U);
  expect_problem(get("/v1/records?label=orde&limit=2&after=" + next), 400, "bad-request", "other parameters");
  expect_problem(get("/v1/records?after=" + next), 400, "bad-request", "other parameters");
  expect_problem(get("/v1/records?after=6b"), 400, "bad-request", "not the next of an answer");
  expect_problem(get("/v1/records?after="), 400, "bad-request", "not the next of an answer");
  for (std::size_t cut = 2; cut < next.size(); cut += 2) {
    EXPECT_EQ(get("/v1/records?label=order&after=" + next.substr(cut)).status, 400U) << cut;
    EXPECT_EQ(get("/v1/records?label=order&after=" + next.substr(0, next.size() - cut)).status, 400U) << cut;
  }
}

// A store of a kind that refuses cursors of another.
TEST_P(Lists, ACursorThatTheStoreRefusesIsTheClients) {
  class Refusing final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void list(ListQuery query, Callback<void(ListPage)> done) override {
      if (query.cursor.empty() && !forbids) return ForwardingStore::list(std::move(query), std::move(done));
      ListPage page;
      page.error = Error{ErrorKind::misuse, "not a cursor of mine"};
      done(std::move(page));
    }
    bool forbids = false;
  };
  fill(20);
  const std::string next = read(get("/v1/records?limit=5"))["next"];
  const auto refusing = std::make_shared<Refusing>(store);
  const Operators other({.url = "x:", .store = refusing}, token);
  const std::string target = "/v1/records?limit=5&after=" + next;
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  const http::Request request{.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}};
  expect_problem(other.answer(request), 400, "bad-request", "of no list of this store");
  refusing->forbids = true;
  expect_problem(other.answer(request), 503, "store-unavailable", "not a cursor of mine");
}

// They are told once, by the request that reads their page first, and hide no others.
TEST_P(Lists, RecordsThatCannotBeReadAreToldOnceAndHideNoOthers) {
  class Damaged final : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    void list(ListQuery query, Callback<void(ListPage)> done) override {
      const bool is_first = query.cursor.empty();
      ForwardingStore::list(std::move(query), [is_first, done = std::move(done)](ListPage page) mutable {
        if (is_first) page.unreadable.push_back({ErrorKind::corrupt, "this one is damaged"});
        done(std::move(page));
      });
    }
  };
  fill(300);
  const Operators damaged({.url = "x:", .store = std::make_shared<Damaged>(store)}, token);
  const std::vector<http::HeaderView> headers{{"Host", "localhost"}};
  std::size_t found = 0;
  std::size_t told = 0;
  std::string after;
  for (int requests = 0; requests < 20; ++requests) {
    const std::string target = "/v1/records?q=order&limit=1" + (after.empty() ? "" : "&after=" + after);
    const json page =
        read(damaged.answer({.method = "GET", .target = target, .headers = headers, .body = {}, .principal = {}}));
    found += page["records"].size();
    if (page.contains("unreadable")) told += page["unreadable"].size();
    if (page["next"].is_null()) break;
    after = page["next"];
  }
  EXPECT_EQ(found, 4U);
  EXPECT_EQ(told, 1U);
}

TEST_P(Lists, SortsOnlyAsAnIndexDoes) {
  fill(3);
  EXPECT_EQ(read(get("/v1/records?sort=store"))["records"].size(), 3U);
  for (const char* const sort : {"created", "key", "-store", ""}) {
    expect_problem(get(std::string("/v1/records?sort=") + sort), 400, "bad-request", "no index");
  }
}

TEST_P(Lists, StandingsAreTheWordsOfTheGlossary) {
  const auto make = [&](const std::string& name, const std::function<void(Record&)>& change) {
    Record record = once::testing::plain_record(Key("pay", name).stored());
    record.expires_at = never;
    record.lease_until = now() + std::chrono::hours(1);
    change(record);
    keep(std::move(record));
  };
  make("running", [](Record&) {});
  make("late", [](Record& record) { record.expected_until = now() - std::chrono::hours(1); });
  make("lapsed", [](Record& record) { record.lease_until = now() - std::chrono::hours(1); });
  make("released", [](Record& record) { record.lease_until = Time{}; });
  make("completed", [](Record& record) { record.state = State::completed; });
  make("failed", [](Record& record) { record.state = State::failed; });
  make("unknown", [](Record& record) { record.state = State::unknown; });
  make("expired", [](Record& record) { record.expires_at = now() - std::chrono::hours(1); });
  const std::map<std::string, std::set<std::string>> expected{
      {"running", {"running", "late"}},
      {"overdue", {"late"}},
      {"lapsed", {"lapsed"}},
      {"released", {"released"}},
      {"completed", {"completed"}},
      {"failed", {"failed"}},
      {"unknown", {"unknown"}},
      {"expired", {"expired"}},
      {"in_progress", {"running", "late", "lapsed", "released"}}};
  for (const auto& [standing, names] : expected) {
    std::set<std::string> found;
    const json page = read(get("/v1/records?standing=" + standing));
    for (const json& record : page["records"]) found.insert(record["key"]);
    EXPECT_EQ(found, names) << standing;
  }
  expect_problem(get("/v1/records?standing=lost"), 400, "bad-request", "it is one of unknown, failed, lapsed, overdue");
  expect_problem(get("/v1/records?standing=failed&state=failed"), 400, "bad-request", "not both");
}

// Programs that read lists today find what they know, and nothing else.
TEST_P(Lists, PlainAnswersAreAsTheyWere) {
  fill(3);
  const json page = read(get("/v1/records?state=unknown"));
  EXPECT_EQ(page.size(), 2U);
  EXPECT_TRUE(page.contains("records") && page.contains("next"));
  EXPECT_FALSE(page["records"][0].contains("match"));
  EXPECT_FALSE(page["records"][0].contains("input"));
}

}  // namespace operators_lists_test
}  // namespace once::operators
