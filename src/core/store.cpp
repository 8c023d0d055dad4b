#include <once/store.hpp>
#include <once/stores/sql.hpp>

namespace once {

stores::SqlStatement Store::finish_statement(const Record& /*record*/, std::uint64_t /*place*/) {
  throw Exception(ErrorKind::misuse,
                  name() +
                      " cannot be finished by a transaction of your own: give your writes to the finish, if this "
                      "store takes them (Claim::complete(result, companion)), or write them apart");
}

}  // namespace once
