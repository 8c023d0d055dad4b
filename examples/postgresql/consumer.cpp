// consumer STORE QUEUE: works off the transfers in an SQS queue, each order once, however often its message comes. The
// rows and the result commit together in PostgreSQL; then the message is deleted.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include <once/aws/client.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/sqs/poller.hpp>
#include <once/stores/open.hpp>
#include <once/stores/sql.hpp>

using once::stores::SqlRows;
using once::stores::SqlStatements;

// [work]
static once::sqs::WorkEnd transfer(const once::sqs::Message& message, once::Claim&) {
  const auto order = nlohmann::json::parse(message.body);
  const std::string id = order.at("id"), from = order.at("from"), to = order.at("to");
  const int cents = order.at("cents");
  auto rows = std::make_shared<SqlStatements>();
  rows->add("UPDATE accounts SET cents = cents - $1 WHERE id = $2 AND cents >= $1", {cents, from}, SqlRows::exactly(1));
  rows->add("UPDATE accounts SET cents = cents + $1 WHERE id = $2", {cents, to}, SqlRows::exactly(1));
  rows->add("INSERT INTO transfers VALUES ($1, $2, $3, $4)", {id, from, to, cents});
  return {.result = once::Result::inlined("moved " + std::to_string(cents)), .commit_with = rows};
}
// [/work]

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: consumer STORE QUEUE\n");
    return 64;
  }
  once::Engine engine({.store = once::open_store(argv[1]), .scope = "bank"});
  const auto client = [](once::Millis waits) {
    once::aws::ClientOptions options;
    options.service = "sqs";
    options.target_prefix = "AmazonSQS";
    options.content_type = "application/x-amz-json-1.0";
    options.timeout += waits;
    options.total_timeout += waits;
    return once::aws::make_client(options);
  };
  once::sqs::PollerOptions options{
      .queue = argv[2], .key_source = once::sqs::KeySource::payload, .key = "id", .receive_wait = once::Millis{1'000}};
  options.scope = "bank";
  options.drain = true;  // Ends when the queue is empty.
  once::sqs::Poller poller(engine, client(options.receive_wait), client({}), options, transfer);
  poller.run();
  const once::sqs::PollCounts counts = poller.counts();
  std::printf("%d messages received and deleted, %d left\n", static_cast<int>(counts.deleted),
              static_cast<int>(counts.left));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
