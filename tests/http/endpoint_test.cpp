// Requests through an engine: each row of the table in docs/http.md, and what becomes of the answers.
#include <once/frontends/http/endpoint.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace endpoint_test {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StoreCall;
using Kind = Opening::Kind;

// The problem's name.
std::string problem(const Answer& answer) {
  const std::string type = nlohmann::json::parse(answer.body).at("type");
  return type.substr(type.rfind(':') + 1);
}

Answer run(Endpoint& endpoint, const Request& request, int& runs, Answer answer = text_answer(201, "ch_1")) {
  return endpoint.run(request, [&](Execution&) {
    ++runs;
    return answer;
  });
}

TEST(Endpoint, TheFirstRunsAndTheRestGetItsAnswer) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  const Answer first = run(endpoint, post("k"), runs, text_answer(201, "ch_1", {{"Location", "/charges/1"}}));
  EXPECT_EQ(first, text_answer(201, "ch_1", {{"Location", "/charges/1"}})) << "the first answer is untouched";
  for (const std::string_view key : {"k", "\"k\"", "\"k\";retry=1"}) {
    const Answer again = run(endpoint, post(key), runs);
    EXPECT_EQ(again.status, 201U);
    EXPECT_EQ(again.body, "ch_1");
    EXPECT_THAT(values(again, "Location"), ElementsAre("/charges/1"));
    EXPECT_TRUE(is_replay(again));
  }
  EXPECT_EQ(runs, 1);
}

TEST(Endpoint, TheClientsKeyIsTheLabelAndAKeyOfTheBodyByChoice) {
  const auto label_of = [](std::optional<Label> policy, std::string field, std::string_view key) {
    World world;
    Options options = by_authorization();
    options.key_field = std::move(field);
    options.policy = Policy{.label = policy};
    Endpoint endpoint(*world.engine, options);
    int runs = 0;
    run(endpoint, post(key, R"({"order": "order-17"})"), runs);
    EXPECT_EQ(runs, 1);
    return world.record().label;
  };
  EXPECT_EQ(label_of({}, "", "\"order-17\""), "order-17") << "without its quotes";
  EXPECT_EQ(label_of(Label::none, "", "order-17"), "");
  EXPECT_EQ(label_of({}, "order", ""), "");
  EXPECT_EQ(label_of(Label::all, "order", ""), "order-17");
}

TEST(Endpoint, TheBodyIsTheInputIfThatIsChosenAndNoHeaderEver) {
  const auto input_of = [](std::optional<bool> keeps, std::vector<std::string> without, std::string_view body) {
    World world;
    Options options = by_authorization();
    options.input_without = std::move(without);
    options.policy = Policy{.keep_input = keeps};
    Endpoint endpoint(*world.engine, options);
    int runs = 0;
    run(endpoint, post("k", body), runs);
    EXPECT_EQ(runs, 1);
    return world.record().input;
  };
  EXPECT_EQ(input_of({}, {}, R"({"cvc": 1})"), "");
  EXPECT_EQ(input_of(true, {}, R"({"cvc": 1})"), R"({"cvc": 1})") << "as it came";
  EXPECT_EQ(input_of(true, {"cvc"}, R"j({"cvc": 1})j"), R"j({"cvc":"(left out)"})j");
  EXPECT_EQ(input_of(true, {"cvc"}, "cvc=1"), "");
  EXPECT_EQ(input_of(false, {"cvc"}, R"({"cvc": 1})"), "");
  EXPECT_EQ(input_of(true, {}, ""), "");
}

TEST(Endpoint, AKeyOfOnePrincipalNeverMeetsAnothers) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  run(endpoint, post("k"), runs, text_answer(200, "for alice"));
  Request bob = post("k");
  bob.headers[0].value = "Bearer bob";
  EXPECT_EQ(run(endpoint, bob, runs, text_answer(200, "for bob")).body, "for bob");
  EXPECT_EQ(run(endpoint, bob, runs).body, "for bob");
  EXPECT_EQ(run(endpoint, post("k"), runs).body, "for alice");
  EXPECT_EQ(runs, 2);
}

TEST(Endpoint, AKeyOfABodyNeverMeetsAnotherPrincipals) {
  World world;
  Options options = by_authorization();
  options.key_field = "order";
  Endpoint endpoint(*world.engine, options);
  int runs = 0;
  const Request alice = post("", R"({"order": 17})");
  Request bob = alice;
  bob.headers[0].value = "Bearer bob";
  run(endpoint, alice, runs, text_answer(200, "for alice"));
  EXPECT_EQ(run(endpoint, bob, runs, text_answer(200, "for bob")).body, "for bob");
  EXPECT_EQ(run(endpoint, bob, runs).body, "for bob");
  EXPECT_EQ(run(endpoint, alice, runs).body, "for alice");
  EXPECT_EQ(runs, 2);
}

// A key in each of its places, as the functions of once::lambda get it for several tenants.
struct Keyed {
  const char* where;
  Options options;
  Request request;
};
std::vector<Keyed> each_place_of_a_key() {
  std::vector<Keyed> out(5, {.where = "header", .options = by_authorization(), .request = post("k")});
  for (std::size_t i = 1; i < out.size(); ++i) out[i].request = post("");
  out[1].where = "body";
  out[1].options.key_field = "order";
  out[1].request.body = R"({"order":"k"})";
  out[2].where = "query";
  out[2].options.key_query = "order";
  out[2].request.target = "/charges?order=k";
  out[3].where = "path";
  out[3].options.key_path = "/charges/{key}";
  out[3].request.target = "/charges/k";
  out[4].where = "form";
  out[4].options.key_form = "order";
  out[4].request.headers.push_back({"Content-Type", "application/x-www-form-urlencoded"});
  out[4].request.body = "order=k";
  return out;
}

