#include <once/idempotent.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <once/codec_json.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

namespace idempotent_test {

using testing::HasSubstr;

struct Order {
  std::string id;
  std::int64_t cents = 0;
};
// Arguments need only the way to JSON.
void to_json(nlohmann::json& json, const Order& order) { json = {{"id", order.id}, {"cents", order.cents}}; }

struct Receipt {
  std::string charge;
  std::int64_t cents = 0;
  friend bool operator==(const Receipt&, const Receipt&) = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, charge, cents)

struct Parcel {
  std::string id = {};
  std::map<std::string, std::string> place = {};
  int weight_g = 0;
};
ONCE_JSON(Parcel, id, place, weight_g)

struct InsuredParcel : Parcel {
  bool insured = false;
};
[[maybe_unused]] void to_json(nlohmann::json& json, const InsuredParcel& parcel) {
  to_json(json, static_cast<const Parcel&>(parcel));
  json["insured"] = parcel.insured;
}

// A move-only result with its own codec.
struct Ticket {
  std::unique_ptr<int> seat;
};

// An argument that no codec knows: a connection, say.
struct Database {
  Database() = default;
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  int writes = 0;
};

struct Poison {};  // Cannot be encoded after all.

struct Image {};  // Not JSON.

}  // namespace idempotent_test

template <>
struct once::Codec<idempotent_test::Ticket> {
  static constexpr std::string_view content_type = "application/x-ticket";
  static std::string encode(const idempotent_test::Ticket& ticket) { return "seat " + std::to_string(*ticket.seat); }
  static idempotent_test::Ticket decode(std::string_view bytes) {
    if (!bytes.starts_with("seat ")) throw Exception(ErrorKind::corrupt, "no ticket");
    return {std::make_unique<int>(std::stoi(std::string(bytes.substr(5))))};
  }
};

template <>
struct once::Codec<idempotent_test::Poison> {
  static constexpr std::string_view content_type = "";
  static std::string encode(const idempotent_test::Poison&) { throw Exception(ErrorKind::misuse, "poison"); }
  static idempotent_test::Poison decode(std::string_view) { return {}; }
};

template <>
struct once::Codec<idempotent_test::Image> {
  static constexpr std::string_view content_type = "image/png";
  static std::string encode(const idempotent_test::Image&) { return "png"; }
  static idempotent_test::Image decode(std::string_view) { return {}; }
};

namespace idempotent_test {

class IdempotentTest : public testing::Test {
 protected:
  std::shared_ptr<once::Store> store = once::stores::make_memory_store();
  std::vector<once::EventKind> events;
  once::Engine engine{{.store = store, .scope = "payments", .observer = [this](const once::Event& event) {
                         events.push_back(event.kind);
                       }}};
  int runs = 0;

  std::vector<once::Record> records() {
    once::ListPage page = once::blocking::list(*store, {});
    EXPECT_FALSE(page.error);
    return std::move(page.records);
  }

