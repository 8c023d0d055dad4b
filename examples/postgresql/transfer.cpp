// transfer STORE BANK ORDER FROM TO CENTS: moves money between two accounts, once for each ORDER. The rows and the
// receipt commit together in PostgreSQL, whatever is killed, lost or taken over meanwhile. STORE is the store's URL,
// BANK the same database for libpqxx.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include <pqxx/pqxx>

#include <once/engine/engine.hpp>
#include <once/engine/exceptions.hpp>
#include <once/stores/open.hpp>
#include <once/stores/pqxx_transaction.hpp>

// [transfer]
static std::string transfer(once::Context& context, pqxx::connection& bank, const std::string& order,
                            const std::string& from, const std::string& to, int cents) {
  const std::string receipt = "moved " + std::to_string(cents);
  for (int tries = 1;; ++tries) {
    once::HandedOut handed = context.hand_out(receipt);
    try {
      pqxx::work work(bank);
      work.exec_params("UPDATE accounts SET cents = cents - $1 WHERE id = $2", cents, from);
      work.exec_params("UPDATE accounts SET cents = cents + $1 WHERE id = $2", cents, to);
      work.exec_params("INSERT INTO transfers VALUES ($1, $2, $3, $4)", order, from, to, cents);
      once::stores::PqxxTransaction transaction(work);
      const once::Finish finish = handed.commit(transaction);  // The receipt, then COMMIT.
      if (finish.kind != once::Finish::Kind::declined) return receipt;
    } catch (const pqxx::deadlock_detected&) {  // Repeat the transaction, not the claim.
      handed.rolled_back();
    }
    if (tries == 5) throw std::runtime_error("the bank is too busy");
  }
}
// [/transfer]

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::fprintf(stderr, "usage: transfer STORE BANK ORDER FROM TO CENTS\n");
    return 64;
  }
  const std::string order = argv[3];
  once::Engine engine({.store = once::open_store(argv[1]), .scope = "bank"});
  pqxx::connection bank(argv[2]);
  const once::Outcome outcome = engine.run(order, {}, [&](once::Context& context) {
    return transfer(context, bank, order, argv[4], argv[5], std::stoi(argv[6]));
  });
  std::printf("%s\n", outcome.value().c_str());
} catch (const std::exception& error) {  // Whatever it was: call again with the same order.
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
