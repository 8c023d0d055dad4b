// The runtime against the local Runtime API: the data of an invocation, every kind of answer, and every fault.
#include "once/frontends/lambda/runtime.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <future>
#include <latch>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/frontends/lambda/local_api.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/snapshot.hpp>
#include <once/stores/memory.hpp>
#include <once/testing/manual_time.hpp>

#include "../thread_sanitizer.hpp"
#include "printed_outcome.hpp"

namespace once::lambda {

inline void PrintTo(RuntimeProblem::Kind kind, std::ostream* out) { *out << to_string(kind); }

namespace runtime_test {

using nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = InvocationOutcome::Kind;
using Problem = RuntimeProblem::Kind;
using Fault = ApiFault::Kind;

constexpr std::chrono::seconds patience{20};

// Opened once; waiting threads continue.
class Gate {
 public:
  void open() { promise_.set_value(); }
  void wait() {
    if (future_.wait_for(patience) != std::future_status::ready) throw std::runtime_error("the gate stayed shut");
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

RuntimeOptions quiet_options() {
  RuntimeOptions options;
  options.trace_in_environment = false;
  options.end_at_sigterm = false;
  options.pause = Millis{1};
  return options;
}

// A function that runs against an API, and what it reports.
class Running {
 public:
  explicit Running(LocalApi& api, Function function, RuntimeOptions options = quiet_options()) {
    options.api = api.address();
    options.stop = stop_.get_token();
    options.on_problem = [this](const RuntimeProblem& problem) {
      const std::lock_guard lock(mutex_);
      problems_.push_back(problem);
    };
    thread_ = std::thread([this, function = std::move(function), options] { code_ = run(function, options); });
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (thread_.joinable()) stop();
  }

  int stop() {
    stop_.request_stop();
    return wait();
  }
  int wait() {
    thread_.join();
    return code_;
  }
  void request_stop() { stop_.request_stop(); }

  std::vector<RuntimeProblem> problems() {
    const std::lock_guard lock(mutex_);
    return problems_;
  }
  std::vector<Problem> kinds() {
    std::vector<Problem> out;
    for (const RuntimeProblem& problem : problems()) out.push_back(problem.kind);
    return out;
  }
  std::string told() {
    std::string out;
    for (const RuntimeProblem& problem : problems()) out += problem.message + "\n";
    return out;
  }

 private:
  std::stop_source stop_;
  std::mutex mutex_;
  std::vector<RuntimeProblem> problems_;
  int code_ = -1;
  std::thread thread_;
};

InvocationOutcome get(std::future<InvocationOutcome> future) {
  if (future.wait_for(patience) != std::future_status::ready) throw std::runtime_error("no outcome");
  return future.get();
}

std::string echo(std::string_view event, const Invocation&) { return std::string(event); }

void expect_response(const InvocationOutcome& outcome, const std::string& body) {
  EXPECT_EQ(outcome.kind, Kind::response) << outcome.error_type << ": " << outcome.error_message;
  EXPECT_EQ(outcome.body, body);
}

void expect_error(const InvocationOutcome& outcome, const std::string& type, const std::string& message) {
  EXPECT_EQ(outcome.kind, Kind::error);
  EXPECT_EQ(outcome.error_type, type);
  EXPECT_EQ(outcome.error_message, message);
}

// --- what is given and taken ---

TEST(Runtime, AnswersOneEventAfterTheOther) {
  LocalApi api;
  Running function(api, echo);
  for (const char* const event : {R"({"n":1})", R"({"n":2})", R"({"n":3})"}) {
    const InvocationOutcome outcome = get(api.submit(event));
    expect_response(outcome, event);
    EXPECT_EQ(outcome.content_type, "application/json");
    EXPECT_FALSE(outcome.streamed);
    EXPECT_GT(outcome.took.count(), 0);
  }
  EXPECT_TRUE(api.wait_until([](const auto& counts) { return counts.waiting == 1; }));
  EXPECT_EQ(api.counts().connections, 1U);  // Kept.
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), IsEmpty());
}

TEST(Runtime, TellsAllOfAnInvocation) {
  LocalApiOptions options;
  const auto clock = std::make_shared<once::testing::ManualClock>();
  options.clock = clock;
  LocalApi api(options);
  Invocation seen;
  Running function(api, [&](std::string_view, const Invocation& invocation) {
    seen = invocation;
    return std::string("{}");
  });
  expect_response(get(api.submit("{}", {.request_id = "request-1",
                                        .function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:pay:live",
                                        .trace_id = "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=1",
                                        .client_context = R"({"client":{"app":"x"}})",
                                        .cognito_identity = R"({"cognitoIdentityId":"y"})",
                                        .tenant_id = "blue",
                                        .timeout = Millis{15'000}})),
                  "{}");
  function.stop();
  EXPECT_EQ(seen.request_id, "request-1");
  EXPECT_EQ(seen.function_arn, "arn:aws:lambda:eu-central-1:123456789012:function:pay:live");
  EXPECT_EQ(seen.trace_id, "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=1");
  EXPECT_EQ(seen.client_context, R"({"client":{"app":"x"}})");
  EXPECT_EQ(seen.cognito_identity, R"({"cognitoIdentityId":"y"})");
  EXPECT_EQ(seen.tenant_id, "blue");
  EXPECT_EQ(seen.invocation_id.size(), 36U);
  EXPECT_EQ(seen.deadline, clock->now() + Millis{15'000});
}

TEST(Runtime, PassesBytesAsTheyAre) {
  LocalApi api;
  Running function(api, echo);
  const std::string events[] = {"", "not JSON", std::string("\0\xFF\xC3(\r\n\r\n", 8),
                                std::string(max_event_bytes, 'x')};
  for (const std::string& event : events) expect_response(get(api.submit(event)), event);
  EXPECT_THAT(function.kinds(), IsEmpty());
}

TEST(Runtime, SetsTheTraceVariableWhileOneRunsAtATime) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.trace_in_environment = true;
  Running function(
      api,
      [](std::string_view, const Invocation&) {
        const char* const value = std::getenv("_X_AMZN_TRACE_ID");
        return value == nullptr ? std::string("none") : std::string(value);
      },
      options);
  expect_response(get(api.submit("{}", {.trace_id = "Root=1;Sampled=1"})), "Root=1;Sampled=1");
  expect_response(get(api.submit("{}", {.trace_id = "R=2"})), "R=2");
  expect_response(get(api.submit("{}")), "");
  expect_response(get(api.submit("{}", {.trace_id = std::string(2000, 'x')})), "");  // Not cut short.
}

TEST(Runtime, RunsAsManyAtATimeAsItIsTold) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.concurrency = 4;
  std::barrier all_four(4);
  Running function(
      api,
      [&](std::string_view event, const Invocation&) {
        all_four.arrive_and_wait();  // Comes to an end only if four run at the same time.
        return std::string(event);
      },
      options);
  std::vector<std::future<InvocationOutcome>> outcomes;
  outcomes.reserve(8);
  for (int i = 0; i < 8; ++i) outcomes.push_back(api.submit(std::to_string(i)));
  for (int i = 0; i < 8; ++i) expect_response(get(std::move(outcomes[static_cast<std::size_t>(i)])), std::to_string(i));
  EXPECT_EQ(api.counts().connections, 4U);
  EXPECT_EQ(function.stop(), 0);
}

// --- errors of the handler ---

namespace pay {
struct Declined : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Foreign {};
struct Nothing : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return nullptr; }
};
}  // namespace pay

TEST(Runtime, MakesAnErrorAnswerOfAnyException) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&) -> std::string {
    if (event == "function error") throw FunctionError("CardDeclined", "no \"money\"\nleft\x01");
    if (event == "no type") throw FunctionError("", "message");
    if (event == "header") throw FunctionError("Bad\r\nX-Header: y", "message");
    if (event == "derived") throw pay::Declined("declined");
    if (event == "once") throw once::Exception(ErrorKind::unavailable, "the store is away");
    if (event == "bytes") throw std::runtime_error("\xFF\xC3( and more");
    if (event == "long") throw std::runtime_error(std::string(1'000'000, 'm'));
    if (event == "null") throw pay::Nothing();
    if (event == "int") throw 42;
    if (event == "struct") throw pay::Foreign();
    if (event == "text") throw "text";
    if (event == "memory") throw std::bad_alloc();
    return "fine";
  });
  const auto fails = [&](const char* event) { return get(api.submit(event)); };
  const std::string here = "once::lambda::runtime_test::pay::";
  expect_error(fails("function error"), "CardDeclined", "no \"money\"\nleft\x01");
  expect_error(fails("no type"), "FunctionError", "message");
  expect_error(fails("header"), "Bad??X-Header: y", "message");
  expect_error(fails("derived"), here + "Declined", "declined");
  expect_error(fails("once"), "once::Exception", "the store is away");
  expect_error(fails("bytes"), "std::runtime_error", "\xEF\xBF\xBD\xEF\xBF\xBD( and more");
  const InvocationOutcome large = fails("long");
  EXPECT_EQ(large.error_message.size(), 32768U + 3);
  expect_error(fails("null"), here + "Nothing", "");
  expect_error(fails("int"), "int", "an exception of type int, without a message");
  expect_error(fails("struct"), here + "Foreign", "an exception of type " + here + "Foreign, without a message");
  expect_error(fails("text"), "char const*", "an exception of type char const*, without a message");
  expect_error(fails("memory"), "std::bad_alloc", "std::bad_alloc");
  expect_response(fails("well"), "fine");  // It lives.

