#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include <once/engine/metrics.hpp>
#include <once/frontends/proxy.hpp>

#include "text/prometheus.hpp"

namespace once::proxy {

namespace {

// OpenTelemetry's advice for http.server.request.duration and http.client.request.duration, in seconds.
constexpr std::array bounds{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0};

constexpr std::size_t most_label_sets = 2'000;  // Of a histogram (OpenTelemetry, metrics SDK, cardinality limits).

// Clients may send any method, but a label needs few values.
constexpr std::array<std::string_view, 10> methods{"GET",    "HEAD",    "POST",    "PUT",   "PATCH",
                                                   "DELETE", "OPTIONS", "CONNECT", "TRACE", "_OTHER"};
std::size_t index_of(std::string_view method) {
  const auto* const at = std::ranges::find(methods, method);
  return std::min(methods.size() - 1, static_cast<std::size_t>(at - methods.begin()));
}

// Of a histogram. `status` 0: `cause` is used instead.
template <class Text>
struct Labels {
  std::size_t method = 0;
  unsigned status = 0;
  Text cause;
  Text route;
};
using Seen = Labels<std::string_view>;

struct Before {
  using is_transparent = void;
  template <class A, class B>
  bool operator()(const Labels<A>& a, const Labels<B>& b) const noexcept {
    if (a.method != b.method) return a.method < b.method;
    if (a.status != b.status) return a.status < b.status;
    const std::string_view cause = a.cause;
    if (const int order = cause.compare(b.cause); order != 0) return order < 0;
    return std::string_view(a.route) < std::string_view(b.route);
  }
};

class Family {
 public:
  void add(const Seen& labels, std::chrono::nanoseconds took) {
    auto at = all_.find(labels);
    if (at == all_.end()) {
      if (all_.size() >= most_label_sets) {
        has_others_ = true;
        return others_.add(took);
      }
      at = all_.try_emplace({labels.method, labels.status, std::string(labels.cause), std::string(labels.route)}).first;
    }
    at->second.add(took);
  }

  void write(text::Exposition& out) const {
    for (const auto& [labels, histogram] : all_) {
      const std::string status = labels.status == 0 ? std::string() : std::to_string(labels.status);
      histogram.write(out, {{"http_request_method", methods[labels.method]},
                            {"http_response_status_code", status},
                            {"error_type", labels.cause},
                            {"http_route", labels.route}});
    }
    if (has_others_) others_.write(out, {{"otel_metric_overflow", "true"}});
  }

 private:
  std::map<Labels<std::string>, text::Histogram<bounds>, Before> all_;
  text::Histogram<bounds> others_;
  bool has_others_ = false;
};

constexpr std::size_t outcomes = static_cast<std::size_t>(RequestOutcome::error) + 1;
constexpr std::size_t faults = static_cast<std::size_t>(HandshakeFault::other) + 1;

}  // namespace

class Metrics::Impl {
 public:
  void count(const once::Event& event) noexcept { engine_(event); }

  void count(const Served& served) {
    ++outcomes_[static_cast<std::size_t>(served.outcome)];
    const std::size_t method = index_of(served.method);
    const std::lock_guard lock(mutex_);
    if (!served.fate.empty()) ++fates_[std::string(served.fate)];
    const auto add = [&](Family& family, unsigned status, std::string_view route, std::chrono::nanoseconds took) {
      family.add({method, status, status == 0 ? served.cause : std::string_view(), route}, took);
    };
    add(server_, served.status, served.route, served.took);
    if (served.upstream_took.count() != 0) add(client_, served.upstream_status, {}, served.upstream_took);
  }

  void active(std::string_view method, bool tls, int by) noexcept { active_[tls ? 1 : 0][index_of(method)] += by; }
  void tunnels(int by) noexcept { tunnels_ += by; }
  void count_refused_connection() noexcept { ++refused_connections_; }

  void count(Listener listener, HandshakeFault fault) {
    ++handshakes_[static_cast<std::size_t>(listener)][static_cast<std::size_t>(fault)];
  }

