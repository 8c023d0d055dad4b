// once sqs: runs a command, or posts to a URL, once for each message of a queue.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands/commands.hpp"
#include "import/fallback.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "process/sqs_command.hpp"
#include "serve/place.hpp"

namespace once::cli {

namespace {

constexpr const char* sqs_footer = R"(Examples:
  once sqs --queue orders --store dynamodb://once -- ./charge
  once sqs --queue https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo \
    --key-from payload --key order_id --fingerprint cents --parallel 8 -- ./charge
  once sqs --queue mails --post http://127.0.0.1:8080/send --drain
  once sqs --queue orders --key-from payload --key order_id --on-lapse hold \
    --reconcile './find-charge "$ONCE_DERIVED_KEY"' -- ./charge

hold, in any flag, needs --key: message ids and deduplication ids do not survive
a redrive from a dead-letter queue.

once deletes a message when its result is durable, and a duplicate without
running it. The command gets the body on standard input and finds
ONCE_KEY, ONCE_SCOPE, ONCE_ATTEMPT, ONCE_TOKEN, ONCE_DERIVED_KEY,
ONCE_SQS_MESSAGE_ID, _RECEIVE_COUNT, _SENT_MS, _QUEUE_ARN, _GROUP_ID,
_DEDUPLICATION_ID and _ATTRIBUTE_NAME in its environment. If the command fails,
its message stays in the queue, which delivers it again or moves it to its
dead-letter queue. After SIGTERM, running work is allowed to finish, and once
waits for the queue's last answer (--receive-wait). A second SIGTERM, or
--stop-within, ends both.

Exit codes:
    0  ended by a signal, or the queue is empty    126  the command cannot be executed
    1  --drain: messages are left                  127  the command was not found
   64  usage; no such queue, credentials or        243  the store or the queue cannot be used
       permission                                  244  an answer that cannot be read
  249  an internal error of once)";

class SqsFormatter final : public CLI::Formatter {
 public:
  SqsFormatter() { column_width(30); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: once sqs --queue QUEUE [OPTIONS] (-- COMMAND [ARGUMENTS...] | --post URL)\n";
  }
};

}  // namespace

