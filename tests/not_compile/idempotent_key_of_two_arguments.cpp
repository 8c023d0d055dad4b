// A member that two arguments have does not say whose it is.
// Expect: several arguments have the member
#include <string>

#include <once/idempotent.hpp>

struct Account {
  std::string id;
};

void use(once::Engine& engine) {
  const auto transfer = [](const Account&, const Account&) {};
#ifdef WRONG
  once::idempotent(engine, {.name = "transfer", .key = once::key(&Account::id, &Account::id)}, transfer);
#else
  const auto from_to = [](const Account& from, const Account& to) { return from.id + " " + to.id; };
  once::idempotent(engine, {.name = "transfer", .key = from_to}, transfer);
#endif
}