  const InvocationOutcome outcome = fails("derived");
  const json body = json::parse(outcome.error_body);
  EXPECT_EQ(body,
            (json{{"errorMessage", "declined"}, {"errorType", here + "Declined"}, {"stackTrace", json::array()}}));
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), Each(Problem::handler_failed));
  EXPECT_EQ(function.kinds().size(), 13U);
}

TEST(Runtime, TellsTheOperatorNoPayload) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.max_response_bytes = 10;
  Running function(
      api,
      [](std::string_view event, const Invocation&) -> std::string {
        if (event.starts_with("SECRET fail")) throw std::runtime_error(std::string(event));
        return std::string(event);
      },
      options);
  EXPECT_EQ(get(api.submit("SECRET fail")).kind, Kind::error);
  EXPECT_EQ(get(api.submit("SECRET, and too large")).kind, Kind::error);
  api.plan({.call = ApiCall::response, .kind = Fault::status, .status = 400});
  EXPECT_EQ(get(api.submit("SECRET", {.timeout = Millis{50}})).kind, Kind::timed_out);
  function.stop();
  EXPECT_THAT(function.kinds(),
              ElementsAre(Problem::handler_failed, Problem::response_refused, Problem::response_refused));
  EXPECT_THAT(function.told(), Not(HasSubstr("SECRET")));
}

// --- sizes ---

TEST(Runtime, AnswersWithAnErrorInPlaceOfAResponseThatIsTooLarge) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&) {
    return std::string(static_cast<std::size_t>(std::stoul(std::string(event))), 'x');
  });
  expect_error(get(api.submit("6291457")), "Function.ResponseSizeTooLarge",
               "the response has 6291457 bytes, more than the 6291456 allowed");
  EXPECT_EQ(get(api.submit("6291456")).body.size(), 6291456U);
  EXPECT_EQ(api.counts().responses, 1U);  // The first was not even sent.
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_refused));
}

