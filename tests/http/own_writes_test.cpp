// Rows that commit together with a request's answer: writes of the store's, or a transaction of the handler's own.
#include <sqlite3.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <once/engine/exceptions.hpp>
#include <once/stores/sql.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>

#include "../sqlite/scratch_directory.hpp"
#include "http_test.hpp"

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
