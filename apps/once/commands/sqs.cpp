// once sqs: runs a command, or posts to a URL, once for each message of a queue.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
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
#include "commands/commands.hpp"
#include "operators/overview.hpp"
#include "operators/recent_events.hpp"
#include "operators/store_look.hpp"
#include "output/exit_codes.hpp"
#include "output/report.hpp"
#include "output/sqs_metrics.hpp"
#include "output/text.hpp"
#include "process/ask_command.hpp"
#include "process/sqs_work.hpp"
#include "process/supervise.hpp"
#include "process/sweeper.hpp"
#include "queues/message.hpp"
#include "settings/access.hpp"
#include "settings/admin_flags.hpp"
#include "settings/log.hpp"
#include "settings/rules.hpp"
#include "settings/spans.hpp"
#include "settings/work_options.hpp"
#include "text/ascii.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

struct SqsOptions : WorkOptions {
  StoreOptions store;
  bool unshared_store = false;
  std::string queue;
  std::string region;
  std::string endpoint;
  std::string profile;
  std::string scope;
  std::string key;
  std::string key_from;
  std::string fingerprint;
  bool allow_null_parts = false;
  std::string label = "none";
  bool keep_input = false;
  std::vector<std::string> input_without;
  std::string on_poison = "leave";
  std::string on_mismatch = "leave";
  std::string on_unknown = "leave";
  std::size_t parallel = 1;
  std::string visibility = "30s";
  std::string receive_wait;
  std::string stop_within;
  std::string retry_after;
  std::string post;
  std::string post_timeout = "30s";
  std::string content_type = "application/json";
  std::string output_limit = "64KiB";
  std::string derive_name;
  std::string reconcile_interval = "30s";
  std::string sweep_interval = "60s";
  bool drain = false;
  LogFlags log;
  AdminFlags admin;
  bool verbose = false;
};