void add_sqs(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<SqsOptions>();
  CLI::App* const sqs =
      app.add_subcommand("sqs", "Run a command, or post to a URL, once for each message of an SQS queue");
  sqs->formatter(std::make_shared<SqsFormatter>());
  sqs->footer(std::string(sqs_footer) + "\n\n" + importing::fallback_help);
  sqs->add_option("--queue", options->queue, "The queue's URL, or its name")->required();
  sqs->add_option("--post", options->post, "Post each message to this URL, with the header Idempotency-Key");
  add_store_options(*sqs, options->store);
  add_unshared_store(*sqs, options->unshared_store);
  sqs->add_option("--scope", options->scope, "The keys' namespace (default: the queue's name)");
  sqs->add_option(
         "--key-from", options->key_from,
         "Where the key comes from: the message's id, the deduplication-id of a FIFO queue, or --key over\n"
         "the record as Lambda gets it, or over its payload, the body as JSON (default: id; with --key: record)")
      ->check(CLI::IsMember({"id", "deduplication-id", "record", "payload"}));
  sqs->add_option("--key", options->key, "JMESPath that selects the key, as in powertools_json(body).order_id");
  sqs->add_option("--fingerprint", options->fingerprint,
                  "JMESPath that selects what a duplicate must repeat of the first message");
  sqs->add_flag("--allow-null-parts", options->allow_null_parts,
                "Accept a null or empty part of a key that --key puts together, as in [tenant, id], and a null one of\n"
                "--fingerprint");
  sqs->add_option("--parallel", options->parallel, "How many messages to process at the same time, 1 to 1000");
  add_work_options(*sqs, *options,
                   "When the command exits with a code other than 0, or the URL refuses the message: release (the\n"
                   "message stays), store (a final failure; delete it), hold (unknown, an operator decides)\n"
                   "(default: release)",
                   "as --lease, at least 1m; with --post: at least --post-timeout");
  sqs->add_option("--visibility", options->visibility,
                  "How long a message stays hidden after a crash, 3s to 12h; extended while its work runs");
  sqs->add_option("--retry-after", options->retry_after,
                  "When a failed message is delivered again, 0s to 12h (default: when its visibility timeout ends).\n"
                  "With 5s..15m: 5s after the first receipt, doubled with each one, at most 15m");
  sqs->add_option(
      "--receive-wait", options->receive_wait,
      "How long one request waits for messages, 0s to 20s; stopping an idle poller may take as long (default: 5s;\n"
      "with --drain: 1s)");
  sqs->add_option("--stop-within", options->stop_within,
                  "After SIGTERM, end running work after this time, as a second SIGTERM does (default: let it finish)");
  sqs->add_flag("--drain", options->drain, "End when the queue is empty");
  auto* const keep_input =
      sqs->add_flag("--keep-input", options->keep_input,
                    "Keep the body of each message in its record, for people. It may be sensitive");
  sqs->add_option("--input-without", options->input_without,
                  "A field of JSON bodies to leave out of what --keep-input keeps, as in card.number; repeatable.\n"
                  "A body that is not JSON is then not kept")
      ->allow_extra_args(false)
      ->needs(keep_input);
  sqs->add_option("--label", options->label,
                  "Keep a message's key as the record's label, for people: none, or all. Keys may be personal data")
      ->check(CLI::IsMember({"none", "all"}));
  sqs->add_option("--on-poison", options->on_poison,
                  "When a message has no readable key: leave it in the queue, or park it (keep it in the store for an\n"
                  "operator, and delete it)")
      ->check(CLI::IsMember({"leave", "park"}));
  sqs->add_option("--on-mismatch", options->on_mismatch, "The same for a key that was used with another payload")
      ->check(CLI::IsMember({"leave", "park"}));
  sqs->add_option("--on-unknown", options->on_unknown, "The same for an operation whose outcome is unknown")
      ->check(CLI::IsMember({"leave", "park"}));
  sqs->add_option("--post-timeout", options->post_timeout, "How long to wait for the answer to a post");
  sqs->add_option("--content-type", options->content_type, "The Content-Type of posts");
  sqs->add_option("--output-limit", options->output_limit, "Keep output or answers up to this size in the store");
  sqs->add_option("--derive-name", options->derive_name,
                  "A name that makes the derived key differ from others, in ONCE_DERIVED_KEY or the header\n"
                  "(default: command, or post)");
  sqs->add_option("--sweep-interval", options->sweep_interval, sweep_interval_help);
  sqs->add_option("--reconcile-interval", options->reconcile_interval,
                  "How often to look for unknown operations to ask about");
  sqs->add_option("--region", options->region, "The queue's region (default: from its URL, or as AWS's tools find it)");
  sqs->add_option("--endpoint", options->endpoint, "The URL of SQS (default: from the queue's URL, or AWS's)");
  sqs->add_option("--profile", options->profile, "A profile of the shared AWS config files");
  add_admin_flags(*sqs, options->admin);
  add_log_flags(*sqs, options->log, "text");
  sqs->add_flag("-v,--verbose", options->verbose, "Report successes too");
  sqs->callback([options, &invocation] {
    invocation.action = [options, &invocation] {
      const bool command = invocation.has_command && !invocation.command.empty();
      if (command == !options->post.empty()) {
        say("give either a command after --, as in `once sqs --queue orders -- ./charge`, or --post URL. Nothing was "
            "run.");
        return static_cast<int>(exit_usage);
      }
      options->store.likely_socket = likely_socket(named_store(options->store));
      return sqs_command(*options, invocation.command);
    };
  });
}

}  // namespace once::cli