// One client and one request: only the invocation says whose it is.
TEST(Endpoint, TenantsShareNeitherAnswersNorDerivedKeys) {
  for (const Keyed& keyed : each_place_of_a_key()) {
    SCOPED_TRACE(keyed.where);
    World world;
    Endpoint endpoint(*world.engine, keyed.options);
    std::set<std::string> derived;
    const auto derived_for = [&](const std::string& tenant, unsigned status) {
      std::optional<WithinInvocation> within;
      if (!tenant.empty()) within.emplace(InvocationFacts{.tenant = tenant});
      std::string out;
      const Answer answer = endpoint.run(keyed.request, [&](Execution& execution) {
        out = execution.derived_key("charge");
        return text_answer(status, "for " + tenant);
      });
      EXPECT_EQ(answer.body, "for " + tenant);
      return out;
    };
    for (const char* const tenant : {"", "blue", "red", "re"}) {
      const std::string first = derived_for(tenant, 429);  // It did nothing, so that a retry runs.
      EXPECT_FALSE(first.empty()) << tenant;
      EXPECT_TRUE(derived.insert(first).second) << tenant << " shares its derived key";
      EXPECT_EQ(derived_for(tenant, 201), first) << "the same in a retry";
      EXPECT_EQ(derived_for(tenant, 201), "") << "a replay";
    }
    EXPECT_EQ(world.records(), 4U);
  }
}

TEST(Endpoint, UnprotectedTenantsShareNoDerivedKeys) {
  for (const Keyed& keyed : each_place_of_a_key()) {
    SCOPED_TRACE(keyed.where);
    World world;
    Options options = keyed.options;
    options.policy = Policy{.on_store_down = OnStoreDown::run_unprotected};
    Endpoint endpoint(*world.engine, options);
    world.fail();
    std::set<std::string> derived;
    for (const char* const tenant : {"blue", "red", "blue"}) {
      const WithinInvocation within({.tenant = tenant});
      const Opening opening = endpoint.open(keyed.request);
      ASSERT_EQ(opening.kind, Kind::unprotected);
      derived.insert(opening.execution.derived_key("charge"));
    }
    EXPECT_EQ(derived.size(), 2U);
  }
}

// Anyone may send such a path. It is no tenant, neither in an invocation of one nor outside.
TEST(Endpoint, APathThatLooksLikeATenantIsAPath) {
  for (const char* const path : {"/charges/@tenant=blue", "/@tenant=blue", "/@tenant=", "/charges/@tenant=blue/x",
                                 "/@tenant=blue/@tenant=red", "/@tenant=*", "/@tenant=%62lue"}) {
    SCOPED_TRACE(path);
    World world;
    Endpoint endpoint(*world.engine, by_authorization());
    Request request = post("k");
    request.target = path;
    int runs = 0;
    for (const char* const tenant : {"", "blue", "red"}) {
      std::optional<WithinInvocation> within;
      if (*tenant != '\0') within.emplace(InvocationFacts{.tenant = tenant});
      const std::string body = "for " + std::string(tenant);
      EXPECT_EQ(run(endpoint, request, runs, text_answer(201, body)), text_answer(201, body)) << tenant;
      EXPECT_EQ(run(endpoint, request, runs).body, body) << tenant;
    }
    EXPECT_EQ(runs, 3);
    EXPECT_EQ(world.records(), 3U);
  }
}

TEST(Endpoint, OtherMethodsPassThrough) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  for (const std::string_view method : {"GET", "HEAD", "OPTIONS"}) {
    Request request = post("k");
    request.method = method;
    Opening opening = endpoint.open(request);
    EXPECT_EQ(opening.kind, Kind::passed);
    EXPECT_FALSE(opening.execution.is_protected());
    EXPECT_FALSE(opening.execution.stop_token().stop_possible());
    EXPECT_EQ(opening.execution.finish(text_answer(502)), text_answer(502));
  }
  EXPECT_EQ(world.records(), 0U);
  EXPECT_EQ(world.told(EventKind::unprotected), 0U);
}

TEST(Endpoint, WithoutKeyItRunsUnprotectedAndIsToldIfThatIsChosen) {
  World world;
  int none = 0;
  Options options = by_authorization();
  Endpoint usual(*world.engine, options);
  EXPECT_EQ(run(usual, post(""), none).status, 400U);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(world.told(EventKind::unprotected), 0U);
  options.policy = Policy{.on_missing_key = OnMissingKey::run_unprotected};
  Endpoint endpoint(*world.engine, options);
  int runs = 0;
  run(endpoint, post(""), runs);
  run(endpoint, post(""), runs);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(world.records(), 0U);
  EXPECT_EQ(world.told(EventKind::unprotected), 2U);
  Opening opening = endpoint.open(post(""));
  EXPECT_EQ(opening.kind, Kind::unprotected);
  EXPECT_EQ(opening.execution.derived_key("a").size(), 64U);
  EXPECT_NE(opening.execution.derived_key("a"), opening.execution.derived_key("a"))
      << "nothing is stable without a key";
}

