// A reverse proxy that makes any HTTP service idempotent: once::http's rules, on sockets.
//
//   once::Engine engine({.store = once::open_store("sqlite:/var/lib/pay/once.db"), .scope = "pay"});
//   once::proxy::Proxy proxy(engine, {}, {.listen = {"127.0.0.1", 8080}, .upstreams = {{{"127.0.0.1", 9000}}}});
//   ...
//   proxy.drain(std::chrono::seconds(30));
//
// HTTP/1.1 (and 1.0) on both sides, with TLS or without. docs/proxy.md has what it does to messages, and what it
// refuses; `once proxy` is this as a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/event.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/router.hpp>
#include <once/time.hpp>

namespace once::proxy {

struct Address {
  std::string host;        // An IP address or a name; IPv6 without brackets.
  std::uint16_t port = 0;  // To listen on 0: any that is free.

  friend bool operator==(const Address&, const Address&) = default;
};

// "127.0.0.1:8080", "[::1]:8080", "localhost:8080". Throws Exception(misuse) naming `what`.
Address parse_address(std::string_view text, std::string_view what);

// Whether only this host reaches who listens there: "localhost", and addresses of the loopback. Looks no name up.
bool is_loopback(const Address& address);

// Addresses that begin with the same bits. Of IPv6; those of IPv4 are in ::ffff:0:0/96.
struct Network {
  std::array<std::uint8_t, 16> address{};
  unsigned prefix_bits = 0;

  friend bool operator==(const Network&, const Network&) = default;
};
// "10.0.0.0/8", "2001:db8::/32", "192.0.2.1". Throws Exception(misuse) naming `what`.
Network parse_network(std::string_view text, std::string_view what);

// Where the service is. "http://127.0.0.1:9000", "https://pay.example": without a port it is 80 or 443. No user, path
// or query. Throws Exception(misuse) naming `what`.
struct Service {
  Address address;
  bool tls = false;

