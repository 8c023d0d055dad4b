// A reverse proxy that makes any HTTP service idempotent, by the rules of once::http.
//
//   once::Engine engine({.store = once::open_store("sqlite:/var/lib/pay/once.db"), .scope = "pay"});
//   once::proxy::Proxy proxy(engine, {}, {.listen = {"127.0.0.1", 8080}, .upstreams = {{{"127.0.0.1", 9000}}}});
//   ...
//   proxy.stop(std::chrono::seconds(30));
//
// HTTP/1.1 (and 1.0) on both sides, with TLS or without. docs/proxy.md says how it changes messages, and what it
// refuses. `once proxy` is this as a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/event.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/router.hpp>
#include <once/time.hpp>
#include <once/trace.hpp>

namespace once {
class Reconciler;
}

namespace once::proxy {

// Where to listen, or what to connect to.
struct Address {
  std::string host = {};   // An IP address or a name; IPv6 without brackets.
  std::uint16_t port = 0;  // 0, for listening: any free port.
  // A Unix socket instead: its absolute path, at most 107 bytes. Without host and port.
  std::string socket = {};

  friend bool operator==(const Address&, const Address&) = default;
};

// "127.0.0.1:8080", "[::1]:8080", "localhost:8080". Throws Exception(misuse) naming `what`.
Address parse_address(std::string_view text, std::string_view what);
// The same, or a Unix socket: "unix:/run/once/proxy.sock".
Address parse_listen(std::string_view text, std::string_view what);

// Whether only this host can connect to it: "localhost", loopback addresses, and Unix sockets. Resolves no name.
bool is_loopback(const Address& address);

// IPv6 addresses with the same first bits. IPv4 addresses are in ::ffff:0:0/96.
struct Network {
  std::array<std::uint8_t, 16> address{};  // In network order; the bits after the prefix are 0.
  unsigned prefix_bits = 0;                // 0 to 128. Of IPv4: 96 more than it is written with.

  friend bool operator==(const Network&, const Network&) = default;
};
// "10.0.0.0/8", "2001:db8::/32", "192.0.2.1". Throws Exception(misuse) naming `what`.
Network parse_network(std::string_view text, std::string_view what);

// Where the service is.
struct Service {
  Address address = {};  // All addresses of a name are tried.
  bool tls = false;      // https: its certificate is verified.
  // Comes before the target of each request: "/v1". Empty: none. The key, its fingerprint and the routes do not know
  // it. A request whose path may lead out of it ("/../admin") is 400 path-unclear.
  std::string path = {};