  template <class F>
  std::string misuse(F&& make) {
    try {
      std::forward<F>(make)();
    } catch (const once::Exception& error) {
      EXPECT_EQ(error.kind(), once::ErrorKind::misuse);
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
};

TEST_F(IdempotentTest, AnExpressionSelectsTheKeyAndEverybodyGetsTheFirstResult) {
  const auto charge = once::idempotent(engine, {.name = "charge", .key = "id"}, [&](const Order& order) {
    return Receipt{"ch_" + std::to_string(++runs), order.cents};
  });
  EXPECT_EQ(charge({"17", 500}), (Receipt{"ch_1", 500}));
  EXPECT_EQ(charge({"17", 900}), (Receipt{"ch_1", 500})) << "only the id is the key";
  EXPECT_EQ(charge({"18", 500}), (Receipt{"ch_2", 500}));
  ASSERT_EQ(records().size(), 2U);
  EXPECT_THAT(records()[0].key, testing::StartsWith("payments/charge#"));
  EXPECT_EQ(records()[0].result.content_type, "application/json");
}

TEST_F(IdempotentTest, ArgumentsAreTheInputIfThatIsChosenWithoutWhatIsLeftOut) {
  const once::Policy keeps{.keep_input = true};
  const Database database;
  const auto inputs = [&] {
    std::map<std::string, std::string> out;
    for (const auto& record : records()) out[once::Key::from_stored(record.key).scope()] = record.input;
    return out;
  };
  once::idempotent(engine, {.name = "off", .key = &Order::id, .input_without = {"cents"}},
                   [](const Order&) {})({"17", 500});
  once::idempotent(engine, {.name = "one", .key = &Order::id, .input_without = {"cents"}, .policy = keeps},
                   [](const Order&) {})({"17", 500});
  once::idempotent(engine, {.name = "text", .policy = keeps}, [](const std::string&) {})("4111\xFF");
  once::idempotent(engine, {.name = "not JSON", .input_without = {"card"}, .policy = keeps},
                   [](const std::string&) {})("card=4111");
  once::idempotent(engine, {.name = "several", .key = &Order::id, .input_without = {"[2].cents"}, .policy = keeps},
                   [](const Database&, const std::string&, const Order&, int) {})(database, "a\"b", {"17", 500}, 5);
  once::idempotent(engine, {.name = "none", .key = [] { return "k"; }, .policy = keeps}, [] {})();
  EXPECT_EQ(inputs(), (std::map<std::string, std::string>{
                          {"payments/off", ""},
                          {"payments/one", R"j({"cents":"(left out)","id":"17"})j"},
                          {"payments/text", "4111\xFF"},
                          {"payments/not JSON", ""},
                          {"payments/several", R"j([null,"a\"b",{"cents":"(left out)","id":"17"},5])j"},
                          {"payments/none", ""}}));
}

TEST_F(IdempotentTest, AFieldThatIsLeftOutMustExist) {
  EXPECT_THAT(
      misuse([&] {
        once::idempotent(engine, {.name = "ship", .key = &Parcel::id, .input_without = {"palce.street"}},
                         [](const Parcel&) {});
      }),
      HasSubstr(R"(operation 'payments/ship': the expression of what to leave out "palce.street" begins with)"));
  EXPECT_THAT(misuse([&] {
                once::idempotent(engine, {.name = "charge", .key = &Order::id, .input_without = {"length(id)"}},
                                 [](const Order&) {});
              }),
              HasSubstr("does not say where a field stands"));
  once::idempotent(engine, {.name = "ship", .key = &Parcel::id, .input_without = {"place.street"}},
                   [](const Parcel&) {});
}

TEST_F(IdempotentTest, AKeyIsALabelIfThatIsChosen) {
  const auto work = [&](const Order&) { return ++runs; };
  const once::Policy all{.label = once::Label::all};
  once::idempotent(engine, {.name = "usual", .key = "id"}, work)({"17", 500});
  once::idempotent(engine, {.name = "expression", .key = "id", .policy = all}, work)({"17", 500});
  once::idempotent(engine, {.name = "member", .key = &Order::id, .policy = all}, work)({"17", 500});
  once::idempotent(engine, {.name = "arguments", .policy = all}, [&](const std::string&, int) { return ++runs; })("a b",
                                                                                                                  5);
  std::map<std::string, std::string> labels;
  for (const auto& record : records()) labels[once::Key::from_stored(record.key).scope()] = record.label;
  EXPECT_EQ(labels, (std::map<std::string, std::string>{{"payments/arguments", "a b 5"},
                                                        {"payments/expression", "17"},
                                                        {"payments/member", "17"},
                                                        {"payments/usual", ""}}));
}

TEST_F(IdempotentTest, TheIndexChoosesTheArgument) {
  const auto charge = once::idempotent<1>(engine, {.name = "charge", .key = "id"},
                                          [&](Database& database, const Order&) { return ++database.writes; });
  Database database;
  EXPECT_EQ(charge(database, {"17", 1}), 1);
  EXPECT_EQ(charge(database, {"17", 2}), 1);
  EXPECT_EQ(charge(database, {"18", 1}), 2);
  EXPECT_EQ(database.writes, 2) << "reference arguments reach the callable as they are";
}

TEST_F(IdempotentTest, AStringArgumentIsTakenAsTheJsonItHolds) {
  const auto handle = once::idempotent(engine, {.name = "handle", .key = "powertools_json(body).order"},
                                       [&](const std::string&) { return std::to_string(++runs); });
  EXPECT_EQ(handle(R"({"body": "{\"order\": 7}"})"), "1");
  EXPECT_EQ(handle(R"({"body": "{ \"order\" : 7, \"try\": 2 }", "more": 1})"), "1");
  EXPECT_EQ(handle(R"({"body": "{\"order\": 8}"})"), "2");
  EXPECT_THROW(handle("no json"), once::Exception);
  EXPECT_THROW(handle(R"({"body": 5})"), once::Exception) << "an expression that fails is an error, not a missing key";
  EXPECT_EQ(runs, 2);
}

TEST_F(IdempotentTest, AFunctionOfTheArgumentsGivesTheKey) {
  const auto by_member =
      once::idempotent(engine, {.name = "charge", .key = &Order::id}, [&](const Order&) { return ++runs; });
  EXPECT_EQ(by_member({"17", 1}), 1);
  EXPECT_EQ(by_member({"17", 2}), 1);
  EXPECT_EQ(records().at(0).key, "payments/charge#17") << "a key that people can read";

  const auto by_number = once::idempotent(
      engine, {.name = "refund", .key = [](const Order& order, int part) { return order.cents + part; }},
      [&](const Order&, int) { return ++runs; });
  EXPECT_EQ(by_number({"17", 10}, 5), 2);
  EXPECT_EQ(by_number({"18", 9}, 6), 2);
  EXPECT_EQ(by_number({"17", 10}, 6), 3);
}

TEST_F(IdempotentTest, TheDigestOfAllArgumentsIsTheKeyWithoutAnyOther) {
  const auto join = once::idempotent(engine, {.name = "join"}, [&](const std::string& a, const std::string& b) {
    ++runs;
    return a + b;
  });
  EXPECT_EQ(join("ab", "c"), "abc");
  EXPECT_EQ(join("a", "bc"), "abc");
  EXPECT_EQ(runs, 2) << "the arguments are kept apart";
  EXPECT_EQ(join("ab", "c"), "abc");
  EXPECT_EQ(runs, 2);

  const auto take = once::idempotent(engine, {.name = "take"}, [&](const nlohmann::json&, int) { return ++runs; });
  EXPECT_EQ(take(nlohmann::json::parse(R"({"a": 1, "b": 2.0})"), 1), 3);
  EXPECT_EQ(take(nlohmann::json::parse(R"({"b": 2, "a": 1})"), 1), 3) << "JSON counts in its canonical form";
  EXPECT_EQ(take(nlohmann::json::parse(R"({"b": 2, "a": 1})"), 2), 4);

  const auto start = once::idempotent(engine, {.name = "start"}, [&] { return ++runs; });
  EXPECT_EQ(start(), 5);
  EXPECT_EQ(start(), 5);
}

TEST_F(IdempotentTest, ADigestIsTheOneThatTheKeyCommandShows) {
  const auto take = once::idempotent(engine, {.name = "take"}, [](const nlohmann::json&) {});
  take(nlohmann::json::parse(R"({"b": 2, "a": 1})"));
  EXPECT_EQ(records().at(0).key, "payments/take#" + once::to_hex(once::sha256(R"({"a":1,"b":2})")));
}

TEST_F(IdempotentTest, ValidationCatchesAKeyThatIsUsedForSomethingElse) {
  const auto charge = once::idempotent(engine, {.name = "charge", .key = "id", .fingerprint = "cents"},
                                       [&](const Order&) { return ++runs; });
  EXPECT_EQ(charge({"17", 500}), 1);
  EXPECT_THROW(charge({"17", 900}), once::Mismatch);
  EXPECT_EQ(charge({"17", 500}), 1);

  const auto by_function = once::idempotent(engine, {.name = "refund", .key = &Order::id, .fingerprint = "cents"},
                                            [&](const Order&) { return ++runs; });
  EXPECT_EQ(by_function({"17", 500}), 2);
  EXPECT_THROW(by_function({"17", 900}), once::Mismatch);
  EXPECT_EQ(by_function.outcome({"17", 900}).kind, once::Outcome::Kind::mismatch);
}

TEST_F(IdempotentTest, OperationsOfOneEngineAreKeptApart) {
  const auto charge = once::idempotent(engine, {.name = "charge", .key = &Order::id}, [](const Order&) { return 1; });
  const auto refund = once::idempotent(engine, {.name = "refund", .key = &Order::id}, [](const Order&) { return 2; });
  const auto other = once::idempotent(engine, {.key = &Order::id, .scope = "legacy"}, [](const Order&) { return 3; });
  EXPECT_EQ(charge({"17", 1}), 1);
  EXPECT_EQ(refund({"17", 1}), 2);
  EXPECT_EQ(other({"17", 1}), 3);
}

TEST_F(IdempotentTest, AResultMayBeNothing) {
  const auto send = once::idempotent(engine, {.name = "send"}, [&](const std::string&) { ++runs; });
  send("a");
  send("a");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(send.outcome("a").kind, once::Outcome::Kind::replayed);
  send.outcome("a").value();
  static_assert(std::is_void_v<decltype(send("a"))>);
}

TEST_F(IdempotentTest, ResultsAndArgumentsMayBeMoveOnly) {
  const auto book =
      once::idempotent(engine, {.name = "book", .key = [](const std::unique_ptr<int>& seat) { return *seat; }},
                       [&](std::unique_ptr<int> seat) { return Ticket{std::move(seat)}; });
  EXPECT_EQ(*book(std::make_unique<int>(4)).seat, 4);
  EXPECT_EQ(*book(std::make_unique<int>(4)).seat, 4) << "replayed";
  once::OutcomeOf<Ticket> outcome = book.outcome(std::make_unique<int>(4));
  EXPECT_EQ(outcome.kind, once::Outcome::Kind::replayed);
  ASSERT_TRUE(outcome.answer);
  EXPECT_EQ(*std::move(outcome).value().seat, 4);
}

TEST_F(IdempotentTest, ResultsOfEveryKindComeBack) {
  const auto bytes = once::idempotent(engine, {.name = "bytes"}, [] {
    return std::vector<std::byte>{std::byte{0}, std::byte{255}};
  });
  EXPECT_EQ(bytes(), bytes());
  EXPECT_EQ(bytes().size(), 2U);

  const auto fraction = once::idempotent(engine, {.name = "fraction"}, [] { return 0.1 + 0.2; });
  EXPECT_EQ(fraction(), 0.1 + 0.2);
  EXPECT_EQ(fraction(), 0.1 + 0.2);

  const auto plain = once::idempotent(engine, {.name = "plain"},
                                      [] { return once::Result::inlined(std::string("\0x", 2), "text/x"); });
  EXPECT_EQ(plain(), plain());
  EXPECT_EQ(plain().content_type, "text/x");

  const auto list = once::idempotent(engine, {.name = "list"}, [] { return std::vector<Receipt>{{"a", 1}, {"b", 2}}; });
  EXPECT_EQ(list(), list());
  EXPECT_EQ(list().at(1).charge, "b");
}

int counted(int value) noexcept { return value + 1; }

TEST_F(IdempotentTest, AnyCallableWithOneSignatureWillDo) {
  const auto function = once::idempotent(engine, {.name = "function"}, counted);
  EXPECT_EQ(function(1), 2);
  const auto pointer = once::idempotent(engine, {.name = "pointer"}, &counted);
  EXPECT_EQ(pointer(1), 2);
  const std::function<int(int)> wrapped = counted;
  const auto standard = once::idempotent(engine, {.name = "standard"}, wrapped);
  EXPECT_EQ(standard(1), 2);
  const auto changing = once::idempotent(engine, {.name = "changing"}, [calls = 0](int) mutable { return ++calls; });
  EXPECT_EQ(changing(1), 1);
  EXPECT_EQ(changing(2), 2);
  EXPECT_EQ(changing(1), 1);
  const std::function<int(int)> again = changing;  // It is a callable with fn's signature itself.
  EXPECT_EQ(again(2), 2);
}

TEST_F(IdempotentTest, TheContextComesFirstAndIsNoArgument) {
  std::string sent;
  const auto charge =
      once::idempotent(engine, {.name = "charge", .key = "id"}, [&](once::Context& context, const Order& order) {
        sent = context.derived_key("stripe");
        EXPECT_EQ(context.attempt(), 1U);
        return context.step("charge", [&] { return order.cents; });
      });
  EXPECT_EQ(charge({"17", 500}), 500);
  EXPECT_EQ(sent.size(), 64U);
}

TEST_F(IdempotentTest, WithoutAKeyItIsRefusedOrRunsUnprotectedIfThatIsChosen) {
  const once::Policy chosen{.on_missing_key = once::OnMissingKey::run_unprotected};
  const auto lenient = once::idempotent(engine, {.name = "lenient", .key = "id", .policy = chosen},
                                        [&](const Order&) { return ++runs; });
  EXPECT_EQ(lenient({"", 1}), 1);
  EXPECT_EQ(lenient({"", 1}), 2);
  EXPECT_EQ(lenient.outcome({"", 1}).kind, once::Outcome::Kind::unprotected);
  EXPECT_EQ(events, std::vector(3, once::EventKind::unprotected)) << "never silently";
  EXPECT_TRUE(records().empty());

  const auto of_order = [](const Order& order) { return order.id.empty() ? std::nullopt : std::optional(order.id); };
  const auto refusing =
      once::idempotent(engine, {.name = "refusing", .key = of_order}, [&](const Order&) { return ++runs; });
  EXPECT_THAT(misuse([&] {
                refusing({"", 1});
              }),
              HasSubstr("operation 'payments/refusing' was not run: these arguments have no key"));
  EXPECT_EQ(refusing.outcome({"", 1}).kind, once::Outcome::Kind::error);
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(refusing({"17", 1}), 4);

  const auto by_function = once::idempotent(engine, {.name = "by function", .key = of_order, .policy = chosen},
                                            [&](const Order&) { return ++runs; });
  EXPECT_EQ(by_function.outcome({"", 1}).kind, once::Outcome::Kind::unprotected);
}

TEST_F(IdempotentTest, ATypoInAnExpressionIsRefusedWhenItIsCalled) {
  const auto charge = [&](const Order&) { return ++runs; };
  const auto typo = once::idempotent(engine, {.name = "typo", .key = "order_id"}, charge);
  EXPECT_THAT(misuse([&] {
                typo({"17", 1});
              }),
              HasSubstr("operation 'payments/typo' was not run: the event has no key"));
  const auto compares =
      once::idempotent(engine, {.name = "compares", .key = "id", .fingerprint = "[cent, total]"}, charge);
  EXPECT_THAT(misuse([&] { compares({"17", 1}); }), HasSubstr("nothing to compare"));
  const auto by_function =
      once::idempotent(engine, {.name = "by function", .key = &Order::id, .fingerprint = "cent"}, charge);
  EXPECT_THAT(misuse([&] { by_function({"17", 1}); }), HasSubstr("nothing to compare"));
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(records().empty());

  // Where running without a key is chosen, a key alone will do as well.
  const once::Policy chosen{.on_missing_key = once::OnMissingKey::run_unprotected};
  const auto lenient =
      once::idempotent(engine, {.name = "lenient", .key = "id", .fingerprint = "cent", .policy = chosen}, charge);
  EXPECT_EQ(lenient({"17", 1}), 1);
  EXPECT_EQ(lenient({"17", 2}), 1);
}

TEST_F(IdempotentTest, AnExpressionThatCanNeverSelectIsRefusedWhenItIsMadeIfTheNamesAreKnown) {
  const auto make = [&](const char* key, const char* fingerprint) {
    return [&, key, fingerprint] {
      once::idempotent(engine, {.name = "a", .key = key, .fingerprint = fingerprint}, [](const Parcel&) {});
    };
  };
  EXPECT_THAT(misuse(make("parcel_id", "")),
              HasSubstr(R"("parcel_id", which does not exist: there is id, place, weight_g)"));
  EXPECT_THAT(misuse(make("id", "weight")), HasSubstr("operation 'payments/a': the fingerprint expression"));
  EXPECT_THAT(misuse(make("[id, plaec.city]", "")), HasSubstr("plaec"));
  EXPECT_THAT(misuse(make("@.ids", "")), HasSubstr(R"("ids")"));
  EXPECT_THAT(misuse(make("to_string(no)", "")), HasSubstr(R"("no")"));
  EXPECT_THAT(misuse(make("\"place.city\"", "")), HasSubstr("did you mean place.city without quotes?"));
  for (const char* const good : {"id", "@", "place.anything", "[id, place]", "{a: id, b: 'const'}", "id || place.x",
                                 "place | city", "place.items[?city == 'x'].name", "sort_by(place, &city)"}) {
    EXPECT_NO_THROW(make(good, "weight_g")()) << good;
  }
  // Who writes to_json may write other names for other values, and who derives from a type adds some.
  once::idempotent(engine, {.name = "a", .key = "order_id"}, [](const Order&) {});
  once::idempotent(engine, {.name = "a", .key = "insured"}, [](const InsuredParcel&) {});
  EXPECT_EQ(nlohmann::json(Parcel{.id = "p-1"}).get<Parcel>().id, "p-1") << "ONCE_JSON is the codec as well";
  once::idempotent(engine, {.name = "a", .key = "any"}, [](const std::map<std::string, Parcel>&) {});
  once::idempotent(engine, {.name = "a", .key = "[0].any"}, [](const std::vector<Parcel>&) {});
}

TEST_F(IdempotentTest, WhoComesWhileItRunsGetsItsResult) {
  const auto clock = std::make_shared<once::testing::ManualClock>();
  const auto timers = std::make_shared<once::testing::ManualTimers>(clock);
  once::Engine timed({.store = store, .clock = clock, .timers = timers});
  std::future<int> second;
  const auto charge = once::idempotent(timed, {.name = "charge", .key = "id"}, [&](const Order&) {
    const std::size_t before = timers->pending();
    second = std::async(std::launch::async, [&] {
      const auto again = once::idempotent(timed, {.name = "charge", .key = "id"}, [&](const Order&) { return 2; });
      return again({"17", 1});
    });
    while (timers->pending() == before) std::this_thread::yield();  // Until it waits.
    return 1;
  });
  EXPECT_EQ(charge({"17", 1}), 1);
  EXPECT_EQ(second.get(), 1);
}

TEST_F(IdempotentTest, ACallOfItselfWithTheSameKeyFailsAtOnce) {
  std::function<int(const Order&)> again;
  const auto charge = once::idempotent(engine, {.name = "charge", .key = "id"}, [&](const Order& order) {
    ++runs;
    return order.cents == 1 ? again({order.id, 2}) : 0;
  });
  again = charge;
  EXPECT_THAT(misuse([&] { charge({"17", 1}); }), HasSubstr("would wait for itself"));
  EXPECT_EQ(runs, 1);
  again = [&](const Order&) { return charge({"18", 2}); };
  EXPECT_EQ(charge({"17", 1}), 0) << "another key";
}

TEST_F(IdempotentTest, WhatTheCallableThrowsPassesThroughAndARetryRuns) {
  const auto flaky = once::idempotent(engine, {.name = "flaky"}, [&](int) {
    if (++runs == 1) throw std::runtime_error("gateway");
    return runs;
  });
  EXPECT_THROW(flaky(1), std::runtime_error);
  EXPECT_EQ(flaky(1), 2);
  EXPECT_EQ(flaky(1), 2);

  once::Policy store_failures;
  store_failures.on_throw = once::OnThrow::store;
  const auto failing = once::idempotent(engine, {.name = "failing", .policy = store_failures},
                                        [&](int) -> int { throw std::runtime_error("card declined"); });
  EXPECT_THROW(failing(1), std::runtime_error);
  EXPECT_THROW(failing(1), once::StoredFailure);
  EXPECT_EQ(failing.outcome(1).kind, once::Outcome::Kind::stored_failure);
}

TEST_F(IdempotentTest, ALiveClaimOfSomebodyElseIsAConflict) {
  const auto charge =
      once::idempotent(engine, {.name = "charge", .key = &Order::id, .policy = {.on_conflict = once::OnConflict::fail}},
                       [&](const Order&) { return ++runs; });
  once::Begin other = engine.begin({.key = once::Key("payments/charge", "17"), .fingerprint = {}});
  ASSERT_EQ(other.kind, once::Begin::Kind::claimed);
  EXPECT_THROW(charge({"17", 1}), once::Conflict);
  const auto outcome = charge.outcome({"17", 1});
  EXPECT_EQ(outcome.kind, once::Outcome::Kind::conflict);
  EXPECT_GT(outcome.retry_after.count(), 0);
  EXPECT_FALSE(outcome.answer);
  other.claim.complete(once::Result::inlined("42", "application/json"));
  EXPECT_EQ(charge({"17", 1}), 42) << "the result of another program, in the same encoding";
  EXPECT_EQ(runs, 0);
}

TEST_F(IdempotentTest, AStoredResultOfAnotherTypeIsAnError) {
  const auto before =
      once::idempotent(engine, {.name = "charge"}, [](int) { return Ticket{std::make_unique<int>(1)}; });
  const auto after = once::idempotent(engine, {.name = "charge"}, [&](int) { return Receipt{"a", ++runs}; });
  const auto number = once::idempotent(engine, {.name = "charge"}, [&](int) { return ++runs; });
  EXPECT_EQ(*before(1).seat, 1);
  try {
    after(1);
    ADD_FAILURE() << "decoded a ticket as a receipt";
  } catch (const once::Exception& error) {
    EXPECT_EQ(error.kind(), once::ErrorKind::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("application/x-ticket"));
  }
  EXPECT_EQ(after(2).charge, "a");
  const auto outcome = number.outcome(2);
  EXPECT_EQ(outcome.kind, once::Outcome::Kind::error) << "a receipt is no number";
  EXPECT_EQ(outcome.error.kind, once::ErrorKind::corrupt);
  EXPECT_NE(outcome.record, nullptr);
  EXPECT_EQ(runs, 1);
}

TEST_F(IdempotentTest, AResultThatCannotBeEncodedIsAnErrorAndNoSecondRun) {
  const auto poison = once::idempotent(engine, {.name = "poison"}, [&](int) {
    ++runs;
    return Poison{};
  });
  EXPECT_THAT(misuse([&] { poison(1); }), HasSubstr("poison"));
  EXPECT_THROW(poison(1), once::ResultDropped);
  EXPECT_EQ(runs, 1);
  const auto replay = poison.outcome(1);
  EXPECT_EQ(replay.kind, once::Outcome::Kind::replayed);
  EXPECT_FALSE(replay.answer);
}

TEST_F(IdempotentTest, AnOperationThatCannotWorkIsRefusedWhenItIsMade) {
  const auto charge = [](const Order&) {};
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {}, charge); }), HasSubstr("Operation::name"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .scope = "b"}, charge); }), HasSubstr("either"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a/b"}, charge); }), HasSubstr("contains '/'"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .key = "id["}, charge); }), HasSubstr("id["));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .fingerprint = "cents"}, charge); }),
              HasSubstr("never differ"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .key = ""}, charge); }), HasSubstr("empty"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .key = "id"}, [] {}); }), HasSubstr("no arguments"));
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .key = "id"}, [](const Image&) {}); }),
              HasSubstr("image/png"));
  EXPECT_THAT(misuse([&] {
                once::idempotent(engine, {.name = "a", .key = [](const Database&) { return 1; }, .fingerprint = "id"},
                                 [](Database&) {});
              }),
              HasSubstr("which has no once::Codec"));
  once::Policy policy;
  policy.lease = once::Millis(1);
  EXPECT_THAT(misuse([&] { once::idempotent(engine, {.name = "a", .policy = policy}, charge); }), HasSubstr("lease"));
}