TEST(Runtime, IsToldByThePlatformThatAResponseIsTooLarge) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.max_response_bytes = 64 * 1024 * 1024;
  Running function(
      api,
      [](std::string_view event, const Invocation&) {
        return std::string(static_cast<std::size_t>(std::stoul(std::string(event))), 'x');
      },
      options);
  expect_error(get(api.submit("20000000")), "Function.ResponseSizeTooLarge",
               "the response is larger than 6291556 bytes");
  expect_response(get(api.submit("3")), "xxx");
  function.stop();
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_refused));
  EXPECT_THAT(function.told(), HasSubstr("413 RequestEntityTooLarge"));
}

TEST(Runtime, GivesTheErrorItselfToAPlatformThatOnlyRefuses) {
  LocalApi api;
  Running function(api, echo);
  api.plan({.call = ApiCall::response, .kind = Fault::refuse_early, .status = 413});
  expect_error(get(api.submit(std::string(5'000'000, 'x'))), "Function.ResponseSizeTooLarge",
               "the response of 5000000 bytes is too large");
  expect_response(get(api.submit("next")), "next");
}

TEST(Runtime, RefusesAnEventThatIsTooLarge) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.max_event_bytes = 1000;
  Running function(api, echo, options);
  expect_error(get(api.submit(std::string(1001, 'x'))), "Runtime.EventTooLarge", "the event is larger than 1000 bytes");
  EXPECT_EQ(get(api.submit(std::string(1000, 'x'))).body.size(), 1000U);
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::event_refused));
}

// --- faults of the API ---

class LostConnection : public ::testing::TestWithParam<Fault> {};

TEST_P(LostConnection, WhileAnEventIsAskedFor) {
  LocalApi api;
  api.plan({.call = ApiCall::next, .kind = GetParam()});
  api.plan({.call = ApiCall::next, .kind = GetParam()});
  Running function(api, echo);
  const bool given = GetParam() != Fault::reset_before && GetParam() != Fault::close_before;
  if (given) {  // The events are lost, which cannot be detected.
    EXPECT_EQ(get(api.submit("1", {.timeout = Millis{20}})).kind, Kind::timed_out);
    EXPECT_EQ(get(api.submit("2", {.timeout = Millis{20}})).kind, Kind::timed_out);
  }
  expect_response(get(api.submit("3")), "3");
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::connection_lost, Problem::connection_lost));
}

TEST_P(LostConnection, WhileAResponseIsPosted) {
  LocalApi api;
  std::atomic<int> runs{0};
  Running function(api, [&](std::string_view event, const Invocation&) {
    ++runs;
    return std::string(event);
  });
  api.plan({.call = ApiCall::response, .kind = GetParam()});
  expect_response(get(api.submit("1")), "1");
  expect_response(get(api.submit("2")), "2");
  EXPECT_EQ(function.stop(), 0);
  EXPECT_EQ(runs, 2);
  if (GetParam() == Fault::reset_before || GetParam() == Fault::close_before) {
    EXPECT_THAT(function.kinds(), IsEmpty());  // Posted again, and taken.
  } else {
    EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_in_doubt));  // Refused, as it was there already.
    EXPECT_THAT(function.told(), HasSubstr("400 InvalidRequestID"));
  }
}

TEST_P(LostConnection, WhileAnErrorIsPosted) {
  LocalApi api;
  Running function(api,
                   [](std::string_view, const Invocation&) -> std::string { throw FunctionError("Type", "message"); });
  api.plan({.call = ApiCall::error, .kind = GetParam()});
  expect_error(get(api.submit("1")), "Type", "message");
  expect_error(get(api.submit("2")), "Type", "message");
  EXPECT_EQ(function.stop(), 0);
}

std::string name_of(const ::testing::TestParamInfo<Fault>& info) {
  static constexpr std::array names = {"reset_before", "reset_after", "close_before", "close_after", "half_answer"};
  return names.at(static_cast<std::size_t>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Kinds, LostConnection,
                         ::testing::Values(Fault::reset_before, Fault::close_before, Fault::reset_after,
                                           Fault::close_after, Fault::half_answer),
                         name_of);

TEST(Runtime, EndsAtA500) {
  for (const ApiCall call : {ApiCall::next, ApiCall::response, ApiCall::error}) {
    LocalApi api;
    api.plan({.call = call, .kind = Fault::status, .status = 500});
    Running function(api, [](std::string_view event, const Invocation&) -> std::string {
      if (event == "fail") throw std::runtime_error("failed");
      return "fine";
    });
    const auto outcome = api.submit(call == ApiCall::error ? "fail" : "work");
    EXPECT_EQ(function.wait(), 1);
    EXPECT_EQ(function.kinds().back(), Problem::fatal);
    EXPECT_THAT(function.told(), HasSubstr("status 500 Planned"));
  }
}

TEST(Runtime, EndsAllThreadsAtA500AfterTheirWork) {
  LocalApi api;
  RuntimeOptions options = quiet_options();
  options.concurrency = 3;
  Gate failed;
  std::latch both(2);
  Running function(
      api,
      [&](std::string_view event, const Invocation&) -> std::string {
        both.arrive_and_wait();
        if (event == "slow") failed.wait();
        return std::string(event);
      },
      options);
  auto slow = api.submit("slow");
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.running == 1; }));
  api.plan({.call = ApiCall::response, .kind = Fault::status, .status = 500});
  const auto quick = api.submit("quick");  // Its response meets the 500.
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.responses == 1; }));
  failed.open();
  expect_response(get(std::move(slow)), "slow");
  EXPECT_EQ(function.wait(), 1);
}