TEST(Endpoint, RefusalsRunNothing) {
  World world;
  Options options = by_authorization();
  options.max_body_bytes = 4;
  Endpoint endpoint(*world.engine, options);
  int runs = 0;
  struct Case {
    Request request;
    unsigned status;
    const char* problem;
  };
  Request two = post("a");
  two.headers.push_back({"Idempotency-Key", "b"});
  for (const Case& c : {Case{post(""), 400, "key-missing"}, Case{two, 400, "keys-differ"},
                        Case{post("\"\""), 400, "key-invalid"}, Case{post("k", "12345"), 413, "body-too-large"}}) {
    const Answer answer = run(endpoint, c.request, runs);
    EXPECT_EQ(answer.status, c.status);
    EXPECT_EQ(problem(answer), c.problem);
    EXPECT_EQ(endpoint.open(c.request).kind, Kind::refused);
  }
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(world.records(), 0U);
}

TEST(Endpoint, AConflictSaysWhenToComeBackAndAMismatchComesFirst) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening first = endpoint.open(post("k", "one"));
  ASSERT_EQ(first.kind, Kind::claimed);
  EXPECT_TRUE(first.execution.is_protected());

  Opening conflict = endpoint.open(post("k", "one"));
  EXPECT_EQ(conflict.kind, Kind::conflict);
  EXPECT_EQ(conflict.answer.status, 409U);
  EXPECT_EQ(problem(conflict.answer), "in-progress");
  EXPECT_THAT(values(conflict.answer, "Retry-After"), ElementsAre("5"));

  for (int when = 0; when < 2; ++when) {  // While it runs, and when it is done.
    const Opening mismatch = endpoint.open(post("k", "two"));
    EXPECT_EQ(mismatch.kind, Kind::mismatch);
    EXPECT_EQ(mismatch.answer.status, 422U);
    EXPECT_EQ(problem(mismatch.answer), "key-reused");
    EXPECT_FALSE(is_replay(mismatch.answer));
    if (when == 0) static_cast<void>(first.execution.finish(text_answer(200)));
  }
  EXPECT_EQ(endpoint.open(post("k", "one")).kind, Kind::replayed);
}

// The handler may have acted, whatever becomes of what it throws.
TEST(Endpoint, AHandlerWhoseThreadIsEndedLapses) {
  for (const auto on_throw :
       {std::optional<OnThrow>(), std::optional(OnThrow::release), std::optional(OnThrow::store)}) {
    World world(Policy{.lease = 30s});
    Options options = by_authorization();
    options.on_throw = on_throw;
    options.on_ambiguous = OnLapse::takeover;
    Endpoint endpoint(*world.engine, options);
    run_and_exit([&] {
      static_cast<void>(endpoint.run(post("k"), [](Execution&) -> Answer { pthread_exit(PTHREAD_CANCELED); }));
    });
    EXPECT_EQ(world.record().state, once::State::in_progress);
    int runs = 0;
    EXPECT_EQ(problem(run(endpoint, post("k"), runs)), "in-progress");
    world.timers->advance(40s);
    EXPECT_EQ(run(endpoint, post("k"), runs).status, 201U);
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(world.record().attempt, 2U);
  }
}

