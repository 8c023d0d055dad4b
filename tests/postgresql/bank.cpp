// postgresql_bank STORE BANK ORDERS SEED: carries out transfers 0 to ORDERS-1 in random order, each in a random shape
// of docs/transactions.md, until each has been acknowledged. bank_test.py starts several, kills and stops them, and
// breaks their connections and their server. With SEED "apart" the rows and the result do not commit together: a
// planted bug.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/local.hpp>
#include <once/stores/open.hpp>
#include <once/stores/postgresql_transaction.hpp>
#include <once/stores/pqxx_transaction.hpp>

#include "database.hpp"

namespace {

using namespace std::chrono_literals;

constexpr int accounts = 6;
enum class Shape : std::uint8_t { libpq, libpqxx, statements, work, local, apart };

std::vector<std::string> transfer(int order) {
  const std::string cents = std::to_string(1 + order % 97);
  const std::string from = std::to_string(order % accounts);
  const std::string to = std::to_string((order * 5 + 1) % accounts);
  return {"UPDATE accounts SET cents = cents - " + cents + " WHERE id = '" + from + "'",
          "SELECT pg_sleep(0.002)",  // So that another can lock the second account, and wait for the first.
          "UPDATE accounts SET cents = cents + " + cents + " WHERE id = '" + to + "'",
          "INSERT INTO transfers VALUES (" + std::to_string(order) + ", " + from + ", " + to + ", " + cents + ")"};
}

void carry_out(once::Context& context, const std::string& bank, int order, Shape shape) {
  switch (shape) {
    case Shape::libpq: {
      once::testing::Shell own(bank);
      once::HandedOut handed = context.hand_out("moved");
      once::stores::PostgresqlTransaction transaction(own.raw());
      for (const std::string& sql : transfer(order)) own.run(sql);
      static_cast<void>(handed.commit(transaction));
      return;
    }
    case Shape::libpqxx: {
      pqxx::connection own(bank);
      once::HandedOut handed = context.hand_out("moved");
      pqxx::work work(own);
      for (const std::string& sql : transfer(order)) work.exec(sql);
      once::stores::PqxxTransaction transaction(work);
      static_cast<void>(handed.commit(transaction));
      return;
    }
    case Shape::statements: {
      auto statements = std::make_shared<once::stores::SqlStatements>();
      for (const std::string& sql : transfer(order)) statements->add(sql, {}, once::stores::SqlRows::exactly(1));
      return context.commit_with(statements);
    }
    case Shape::work:
      return context.commit_with(std::make_shared<once::stores::PostgresqlWork>([order](PGconn* db) {
        for (const std::string& sql : transfer(order)) once::testing::exec(db, sql);
      }));
    case Shape::local:  // Has no Context: see run().
      break;
    case Shape::apart: {
      once::testing::Shell own(bank);
      own.run("BEGIN");
      for (const std::string& sql : transfer(order)) own.run(sql);
      own.run("COMMIT");
      std::this_thread::sleep_for(20ms);  // The work goes on a little.
      return;
    }
  }
}

once::Outcome run(once::Engine& engine, const std::string& bank, int order, Shape shape) {
  const std::string key = "order-" + std::to_string(order);
  if (shape == Shape::local) {
    pqxx::connection own(bank);
    pqxx::work work(own);
    once::stores::PqxxLocal local(*engine.options().store, work);
    return once::run_local(engine, engine.request(key, {}), local, [&] {
      for (const std::string& sql : transfer(order)) work.exec(sql);
      return std::string("moved");
    });
  }
  return engine.run(key, {}, [&](once::Context& context) {
    carry_out(context, bank, order, shape);
    return std::string("moved");
  });
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  const std::string bank = argv[2];
  const bool apart = std::string(argv[4]) == "apart";
  std::mt19937 random(apart ? std::random_device()() : static_cast<std::uint32_t>(std::stoul(argv[4])));
  std::vector<int> orders(static_cast<std::size_t>(std::stoi(argv[3])));
  for (std::size_t i = 0; i < orders.size(); ++i) orders[i] = static_cast<int>(i);
  std::shuffle(orders.begin(), orders.end(), random);
  once::Engine engine({.store = once::open_store(argv[1]), .policy = {.lease = 1s, .wait = 2s}, .scope = "bank"});
  while (!orders.empty()) {
    std::erase_if(orders, [&](int order) {
      const auto shape = apart ? Shape::apart : static_cast<Shape>(random() % 5);
      try {
        const once::Outcome outcome = run(engine, bank, order, shape);
        std::cout << order << std::endl;
        return outcome.has_result();
      } catch (const once::StoredFailure& failure) {  // No attempt says so: it would never end.
        std::cerr << failure.what() << '\n';
        std::exit(1);
      } catch (const std::exception&) {  // A deadlock, a lost connection, a lost claim: it is tried again.
        return false;
      }
    });
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