TEST_F(IdempotentTest, SeveralMembersAreOneKeyAndAreKeptApart) {
  struct Item {
    std::string tenant;
    std::optional<std::string> id;
    int line = 0;
  };
  const auto charge =
      once::idempotent(engine, {.name = "charge", .key = once::key(&Item::tenant, &Item::id, &Item::line)},
                       [&](Database&, const Item&) { return ++runs; });
  Database database;
  EXPECT_EQ(charge(database, {"acme", "17", 1}), 1);
  EXPECT_EQ(records().at(0).key, "payments/charge#acme/17/1") << "a key that people can read";
  EXPECT_EQ(charge(database, {"acme", "17", 1}), 1);
  EXPECT_EQ(charge(database, {"acme", "1", 71}), 2);
  EXPECT_EQ(charge(database, {"acme/1", "7", 1}), 3);
  EXPECT_EQ(charge(database, {"acme", "1/7", 1}), 4);
  EXPECT_EQ(charge(database, {"acme%2F1", "7", 1}), 5) << "what stands for '/' is itself kept apart";
  EXPECT_EQ(charge.outcome(database, {"", "17", 1}).kind, once::Outcome::Kind::error) << "a part is missing";
  EXPECT_EQ(charge.outcome(database, {"acme", std::nullopt, 1}).kind, once::Outcome::Kind::error);

  const auto mixed = once::idempotent(
      engine, {.name = "mixed", .key = once::key(&Item::tenant, [](const Item& item) { return item.line / 10; })},
      [&](const Item&) { return ++runs; });
  EXPECT_EQ(mixed({"acme", "17", 10}), 6);
  EXPECT_EQ(mixed({"acme", "18", 19}), 6);
  EXPECT_EQ(mixed({"acme", "17", 20}), 7);
}

