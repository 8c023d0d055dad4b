#include <once/frontends/proxy.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <latch>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>

#include <once/engine/metrics.hpp>
#include <once/error.hpp>

#include "frontends/proxy/admin.hpp"
#include "frontends/proxy/clients.hpp"
#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/health.hpp"
#include "frontends/proxy/listening.hpp"
#include "frontends/proxy/loop.hpp"
#include "frontends/proxy/names.hpp"
#include "frontends/proxy/reconciling.hpp"
#include "frontends/proxy/services.hpp"
#include "frontends/proxy/session.hpp"
#include "platform/thread.hpp"
#include "text/prometheus.hpp"
#include "tls/context.hpp"

namespace once::proxy {

namespace {

constexpr Millis most_tick{100};
constexpr Millis full_pause{5};  // Between two checks for a free place, when the maximum of connections is open.

ProxyOptions checked(ProxyOptions options) {
  check(options);
  if (options.threads == 0) options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 256U);
  return options;
}

// A deadline is noticed at most an eighth, or a tenth of a second, too late.
Millis tick_for(const Timeouts& t, const http::Routes& rules) {
  Millis shortest = std::min({t.idle, t.head, t.body, t.connect, t.answer, t.tunnel, t.upstream_idle});
  const auto look = [&](const http::Options& own) {
    if (own.answer_timeout != Millis{0}) shortest = std::min(shortest, own.answer_timeout);
  };
  look(rules.otherwise);
  for (const http::Route& route : rules.routes) look(route.options);
  return std::clamp(shortest / 8, Millis{1}, most_tick);
}

}  // namespace

class Proxy::Impl {
 public:
  Impl(Engine& engine, const http::Routes& rules, ProxyOptions options)
      : engine_(engine), options_(checked(std::move(options))) {
    check(rules, options_);
    // Room for a head, and for the bytes that came with it.
    const std::size_t buffer = options_.max_head_bytes + std::size_t{64} * 1024;
    options_.max_idle_upstream = (options_.max_idle_upstream + options_.threads - 1) / options_.threads;
    for (unsigned i = 0; i < options_.threads; ++i) {
      loops_.push_back(std::make_unique<Loop>(tick_for(options_.timeouts, rules), buffer));
    }
    const auto own = for_each_loop(rules);
    for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i]->rules = own[i];
    if (!options_.metrics) options_.metrics = std::make_shared<Metrics>();
    options_.on_served = [metrics = options_.metrics, told = std::move(options_.on_served)](const Served& served) {
      metrics->count(served);
      if (told) told(served);
    };
    clients_.emplace(options_);
    handshakes_.emplace(options_.metrics, options_.on_notice);
    pages_ = {.patience = std::min(options_.timeouts.head, most_admin_patience),
              .engine = &engine,
              .unready = [this] { return unready(); },
              .metrics = [this] { return metrics_text(); },
              .operators = options_.operators,
              .refuse_metrics = options_.refuse_metrics,
              .notice = options_.on_notice};
    reconciling_.emplace(engine, options_, *loops_.front());
    reconciling_->set_rules(own.front());
    const Contexts contexts = load_contexts();
    for (const auto& loop : loops_) {
      loop->reconciler = &reconciling_->reconciler();
      loop->handshakes = &*handshakes_;
      loop->clients = &*clients_;
      loop->services = for_one_loop(services_);
      loop->names = std::make_shared<Names>(*loop);
      take_up(*loop, contexts);
    }
    net::io_context& io = loops_.front()->io;
    acceptor_.emplace(options_.listen.socket.empty()
                          ? listen_on(options_.listen, io)
                          : listen_on(options_.listen, options_.listen_mode, io, socket_file_));
    port_ = port_of(*acceptor_);
    if (options_.admin) {
      admin_acceptor_.emplace(listen_on(*options_.admin, io));
      admin_port_ = port_of(*admin_acceptor_);
    }
    for (const auto& loop : loops_) loop->start();
    watch_new_ones();
    spawn(io, reconciling_->run());
    spawn(io, accept());
    // Continues while the proxy stops.
    if (admin_acceptor_) spawn(io, accept_admin(*loops_.front(), *admin_acceptor_, pages_));
    try {
      for (const auto& loop : loops_) {
        threads_.push_back(start_thread<std::jthread>([&loop] { loop->run(); }));
      }
    } catch (...) {  // No thread could be started: the running ones must not wait for endless work.
      for (const auto& loop : loops_) loop->io.stop();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    for (const auto& loop : loops_) {
      net::post(loop->io, [this, &loop] {
        if (loop == loops_.front()) {
          stop_listening();
          if (admin_acceptor_) close(*admin_acceptor_);
        }
        loop->close_all();
      });
    }
    // Each thread ends when it has no session left. An engine's thread may still be in a callback, which has only the
    // loop's mailbox; ~Loop closes that.
    threads_.clear();
  }