TEST(Endpoint, RetryAfterIsNoLongerThanTheLeaseThatIsLeft) {
  Policy policy;
  policy.lease = 3s;
  policy.heartbeat = false;
  World world(policy);
  Endpoint endpoint(*world.engine, by_authorization());
  Opening first = endpoint.open(post("k"));
  world.timers->advance(1'500ms);
  EXPECT_THAT(values(endpoint.open(post("k")).answer, "Retry-After"), ElementsAre("2"));
}

TEST(Endpoint, WaitersGetTheAnswer) {
  Policy policy;
  policy.on_conflict = OnConflict::wait;
  World world(policy);
  Endpoint endpoint(*world.engine, by_authorization());
  Opening first = endpoint.open(post("k"));
  std::vector<Opening> later;
  for (int i = 0; i < 3; ++i) endpoint.open(post("k"), [&](Opening opening) { later.push_back(std::move(opening)); });
  EXPECT_EQ(later.size(), 0U);
  static_cast<void>(first.execution.finish(text_answer(201, "ch_1")));
  ASSERT_EQ(later.size(), 3U);
  for (const Opening& opening : later) {
    EXPECT_EQ(opening.kind, Kind::replayed);
    EXPECT_EQ(opening.answer.body, "ch_1");
  }
}

TEST(Endpoint, EveryStatusDoesToTheClaimWhatItsFateSays) {
  for (unsigned status = 100; status <= 599; ++status) {
    SCOPED_TRACE(status);
    World world;
    Endpoint endpoint(*world.engine, by_authorization());
    int runs = 0;
    const Answer answer = text_answer(status, "first");
    EXPECT_EQ(run(endpoint, post("k"), runs, answer), answer);
    const Answer again = run(endpoint, post("k"), runs, text_answer(200, "second"));
    switch (endpoint.rules().fate_of(status)) {
      case Fate::store:
        EXPECT_EQ(again.status, status);
        EXPECT_EQ(again.body, "first");
        EXPECT_TRUE(is_replay(again));
        EXPECT_EQ(runs, 1);
        break;
      case Fate::release:
        EXPECT_EQ(again.body, "second");
        EXPECT_FALSE(is_replay(again));
        EXPECT_EQ(runs, 2);
        break;
      case Fate::hold:  // No status, unless it is said so.
      case Fate::ambiguous:
        EXPECT_EQ(again.status, 409U);
        EXPECT_EQ(problem(again), "outcome-unknown");
        EXPECT_EQ(runs, 1);
        EXPECT_EQ(world.record().state, once::State::unknown);
        EXPECT_THAT(world.record().failure.message, HasSubstr("answered " + std::to_string(status)));
    }
  }
}

TEST(Endpoint, AnswersThatTellOfAFailureHaveTheirOwnRetention) {
  using namespace std::chrono_literals;
  for (const unsigned status : {200U, 399U, 400U, 402U}) {
    World world(Policy{.retention = keep_forever, .failure_retention = 1h});
    Endpoint endpoint(*world.engine, by_authorization());
    int runs = 0;
    run(endpoint, post("k"), runs, text_answer(status));
    const Record record = world.record();
    EXPECT_EQ(record.expires_at, status < 400 ? never : record.finished_at + 1h) << status;
  }
}

TEST(Endpoint, AmbiguousUnderTakeoverIsRunAgainWhenItsLeaseHasRunOut) {
  World world;
  Options options = by_authorization();
  options.on_ambiguous = OnLapse::takeover;
  Endpoint endpoint(*world.engine, options);
  int runs = 0;
  EXPECT_EQ(run(endpoint, post("k"), runs, text_answer(504)).status, 504U);
  EXPECT_EQ(run(endpoint, post("k"), runs).status, 409U);
  world.timers->advance(31s);
  Opening opening = endpoint.open(post("k"));
  ASSERT_EQ(opening.kind, Kind::claimed);
  EXPECT_EQ(opening.execution.claim()->attempt(), 2U);
  EXPECT_EQ(opening.execution.finish(text_answer(200, "second")).body, "second");
  EXPECT_EQ(runs, 1);
}

TEST(Endpoint, TheAttemptThatTakesOverGoesOnAfterTheFinishedSteps) {
  World world;
  Options options = by_authorization();
  options.on_ambiguous = OnLapse::takeover;
  Endpoint endpoint(*world.engine, options);
  int charges = 0;
  int mails = 0;
  const auto charge = [&] { return "ch_" + std::to_string(++charges); };
  {
    Opening dies = endpoint.open(post("k"));
    ASSERT_EQ(dies.kind, Kind::claimed);
    EXPECT_EQ(dies.execution.step("charge", charge), "ch_1");
  }
  world.timers->advance(31s);
  Opening opening = endpoint.open(post("k"));
  ASSERT_EQ(opening.kind, Kind::claimed);
  EXPECT_EQ(opening.execution.step("charge", charge), "ch_1");
  opening.execution.step("mail", [&] { ++mails; });
  EXPECT_EQ(charges, 1);
  EXPECT_EQ(mails, 1);
  EXPECT_EQ(opening.execution.finish(text_answer(201)).status, 201U);

  options.policy = Policy{.on_missing_key = OnMissingKey::run_unprotected};
  Endpoint lenient(*world.engine, options);
  Opening unprotected = lenient.open(post(""));
  ASSERT_EQ(unprotected.kind, Kind::unprotected);
  EXPECT_EQ(unprotected.execution.step("charge", charge), "ch_2") << "there is nothing to keep it in";
}

TEST(Endpoint, AStepIsNotStartedWithoutTheClaim) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening opening = endpoint.open(post("k"));
  ASSERT_EQ(opening.kind, Kind::claimed);
  world.fail();
  world.timers->advance(31s);
  int runs = 0;
  EXPECT_THROW(opening.execution.step("charge", [&] { ++runs; }), ClaimLost);
  EXPECT_EQ(runs, 0);
}

TEST(Endpoint, AnExecutionThatIsDroppedIsAmbiguous) {
  for (const OnLapse ambiguous : {OnLapse::hold, OnLapse::takeover}) {
    World world;
    Options options = by_authorization();
    options.on_ambiguous = ambiguous;
    Endpoint endpoint(*world.engine, options);
    { const Opening dropped = endpoint.open(post("k")); }
    EXPECT_EQ(world.told(EventKind::abandoned), 1U);
    EXPECT_EQ(endpoint.open(post("k")).kind, Kind::conflict);
    world.timers->advance(31s);
    const Opening later = endpoint.open(post("k"));
    EXPECT_EQ(later.kind, ambiguous == OnLapse::hold ? Kind::unknown : Kind::claimed);
  }
}

// This thread is stopped between the claim's answer and the handler: here by the observer.
TEST(Endpoint, NoHandlerBeginsOnALeaseThatIsOver) {
  World* stopped = nullptr;
  World world([&](EngineOptions& o) {
    o.policy.heartbeat = false;
    o.observer = [&stopped](const Event& event) {
      if (event.kind == EventKind::claimed && stopped != nullptr) std::exchange(stopped, nullptr)->clock->advance(1h);
    };
  });
  stopped = &world;
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  const Answer late = run(endpoint, post("k"), runs);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(late.status, 409U);
  EXPECT_EQ(problem(late), "in-progress");
  EXPECT_THAT(values(late, "Retry-After"), ElementsAre(::testing::_));
  EXPECT_TRUE(is_released(world.record())) << "a retry runs";
  EXPECT_EQ(run(endpoint, post("k"), runs).status, 201U);
  EXPECT_EQ(runs, 1);
}

