// What deriving a key costs. One line for each case: microseconds of one thread, the median of several rounds.
//
//   bench_keys [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <once/keys/key_deriver.hpp>
#include <string>
#include <vector>

namespace {

using once::keys::Dialect;
using once::keys::KeyDeriver;
using once::keys::Recipe;

// An API Gateway event of 574 bytes whose key is inside its JSON body.
std::string api_gateway_event() {
  std::string event =
      R"({"resource":"/orders","path":"/orders","httpMethod":"POST","headers":{"Accept":"application/json",)"
      R"("Content-Type":"application/json","Host":"abc123.execute-api.eu-central-1.amazonaws.com",)"
      R"("X-Forwarded-For":"203.0.113.7"},"queryStringParameters":null,"requestContext":{"accountId":"123456789012",)"
      R"("requestId":"c6af9ac6-7b61-11e6-9a41-93e8deadbeef","stage":"prod","identity":{"sourceIp":"203.0.113.7"}},)"
      R"("body":"{\"order_id\":\"o-20260517-000042\",\"customer\":\"c-981\",\"amount\":49.90,\"currency\":\"EUR\"}",)"
      R"("isBase64Encoded":false})";
  event.insert(event.size() - 1, ",\"pad\":\"" + std::string(574 - event.size() - 9, 'x') + "\"");
  return event;
}

double microseconds(const Recipe& recipe, const std::string& event, int rounds) {
  const KeyDeriver deriver(recipe);
  constexpr int each = 20'000;
  std::vector<double> results;
  std::size_t used = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < each; ++i) used += deriver.derive(event).key->stored().size();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    results.push_back(took.count() / each);
  }
  if (used == 0) std::abort();  // So that the work is not optimised away.
  std::ranges::sort(results);
  return results[results.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  const std::string event = api_gateway_event();
  const std::string path = "powertools_json(body).order_id";
  std::printf("event of %zu bytes, µs each\n", event.size());
  const auto row = [&](const char* name, const Recipe& recipe) {
    std::printf("%-44s %6.2f\n", name, microseconds(recipe, event, rounds));
  };
  row("native, key in the JSON body", {.scope = "orders", .expression = path});
  row("native, key in the body, body compared", {.scope = "orders", .expression = path, .fingerprint = "body"});
  row("native, whole event", {.scope = "orders"});
  row("native, filter and function",
      {.scope = "orders", .expression = "join('/', values(headers)[?starts_with(@, 'app')])"});
  row("powertools-python, key in the body", {.scope = "f", .expression = path, .dialect = Dialect::powertools_python});
  row("powertools-typescript, key in the body",
      {.scope = "f", .expression = path, .dialect = Dialect::powertools_typescript});
  row("powertools-typescript, whole event", {.scope = "f", .dialect = Dialect::powertools_typescript});
  return 0;
}