  friend bool operator==(const Service&, const Service&) = default;
};
// "http://127.0.0.1:9000", "https://pay.example/v1", "unix:/run/pay.sock", or that with a path,
// "http://unix:/run/pay.sock:/v1". Default port: 80 or 443. No user or query. Throws Exception(misuse) naming `what`.
Service parse_service(std::string_view url, std::string_view what);

// All 1 ms to 24 h. A timeout ends one connection, never more.
struct Timeouts {
  // A client's connection between two requests. Longer than a balancer in front keeps its connections idle.
  Millis idle{100'000};
  Millis head{10'000};    // A request's head, from its first byte; on a new connection from its start.
  Millis body{30'000};    // A read of a body, or any write, without progress, on either side. Also the whole body of a
                          // request with a key.
  Millis connect{2'000};  // To the upstream.
  Millis answer{60'000};  // From the request's last byte to the end of the answer's head. http::Options::answer_timeout
                          // overrides it.
  Millis tunnel{300'000};  // A WebSocket on which neither side sends.
  // An idle connection to the upstream. Set it below the upstream's own limit. If the upstream announces that
  // ("Keep-Alive: timeout=5"), half of it counts, if that is less.
  Millis upstream_idle{1'000};
};

// When an upstream that accepts connections is put aside (gets no requests), and for how long: docs/proxy.md. Envoy's
// names (outlier detection) in brackets.
struct Aside {
  // After this many failures in a row (consecutive_gateway_failure): 502, 503 or 504, no answer, one that is not HTTP,
  // or a late one if the service gave no other answer meanwhile. Applies to the last upstream too, because the outcome
  // of such requests is not known. 0: never.
  unsigned after_failures = 3;
  // After this many of those or any 5xx in a row (consecutive_5xx), while other upstreams are left. 0: never.
  unsigned after_5xx = 5;
  // At most this percentage of upstreams is put aside for 5xx at once; one is always allowed (max_ejection_percent). 1
  // to 100.
  unsigned percent = 50;
  Millis time{1'000};         // The first time (base_ejection_time), doubled each time
  Millis time_limit{30'000};  // up to this (max_ejection_time). Both 1 ms to 24 h.
};

// How a request ended.
enum class RequestOutcome : std::uint8_t {
  executed,     // Claimed, and answered by the upstream.
  replayed,     // The answer of an earlier request.
  conflict,     // 409: it is running.
  mismatch,     // 422: the key was used with another request.
  unknown,      // 409: its outcome is not known.
  refused,      // 4xx or 5xx by the rules, or malformed. Nothing was run.
  passed,       // Not one of the methods: not protected.
  unprotected,  // Not protected although its method is: no key, or no store.
  error,        // The upstream gave no answer, the store failed, or the client left before its request was complete.
};
std::string_view to_string(RequestOutcome outcome) noexcept;  // "executed" …

// One request, after its end. Views are valid during the call only.
struct Served {
  Time at{};                                       // When its head was complete.
  std::string_view client = {};                    // Its IP address.
  std::string_view method = {};                    // Empty if it could not be read, as is the path.
  std::string_view path = {};                      // Without the query.
  std::string_view route = {};                     // http::Route::path of its route, "/orders/{id}/pay". Empty: none.
  unsigned status = 0;                             // Sent to the client. 0: none.
  RequestOutcome outcome = RequestOutcome::error;  // Whether it ran.
  std::string_view stored_key = {};                // Empty: no key. In logs use once::key_hash().
  TraceParent trace = {};                          // Its client's, or the one that its claim began. Empty: none.
  std::string_view fate = {};            // executed: "store", "tombstone", "release", "ambiguous". Otherwise empty.
  std::string_view cause = {};           // What went wrong, in one word: "upstream-lost". Otherwise empty.
  std::string_view upstream = {};        // "pay:9000": the upstream. Empty: none.
  unsigned upstream_status = 0;          // 0: not asked, or no answer.
  std::uint64_t request_body_bytes = 0;  // As received, without transfer coding.
  std::uint64_t answer_body_bytes = 0;   // As sent, without transfer coding.
  std::chrono::nanoseconds took{0};      // From the head to the last byte of the answer.
  std::chrono::nanoseconds upstream_took{0};  // The part until the upstream's answer. 0: not asked.
};

// The body of an answer whose end is not known when it begins, such as events. Called on one thread of the proxy, which
// must not be blocked.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;
  // Calls `done` once, from any thread, with the next bytes. Empty: the body is complete. It is not called again before
  // these bytes are sent, so a slow client makes the stream wait and not grow.
  virtual void next(Callback<void(std::string)> done) = 0;
  // The client has disconnected, or the proxy ends. A waiting `done` must be called soon. May come again.
  virtual void stop() = 0;
};

// A whole answer; or the status and headers of one whose body is a stream.
struct OperatorsAnswer : http::Answer {
  // A whole one; implicit, because most are.
  OperatorsAnswer(http::Answer answer) : http::Answer(std::move(answer)) {}
  // A stream, not null, behind this status and these headers. The body of `head` is ignored.
  OperatorsAnswer(http::Answer head, std::unique_ptr<AnswerStream> its_body)
      : http::Answer(std::move(head)), stream(std::move(its_body)) {}

  std::unique_ptr<AnswerStream> stream = {};  // Null: the answer is whole.
  // Called if nothing of it was sent, because the client had gone. May be empty.
  Callback<void()> unsent = {};
};

// The listening addresses: --listen and --admin.
enum class Listener : std::uint8_t { clients, operators };
std::string_view to_string(Listener listener) noexcept;  // "clients", "operators".

// Why a TLS handshake with a client failed.
enum class HandshakeFault : std::uint8_t {
  proxy_header,                  // The connection does not begin with the required PROXY protocol.
  timeout,                       // It did not end in time.
  closed,                        // The client closed the connection.
  plain_http,                    // The client speaks HTTP without TLS.
  not_tls,                       // The client speaks neither.
  version,                       // The client supports only versions before TLS 1.2.
  cipher,                        // No common algorithm to sign or encrypt with.
  alpn,                          // The client offers only protocols other than HTTP/1.1.
  certificate,                   // The client rejects the proxy's certificate.
  client_certificate_missing,    // The client shows none, but must (ProxyOptions::client_ca_file).
  client_certificate_expired,    // The client's has expired, or is not valid yet.
  client_certificate_untrusted,  // No authority in that file signed the client's.
  client_certificate_bad,        // The client's is refused for another reason: for servers only, a short key.
  alert,                         // The client sent another alert.
  other,                         // Any other fault.
};
std::string_view to_string(HandshakeFault fault) noexcept;  // "proxy-header" …

// Counters and durations for Prometheus; docs/metrics.md lists them. Labels contain no key, and the route instead of
// the path. A histogram has at most 2000 sets of labels; later ones are counted under otel_metric_overflow="true", as
// in OpenTelemetry's SDKs. Thread-safe.
class Metrics {
 public:
  Metrics();  // All counts are 0.
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  void count(const once::Event& event) noexcept;  // For EngineOptions::observer. Scopes get no label.
  // The proxy calls these. `by`: 1 or -1.
  void count(const Served& served);
  void count_reload(bool done) noexcept;                            // A reload of settings; called by the program.
  void active(std::string_view method, bool tls, int by) noexcept;  // Running requests.
  void tunnels(int by) noexcept;                                    // Open ones.
  void count_refused_connection() noexcept;                         // Refused by max_connections_per_client.
  void count(Listener listener, HandshakeFault fault) noexcept;     // A failed handshake.

  // Text exposition format 0.0.4, with once::Metrics of the engine. `connections`: of clients, now.
  [[nodiscard]] std::string text(std::size_t connections) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// PEM files: the certificate followed by its intermediate ones, and its key without a password.
struct Certificate {
  std::string file = {};      // Read at the start and at each reload.
  std::string key_file = {};  // May be the same file.
};

// Where the proxy listens, which service it serves, and what it allows.
struct ProxyOptions {
  // A Unix socket's clients count as 127.0.0.1. The file is made, has listen_mode, and is removed at the end. A lock
  // beside it (its name and ".lock", which stays) shows whether a file that is there has a living owner.
  Address listen = {};
  unsigned listen_mode = 0660;                  // Of the Unix socket's file: who may connect. 0 to 0777.
  std::optional<Certificate> certificate = {};  // Clients must speak TLS 1.2 or later. Empty: no TLS.
  // PEM: authorities. Clients must show a client certificate that one of them has signed, directly or by intermediates;
  // otherwise the handshake fails. Needs `certificate`. Empty: no client certificates.
  // Its subject is Request::principal, for http::Principal::given(): its DER bytes, or empty if it has no name.
  // Upstreams get the certificate in Client-Cert (RFC 9440). A balancer's certificate is used for neither: that of a
  // trusted proxy, or one where the PROXY protocol says that the client speaks TLS with the balancer.
  std::string client_ca_file = {};

  // Proxies in front of this one. From them, X-Forwarded-Proto, -Host and similar headers are passed on, and
  // X-Forwarded-For names the client. From all others they are dropped, and the client is the connecting address.
  std::vector<Network> trusted_proxies = {};
  // Balancers in front of this one. Connections from them, and no others, begin with a PROXY protocol header, version 1
  // or 2. It names the client, which may itself be a trusted proxy.
  std::vector<Network> proxy_protocol = {};

  // At least one, and all with the same Service::path. Proxy::set_upstreams() replaces them. A request goes to the one
  // with the fewest running requests. One that fails is put aside for a while. With TLS its certificate is verified,
  // including the host name.
  std::vector<Service> upstreams = {};
  // PEM: authorities for that. Empty: SSL_CERT_FILE and SSL_CERT_DIR, or the system's.
  std::string upstream_ca_file = {};
  std::optional<Certificate> upstream_certificate = {};  // For upstreams with TLS that ask for one.
  // Begins with a slash. Requested from each upstream every health_interval. An upstream gets requests only if it
  // answers 2xx or 3xx. Empty: no check.
  std::string health_path = {};
  Millis health_interval{5'000};  // Range as for Timeouts. Also the timeout of a check.
  Aside aside = {};               // When an upstream gets no requests for a while.
  // How often the store is searched for unknown operations to ask about (http::Options::reconcile). Range as for
  // Timeouts.
  Millis reconcile_interval{30'000};

  // Where GET /healthz, /readyz and /metrics are answered, to every client that can connect. Use a loopback address, or
  // one of an operators' network. Empty: nowhere.
  std::optional<Address> admin = {};
  std::optional<Certificate> admin_certificate = {};  // TLS for `admin`. May be the same files as `certificate`.
  // Answers requests to `admin` for paths below /v1/ and /console, from any client: it must authenticate them. Bodies
  // are up to max_admin_body_bytes. The request is valid during the call. It must call `done`, at once or later, from
  // any thread. Called from the proxy's threads: must not block and must not throw. Empty: no such paths. With a
  // stream, the connection ends as soon as the client ends or sends anything more, or takes nothing for the time of a
  // head.
  std::function<void(const http::Request& request, Callback<void(OperatorsAnswer)> done)> operators = {};
  static constexpr std::size_t max_admin_body_bytes = std::size_t{2} * 1024 * 1024;  // Longer: 413.
  // Returns an answer to refuse a request for /metrics, or nothing to allow it. Called as `operators` is. Empty: every
  // client may read /metrics.
  std::function<std::optional<http::Answer>(const http::Request& request)> refuse_metrics = {};
  // More text for /metrics, in Prometheus' text format, of families that the proxy does not have. Called as `operators`
  // is: it must not block. Empty: none.
  std::function<std::string()> more_metrics = {};
  std::shared_ptr<Metrics> metrics = {};  // Empty: the proxy's own, without the engine's events.

  Timeouts timeouts = {};  // Of connections on both sides.
  unsigned threads = 0;    // 0: one for each processor. At most 256.

  // Of clients, at least 1. Further ones wait in the kernel's queue.
  std::size_t max_connections = 10'000;
  std::size_t max_connections_per_client = 0;  // Of one address (IPv6: one /64). Further ones are closed. 0: no limit.
  // Memory for bodies of requests with a key, beyond their connection's buffer (16 KiB), and for their answers: in
  // total, and for one client address. A request above it is 503 overloaded. Answers count, but are always kept. At
  // least 1 MiB.
  std::size_t max_buffered_bytes = std::size_t{1} << 30U;
  std::size_t max_buffered_bytes_per_client = std::size_t{1} << 28U;  // For one client address.
  std::size_t max_head_bytes = std::size_t{32} * 1024;                // Of a request and of an answer. 1 KiB to 1 MiB.
  std::size_t max_idle_upstream = 256;  // Idle connections kept to the upstreams, of all threads.

  // Called from the proxy's threads, by several at once. Must not block and must not throw. Empty: not called.
  std::function<void(const Served&)> on_served = {};
  // A sentence for the operator, not for clients: why an upstream is put aside, and that it is back; why TLS handshakes
  // fail, at most every 10 s. Same rules as for on_served.
  std::function<void(std::string_view)> on_notice = {};
};

// Throws Exception(misuse), which names the member that is out of range.
void check(const ProxyOptions& options);
// Throws Exception(misuse) if with these options the rules would trust a client's own claim, or could identify no
// client: http::Principal::given() without client_ca_file, the header Client-Cert with it.
void check(const http::Routes& rules, const ProxyOptions& options);

// The changes of Proxy::set_upstreams(): URLs with their ports, "http://pay:9000".
struct UpstreamChange {
  std::vector<std::string> added = {};    // New ones.
  std::vector<std::string> removed = {};  // They get no new requests.
  std::size_t kept = 0;                   // How many are in both lists.
};

// Runs on its own threads, from its construction to its destruction. Call its methods from any other thread.
class Proxy {
 public:
  // Throws Exception: misuse for options out of range and unusable certificates, unavailable if it cannot listen. The
  // engine must outlive it.
  Proxy(Engine& engine, const http::Routes& rules, ProxyOptions options);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  // Closes all connections, and waits for the store's pending answers (up to Policy::wait, if duplicates wait).
  // Operations at the upstream become ambiguous, so call stop() first.
  ~Proxy();

  [[nodiscard]] std::uint16_t port() const noexcept;        // The port it listens on. 0: a Unix socket.
  [[nodiscard]] std::uint16_t admin_port() const noexcept;  // 0: no admin address.
  [[nodiscard]] std::size_t connections() const noexcept;   // Of clients.
  [[nodiscard]] bool stopping() const noexcept;             // Since stop() was called: /readyz is 503 then.

  // Requests keep the rules in force when their head was read. Requests that begin after this has returned get the new
  // ones. Throws Exception(misuse) for rules that are invalid, alone or with the options; then nothing changes.
  void set_rules(const http::Routes& rules);

  // Asks the upstreams about unknown operations, for an operator: by a GET without a client's headers, so it concerns
  // only those of routes that have http::Options::reconcile and whose clients share their keys. A copy may outlive the
  // proxy; its questions are not_known then.
  [[nodiscard]] const Reconciler& reconciler() const noexcept;

  // Replaces ProxyOptions::upstreams. Requests whose head was read before may still use the earlier upstreams. An
  // upstream that stays (same URL) keeps its connections, running requests, health and time aside.
  // Throws Exception(misuse) for an invalid list, and if the first upstream with TLS finds no authority to trust; then
  // nothing changes.
  UpstreamChange set_upstreams(std::vector<Service> upstreams);

  // Stops listening, closes idle connections, and waits until each running request has finished. False: `limit` was
  // reached first. May be called again.
  bool stop(Millis limit);

  // Reads the certificate files and client_ca_file again, for new connections. Earlier TLS sessions are not resumed.
  // Throws Exception(misuse) if a file cannot be used; then nothing changes.
  void reload_certificates();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace once::proxy
