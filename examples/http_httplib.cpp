// A payments service on cpp-httplib whose POST /charges charges once for each Idempotency-Key, however often clients
// retry. Without arguments it plays some clients against itself; with a port it serves 127.0.0.1 until it is stopped.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <httplib.h>

#include <once/frontends/http/httplib.hpp>
#include <once/stores/open.hpp>

namespace {

// [service]
// A key belongs to the client with this API key, and duplicates of a running request wait for its answer.
once::http::Options options() {
  once::http::Options options{.principal = once::http::Principal::header("X-Api-Key")};
  options.policy = once::Policy{.on_conflict = once::OnConflict::wait};
  return options;
}

void serve(httplib::Server& server, once::http::Endpoint& endpoint, std::atomic<int>& charges) {
  const auto charge = [&](const httplib::Request& request, httplib::Response& response) {
    const std::string id = std::to_string(++charges);  // Here money moves.
    response.status = 201;
    response.set_header("Location", "/charges/" + id);
    response.set_content("{\"charge\":" + id + ",\"order\":" + request.body + "}\n", "application/json");
  };
  server.Post("/charges", once::http::wrap(endpoint, charge));
}
// [/service]

// A request as a curl line, and its answer.
void show(httplib::Client& client, const std::string& key, const std::string& body) {
  httplib::Headers headers{{"X-Api-Key", "alice"}};
  std::printf("curl -i http://127.0.0.1:8080/charges -H 'X-Api-Key: alice' -d '%s'", body.c_str());
  if (!key.empty()) {
    headers.emplace("Idempotency-Key", key);
    std::printf(" -H 'Idempotency-Key: %s'", key.c_str());
  }
  const httplib::Result answer = client.Post("/charges", headers, body, "application/json");
  if (!answer) {
    std::printf("\nno answer: %s\n", httplib::to_string(answer.error()).c_str());
    std::exit(1);
  }
  std::printf("\n%d\n", answer->status);
  for (const char* name : {"Content-Type", "Location", "Retry-After", "Idempotent-Replayed"}) {
    if (answer->has_header(name)) std::printf("%s: %s\n", name, answer->get_header_value(name).c_str());
  }
  std::printf("\n%s\n", answer->body.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::atomic<int> charges = 0;
  once::Engine engine({.store = once::open_store("sqlite:charges.db"), .scope = "shop"});
  once::http::Endpoint endpoint(engine, options());
  httplib::Server server;
  serve(server, endpoint, charges);
  if (argc > 1) return server.listen("127.0.0.1", std::atoi(argv[1])) ? 0 : 1;

  const int port = server.bind_to_any_port("127.0.0.1");
  const std::jthread serving([&] { server.listen_after_bind(); });
  httplib::Client client("127.0.0.1", port);
  show(client, "order-17", "{\"cents\":500}");
  show(client, "order-17", "{\"cents\":500}");  // For example the answer got lost, so the client retries.
  show(client, "order-17", "{\"cents\":900}");
  show(client, "", "{\"cents\":500}");

  std::atomic<int> created = 0;
  {
    std::vector<std::jthread> clients;
    clients.reserve(8);
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([&] {
        httplib::Client impatient("127.0.0.1", port);
        const httplib::Headers key = {{"X-Api-Key", "alice"}, {"Idempotency-Key", "order-18"}};
        const httplib::Result answer = impatient.Post("/charges", key, "{\"cents\":700}", "application/json");
        if (answer && answer->status == 201) ++created;
      });
    }
  }
  std::printf("order-18, eight times at once: %d answers 201\n", created.load());
  std::printf("charges: %d\n", charges.load());
  server.stop();
}
