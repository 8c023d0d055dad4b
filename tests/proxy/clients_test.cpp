// What clients hold, and when it is too much.
#include "frontends/proxy/clients.hpp"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace once::proxy {
namespace clients_test {

constexpr std::size_t mib = std::size_t{1} << 20U;

net::ip::address ip(const char* text) { return net::ip::make_address(text); }

TEST(Clients, HaveSoManyConnectionsEach) {
  Clients clients({.max_connections_per_client = 2});
  std::optional<Clients::Connected> one = clients.connect(ip("192.0.2.1"));
  const auto two = clients.connect(ip("192.0.2.1"));
  EXPECT_TRUE(*one && two);
  EXPECT_FALSE(clients.connect(ip("192.0.2.1")));
  EXPECT_TRUE(clients.connect(ip("192.0.2.2")));
  one.reset();
  EXPECT_TRUE(clients.connect(ip("192.0.2.1")));
}

TEST(Clients, OfIpv6AreNetworks) {
  Clients clients({.max_connections_per_client = 1});
  const auto one = clients.connect(ip("2001:db8::1"));
  EXPECT_TRUE(one);
  EXPECT_FALSE(clients.connect(ip("2001:db8::ffff:1")));
  EXPECT_TRUE(clients.connect(ip("2001:db8:0:1::1")));
}

TEST(Clients, HaveNoLimitIfNoneIsSaid) {
  Clients clients({});
  std::vector<Clients::Connected> many;
  for (int i = 0; i < 5'000; ++i) many.push_back(clients.connect(ip("192.0.2.1")));
  EXPECT_TRUE(many.back());
}

TEST(Clients, HoldSoMuchEachAndTogether) {
  Clients clients({.max_buffered_bytes = 3 * mib, .max_buffered_bytes_per_client = 2 * mib});
  {
    Clients::Held first(clients, ip("192.0.2.1"));
    Clients::Held second(clients, ip("192.0.2.1"));
    Clients::Held other(clients, ip("192.0.2.2"));
    EXPECT_TRUE(first.grow_to(mib));
    EXPECT_TRUE(first.grow_to(mib / 2));  // That much it has.
    EXPECT_EQ(clients.buffered_bytes(), mib);
    EXPECT_FALSE(second.grow_to(mib + 1));
    EXPECT_TRUE(second.grow_to(mib));
    EXPECT_FALSE(other.grow_to(mib + 1));
    EXPECT_TRUE(other.grow_to(mib));
    EXPECT_FALSE(other.grow_to(mib + 1));
    other.grow_anyway(2 * mib);
    EXPECT_EQ(clients.buffered_bytes(), 4 * mib);
  }
  EXPECT_EQ(clients.buffered_bytes(), 0U);
}

}  // namespace clients_test
}  // namespace once::proxy
