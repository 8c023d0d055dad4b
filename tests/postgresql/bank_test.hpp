// A bank in the store's database, for the tests of transactions that write there too.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "database.hpp"
#include "stores/postgresql/schema_sql.hpp"

namespace once::testing {

class BankTest : public ::testing::Test {
 protected:
  BankTest() {
    shell_.run(stores::postgresql::create_sql(schema_));
    shell_.run("SET search_path = " + schema_);
    shell_.run(
        "CREATE TABLE accounts (id text PRIMARY KEY, cents int NOT NULL CHECK (cents >= 0)); "
        "INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0); "
        "CREATE TABLE log (account text REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED); "
        // Ends its own session while it commits.
        "CREATE TABLE trap (n int); CREATE FUNCTION snap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER snap AFTER INSERT ON trap DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION snap()");
  }
  ~BankTest() override { shell_.run("DROP SCHEMA " + schema_ + " CASCADE"); }

  [[nodiscard]] std::string cents() {
    return shell_.run("SELECT string_agg(cents::text, ',' ORDER BY id) FROM accounts");
  }
  [[nodiscard]] std::string transfer(int amount) const {
    return "UPDATE " + schema_ + ".accounts SET cents = cents - " + std::to_string(amount) + " WHERE id = 'alice'; " +
           "UPDATE " + schema_ + ".accounts SET cents = cents + " + std::to_string(amount) + " WHERE id = 'bob'";
  }

  const std::string schema_ = fresh_schema();
  Shell shell_;
};

}  // namespace once::testing
