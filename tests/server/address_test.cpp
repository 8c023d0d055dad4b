// URLs of servers, and whom a client believes. Refusals are in tests/apps/remote_test.py, as a user reads them.
#include "stores/server/address.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "stores/open_server.hpp"

namespace once::stores {
namespace address_test {

TEST(ServerUrlTest, NamesAnAddress) {
  const ServerOptions options =
      server_options("once://db.internal:7117?token_file=/etc/t%20k&ca_file=/ca&timeout=250ms");
  EXPECT_EQ(options.host, "db.internal");
  EXPECT_EQ(options.port, 7117);
  EXPECT_TRUE(options.tls);
  EXPECT_EQ(options.token_file, "/etc/t k");
  EXPECT_EQ(options.ca_file, "/ca");
  EXPECT_EQ(options.timeout, Millis{250});
  EXPECT_EQ(server_options("once://[::1]:1?tls=0").host, "::1");
  EXPECT_FALSE(server_options("once://[::1]:1?tls=0").tls);
  EXPECT_EQ(server_options("once://h:1/?cert_file=c&key_file=k").key_file, "k");
  EXPECT_EQ(name_of(server_options("once://[::1]:1?tls=0")), "once://[::1]:1");
}

TEST(ServerUrlTest, NamesASocket) {
  const ServerOptions options = server_options("once:///run/a%3Fb.sock");
  EXPECT_EQ(options.socket, "/run/a?b.sock");
  EXPECT_EQ(name_of(options), "once:///run/a?b.sock");
  EXPECT_EQ(options.timeout, ServerOptions().timeout);
}

TEST(ServerUrlTest, NamesAStoreOnDemand) {
  EXPECT_EQ(server_options("once+sqlite:a.db?create=0").on_demand, "sqlite:a.db?create=0");
  EXPECT_EQ(server_options("once+postgresql://pay:secret@db/pay").on_demand, "postgresql://pay:secret@db/pay");
  EXPECT_EQ(name_of(server_options("once+postgresql://pay:secret@db/pay?password=secret")), "once+postgresql://db/pay");
}

TEST(ServerUrlTest, OtherSchemesAreStores) {
  for (const char* const url : {"sqlite:once.db", "onces:x", "memory:", "once", ""}) EXPECT_FALSE(is_server_url(url));
  EXPECT_TRUE(is_server_url("once:x"));
  EXPECT_TRUE(is_server_url("once+sqlite:x"));
}

TEST(ServerOptionsTest, AreOneServer) {
  const auto refused = [](const ServerOptions& options) {
    try {
      static_cast<void>(checked(options));
    } catch (const Exception& error) {
      return error.kind() == ErrorKind::misuse;
    }
    return false;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({.host = "h", .port = 1, .socket = "/s"}));
  EXPECT_TRUE(refused({.host = "h", .port = 1, .on_demand = "sqlite:x"}));
  EXPECT_TRUE(refused({.host = "h", .token_file = "t"})) << "no port";
  EXPECT_TRUE(refused({.host = "h\r\nX: y", .port = 1, .token_file = "t"}));
  EXPECT_TRUE(refused({.socket = "relative"}));
  EXPECT_TRUE(refused({.socket = "/s", .token_file = "t"}));
  EXPECT_TRUE(refused({.socket = "/s", .timeout = Millis{0}}));
  EXPECT_FALSE(refused({.socket = "/s"}));
  EXPECT_FALSE(refused({.socket = "/s", .on_demand = "sqlite:x"})) << "where to look first";
  EXPECT_FALSE(refused({.host = "h", .port = 1, .token_file = "t"}));
}

TEST(ServerOptionsTest, ProgramIsNamedByTheEnvironment) {
  ASSERT_EQ(setenv("ONCE_PROGRAM", "/opt/once", 1), 0);
  EXPECT_EQ(checked({.on_demand = "sqlite:x"}).program, "/opt/once");
  EXPECT_EQ(checked({.on_demand = "sqlite:x", .program = "mine"}).program, "mine");
  ASSERT_EQ(unsetenv("ONCE_PROGRAM"), 0);
  EXPECT_EQ(checked({.on_demand = "sqlite:x"}).program, "once");
}

TEST(PeerTest, OnDemandIsThisUsersOnly) {
  EXPECT_EQ(distrust({.user = 1000, .own = 1000}, true), "");
  EXPECT_EQ(distrust({.user = 0, .own = 1000}, true), "belongs to user 0");
}

TEST(PeerTest, NamedSocketMayBeSharedWhereNotEverybodyCouldHaveMadeIt) {
  const auto why = [](unsigned user, unsigned directory_owner, bool is_open) {
    return distrust({.user = user, .own = 1000, .directory_owner = directory_owner, .is_open_to_all = is_open}, false);
  };
  EXPECT_EQ(why(1001, 0, false), "");
  EXPECT_EQ(why(1000, 0, true), "");
  EXPECT_EQ(why(0, 1001, true), "");
  EXPECT_EQ(why(1001, 1001, true), "");
  EXPECT_NE(why(1001, 0, true), "");
}

}  // namespace address_test
}  // namespace once::stores
