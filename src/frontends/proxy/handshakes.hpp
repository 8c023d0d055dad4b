// Failed TLS handshakes of clients: why, how often, and what is reported to the operator.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <once/frontends/proxy.hpp>

namespace once::proxy {

// From the first error in OpenSSL's queue and the verdict on the client's certificate (tls::Stream::verdict()). 0: no
// error, so the connection ended.
HandshakeFault handshake_fault(unsigned long openssl_code, long verdict) noexcept;

struct HandshakeFailure {
  HandshakeFault fault = HandshakeFault::other;
  unsigned long openssl_code = 0;
  long verdict = 0;  // Of the client's certificate: X509_V_OK.
  bool said_something =
      true;  // The client sent a byte. Otherwise it was no attempt: load balancers check open ports that way.
};

// Counts all failures. Reports the first one at once, then at most one every ten seconds, with the number since. Silent
// clients are only counted. Thread-safe; the clock is an argument.
class Handshakes {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds pause{10};

  Handshakes(std::shared_ptr<Metrics> metrics, std::function<void(std::string_view)> on_notice)
      : metrics_(std::move(metrics)), on_notice_(std::move(on_notice)) {}

  void failed(Listener listener, const HandshakeFailure& failure, std::string_view client, Clock::time_point now);

 private:
  static constexpr std::size_t faults = static_cast<std::size_t>(HandshakeFault::other) + 1;

  const std::shared_ptr<Metrics> metrics_;
  const std::function<void(std::string_view)> on_notice_;
  std::mutex mutex_;  // Of what follows.
  Clock::time_point quiet_until_ = Clock::time_point::min();
  std::array<std::uint64_t, faults> untold_{};
};

}  // namespace once::proxy
