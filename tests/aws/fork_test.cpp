// fork() with an open client: a separate program, because the thread sanitizer allows no thread in the child then.
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <once/platform/system.hpp>

#include "aws/credentials_refresh.hpp"
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

CredentialsAnswer ask(CredentialsProvider& provider) {
  return wait_for<CredentialsAnswer>([&](Callback<void(CredentialsAnswer)> done) { provider.get(std::move(done)); });
}

// A search of the parent's runs at the fork. The child can neither join its thread nor wait for its answer.
TEST(CredentialsFork, TheChildSearchesForItself) {
  const pid_t parent = getpid();
  std::promise<void> begun;
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  auto provider = refreshing_credentials(
      [&, may_go_on](const std::shared_ptr<Cancellation>&) {
        const bool is_parent = getpid() == parent;
        if (is_parent) {
          begun.set_value();
          may_go_on.wait();
        }
        return Credentials{
            .access_key_id = is_parent ? "parent" : "child", .secret_access_key = "secret", .source = "test"};
      },
      system_clock(), system_random());
  std::promise<CredentialsAnswer> of_parent;
  provider->get([&](CredentialsAnswer answer) { of_parent.set_value(std::move(answer)); });
  begun.get_future().wait();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // Ends it if it waits for the parent's thread.
    const CredentialsAnswer found = ask(*provider);
    bool fine = found.credentials != nullptr && found.credentials->access_key_id == "child";
    if (fine) provider->reject(*found.credentials);
    provider.reset();
    _exit(fine ? 0 : 1);
  }
  const pid_t unused = fork();
  ASSERT_GE(unused, 0);
  if (unused == 0) {
    alarm(20);
    provider.reset();
    _exit(0);
  }
  for (const pid_t each : {child, unused}) {
    int status = 0;
    ASSERT_EQ(waitpid(each, &status, 0), each);
    EXPECT_EQ(status, 0) << (each == child ? "the child that asked" : "the child that only destroyed it");
  }
  go_on.set_value();
  EXPECT_EQ(of_parent.get_future().get().credentials->access_key_id, "parent");
}

}  // namespace
}  // namespace once::aws
