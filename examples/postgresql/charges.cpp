// charges STORE BANK [PORT]: a service on cpp-httplib whose POST /charges writes a row, once for each Idempotency-Key.
// The row and the response to store commit together in PostgreSQL, whatever is killed, lost or taken over meanwhile.
// STORE is the store's URL, BANK the same database for libpqxx. Without a port it takes a free one, and prints it.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#include <httplib.h>
#include <nlohmann/json.hpp>
#include <pqxx/pqxx>

#include <once/frontends/http/httplib.hpp>
#include <once/stores/open.hpp>
#include <once/stores/pqxx_transaction.hpp>

// [charge]
static void charge(const std::string& bank, const httplib::Request& request, httplib::Response& response,
                   once::http::Execution& execution) {
  const auto order = nlohmann::json::parse(request.body);
  pqxx::connection connection(bank);
  pqxx::work work(connection);
  const auto row = work.exec_params1("INSERT INTO charges (order_id, cents) VALUES ($1, $2) RETURNING id",
                                     order.at("order").get<std::string>(), order.at("cents").get<int>());
  response.status = 201;
  response.set_content("{\"charge\":" + row[0].as<std::string>() + "}", "application/json");
  once::HandedOut handed = execution.hand_out(once::http::to_answer(response));
  once::stores::PqxxTransaction transaction(work);
  const once::Finish finish = handed.commit(transaction);  // The response, then COMMIT.
  if (finish.kind == once::Finish::Kind::declined) throw std::runtime_error(finish.error.message);
}

static once::http::Options options() {
  once::http::Options options{.principal = once::http::Principal::header("X-Api-Key"), .route = "charges"};
  // All that the handler does is in its transaction. So if it throws or dies, nothing was done, and a retry may run.
  options.on_throw = once::OnThrow::release;
  options.on_ambiguous = once::OnLapse::takeover;
  return options;
}
// [/charge]

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: charges STORE BANK [PORT]\n");
    return 64;
  }
  const std::string bank = argv[2];
  once::Engine engine({.store = once::open_store(argv[1]), .policy = {.lease = once::Millis{10'000}}, .scope = "shop"});
  once::http::Endpoint endpoint(engine, options());
  httplib::Server server;
  server.Post("/charges", once::http::wrap(endpoint, [&](const httplib::Request& request, httplib::Response& response,
                                                         once::http::Execution& execution) {
                charge(bank, request, response, execution);
              }));
  int port = argc > 3 ? std::atoi(argv[3]) : 0;
  if (port == 0) {
    port = server.bind_to_any_port("127.0.0.1");
  } else if (!server.bind_to_port("127.0.0.1", port)) {
    throw std::runtime_error("port " + std::to_string(port) + " is taken");
  }
  std::printf("listening on %d\n", port);
  std::fflush(stdout);
  return server.listen_after_bind() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
