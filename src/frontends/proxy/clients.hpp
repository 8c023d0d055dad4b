// Counts the connections and buffered bodies of all clients and of each address. Shared by all loops; thread-safe. An
// IPv6 client is a /64 network, because that is the smallest one assigned to a client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include <once/frontends/proxy.hpp>

#include "frontends/proxy/net.hpp"

namespace once::proxy {

class Clients {
 public:
  explicit Clients(const ProxyOptions& options)
      : most_connections_(options.max_connections_per_client),
        most_bytes_(options.max_buffered_bytes),
        most_bytes_each_(options.max_buffered_bytes_per_client) {}

  using Name = std::array<std::uint8_t, 16>;
  static Name name_of(const net::ip::address& address);

  // Counts a connection, for as long as it lives. This and the next must not outlive their Clients.
  class Connected {
   public:
    Connected() = default;
    Connected(Connected&& other) noexcept : all_(std::exchange(other.all_, nullptr)), name_(other.name_) {}
    Connected& operator=(Connected&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(name_, other.name_);
      return *this;
    }
    Connected(const Connected&) = delete;
    Connected& operator=(const Connected&) = delete;
    ~Connected() {
      if (all_ != nullptr) all_->change(name_, -1, 0);
    }
    explicit operator bool() const noexcept { return all_ != nullptr; }

   private:
    friend class Clients;
    Connected(Clients& all, const Name& name) : all_(&all), name_(name) {}
    Clients* all_ = nullptr;
    Name name_{};
  };
  // Empty: the client has too many.
  [[nodiscard]] Connected connect(const net::ip::address& address);

  // Counts bytes of bodies in memory, for as long as it lives.
  class Held {
   public:
    Held(Clients& all, const net::ip::address& address) : all_(all), name_(name_of(address)) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
      if (bytes_ != 0) all_.change(name_, 0, -static_cast<std::int64_t>(bytes_));
    }
    // Raises the count to `bytes`, if that is more. False: too many, and nothing has changed.
    bool grow_to(std::size_t bytes) { return grow(bytes, true); }
    void grow_anyway(std::size_t bytes) {
      grow(bytes, false);
    }  // The same without a limit, for bodies that must be kept.

   private:
    bool grow(std::size_t bytes, bool mind);
    Clients& all_;
    const Name name_;
    std::size_t bytes_ = 0;
  };
  [[nodiscard]] std::size_t buffered_bytes() const;

 private:
  struct Usage {
    std::size_t connections = 0;
    std::size_t bytes = 0;
  };
  void change(const Name& name, std::int64_t connections, std::int64_t bytes);

  const std::size_t most_connections_;
  const std::size_t most_bytes_;
  const std::size_t most_bytes_each_;
  mutable std::mutex mutex_;  // Guards the following members.
  std::map<Name, Usage> all_;
  std::size_t bytes_ = 0;
};

}  // namespace once::proxy
