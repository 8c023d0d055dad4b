#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <boost/asio/post.hpp>

#include <once/frontends/admin.hpp>

#include "frontends/proxy/admin.hpp"
#include "frontends/proxy/handshakes.hpp"
#include "frontends/proxy/listening.hpp"
#include "platform/thread.hpp"

namespace once::proxy {

class AdminServer::Impl {
 public:
  Impl(Engine& engine, AdminOptions options)
      : files_(std::move(options.certificate)),
        client_ca_file_(std::move(options.client_ca_file)),
        handshakes_(std::make_shared<Metrics>(), std::move(options.on_notice)),
        pages_{.certificate = load(),
               .only_user = options.only_user,
               .names_processes = options.names_processes,
               .names_certificates = !client_ca_file_.empty(),
               .listener = Listener::clients,
               .patience = most_admin_patience,
               .idle = options.idle,
               .most_connections = options.most_connections,
               .engine = &engine,
               .probes_writes = options.probes_writes,
               .unready = std::move(options.unready),
               .metrics = std::move(options.metrics),
               .operators = std::move(options.operators),
               .refuse_metrics = std::move(options.refuse_metrics)},
        acceptor_(acceptor_for(options)),
        port_(port_of(acceptor_)) {
    loop_.handshakes = &handshakes_;
    loop_.start();
    spawn(loop_.io, accept_admin(loop_, acceptor_, pages_));
    thread_ = start_thread<std::jthread>([this] { loop_.run(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    net::post(loop_.io, [this] {
      Task<void> end = finish();
      spawn(loop_.io, std::move(end));
    });
    thread_.join();
    socket_file_.remove();
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

  void reload_certificates() {
    net::post(loop_.io, [this, certificate = load()]() mutable { pages_.certificate = std::move(certificate); });
  }

 private:
  [[nodiscard]] std::shared_ptr<const tls::ServerContext> load() const {
    if (!files_) return nullptr;
    auto context = std::make_shared<tls::ServerContext>(files_->file, files_->key_file);
    if (!client_ca_file_.empty()) context->require_certificate(client_ca_file_, "--client-ca");
    return context;
  }

  Acceptor acceptor_for(const AdminOptions& options) {
    if (options.socket) return take_listening(*options.socket, loop_.io);
    if (options.listen.socket.empty()) return listen_on(options.listen, loop_.io);
    return listen_on(options.listen, options.listen_mode, loop_.io, socket_file_);
  }

  // Answers that are there already are sent; whoever gives them was told of the end before.
  Task<void> finish() {
    close(acceptor_);
    pages_.is_ending = true;
    for (Connection* const client : pages_.reading) client->close();
    const auto until = Steady::now() + most_grace;
    while (pages_.connections > 0 && Steady::now() < until) {
      Task<void> pause = loop_.sleep(Millis{1});
      co_await std::move(pause);
    }
    loop_.close_all();
  }

  static constexpr Millis most_grace{1'000};
  static constexpr Millis tick{100};
  static constexpr std::size_t buffer_bytes = std::size_t{64} * 1024;  // A head, and the bytes that came with it.

  const std::optional<Certificate> files_;
  const std::string client_ca_file_;
  Handshakes handshakes_;
  AdminPages pages_;
  Loop loop_{tick, buffer_bytes};  // Its coroutines use the pages.
  SocketFile socket_file_;
  Acceptor acceptor_;
  const std::uint16_t port_;
  std::jthread thread_;
};

AdminServer::AdminServer(Engine& engine, AdminOptions options)
    : impl_(with_descriptors([&] { return std::make_unique<Impl>(engine, std::move(options)); })) {}
AdminServer::~AdminServer() = default;
void AdminServer::reload_certificates() { impl_->reload_certificates(); }
std::uint16_t AdminServer::port() const noexcept { return impl_->port(); }

}  // namespace once::proxy
