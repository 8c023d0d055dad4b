#include "frontends/proxy/clients.hpp"

#include <algorithm>

namespace once::proxy {

namespace {

constexpr std::size_t network_bytes = 8;  // Of an address of IPv6.
constexpr std::size_t least_step_bytes = std::size_t{64} * 1024;

}  // namespace

Clients::Name Clients::name_of(const net::ip::address& address) {
  if (address.is_v4()) return net::ip::make_address_v6(net::ip::v4_mapped, address.to_v4()).to_bytes();
  Name name = address.to_v6().to_bytes();
  std::fill(name.begin() + network_bytes, name.end(), std::uint8_t{0});
  return name;
}

Clients::Connected Clients::connect(const net::ip::address& address) {
  const Name name = name_of(address);
  const std::lock_guard lock(mutex_);
  Usage& usage = all_[name];
  if (most_connections_ != 0 && usage.connections >= most_connections_) return {};
  ++usage.connections;
  return {*this, name};
}

void Clients::change(const Name& name, std::int64_t connections, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = all_.try_emplace(name).first;
  Usage& usage = at->second;
  usage.connections += static_cast<std::size_t>(connections);
  usage.bytes += static_cast<std::size_t>(bytes);
  bytes_ += static_cast<std::size_t>(bytes);
  if (usage.connections == 0 && usage.bytes == 0) all_.erase(at);
}

bool Clients::Held::grow(std::size_t bytes, bool mind) {
  if (bytes <= bytes_) return true;
  const std::size_t more =
      std::max(bytes - bytes_, std::min(bytes_, least_step_bytes));  // Grows in larger steps, not for every piece.
  {
    const std::lock_guard lock(all_.mutex_);
    Usage& usage = all_.all_[name_];
    const bool is_too_much = all_.bytes_ + more > all_.most_bytes_ || usage.bytes + more > all_.most_bytes_each_;
    if (mind && is_too_much) {
      if (usage.connections == 0 && usage.bytes == 0) all_.all_.erase(name_);
      return false;
    }
    usage.bytes += more;
    all_.bytes_ += more;
  }
  bytes_ += more;
  return true;
}

std::size_t Clients::buffered_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace once::proxy