sqs::OnDeadEnd sqs_dead_end(const std::string& word) {
  return word == "park" ? sqs::OnDeadEnd::park : sqs::OnDeadEnd::leave;
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

// Asks --reconcile about the queue's unknown operations: when a message meets one, and now and then.
class Asking {
 public:
  Asking(const SqsOptions& options, const StoreAccess& access, const Policy& policy, std::uint64_t output_limit,
         std::size_t parallel, Observer observer)
      : interval_(parse_duration(options.reconcile_interval, "--reconcile-interval")),
        ask_{.command = options.reconcile,
             .timeout = parse_duration(options.reconcile_timeout, "--reconcile-timeout"),
             .output_limit = output_limit,
             .derive_name = !options.derive_name.empty() ? options.derive_name
                            : options.post.empty()       ? "command"
                                                         : "post",
             .wake = over_.fd(),
             .gives_up = [this] { return ending_.load(); }},
        reconciler_({.store = access.store,
                     .ask = ask_blocking([this](const Record& record) { return ask_command(ask_, record); }),
                     .settle = settle_of(
                         options, policy,
                         options.post.empty() ? Millis{0} : parse_duration(options.post_timeout, "--post-timeout")),
                     .at_once = static_cast<unsigned>(parallel) + 1,
                     .key_prefix = scope_prefix(
                         options.scope.empty() ? options.queue.substr(options.queue.rfind('/') + 1) : options.scope),
                     .retention = effective(policy).retention,
                     .failure_retention = policy.failure_retention,
                     .observer = std::move(observer)}) {}
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() { end(); }

  sqs::PollerOptions::Asked about(const RecordPtr& unknown) {
    using Asked = sqs::PollerOptions::Asked;
    switch (reconciler_.ask(unknown).kind) {
      case Reconciled::Kind::completed:
      case Reconciled::Kind::failed:
      case Reconciled::Kind::released:
      case Reconciled::Kind::changed:
        return Asked::decided;
      case Reconciled::Kind::gave_up:
        return Asked::given_up;
      case Reconciled::Kind::not_known:
      case Reconciled::Kind::not_asked:
      case Reconciled::Kind::not_stored:
        break;
    }
    return Asked::later;
  }

  [[nodiscard]] const Reconciler& reconciler() const noexcept { return reconciler_; }

  // Until end(), on its own thread.
  void run() {
    while (!ending_) {
      pollfd wait{.fd = over_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, poll_timeout(interval_));
      if (!ending_) reconciler_.pass();
    }
  }

  // Running questions are ended, and later ones too.
  void end() {
    ending_ = true;
    over_.set();
  }

 private:
  const Millis interval_;
  std::atomic<bool> ending_{false};
  const Wakeup over_;
  const AskCommand ask_;
  Reconciler reconciler_;
};

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

// What became of messages: everything as JSON, or only what needs attention as text.
class SqsLog {
 public:
  // No options: no log.
  SqsLog(const std::optional<LogOptions>& options, bool verbose, Millis visibility)
      : on_(options.has_value()),
        json_(on_ && options->format == LogFormat::json),
        level_(on_ ? options->level : LogLevel::err),
        verbose_(verbose),
        visibility_(visibility) {}

  void operator()(const sqs::PollEvent& event) const {
    if (!on_ || level_of(event) > level_) return;
    if (json_) return write_json(event);
    using Kind = sqs::PollEvent::Kind;
    const std::string message = "message " + escaped(event.id);
    const std::string why = event.why.empty() ? "" : ": " + escaped(event.why);
    switch (event.kind) {
      case Kind::ended: {
        if (is_good(event) && !verbose_) return;
        const char* const then = event.parked ? "; parked for an operator, and deleted"
                                              : (event.deleted ? "; deleted" : "; it stays in the queue");
        return say(message + " (receipt " + std::to_string(event.receive_count) +
                   "): " + std::string(to_string(event.end)) + why + then);
      }
      case Kind::given_back:
        if (verbose_) say(message + " is returned to the queue" + why);
        return;
      case Kind::overdue:
        return say(message + " could not be hidden for longer, so other consumers may receive it" + why);
      case Kind::not_hidden:
        return say(message +
                   "'s visibility could not be changed; it is delivered again when its visibility timeout ends" + why);
      case Kind::not_deleted:
        return say(message + " is done, but not deleted: the next delivery deletes it" + why);
      case Kind::pause:
        return say("receiving pauses for " + show_duration(event.pause) + why);
      case Kind::abandoned:
        return say("stopped waiting for the queue's answer; messages in it stay hidden for " +
                   show_duration(visibility_));
    }
  }

  void note(std::string_view text) const {
    if (!on_ || LogLevel::notice > level_) return;
    say(text);
  }

 private:
  static bool is_good(const sqs::PollEvent& event) {
    return event.deleted && !event.parked && event.end != queues::RecordEnd::stored_failure;
  }

  static LogLevel level_of(const sqs::PollEvent& event) {
    using Kind = sqs::PollEvent::Kind;
    const bool usual = event.kind == Kind::given_back || (event.kind == Kind::ended && is_good(event));
    return usual ? LogLevel::info : LogLevel::warning;
  }

  static void write_json(const sqs::PollEvent& event) {
    nlohmann::ordered_json line = log_head(level_of(event), to_string(event.kind));
    if (event.kind == sqs::PollEvent::Kind::pause) {
      line["pause_ms"] = event.pause.count();
    } else if (event.kind != sqs::PollEvent::Kind::abandoned) {
      line["message_id"] = event.id;
      if (!event.key.empty()) {
        const KeyParts key = key_parts(event.key);
        line["scope"] = key.scope;
        line["key"] = key.name;
      }
      line["receive_count"] = event.receive_count;
    }
    if (event.kind == sqs::PollEvent::Kind::ended) {
      line["end"] = to_string(event.end);
      line["deleted"] = event.deleted;
      line["parked"] = event.parked;
    }
    if (!event.why.empty()) line["why"] = event.why;
    // One write for each line, because several threads write to standard error.
    [[maybe_unused]] const bool written = write_all(STDERR_FILENO, log_line(line));
  }

  const bool on_;
  const bool json_;
  const LogLevel level_;
  const bool verbose_;
  const Millis visibility_;
};

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
    const StoreAccess access = open_access(options_.store, Missing::create);
    require_bytes(access.url);
    require_shared(*access.store, options_.unshared_store);
    // The few bytes that a result has beside its output must never be too many.
    constexpr std::size_t room_for_the_rest = std::size_t{64} * 1024;
    const std::size_t most = access.store->capabilities().max_record_bytes;
    const std::size_t usable = most > 2 * room_for_the_rest ? most - room_for_the_rest : most / 2;
    const std::uint64_t limit = std::min<std::uint64_t>(output_limit, usable);
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
                      .derive_name = options_.derive_name.empty() ? "command" : options_.derive_name},
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
                     .derive_name = options_.derive_name.empty() ? "post" : options_.derive_name,
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
    std::optional<Asking> asking;
    if (!options_.reconcile.empty()) {
      asking.emplace(options_, access, policy_, limit, poller.parallel, engine.options().observer);
      poller.reconcile = [&](const RecordPtr& unknown) { return asking->about(unknown); };
    }
    const Millis waits = poller.receive_wait + Millis{5'000};
    sqs::Poller the_poller(engine, sqs_client(options_, waits), sqs_client(options_, Millis{0}), std::move(poller),
                           std::move(work));
    std::optional<StoreLook> look;
    if (!options_.admin.address.empty() && stats_interval > Millis{0}) {
      look.emplace(
          StoreLookOptions{.store = access.store, .interval = stats_interval, .size = size_of_server(access.url)});
    }
    std::optional<Sweeper> sweeper;
    if (sweeps > Millis{0}) {
      sweeper.emplace(SweeperOptions{.store = access.store, .offload = access.offload, .interval = sweeps});
    }
    AdminPort admin(
        options_.admin, access, engine,
        [&] {
          return metrics.text() + message_metrics.text(the_poller.counts()) + process_metrics() +
                 (look ? look->text() : std::string()) + (sweeper ? sweeper->text() : std::string());
        },
        [&] {
          if (stopping_) return std::string("stopping");
          const std::string refusal = the_poller.counts().refusal;
          return refusal.empty() ? refusal : "no messages can be received: " + escaped(refusal);
        },
        overview_sources(look ? &*look : nullptr, recent.get()));
    if (asking) admin.ask_by(asking->reconciler());
    if (admin.port() != 0) log_.note("operators on port " + std::to_string(admin.port()));
    if (admin.made_token() != nullptr) log_.note(admin.made_token()->note());
    running = &the_poller;

    const Wakeup over;
    std::exception_ptr failed;
    std::thread asker;
    if (asking) asker = std::thread([&] { asking->run(); });
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
    const bool interrupted =
        wait(signals, over, the_poller, commands.get(), posting, asking ? &*asking : nullptr, admin);
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
  sqs->footer(sqs_footer);
  const auto one_of = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)); };
  sqs->add_option("--queue", options->queue, "The queue's URL, or its name")->required();
  sqs->add_option("--post", options->post, "Post each message to this URL, with the header Idempotency-Key");
  add_store_options(*sqs, options->store);
  add_unshared_store(*sqs, options->unshared_store);
  sqs->add_option("--scope", options->scope, "The keys' namespace (default: the queue's name)");
  sqs->add_option(
         "--key-from", options->key_from,
         "Where the key comes from: the message's id, the deduplication-id of a FIFO queue, or --key over\n"
         "the record as Lambda gets it, or over its payload, the body as JSON (default: id; with --key: record)")
      ->check(one_of({"id", "deduplication-id", "record", "payload"}));
  sqs->add_option("--key", options->key, "JMESPath that selects the key, as in powertools_json(body).order_id");
  sqs->add_option("--fingerprint", options->fingerprint,
                  "JMESPath that selects what a duplicate must repeat of the first message");
  sqs->add_flag("--allow-null-parts", options->allow_null_parts,
                "Accept a null or empty part of a key that --key puts together, as in [tenant, id], and a null one of\n"
                "--fingerprint");
  sqs->add_option("--parallel", options->parallel, "How many messages to process at the same time, 1 to 1000")
      ->capture_default_str();
  add_work_options(*sqs, *options,
                   "When the command exits with a code other than 0, or the URL refuses the message: release (the\n"
                   "message stays), store (a final failure; delete it), hold (unknown, an operator decides)\n"
                   "(default: release)",
                   "as --lease, at least 1m; with --post: at least --post-timeout");
  sqs->add_option("--visibility", options->visibility,
                  "How long a message stays hidden after a crash, 3s to 12h; extended while its work runs")
      ->capture_default_str();
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
      ->check(one_of({"none", "all"}))
      ->capture_default_str();
  sqs->add_option("--on-poison", options->on_poison,
                  "When a message has no readable key: leave it in the queue, or park it (keep it in the store for an\n"
                  "operator, and delete it)")
      ->check(one_of({"leave", "park"}))
      ->capture_default_str();
  sqs->add_option("--on-mismatch", options->on_mismatch, "The same for a key that was used with another payload")
      ->check(one_of({"leave", "park"}))
      ->capture_default_str();
  sqs->add_option("--on-unknown", options->on_unknown, "The same for an operation whose outcome is unknown")
      ->check(one_of({"leave", "park"}))
      ->capture_default_str();
  sqs->add_option("--post-timeout", options->post_timeout, "How long to wait for the answer to a post")
      ->capture_default_str();
  sqs->add_option("--content-type", options->content_type, "The Content-Type of posts")->capture_default_str();
  sqs->add_option("--output-limit", options->output_limit, "Keep output or answers up to this size in the store")
      ->capture_default_str();
  sqs->add_option("--derive-name", options->derive_name,
                  "A name that makes the derived key differ from others, in ONCE_DERIVED_KEY or the header\n"
                  "(default: command, or post)");
  sqs->add_option("--sweep-interval", options->sweep_interval, sweep_interval_help)->capture_default_str();
  sqs->add_option("--reconcile-interval", options->reconcile_interval,
                  "How often to look for unknown operations to ask about")
      ->capture_default_str();
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
      return Sqs(*options, invocation.command).run();
    };
  });
}

}  // namespace once::cli
