// Servers with TLS, and clients that believe in some authority and no other.
#pragma once

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "fake_aws/certificate.hpp"
#include "proxy_test.hpp"

namespace once::proxy {

using once::testing::FakeServerOptions;

using Context = std::shared_ptr<SSL_CTX>;
struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// A server of the tests, and who vouches for it.
struct Identity {
  explicit Identity(FakeServerOptions::Certificate kind = FakeServerOptions::Certificate::good)
      : context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free),
        authority(once::testing::fake::equip(context.get(), kind)) {}
  Context context;
  std::string authority;
};

class ProxyTlsTest : public ProxyTest {
 protected:
  ProxyTlsTest() { std::signal(SIGPIPE, SIG_IGN); }  // The tests' own end writes as OpenSSL does.
  ~ProxyTlsTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string write_file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  [[nodiscard]] Certificate write_files(const Identity& identity) const {
    const File certificate(std::fopen(path("cert.pem").c_str(), "w"));
    const File key(std::fopen(path("key.pem").c_str(), "w"));
    PEM_write_X509(certificate.get(), SSL_CTX_get0_certificate(identity.context.get()));
    PEM_write_PrivateKey(key.get(), SSL_CTX_get0_privatekey(identity.context.get()), nullptr, nullptr, 0, nullptr,
                         nullptr);
    return {.file = path("cert.pem"), .key_file = path("key.pem")};
  }
  // Believes in this authority and no other.
  [[nodiscard]] Context believing(const std::string& authority) const {
    Context context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_load_verify_file(context.get(), write_file("ca.pem", authority).c_str());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    return context;
  }
  // An upstream that speaks TLS before the script begins.
  [[nodiscard]] Upstream::Script secured(const Identity& identity, Upstream::Script script) {
    return [context = identity.context, script = std::move(script)](Line& line) {
      if (line.begin_tls(context.get(), true)) script(line);
    };
  }
  void trust_upstream(const std::string& authority) {
    upstream_tls = true;
    options.upstream_ca_file = write_file("upstream-ca.pem", authority);
    listen_to_notices();
  }
  void listen_to_notices() {
    options.metrics = std::make_shared<Metrics>();
    options.on_notice = [this](std::string_view text) {
      const std::lock_guard lock(mutex);
      notices += std::string(text) + '\n';
    };
  }
  // Waits until so many handshakes failed for that reason; false if they never do.
  [[nodiscard]] bool counted(const std::string& reason, const std::string& listener = "clients", int count = 1) const {
    const std::string line = "once_proxy_tls_handshake_failures_total{listener=\"" + listener + "\",reason=\"" +
                             reason + "\"} " + std::to_string(count) + '\n';
    const auto until = std::chrono::steady_clock::now() + patience;
    while (options.metrics->text(0).find(line) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // Between two looks, not in place of one.
    }
    return true;
  }
  std::string noticed() {
    const std::lock_guard lock(mutex);
    return notices;
  }

  std::string notices;

 private:
  static std::filesystem::path make_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "once-tls-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
    return name;
  }
  std::filesystem::path folder_ = make_folder();
};

}  // namespace once::proxy