  [[nodiscard]] const Reconciler& reconciler() const noexcept { return reconciling_->reconciler(); }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::uint16_t admin_port() const noexcept { return admin_port_; }
  [[nodiscard]] std::size_t connections() const {
    const std::lock_guard lock(mutex_);
    return sessions_;
  }
  [[nodiscard]] bool stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  void set_rules(const http::Routes& rules) {
    check(rules, options_);
    auto own = for_each_loop(rules);
    const Millis tick = tick_for(options_.timeouts, rules);
    std::latch taken(static_cast<std::ptrdiff_t>(loops_.size()));
    for (std::size_t i = 0; i < loops_.size(); ++i) {
      net::post(loops_[i]->io, [this, &loop = *loops_[i], &own = own[i], &taken, tick] {
        if (&loop == loops_.front().get()) reconciling_->set_rules(own);
        loop.rules = std::move(own);
        loop.set_tick(tick);
        taken.count_down();
      });
    }
    taken.wait();
  }

  UpstreamChange set_upstreams(std::vector<Service> upstreams) {
    const std::lock_guard one_at_a_time(changing_);
    ProxyOptions wanted = options_;
    wanted.upstreams = upstreams;
    check(wanted);
    const auto others =
        std::make_shared<Services>(std::move(upstreams), options_.aside, options_.on_notice, services_.get());
    if (others->any_tls() && !trusted_) trusted_ = load_trusted();
    std::latch taken(static_cast<std::ptrdiff_t>(loops_.size()));
    for (const auto& loop : loops_) {
      net::post(loop->io, [this, &loop, &taken, trusted = trusted_, own = for_one_loop(others)]() mutable {
        if (trusted) loop->trusted = std::move(trusted);
        loop->take_up(std::move(own));
        if (loop == loops_.front()) watch_new_ones();
        taken.count_down();
      });
    }
    taken.wait();
    services_ = others;
    return others->change();
  }

  void reload_certificates() {
    const std::lock_guard one_at_a_time(changing_);
    const Contexts contexts = load_contexts();
    for (const auto& loop : loops_) {
      net::post(loop->io, [this, contexts, &loop] { take_up(*loop, contexts); });
    }
  }