TEST(Endpoint, WhoKnowsBetterNamesTheFate) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening opening = endpoint.open(post("k"));
  EXPECT_EQ(opening.execution.finish(text_answer(502, "no connection"), Fate::release).body, "no connection");
  opening = endpoint.open(post("k"));
  ASSERT_EQ(opening.kind, Kind::claimed);
  static_cast<void>(opening.execution.finish(text_answer(503, "connection lost"), Fate::ambiguous));
  EXPECT_EQ(endpoint.open(post("k")).kind, Kind::unknown);

  opening = endpoint.open(post("l"));
  EXPECT_EQ(opening.execution.finish(text_answer(0), Fate::store), text_answer(0));
  EXPECT_EQ(endpoint.open(post("l")).kind, Kind::unknown) << "a status that is none is not stored";
}

TEST(Endpoint, AHandlerThatThrows) {
  struct Case {
    std::optional<OnThrow> option;
    std::optional<OnThrow> rule;
    OnLapse ambiguous;
    Kind then;
  };
  for (const Case& c : {Case{{}, {}, OnLapse::hold, Kind::unknown}, Case{{}, {}, OnLapse::takeover, Kind::conflict},
                        Case{OnThrow::release, {}, OnLapse::hold, Kind::claimed},
                        Case{OnThrow::store, {}, OnLapse::hold, Kind::replayed},
                        Case{OnThrow::hold, {}, OnLapse::takeover, Kind::unknown},
                        Case{OnThrow::store, OnThrow::release, OnLapse::hold, Kind::claimed},
                        Case{{}, OnThrow::hold, OnLapse::takeover, Kind::unknown}}) {
    World world([&](EngineOptions& o) {
      if (c.rule) o.throw_rule = on_exception<std::runtime_error>(*c.rule);
    });
    Options options = by_authorization();
    options.on_ambiguous = c.ambiguous;
    options.on_throw = c.option;
    Endpoint endpoint(*world.engine, options);
    EXPECT_THROW(static_cast<void>(
                     endpoint.run(post("k"), [](Execution&) -> Answer { throw std::runtime_error("card reader"); })),
                 std::runtime_error);
    const Opening then = endpoint.open(post("k"));
    EXPECT_EQ(then.kind, c.then);
    if (then.kind == Kind::replayed) {
      EXPECT_EQ(problem(then.answer), "handler-failed");
    }
    if (then.kind == Kind::unknown) {
      EXPECT_THAT(world.record().failure.message, HasSubstr("card reader"));
    }
  }
}

TEST(Endpoint, TheAnswerToAThrowingHandlerIsAProblem) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening opening = endpoint.open(post("k"));
  const Answer answer = opening.execution.finish_thrown(std::make_exception_ptr(42));
  EXPECT_EQ(answer.status, 500U);
  EXPECT_EQ(problem(answer), "handler-failed");
}

TEST(Endpoint, WithTheStoreDownNothingRuns) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  world.fail();
  Answer answer;
  endpoint.open(post("k"), [&](Opening opening) {
    EXPECT_EQ(opening.kind, Kind::error);
    answer = std::move(opening.answer);
  });
  for (int i = 0; i < 1'000 && world.timers->run_next(); ++i) {
  }
  EXPECT_EQ(answer.status, 503U);
  EXPECT_EQ(problem(answer), "store-unavailable");
  EXPECT_THAT(values(answer, "Retry-After"), ElementsAre("5"));
  world.heal();
  EXPECT_EQ(run(endpoint, post("k"), runs).status, 201U);
  EXPECT_EQ(runs, 1);
}

// As during a move, or without a permission. That says nothing about the record, so the client may come again.
TEST(Endpoint, AStoreThatRefusesToTakeALapsedClaimOverIsUnavailable) {
  for (const bool waits : {false, true}) {
    World world([&](EngineOptions& o) { o.policy = {.on_conflict = waits ? OnConflict::wait : OnConflict::fail}; });
    Options options = by_authorization();
    options.on_ambiguous = OnLapse::takeover;
    Endpoint endpoint(*world.engine, options);
    int runs = 0;
    run(endpoint, post("k"), runs, text_answer(504));
    world.timers->advance(31s);
    world.fail_if(
        [](const StoreCall& call) { return call.is_write() && call.operation != StoreCall::Operation::insert; },
        once::testing::Fault::Kind::forbidden);
    const Opening opening = endpoint.open(post("k"));
    EXPECT_EQ(opening.kind, Kind::error);
    EXPECT_EQ(opening.answer.status, 503U);
    EXPECT_EQ(problem(opening.answer), "store-unavailable");
    EXPECT_THAT(values(opening.answer, "Retry-After"), ElementsAre("5"));
    world.heal();
    EXPECT_EQ(run(endpoint, post("k"), runs).status, 201U);
    EXPECT_EQ(runs, 2);
  }
}

TEST(Endpoint, WithTheStoreDownItRunsUnprotectedIfPolicySaysSo) {
  for (const auto fault : {testing::Fault::Kind::unavailable, testing::Fault::Kind::lost_before}) {
    Policy policy;
    policy.on_store_down = OnStoreDown::run_unprotected;
    World world(policy);
    Endpoint endpoint(*world.engine, by_authorization());
    world.fail_if([](const StoreCall&) { return true; }, fault);
    std::optional<Opening> opening;
    endpoint.open(post("k"), [&](Opening got) { opening = std::move(got); });
    for (int i = 0; i < 1'000 && world.timers->run_next(); ++i) {
    }
    ASSERT_TRUE(opening);
    EXPECT_EQ(opening->kind, Kind::unprotected);
    EXPECT_FALSE(opening->execution.is_protected());
    EXPECT_EQ(world.told(EventKind::unprotected), 1U);
    EXPECT_EQ(opening->execution.derived_key("a"), opening->execution.derived_key("a")) << "the key is known";
    EXPECT_EQ(opening->execution.finish(text_answer(201)).status, 201U);
  }
}