TEST(Runtime, EndsWhenTheApiIsGone) {
  auto api = std::make_unique<LocalApi>();
  Running function(*api, echo);
  expect_response(get(api->submit("1")), "1");
  api.reset();
  EXPECT_EQ(function.wait(), 1);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::connection_lost, Problem::connection_lost,
                                            Problem::connection_lost, Problem::connection_lost, Problem::fatal));
  EXPECT_THAT(function.told(), HasSubstr("cannot connect: Connection refused; the runtime ends"));
}

TEST(Runtime, PausesAsLongAsItIsToldWhateverSignalsCome) {
  struct sigaction before {};
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &before), 0);
  RuntimeOptions options = quiet_options();
  options.pause = Millis{10'000};
  std::stop_source stop;
  options.stop = stop.get_token();
  std::atomic<int> problems{0};
  Gate pauses;
  options.on_problem = [&](const RuntimeProblem&) {
    if (++problems == 1) pauses.open();
  };
  {
    const LocalApi gone;
    options.api = gone.address();
  }
  std::thread function([&] { EXPECT_EQ(run(echo, options), 0); });
  pauses.wait();
  for (int i = 0; i < 1'000; ++i) {
    ASSERT_EQ(::pthread_kill(function.native_handle(), SIGUSR1), 0);
    std::this_thread::yield();
  }
  stop.request_stop();
  function.join();
  EXPECT_EQ(problems, 1);
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST(Runtime, AsksAgainAfterARefusal) {
  LocalApi api;
  api.plan({.call = ApiCall::next, .kind = Fault::status, .status = 403});
  Running function(api, echo);
  expect_response(get(api.submit("1")), "1");
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::connection_lost));
}

TEST(Runtime, ReportsAResponseThatComesTooLate) {
  LocalApi api;
  Gate over;
  Running function(api, [&](std::string_view event, const Invocation&) {
    if (event == "late") over.wait();
    return std::string(event);
  });
  EXPECT_EQ(get(api.submit("late", {.timeout = Millis{20}})).kind, Kind::timed_out);
  over.open();
  expect_response(get(api.submit("next")), "next");
  function.stop();
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_refused));
  EXPECT_THAT(function.told(), HasSubstr("did not take the response of 4 bytes: status 400 InvalidRequestID"));
}

// 1. The attempt with request id "again" times out, and its handler goes on.
// 2. The platform sends "again" once more; another thread takes it.
// 3. The first handler returns: its response names the first attempt, and is refused.
TEST(Runtime, LateResponseReachesNoLaterAttempt) {
  for (const bool throws : {false, true}) {
    LocalApi api;
    Gate over;
    Gate second;
    RuntimeOptions two = quiet_options();
    two.concurrency = 2;
    const auto handler = [&](std::string_view event, const Invocation&) {
      if (event == "late") over.wait();
      if (event == "late" && throws) throw FunctionError("Late", "too late");
      if (event == "second") second.wait();
      return std::string(event);
    };
    Running function(api, handler, two);
    EXPECT_EQ(get(api.submit("late", {.request_id = "again", .timeout = Millis{20}})).kind, Kind::timed_out);
    auto outcome = api.submit("second", {.request_id = "again"});
    EXPECT_TRUE(api.wait_until([](const auto& counts) { return counts.running == 1; }));
    over.open();
    EXPECT_TRUE(api.wait_until([](const auto& counts) { return counts.refused == 1; }));
    second.open();
    expect_response(get(std::move(outcome)), "second");
    function.stop();
    EXPECT_THAT(function.told(), HasSubstr("status 410 ErrorRuntimeInvokeTimeout"));
  }
}

TEST(Runtime, GivesUpAResponseThatIsNeverTaken) {
  LocalApi api;
  Running function(api, echo);
  for (int i = 0; i < 5; ++i) api.plan({.call = ApiCall::response, .kind = Fault::reset_before});
  EXPECT_EQ(get(api.submit("1", {.timeout = Millis{500}})).kind, Kind::timed_out);
  expect_response(get(api.submit("2")), "2");
  function.stop();
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_in_doubt));
  EXPECT_THAT(function.told(), HasSubstr("failed 5 times"));
}

TEST(Runtime, KnowsThatAResponseDidNotArriveWithoutAConnection) {
  auto api = std::make_unique<LocalApi>();
  Gate submitted;
  Running function(*api, [&](std::string_view event, const Invocation&) {
    submitted.wait();
    api.reset();
    return std::string(event);
  });
  auto outcome = api->submit("1");
  submitted.open();
  EXPECT_EQ(get(std::move(outcome)).kind, Kind::dropped);
  EXPECT_EQ(function.wait(), 1);
  EXPECT_EQ(function.kinds().at(0), Problem::response_refused);
  EXPECT_THAT(function.told(), HasSubstr("/response failed 5 times: cannot connect: Connection refused; it did not "));
}

// A server with one answer for all.
class RawServer {
 public:
  explicit RawServer(std::string answer) : answer_(std::move(answer)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(fd_, 8) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;
  ~RawServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() const {
    for (;;) {
      const int client = ::accept(fd_, nullptr, nullptr);
      if (client < 0) return;
      std::string request;
      std::array<char, 4096> part{};
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t count = ::recv(client, part.data(), part.size(), 0);
        if (count <= 0) break;
        request.append(part.data(), static_cast<std::size_t>(count));
      }
      ::send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      ::close(client);
    }
  }