  bool stop(Millis limit) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_) {
        stopping_ = true;
        net::post(loops_.front()->io, [this] { stop_listening(); });
        for (const auto& loop : loops_) net::post(loop->io, [&loop] { loop->close_idle(); });
      }
    }
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, limit, [&] { return sessions_ == 0 && acceptor_closed_; });
  }

 private:
  // On the first loop.
  void stop_listening() {
    close(*acceptor_);
    socket_file_.remove();
  }

  [[nodiscard]] std::string unready() const {
    if (stopping()) return "stopping";
    return loops_.front()->services->any_available(Steady::now()) ? "" : "no upstream is available";
  }

  // On the first loop's thread.
  [[nodiscard]] std::string metrics_text() const {
    text::Exposition out;
    out.family("once_proxy_buffered_bytes", "gauge", "Memory for bodies that are read whole.");
    out.sample({}, clients_->buffered_bytes());
    out.family("once_proxy_certificate_expiry_timestamp_seconds", "gauge",
               "When the first certificate of the file expires, since 1970.");
    const auto add = [&](std::string_view name, const auto& context) {
      const auto until = context ? tls::valid_until(*context->get()) : std::nullopt;
      if (!until) return;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(until->time_since_epoch());
      out.sample({{"certificate", name}}, seconds.count());
    };
    add("tls-cert", loops_.front()->certificate);
    add("admin-tls-cert", pages_.certificate);
    add("upstream-cert", loops_.front()->trusted);
    return options_.metrics->text(connections()) + loops_.front()->services->metrics_text(Steady::now()) +
           std::move(out).take() + process_metrics() +
           (options_.more_metrics ? options_.more_metrics() : std::string());
  }

  // Each loop has its own, so that requests on different threads share no reference count.
  [[nodiscard]] std::vector<std::shared_ptr<http::Endpoints>> for_each_loop(const http::Routes& rules) const {
    std::vector<std::shared_ptr<http::Endpoints>> made;
    while (made.size() < loops_.size()) made.push_back(std::make_shared<http::Endpoints>(engine_, rules));
    return made;
  }

  // The same, with its own reference count.
  static std::shared_ptr<Services> for_one_loop(const std::shared_ptr<Services>& all) {
    return {all.get(), [all](Services*) {}};
  }

  // On the first loop's thread, or before there is one.
  void watch_new_ones() {
    if (options_.health_path.empty()) return;
    Loop& loop = *loops_.front();
    for (std::size_t i = 0; i < loop.services->size(); ++i) {
      const std::uint64_t id = loop.services->id(i);
      if (!watched_.insert(id).second) continue;
      Task<void> watching = watch(id);
      spawn(loop.io, std::move(watching));
    }
  }
  Task<void> watch(std::uint64_t id) {
    co_await watch_health(*loops_.front(), options_, id);
    watched_.erase(id);
  }

  struct Contexts {
    std::shared_ptr<tls::ServerContext> certificate;
    std::shared_ptr<const tls::ServerContext> admin_certificate;
    std::shared_ptr<const tls::ClientContext> trusted;
  };
  // On the loop's thread, or before there is one.
  void take_up(Loop& loop, const Contexts& contexts) {
    loop.certificate = contexts.certificate;
    if (contexts.trusted) loop.trusted = contexts.trusted;
    loop.tickets.clear();  // They were verified with the earlier certificates.
    if (&loop == loops_.front().get()) pages_.certificate = contexts.admin_certificate;
  }

  [[nodiscard]] Contexts load_contexts() {
    Contexts contexts;
    const auto load = [](const std::optional<Certificate>& files) {
      return files ? std::make_shared<tls::ServerContext>(files->file, files->key_file) : nullptr;
    };
    contexts.certificate = load(options_.certificate);
    const std::string& authorities = options_.client_ca_file;
    if (!authorities.empty()) contexts.certificate->require_certificate(authorities, "--client-ca");
    contexts.admin_certificate = load(options_.admin_certificate);
    if (services_->any_tls()) contexts.trusted = trusted_ = load_trusted();
    return contexts;
  }

  [[nodiscard]] std::shared_ptr<const tls::ClientContext> load_trusted() const {
    const std::string option = "--upstream-ca";
    const auto trusted = std::make_shared<tls::ClientContext>(tls::Trust{.file = options_.upstream_ca_file,
                                                                         .origin = option,
                                                                         .option = option,
                                                                         .certificate_option = "--upstream-cert"});
    if (const auto& own = options_.upstream_certificate) trusted->show_certificate(own->file, own->key_file);
    trusted->offer_http_1_1();
    return trusted;
  }

  // Distributes connections round-robin over the threads.
  Task<void> accept() {
    for (std::size_t turn = 0;; ++turn) {
      co_await room();
      Loop& loop = *loops_[turn % loops_.size()];
      Socket socket(loop.io);
      if (!co_await accept_one(*acceptor_, socket)) break;
      {
        const std::lock_guard lock(mutex_);
        ++sessions_;
      }
      net::post(loop.io, [this, &loop, socket = std::move(socket)]() mutable {
        Task<void> life = session(loop, std::move(socket));
        spawn(loop.io, std::move(life));
      });
    }
    const std::lock_guard lock(mutex_);
    acceptor_closed_ = true;
    ended_.notify_all();
  }

  // New clients wait in the kernel's queue meanwhile.
  Task<void> room() {
    Timer pause(acceptor_->get_executor());
    while (connections() >= options_.max_connections && acceptor_->is_open()) {
      error_code ignored;
      pause.expires_after(full_pause);
      co_await pause.async_wait(net::redirect_error(use_task, ignored));
    }
  }

  Task<void> session(Loop& loop, Socket socket) {
    {
      const auto session = std::make_shared<Session>(loop, std::move(socket), options_);
      try {
        co_await session->run();
      } catch (const Exception&) {
        // An exception of the rules or the engine about this request. No exchange is running, so the connection is
        // closed.
      }
    }
    const std::lock_guard lock(mutex_);
    --sessions_;
    ended_.notify_all();
  }

  Engine& engine_;
  ProxyOptions options_;
  std::mutex changing_;  // Guards the following members, of which the loops have copies.
  std::shared_ptr<Services> services_ =
      std::make_shared<Services>(options_.upstreams, options_.aside, options_.on_notice);
  std::shared_ptr<const tls::ClientContext> trusted_;  // Null: not needed yet.
  std::optional<Handshakes> handshakes_;
  std::optional<Clients> clients_;  // Before the loops, whose sessions use it.
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<Reconciling> reconciling_;
  std::set<std::uint64_t> watched_;  // Upstreams, by their ids. The first loop's.
  AdminPages pages_;
  SocketFile socket_file_;            // Of acceptor_, if that is a Unix socket.
  std::optional<Acceptor> acceptor_;  // Both on the first loop.
  std::optional<Acceptor> admin_acceptor_;
  std::uint16_t port_ = 0;
  std::uint16_t admin_port_ = 0;
  mutable std::mutex mutex_;  // Of what follows.
  std::condition_variable ended_;
  std::size_t sessions_ = 0;
  bool stopping_ = false;
  bool acceptor_closed_ = false;
  std::vector<std::jthread> threads_;
};

Proxy::Proxy(Engine& engine, const http::Routes& rules, ProxyOptions options)
    : impl_(with_descriptors([&] { return std::make_unique<Impl>(engine, rules, std::move(options)); })) {}
Proxy::~Proxy() = default;

const Reconciler& Proxy::reconciler() const noexcept { return impl_->reconciler(); }
std::uint16_t Proxy::port() const noexcept { return impl_->port(); }
std::uint16_t Proxy::admin_port() const noexcept { return impl_->admin_port(); }
std::size_t Proxy::connections() const noexcept { return impl_->connections(); }
bool Proxy::stopping() const noexcept { return impl_->stopping(); }
void Proxy::set_rules(const http::Routes& rules) { impl_->set_rules(rules); }
bool Proxy::stop(Millis limit) { return impl_->stop(limit); }
UpstreamChange Proxy::set_upstreams(std::vector<Service> upstreams) {
  return impl_->set_upstreams(std::move(upstreams));
}
void Proxy::reload_certificates() { impl_->reload_certificates(); }

}  // namespace once::proxy
