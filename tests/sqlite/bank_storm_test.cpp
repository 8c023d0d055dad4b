// Bank transfers by many processes in the store's own file, while they are killed at any moment and taken over from.
// The bank's tables are audited by sums: every transfer is there exactly once, and none is missing.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/sqlite_transaction.hpp>

#include "scratch.hpp"
#include "sound.hpp"

namespace once::testing {
namespace {

using namespace std::chrono_literals;
using stores::SqliteTransaction;
using stores::SqlRows;
using stores::SqlStatements;

constexpr int accounts = 6;
constexpr int first_cents = 10'000;

struct Order {
  int number;
  [[nodiscard]] std::string key() const { return "order-" + std::to_string(number); }
  [[nodiscard]] int from() const { return number % accounts; }
  [[nodiscard]] int to() const { return (number * 5 + 1) % accounts; }
  [[nodiscard]] int cents() const { return 1 + number % 97; }
};

// As in docs/transactions.md.
enum class Shape { own, statements, work };

void exec(sqlite3* db, const std::string& sql) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    throw std::runtime_error(sqlite3_errmsg(db));
  }
}

std::array<std::string, 3> transfer(const Order& order) {
  const std::string cents = std::to_string(order.cents());
  return {"UPDATE accounts SET cents = cents - " + cents + " WHERE id = " + std::to_string(order.from()),
          "UPDATE accounts SET cents = cents + " + cents + " WHERE id = " + std::to_string(order.to()),
          "INSERT INTO transfers VALUES (" + std::to_string(order.number) + ", " + std::to_string(order.from()) + ", " +
              std::to_string(order.to()) + ", " + cents + ")"};
}

// One process: works until all orders are done, and kills itself now and then.
class Worker {
 public:
  Worker(const std::string& path, std::uint32_t seed, int one_in) : random_(seed), one_in_(one_in) {
    store_ = stores::make_sqlite_store({.path = path});
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) throw std::runtime_error("open");
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { sqlite3_close(db_); }

  void work_off(std::vector<Order> orders) {
    Engine engine({.store = store_, .policy = {.lease = 200ms, .wait = 300ms}});
    std::shuffle(orders.begin(), orders.end(), random_);
    while (!orders.empty()) {
      std::erase_if(orders,
                    [&](const Order& order) { return carry_out(engine, order, static_cast<Shape>(random_() % 3)); });
    }
  }

  bool carry_out(Engine& engine, const Order& order, Shape shape) {
    try {
      const Outcome outcome = engine.run(order.key(), {}, [&](Context& context) {
        maybe_die();
        write(context, order, shape);
        maybe_die();
        return std::string("moved");
      });
      return outcome.has_result();
    } catch (const Exception&) {  // Declined, Unrecorded, FinishRefused: it is tried again.
      return false;
    }
  }

  // The wrong shape: the rows and the result apart. Dies between them.
  void carry_out_apart(const Order& order, bool dies) {
    Engine engine({.store = store_, .policy = {.lease = 200ms}});
    static_cast<void>(engine.run(order.key(), {}, [&] {
      SqliteTransaction transaction(*store_, db_);
      for (const std::string& sql : transfer(order)) exec(db_, sql);
      transaction.commit();
      if (dies) kill(getpid(), SIGKILL);
      return std::string("moved");
    }));
  }

 private:
  void maybe_die() {
    if (one_in_ != 0 && random_() % static_cast<std::uint32_t>(one_in_) == 0) kill(getpid(), SIGKILL);
  }

  void write(Context& context, const Order& order, Shape shape) {
    switch (shape) {
      case Shape::own: {
        HandedOut handed = context.hand_out("moved");
        SqliteTransaction transaction(*store_, db_);
        for (const std::string& sql : transfer(order)) {
          exec(db_, sql);
          maybe_die();
        }
        transaction.finish(handed.finish_statement());
        maybe_die();
        transaction.commit();
        maybe_die();
        static_cast<void>(handed.committed());
        return;
      }
      case Shape::statements: {
        auto statements = std::make_shared<SqlStatements>();
        for (const std::string& sql : transfer(order)) statements->add(sql, {}, SqlRows::exactly(1));
        return context.commit_with(statements);
      }
      case Shape::work:
        return context.commit_with(std::make_shared<stores::SqliteWork>([this, order](sqlite3* db) {
          for (const std::string& sql : transfer(order)) {
            exec(db, sql);
            maybe_die();
          }
        }));
    }
  }

