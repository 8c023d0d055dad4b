// The PROXY protocol, byte by byte: nothing after the header is read, and invalid bytes are detected at once.
#include "frontends/proxy/proxy_protocol.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace once::proxy {
namespace proxy_protocol_test {

using Kind = ProxyHeader::Kind;

// As a session reads it: not more at a time than it says.
ProxyHeader read(const std::string& all, std::size_t* used = nullptr) {
  std::size_t at = 0;
  ProxyHeader header = read_proxy_header({});
  while (header.kind == Kind::incomplete && at < all.size()) {
    EXPECT_GT(header.more, 0U);
    at = std::min(all.size(), at + header.more);
    header = read_proxy_header(std::string_view(all).substr(0, at));
  }
  if (used != nullptr) *used = at;
  return header;
}

std::string version_2(unsigned command, unsigned family, const std::string& rest) {
  std::string out("\r\n\r\n\0\r\nQUIT\n", 12);
  out += static_cast<char>(command);
  out += static_cast<char>(family);
  out += static_cast<char>(rest.size() / 256);
  out += static_cast<char>(rest.size() % 256);
  return out + rest;
}

const std::string four("\xC0\x00\x02\x01\x0A\x00\x00\x01\x30\x39\x01\xBB", 12);

TEST(ProxyProtocol, Version1) {
  for (const std::string line :
       {"PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n", "PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", "PROXY UNKNOWN\r\n",
        "PROXY UNKNOWN ffff::1 what ever 1 2\r\n"}) {
    std::size_t used = 0;
    const ProxyHeader header = read(line + "GET / HTTP/1.1\r\n", &used);
    EXPECT_EQ(header.kind, Kind::complete) << line;
    EXPECT_EQ(used, line.size()) << line;
    EXPECT_FALSE(header.tls);
    const std::string client = header.client ? header.client->to_string() : "none";
    EXPECT_EQ(client, line[9] == '4' ? "192.0.2.1" : line[9] == '6' ? "2001:db8::1" : "none");
    for (std::size_t cut = 0; cut < line.size(); ++cut) EXPECT_EQ(read(line.substr(0, cut)).kind, Kind::incomplete);
  }
}

TEST(ProxyProtocol, Version2) {
  const std::string six = std::string(15, '\x20') + "\x01" + std::string(16, '\0') + std::string(4, '\x01');
  const std::string authority(
      "\x02\x00\x01"
      "a",
      4);
  const std::string no_tls("\x20\x00\x05\x00\x00\x00\x00\x01", 8);
  const std::string tls("\x20\x00\x05\x01\x00\x00\x00\x00", 8);
  struct Case {
    std::string bytes;
    std::string client;
    bool tls;
  };
  for (const Case& one :
       {Case{version_2(0x21, 0x11, four), "192.0.2.1", false},
        Case{version_2(0x21, 0x11, four + authority + tls), "192.0.2.1", true},
        Case{version_2(0x21, 0x11, four + no_tls + authority), "192.0.2.1", false},
        Case{version_2(0x21, 0x21, six), "2020:2020:2020:2020:2020:2020:2020:2001", false},
        Case{version_2(0x20, 0x00, ""), "none", false}, Case{version_2(0x20, 0x11, four), "none", false},
        Case{version_2(0x21, 0x00, "whatever"), "none", false},
        Case{version_2(0x21, 0x31, std::string(216, 'x')), "none", false}}) {
    std::size_t used = 0;
    const ProxyHeader header = read(one.bytes + "GET", &used);
    EXPECT_EQ(header.kind, Kind::complete);
    EXPECT_EQ(used, one.bytes.size());
    EXPECT_EQ(header.client ? header.client->to_string() : "none", one.client);
    EXPECT_EQ(header.tls, one.tls);
    for (std::size_t cut = 0; cut < one.bytes.size(); ++cut) {
      EXPECT_EQ(read(one.bytes.substr(0, cut)).kind, Kind::incomplete);
    }
  }
}

// Computed beside this program, by the bits of CRC-32C (RFC 9260, appendix A).
TEST(ProxyProtocol, AHeaderThatWasDamagedIsSeenByItsChecksum) {
  const std::string authority(
      "\x02\x00\x01"
      "a",
      4);
  const auto with = [&](const std::string& checksum) { return version_2(0x21, 0x11, four + checksum + authority); };
  const std::string whole = with(std::string("\x03\x00\x04\xA8\x57\x3A\x5F", 7));
  EXPECT_EQ(read(whole).client.value().to_string(), "192.0.2.1");
  for (std::size_t at = 16; at < 16 + four.size(); ++at) {  // Elsewhere it may be no header any more.
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_EQ(read(damaged).kind, Kind::malformed) << at;
  }
  for (const std::string& bad : {std::string("\x03\x00\x04\x5F\x3A\x57\xA8", 7),
                                 std::string("\x03\x00\x03\xA8\x57\x3A", 6), std::string("\x03\x00\x00", 3)}) {
    EXPECT_EQ(read(with(bad)).kind, Kind::malformed);
  }
}

TEST(ProxyProtocol, WhatIsNoneIsSeen) {
  for (const std::string& bad : {std::string("GET / HTTP/1.1\r\n"),
                                 std::string("POST / HTTP/1.1\r\n"),
                                 std::string("PROXZ"),
                                 std::string("PROXY TCP4 192.0.2.1 10.0.0.1 56324\r\n"),
                                 std::string("PROXY TCP4 192.0.2.1 10.0.0.1 1 65536\r\n"),
                                 std::string("PROXY TCP4 ::1 10.0.0.1 1 2\r\n"),
                                 std::string("PROXY TCP6 192.0.2.1 ::1 1 2\r\n"),
                                 std::string("PROXY TCP4 192.0.2.1 10.0.0.1 1 2\n"),
                                 std::string("PROXY TCP5 a b 1 2\r\n"),
                                 std::string("PROXY TCP4  192.0.2.1 10.0.0.1 1 2\r\n"),
                                 "PROXY UNKNOWN " + std::string(100, 'x') + "\r\n",
                                 std::string("\r\n\r\nGET"),
                                 version_2(0x11, 0x11, four),
                                 version_2(0x22, 0x11, four),
                                 version_2(0x21, 0x11, four.substr(1)),
                                 version_2(0x21, 0x21, four),
                                 version_2(0x21, 0x11, four + "\x20"),
                                 version_2(0x21, 0x11,
                                           four + std::string("\x02\x00\x02"
                                                              "a",
                                                              4)),
                                 version_2(0x21, 0x11, four + std::string("\x20\x00\x01\x01", 4)),
                                 version_2(0x20, 0x00, std::string(5'000, 'x'))}) {
    EXPECT_EQ(read(bad).kind, Kind::malformed) << bad;
  }
}

}  // namespace proxy_protocol_test
}  // namespace once::proxy
