// Each fault of the wire and the service, through engine, store, client, TLS and a server, with several workers and a
// ledger; the history is checked afterwards. What it checks is in faults_history.hpp and tests/simulation/auditor.hpp.
#include "faults_history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spoils.hpp"

namespace once::testing {
namespace {

using ::testing::HasSubstr;
using How = Told::How;
using Kind = FakeFault::Kind;

constexpr std::string_view service_error = R"({"__type":"com.amazonaws.dynamodb.v20120810#)";

FakeFault answered(std::string_view type) {
  return {.kind = Kind::answered,
          .answer = {.status = 400, .body = std::string(service_error) + std::string(type) + R"(","message":"no"})"}};
}

struct Row {
  const char* name;
  FakeFault fault;
  enum class Did : std::uint8_t {
    nothing,     // And the client knows: it may send the request again, and does where that can help.
    perhaps,     // Nothing, but for all that the client knows it may have: a write must not be sent again.
    everything,  // The same, and it was carried out.
  };
  Did did;
  std::size_t result_bytes = 0;
  bool client_repeats = false;  // Of `nothing`: it is worth it.
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

const Row rows[] = {
    {"answer_lost_after_the_write", {.kind = Kind::lost_after}, Row::Did::everything},
    {"reset_after_the_write", {.kind = Kind::lost_after, .abrupt = true}, Row::Did::everything},
    {"half_an_answer", {.kind = Kind::half_answer}, Row::Did::everything},
    {"error_500_after_the_write", {.kind = Kind::server_error_after}, Row::Did::everything},
    {"lost_before_the_write", {.kind = Kind::lost_before}, Row::Did::perhaps},
    {"reset_before_the_write", {.kind = Kind::lost_before, .abrupt = true}, Row::Did::perhaps},
    {"error_500_before_the_write", {.kind = Kind::server_error}, Row::Did::perhaps},
    {"throttling_storm", {.kind = Kind::throttled}, Row::Did::nothing, 0, true},
    {"permission_withdrawn", answered("AccessDeniedException"), Row::Did::nothing},
    {"table_missing_for_a_while", answered("ResourceNotFoundException"), Row::Did::nothing},
    {"results_at_the_items_limit", {.kind = Kind::lost_after}, Row::Did::everything, 390'000},
    {"results_over_the_items_limit", {.kind = Kind::lost_after}, Row::Did::everything, 450'000},
};

const std::vector<std::string> keys{"a", "b", "c", "d", "e", "f"};

class FaultsHistory : public ::testing::TestWithParam<Row> {
 protected:
  FaultsHistory() {
    world.policy.max_inline_bytes = 400 * 1024;
    world.result_bytes = GetParam().result_bytes;
    for (int i = 0; i < 3; ++i) workers.push_back(&world.add_worker());
  }

  Ledgered world;
  std::vector<Worker*> workers;
};

// All workers want all keys, and two of three requests fail, but for one key at most two in a row.
TEST_P(FaultsHistory, ACrowd) {
  const Row& row = GetParam();
  SeededRandom random(20'261'121);
  std::map<std::string, int> in_a_row;
  world.set_faults([&](const WireCall& call) {
    int& run = in_a_row[call.key];
    if (run >= 2 || random.below(3) == 0) {
      run = 0;
      return FakeFault{};
    }
    ++run;
    return row.fault;
  });
  world.crowd(workers, keys);
  world.check();
  world.print(row.name);
  const auto counts = world.counts();
  EXPECT_GT(counts.faults, counts.calls / 4);
  EXPECT_GE(counts.charges, keys.size());
  // Nobody stopped for as long as a lease: nothing is done twice, unless a finish could not be written.
  if (counts.unrecorded == 0 && counts.took_over == 0) {
    EXPECT_EQ(counts.charges, keys.size());
  }
  if (row.did == Row::Did::nothing) {
    EXPECT_EQ(counts.clients.retries > 0, row.client_repeats);
  } else {
    // Clients do not retry writes after any failure; the engine reads first. With large results a slow machine may have
    // no connection in time, which is retried too.
    if (row.result_bytes == 0) {
      EXPECT_LE(counts.clients.retries, counts.faulty_reads);
    }
    EXPECT_EQ(counts.sent_twice, 0U);
    EXPECT_GE(counts.clients.in_doubt, counts.faults);
  }
  for (const auto& key : keys) {
    for (const Told& told : world.told(key)) {
      if (told.how == How::error) continue;
      EXPECT_EQ(told.dropped, told.how != How::unrecorded && row.result_bytes > 400 * 1024)
          << key << ": call " << told.call << " of " << told.worker;
    }
  }
}

// One worker's writes go wrong from the moment that it has charged until another may take over: one claim of it is
// finished into the fault, another is at work all the while and finishes too late.
TEST_P(FaultsHistory, OneWorkerIsCutOffForLongerThanItsLease) {
  const Row& row = GetParam();
  const bool lands = row.did == Row::Did::everything;
  Worker& victim = *workers[0];
  Worker& other = *workers[1];
  auto finishing = std::get<AtWork>(world.start(victim, "finishes into it"));
  auto working = std::get<AtWork>(world.start(victim, "works through it"));
  const std::stop_token stop = working.claim.stop_token();
  world.set_faults([&](const WireCall& call) { return call.holder == victim.name ? row.fault : FakeFault{}; });
  const Time cut = world.time.clock->now();
  const Told unrecorded = world.finish(victim, std::move(finishing));
  EXPECT_EQ(unrecorded.how, How::unrecorded);
  EXPECT_NE(unrecorded.error.message, "");

  world.time.speed = 100;
  ASSERT_TRUE(wait_until([&] { return stop.stop_requested(); })) << "the work was not told";
  const Millis until_lapsed =
      world.policy.lease.value() + world.store_skew() + 2s;  // And how uncertain the service's time is.
  if (!lands) {
    ASSERT_TRUE(wait_until([&] { return world.time.clock->now() >= cut + until_lapsed; }));
  }
  world.time.speed = 10;

  if (lands) {
    // Its writes were made, and so was its result; its claim is renewed, whatever it believes.
    EXPECT_EQ(world.settle(other, "finishes into it").how, How::replayed);
    world.set_faults({});
    EXPECT_EQ(world.finish(victim, std::move(working)).how, How::recorded);
    EXPECT_EQ(world.settle(other, "works through it").how, How::replayed);
  } else {
    for (const auto* key : {"finishes into it", "works through it"}) {
      const Told taken = world.settle(other, key);
      EXPECT_EQ(taken.how, How::recorded) << key;
      EXPECT_EQ(taken.verdict, Verdict::take_over) << key;
    }
    world.set_faults({});
    const Told late = world.finish(victim, std::move(working));
    EXPECT_EQ(late.how, How::superseded);
    EXPECT_EQ(late.dropped, row.result_bytes > 400 * 1024);
  }
  world.check();
  world.print(row.name);
  const auto counts = world.counts();
  EXPECT_EQ(counts.doubled, lands ? 0U : 2U);
  EXPECT_EQ(counts.took_over, lands ? 0U : 2U);
  if (!lands) {
    EXPECT_GE(counts.late_refused, 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, FaultsHistory, ::testing::ValuesIn(rows),
                         [](const auto& row) { return std::string(row.param.name); });

// One worker of three is set up wrongly. It runs nothing and gets the reason; the others do not notice. A name that
// cannot be resolved is in partition_test.py, where no name server can be asked.
struct Wrong {
  const char* name;
  WorkerOptions options;
  FakeServerOptions::Certificate certificate = FakeServerOptions::Certificate::good;  // Of its way to the service.
  const char* says = "";
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

const Wrong wrongs[] = {
    {.name = "certificate_for_another_name",
     .options = {},
     .certificate = FakeServerOptions::Certificate::wrong_name,
     .says = "certificate"},
    {.name = "certificate_expired",
     .options = {},
     .certificate = FakeServerOptions::Certificate::expired,
     .says = "expired"},
    {.name = "certificate_of_nobody_we_trust",
     .options = {.client = [](auto& client) { client.ca_file.clear(); }},
     .says = "certificate"},
    {.name = "secret_wrong",
     .options = {.client =
                     [](auto& client) {
                       client.credentials =
                           aws::static_credentials({.access_key_id = Ledgered::access_key().access_key_id,
                                                    .secret_access_key = "not the secret",
                                                    .source = "a profile"});
                     }},
     .says = "credentials from a profile"},
    {.name = "access_key_unknown",
     .options = {.client =
                     [](auto& client) {
                       client.credentials = aws::static_credentials(
                           {.access_key_id = "AKIAUNKNOWN", .secret_access_key = "a secret", .source = "a profile"});
                     }},
     .says = "credentials from a profile"},
    {.name = "region_wrong",
     .options = {.client = [](auto& client) { client.region = "us-east-1"; }},
     .says = "us-east-1"},
    {.name = "table_missing", .options = {.store = [](auto& store) { store.table = "misspelt"; }}, .says = "misspelt"},
    {.name = "another_key_schema",
     .options = {.store = [](auto& store) { store.partition_key = "pk"; }},
     .says = "the table has another primary key"},
};

class FaultsOfOne : public ::testing::TestWithParam<Wrong> {};

TEST_P(FaultsOfOne, NothingIsRunAndTheOthersGoOn) {
  const Wrong& wrong = GetParam();
  Ledgered world;
  auto bad_way = Ledgered::default_server();
  bad_way.certificate = wrong.certificate;
  const FakeDynamoDbServer bad_server(world.fake, bad_way);
  WorkerOptions options = wrong.options;
  options.client = [&](aws::ClientOptions& client) {
    if (wrong.certificate != FakeServerOptions::Certificate::good) {
      client.endpoint = bad_server.url();
      client.ca_file = bad_server.ca_file();
    }
    if (wrong.options.client) wrong.options.client(client);
  };
  const std::vector<Worker*> good{&world.add_worker(), &world.add_worker()};
  Worker& bad = world.add_worker(options);
  std::jthread others([&] { world.crowd(good, keys); });
  for (const auto& key : keys) {
    const Told told = world.ask(bad, key);
    EXPECT_EQ(told.how, How::error);
    EXPECT_EQ(told.error.kind, ErrorKind::misuse) << told.error.message;
    EXPECT_THAT(told.error.message, HasSubstr(wrong.says));
    EXPECT_THAT(told.error.message, ::testing::Not(HasSubstr("not the secret")));
  }
  others.join();
  world.check();
  world.print(wrong.name);
  EXPECT_EQ(world.counts().charges, keys.size());
}

INSTANTIATE_TEST_SUITE_P(Rows, FaultsOfOne, ::testing::ValuesIn(wrongs),
                         [](const auto& row) { return std::string(row.param.name); });

// A host more than five minutes off is refused, corrected, and one of the crowd from then on.
TEST(FaultsOfTheClock, AHostThatIsFiveMinutesOffIsCorrected) {
  for (const Millis off : {-6min, 6min}) {
    Ledgered world;
    Worker& wrong = world.add_worker({.clock_off = off});
    world.crowd({&wrong, &world.add_worker(), &world.add_worker()}, keys);
    for (int i = 0; i < 3; ++i) {  // It need not have been the first for any of them.
      EXPECT_EQ(world.settle(wrong, "its own " + std::to_string(i)).how, How::recorded);
    }
    world.check();
    world.print("clock off by " + std::to_string(off.count()) + " ms");
    EXPECT_GT(wrong.client->counts().clock_corrections, 0U);
    EXPECT_GT(world.server.counts().refused, 0U);
    EXPECT_EQ(world.counts().charges, keys.size() + 3);
    EXPECT_EQ(world.counts().errors, 0U);
  }
}

// Items that are not records: every caller gets an error, nothing runs, nothing is overwritten.
TEST(FaultsOfTheTable, ForeignItemsStayAsTheyAre) {
  Ledgered world;
  std::vector<std::string> foreign;
  for (std::size_t which = 0; which < spoils; ++which) {
    foreign.push_back("foreign" + std::to_string(which));
    world.plant(which, foreign.back());
  }
  const std::vector<Worker*> workers{&world.add_worker(), &world.add_worker()};
  std::jthread others([&] { world.crowd(workers, keys); });
  for (Worker* worker : workers) {
    for (const auto& key : foreign) {
      const Told told = world.ask(*worker, key);
      EXPECT_EQ(told.how, How::error);
      EXPECT_EQ(told.error.kind, ErrorKind::corrupt) << told.error.message;
      EXPECT_THAT(told.error.message, HasSubstr(key));
    }
  }
  others.join();
  world.check();
  world.print("foreign items");
  EXPECT_EQ(world.counts().charges, keys.size());
}

}  // namespace
}  // namespace once::testing
