// Rows that commit together with a request's answer: writes of the store's, or a transaction of the handler's own.
#include <sqlite3.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/exceptions.hpp>
#include <once/platform/system.hpp>
#include <once/stores/sql.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>

#include "../engine/forwarding_store.hpp"
#include "../sqlite/scratch_directory.hpp"
#include "http_test.hpp"
#include "platform/wait.hpp"

namespace once::http {
namespace own_writes_test {

using ::testing::HasSubstr;

class OwnWritesTest : public ::testing::Test {
 protected:
  OwnWritesTest() {
    EXPECT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
    stores::SqliteTransaction transaction(*store, db);
    run("CREATE TABLE charges (cents int CHECK (cents < 1000))");
    transaction.commit();
  }
  ~OwnWritesTest() override { sqlite3_close(db); }

  void run(const char* sql) {
    if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK) throw std::runtime_error(sqlite3_errmsg(db));
  }
  [[nodiscard]] int charges() {
    int count = -1;
    const auto read = [](void* out, int, char** values, char**) {
      *static_cast<int*>(out) = std::stoi(values[0]);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(db, "SELECT count(*) FROM charges", read, &count, nullptr), SQLITE_OK);
    return count;
  }
  // The row and the answer, in one transaction.
  Finish charge(Execution& execution, const Answer& answer) {
    HandedOut handed = execution.hand_out(answer);
    stores::SqliteTransaction transaction(*store, db);
    run("INSERT INTO charges VALUES (500)");
    return handed.commit(transaction);
  }
  Answer serve(std::string_view key, const std::function<Answer(Execution&)>& handler,
               std::optional<OnThrow> on_throw = {}) {
    Options options = by_authorization();
    options.on_throw = on_throw;
    Endpoint endpoint(engine, std::move(options));
    return endpoint.run(post(key), handler);
  }
  Answer replay(std::string_view key) {
    return serve(key, [](Execution&) {
      ADD_FAILURE() << "it ran again";
      return Answer();
    });
  }

