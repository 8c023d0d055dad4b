#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <utility>

#include <once/frontends/proxy.hpp>

namespace once::proxy {

namespace {

// OpenTelemetry's advice for http.server.request.duration and http.client.request.duration, in seconds.
constexpr std::array bounds{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0};

constexpr std::size_t most_label_sets = 2'000;  // Of a histogram (OpenTelemetry, metrics SDK, cardinality limits).

struct Histogram {
  std::array<std::uint64_t, bounds.size()> buckets{};  // Not cumulative; text() adds them up.
  std::uint64_t count = 0;
  std::chrono::nanoseconds sum{0};

  void add(std::chrono::nanoseconds took) {
    const double seconds = std::chrono::duration<double>(took).count();
    const auto at = std::ranges::lower_bound(bounds, seconds);
    if (at != bounds.end()) ++buckets[static_cast<std::size_t>(at - bounds.begin())];
    ++count;
    sum += took;
  }
};

// Clients may send any method, but a label needs few values.
constexpr std::array<std::string_view, 10> methods{"GET",    "HEAD",    "POST",    "PUT",   "PATCH",
                                                   "DELETE", "OPTIONS", "CONNECT", "TRACE", "_OTHER"};
std::size_t index_of(std::string_view method) {
  const auto* const at = std::ranges::find(methods, method);
  return std::min(methods.size() - 1, static_cast<std::size_t>(at - methods.begin()));
}

std::string text_of(double number) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return {digits.data(), end};
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
      if (all_.size() >= most_label_sets) return others_.add(took);
      at = all_.try_emplace({labels.method, labels.status, std::string(labels.cause), std::string(labels.route)}).first;
    }
    at->second.add(took);
  }

  void write(std::string& out, std::string_view name) const {
    for (const auto& [labels, histogram] : all_) {
      std::string inner = "http_request_method=\"" + std::string(methods[labels.method]) + "\"";
      if (labels.status != 0) inner += ",http_response_status_code=\"" + std::to_string(labels.status) + "\"";
      if (!labels.cause.empty()) inner += ",error_type=\"" + labels.cause + "\"";
      if (!labels.route.empty()) inner += ",http_route=\"" + labels.route + "\"";
      write(out, name, inner, histogram);
    }
    if (others_.count != 0) write(out, name, "otel_metric_overflow=\"true\"", others_);
  }

 private:
  static void write(std::string& out, std::string_view name, const std::string& labels, const Histogram& histogram) {
    const auto line = [&](std::string_view suffix, const std::string& more, const std::string& value) {
      out += name;
      out += suffix;
      out += '{' + labels + more + "} " + value + '\n';
    };
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      below += histogram.buckets[i];
      line("_bucket", ",le=\"" + text_of(bounds[i]) + "\"", std::to_string(below));
    }
    line("_bucket", ",le=\"+Inf\"", std::to_string(histogram.count));
    line("_sum", {}, text_of(std::chrono::duration<double>(histogram.sum).count()));
    line("_count", {}, std::to_string(histogram.count));
  }

  std::map<Labels<std::string>, Histogram, Before> all_;
  Histogram others_;
};

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += "# HELP ";
  out += name;
  out += ' ';
  out += help;
  out += "\n# TYPE ";
  out += name;
  out += ' ';
  out += type;
  out += '\n';
}

constexpr std::size_t outcomes = static_cast<std::size_t>(RequestOutcome::error) + 1;
constexpr std::size_t faults = static_cast<std::size_t>(HandshakeFault::other) + 1;
constexpr std::size_t event_kinds = static_cast<std::size_t>(EventKind::store_error) + 1;

}  // namespace