// Keeps nothing that it could give back.
class LossyOffload final : public Offload {
 public:
  void put(std::string, std::string, Callback<void(OffloadAnswer)> done) override {
    done({.text = "lost:1", .error = {}});
  }
  void get(std::string, Callback<void(OffloadAnswer)> done) override {
    done({.text = {}, .error = Error{ErrorKind::unavailable, "not now"}});
  }
  void remove(std::string, Callback<void(OffloadAnswer)> done) override { done({}); }
};

TEST(Endpoint, FailingOpenIsNotRunningWhatHasRun) {
  World world([](EngineOptions& o) {
    o.offload = std::make_shared<LossyOffload>();
    o.policy.max_inline_bytes = 100;
    o.policy.on_store_down = OnStoreDown::run_unprotected;
  });
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  run(endpoint, post("k"), runs, text_answer(201, std::string(1'000, 'x')));
  const Answer again = run(endpoint, post("k"), runs);
  EXPECT_EQ(again.status, 503U);
  EXPECT_EQ(problem(again), "store-unavailable");
  EXPECT_EQ(runs, 1) << "the store knows that it is done, and only the answer is out of reach";
}

TEST(Endpoint, AnAnswerThatCannotBeRecordedIsGivenOrNot) {
  for (const OnUnrecorded on_unrecorded : {OnUnrecorded::return_result, OnUnrecorded::fail}) {
    Policy policy;
    policy.on_unrecorded = on_unrecorded;
    World world(policy);
    Endpoint endpoint(*world.engine, by_authorization());
    Opening opening = endpoint.open(post("k"));
    world.fail();
    std::optional<Answer> answer;
    opening.execution.finish(text_answer(201, "ch_1"), [&](Answer got) { answer = std::move(got); });
    for (int i = 0; i < 100 && !answer && world.timers->run_next(); ++i) {
    }
    ASSERT_TRUE(answer);
    EXPECT_EQ(world.told(EventKind::unrecorded), 1U);
    if (on_unrecorded == OnUnrecorded::return_result) {
      EXPECT_EQ(answer->body, "ch_1");
    } else {
      EXPECT_EQ(answer->status, 503U);
      EXPECT_EQ(problem(*answer), "not-recorded");
    }
    world.heal();  // The engine keeps trying while the lease lives.
    for (int i = 0; i < 100 && world.told(EventKind::completed) == 0 && world.timers->run_next(); ++i) {
    }
    EXPECT_EQ(endpoint.open(post("k")).answer.body, "ch_1");
  }
}

TEST(Endpoint, WhoLostTheClaimGetsTheAnswerThatCounts) {
  Policy policy;
  policy.heartbeat = false;
  World world(policy);
  Options options = by_authorization();
  options.on_ambiguous = OnLapse::takeover;
  Endpoint slow(*world.engine, options);
  EngineOptions same = world.engine->options();
  same.holder = "host:2";
  Engine engine(same);
  Endpoint quick(engine, options);

  Opening first = slow.open(post("k"));
  Opening also_slow = slow.open(post("l"));
  world.timers->advance(31s);
  Opening second = quick.open(post("k"));
  ASSERT_EQ(second.kind, Kind::claimed);
  Opening still_running = quick.open(post("l"));
  ASSERT_EQ(still_running.kind, Kind::claimed);
  EXPECT_EQ(second.execution.finish(text_answer(201, "second")).body, "second");

  const Answer superseded = first.execution.finish(text_answer(201, "first"));
  EXPECT_EQ(superseded.body, "second");
  EXPECT_TRUE(is_replay(superseded));

  const Answer lost = also_slow.execution.finish(text_answer(201, "first"));
  EXPECT_EQ(lost.status, 409U);
  EXPECT_EQ(problem(lost), "claim-lost");
  EXPECT_EQ(values(lost, "Retry-After").size(), 1U);
  EXPECT_EQ(still_running.execution.finish(text_answer(201, "second")).body, "second");
}

TEST(Endpoint, WhoLostTheClaimWithoutAnAnswerToStoreGivesItsOwn) {
  Policy policy;
  policy.heartbeat = false;
  World world(policy);
  Endpoint endpoint(*world.engine, by_authorization());
  Opening first = endpoint.open(post("k"));
  world.timers->advance(31s);
  EXPECT_EQ(endpoint.open(post("k")).kind, Kind::unknown) << "under hold a lapsed claim is taken over by nobody";
  EXPECT_EQ(first.execution.finish(text_answer(429, "busy")).body, "busy");

  Opening other = endpoint.open(post("l"));
  world.timers->advance(31s);
  EXPECT_EQ(endpoint.open(post("l")).kind, Kind::unknown);
  EXPECT_EQ(problem(other.execution.finish(text_answer(201))), "outcome-unknown");
}

TEST(Endpoint, LargeAnswersAreGivenOnceAndLeaveATombstone) {
  World world;
  Options options = by_authorization();
  options.max_answer_bytes = 1'000;
  Endpoint endpoint(*world.engine, options);
  int runs = 0;
  const Answer large = text_answer(201, std::string(100'000, 'x'), {{"Location", "/charges/7"}});
  EXPECT_EQ(run(endpoint, post("k"), runs, large), large);
  const Answer again = run(endpoint, post("k"), runs);
  EXPECT_EQ(again.status, 410U);
  EXPECT_EQ(problem(again), "answer-not-kept");
  EXPECT_TRUE(is_replay(again));
  EXPECT_EQ(runs, 1);
  EXPECT_LT(world.record().result.bytes.size(), 200U);
}

TEST(Endpoint, AnAnswerThatNoRecordCanHoldLeavesATombstoneToo) {
  Policy policy;
  policy.max_inline_bytes = 1'000;
  World world(policy);
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  const Answer large = text_answer(201, std::string(100'000, 'x'));
  EXPECT_EQ(run(endpoint, post("k"), runs, large), large);
  EXPECT_EQ(problem(run(endpoint, post("k"), runs)), "answer-not-kept");
  EXPECT_EQ(runs, 1);
}

TEST(Endpoint, AStreamedAnswerLeavesATombstone) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening opening = endpoint.open(post("k"));
  EXPECT_FALSE(opening.execution.finish_streamed(text_answer(200, ""), 5'000'000));
  const Answer again = endpoint.open(post("k")).answer;
  EXPECT_EQ(problem(again), "answer-not-kept");
  EXPECT_THAT(again.body, HasSubstr("5000000"));

  opening = endpoint.open(post("l"));
  EXPECT_FALSE(opening.execution.finish_streamed(text_answer(429, ""), 0));
  EXPECT_EQ(endpoint.open(post("l")).kind, Kind::claimed) << "nothing was done, streamed or not";

  opening = endpoint.open(post("m"));
  EXPECT_FALSE(opening.execution.finish_streamed(text_answer(999, ""), 0));
  EXPECT_EQ(problem(endpoint.open(post("m")).answer), "outcome-unknown") << "what no status says may have been done";
}

TEST(Endpoint, WhatWasNotStoredIsVisibleInTheRecord) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  int runs = 0;
  run(endpoint, post("k"), runs, text_answer(200, "done", {{"Set-Cookie", "s=1"}, {"X-Kept", "1"}}));
  EXPECT_EQ(world.record().result.bytes, "once-http/1 200 body 4\nX-Kept: 1\n(not stored: Set-Cookie)\n\ndone");
}

TEST(Endpoint, TheHandlerHasTheClaim) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening opening = endpoint.open(post("order-17"));
  const Claim* claim = opening.execution.claim();
  ASSERT_NE(claim, nullptr);
  EXPECT_THAT(claim->key(), StartsWith("shop/POST /charges "));
  EXPECT_EQ(opening.execution.derived_key("card"), claim->derived_key("card"));
  EXPECT_FALSE(opening.execution.stop_token().stop_requested());
  static_cast<void>(opening.execution.finish(text_answer(200)));
}

TEST(Endpoint, OptionsFillInWhatTheEngineHas) {
  Policy policy;
  policy.lease = 7s;
  policy.on_lapse = OnLapse::takeover;
  World world(policy);
  Endpoint endpoint(*world.engine, by_authorization());
  const Examination found = endpoint.rules().examine(post("k"));
  ASSERT_TRUE(found.operation);
  EXPECT_EQ(found.operation->policy->lease, 7s);
  EXPECT_EQ(found.operation->policy->on_lapse, OnLapse::hold) << "Options::ambiguous overrules it";
  EXPECT_EQ(found.operation->key.scope().substr(0, 5), "shop/");
  EXPECT_THROW(Endpoint(*world.engine, Options{.principal = Principal::shared(), .route = "a b"}), Exception);
}

TEST(Endpoint, OnlyAHeadIsNoRequest) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  EXPECT_THROW(endpoint.open(endpoint.rules().examine_head(post("k")), [](Opening) {}), Exception);
}

TEST(Endpoint, TheEndpointMayGoBeforeItsExecutions) {
  World world;
  auto endpoint = std::make_unique<Endpoint>(*world.engine, by_authorization());
  Opening opening = endpoint->open(post("k"));
  endpoint.reset();
  EXPECT_EQ(opening.execution.finish(text_answer(201, "ch_1")).body, "ch_1");
}

TEST(Endpoint, FiftyAtOnceRunItOnce) {
  Engine engine({.store = stores::make_memory_store(), .scope = "shop"});
  Policy policy;
  policy.on_conflict = OnConflict::wait;
  Options options = by_authorization();
  options.policy = policy;
  Endpoint endpoint(engine, options);
  std::atomic<int> runs = 0;
  std::atomic<int> replays = 0;
  std::latch start(50);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      const Answer answer =
          endpoint.run(post("k"), [&](Execution&) { return text_answer(201, "run " + std::to_string(++runs)); });
      EXPECT_EQ(answer.status, 201U);
      EXPECT_EQ(answer.body, "run 1");
      if (is_replay(answer)) ++replays;
    });
  }
  threads.clear();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(replays, 49);
}