  const std::string answer_;
  const int fd_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST(Runtime, EndsWhenWhatItGetsIsNoEvent) {
  const std::string event_head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n";
  for (const std::string& answer :
       {std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string(100'000, 'x'), event_head + "\r\n{}",
        event_head + "Lambda-Runtime-Aws-Request-Id: ../../x\r\n\r\n{}",
        event_head + "Lambda-Runtime-Aws-Request-Id: a\r\n\r\n{",
        event_head + "X: " + std::string(100'000, 'x') + "\r\n\r\n{}"}) {
    const RawServer server(answer);
    RuntimeOptions options = quiet_options();
    options.api = server.address();
    options.attempts = 2;
    std::vector<Problem> kinds;
    options.on_problem = [&](const RuntimeProblem& problem) { kinds.push_back(problem.kind); };
    EXPECT_EQ(run(echo, options), 1);
    EXPECT_THAT(kinds, ElementsAre(Problem::connection_lost, Problem::fatal)) << answer.substr(0, 100);
  }
}

// --- streaming ---

TEST(Streaming, SendsWhatIsWrittenAsItIs) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&, ResponseStream& response) {
    response.content_type("text/plain");
    response.write("one ");
    response.write("");
    response.write(event);
    response.write(std::string(1'000'000, 'x'));
  });
  const InvocationOutcome outcome = get(api.submit("two "));
  expect_response(outcome, "one two " + std::string(1'000'000, 'x'));
  EXPECT_TRUE(outcome.streamed);
  EXPECT_EQ(outcome.content_type, "text/plain");
  EXPECT_EQ(get(api.submit("again ")).body.substr(0, 10), "one again ");
  EXPECT_EQ(api.counts().connections, 1U);
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), IsEmpty());
}

TEST(Streaming, SendsTheHeadOfAnHttpAnswer) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&, ResponseStream& response) {
    response.http_head(R"({"statusCode":201})");
    if (event == "body") response.write("body");
  });
  const std::string head = R"({"statusCode":201})" + std::string(8, '\0');
  const InvocationOutcome outcome = get(api.submit("body"));
  expect_response(outcome, head + "body");
  EXPECT_EQ(outcome.content_type, "application/vnd.awslambda.http-integration-response");
  expect_response(get(api.submit("none")), head);
}

TEST(Streaming, EndsWithAnErrorInTrailers) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&, ResponseStream& response) {
    response.write("part");
    if (event == "int") throw 42;
    throw FunctionError("Broken\nType", "no \xFF more" + std::string(event));
  });
  const InvocationOutcome outcome = get(api.submit("!"));
  expect_error(outcome, "Broken?Type", "no \xEF\xBF\xBD more!");
  EXPECT_EQ(outcome.body, "part");
  EXPECT_TRUE(outcome.streamed);
  for (const std::size_t size : {1U, 2U, 3U}) {  // Each padding of base64.
    EXPECT_EQ(get(api.submit(std::string(size, 'm'))).error_message, "no \xEF\xBF\xBD more" + std::string(size, 'm'));
  }
  EXPECT_EQ(get(api.submit("int")).error_type, "int");
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.kinds(), Each(Problem::handler_failed));
}

TEST(Streaming, AnswersWithAnErrorBeforeTheFirstByte) {
  LocalApi api;
  Running function(api, [](std::string_view event, const Invocation&, ResponseStream& response) {
    if (event == "empty") return;
    response.content_type("text/plain");
    throw FunctionError("Early", "nothing was sent");
  });
  const InvocationOutcome outcome = get(api.submit("fail"));
  expect_error(outcome, "Early", "nothing was sent");
  EXPECT_FALSE(outcome.streamed);
  const InvocationOutcome empty = get(api.submit("empty"));
  expect_response(empty, "");
  EXPECT_TRUE(empty.streamed);
}

TEST(Streaming, ForbidsAHeadAfterTheBody) {
  LocalApi api;
  Running function(api, [](std::string_view, const Invocation&, ResponseStream& response) {
    response.write("x");
    response.content_type("text/plain");
  });
  expect_error(get(api.submit("1")), "once::Exception", "content_type() comes before the first write()");
}

TEST(Streaming, TellsTheHandlerThatNobodyReadsOn) {
  LocalApiOptions options;
  options.max_stream_bytes = 1'000'000;
  LocalApi api(options);
  std::promise<ErrorKind> refused;
  Running function(api, [&](std::string_view event, const Invocation&, ResponseStream& response) {
    try {
      for (int i = 0; event == "much" && i < 100'000; ++i) response.write(std::string(10'000, 'x'));
      response.write("x");
    } catch (const once::Exception& error) {
      refused.set_value(error.kind());
      throw;
    }
  });
  const auto was_refused = [&] {
    auto future = refused.get_future();
    if (future.wait_for(patience) != std::future_status::ready) throw std::runtime_error("it was not");
    const ErrorKind kind = future.get();
    refused = std::promise<ErrorKind>();
    return kind;
  };
  api.plan({.call = ApiCall::response, .kind = Fault::refuse_early, .status = 403});
  auto early = api.submit("much");
  EXPECT_EQ(was_refused(), ErrorKind::unavailable);
  api.function_died("as the test says");
  EXPECT_EQ(get(std::move(early)).kind, Kind::died);

  const InvocationOutcome limited = get(api.submit("much"));
  EXPECT_EQ(limited.error_type, "Function.ResponseSizeTooLarge");
  EXPECT_GT(limited.body.size(), 0U);
  EXPECT_EQ(was_refused(), ErrorKind::unavailable);

  expect_response(get(api.submit("little")), "x");
  EXPECT_EQ(function.stop(), 0);
  EXPECT_THAT(function.told(), HasSubstr("did not take a streamed response"));
}