// A class that has an idempotent operation as a member.
class Shop {
 public:
  explicit Shop(once::Engine& engine)
      : charge_(engine, {.name = "charge", .key = &Order::id},
                [this](const auto& order) { return charge_card(order); }),
        refund_(once::idempotent(engine, {.name = "refund", .key = &Order::id}, [this](const Order&) { ++charges_; })) {
  }
  Receipt charge(const Order& order) { return charge_(order); }
  void refund(const Order& order) const { refund_(order); }

 private:
  Receipt charge_card(const Order& order) { return {"ch_" + std::to_string(++charges_), order.cents}; }

  int charges_ = 0;
  once::Idempotent<Receipt(const Order&)> charge_;
  once::Idempotent<void(const Order&)> refund_;
};

TEST_F(IdempotentTest, ItsTypeHasANameForMembersAndParameters) {
  Shop shop(engine);
  EXPECT_EQ(shop.charge({"17", 500}), (Receipt{"ch_1", 500}));
  EXPECT_EQ(shop.charge({"17", 500}), (Receipt{"ch_1", 500}));
  shop.refund({"17", 500});
  shop.refund({"17", 500});
  EXPECT_EQ(shop.charge({"18", 1}), (Receipt{"ch_3", 1}));

  once::Idempotent<int(Database&, const Order&), 1> count(engine, {.name = "count", .key = "id"},
                                                          [](once::Context& context, Database& database, const Order&) {
                                                            EXPECT_EQ(context.attempt(), 1U);
                                                            return ++database.writes;
                                                          });
  const auto other = once::idempotent<1>(engine, {.name = "other", .key = "id"},
                                         [](Database& database, const Order&) { return 10 + ++database.writes; });
  Database database;
  EXPECT_EQ(count(database, {"17", 1}), 1);
  EXPECT_EQ(count(database, {"17", 1}), 1);
  count = other;
  EXPECT_EQ(count(database, {"17", 1}), 12);
}

