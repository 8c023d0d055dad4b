// One connection of a client, and its requests one after the other.
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
    close,   // The connection ends after the sent bytes have arrived.
    vanish,  // The client must see that the answer broke off, or has disconnected.
  };

  Task<bool> begin();  // Identifies and counts the client. False: end the connection.
  Task<bool> read_proxy_protocol();
  Task<bool> begin_tls();  // The same.
  Task<bool> read_head();  // False: end the connection.
  Task<Next> serve();      // Not a coroutine: it chooses the one that serves the request.
  Task<Next> serve_operation();
  void open_operation(Pending<http::Opening>& opened);
  Task<void> reconcile(http::Opening& opening);  // If it is unknown: asks the upstream, and may open it again.
  Task<Next> run_claimed(http::Execution& execution, std::string_view body);
  Task<Next> keep_answer(http::Execution& execution, Exchange& exchange);
  Task<Next> keep_status(http::Execution& execution, Exchange& exchange);
  // The client's own limit, http::Options::client_timeout.
  struct Patience;
  void begin_patience();
  static Task<void> lose_patience(std::shared_ptr<Session> self, std::shared_ptr<Patience> patience);
  Task<bool> end_patience();  // False: it has passed, and the client has its answer.
  Task<Next> send_result(const http::Answer& answer);
  void log_finish(const http::Finished& finished);
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
  Task<bool> read_body(std::string& body);  // False: no body, see refusal_.
  [[nodiscard]] bool waits_for_continue() const;
  Task<void> send_continue();
  Task<void> linger();

  [[nodiscard]] const Incoming& incoming() const noexcept { return client_.message; }  // The request.
  [[nodiscard]] Framing request_framing() const;
  [[nodiscard]] bool arrived_by_tls() const { return options_.certificate.has_value() || balancer_has_tls_; }
  // A balancer's certificate is its own, not the client's.
  [[nodiscard]] bool has_own_certificate() const { return !is_trusted_ && !balancer_has_tls_; }
  [[nodiscard]] Arrival arrival() const {
    return {.address = peer_name_,
            .tls = arrived_by_tls(),
            .is_trusted = is_trusted_,
            .certificate = has_own_certificate() ? client_.certificate() : std::string(),
            .path = services_->path()};
  }
  [[nodiscard]] bool is_own(const TraceParent& span) const;
  // Reserves room for the request's bodies. False: no room.
  bool hold(std::size_t bytes);
  void hold_answer(std::size_t bytes);  // Counts the bytes, without a limit.
  void reset_at_close(bool wanted);
  [[nodiscard]] Millis answer_limit() const;
  [[nodiscard]] bool is_head() const { return head_.method == "HEAD"; }
  [[nodiscard]] bool wants_more() const;  // Whether client and proxy allow to keep the connection.
  void tell();

  Loop& loop_;
  const ProxyOptions& options_;
  Connection client_;
  // The address that connected, or the one from the PROXY protocol. If that is a trusted proxy: the sender of each
  // request.
  net::ip::address peer_;
  std::string peer_name_;
  net::ip::address sender_;
  std::string sender_name_;
  bool is_trusted_ = false;
  bool balancer_has_tls_ = false;
  std::string subject_;  // Of the client's certificate. Empty: none was required, or it has no name.
  Clients::Connected connected_;
  // Of the request that is served.
  std::shared_ptr<http::Endpoints> rules_;  // A reload does not change it.
  std::shared_ptr<Services> services_;      // Likewise.
  http::Endpoint* endpoint_ = nullptr;
  RequestHead head_;
  http::Request request_;                // The same for the rules.
  std::optional<http::Answer> refusal_;  // To be sent.
  Steady::time_point began_;
  Served served_;
  std::string_view path_;
  std::string key_;  // As stored. Empty: none.
  std::optional<Clients::Held> held_;
  std::shared_ptr<Patience> patience_;  // Null: the client waits as long as the proxy.
  bool first_ = true;
};

}  // namespace once::proxy
