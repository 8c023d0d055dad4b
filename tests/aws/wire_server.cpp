#include "wire_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

namespace once::aws::testing {

namespace {

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("the test's server: ") + what);
}

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

Key make_key() { return {EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free}; }

void extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  need(extension != nullptr, "no extension");
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate make_certificate(const std::string& name, const Key& key, bool authority, bool expired) {
  Certificate made(X509_new(), X509_free);
  X509_set_version(made.get(), 2);
  static std::atomic<long> serial{1};
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -7200);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), expired ? -3600 : 3600);
  X509_set_pubkey(made.get(), key.get());
  const auto* const text = reinterpret_cast<const unsigned char*>(name.c_str());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8, text, -1, -1, 0);
  extend(made.get(), nullptr, NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
  return made;
}

void sign(const Certificate& certificate, const Certificate& issuer, const Key& key) {
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
  need(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0, "cannot sign");
}

int bind_to_loopback(std::uint16_t& port) {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  need(made >= 0 && bind(made, any, size) == 0 && getsockname(made, any, &size) == 0, "cannot bind");
  port = ntohs(address.sin_port);
  return made;
}

}  // namespace

Identity make_identity(const IdentityOptions& options) {
  static std::atomic<int> made{0};
  const int number = ++made;
  const Key authority_key = make_key();
  const Certificate authority =
      make_certificate(options.authority.empty() ? "Test authority " + std::to_string(number) : options.authority,
                       authority_key, true, false);
  extend(authority.get(), authority.get(), NID_subject_key_identifier, "hash");
  sign(authority, authority, authority_key);
  const Key key = make_key();
  const Certificate certificate = make_certificate(options.name, key, false, options.expired);
  // Which of two authorities of one name it is.
  extend(certificate.get(), authority.get(), NID_authority_key_identifier, "keyid");
  extend(certificate.get(), authority.get(), NID_subject_alt_name,
         "DNS:" + options.name + (options.name == "localhost" ? ",IP:127.0.0.1" : ""));
  sign(certificate, authority, authority_key);

  Identity identity;
  identity.ca_file = std::filesystem::temp_directory_path().string() + "/once_wire_ca_" + std::to_string(getpid()) +
                     "_" + std::to_string(number) + ".pem";
  std::FILE* const file = std::fopen(identity.ca_file.c_str(), "w");
  need(file != nullptr && PEM_write_X509(file, authority.get()) == 1, "cannot write the authority");
  std::fclose(file);
  identity.context = {SSL_CTX_new(TLS_server_method()), [path = identity.ca_file](SSL_CTX* context) {
                        SSL_CTX_free(context);
                        std::filesystem::remove(path);
                      }};
  need(SSL_CTX_use_certificate(identity.context.get(), certificate.get()) == 1 &&
           SSL_CTX_use_PrivateKey(identity.context.get(), key.get()) == 1,
       "no identity");
  return identity;
}

std::string hashed_name(const std::string& file) {
  std::FILE* const in = std::fopen(file.c_str(), "r");
  need(in != nullptr, "no such certificate");
  const Certificate certificate(PEM_read_X509(in, nullptr, nullptr, nullptr), X509_free);
  std::fclose(in);
  need(certificate != nullptr, "no certificate");
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "%08lx.0", X509_subject_name_hash(certificate.get()));
  return name.data();
}

Peer::Peer(int socket, std::size_t n, ssl_ctx_st* context) : number(n), socket_(socket) {
  if (context == nullptr) return;
  ssl_ = {SSL_new(context), SSL_free};
  SSL_set_fd(ssl_.get(), socket);
  if (SSL_accept(ssl_.get()) != 1) cut();
}

Peer::~Peer() { cut(); }

long Peer::receive(char* buffer, std::size_t size) {
  if (socket_ < 0) return 0;
  return ssl_ ? SSL_read(ssl_.get(), buffer, static_cast<int>(size)) : ::recv(socket_, buffer, size, 0);
}

std::optional<std::string> Peer::request() {
  std::array<char, 4096> chunk{};
  while (true) {
    const auto head_end = buffer_.find("\r\n\r\n");
    if (head_end != std::string::npos) {
      std::size_t size = head_end + 4;
      const auto length = buffer_.find("Content-Length: ");
      if (length < head_end) size += std::stoul(buffer_.substr(length + 16, 20));
      if (buffer_.size() >= size) {
        std::string whole = buffer_.substr(0, size);
        buffer_.erase(0, size);
        return whole;
      }
    }
    const long count = receive(chunk.data(), chunk.size());
    if (count <= 0) return std::nullopt;
    buffer_.append(chunk.data(), static_cast<std::size_t>(count));
  }
}

bool Peer::closed_by_client() {
  char byte = 0;
  return buffer_.empty() && receive(&byte, 1) <= 0;
}

void Peer::send(std::string_view bytes) {
  while (!bytes.empty() && socket_ >= 0) {
    const long count = ssl_ ? SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()))
                            : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;  // The client has gone, as it does in some tests.
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void Peer::close() {
  if (ssl_ && socket_ >= 0) SSL_shutdown(ssl_.get());
  cut();
}

void Peer::cut() {
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void Peer::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  cut();
}

void Peer::shut_down() noexcept {
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
}

bool Peer::resumed() const { return SSL_session_reused(ssl_.get()) == 1; }

std::string answer(std::string_view body, std::string_view more_headers) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(more_headers) +
         "\r\n" + std::string(body);
}

Server::Server(std::function<void(Peer&)> serve, std::optional<Identity> identity)
    : serve_(std::move(serve)), identity_(std::move(identity)), socket_(bind_to_loopback(port_)) {
  need(listen(socket_, 1024) == 0, "cannot listen");
  // OpenSSL writes to this server's sockets with write(2), also when the client has gone.
  std::signal(SIGPIPE, SIG_IGN);
  acceptor_ = std::thread([this] { accept(); });
}

Server::~Server() {
  shutdown(socket_, SHUT_RDWR);
  acceptor_.join();
  ::close(socket_);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Peer* peer : peers_) peer->shut_down();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Server::accept() {
  while (true) {
    const int connected = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connected < 0) return;
    const int yes = 1;
    setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const std::size_t number = ++connections_;
    threads_.emplace_back([this, connected, number] {
      Peer peer(connected, number, identity_ ? identity_->context.get() : nullptr);
      {
        const std::lock_guard lock(mutex_);
        peers_.push_back(&peer);
        if (stopping_) peer.shut_down();
      }
      serve_(peer);
      const std::lock_guard lock(mutex_);
      std::erase(peers_, &peer);
    });
  }
}

std::uint16_t closed_port() {
  static std::uint16_t port = 0;
  static const int kept = bind_to_loopback(port);  // Until the end, or another program might listen there.
  (void)kept;
  return port;
}

}  // namespace once::aws::testing