  void count_reload(bool done) { ++(done ? reloads_ : failed_reloads_); }

  [[nodiscard]] std::string text(std::size_t connections) const {
    text::Exposition out;
    out.family("once_requests_total", "counter", "Requests, by outcome.");
    for (std::size_t i = 0; i < outcomes; ++i) {
      out.sample({{"outcome", to_string(static_cast<RequestOutcome>(i))}}, outcomes_[i].load());
    }
    out.family("once_proxy_reloads_total", "counter", "Reloads of the settings, by result.");
    out.sample({{"result", "done"}}, reloads_.load());
    out.sample({{"result", "failed"}}, failed_reloads_.load());
    out.family("once_proxy_connections", "gauge", "Open connections of clients.");
    out.sample({}, connections);
    out.family("once_proxy_refused_connections_total", "counter",
               "Connections refused because the client already had as many as allowed.");
    out.sample({}, refused_connections_.load());
    out.family("once_proxy_tunnels", "gauge", "Open WebSocket connections.");
    out.sample({}, tunnels_.load());
    out.family("once_proxy_tls_handshake_failures_total", "counter",
               "TLS handshakes with clients that failed, by cause.");
    for (std::size_t listener = 0; listener < handshakes_.size(); ++listener) {
      for (std::size_t fault = 0; fault < faults; ++fault) {
        out.sample({{"listener", to_string(static_cast<Listener>(listener))},
                    {"reason", to_string(static_cast<HandshakeFault>(fault))}},
                   handshakes_[listener][fault].load());
      }
    }
    out.family("http_server_active_requests", "gauge", "Requests being processed.");
    for (std::size_t tls = 0; tls < active_.size(); ++tls) {
      for (std::size_t method = 0; method < methods.size(); ++method) {
        out.sample({{"http_request_method", methods[method]}, {"url_scheme", tls == 1 ? "https" : "http"}},
                   active_[tls][method].load());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      out.family("once_proxy_operations_total", "counter", "Operations that ran, by what happened to their claim.");
      for (const auto& [fate, number] : fates_) out.sample({{"fate", fate}}, number);
      out.family("http_server_request_duration_seconds", "histogram",
                 "From a request's head to the end of its answer.");
      server_.write(out);
      out.family("http_client_request_duration_seconds", "histogram",
                 "Duration of requests to the upstream, until its answer.");
      client_.write(out);
    }
    return std::move(out).take() + engine_.text();
  }

 private:
  std::array<std::array<std::atomic<std::int64_t>, methods.size()>, 2> active_{};  // Plain, and with TLS.
  std::atomic<std::int64_t> tunnels_{0};
  std::atomic<std::uint64_t> refused_connections_{0};
  std::array<std::atomic<std::uint64_t>, outcomes> outcomes_{};
  std::array<std::array<std::atomic<std::uint64_t>, faults>, 2> handshakes_{};  // By listener.
  std::atomic<std::uint64_t> reloads_{0};
  std::atomic<std::uint64_t> failed_reloads_{0};
  const once::Metrics engine_{{.max_scopes = 0}};  // A scope says who the client is.
  mutable std::mutex mutex_;                       // Of what follows.
  std::map<std::string, std::uint64_t> fates_;
  Family server_;
  Family client_;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;
void Metrics::count(const once::Event& event) noexcept { impl_->count(event); }
void Metrics::count(const Served& served) { impl_->count(served); }
void Metrics::active(std::string_view method, bool tls, int by) noexcept { impl_->active(method, tls, by); }
void Metrics::tunnels(int by) noexcept { impl_->tunnels(by); }
void Metrics::count_refused_connection() noexcept { impl_->count_refused_connection(); }
void Metrics::count(Listener listener, HandshakeFault fault) noexcept { impl_->count(listener, fault); }
void Metrics::count_reload(bool done) noexcept { impl_->count_reload(done); }
std::string Metrics::text(std::size_t connections) const { return impl_->text(connections); }

}  // namespace once::proxy