TEST(Endpoint, FiftyAtOnceWithoutWaitingRunItOnceToo) {
  Engine engine({.store = stores::make_memory_store(), .scope = "shop"});
  Endpoint endpoint(engine, by_authorization());
  std::atomic<int> runs = 0;
  std::latch start(50);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      Answer answer = text_answer(409);
      while (answer.status == 409) {  // As clients do, but without the wait.
        answer = endpoint.run(post("k"), [&](Execution&) { return text_answer(201, "run " + std::to_string(++runs)); });
        std::this_thread::yield();
      }
      EXPECT_EQ(answer.body, "run 1");
    });
  }
  threads.clear();
  EXPECT_EQ(runs, 1);
}

TEST(Endpoint, TenThousandInFlightOnOneThread) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  std::vector<Execution> executions;
  for (int i = 0; i < 10'000; ++i) {
    const std::string key = "k" + std::to_string(i);
    endpoint.open(post(key), [&](Opening opening) { executions.push_back(std::move(opening.execution)); });
  }
  ASSERT_EQ(executions.size(), 10'000U);
  int answered = 0;
  for (Execution& execution : executions) {
    execution.finish(text_answer(201), [&](const Answer& answer) { answered += answer.status == 201 ? 1 : 0; });
  }
  EXPECT_EQ(answered, 10'000);
}

// An operator decides, although the route would let a retry run it again.
TEST(Endpoint, HoldIsForAnOperator) {
  World world;
  Options options = by_authorization();
  options.on_ambiguous = OnLapse::takeover;
  options.fates = {{500, Fate::hold}};
  Endpoint endpoint(*world.engine, options);
  Opening first = endpoint.open(post("k"));
  ASSERT_EQ(first.kind, Opening::Kind::claimed);
  EXPECT_EQ(first.execution.finish(text_answer(500)).status, 500U);
  EXPECT_EQ(world.record().state, once::State::unknown);
  EXPECT_EQ(endpoint.open(post("k")).kind, Opening::Kind::unknown);
}

TEST(Endpoint, TheRecordSaysWhyNothingIsStored) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Opening first = endpoint.open(post("k"));
  std::optional<Finished> finished;
  first.execution.finish_told(
      text_answer(502), Fate::ambiguous, [&](Finished end) { finished = std::move(end); },
      "the service closed the connection");
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(world.record().state, once::State::unknown);
  EXPECT_EQ(world.record().failure.message, "the service closed the connection");
}

