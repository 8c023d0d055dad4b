#include "frontends/proxy/networks.hpp"

#include <algorithm>
#include <array>

#include <once/error.hpp>

#include "text/header.hpp"
#include "text/number.hpp"

namespace once::proxy {

namespace {

using Bytes = std::array<std::uint8_t, 16>;

// IPv4 addresses as IPv6 ones.
Bytes bytes_of(const net::ip::address& address) {
  const auto wide = address.is_v4() ? net::ip::make_address_v6(net::ip::v4_mapped, address.to_v4()) : address.to_v6();
  return wide.to_bytes();
}

bool has_prefix(const Bytes& address, const Network& network) {
  for (unsigned bit = 0; bit < network.prefix_bits;) {
    const unsigned bits = std::min(8U, network.prefix_bits - bit);
    const auto mask = static_cast<std::uint8_t>(0xFFU << (8U - bits));
    if (((address[bit / 8] ^ network.address[bit / 8]) & mask) != 0) return false;
    bit += bits;
  }
  return true;
}

}  // namespace

Network parse_network(std::string_view text, std::string_view what) {
  const auto bad = [&] {
    return Exception(ErrorKind::misuse, std::string(what) +
                                            " must be an address or a network, as in 10.0.0.7, 10.0.0.0/8 or "
                                            "2001:db8::/32, not '" +
                                            std::string(text) + "'");
  };
  const auto slash = text.find('/');
  error_code error;
  const auto address = net::ip::make_address(text.substr(0, slash), error);
  if (error) throw bad();
  const unsigned most = address.is_v4() ? 32 : 128;
  unsigned bits = most;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    const auto told = text::parse_whole<unsigned>(digits);
    if (!told || *told > most) throw bad();
    bits = *told;
  }
  const Network network{.address = bytes_of(address), .prefix_bits = bits + (128 - most)};
  // 10.0.0.7/8 is a mistake: either one address or the network was meant.
  const Network whole{.address = {}, .prefix_bits = network.prefix_bits};
  Bytes rest = network.address;
  for (unsigned bit = 0; bit < network.prefix_bits; ++bit) {
    rest[bit / 8] = static_cast<std::uint8_t>(rest[bit / 8] & ~(0x80U >> (bit % 8)));
  }
  if (rest != whole.address) {
    throw Exception(ErrorKind::misuse, std::string(what) + ": '" + std::string(text) +
                                           "' has bits set after its prefix: write the network's own address, or leave "
                                           "out the prefix");
  }
  return network;
}

net::ip::address plain_address(const net::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6());
}

bool contains(std::span<const Network> networks, const net::ip::address& address) {
  if (networks.empty()) return false;
  const Bytes bytes = bytes_of(address);
  return std::ranges::any_of(networks, [&](const Network& network) { return has_prefix(bytes, network); });
}

net::ip::address client_behind(const std::vector<http::HeaderView>& headers, const net::ip::address& peer,
                               std::span<const Network> trusted) {
  net::ip::address client = peer;
  if (!contains(trusted, peer)) return client;
  for (auto header = headers.rbegin(); header != headers.rend(); ++header) {
    if (!http::same_name(header->name, "X-Forwarded-For")) continue;
    const auto members = text::list_members(header->value);
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      error_code error;
      const auto address = net::ip::make_address(*member, error);
      if (error) return client;
      client = plain_address(address);
      if (!contains(trusted, client)) return client;
    }
  }
  return client;
}

}  // namespace once::proxy