TEST(Streaming, AnswersWithAnErrorIfItCannotBeBegun) {
  auto api = std::make_unique<LocalApi>();
  Gate submitted;
  Gate back;
  Running function(*api, [&](std::string_view, const Invocation&, ResponseStream& response) {
    submitted.wait();
    const std::uint16_t port = api->port();
    api.reset();
    EXPECT_THROW(response.write("x"), once::Exception);
    api = std::make_unique<LocalApi>(LocalApiOptions{.port = port});
    back.open();
  });
  auto outcome = api->submit("1");
  submitted.open();
  EXPECT_EQ(get(std::move(outcome)).kind, Kind::dropped);
  back.wait();
  EXPECT_TRUE(api->wait_until([](const auto& counts) { return counts.errors == 1 && counts.waiting == 1; }));
  EXPECT_EQ(api->counts().responses, 0U);
  EXPECT_EQ(function.stop(), 0);
  // The second: of a process that has not given the event, it is refused.
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_refused, Problem::response_refused));
  EXPECT_THAT(function.told(),
              HasSubstr("a streamed response could not be started: cannot connect: Connection refused"));
}

TEST(Streaming, ReportsWhatBecameOfItAfterTheEnd) {
  LocalApi api;
  Running function(api, [](std::string_view, const Invocation&, ResponseStream& response) { response.write("x"); });
  api.plan({.call = ApiCall::response, .kind = Fault::status, .status = 403});
  EXPECT_EQ(get(api.submit("{}", {.timeout = Millis{50}})).kind, Kind::timed_out);
  api.plan({.call = ApiCall::response, .kind = Fault::reset_after});
  expect_response(get(api.submit("{}")), "x");
  expect_response(get(api.submit("{}")), "x");
  api.plan({.call = ApiCall::response, .kind = Fault::status, .status = 500});
  const auto last = api.submit("{}");
  EXPECT_EQ(function.wait(), 1);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::response_refused, Problem::response_in_doubt, Problem::fatal));
}

// --- the beginning and the end ---

TEST(Init, MakesTheHandlerBeforeItAsks) {
  LocalApi api;
  Running function(
      api, [] { return [count = 0](std::string_view, const Invocation&) mutable { return std::to_string(++count); }; });
  expect_response(get(api.submit("{}")), "1");
  expect_response(get(api.submit("{}")), "2");
}

TEST(Init, MakesAStreamingHandler) {
  LocalApi api;
  Running function(api, [] {
    return [](std::string_view, const Invocation&, ResponseStream& response) { response.write("made"); };
  });
  expect_response(get(api.submit("{}")), "made");
}

TEST(Init, ReportsWhyTheHandlerCannotBeMade) {
  LocalApi api;
  auto waiting = api.submit("{}");
  Running function(api, []() -> Handler { throw FunctionError("NoTable", "ONCE_STORE is not set"); });
  EXPECT_EQ(function.wait(), 1);
  const InvocationOutcome outcome = get(std::move(waiting));
  expect_error(outcome, "NoTable", "ONCE_STORE is not set");
  EXPECT_FALSE(outcome.given);
  EXPECT_EQ(api.init_error().error_type, "NoTable");
  EXPECT_EQ(api.counts().next, 0U);
  EXPECT_THAT(function.kinds(), ElementsAre(Problem::init_failed));
  EXPECT_EQ(function.told(), "the handler could not be created: NoTable: ONCE_STORE is not set\n");
}

TEST(Init, ReportsForeignExceptionsAndEmptyHandlers) {
  LocalApi api;
  EXPECT_EQ(Running(api, []() -> Handler { throw 42; }).wait(), 1);
  EXPECT_EQ(api.init_error().error_type, "int");
  EXPECT_EQ(Running(api, []() -> Handler { return {}; }).wait(), 1);
  EXPECT_EQ(api.init_error().error_type, "Runtime.NoHandler");
  EXPECT_EQ(Running(api, StreamingHandler()).wait(), 1);
  EXPECT_EQ(api.counts().init_errors, 3U);
}

TEST(Init, EndsThoughTheApiRefusesTheReport) {
  LocalApi api;
  api.plan({.call = ApiCall::init_error, .kind = Fault::status, .status = 403});
  Running refused(api, []() -> Handler { throw FunctionError("Type", "message"); });
  EXPECT_EQ(refused.wait(), 1);
  EXPECT_THAT(refused.kinds(), ElementsAre(Problem::init_failed, Problem::response_refused));
  api.plan({.call = ApiCall::init_error, .kind = Fault::status, .status = 500});
  Running broken(api, []() -> Handler { throw FunctionError("Type", "message"); });
  EXPECT_EQ(broken.wait(), 1);
}

TEST(Options, ThatCannotBeAreInitErrors) {
  LocalApi api;
  const auto told = [&](auto change) {
    RuntimeOptions options = quiet_options();
    options.api = api.address();
    std::string messages;
    options.on_problem = [&](const RuntimeProblem& problem) {
      EXPECT_EQ(problem.kind, Problem::init_failed);
      messages += problem.message;
    };
    change(options);
    EXPECT_EQ(run(echo, options), 1);
    return messages;
  };
  EXPECT_THAT(told([](auto& options) { options.concurrency = 0; }), HasSubstr("concurrency must be from 1 to 1600"));
  EXPECT_EQ(api.init_error().error_type, "Runtime.InvalidOptions");
  EXPECT_THAT(told([](auto& options) { options.concurrency = 1601; }), HasSubstr("not 1601"));
  EXPECT_THAT(told([](auto& options) { options.attempts = 0; }), HasSubstr("attempts must be from 1 to 100"));
  EXPECT_THAT(told([](auto& options) { options.pause = Millis{-1}; }), HasSubstr("pause"));
  EXPECT_EQ(api.counts().init_errors, 4U);
  for (const char* const api_address : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "::1:80",
                                        "http://127.0.0.1:9001", "host:80/path", ":80"}) {
    EXPECT_THAT(told([&](auto& options) { options.api = api_address; }), HasSubstr("must be HOST:PORT")) << api_address;
  }
}

