// The service downstream, which takes the money. It cannot be undone, but it honours idempotency keys: two charges with
// one key are one charge. Every call goes into its ledger, a text file.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "wire.hpp"

namespace storm {

// Listens on its own name (an abstract socket of Linux, which leaves no file).
class BankDoor {
 public:
  BankDoor();
  [[nodiscard]] Socket enter() const;  // A connection to the bank.
  [[nodiscard]] const Socket& listener() const noexcept { return listener_; }

 private:
  std::string name_;
  Socket listener_;
};

// The bank's process: serves until it is killed. Takes the money at once, and answers 15 to 45 ms later. So a client
// that dies meanwhile leaves a charge without an answer.
[[noreturn]] void run_bank(const BankDoor& door, const std::string& ledger_path, std::uint64_t seed);

struct Account {
  int calls = 0;    // How often the bank was asked to charge this order.
  int charges = 0;  // How often it did.
  std::int64_t cents = 0;
};

// The ledger, by order.
std::map<std::uint32_t, Account> read_ledger(const std::string& path);

}  // namespace storm