  std::mt19937 random_;
  const int one_in_;
  std::shared_ptr<Store> store_;
  sqlite3* db_ = nullptr;
};

class BankStorm : public ::testing::Test {
 protected:
  BankStorm() {
    const auto store = stores::make_sqlite_store({.path = path});
    const Shell shell(path);
    SqliteTransaction transaction(*store, shell.raw());
    exec(shell.raw(),
         "CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL);"
         "CREATE TABLE transfers (number INTEGER, sender INTEGER, receiver INTEGER, cents INTEGER)");
    for (int id = 0; id < accounts; ++id) {
      exec(shell.raw(),
           "INSERT INTO accounts VALUES (" + std::to_string(id) + ", " + std::to_string(first_cents) + ")");
    }
    transaction.commit();
  }

  // A child; returns its pid.
  template <class Act>
  pid_t start(Act&& act) const {
    const pid_t child = fork();
    if (child != 0) return child;
    try {
      act();
      _exit(0);
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
  }

  [[nodiscard]] int number(const std::string& sql) const { return std::stoi(Shell(path).run(sql)); }
  [[nodiscard]] int twice() const {
    return number("SELECT count(*) FROM (SELECT number FROM transfers GROUP BY number HAVING count(*) > 1)");
  }

  const SoundScratch scratch_;
  const std::string path = scratch_.file();
};

TEST_F(BankStorm, EveryTransferTakesPlaceOnce) {
  constexpr int orders = 150;
  constexpr std::size_t processes = 4;
  constexpr int most_deaths = 40;
  std::vector<Order> all;
  for (int n = 0; n < orders; ++n) all.push_back({n});
  std::mt19937 random(20'260'517);
  int deaths = 0;
  const auto start_worker = [&] {
    const auto seed = static_cast<std::uint32_t>(random());
    const int one_in = deaths < most_deaths ? 60 : 0;
    return start([&] { Worker(path, seed, one_in).work_off(all); });
  };
  std::vector<pid_t> workers;
  for (std::size_t i = 0; i < processes; ++i) workers.push_back(start_worker());
  while (!workers.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const auto worker = std::find(workers.begin(), workers.end(), ended);
    ASSERT_NE(worker, workers.end());
    workers.erase(worker);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++deaths;
      workers.push_back(start_worker());
      // And one that did not choose the moment.
      if (deaths % 4 == 0 && deaths < most_deaths) kill(workers.front(), SIGKILL);
      continue;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_GE(deaths, 10) << "no storm";
  EXPECT_GT(number("SELECT count(*) FROM records WHERE attempt > 1"), 0) << "nobody took over";

  EXPECT_EQ(number("SELECT count(*) FROM transfers"), orders);
  EXPECT_EQ(twice(), 0);
  EXPECT_EQ(number("SELECT count(*) FROM records WHERE state = 1"), orders);
  EXPECT_EQ(number("SELECT sum(cents) FROM accounts"), accounts * first_cents);
  std::array<int, accounts> expected{};
  expected.fill(first_cents);
  for (const Order& order : all) {
    expected[static_cast<std::size_t>(order.from())] -= order.cents();
    expected[static_cast<std::size_t>(order.to())] += order.cents();
  }
  for (int id = 0; id < accounts; ++id) {
    EXPECT_EQ(number("SELECT cents FROM accounts WHERE id = " + std::to_string(id)),
              expected[static_cast<std::size_t>(id)]);
  }
}

// The audit sees what it is for: with the rows and the result apart, a process that dies between them moves money
// twice.
TEST_F(BankStorm, ApartAKillBetweenThemMovesMoneyTwice) {
  for (const bool dies : {true, false}) {
    const pid_t child = start([&] {
      Worker worker(path, 1, 0);
      worker.carry_out_apart({1}, dies);
    });
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFSIGNALED(status), dies);
  }
  EXPECT_EQ(twice(), 1);
}

}  // namespace
}  // namespace once::testing
