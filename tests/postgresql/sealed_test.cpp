// Sealed records against a role that may write to the table, and has no key.
#include <gtest/gtest.h>

#include <once/seal.hpp>
#include <once/stores/postgresql.hpp>

#include "../seal/attacks.hpp"
#include "../seal/seal_keys.hpp"
#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::testing {
namespace {

TEST(PostgresqlSealed, EachFieldIsAttacked) {
  const std::string schema = fresh_schema();
  Shell shell;
  shell.run(stores::postgresql::create_sql(schema));
  const auto open = [&] {
    return stores::make_postgresql_store(
        {.url = test_url(), .schema = schema, .allow_unsafe = true, .allow_clear = true});
  };
  {
    const auto clear = open();
    const auto sealed = seal(open(), {seal_key("k1", 1)});
    const auto strict = seal(open(), {seal_key("k1", 1)}, SealWrites::sealed, SealReads::sealed);
    Attacked attacked{.sealed = *sealed,
                      .strict = *strict,
                      .clear = *clear,
                      .fields = comma_separated(shell.run(
                          "SELECT string_agg(attname, ',') FROM pg_attribute WHERE attnum > 0 AND attname <> 'key' AND "
                          "attrelid = '" +
                          schema + ".records'::regclass")),
                      .not_believed = {"sweep_at_ms", "listed"},
                      .placement = "placement",
                      .read = {},
                      .write = {}};
    EXPECT_EQ(attacked.fields.size(), 29U);
    attack_by_sql(
        attacked, schema + ".records", "quote_nullable", [&](const std::string& sql) { return shell.run(sql); },
        [](const std::string& key) { return "key = '" + key + "'"; });
    attack_each_field(attacked);
  }
  shell.run("DROP SCHEMA " + schema + " CASCADE");
}

}  // namespace
}  // namespace once::testing
