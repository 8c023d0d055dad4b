// Files of many certificates to trust, as Red Hat's systems have one and AWS_CA_BUNDLE may name one.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <once/error.hpp>

#include "aws/http_client.hpp"
#include "platform/wait.hpp"
#include "tls/context.hpp"
#include "tls/stream.hpp"
#include "wire_server.hpp"

namespace once::aws {
namespace wire_bundle_test {

using ::testing::HasSubstr;
using testing::Peer;
using testing::Server;

std::string read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class BundleFile {
 public:
  explicit BundleFile(const std::string& text) { std::ofstream(path) << text; }
  ~BundleFile() { std::filesystem::remove(path); }
  BundleFile(const BundleFile&) = delete;
  BundleFile& operator=(const BundleFile&) = delete;

  const std::string path =
      std::filesystem::temp_directory_path().string() + "/once_wire_bundle_" + std::to_string(getpid()) + ".pem";
};

void serve(Peer& peer) {
  while (peer.request()) peer.send(testing::answer("yes"));
}

HttpAnswer ask(HttpClient& client, const Server& server) {
  HttpRequest request;
  request.method = "POST";
  request.tls = true;
  request.host = "localhost";
  request.port = server.port();
  request.target = "/";
  request.timeout = Millis{20'000};
  return wait_for<HttpAnswer>(
      [&](Callback<void(HttpAnswer)> done) { client.send(std::move(request), std::move(done)); });
}

std::string error_with(const std::string& ca_file, const Server& server) {
  const HttpAnswer got = ask(*make_http_client({.ca_file = ca_file}), server);
  return got.error ? got.error->message : "none";
}

bool handshake(const tls::ClientContext& context, std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool good = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (good) {
    tls::Ticket ticket;
    tls::SocketStream stream(socket, context, "localhost", ticket);
    tls::Step step = stream.handshake();
    while (step == tls::Step::more || step == tls::Step::room) {
      pollfd ready{
          .fd = socket, .events = static_cast<short>(step == tls::Step::more ? POLLIN : POLLOUT), .revents = 0};
      ::poll(&ready, 1, 20'000);
      step = stream.handshake();
    }
    good = step == tls::Step::done;
  }
  ::close(socket);
  return good;
}

TEST(WireBundle, AnyOfManyIsFound) {
  std::vector<testing::Identity> identities;
  std::string text = "# Text between the certificates is no part of them.\n\n";
  for (int i = 0; i < 5; ++i) {
    identities.push_back(testing::make_identity());
    text += "# Authority " + std::to_string(i) + "\n" + read(identities.back().ca_file) + "\n";
  }
  const BundleFile bundle(text);
  const auto client = make_http_client({.ca_file = bundle.path});
  for (const auto& identity : identities) {
    const Server server(serve, identity);
    EXPECT_EQ(ask(*client, server).body, "yes");
    EXPECT_EQ(ask(*client, server).body, "yes") << "with what the first handshake has found";
  }
  const Server stranger(serve, testing::make_identity());
  EXPECT_THAT(error_with(bundle.path, stranger), HasSubstr("unable to get local issuer certificate"));
}

TEST(WireBundle, TwoOfOneNameAreToldApartByTheirKeys) {
  const std::array identities{testing::make_identity({.authority = "Renewed authority"}),
                              testing::make_identity({.authority = "Renewed authority"}),
                              testing::make_identity({.authority = "Renewed authority"})};
  const BundleFile bundle(read(identities[0].ca_file) + read(identities[1].ca_file));
  for (const std::size_t trusted : {0U, 1U}) {
    const Server server(serve, identities[trusted]);
    EXPECT_EQ(ask(*make_http_client({.ca_file = bundle.path}), server).body, "yes") << trusted;
  }
  const Server stranger(serve, identities[2]);
  EXPECT_NE(error_with(bundle.path, stranger), "none");
}

TEST(WireBundle, ManyHandshakesAtOnceFindTheSameOne) {
  const auto identity = testing::make_identity();
  const BundleFile bundle(read(testing::make_identity().ca_file) + read(identity.ca_file));
  const Server server(serve, identity);
  const tls::ClientContext context({.file = bundle.path, .origin = "a test", .option = "nothing"});
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { good += handshake(context, server.port()) ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8);
}

TEST(WireBundle, OnesThatAreNoneAreRefused) {
  const auto identity = testing::make_identity();
  const Server server(serve, identity);
  const std::string good = read(identity.ca_file);
  const std::string begin = "-----BEGIN CERTIFICATE-----\n";
  const std::string end = "-----END CERTIFICATE-----\n";
  for (const std::string& text : {std::string(), std::string("no certificate\n"), good.substr(0, good.size() / 2),
                                  good + begin + "AAAA\n" + end,                  // No sequence.
                                  good + begin + "MAAwAA==\n" + end,              // One without content.
                                  good + begin + "MIAwgAAA\n" + end,              // One without a length.
                                  good + begin + "MIIBAAAwggEAAAA=\n" + end,      // One that is cut off.
                                  good + begin + "MAowCAIBATAAMAAwAA==\n" + end,  // One that ends before the name.
                                  good + begin + "!!!\n" + end}) {
    const BundleFile bundle(text);
    EXPECT_THAT(error_with(bundle.path, server), HasSubstr("the certificates to trust cannot be read from")) << text;
  }
  const BundleFile with_others("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n" + good);
  EXPECT_EQ(error_with(with_others.path, server), "none");
}

}  // namespace wire_bundle_test
}  // namespace once::aws