  once::testing::Scratch scratch;
  const std::string file = scratch.file();
  std::shared_ptr<Store> store = stores::make_sqlite_store({.path = file});
  Engine engine{{.store = store, .scope = "shop"}};
  sqlite3* db = nullptr;
};

TEST_F(OwnWritesTest, RowsCommitWithTheHandedOutAnswer) {
  const Answer created = text_answer(201, "ch_1", {{"Location", "/charges/1"}, {"Set-Cookie", "seen=1"}});
  const Answer first = serve("k", [&](Execution& execution) {
    EXPECT_EQ(charge(execution, created).kind, Finish::Kind::recorded);
    return text_answer(200, "another text");
  });
  EXPECT_EQ(first, created) << "what is replayed, with what is not stored";
  const Answer again = replay("k");
  EXPECT_EQ(again.status, 201U);
  EXPECT_EQ(again.body, "ch_1");
  EXPECT_TRUE(is_replay(again));
  EXPECT_EQ(charges(), 1);
}

TEST_F(OwnWritesTest, AHandlerThatThrowsAfterItsCommitHasAnsweredAllTheSame) {
  const auto handler = [&](Execution& execution) -> Answer {
    charge(execution, text_answer(201, "ch_1"));
    throw std::runtime_error("log is full");
  };
  EXPECT_THROW(serve("k", handler), std::runtime_error);
  EXPECT_EQ(replay("k").body, "ch_1");
  // A server that answers by itself gets the committed answer, and one that streams too.
  Endpoint endpoint(engine, by_authorization());
  Opening opening = endpoint.open(post("thrown"));
  charge(opening.execution, text_answer(201, "ch_2"));
  const auto thrown = std::make_exception_ptr(std::runtime_error("log is full"));
  EXPECT_EQ(opening.execution.finish_thrown(thrown).body, "ch_2");
  opening = endpoint.open(post("streamed"));
  charge(opening.execution, text_answer(201, "ch_3"));
  const std::optional<Answer> instead = opening.execution.finish_streamed(text_answer(200, ""), 10);
  ASSERT_TRUE(instead);
  EXPECT_EQ(instead->body, "ch_3");
  EXPECT_EQ(charges(), 3);
}

TEST_F(OwnWritesTest, ARolledBackTransactionLeavesTheClaim) {
  const auto fails = [&](Execution& execution) {
    HandedOut handed = execution.hand_out(text_answer(201, "ch_1"));
    try {
      stores::SqliteTransaction transaction(*store, db);
      run("INSERT INTO charges VALUES (5000)");
      static_cast<void>(handed.commit(transaction));
    } catch (const std::runtime_error&) {
      EXPECT_EQ(handed.rolled_back().kind, Finish::Kind::declined);
    }
    return handed;
  };
  // Overlooked: nothing is stored, and on_throw decides.
  const Answer overlooked = serve(
      "k",
      [&](Execution& execution) {
        fails(execution);
        return text_answer(201, "ch_1");
      },
      OnThrow::release);
  EXPECT_EQ(overlooked.status, 500U);
  EXPECT_THAT(overlooked.body, HasSubstr("handler-failed"));
  EXPECT_EQ(charges(), 0);
  // A released status is the handler's answer, and handing out again works.
  EXPECT_EQ(serve("k",
                  [&](Execution& execution) {
                    fails(execution);
                    return text_answer(409, "busy");
                  })
                .body,
            "busy");
  EXPECT_EQ(serve("k",
                  [&](Execution& execution) {
                    fails(execution);
                    charge(execution, text_answer(201, "ch_2"));
                    return Answer();
                  })
                .body,
            "ch_2");
  EXPECT_EQ(replay("k").body, "ch_2");
  EXPECT_EQ(charges(), 1);
}

TEST_F(OwnWritesTest, ATransactionThatNobodyToldOfIsRead) {
  const auto forgets = [&](Execution& execution, bool commits) {
    const HandedOut handed = execution.hand_out(text_answer(201, "ch_1"));
    stores::SqliteTransaction transaction(*store, db);
    run("INSERT INTO charges VALUES (500)");
    if (!commits) return;
    transaction.finish(handed.finish_statement());
    transaction.commit();
  };
  EXPECT_EQ(serve("k",
                  [&](Execution& execution) {
                    forgets(execution, true);
                    return text_answer(503, "no idea");
                  })
                .body,
            "ch_1");
  EXPECT_EQ(replay("k").body, "ch_1");
  const Answer open = serve("open", [&](Execution& execution) {
    forgets(execution, false);
    return text_answer(201, "no idea either");
  });
  EXPECT_EQ(open.status, 503U);
  EXPECT_THAT(open.body, HasSubstr("not-recorded"));
  EXPECT_EQ(charges(), 1);
}

TEST_F(OwnWritesTest, WritesOfTheStoreCommitWithTheAnswer) {
  const auto writes = [](const char* cents) {
    auto statements = std::make_shared<stores::SqlStatements>();
    statements->add(std::string("INSERT INTO charges VALUES (") + cents + ")");
    return statements;
  };
  EXPECT_EQ(serve("k",
                  [&](Execution& execution) {
                    execution.commit_with(writes("500"));
                    return text_answer(201, "ch_1");
                  })
                .body,
            "ch_1");
  EXPECT_EQ(charges(), 1);
  EXPECT_EQ(replay("k").body, "ch_1");
  // With another fate they are dropped.
  EXPECT_EQ(serve("busy",
                  [&](Execution& execution) {
                    execution.commit_with(writes("500"));
                    return text_answer(429, "later");
                  })
                .body,
            "later");
  EXPECT_EQ(charges(), 1);
  // Declined: the answer for that, kept or released by its status; or as an exception.
  const auto sold_out = [&](std::string_view key, unsigned status) {
    return serve(key, [&](Execution& execution) {
      execution.commit_with(writes("5000"), text_answer(status, "too much"));
      return text_answer(201, "ch_2");
    });
  };
  EXPECT_EQ(sold_out("kept", 422).body, "too much");
  EXPECT_EQ(replay("kept").body, "too much");
  EXPECT_EQ(sold_out("released", 409).status, 409U);
  EXPECT_EQ(sold_out("released", 422).status, 422U) << "it ran again";
  const Answer thrown = serve("thrown", [&](Execution& execution) {
    execution.commit_with(writes("5000"));
    return text_answer(201, "ch_2");
  });
  EXPECT_EQ(thrown.status, 500U);
  EXPECT_THAT(replay("thrown").body, HasSubstr("outcome-unknown"));
  EXPECT_EQ(charges(), 1);
}

// A service behind a proxy, which has the claim's key and owner, and finishes the record by a statement of its own.
class ServiceFinishTest : public OwnWritesTest {
 protected:
  void finish_as_service(Execution& execution, const Answer& answer) {
    const auto of_store = [&](auto call) { return wait_for<once::Answer>(call); };
    const std::string key = execution.claim()->key();
    const once::Answer there = of_store([&](auto done) { store->get(key, std::move(done)); });
    auto next = std::make_shared<Record>(*there.record);
    complete(*next, endpoint->rules().encode(answer), effective(Policy{}), Stamp(system_clock()->now(), 7));
    const once::Answer written = of_store([&](auto done) {
      store->replace(next, {.owner = there.record->owner, .revision = there.record->revision}, std::move(done));
    });
    ASSERT_EQ(written.status, AnswerStatus::done);
  }
  Execution claimed(std::string_view key) {
    Opening opening = endpoint->open(post(key));
    EXPECT_EQ(opening.kind, Opening::Kind::claimed);
    EXPECT_TRUE(opening.execution.hand_out_to_service());
    return std::move(opening.execution);
  }
  static Finished finish(Execution execution, const Answer& answer, Fate fate) {
    return wait_for<Finished>([&](auto done) { execution.finish_told(answer, fate, std::move(done)); });
  }
  static Options options(OnLapse on_ambiguous) {
    Options options = by_authorization();
    options.service_finish = true;
    options.on_ambiguous = on_ambiguous;
    return options;
  }

