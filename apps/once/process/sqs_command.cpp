#include "process/sqs_command.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <once/aws/client.hpp>
#include <once/engine/engine.hpp>
#include <once/engine/metrics.hpp>
#include <once/frontends/sqs/poller.hpp>
#include <once/platform/system.hpp>
#include <once/reconcile.hpp>

#include "aws/endpoint.hpp"
#include "import/fallback.hpp"
#include "operators/overview.hpp"
#include "operators/recent_events.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/sqs_log.hpp"
#include "output/sqs_metrics.hpp"
#include "output/text.hpp"
#include "process/ask_command.hpp"
#include "process/sqs_work.hpp"
#include "process/supervise.hpp"
#include "process/upkeep.hpp"
#include "queues/message.hpp"
#include "settings/rules.hpp"
#include "settings/spans.hpp"
#include "text/ascii.hpp"

namespace once::cli {

namespace {

sqs::OnDeadEnd sqs_dead_end(const std::string& word) {
  return word == "park" ? sqs::OnDeadEnd::park : sqs::OnDeadEnd::leave;
}

std::string derive_name_of(const SqsOptions& options) {
  if (!options.derive_name.empty()) return options.derive_name;
  return options.post.empty() ? "command" : "post";
}

sqs::KeySource sqs_key_source(const SqsOptions& options) {
  const bool expression = !options.key.empty();
  if (options.key_from.empty()) return expression ? sqs::KeySource::record : sqs::KeySource::id;
  if (options.key_from == "record") {
    if (!expression) {
      misuse(
          "--key-from record needs --key: a message's record has a new receipt handle at each delivery, so each "
          "delivery "
          "would be a new operation. Select what identifies the message with --key, or leave out --key-from");
    }
    return sqs::KeySource::record;
  }
  if (options.key_from == "payload") return sqs::KeySource::payload;
  if (expression) misuse("--key selects from the record or its payload: leave out --key-from " + options.key_from);
  return options.key_from == "id" ? sqs::KeySource::id : sqs::KeySource::deduplication_id;
}

sqs::PollerOptions poller_options(const SqsOptions& options) {
  sqs::PollerOptions out;
  out.queue = options.queue;
  out.scope = options.scope;
  out.key_source = sqs_key_source(options);
  out.key = options.key;
  out.fingerprint = options.fingerprint;
  out.allow_null_parts = options.allow_null_parts;
  out.input_without = options.input_without;
  out.parallel = options.parallel;
  out.visibility = parse_duration(options.visibility, "--visibility");
  if (!options.receive_wait.empty()) {
    out.receive_wait = parse_duration(options.receive_wait, "--receive-wait");
  } else if (options.drain) {
    out.receive_wait = Millis{1'000};
  }
  if (options.drain && out.receive_wait == Millis{0}) {
    misuse(
        "--drain does not work with --receive-wait 0s: such a request asks only some of SQS's servers, so an empty "
        "answer does not show that the queue is empty. Leave out --receive-wait, or write 1s");
  }
  out.drain = options.drain;
  if (!options.retry_after.empty()) {
    const std::size_t dots = options.retry_after.find("..");
    out.retry_after = parse_duration(options.retry_after.substr(0, dots), "--retry-after");
    if (dots != std::string::npos) {
      out.retry_after_limit = parse_duration(options.retry_after.substr(dots + 2), "--retry-after");
    }
  }
  out.on_poison = sqs_dead_end(options.on_poison);
  out.on_mismatch = sqs_dead_end(options.on_mismatch);
  out.on_unknown = sqs_dead_end(options.on_unknown);
  return out;
}

std::string scope_of(const SqsOptions& options) {
  return options.scope.empty() ? options.queue.substr(options.queue.rfind('/') + 1) : options.scope;
}

// The keys must be texts that the old table has, or keep theirs as labels.
importing::FallbackAccess open_store_of(const SqsOptions& options, sqs::KeySource keys) {
  const bool digests = keys == sqs::KeySource::record || keys == sqs::KeySource::payload;
  if (names_server(options.store)) {
    refuse_at_server(!options.reconcile.empty(), "--reconcile");
    refuse_at_server(options.keep_input, "--keep-input");
    refuse_at_server(!options.admin.address.empty(), "--admin");
    const bool parks =
        std::ranges::any_of(std::array{options.on_poison, options.on_mismatch, options.on_unknown},
                            [](const std::string& word) { return sqs_dead_end(word) == sqs::OnDeadEnd::park; });
    refuse_at_server(parks, "park, which keeps a message for operators,");
  }
  importing::FallbackAccess opened = importing::open_with_fallback(
      options.store, Missing::create,
      {.digests = digests, .own_prefix = scope_prefix(scope_of(options) + "/parked"), .takes_server = true});
  if (!opened.fallback) return opened;
  if (keys == sqs::KeySource::deduplication_id) {
    misuse(
        "fallback= does not go with --key-from deduplication-id: such a key is joined from several parts, and no old "
        "table has it");
  }
  if (digests && options.label != "all") {
    misuse(
        "fallback= finds the rows of keys that are digests by the keys' texts, and --label all is missing: every "
        "message would be refused, and end in the dead-letter queue");
  }
  return opened;
}

// Asks --reconcile about the queue's unknown operations: when a message meets one, and now and then.
std::unique_ptr<Asking> asking_of(const SqsOptions& options, const StoreAccess& access, const Policy& policy,
                                  std::uint64_t output_limit, std::size_t parallel, Observer observer) {
  if (options.reconcile.empty()) return nullptr;
  const bool posts = !options.post.empty();
  return std::make_unique<Asking>(
      AskCommand{.command = options.reconcile,
                 .timeout = parse_duration(options.reconcile_timeout, "--reconcile-timeout"),
                 .output_limit = output_limit,
                 .derive_name = derive_name_of(options)},
      ReconcileOptions{.store = access.store,
                       .settle = settle_of(options, policy,
                                           posts ? parse_duration(options.post_timeout, "--post-timeout") : Millis{0}),
                       .at_once = static_cast<unsigned>(parallel) + 1,
                       .key_prefix = scope_prefix(scope_of(options)),
                       .retention = effective(policy).retention,
                       .failure_retention = policy.failure_retention,
                       .observer = std::move(observer)});
}

sqs::PollerOptions::Asked what_it_said(const Reconciled& reconciled) {
  using Asked = sqs::PollerOptions::Asked;
  if (reconciled.is_decided() || reconciled.kind == Reconciled::Kind::changed) return Asked::decided;
  return reconciled.kind == Reconciled::Kind::gave_up ? Asked::given_up : Asked::later;
}

// The queue's region and endpoint, if its URL is given: https://sqs.eu-central-1.amazonaws.com/123456789012/orders.
void locate(const SqsOptions& options, aws::ClientOptions& client) {
  client.region = options.region;
  client.endpoint = options.endpoint;
  client.profile = options.profile;
  const std::size_t authority = options.queue.find("://");
  if (authority == std::string::npos) return;
  const std::size_t path = options.queue.find('/', authority + 3);
  if (path == std::string::npos || options.queue.ends_with('/')) {
    misuse("--queue " + escaped(options.queue) + " is not a queue's URL: it does not end with the queue's name");
  }
  std::string host = text::lower(options.queue.substr(authority + 3, path - authority - 3));
  if (host.ends_with(":443")) host.resize(host.size() - 4);
  const std::string region = aws::region_of_host("sqs", host);
  if (client.region.empty()) client.region = region;
  if (!region.empty() && client.region != region) {
    misuse("--queue is in the region " + region + ", and --region says " + client.region + ": leave it out");
  }
  // A host of AWS's own only says the region: use_fips_endpoint and use_dualstack_endpoint hold.
  if (client.endpoint.empty() && region.empty()) client.endpoint = options.queue.substr(0, path);
}

std::shared_ptr<aws::Client> sqs_client(const SqsOptions& options, Millis waits) {
  aws::ClientOptions client;
  client.service = "sqs";
  client.target_prefix = "AmazonSQS";
  client.content_type = "application/x-amz-json-1.0";
  client.timeout += waits;
  client.total_timeout += waits;
  locate(options, client);
  return aws::make_client(std::move(client));
}

// The line of the message says these.
bool is_told_of_the_message(EventKind kind) {
  return kind == EventKind::conflict || kind == EventKind::mismatch || kind == EventKind::unknown;
}

// Adds one, for as long as this lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --count_; }

 private:
  std::atomic<int>& count_;
};

class Sqs {
 public:
  Sqs(const SqsOptions& options, std::vector<std::string> command)
      : options_(options),
        command_(std::move(command)),
        log_(log_options(options.log), options.verbose, parse_duration(options.visibility, "--visibility")) {
    if (!options.stop_within.empty()) stop_within_ = parse_duration(options.stop_within, "--stop-within");
    policy_ = policy_of(options);
    policy_.label = options.label == "all" ? Label::all : Label::none;
    policy_.keep_input = options.keep_input;
    check(policy_);
  }