// Sets variables for the length of a test.
class Variables {
 public:
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    names_.insert(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::set<std::string> names_;
};

TEST(Options, ComeFromTheEnvironment) {
  Variables environment;
  EXPECT_THROW(runtime_options_from_environment(), Exception);
  environment.set("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001");
  EXPECT_EQ(runtime_options_from_environment().api, "127.0.0.1:9001");
  EXPECT_EQ(runtime_options_from_environment().concurrency, 1U);
  environment.set("AWS_LAMBDA_MAX_CONCURRENCY", "16");
  EXPECT_EQ(runtime_options_from_environment().concurrency, 16U);
  for (const char* const wrong : {"", "0", "-1", "1601", "4 ", "four", "99999999999999999999"}) {
    environment.set("AWS_LAMBDA_MAX_CONCURRENCY", wrong);
    EXPECT_THROW(runtime_options_from_environment(), Exception) << wrong;
  }
}

TEST(Options, FromTheEnvironmentThatCannotBeAreInitErrors) {
  LocalApi api;
  Variables environment;
  environment.set("AWS_LAMBDA_RUNTIME_API", api.address());
  environment.set("AWS_LAMBDA_MAX_CONCURRENCY", "many");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(echo), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "once: init_failed: AWS_LAMBDA_MAX_CONCURRENCY must be a number from 1 to 1600, not 'many'\n");
  EXPECT_EQ(api.init_error().error_type, "Runtime.InvalidEnvironment");
}

TEST(End, FinishesWhatIsUnderWay) {
  LocalApi api;
  Gate go_on;
  Running function(api, [&](std::string_view event, const Invocation&) {
    go_on.wait();
    return std::string(event);
  });
  auto outcome = api.submit("1");
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.running == 1; }));
  function.request_stop();
  go_on.open();
  expect_response(get(std::move(outcome)), "1");
  EXPECT_EQ(function.wait(), 0);
  EXPECT_EQ(api.counts().next, 1U);  // It did not ask again.
}

TEST(End, ComesWithSigterm) {
  LocalApi api;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &before), 0);
  ASSERT_EQ(before.sa_handler, SIG_DFL);
  RuntimeOptions options = quiet_options();
  options.end_at_sigterm = true;
  options.concurrency = 2;
  Running function(api, echo, options);
  ASSERT_TRUE(api.wait_until([](const auto& counts) { return counts.waiting == 2; }));
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  EXPECT_EQ(function.wait(), 0);
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
}

TEST(Log, IsOneLineOfPrintableText) {
  ::testing::internal::CaptureStderr();
  log_problem({.kind = Problem::response_refused, .request_id = "id\n", .message = "text"});
  log_problem({.kind = Problem::fatal, .request_id = "", .message = "text"});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "once: response_refused: text (request id?)\nonce: fatal: text\n");
}

// ---- SnapStart

RuntimeOptions snap_start_options() {
  RuntimeOptions options = quiet_options();
  options.snap_start = true;
  return options;
}

// What happened, in its order, in the threads of a function and of a test.
class Diary {
 public:
  void add(std::string what) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(what));
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

TEST(SnapStart, HooksSurroundTheSnapshot) {
  LocalApi api({.snap_start = true});
  Diary diary;
  const SnapshotHook first([&] { diary.add("first before"); }, [&] { diary.add("first after"); });
  const SnapshotHook second([&] { diary.add("second before"); }, [&] { diary.add("second after"); });
  const std::function<Handler()> make = [&] {
    diary.add("made");
    return Handler([](std::string_view event, const Invocation&) { return std::string(event); });
  };
  Running running(api, make, snap_start_options());
  auto answer = api.submit("17");
  ASSERT_TRUE(api.wait_until([](const LocalApi::Counts& c) { return c.restoring == 1; }));
  EXPECT_THAT(diary.all(), ElementsAre("made", "second before", "first before"));
  EXPECT_EQ(api.counts().next, 0U) << "no event before the restore";
  api.restore();
  EXPECT_EQ(answer.get().body, "17");
  EXPECT_THAT(diary.all(), ElementsAre("made", "second before", "first before", "first after", "second after"));
  EXPECT_EQ(api.counts().connections, 2U) << "the connection of before the snapshot is not used again";
  EXPECT_EQ(running.stop(), 0);
  EXPECT_THAT(running.problems(), IsEmpty());
}

TEST(SnapStart, NothingIsCalledWithoutIt) {
  LocalApi api;
  Diary diary;
  const SnapshotHook hook([&] { diary.add("before"); }, [&] { diary.add("after"); });
  Running running(api, Handler([](std::string_view event, const Invocation&) { return std::string(event); }));
  EXPECT_EQ(api.submit("17").get().body, "17");
  EXPECT_EQ(api.counts().restores, 0U);
  EXPECT_EQ(running.stop(), 0);
  EXPECT_THAT(diary.all(), IsEmpty());
}

TEST(SnapStart, AHookThatFailsBeforeIsAnInitError) {
  LocalApi api({.snap_start = true});
  const SnapshotHook hook([] { throw FunctionError("PoolBusy", "a connection is in use"); });
  Running running(api, Handler(), snap_start_options());
  EXPECT_EQ(running.wait(), 1) << "there is no handler";
  Running with_handler(api, Handler([](std::string_view, const Invocation&) { return ""; }), snap_start_options());
  EXPECT_EQ(with_handler.wait(), 1);
  EXPECT_EQ(api.init_error().error_type, "Runtime.BeforeSnapshotError");
  EXPECT_EQ(api.init_error().error_message, "PoolBusy: a connection is in use");
  EXPECT_EQ(api.counts().init_errors, 2U);
  EXPECT_EQ(api.counts().restores, 0U) << "no snapshot";
  EXPECT_THAT(with_handler.kinds(), ElementsAre(Problem::init_failed));
}

