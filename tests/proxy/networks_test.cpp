// Networks as text, and clients behind trusted proxies.
#include "frontends/proxy/networks.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <once/error.hpp>

namespace once::proxy {
namespace networks_test {

using ::testing::HasSubstr;

bool is_in(const std::string& network, const std::string& address) {
  const std::vector<Network> all{parse_network(network, "trusted-proxy")};
  return contains(all, net::ip::make_address(address));
}

TEST(Networks, AreWhatBeginsAlike) {
  EXPECT_TRUE(is_in("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(is_in("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(is_in("10.0.0.7", "10.0.0.7"));
  EXPECT_FALSE(is_in("10.0.0.7", "10.0.0.6"));
  EXPECT_TRUE(is_in("192.0.2.128/25", "192.0.2.255"));
  EXPECT_FALSE(is_in("192.0.2.128/25", "192.0.2.127"));
  EXPECT_TRUE(is_in("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(is_in("0.0.0.0/0", "2001:db8::1"));
  EXPECT_TRUE(is_in("::/0", "1.2.3.4"));
  EXPECT_TRUE(is_in("2001:db8::/33", "2001:db8:7fff::1"));
  EXPECT_FALSE(is_in("2001:db8::/33", "2001:db8:8000::1"));
  EXPECT_FALSE(contains({}, net::ip::make_address("10.0.0.1")));
}

TEST(Networks, WhatIsNoneIsRefused) {
  for (const char* const bad : {"", "10", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0.0/8x", "name",
                                "10.0.0.0/8/8", "10.0.0.7/8", "2001:db8::1/32"}) {
    try {
      static_cast<void>(parse_network(bad, "trusted-proxy"));
      ADD_FAILURE() << bad;
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::misuse);
      EXPECT_THAT(error.what(), HasSubstr("trusted-proxy"));
    }
  }
}

std::string client(const std::string& peer, const std::vector<std::string>& lines) {
  const std::vector<Network> trusted{parse_network("10.0.0.0/8", "x"), parse_network("fd00::/8", "x")};
  std::vector<http::HeaderView> headers{{"Host", "a"}};
  for (const std::string& line : lines) headers.push_back({"x-forwarded-for", line});
  return client_behind(headers, net::ip::make_address(peer), trusted).to_string();
}

TEST(ClientBehind, IsTheLastThatIsNotTrusted) {
  EXPECT_EQ(client("192.0.2.1", {"198.51.100.7"}), "192.0.2.1");
  EXPECT_EQ(client("10.0.0.1", {}), "10.0.0.1");
  EXPECT_EQ(client("10.0.0.1", {"198.51.100.7"}), "198.51.100.7");
  EXPECT_EQ(client("10.0.0.1", {"1.1.1.1, 198.51.100.7, 10.9.9.9"}), "198.51.100.7");
  EXPECT_EQ(client("10.0.0.1", {"1.1.1.1", "198.51.100.7", "10.9.9.9,fd00::1"}), "198.51.100.7");
  EXPECT_EQ(client("10.0.0.1", {"10.1.1.1, 10.2.2.2"}), "10.1.1.1");
  EXPECT_EQ(client("10.0.0.1", {"198.51.100.7, unknown, 10.2.2.2"}), "10.2.2.2");
  EXPECT_EQ(client("fd00::5", {"::ffff:198.51.100.7"}), "198.51.100.7");
}

}  // namespace networks_test
}  // namespace once::proxy