class Metrics::Impl {
 public:
  void count(const once::Event& event) { ++events_[static_cast<std::size_t>(event.kind)]; }

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
    std::string out;
    out.reserve(8 * 1024);
    head(out, "once_requests_total", "counter", "Requests, by outcome.");
    for (std::size_t i = 0; i < outcomes; ++i) {
      add(out, "once_requests_total", "outcome", to_string(static_cast<RequestOutcome>(i)), outcomes_[i]);
    }
    head(out, "once_engine_events_total", "counter", "Events of the engine, by kind.");
    for (std::size_t i = 0; i < event_kinds; ++i) {
      add(out, "once_engine_events_total", "event", to_string(static_cast<EventKind>(i)), events_[i]);
    }
    head(out, "once_proxy_reloads_total", "counter", "Reloads of the settings, by result.");
    add(out, "once_proxy_reloads_total", "result", "done", reloads_);
    add(out, "once_proxy_reloads_total", "result", "failed", failed_reloads_);
    head(out, "once_proxy_connections", "gauge", "Open connections of clients.");
    out += "once_proxy_connections " + std::to_string(connections) + '\n';
    head(out, "once_proxy_refused_connections_total", "counter",
         "Connections refused because the client already had as many as allowed.");
    out += "once_proxy_refused_connections_total " + std::to_string(refused_connections_) + '\n';
    head(out, "once_proxy_tunnels", "gauge", "Open WebSocket connections.");
    out += "once_proxy_tunnels " + std::to_string(tunnels_) + '\n';
    head(out, "once_proxy_tls_handshake_failures_total", "counter",
         "TLS handshakes with clients that failed, by cause.");
    for (std::size_t listener = 0; listener < handshakes_.size(); ++listener) {
      for (std::size_t fault = 0; fault < faults; ++fault) {
        out += "once_proxy_tls_handshake_failures_total{listener=\"";
        out += to_string(static_cast<Listener>(listener));
        out += "\",reason=\"";
        out += to_string(static_cast<HandshakeFault>(fault));
        out += "\"} " + std::to_string(handshakes_[listener][fault]) + '\n';
      }
    }
    head(out, "http_server_active_requests", "gauge", "Requests being processed.");
    for (std::size_t tls = 0; tls < active_.size(); ++tls) {
      for (std::size_t method = 0; method < methods.size(); ++method) {
        const std::int64_t number = active_[tls][method];
        out += "http_server_active_requests{http_request_method=\"" + std::string(methods[method]) +
               "\",url_scheme=\"" + (tls == 1 ? "https" : "http") + "\"} " + std::to_string(number) + '\n';
      }
    }
    const std::lock_guard lock(mutex_);
    head(out, "once_operations_total", "counter", "Operations that ran, by what happened to their claim.");
    for (const auto& [fate, number] : fates_) add(out, "once_operations_total", "fate", fate, number);
    head(out, "http_server_request_duration_seconds", "histogram", "From a request's head to the end of its answer.");
    server_.write(out, "http_server_request_duration_seconds");
    head(out, "http_client_request_duration_seconds", "histogram",
         "Duration of requests to the upstream, until its answer.");
    client_.write(out, "http_client_request_duration_seconds");
    return out;
  }

 private:
  static void add(std::string& out, std::string_view name, std::string_view label, std::string_view value,
                  std::uint64_t number) {
    out += name;
    out += '{';
    out += label;
    out += "=\"";
    out += value;
    out += "\"} " + std::to_string(number) + '\n';
  }

  std::array<std::array<std::atomic<std::int64_t>, methods.size()>, 2> active_{};  // Plain, and with TLS.
  std::atomic<std::int64_t> tunnels_{0};
  std::atomic<std::uint64_t> refused_connections_{0};
  std::array<std::atomic<std::uint64_t>, outcomes> outcomes_{};
  std::array<std::atomic<std::uint64_t>, event_kinds> events_{};
  std::array<std::array<std::atomic<std::uint64_t>, faults>, 2> handshakes_{};  // By listener.
  std::atomic<std::uint64_t> reloads_{0};
  std::atomic<std::uint64_t> failed_reloads_{0};
  mutable std::mutex mutex_;  // Of what follows.
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
