// One connection of a client: its requests one after the other, from the head to the last byte of the answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/proxy.hpp>

#include "frontends/proxy/clients.hpp"
#include "frontends/proxy/head.hpp"
#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/upstream.hpp"

namespace once::proxy {

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Loop& loop, Socket socket, const ProxyOptions& options);

  Task<void> run();  // Until the connection ends. The caller keeps the session alive.

 private:
  enum class Next : std::uint8_t {
    keep,    // The connection is ready for another request.
    close,   // It is not; what was sent must arrive, so end it gently.
    vanish,  // The client must see that something broke off, or is gone itself.
  };

  Task<bool> begin();  // Who it is, and that it may be. False: the connection is to be ended.
  Task<bool> read_proxy_protocol();
  Task<bool> begin_tls();  // The same.
  Task<bool> read_head();  // False: the connection is to be ended.
  Task<Next> serve();      // No coroutine itself: it chooses the one that serves.
  Task<Next> serve_operation();
  Task<Next> run_claimed(http::Execution& execution, std::string_view body);
  Task<Next> keep_answer(http::Execution& execution, Exchange& exchange);
  struct Events;
  Task<Next> stream_answer(http::Execution& execution, Exchange& exchange);
  Task<void> relay_events(http::Execution& execution, Exchange& exchange, Events& events);
  Task<void> send_events(Events& events, std::string_view before, std::string_view bytes);
  Task<Next> pass(std::string_view body, bool body_was_read);
  Task<Next> relay(Exchange& exchange, std::string_view already);
  Task<Next> tunnel(Exchange& exchange);
  Task<Next> refuse(http::Answer answer);
  Task<Next> send(const http::Answer& answer, bool keep_alive);
  [[nodiscard]] std::optional<std::string_view> body_at_hand();
  Task<bool> read_body(std::string& body);  // False: there is none, see refusal_.
  [[nodiscard]] bool waits_for_continue() const;
  Task<void> send_continue();
  Task<void> linger();

  [[nodiscard]] const Incoming& incoming() const noexcept { return client_.message; }  // The request.
  [[nodiscard]] Framing request_framing() const;
  [[nodiscard]] bool arrived_by_tls() const { return options_.certificate.has_value() || balancer_has_tls_; }
  // What a balancer shows is its own, and it speaks for many.
  [[nodiscard]] bool has_own_certificate() const { return !is_trusted_ && !balancer_has_tls_; }
  [[nodiscard]] Arrival arrival() const {
    return {.address = peer_name_,
            .tls = arrived_by_tls(),
            .is_trusted = is_trusted_,
            .certificate = has_own_certificate() ? client_.certificate() : std::string()};
  }
  // Room for so many bytes of the request's bodies. False: there is none.
  bool hold(std::size_t bytes);
  void hold_answer(std::size_t bytes);  // Counts, and always has room.
  void reset_at_close(bool wanted);
  [[nodiscard]] Millis answer_limit() const;
  [[nodiscard]] bool is_head() const { return head_.method == "HEAD"; }
  [[nodiscard]] bool wants_more() const;  // May the connection be kept, as far as the client and we are concerned?
  void tell();

  Loop& loop_;
  const ProxyOptions& options_;
  Connection client_;
  // Who has connected, by its own address or as the PROXY protocol has it; and if that is a trusted proxy, who sent the
  // request, each time.
  net::ip::address peer_;
  std::string peer_name_;
  net::ip::address sender_;
  std::string sender_name_;
  bool is_trusted_ = false;
  bool balancer_has_tls_ = false;
  std::string subject_;  // Of its own certificate. Empty: none was required, or it names nobody.
  Clients::Connected connected_;
  // Of the request that is served.
  std::shared_ptr<http::Endpoints> rules_;  // A reload meanwhile does not concern it.
  std::shared_ptr<Services> services_;      // As little.
  http::Endpoint* endpoint_ = nullptr;
  RequestHead head_;
  http::Request request_;                // The same for the rules.
  std::optional<http::Answer> refusal_;  // To be sent.
  Steady::time_point began_;
  Served served_;
  std::string_view path_;
  std::string key_;  // As stored. Empty: none.
  std::optional<Clients::Held> held_;
  bool first_ = true;
};

}  // namespace once::proxy