  friend bool operator==(const Service&, const Service&) = default;
};
Service parse_service(std::string_view url, std::string_view what);

// All 1 ms to 24 h. A timeout ends one connection, never more.
struct Timeouts {
  Millis idle{60'000};     // A client's connection between two requests.
  Millis head{10'000};     // A request's head, from its first byte (of a new connection: from the start).
  Millis body{30'000};     // Without any progress while a body is read, or anything is written, on either side; and
                           // for the whole body of a request that has a key.
  Millis connect{2'000};   // To the upstream.
  Millis answer{60'000};   // From the request's last byte to the end of the answer's head, unless the request's
                           // http::Options say otherwise (answer_timeout).
  Millis tunnel{300'000};  // A WebSocket on which neither side sends.
  Millis upstream_idle{
      4'000};  // How long idle connections to the upstream are kept. Less than the upstream keeps them.
};

// When an upstream is put aside (gets no requests) although it can be connected to, and for how long: docs/proxy.md. In
// brackets, Envoy's names (outlier detection).
struct Aside {
  // After this many requests in a row with 502, 503 or 504, no answer, one that is not HTTP, or one that is too late
  // from a service that gave no other answer meanwhile (consecutive_gateway_failure). It applies even to the last
  // upstream, because the outcome of such requests is not known. 0: never.
  unsigned after_failures = 3;
  // After this many with that or any other 5xx (consecutive_5xx), while other upstreams are left. 0: never.
  unsigned after_5xx = 5;
  // At most this percentage of upstreams is aside for 5xx at once; one always may be (max_ejection_percent). 1 to 100.
  unsigned most_percent = 50;
  Millis time{1'000};        // The first time (base_ejection_time), then each time for twice as long,
  Millis most_time{30'000};  // up to this (max_ejection_time). Both 1 ms to 24 h.
};

// How a request ended.
enum class Outcome : std::uint8_t {
  executed,     // Claimed by us, and answered by the upstream.
  replayed,     // The answer of an earlier request.
  conflict,     // 409: it is running.
  mismatch,     // 422: the key was used with another request.
  unknown,      // 409: its outcome is not known.
  refused,      // 4xx or 5xx by the rules or as malformed. Nothing was run.
  passed,       // Not one of the methods: not protected.
  unprotected,  // Not protected although its method is: no key, or no store.
  error,        // The upstream gave no answer, or the store failed, or the client left before its request was there.
};
std::string_view to_string(Outcome outcome) noexcept;

// One request, when it is over. Views are valid during the call only.
struct Served {
  Time at{};                // When its head was complete.
  std::string_view client;  // Its IP address.
  std::string_view method;  // Empty if that much could not be read, as is the path.
  std::string_view path;    // Without the query.
  std::string_view route;   // http::Route::path of the route that it has, "/orders/{id}/pay". Empty: none.
  unsigned status = 0;      // Sent to the client. 0: none.
  Outcome outcome = Outcome::error;
  std::string_view stored_key;   // Not for logs, which have key_hash() of it. Empty: no key.
  std::string_view fate;         // executed: "stored", "tombstone", "released", "ambiguous". Else empty.
  std::string_view cause;        // What went wrong, in one word: "upstream-lost". Else empty.
  std::string_view upstream;     // "pay:9000": the upstream. Empty: none.
  unsigned upstream_status = 0;  // 0: it was not asked, or gave no answer.
  std::uint64_t request_body_bytes = 0;
  std::uint64_t answer_body_bytes = 0;
  std::chrono::nanoseconds took{0};           // From the head to the last byte of the answer.
  std::chrono::nanoseconds upstream_took{0};  // Of it, until the upstream's answer was there. 0: it was not asked.
};

// 16 hex digits of the SHA-256 of the stored key: distinguishes keys without showing them. Empty: no key.
std::string key_hash(const Served& served);

// Who listens: --listen, and --admin.
enum class Listener : std::uint8_t { clients, operators };
std::string_view to_string(Listener listener) noexcept;

// Why a client and the proxy could not begin TLS.
enum class HandshakeFault : std::uint8_t {
  proxy_header,                  // The connection must begin with the PROXY protocol, and does not.
  timeout,                       // It was not over in time.
  closed,                        // The client ended the connection.
  plain_http,                    // It speaks HTTP without TLS.
  not_tls,                       // It speaks neither.
  version,                       // It knows only versions before TLS 1.2.
  cipher,                        // Nothing in common to sign or encrypt with.
  alpn,                          // It offers other protocols than HTTP/1.1.
  certificate,                   // It does not accept ours, and says so.
  client_certificate_missing,    // It shows none, and must (ProxyOptions::client_ca_file).
  client_certificate_expired,    // Its own is not valid any more, or not yet.
  client_certificate_untrusted,  // No authority in that file signed its own.
  client_certificate_bad,        // Its own is refused for another reason: it is for servers only, its key is too short.
  alert,                         // It says something else.
  other,
};
std::string_view to_string(HandshakeFault fault) noexcept;

// Counters and durations, as Prometheus reads them; docs/proxy.md lists them. No key is a label, and of a path only its
// route. A histogram has at most 2000 sets of labels; later ones are counted under otel_metric_overflow="true", as in
// OpenTelemetry's SDKs. Thread-safe.
class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  void count(const once::Event& event) noexcept;  // For EngineOptions::observer.
  // The proxy does these. `by`: 1 or -1.
  void count(const Served& served);
  void count_reload(bool done) noexcept;  // A reload of settings, by the program that reads them.
  void active(std::string_view method, bool tls, int by) noexcept;  // Requests under way.
  void tunnels(int by) noexcept;                                    // Open ones.
  void count_refused_connection() noexcept;                         // By max_connections_per_client.
  void count(Listener listener, HandshakeFault fault) noexcept;     // A handshake that failed.

  // Text exposition format 0.0.4. `connections`: of clients, now.
  [[nodiscard]] std::string text(std::size_t connections) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// PEM files: the certificate, followed by those between it and an authority, and its key without a password.
struct Certificate {
  std::string file;
  std::string key_file;
};

struct ProxyOptions {
  Address listen;
  std::optional<Certificate> certificate;  // Clients speak TLS 1.2 or later. Empty: plainly.
  // PEM: clients must show a certificate for clients that one of these has signed, directly or by others; else the
  // handshake fails. Its subject is Request::principal, for http::Principal::given(): in DER, as its bytes are; empty
  // if no name is in it. Upstreams get the certificate in Client-Cert (RFC 9440). A balancer's counts for neither: that
  // of a trusted proxy, or where the PROXY protocol says that the client speaks TLS with the balancer. Needs
  // `certificate`. Empty: no client is asked.
  std::string client_ca_file;

  // Proxies and balancers in front of this one. Of those in trusted_proxies X-Forwarded-Proto, -Host and the like are
  // passed on, and X-Forwarded-For says who the client is; of all others they are dropped, and the client is who
  // connects. Connections from proxy_protocol begin with a header of the PROXY protocol, version 1 or 2, and all others
  // do not; then the client is whom that names, and may itself be a trusted proxy.
  std::vector<Network> trusted_proxies;
  std::vector<Network> proxy_protocol;

  // At least one, all equal, until Proxy::set_upstreams() names others: a request goes to the one with the fewest
  // running requests. One that fails is put aside for a while. With TLS its certificate is checked, and must be for its
  // host.
  std::vector<Service> upstreams;
  std::string upstream_ca_file;  // PEM, whom to trust for that. Empty: SSL_CERT_FILE and SSL_CERT_DIR, or the system's.
  std::optional<Certificate> upstream_certificate;  // Shown to upstreams with TLS that ask who we are.
  // Begins with a slash. Each upstream is asked for it every health_interval, and gets requests only if it answers with
  // 2xx or 3xx. Empty: no check.
  std::string health_path;
  Millis health_interval{5'000};  // Range as for timeouts. Also the timeout of a check.
  Aside aside;

  // Where GET /healthz, /readyz and /metrics are answered, to every client that can connect: a loopback address, or one
  // of a network for operators. Empty: nowhere.
  std::optional<Address> admin;
  std::optional<Certificate> admin_certificate;  // TLS there, too. May be the same files as `certificate`.
  // Answers requests there for paths below /v1/, from any client: it must check who that is. Bodies are up to
  // max_admin_body_bytes. The request is valid during the call; `done` may be called later and from any thread, and
  // must be. Called from a thread of the proxy's: must not block and must not throw. Empty: no such paths.
  std::function<void(const http::Request& request, Callback<void(http::Answer)> done)> operators;
  static constexpr std::size_t max_admin_body_bytes = std::size_t{2} * 1024 * 1024;
  // The answer to a request for /metrics that may not have them; empty: it may. Called as `operators` is, and must not
  // wait. Empty itself: every client may.
  std::function<std::optional<http::Answer>(const http::Request& request)> refuse_metrics;
  std::shared_ptr<Metrics> metrics;  // Empty: the proxy's own, without the engine's events.

  Timeouts timeouts;
  unsigned threads = 0;  // 0: one for each processor. At most 256.

  // Of clients, at least 1. More wait in the kernel's queue until others have left.
  std::size_t max_connections = 10'000;
  std::size_t max_connections_per_client = 0;  // Of one address (IPv6: of one /64). More are closed. 0: no such limit.
  // Bodies of requests that have a key, as far as they do not fit into the buffer of their connection (16 KiB), and
  // their answers: of all together, and of one client's address. A request beyond it is 503 overloaded; an answer
  // counts, and is always kept. At least 1 MiB.
  std::size_t max_buffered_bytes = std::size_t{1} << 30U;
  std::size_t max_buffered_bytes_per_client = std::size_t{1} << 28U;
  std::size_t max_head_bytes = std::size_t{32} * 1024;  // Of a request and of an answer. 1 KiB to 1 MiB.
  std::size_t max_idle_upstream = 256;                  // Kept connections to the upstream, of all threads.

  // Called from the proxy's threads, several at once; must not block and must not throw. Empty: not called.
  std::function<void(const Served&)> on_served;
  // A sentence for the operator that no client gets: why an upstream is put aside, and that it is back; why TLS
  // handshakes fail, at most every 10 s. The same rules.
  std::function<void(std::string_view)> on_notice;
};

// Throws Exception(misuse) that names what is out of range.
void check(const ProxyOptions& options);
// Throws Exception(misuse) if with these options the rules take clients for whom they say they are, or nobody can be
// known: http::Principal::given() without client_ca_file, the header Client-Cert with it.
void check(const http::Routes& rules, const ProxyOptions& options);

// What Proxy::set_upstreams() has changed: URLs with their ports, "http://pay:9000".
struct UpstreamChange {
  std::vector<std::string> added;
  std::vector<std::string> removed;
  std::size_t kept = 0;
};

// Runs on threads of its own from its construction to its destruction. Methods may be called from any thread but the
// proxy's own.
class Proxy {
 public:
  // Throws Exception: misuse for options out of range and certificates that cannot be used, unavailable if it cannot
  // listen. The engine must outlive it.
  Proxy(Engine& engine, const http::Routes& rules, ProxyOptions options);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  // Closes all connections and waits for the store's pending answers (as long as Policy::wait, if duplicates wait).
  // Operations at the upstream become ambiguous: drain() first.
  ~Proxy();

  [[nodiscard]] std::uint16_t port() const noexcept;        // That it listens on.
  [[nodiscard]] std::uint16_t admin_port() const noexcept;  // 0: it has none.
  [[nodiscard]] std::size_t connections() const noexcept;   // Of clients.
  [[nodiscard]] bool draining() const noexcept;

  // Requests whose head was read before keep the rules in force then; all that begin after this has returned get these.
  // Throws Exception(misuse) for rules that are invalid, alone or with the options, and then changes nothing.
  void set_rules(const http::Routes& rules);

  // Other upstreams than ProxyOptions::upstreams, in the same way: requests whose head was read before end where they
  // are, and may still begin at an earlier upstream. An upstream that stays (the same host, port and scheme) keeps its
  // connections, its running requests, its health and its time aside. Throws Exception(misuse) for an invalid list, and
  // if the first one with TLS finds no authority to trust; then nothing changes.
  UpstreamChange set_upstreams(std::vector<Service> upstreams);

  // Stops listening, lets each connection finish its running request, closes the idle ones, and waits until
  // there are none. False: the time was up first. May be called again.
  bool drain(Millis limit);

  // Reads the files of certificates again, client_ca_file too, for connections that come from now on. Earlier sessions
  // are not resumed. Throws Exception(misuse) if one cannot be used: then nothing changes.
  void reload_certificates();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace once::proxy
