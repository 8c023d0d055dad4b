// An engine whose store is a server's: the server claims, and says for how long.
#include "core/claims_server.hpp"
#include "engine_test.hpp"

namespace once::testing {
namespace server_test {

// Answers as the test says. Nothing is stored.
class FakeServer final : public Store, public ClaimsServer, public std::enable_shared_from_this<FakeServer> {
 public:
  struct Sent {
    ClaimMachine::Op op{};
    std::string note;
    Callback<void(ServerClaim::Written&&)> done;
  };

  void insert(RecordPtr /*record*/, Done done) override { done(raw()); }
  void replace(RecordPtr /*record*/, Seen /*seen*/, Done done) override { done(raw()); }
  void remove(std::string /*key*/, Seen /*seen*/, Done done) override { done(raw()); }
  void get(std::string /*key*/, Done done) override {
    Answer answer;
    answer.record = looked;
    done(std::move(answer));
  }
  void list(ListQuery /*query*/, Callback<void(ListPage)> done) override { done({}); }
  void sweep(Time /*now*/, std::size_t /*limit*/, Callback<void(SweepAnswer)> done) override { done({}); }
  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities all;
    all.max_record_bytes = 100'000;
    all.durable = true;
    return all;
  }
  [[nodiscard]] std::string name() const override { return "once://fake"; }
  [[nodiscard]] ClaimsServer* claims_server() noexcept override { return this; }

  void begin(const Attempt& attempt, const EffectivePolicy& policy, Millis wait,
             Callback<void(Begun&&)> done) override {
    last_wait = wait;
    Begun begun;
    if (in_the_way) {
      begun.record = in_the_way;
      begun.decision = decision;
    } else if (error.message.empty()) {
      Record record;
      record.key = attempt.key + "/@tenant=blue";
      record.owner.bytes.fill(7);
      record.attempt = 2;
      record.token = 42;
      record.revision = next_revision(0, 0);
      record.on_lapse = policy.on_lapse;
      record.steps = {{"before", "kept"}};
      begun.record = share(std::move(record));
      begun.claim = std::make_shared<FakeClaim>(*this);
      begun.decision.verdict = Verdict::take_over;
      begun.sent = clock->uptime();
      begun.until = begun.sent + valid_for;
    }
    begun.error = error;
    done(std::move(begun));
  }

  // The next write that waits for its answer.
  void answer(Answer answer, std::optional<Millis> valid = std::nullopt) {
    ASSERT_FALSE(sent.empty());
    Sent next = std::move(sent.front());
    sent.erase(sent.begin());
    ServerClaim::Written written{.answer = std::move(answer)};
    if (valid) written.until = clock->uptime() + *valid;
    next.done(std::move(written));
  }
  [[nodiscard]] std::vector<ClaimMachine::Op> ops() const {
    std::vector<ClaimMachine::Op> out;
    for (const Sent& each : sent) out.push_back(each.op);
    return out;
  }

  std::shared_ptr<ManualClock> clock;
  std::vector<Sent> sent;
  RecordPtr looked;
  RecordPtr in_the_way;
  Decision decision;
  Error error;
  Millis valid_for{9s};
  Millis last_wait{0};

 private:
  class FakeClaim final : public ServerClaim {
   public:
    explicit FakeClaim(FakeServer& server) : server_(server) {}
    void write(ClaimMachine::Transmit&& write, Callback<void(Written&&)> done) override {
      server_.sent.push_back({write.op, write.next->note, std::move(done)});
    }
    void read(Done done) override { server_.get({}, std::move(done)); }

   private:
    FakeServer& server_;
  };

  static Answer raw() { return Answer::fail(ErrorKind::misuse, "the server writes"); }
};

class ServerTest : public EngineTest {
 protected:
  ServerTest() { server->clock = clock; }

  Process at_server(std::optional<Policy> p = {}) {
    return process([&](EngineOptions& o) {
      o.store = server;
      if (p) o.policy = *p;
    });
  }
  static Record done_by_another(std::string result) {
    Record record;
    record.key = "test#a";
    record.state = State::completed;
    record.owner.bytes.fill(9);
    record.result = Result::inlined(std::move(result));
    return record;
  }