  // As if its database had finish_or_raise().
  class WithFinishFunction : public once::testing::ForwardingStore {
   public:
    using ForwardingStore::ForwardingStore;
    [[nodiscard]] Capabilities capabilities() const noexcept override {
      Capabilities all = inner_->capabilities();
      all.has_finish_function = true;
      return all;
    }
  };

  Engine finishing{{.store = std::make_shared<WithFinishFunction>(store), .scope = "shop"}};
  std::optional<Endpoint> endpoint{std::in_place, finishing, options(OnLapse::hold)};
};

TEST_F(ServiceFinishTest, WhatTheServiceStoredIsTheAnswer) {
  const Answer created = text_answer(201, "ch_1", {{"Location", "/charges/1"}});
  Answer with_cookie = created;
  with_cookie.headers.push_back({"Set-Cookie", "seen=1"});
  const Answer same = text_answer(201, "ch_1", {{"Date", "now"}, {"location", "/charges/1"}, {"Once-Owner", "00"}});
  struct Case {
    Answer answered;
    Fate fate;
    Answer given;
  };
  const Case all[] = {
      {with_cookie, Fate::store, with_cookie},
      {same, Fate::store, same},
      {text_answer(201, "ch_1", {{"Location", "/charges/2"}}), Fate::store, created},
      {text_answer(201, "ch_1", {{"Location", "/charges/1"}, {"Location", "/charges/1"}}), Fate::store, created},
      {text_answer(201, "ch_1"), Fate::store, created},
      {text_answer(200, "another text"), Fate::store, created},
      {text_answer(500, "log is full"), Fate::store, created},
      {text_answer(409, "busy"), Fate::release, created},
      {text_answer(502, "gone"), Fate::ambiguous, created},
      {text_answer(502, "gone"), Fate::hold, created},
  };
  for (const OnLapse on_ambiguous : {OnLapse::hold, OnLapse::takeover}) {
    endpoint.emplace(finishing, options(on_ambiguous));
    for (const Case& each : all) {
      const std::string key = std::to_string(&each - all) + (on_ambiguous == OnLapse::hold ? "h" : "t");
      Execution execution = claimed(key);
      finish_as_service(execution, created);
      const Finished finished = finish(std::move(execution), each.answered, each.fate);
      EXPECT_EQ(finished.answer, each.given) << key;
      EXPECT_TRUE(finished.by_service) << key;
      EXPECT_EQ(replay(key).body, "ch_1") << key;
    }
  }
}

TEST_F(ServiceFinishTest, AServiceThatDoesNotFinishIsAnsweredForAsUsual) {
  const auto finished = [&](std::string_view key, const Answer& answer, Fate fate) {
    const Finished end = finish(claimed(key), answer, fate);
    EXPECT_EQ(end.answer, answer);
    EXPECT_FALSE(end.by_service);
  };
  finished("stored", text_answer(201, "ch_1"), Fate::store);
  EXPECT_EQ(replay("stored").body, "ch_1");
  finished("released", text_answer(409, "busy"), Fate::release);
  finished("released", text_answer(201, "ch_2"), Fate::store);
  finished("held", text_answer(502, "gone"), Fate::ambiguous);
  EXPECT_THAT(replay("held").body, HasSubstr("outcome-unknown"));
  endpoint.emplace(finishing, options(OnLapse::takeover));
  finished("lapsing", text_answer(502, "gone"), Fate::ambiguous);
  EXPECT_THAT(replay("lapsing").body, HasSubstr("in-progress"));
}

TEST_F(ServiceFinishTest, AResultThatNobodyCanReadIsAnError) {
  Execution execution = claimed("k");
  auto broken = text_answer(201, "ch_1");
  const std::string key = execution.claim()->key();
  finish_as_service(execution, broken);
  const once::Answer there = wait_for<once::Answer>([&](auto done) { store->get(key, std::move(done)); });
  auto next = std::make_shared<Record>(*there.record);
  next->result = Result::inlined("once-http/2", "application/vnd.once.http");
  next->revision += std::uint64_t{1} << 20U;
  const once::Answer written = wait_for<once::Answer>([&](auto done) {
    store->replace(next, {.owner = there.record->owner, .revision = there.record->revision}, std::move(done));
  });
  ASSERT_EQ(written.status, AnswerStatus::done);
  const Finished finished = finish(std::move(execution), broken, Fate::store);
  EXPECT_THAT(finished.answer.body, HasSubstr("record-unreadable"));
}

TEST_F(ServiceFinishTest, AStoreThatNoServiceCanFinishInIsRefused) {
  Engine memory({.store = stores::make_memory_store(), .scope = "shop"});
  EXPECT_THROW(Endpoint(memory, options(OnLapse::hold)), Exception);
  // It hands out to its own program, and has no finish_or_raise().
  Engine sqlite({.store = store, .scope = "shop"});
  EXPECT_THROW(Endpoint(sqlite, options(OnLapse::hold)), Exception);
  Endpoint own(sqlite, by_authorization());
  Opening claimed = own.open(post("k"));
  EXPECT_FALSE(claimed.execution.hand_out_to_service());
  EXPECT_EQ(claimed.execution.finish(text_answer(201)).status, 201U);
  Engine off({.store = finishing.options().store, .scope = "shop", .disabled = true});
  EXPECT_FALSE(off.options().store->capabilities().has_finish_function);
  Endpoint unprotected(off, options(OnLapse::hold));
  Opening opening = unprotected.open(post("k"));
  EXPECT_FALSE(opening.execution.hand_out_to_service());
  EXPECT_EQ(opening.execution.finish(text_answer(201)).status, 201U);
}

TEST_F(OwnWritesTest, MisuseIsRefused) {
  const auto refused = [](const std::function<void()>& use) {
    try {
      use();
    } catch (const Exception& error) {
      return std::string(error.what());
    }
    return std::string("allowed");
  };
  const auto none = std::make_shared<stores::SqlStatements>();
  serve("k", [&](Execution& execution) {
    EXPECT_THAT(refused([&] { execution.commit_with(nullptr); }), HasSubstr("no writes"));
    execution.commit_with(none);
    EXPECT_THAT(refused([&] { execution.commit_with(none); }), HasSubstr("called twice"));
    EXPECT_THAT(refused([&] { static_cast<void>(execution.hand_out({})); }), HasSubstr("after commit_with"));
    return text_answer(409);
  });
  serve("k", [&](Execution& execution) {
    charge(execution, text_answer(201, "ch_1"));
    EXPECT_THAT(refused([&] { execution.commit_with(none); }), HasSubstr("after hand_out"));
    EXPECT_THAT(refused([&] { static_cast<void>(execution.hand_out({})); }), HasSubstr("finished already"));
    return text_answer(201);
  });
  Request get = post("k");
  get.method = "GET";
  Endpoint endpoint(engine, by_authorization());
  const Answer unprotected = endpoint.run(get, [&](Execution& execution) {
    EXPECT_THAT(refused([&] { execution.commit_with(none); }), HasSubstr("unprotected"));
    EXPECT_THAT(refused([&] { static_cast<void>(execution.hand_out({})); }), HasSubstr("unprotected"));
    return text_answer(200);
  });
  EXPECT_EQ(unprotected.status, 200U);
}

}  // namespace own_writes_test
}  // namespace once::http