TEST_F(IdempotentTest, APolicyOfOneOperationChangesWhatItNamesAndInheritsTheRest) {
  using std::chrono::hours;
  once::Engine strict({.store = store,
                       .policy = {.retention = hours(72),
                                  .on_missing_key = once::OnMissingKey::run_unprotected,
                                  .on_throw = once::OnThrow::store}});
  const auto report =
      once::idempotent(strict, {.name = "report", .key = &Order::id, .policy = {.lease = std::chrono::minutes(5)}},
                       [](const Order& order) {
                         if (order.cents < 0) throw std::runtime_error("no such report");
                         return order.cents;
                       });
  EXPECT_EQ(report({"17", 1}), 1);
  const once::Record kept = records().at(0);
  EXPECT_EQ(kept.expires_at - kept.finished_at, hours(72)) << "the engine's retention";
  EXPECT_EQ(report.outcome({"", 2}).kind, once::Outcome::Kind::unprotected) << "the engine's word on missing keys";
  EXPECT_THROW(report({"18", -1}), std::runtime_error);
  EXPECT_THROW(report({"18", -1}), once::StoredFailure) << "the engine's word on exceptions";
}

TEST_F(IdempotentTest, ManyThreadsRunItOnce) {
  once::Engine quiet({.store = store});
  std::atomic<int> count = 0;
  const auto charge = once::idempotent(quiet, {.name = "charge"}, [&](int) { return ++count; });
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i) threads.emplace_back([&] { right += charge(7) == 1; });
  }
  EXPECT_EQ(right, 16);
  EXPECT_EQ(count, 1);
}

}  // namespace idempotent_test
