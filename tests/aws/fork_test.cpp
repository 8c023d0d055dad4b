// fork() with an open client: a separate program, because the thread sanitizer allows no thread in the child then.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "aws/http_client.hpp"
#include "platform/wait.hpp"
#include "wire_server.hpp"

namespace once::aws {
namespace {

using testing::answer;
using testing::Peer;
using testing::Server;

HttpAnswer exchange(HttpClient& client, const Server& server) {
  HttpRequest request;
  request.method = "POST";
  request.tls = false;
  request.host = "127.0.0.1";
  request.port = server.port();
  request.target = "/";
  request.body = "hello";
  return wait_for<HttpAnswer>(
      [&](Callback<void(HttpAnswer)> done) { client.send(std::move(request), std::move(done)); });
}

// What the child does to the parent's connections would be seen by the parent's next exchange.
TEST(HttpFork, TheChildIsToldAndTheParentGoesOn) {
  Server server([](Peer& peer) {
    while (peer.request()) peer.send(answer("hello"));
  });
  auto client = make_http_client();
  ASSERT_EQ(exchange(*client, server).body, "hello");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const HttpAnswer refused = exchange(*client, server);
    const bool told = refused.error && refused.error->kind == ErrorKind::misuse &&
                      refused.error->message.find("is a fork") != std::string::npos;
    client.reset();
    client = make_http_client();
    _exit(told && exchange(*client, server).body == "hello" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(exchange(*client, server).body, "hello");
  EXPECT_EQ(server.connections(), 2U);  // The parent's is the one it had.
}

}  // namespace
}  // namespace once::aws