// The handler throws what nlohmann/json throws for the text.
Answer parses(Endpoint& endpoint, const Request& request, const std::string& text) {
  return endpoint.run(request, [&](Execution&) { return text_answer(201, nlohmann::json::parse(text).dump()); });
}

TEST(Endpoint, ABodyThatIsNotJsonIsAnsweredAndReleased) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  Request request = post("k", "{\"cents\":");
  for (int i = 0; i < 2; ++i) {
    const Answer answer = parses(endpoint, request, std::string(request.body));
    EXPECT_EQ(answer.status, 400U);
    EXPECT_EQ(problem(answer), "request-malformed");
  }
  request = post("k", "{}");
  EXPECT_EQ(problem(parses(endpoint, request, "{}")), "key-reused") << "the corrected request is another one";
  // Said to be JSON, whatever it begins with.
  request = post("said", "cents=500");
  request.headers.push_back({"Content-Type", "application/vnd.shop+json; charset=utf-8"});
  EXPECT_EQ(problem(parses(endpoint, request, "cents=500")), "request-malformed");
  // An unprotected request too.
  request = post("", "[1,");
  request.method = "PUT";
  EXPECT_EQ(problem(parses(endpoint, request, "[1,")), "request-malformed");
}

TEST(Endpoint, AParseErrorOfAnotherTextIsTheHandlers) {
  World world;
  Endpoint endpoint(*world.engine, by_authorization());
  const auto is_held = [&](const Request& request, const std::string& text) {
    EXPECT_THROW(parses(endpoint, request, text), nlohmann::json::parse_error);
    return problem(endpoint.open(request).answer) == "outcome-unknown";
  };
  EXPECT_TRUE(is_held(post("good", "{}"), "<html>")) << "the bank's response";
  EXPECT_TRUE(is_held(post("form", "cents=500"), "<html>"));
  EXPECT_TRUE(is_held(post("empty", ""), ""));
  EXPECT_TRUE(is_held(post("mark", "\xEF\xBB\xBF{}"), "<html>"));
  EXPECT_TRUE(is_held(post("large number", "{\"n\":123456789012345678901234567890,\"n\":1}"), "<html>"));
  const std::string deep = std::string(600, '[') + std::string(600, ']');
  EXPECT_TRUE(is_held(post("deep", deep), "<html>")) << "others read it";
  Request packed = post("packed", "\x1f\x8b");
  packed.headers.push_back({"Content-Type", "application/json"});
  packed.headers.push_back({"Content-Encoding", "gzip"});
  EXPECT_TRUE(is_held(packed, "<html>"));
  // Another exception for a malformed body may come after the handler has acted.
  EXPECT_THROW(static_cast<void>(endpoint.run(post("other", "{"),
                                              [](Execution&) -> Answer { throw std::runtime_error("card reader"); })),
               std::runtime_error);
  EXPECT_EQ(problem(endpoint.open(post("other", "{")).answer), "outcome-unknown");
}

TEST(Endpoint, ARuleForParseErrorsDecidesFirst) {
  World world([](EngineOptions& o) { o.throw_rule = on_exception<nlohmann::json::parse_error>(OnThrow::store); });
  Endpoint endpoint(*world.engine, by_authorization());
  EXPECT_THROW(parses(endpoint, post("k", "{"), "{"), nlohmann::json::parse_error);
  EXPECT_EQ(endpoint.open(post("k", "{")).kind, Kind::replayed);
}

}  // namespace endpoint_test
}  // namespace once::http