TEST(SnapStart, AHookThatFailsAfterIsARestoreError) {
  LocalApi api({.snap_start = true});
  api.restore();
  const SnapshotHook hook([] {}, [] { throw FunctionError("NoDatabase", "it does not answer"); });
  Running running(api, Handler([](std::string_view, const Invocation&) { return ""; }), snap_start_options());
  EXPECT_EQ(running.wait(), 1);
  EXPECT_EQ(api.init_error().error_type, "Runtime.AfterRestoreError");
  EXPECT_EQ(api.init_error().error_message, "NoDatabase: it does not answer");
  EXPECT_EQ(api.counts().restore_errors, 1U);
  EXPECT_EQ(api.counts().next, 0U);
  EXPECT_THAT(running.kinds(), ElementsAre(Problem::restore_failed));
}

TEST(SnapStart, ALostConnectionIsNoRestore) {
  LocalApi api({.snap_start = true});
  api.plan({.call = ApiCall::restore_next, .kind = Fault::reset_before});
  api.plan({.call = ApiCall::restore_next, .kind = Fault::close_before});
  api.restore();
  Running running(api, Handler([](std::string_view event, const Invocation&) { return std::string(event); }),
                  snap_start_options());
  EXPECT_EQ(api.submit("17").get().body, "17");
  EXPECT_EQ(api.counts().restores, 3U);
  EXPECT_EQ(running.stop(), 0);
  EXPECT_THAT(running.kinds(), ElementsAre(Problem::connection_lost, Problem::connection_lost));
}

TEST(SnapStart, StopsWhileItWaitsForTheRestore) {
  LocalApi api({.snap_start = true});
  Running running(api, Handler([](std::string_view, const Invocation&) { return ""; }), snap_start_options());
  ASSERT_TRUE(api.wait_until([](const LocalApi::Counts& c) { return c.restoring == 1; }));
  EXPECT_EQ(running.stop(), 0);
}

TEST(SnapStart, APlatformWithoutItEndsTheRuntime) {
  LocalApi api;  // As on a platform that sets the variable and lacks the call.
  Running running(api, Handler([](std::string_view, const Invocation&) { return ""; }), snap_start_options());
  EXPECT_EQ(running.wait(), 1);
  EXPECT_THAT(running.kinds(), ElementsAre(Problem::fatal));
  EXPECT_THAT(running.told(), HasSubstr("status 404 NotFound when asked for the restore"));
  RuntimeOptions many = snap_start_options();
  many.concurrency = 2;
  Running concurrent(api, Handler([](std::string_view, const Invocation&) { return ""; }), many);
  EXPECT_EQ(concurrent.wait(), 1);
  EXPECT_THAT(concurrent.told(), HasSubstr("one event at a time"));
}

TEST(SnapStart, IsReadFromTheEnvironment) {
  ASSERT_EQ(setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001", 1), 0);
  for (const auto& [value, is_on] : {std::pair("snap-start", true), std::pair("on-demand", false)}) {
    ASSERT_EQ(setenv("AWS_LAMBDA_INITIALIZATION_TYPE", value, 1), 0);
    EXPECT_EQ(runtime_options_from_environment().snap_start, is_on) << value;
  }
  unsetenv("AWS_LAMBDA_INITIALIZATION_TYPE");
  EXPECT_FALSE(runtime_options_from_environment().snap_start);
  unsetenv("AWS_LAMBDA_RUNTIME_API");
}

// A snapshot with two copies, made by clone(2) when everything is ready for it: unlike fork(), no handler of the
// process learns of it. The engine is used before.
#ifndef ONCE_UNDER_THREAD_SANITIZER  // It cannot follow a copy of a process that has threads.
TEST(SnapStart, CopiesDrawOwnersOfTheirOwn) {
  LocalApi api({.snap_start = true});
  api.restore();
  const auto serve = [&] {
    EngineOptions engine_options;
    engine_options.store = stores::make_memory_store();
    engine_options.policy.heartbeat = false;
    Engine engine(engine_options);
    const auto claim = [&engine](const std::string& name) {
      std::string owner;
      const Outcome outcome = engine.run(engine.request(name, {}), [&](Context&) {
        owner = blocking::get(*engine.options().store, engine.request(name, {}).key.stored()).record->owner.hex();
        return Result::inlined("done");
      });
      return to_string(outcome.kind) == "executed" ? owner : std::string(to_string(outcome.kind));
    };
    claim("at init");
    const SnapshotHook copies([] { static_cast<void>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0)); });
    RuntimeOptions options = snap_start_options();
    options.api = api.address();
    const Handler handler = [&](std::string_view event, const Invocation&) {
      const std::string owner = claim(std::string(event));
      return json({{"pid", getpid()}, {"owner", owner}}).dump();
    };
    return run(handler, options);
  };
  const pid_t function = fork();
  ASSERT_GE(function, 0);
  if (function == 0) {
    setpgid(0, 0);
    _exit(serve());
  }
  setpgid(function, function);
  std::set<std::string> owners;
  std::set<int> pids;
  // Each copy waits for an event, and is given one.
  ASSERT_TRUE(api.wait_until([](const LocalApi::Counts& c) { return c.waiting == 2; }));
  auto one = api.submit("order-17");
  auto other = api.submit("order-17");
  for (auto* answer : {&one, &other}) {
    const json told = json::parse(answer->get().body);
    owners.insert(told.at("owner").get<std::string>());
    pids.insert(told.at("pid").get<int>());
  }
  EXPECT_EQ(api.counts().restores, 2U);
  EXPECT_EQ(pids.size(), 2U);
  EXPECT_EQ(owners.size(), 2U);
  for (const std::string& owner : owners) EXPECT_EQ(owner.size(), 32U) << owner;
  kill(-function, SIGKILL);
  waitpid(function, nullptr, 0);
}
#endif

}  // namespace runtime_test
}  // namespace once::lambda
