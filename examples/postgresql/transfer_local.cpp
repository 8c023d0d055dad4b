// transfer_local STORE BANK ORDER FROM TO CENTS: as transfer.cpp, but the claim is in the bank's transaction too: there
// is no lease, and after a death the next call runs at once. For short work that only writes rows.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include <pqxx/pqxx>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/local.hpp>
#include <once/stores/open.hpp>
#include <once/stores/pqxx_transaction.hpp>

// [local]
static once::Outcome transfer(once::Engine& engine, pqxx::connection& bank, const std::string& order,
                              const std::string& from, const std::string& to, int cents) {
  pqxx::work work(bank);
  once::stores::PqxxLocal local(*engine.options().store, work);
  return once::run_local(engine, engine.request(order, {}), local, [&] {  // The claim: only we see it.
    work.exec_params("UPDATE accounts SET cents = cents - $1 WHERE id = $2", cents, from);
    work.exec_params("UPDATE accounts SET cents = cents + $1 WHERE id = $2", cents, to);
    work.exec_params("INSERT INTO transfers VALUES ($1, $2, $3, $4)", order, from, to, cents);
    return "moved " + std::to_string(cents);
  });  // The receipt, then COMMIT.
}
// [/local]

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::fprintf(stderr, "usage: transfer_local STORE BANK ORDER FROM TO CENTS\n");
    return 64;
  }
  once::Engine engine({.store = once::open_store(argv[1]), .scope = "bank"});
  pqxx::connection bank(argv[2]);
  std::printf("%s\n", transfer(engine, bank, argv[3], argv[4], argv[5], std::stoi(argv[6])).value().c_str());
} catch (const std::exception& error) {  // Whatever it was: call again with the same order.
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