  int run() {
    sqs::PollerOptions poller = poller_options(options_);
    const Metrics metrics;
    SqsMetrics message_metrics;
    poller.observer = [&](const sqs::PollEvent& event) {
      message_metrics.count(event);
      log_(event);
    };
    const Rules rules = the_rules();
    const bool holds = effective(policy_).on_lapse == OnLapse::hold || rules.may_hold();
    if (holds && !sqs::survives_redrive(poller.key_source, poller.key)) {
      misuse(
          "hold needs a key that survives a redrive: add --key, as in --key-from payload --key order_id. A message "
          "that "
          "is moved back from a dead-letter queue has a new message id, and may have a new deduplication id, so under "
          "a "
          "key of these an operation whose outcome is unknown would run again. Nothing was run");
    }
    const std::uint64_t output_limit = parse_size(options_.output_limit, "--output-limit");
    const Millis grace = parse_duration(options_.grace, "--grace");
    const Millis stats_interval = parse_interval(options_.admin.stats_interval, "--stats-interval");
    const Millis sweeps = parse_interval(options_.sweep_interval, "--sweep-interval");
    Signals signals;  // Before there are threads.
    const std::string told = told_variables(options_);
    if (!told.empty()) log_.note("from the environment: " + told);
    const importing::FallbackAccess opened = open_store_of(options_, poller.key_source);
    const StoreAccess& access = opened.access;
    if (opened.fallback) log_.note(opened.fallback->examine());
    require_bytes(access.url);
    require_shared(*access.store, options_.unshared_store);
    const std::uint64_t limit = std::min<std::uint64_t>(output_limit, usable_bytes(*access.store));
    // The few bytes that a result has beside its output must never be too many.
    policy_.max_inline_bytes = std::max<std::size_t>(limit + 64, 256);

    std::atomic<sqs::Poller*> running{nullptr};
    struct {
      std::mutex mutex;
      int exit_code = exit_ok;
      std::string why;
    } hopeless;  // Set if no message can be run.
    const auto give_up = [&](int exit_code, std::string why) {
      {
        const std::lock_guard lock(hopeless.mutex);
        hopeless.exit_code = exit_code;
        hopeless.why = std::move(why);
      }
      if (sqs::Poller* const ours = running) ours->stop();
    };
    std::atomic<int> posting{0};
    std::shared_ptr<Commands> commands;  // Shared, because the engine's threads may use it longer.
    sqs::PolledWork work;
    if (options_.post.empty()) {
      commands = std::make_shared<Commands>(
          CommandWork{.command = command_,
                      .rules = rules,
                      .lease = effective(policy_).lease,
                      .grace = grace,
                      .output_limit = limit,
                      .derive_name = derive_name_of(options_)},
          signals, [&](int why) {
            give_up(why == ENOENT ? exit_not_found : exit_cannot_execute,
                    "cannot execute '" + escaped(command_.front()) + "': " + std::strerror(why));
          });
      work = [commands](const sqs::Message& message, Claim& claim) { return commands->run(message, claim); };
    } else {
      sqs::PolledWork post =
          post_work({.url = options_.post,
                     .content_type = options_.content_type,
                     .timeout = parse_duration(options_.post_timeout, "--post-timeout"),
                     .on_failure = rules.fate({.signaled = false, .code = 1}, false, effective(policy_).on_lapse),
                     .derive_name = derive_name_of(options_),
                     .parallel = poller.parallel},
                    [&](const std::string& why) { give_up(exit_usage, why); });
      work = [&posting, post = std::move(post)](const sqs::Message& message, Claim& claim) {
        const Counted counted(posting);
        return post(message, claim);
      };
    }

    const Spans spans(span_options(SpanKind::consumer, options_.post.empty() ? SpanKind::internal : SpanKind::client));
    EngineOptions engine_options;
    engine_options.store = access.store;
    engine_options.tracer = spans.tracer();
    engine_options.offload = access.offload;
    engine_options.policy = policy_;
    engine_options.holder = who() + ":" + std::to_string(getpid()) + " once sqs";
    const auto recent = std::make_shared<RecentEvents>();
    engine_options.observer = [commands, metrics, recent,
                               log = service_log_observer(log_options(options_.log))](const Event& event) {
      metrics(event);
      recent->count(event);
      if (!is_told_of_the_message(event.kind)) log(event);
      if (commands) commands->on_event(event);
    };
    Engine engine(std::move(engine_options));
    const Millis reconcile_interval =
        options_.reconcile.empty() ? Millis{0} : parse_duration(options_.reconcile_interval, "--reconcile-interval");
    const std::unique_ptr<Asking> asking =
        asking_of(options_, access, policy_, limit, poller.parallel, engine.options().observer);
    if (asking) {
      poller.reconcile = [&](const RecordPtr& unknown) { return what_it_said(asking->reconciler().ask(unknown)); };
    }
    const Millis waits = poller.receive_wait + Millis{5'000};
    sqs::Poller the_poller(engine, sqs_client(options_, waits), sqs_client(options_, Millis{0}), std::move(poller),
                           std::move(work));
    Upkeep upkeep(access, options_.admin.address.empty() ? Millis{0} : stats_interval, sweeps, who() + " once sqs");
    AdminPort admin(
        options_.admin, access, engine,
        [&] {
          return metrics.text() + message_metrics.text(the_poller.counts()) + process_metrics() + upkeep.text() +
                 opened.metrics();
        },
        [&] {
          if (stopping_) return std::string("stopping");
          const std::string refusal = the_poller.counts().refusal;
          return refusal.empty() ? refusal : "no messages can be received: " + escaped(refusal);
        },
        overview_sources(upkeep.look(), recent.get()));
    if (asking) admin.ask_by(asking->reconciler());
    if (admin.port() != 0) log_.note("operators on port " + std::to_string(admin.port()));
    if (admin.made_token() != nullptr) log_.note(admin.made_token()->note());
    running = &the_poller;

    const Wakeup over;
    std::exception_ptr failed;
    std::thread asker;
    if (asking) asker = std::thread([&] { asking->run(reconcile_interval); });
    const auto end_asking = [&] {
      if (!asking) return;
      asking->end();
      asker.join();
    };
    std::thread thread;
    try {
      thread = std::thread([&] {
        try {
          the_poller.run();
        } catch (...) {  // The main thread reports it.
          failed = std::current_exception();
        }
        over.set();
      });
    } catch (const std::system_error&) {  // At the limit of threads. Nothing was received.
      end_asking();
      throw;
    }
    const bool interrupted = wait(signals, over, the_poller, commands.get(), posting, asking.get(), admin);
    thread.join();
    end_asking();
    const sqs::PollCounts counts = the_poller.counts();
    if (hopeless.exit_code != exit_ok) {
      say(hopeless.why + ". That message and all that were not started stay in the queue: " +
              std::to_string(counts.received) + " were received, " + std::to_string(counts.deleted) + " deleted.",
          LogLevel::err);
      return hopeless.exit_code;
    }
    if (failed) std::rethrow_exception(failed);
    if (options_.verbose) {
      log_.note("received " + std::to_string(counts.received) + ", deleted " + std::to_string(counts.deleted) +
                ", left in the queue " + std::to_string(options_.drain ? counts.left : counts.stayed));
    }
    if (!options_.drain) return exit_ok;
    // No message is visible. Messages that others have, delayed ones and given-up ones also count as left.
    const bool empty = interrupted || is_empty(the_poller, signals);
    return counts.left > 0 || !empty ? exit_found_problems : exit_ok;
  }

 private:
  // Reports what the queue still has. SQS counts late: just deleted messages may be counted a little longer.
  bool is_empty(const sqs::Poller& poller, const Signals& signals) const {
    constexpr int most_looks = 10;
    constexpr int pause_ms = 500;
    sqs::Backlog left = poller.backlog();
    for (int look = 1; look < most_looks && left.visible + left.hidden + left.delayed > 0; ++look) {
      pollfd signal{.fd = signals.fd(), .events = POLLIN, .revents = 0};
      if (poll(&signal, 1, pause_ms) != 0) break;
      left = poller.backlog();
    }
    if (left.visible + left.hidden + left.delayed > 0) {
      log_.note("the queue is not empty: " + std::to_string(left.visible) + " messages can be received, " +
                std::to_string(left.hidden) + " are hidden because another consumer has them, " +
                std::to_string(left.delayed) + " are delayed. Run once sqs --drain again later.");
    }
    if (left.dead > 0) {
      log_.note("the dead-letter queue " + escaped(left.dead_letter_queue) + " holds " + std::to_string(left.dead) +
                " messages that no consumer receives. First resolve the operations that are unknown (once ls --state "
                "unknown, once resolve), then delete their messages. A redriven message has a new message id, and may "
                "have a new deduplication id: under a key of these it runs again.");
    }
    if (left.dead_unknown) {
      log_.note("cannot read the dead-letter queue " + escaped(left.dead_letter_queue) + ": " +
                left.dead_unknown->message);
    }
    return left.visible + left.hidden + left.delayed + left.dead == 0;
  }

  // A failed message stays in the queue, which delivers it again, and gives up after a while.
  [[nodiscard]] Rules the_rules() const {
    return {options_.on_failure, options_.on_signal, options_.on_exit, CommandFate::release};
  }

  // Whether a signal ended it.
  bool wait(Signals& signals, const Wakeup& over, sqs::Poller& poller, Commands* commands,
            const std::atomic<int>& posting, Asking* asking, AdminPort& admin) {
    int asked = 0;  // The first signal.
    std::optional<Uptime> end_at;
    const auto end_it = [&](int signal) {
      // A posted message cannot be taken back: its claim lapses, and the message comes again.
      if (posting > 0) Signals::die_of(signal);
      poller.abandon();
      if (asking != nullptr) asking->end();
      if (commands != nullptr) commands->end_all();
    };
    for (;;) {
      pollfd waits[2] = {{.fd = over.fd(), .events = POLLIN, .revents = 0},
                         {.fd = signals.fd(), .events = POLLIN, .revents = 0}};
      ::poll(waits, 2, end_at ? poll_timeout(*end_at - system_clock()->uptime()) : -1);
      if (waits[0].revents != 0) return asked != 0;
      while (const auto signal = signals.next()) {
        if (signal->number == SIGTSTP) Signals::stop_ourselves();
        if (!Signals::ends_us(signal->number)) continue;
        if (asked != 0) {
          end_it(signal->number);
          continue;
        }
        asked = signal->number;
        stopping_ = true;
        poller.stop();  // Before the line is written, so that readers may rely on it.
        admin.stop_bulk();
        log_.note("ending: running work is allowed to finish, and nothing else starts. " +
                  (stop_within_ ? "After " + show_duration(*stop_within_) + ", or at a second signal, it is ended."
                                : std::string("A second signal ends it.")));
        if (stop_within_) end_at = system_clock()->uptime() + *stop_within_;
      }
      if (end_at && system_clock()->uptime() >= *end_at) {
        end_it(asked);
        end_at = system_clock()->uptime() + std::chrono::seconds(1);  // Time for messages that are just being posted.
      }
    }
  }

  const SqsOptions& options_;
  const std::vector<std::string> command_;
  const SqsLog log_;
  std::optional<Millis> stop_within_;
  Policy policy_;
  std::atomic<bool> stopping_{false};
};

}  // namespace

int sqs_command(const SqsOptions& options, std::vector<std::string> command) {
  return Sqs(options, std::move(command)).run();
}

}  // namespace once::cli