  std::shared_ptr<FakeServer> server = std::make_shared<FakeServer>();
};

TEST_F(ServerTest, ClaimIsAsTheServerHasIt) {
  auto p = at_server();
  auto begun = begin(p, "a");
  ASSERT_EQ(begun->kind, Begin::Kind::claimed);
  EXPECT_EQ(begun->verdict, Verdict::take_over);
  EXPECT_EQ(begun->claim.attempt(), 2U);
  EXPECT_EQ(begun->claim.token(), 42U);
  EXPECT_EQ(begun->claim.step("before"), "kept");
  EXPECT_EQ(begun->claim.derived_key("pay"), derived_key("test#a/@tenant=blue", "pay"));
  EXPECT_EQ(p.events->names(), std::vector<std::string>{"took_over"});
  auto finish = complete(begun->claim, "done");
  EXPECT_THAT(server->ops(), ElementsAre(ClaimMachine::Op::complete));
  server->answer(Answer::ok());
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
}

TEST_F(ServerTest, LeaseIsWhatTheServerSays) {
  server->valid_for = 6s;
  auto p = at_server();
  auto begun = begin(p, "a");
  EXPECT_EQ(begun->claim.deadline(), clock->uptime() + 6s);
  timers->advance(3s);
  ASSERT_THAT(server->ops(), ElementsAre(ClaimMachine::Op::renew));
  server->answer(Answer::ok(), 7s);
  EXPECT_EQ(begun->claim.deadline(), clock->uptime() + 7s);
  timers->advance(3s);
  ASSERT_THAT(server->ops(), ElementsAre(ClaimMachine::Op::renew));
  // Its own renewals fail: it is asked again while some time is left.
  server->answer(Answer::ok(), 2s);
  timers->advance(999ms);
  EXPECT_THAT(server->ops(), IsEmpty());
  timers->advance(1ms);
  ASSERT_THAT(server->ops(), ElementsAre(ClaimMachine::Op::renew));
  server->answer(Answer::ok(), 1s);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  timers->advance(1s);
  EXPECT_TRUE(begun->claim.stop_token().stop_requested());
}

TEST_F(ServerTest, SilenceStopsTheWorkWhenTheLeaseEnds) {
  auto p = at_server();
  auto begun = begin(p, "a");
  timers->advance(3s);
  server->answer(Answer::fail(ErrorKind::unavailable, "no server"));
  timers->advance(5s);
  EXPECT_FALSE(begun->claim.stop_token().stop_requested());
  while (!server->sent.empty()) server->answer(Answer::fail(ErrorKind::unavailable, "no server"));
  timers->advance(1s);
  EXPECT_TRUE(begun->claim.stop_token().stop_requested());
  EXPECT_FALSE(begun->claim.loss_token().stop_requested()) << "it is renewed for one more lease";
  // The server is there again, and the claim still stands.
  while (server->sent.empty()) timers->advance(100ms);
  server->answer(Answer::ok(), 9s);
  EXPECT_TRUE(begun->claim.is_ours());
}

TEST_F(ServerTest, LostClaimGetsTheOtherResult) {
  auto p = at_server();
  auto begun = begin(p, "a");
  auto finish = complete(begun->claim, "mine");
  server->answer(Answer::refuse(share(done_by_another("other"))));
  EXPECT_EQ(finish->kind, Finish::Kind::superseded);
  EXPECT_EQ(finish->record->result.bytes, "other");
  EXPECT_TRUE(begun->claim.loss_token().stop_requested());
}

TEST_F(ServerTest, FinishIsRecordedAsTheServerStoredIt) {
  auto p = at_server();
  auto begun = begin(p, "a");
  auto finish = complete(begun->claim, "too long for it");
  Record stored = done_by_another("");
  stored.owner.bytes.fill(7);
  stored.result.placement = Placement::dropped;
  Answer answer = Answer::ok();
  answer.record = share(stored);
  server->answer(std::move(answer));
  EXPECT_EQ(finish->kind, Finish::Kind::recorded);
  EXPECT_EQ(finish->record->result.placement, Placement::dropped);
}

TEST_F(ServerTest, HandedOutFinishIsFound) {
  auto p = at_server();
  auto begun = begin(p, "a");
  HandedOut handed = begun->claim.hand_out();
  Record stored = done_by_another("by the transaction");
  stored.owner = begun->claim.owner();
  server->looked = share(stored);
  const Finish finish = handed.unknown();
  EXPECT_EQ(finish.kind, Finish::Kind::recorded);
  EXPECT_EQ(finish.record->result.bytes, "by the transaction");
}

TEST_F(ServerTest, OutcomesAreTheServers) {
  auto p = at_server();
  server->in_the_way = share(done_by_another("result"));
  server->decision = {Verdict::replay, Millis{0}};
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::replayed);
  server->decision = {Verdict::conflict, 5s};
  auto conflict = begin(p, "a", waiting(7s));
  EXPECT_EQ(conflict->kind, Begin::Kind::conflict);
  EXPECT_EQ(conflict->retry_after, 5s);
  EXPECT_EQ(server->last_wait, 7s);
  server->decision = {Verdict::mismatch, Millis{0}};
  EXPECT_EQ(begin(p, "a")->kind, Begin::Kind::mismatch);
  EXPECT_EQ(server->last_wait, 0s);
  server->in_the_way = nullptr;
  server->error = {ErrorKind::unavailable, "no server"};
  auto failed = begin(p, "a");
  EXPECT_EQ(failed->kind, Begin::Kind::error);
  EXPECT_EQ(p.events->last(EventKind::store_error).error, "no server");
}

TEST_F(ServerTest, WhatTheStoresProgramDoesIsRefused) {
  const auto refused = [&](auto change) {
    try {
      auto p = process([&](EngineOptions& o) {
        o.store = server;
        change(o);
      });
      begin(p, "a");
    } catch (const Exception& error) {
      return error.kind() == ErrorKind::misuse && std::string(error.what()).find("once://fake") == 0;
    }
    return false;
  };
  EXPECT_TRUE(refused([](EngineOptions& o) { o.policy.keep_input = true; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.policy.fixed_lease = true; }));
  auto p = at_server();
  Policy inputs = policy();
  inputs.keep_input = true;
  EXPECT_THROW(begin(p, "a", inputs), Exception);
  EXPECT_THROW(static_cast<void>(p->attach(request("a"), Owner())), Exception);
}

}  // namespace server_test
}  // namespace once::testing
