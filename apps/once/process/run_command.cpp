#include "process/run_command.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/engine/engine.hpp>
#include <once/key.hpp>
#include <once/keys/input_filter.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/environment.hpp>
#include <once/platform/system.hpp>
#include <once/reconcile.hpp>
#include <once/stores/sqlite.hpp>

#include "import/fallback.hpp"
#include "operators/run_result.hpp"
#include "output/exit_codes.hpp"
#include "output/metrics_file.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/ask_command.hpp"
#include "process/supervise.hpp"
#include "settings/rules.hpp"
#include "settings/spans.hpp"
#include "text/json_write.hpp"
#include "text/prometheus.hpp"
#include "text/rfc3339.hpp"
#include "text/utf8.hpp"

namespace once::cli {

namespace {

// The same, parsed and checked.
struct RunPlan {
  Key key;
  Policy policy;
  Rules rules;
  FingerprintParts parts;
  keys::InputFilter input;
  std::uint64_t output_limit = 0;
  std::uint64_t offload_limit = 0;
  std::uint64_t input_limit = 0;
  Millis grace{};
  Millis output_wait{};
  Millis reconcile_settle{};
  Millis reconcile_timeout{};
};

RunPlan plan_of(const RunOptions& options) {
  const auto is = [](const std::string& word, const char* other) { return word == other; };
  Policy policy = policy_of(options);
  policy.on_conflict = OnConflict::fail;  // Waiting must be asked for.
  if (!options.wait.empty()) {
    policy.wait = parse_duration(options.wait, "--wait (or ONCE_WAIT)");
    policy.on_conflict = OnConflict::wait;
  }
  policy.on_stored_failure =
      is(options.on_stored_failure, "execute") ? OnStoredFailure::execute : OnStoredFailure::replay;
  if (is(options.label, "none")) policy.label = Label::none;
  policy.keep_input = !options.keep_input.empty();
  if (!options.input_without.empty() && !is(options.keep_input, "stdin")) {
    misuse("--input-without names fields of JSON on standard input: it needs --keep-input stdin");
  }
  check(policy);
  RunPlan plan{.key = key_of(options.key),
               .policy = policy,
               .rules = Rules(options.on_failure, options.on_signal, options.on_exit),
               .parts = parse_fingerprint(options.fingerprint),
               .input = keys::InputFilter(options.input_without),
               .output_limit = parse_size(options.output_limit, "--output-limit"),
               .offload_limit = parse_size(options.offload_limit, "--offload-limit"),
               .input_limit = parse_size(options.input_limit, "--input-limit"),
               .grace = parse_duration(options.grace, "--grace"),
               .output_wait = parse_duration(options.output_wait, "--output-wait"),
               .reconcile_settle = settle_of(options, policy),
               .reconcile_timeout = parse_duration(options.reconcile_timeout, "--reconcile-timeout")};
  plan.parts.allow_null_parts = options.allow_null_parts;
  if (names_server(options.store)) {
    refuse_at_server(!options.reconcile.empty(), "--reconcile");
    refuse_at_server(policy.keep_input.value_or(false), "--keep-input");
  }
  if (is(options.keep_input, "stdin") && !plan.parts.input) {
    misuse("--keep-input stdin keeps what --fingerprint stdin has read: add that, as in --fingerprint args,stdin");
  }
  return plan;
}

// To leave fields out of standard input, all of it must be in memory.
constexpr std::size_t most_filtered_input = std::size_t{16} * 1024 * 1024;

constexpr int most_claims = 3;     // For one run, if each lease ends before the command begins.
constexpr int most_questions = 2;  // For one run: about an earlier attempt, and about its own.

// Written by the engine's threads, read by the main thread.
struct RunState {
  // Drops what was written about an earlier claim.
  void forget() {
    const std::lock_guard lock(mutex);
    begun.reset();
    finished.reset();
    lost = recorded = refused = false;
  }

  Wakeup changed;
  std::mutex mutex;
  std::optional<Begin> begun;  // Guarded by the mutex, like the next.
  std::optional<Finish> finished;
  std::string trouble;  // The last error of the store or the offload.
  std::atomic<bool> lost{false};
  std::atomic<bool> recorded{false};  // A finish was written, perhaps after its caller got `unrecorded`.
  std::atomic<bool> refused{false};
};

class Run {
 public:
  Run(const RunOptions& options, std::vector<std::string> command)
      : options_(options), command_(std::move(command)), plan_(plan_of(options)) {}

  int run() {
    if (options_.metrics_file.empty()) return try_it();
    const Time began_at = system_clock()->now();
    const Uptime began = system_clock()->uptime();
    const int code = try_it();
    write_metrics_file(options_.metrics_file, metrics(code, began_at, system_clock()->uptime() - began));
    return code;
  }

 private:
  int try_it() {
    // Before signals are taken over, so that reading standard input can be interrupted.
    if (plan_.parts.input) {
      const char* const directory = std::getenv("TMPDIR");
      // /var/tmp rather than /tmp, which may be memory.
      input_ = digest_input(STDIN_FILENO, directory != nullptr && *directory != '\0' ? directory : "/var/tmp",
                            plan_.input_limit,
                            options_.keep_input != "stdin" ? 0
                            : filters()                    ? most_filtered_input
                                                           : Record::max_input_bytes);
    }
    fingerprint_ = fingerprint_of(plan_.parts, command_, input_);
    if (options_.verbose) {
      const std::string told = told_variables(options_, options_.wait);
      if (!told.empty()) say("from the environment: " + told);
    }
    Signals signals;
    signals_ = &signals;
    const int code = claim_and_run();
    if (options_.drain_input && !has_run_) drain_input();
    return code;
  }

  // The command would have read it. The program that writes it must not fail because this was a replay.
  void drain_input() {
    std::array<char, 65'536> waste;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
    for (;;) {
      std::array<pollfd, 2> waits{{{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                   {.fd = signals_->fd(), .events = POLLIN, .revents = 0}}};
      poll(waits.data(), waits.size(), -1);
      while (const auto signal = signals_->next()) {
        if (signal->number == SIGTSTP) Signals::stop_ourselves();
        if (Signals::ends_us(signal->number)) Signals::die_of(signal->number);
      }
      if (waits[0].revents == 0) continue;
      const ssize_t count = read(STDIN_FILENO, waste.data(), waste.size());
      if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return;
    }
  }

  int claim_and_run() {
    try {
      prepare();
    } catch (const Exception& error) {
      outcome_ = Outcome::Kind::error;
      say(std::string(error.what()) + ". Nothing was run.", LogLevel::err);
      return exit_code_of(error.kind());
    }
    try {
      opened_ = importing::open_with_fallback(
          options_.store, Missing::create,
          {.fails_open = options_.on_store_down == "run-unprotected", .announces = true, .takes_server = true});
      require_bytes(access_.url);
      require_shared(*access_.store, options_.unshared_store);
    } catch (const Exception& error) {
      return store_failed(error.error(), false);
    }
    choose_limits();

    EngineOptions engine_options;
    engine_options.store = access_.store;
    engine_options.tracer = spans_.tracer();
    engine_options.offload = access_.offload;
    engine_options.policy = plan_.policy;
    engine_options.holder = who() + ":" + std::to_string(getpid()) + " once run " + command_.front();
    engine_options.observer = [state = state_, log = log_observer(log_options(options_.log))](const Event& event) {
      log(event);  // First: observe() may wake the thread that ends the program.
      observe(*state, event);
    };
    Engine engine(std::move(engine_options));
    for (int times = 0; times < most_claims + questions_; ++times) {
      if (prepared_ == nullptr) prepare();
      if (const std::optional<int> code = call(begin_with(engine))) return *code;
    }
    say("the lease of " + options_.lease + " expired " + std::to_string(most_claims) +
            " times before the command could begin. Nothing was run. Use a longer --lease.",
        LogLevel::err);
    outcome_ = Outcome::Kind::error;
    return exit_unavailable;
  }

  [[nodiscard]] std::string metrics(int code, Time began_at, std::chrono::nanoseconds took) const {
    const std::string scope = text::replace_invalid_utf8(plan_.key.scope());
    text::Exposition out;
    out.family("once_run_last_start_timestamp_seconds", "gauge", "When the last once run began, since 1970.");
    out.sample({{"scope", scope}}, std::chrono::duration<double>(began_at.time_since_epoch()).count());
    out.family("once_run_last_duration_seconds", "gauge", "How long the last once run took.");
    out.sample({{"scope", scope}}, std::chrono::duration<double>(took).count());
    out.family("once_run_last_exit_code", "gauge", "The exit code of the last once run.");
    out.sample({{"scope", scope}}, code);
    out.family("once_run_last_outcome", "gauge", "1 for the outcome of the last once run, 0 for all others.");
    for (std::size_t i = 0; i <= static_cast<std::size_t>(Outcome::Kind::error); ++i) {
      const auto kind = static_cast<Outcome::Kind>(i);
      out.sample({{"scope", scope}, {"outcome", to_string(kind)}}, kind == outcome_ ? 1 : 0);
    }
    return std::move(out).take() + opened_.metrics();
  }

  // Empty: begin again. The lease ended before the command began, or an unknown operation was released.
  std::optional<int> call(Begin begin) {
    switch (begin.kind) {
      case Begin::Kind::claimed:
        outcome_ = Outcome::Kind::executed;
        return execute(std::move(begin.claim));
      case Begin::Kind::replayed:
        outcome_ = Outcome::Kind::replayed;
        return replay(*begin.record);
      case Begin::Kind::stored_failure:
        outcome_ = Outcome::Kind::stored_failure;
        return replay(*begin.record);
      case Begin::Kind::conflict:
        outcome_ = Outcome::Kind::conflict;
        return conflict(*begin.record, begin.retry_after);
      case Begin::Kind::mismatch:
        outcome_ = Outcome::Kind::mismatch;
        say("key " + quoted(plan_.key) + " was already used for something else (by " + escaped(begin.record->holder) +
                "). Nothing was run. Use another key, or see --fingerprint for what a retry must repeat." +
                (is_released(*begin.record) ? " The key was released for the same command only; `once release "
                                              "--any-payload` allows another one."
                                            : ""),
            LogLevel::err);
        return exit_mismatch;
      case Begin::Kind::unknown: {
        outcome_ = Outcome::Kind::unknown;
        std::optional<int> code;
        if (!is_decided_by_asking(begin.record, code)) code = unknown(*begin.record);
        return code;
      }
      case Begin::Kind::error:  // Sets the outcome.
        return claim_failed(begin);
    }
    return exit_internal;
  }

  static void observe(RunState& state, const Event& event) {
    switch (event.kind) {
      case EventKind::unprotected:
        return say("ONCE_DISABLED is set: " + quoted_stored(event.key) + " runs unprotected, so that it may run twice",
                   LogLevel::warning);
      case EventKind::completed:
      case EventKind::failed:
      case EventKind::held:
      case EventKind::released:
        state.recorded = true;
        break;
      case EventKind::finish_refused:
        state.refused = true;
        break;
      case EventKind::renewed:
      case EventKind::renewal_lost:  // The lease ended. Whether the claim is lost, its token reports.
        break;
      case EventKind::store_error:
        if (event.error != nullptr) {
          const std::lock_guard lock(state.mutex);
          state.trouble = event.error->message;
        }
        return;
      default:
        return;
    }
    state.changed.set();
  }

  // Asks --reconcile about an unknown operation. True: it is no longer unknown, and `code` is the exit code, or empty
  // to begin again.
  bool is_decided_by_asking(const RecordPtr& unknown, std::optional<int>& code) {
    if (options_.reconcile.empty() || questions_ == most_questions) return false;
    ++questions_;
    int signal = 0;
    const auto gives_up = [&] {
      while (const auto taken = signals_->next()) {
        if (taken->number == SIGTSTP) Signals::stop_ourselves();
        if (Signals::ends_us(taken->number)) signal = taken->number;
      }
      return signal != 0;
    };
    const AskCommand ask{.command = options_.reconcile,
                         .timeout = plan_.reconcile_timeout,
                         .output_limit = options_.no_output ? 0 : inline_limit_,
                         .derive_name = options_.derive_name,
                         .wake = signals_->fd(),
                         .gives_up = gives_up};
    const EffectivePolicy policy = effective(plan_.policy);
    Reconciler reconciler({.store = access_.store,
                           .ask = ask_blocking([&](const Record& record) { return ask_command(ask, record); }),
                           .settle = plan_.reconcile_settle,
                           .tries = 0,  // Each call asks once.
                           .retention = policy.retention,
                           .failure_retention = policy.failure_retention,
                           .observer = log_observer(log_options(options_.log))});
    const Reconciled reconciled = reconciler.ask(unknown);
    if (signal != 0) Signals::die_of(signal);
    switch (reconciled.kind) {
      case Reconciled::Kind::completed:
        outcome_ = Outcome::Kind::replayed;
        code = replay(*reconciled.record);
        return true;
      case Reconciled::Kind::failed:
        outcome_ = Outcome::Kind::stored_failure;
        code = replay(*reconciled.record);
        return true;
      case Reconciled::Kind::released:
        if (options_.verbose) say(quoted(plan_.key) + " did not take place: " + escaped(reconciled.record->note));
        return true;
      case Reconciled::Kind::changed:  // Somebody else has decided.
        return true;
      case Reconciled::Kind::not_known:
      case Reconciled::Kind::gave_up:
      case Reconciled::Kind::not_asked:
      case Reconciled::Kind::not_stored:
        break;
    }
    say("asked about " + quoted(plan_.key) + ", and it is still unknown: " + escaped(reconciled.why),
        LogLevel::warning);
    return false;
  }

  // The limits of the store and the offload decide where output is kept.
  void choose_limits() {
    inline_limit_ = std::min<std::uint64_t>(plan_.output_limit, usable_bytes(*access_.store));
    // Leaves room for the few bytes that a result has besides its output.
    plan_.policy.max_inline_bytes = std::max<std::size_t>(inline_limit_ + 64, 256);
    record_limit_ = access_.offload ? std::max(plan_.offload_limit, inline_limit_) : inline_limit_;
  }

  // Until `done` or the deadline, taking signals meanwhile; `on_signal` gets those that end the program, and returns
  // whether to continue.
  template <class Done, class OnSignal>
  void wait(std::optional<Uptime> until, Done&& done, OnSignal&& on_signal) {
    for (;;) {
      state_->changed.clear();
      if (done()) return;
      int timeout = -1;
      if (until) {
        timeout = poll_timeout(*until - system_clock()->uptime());
        if (timeout == 0) return;
      }
      pollfd waits[2] = {{.fd = state_->changed.fd(), .events = POLLIN, .revents = 0},
                         {.fd = signals_->fd(), .events = POLLIN, .revents = 0}};
      poll(waits, 2, timeout);
      while (const auto signal = signals_->next()) {
        if (signal->number == SIGTSTP) Signals::stop_ourselves();
        if (Signals::ends_us(signal->number) && !on_signal(signal->number)) return;
      }
    }
  }

  void keep_input(Request& request) const {
    if (options_.keep_input == "args") {
      std::string list;
      for (const std::string& argument : command_) {
        list.append(list.empty() ? "[" : ",").append(text::json::quoted(text::replace_invalid_utf8(argument)));
      }
      request.input = std::make_shared<const std::string>(list + "]");
    } else if (options_.keep_input == "stdin") {
      if (filters() && input_.bytes > input_.beginning.size()) return;
      request.input = plan_.input(input_.beginning);
      if (!filters()) request.input_bytes = input_.bytes;
    }
  }

  [[nodiscard]] bool filters() const noexcept { return !plan_.input.empty(); }

  Begin begin_with(Engine& engine) {
    Request request{.key = plan_.key,
                    .fingerprint = fingerprint_,
                    .policy = plan_.policy,
                    .holder = {},
                    .label = std::string(plan_.key.name()),
                    .trace = trace_from_environment()};
    keep_input(request);
    state_->forget();
    engine.begin(std::move(request), [state = state_](Begin begin) {
      const std::lock_guard lock(state->mutex);
      state->begun.emplace(std::move(begin));
      state->changed.set();
    });
    const auto begun = [&] {
      const std::lock_guard lock(state_->mutex);
      return state_->begun.has_value();
    };
    int signal = 0;
    wait(std::nullopt, begun, [&](int number) {
      signal = number;
      return false;
    });
    if (signal != 0) {
      // A claim may still come. It is released if it comes soon, otherwise it lapses. Nothing was run.
      constexpr Millis patience{250};
      wait(system_clock()->uptime() + patience, begun, [](int) { return true; });
      if (begun() && state_->begun->kind == Begin::Kind::claimed) give_back(state_->begun->claim, "interrupted");
      Signals::die_of(signal);
    }
    const std::lock_guard lock(state_->mutex);
    return std::move(*state_->begun);
  }

  // Nothing ran, or the command may run again.
  Finish give_back(Claim& claim, const std::string& why) {
    return finish([&](FinishDone done) { claim.release(why, std::move(done)); }, claim);
  }

  template <class Start>
  Finish finish(Start&& start, const Claim& claim) {
    start(FinishDone([state = state_](Finish finish) {
      const std::lock_guard lock(state->mutex);
      state->finished.emplace(std::move(finish));
      state->changed.set();
    }));
    const auto finished = [&] {
      const std::lock_guard lock(state_->mutex);
      return state_->finished.has_value();
    };
    wait(std::nullopt, finished, [](int) { return true; });
    Finish finish = [&] {
      const std::lock_guard lock(state_->mutex);
      return std::move(*state_->finished);
    }();
    if (finish.kind != Finish::Kind::unrecorded || state_->recorded) return finish;
    const Uptime deadline = claim.deadline();
    if (deadline > system_clock()->uptime()) {
      say("result not stored yet, retrying: " + finish.error.message, LogLevel::warning);
      wait(
          deadline, [&] { return state_->recorded.load() || state_->refused.load(); },
          [](int number) { return !Signals::asks_for_end(number); });
    }
    if (state_->recorded) finish.kind = Finish::Kind::recorded;
    if (state_->refused) finish.kind = Finish::Kind::lost;
    return finish;
  }

  // Before the claim: what the system refuses now, it refuses without a trace in the store.
  void prepare() { prepared_ = prepare_command(supervise_options(), *signals_); }

  SuperviseOptions supervise_options() const {
    SuperviseOptions supervise;
    supervise.command = command_;
    supervise.input = input_.spool ? input_.spool.get() : STDIN_FILENO;
    supervise.survive = options_.survive;
    supervise.terminal = options_.terminal;
    supervise.end_when_lost = options_.on_lost == "kill";
    supervise.grace = plan_.grace;
    supervise.output_wait = plan_.output_wait;
    supervise.lease = effective(plan_.policy).lease;
    return supervise;
  }

  std::optional<int> execute(Claim claim) {
    if (options_.verbose) {
      say("attempt " + std::to_string(claim.attempt()) + " for " + quoted(plan_.key) + " begins");
    }
    // This process may have been stopped since. A command that has not begun can be released safely.
    if (!claim.is_ours()) {
      give_back(claim, "the lease expired before the command began");
      return std::nullopt;
    }
    // A lease that ended in a sleep of the host may be renewed: until then the guard pauses the command.
    const std::stop_callback on_loss(claim.loss_token(), [state = state_] {
      state->lost = true;
      state->changed.set();
    });
    // The command may finish the operation in a transaction of its own, in the store's database.
    HandedOut handed;
    const bool may_finish = access_.store->capabilities().hands_out || access_.store->claims_server() != nullptr;
    if (may_finish && !is_disabled_by_environment()) handed = claim.hand_out();
    std::optional<Finish> finished;
    const auto take_back = [&] {
      if (handed) finished = std::exchange(handed, HandedOut()).take_back();
    };
    const std::unique_ptr<PreparedCommand> prepared = std::move(prepared_);
    has_run_ = true;
    SuperviseOptions& supervise_with = prepared->options();
    std::vector<std::pair<std::string, std::string>> variables{
        {"ONCE_KEY", std::string(plan_.key.name())},
        {"ONCE_SCOPE", plan_.key.scope()},
        {"ONCE_ATTEMPT", std::to_string(claim.attempt())},
        {"ONCE_TOKEN", std::to_string(claim.token())},
        {"ONCE_OWNER", claim.owner().hex()},
        {"ONCE_DERIVED_KEY", claim.derived_key(options_.derive_name)}};
    // For finish_or_raise() of PostgreSQL's schema.
    if (handed) variables.emplace_back("ONCE_STORED_KEY_HEX", to_hex(claim.record().key));
    add_trace(variables, claim.trace());
    supervise_with.environment = environment_of_command(variables);
    supervise_with.changed = &state_->changed;
    supervise_with.deadline = [&] {  // Never, once a renewal has found that the command has finished it.
      constexpr Uptime never_comes = std::chrono::hours(24 * 365 * 100);
      return std::optional(state_->recorded ? never_comes : claim.deadline());
    };
    supervise_with.lost = [state = state_] { return state->lost.load(); };
    Recorder recorder(options_.no_output ? 0 : record_limit_);
    Supervised supervised;
    try {
      supervised = prepared->run(recorder);
    } catch (const CommandUnwatched& error) {  // The command may have acted: the claim's on_lapse decides.
      return fail_with(error.error());
    }
    take_back();
    if (supervised.kind == Supervised::Kind::not_started) {
      give_back(claim, "the command could not be executed");
      if (supervised.error == ECANCELED) return std::nullopt;  // Its lease was over, or its process was killed.
      return not_started(supervised.error);
    }
    if (finished) return done_by_command(*finished, supervised, recorder);
    if (supervised.kind == Supervised::Kind::guard_died) {
      // Not released, for any --on-signal: the next attempt would run beside the rest of this one.
      return guard_died("What the command had started may still run, so the claim is not released. " +
                        after_lapse(claim));
    }
    return conclude(claim, supervised, recorder);
  }

  static int guard_died(const std::string& then) {
    say("the process that guarded the command was killed, and the command with it. " + then, LogLevel::err);
    return CommandEnd{.signaled = true, .code = SIGKILL}.exit_code();
  }

  static std::string after_lapse(const Claim& claim) {
    return claim.record().on_lapse == OnLapse::hold
               ? "After the lease expires, the outcome is unknown and nothing runs until an operator decides."
               : "After the lease expires, the next call runs the command again, unless a result is stored by then.";
  }

  // The command's own code, unless its output was lost.
  static int exit_code_with_output(const Supervised& supervised) {
    const int code = supervised.end.exit_code();
    if (supervised.output_error == 0) return code;
    say(std::string("cannot pass on the command's output: ") + std::strerror(supervised.output_error), LogLevel::err);
    return code == 0 ? static_cast<int>(exit_output) : code;
  }

  int not_started(int why) {
    outcome_ = Outcome::Kind::error;
    say("cannot execute '" + escaped(command_.front()) + "': " + std::strerror(why) + ". Nothing was run.",
        LogLevel::err);
    return why == ENOENT ? exit_not_found : exit_cannot_execute;
  }

  // Empty: begin again.
  std::optional<int> conclude(Claim& claim, const Supervised& supervised, Recorder& recorder) {
    const CommandEnd end = supervised.end;
    const bool interrupted = supervised.interrupted_by != 0 || supervised.out_of_time;
    CommandFate fate = plan_.rules.fate(end, interrupted, claim.record().on_lapse);
    const bool keeps = fate == CommandFate::success || fate == CommandFate::store;
    const bool wrote = !recorder.empty();
    const bool cut_off = supervised.out_of_time && !keeps;  // It was stopped before its end.
    std::string kept_bytes;
    Result result;
    if (keeps) {
      std::string encoded = options_.no_output ? Recorder(0).finish(end) : recorder.finish(end);
      if (encoded.size() <= inline_limit_) kept_bytes = encoded;
      result = Result::inlined(std::move(encoded), std::string(run_content_type));
    }
    const std::string ended = end.text();
    const Finish finished = finish(
        [&](FinishDone done) {
          switch (fate) {
            case CommandFate::success:
              return claim.complete(std::move(result), std::move(done));
            case CommandFate::store:
              return claim.fail({.code = ended, .message = "the command ended with " + ended}, std::move(result),
                                std::move(done));
            case CommandFate::release:
              return claim.release("the command ended with " + ended, std::move(done));
            case CommandFate::hold:
              return claim.hold("the command ended with " + ended + "; it may have acted", std::move(done));
          }
        },
        claim);
    if (is_done_by_command(finished)) return done_by_command(finished, supervised, recorder);
    // An operator has asked for `hold` meanwhile.
    if (finished.record != nullptr && finished.record->state == State::unknown) fate = CommandFate::hold;
    const bool recorded = finished.kind == Finish::Kind::recorded;
    const bool is_unknown = recorded && finished.record != nullptr && finished.record->state == State::unknown;
    if (std::optional<int> code;
        is_unknown && supervised.interrupted_by == 0 && is_decided_by_asking(finished.record, code)) {
      return code;
    }
    const bool needs_decision = recorded && fate == CommandFate::hold && !cut_off;  // Cut off: said below.
    if (options_.verbose || (needs_decision && !log_options(options_.log))) {       // The log says it too.
      say("the command ended with " + ended + (recorded ? "; " + std::string(words(fate)) : std::string()));
    }
    if (keeps && recorder.dropped() && !options_.no_output) {
      say("the output of " + show_size(recorder.total_bytes()) +
          " is too large to keep. Later callers get an error that says so, and nothing is run for them.");
    }
    const int code = exit_code_with_output(supervised);
    if (keeps && finished.record != nullptr && finished.record->result.placement == Placement::dropped) {
      const std::lock_guard lock(state_->mutex);
      say("the output of " + show_size(recorder.total_bytes()) +
          " could not be kept. Later callers get an error that says so, and nothing is run for them. " +
          (state_->trouble.empty() ? "No place outside the store is configured; see --offload." : state_->trouble));
    }
    switch (finished.kind) {
      case Finish::Kind::recorded:
        if (cut_off) {
          outcome_ = Outcome::Kind::lost;
          say("the claim could not be renewed in time, so once stopped the command; " + std::string(words(fate)),
              LogLevel::err);
          return exit_lost;
        }
        sweep_some();
        return code;
      case Finish::Kind::superseded:
      case Finish::Kind::lost:
        return lost(finished, wrote, kept_bytes);
      case Finish::Kind::declined:  // No other writes commit with a command.
      case Finish::Kind::unrecorded:
        outcome_ = Outcome::Kind::unrecorded;
        if (cut_off) {
          say("the claim could not be renewed, so once stopped the command: " + finished.error.message, LogLevel::err);
          return exit_lost;
        }
        say("the command ran, but its result could not be stored: " + finished.error.message + ". " +
                after_lapse(claim),
            LogLevel::err);
        return options_.on_unrecorded == "fail" ? exit_unrecorded : code;
    }
    return exit_internal;
  }

  // Removes some expired records of a file: where each call has a new key, as in a cron job, nobody else does, and the
  // file would grow for ever. Other stores have a server for that, or a time to live.
  void sweep_some() const {
    if (options_.no_sweep || !stores::sqlite_status(*access_.store)) return;
    const auto told = access_.store->time();
    if (!told) return;
    constexpr std::size_t most = 100;  // More than a call adds, and too few to notice.
    const auto swept = operate::sweep(
        *access_.store,
        {.expired_before = told->now - told->error, .offload = access_.offload, .progress = {}, .limit = most});
    if (swept.error && options_.verbose) say("expired records were not removed: " + swept.error->message);
  }

  // Completed under our own owner, but not by us.
  static bool is_done_by_command(const Finish& finished) {
    return finished.kind == Finish::Kind::recorded && finished.record != nullptr &&
           finished.record->state == State::completed && finished.record->result.content_type != run_content_type;
  }

  // The command has finished the operation in its own transaction. What that stored is the result, for this caller too.
  int done_by_command(const Finish& finished, const Supervised& supervised, const Recorder& recorder) {
    outcome_ = Outcome::Kind::executed;
    const int code = exit_code_with_output(supervised);
    if (options_.verbose) say("the command finished the operation in a transaction of its own");
    if (supervised.end.exit_code() != 0) {
      say("the command ended with " + supervised.end.text() +
              " after it had finished the operation in a transaction of its own, so the operation counts as done",
          LogLevel::err);
    }
    if (recorder.empty() && finished.record != nullptr) return replay(*finished.record);
    return supervised.end.exit_code() == 0 ? code : 0;
  }

  static std::string_view words(CommandFate fate) {
    switch (fate) {
      case CommandFate::success:
      case CommandFate::store:
        return "its result is stored";
      case CommandFate::release:
        return "claim released: the next call runs the command";
      case CommandFate::hold:
        return "its outcome is unknown, so nothing runs until you record it with `once resolve`";
    }
    return {};
  }

  // The claim was lost while the command ran: another attempt's result counts.
  int lost(const Finish& finished, bool wrote, const std::string& ours) {
    const Record* const record = finished.record.get();
    outcome_ = Outcome::Kind::lost;
    if (record == nullptr || (record->state != State::completed && record->state != State::failed)) {
      say("the claim on " + quoted(plan_.key) + " was lost while the command ran, and its result is not stored" +
          (record == nullptr
               ? std::string(": the record is gone")
               : "; the record is now " + std::string(to_string(record->state)) + " (" + escaped(record->holder) +
                     (record->note.empty() ? "" : "; " + escaped(record->note)) + ")"));
      return exit_lost;
    }
    outcome_ = Outcome::Kind::superseded;
    if (!ours.empty() && record->result.placement == Placement::inlined && record->result.bytes == ours) {
      outcome_ = Outcome::Kind::executed;
      return decode_run_result(ours).end.exit_code();  // The results are equal to the last byte.
    }
    if (!wrote && record->result.placement == Placement::inlined) return replay(*record);
    say("the claim on " + quoted(plan_.key) +
        " was lost while the command ran, and another attempt's result is stored (" + escaped(record->holder) +
        "). The output above does not count; repeat the call to get the stored result.");
    return exit_superseded;
  }

  int replay(const Record& record) {
    if (options_.verbose) {
      say("replayed: " + quoted(plan_.key) + " was run by " + escaped(record.holder) + " and ended at " +
          text::rfc3339(record.finished_at) + (record.note.empty() ? "" : " (" + escaped(record.note) + ")"));
    }
    if (record.result.placement == Placement::dropped) {
      return dropped(
          (record.state == State::failed ? "it ended with " + escaped(record.failure.code) + ", but its" : "its") +
              " result of " + show_size(record.result.size),
          "was not kept: it was too large, had no room, or could not be written outside the store");
    }
    if (record.result.content_type != run_content_type) return replay_foreign(record);
    const RunResult run = decode_run_result(record.result.bytes);
    if (run.dropped) {
      return dropped("it ended with exit code " + std::to_string(run.end.exit_code()) + ", but its output of " +
                         show_size(run.output_bytes + run.error_bytes),
                     "was too large to keep");
    }
    bool writable[2] = {true, true};
    int code = run.end.exit_code();
    for (const RunResult::Chunk& chunk : run.chunks) {
      const bool output = chunk.stream == Stream::output;
      bool& open = writable[output ? 0 : 1];
      if (!open || write_all(output ? STDOUT_FILENO : STDERR_FILENO, chunk.bytes)) continue;
      open = false;
      if (errno == EPIPE) continue;  // The reader has disconnected.
      say(std::string("cannot write the replayed output: ") + std::strerror(errno), LogLevel::err);
      if (code == 0) code = exit_output;
    }
    return code;
  }

  // A result stored by the library, or by an operator with `once resolve`.
  static int replay_foreign(const Record& record) {
    const int printed = print(record.result.bytes);
    if (record.state == State::completed) return printed;
    say("it failed: " + escaped(record.failure.code) +
        (record.failure.message.empty() ? "" : ": " + escaped(record.failure.message)));
    return 1;
  }

  int dropped(const std::string& what, const char* became) const {
    say(quoted(plan_.key) + " was run before: " + what + " " + became +
        ". Nothing was run. For later keys, --output-limit, --offload-limit, --offload and --no-output change what is "
        "kept.");
    return exit_dropped;
  }

  int conflict(const Record& record, Millis retry_after) const {
    const Time now = operate::now(*access_.store, *system_clock());
    if (options_.if_running == "skip" && operate::standing(record, now) == operate::Standing::running) {
      if (!is_overdue(record, now)) {
        if (options_.verbose) {
          say("skipped: " + quoted(plan_.key) + " is being run by " + escaped(record.holder) + ". Nothing was run.");
        }
        return exit_ok;
      }
      say(quoted(plan_.key) + " is overdue: it should have ended " + relative(record.expected_until, now) +
          ", and is still being run by " + escaped(record.holder) + ". Nothing was run.");
      return exit_conflict;
    }
    say(quoted(plan_.key) + " is being run by " + escaped(record.holder) + " (attempt " +
        std::to_string(record.attempt) + "); the lease expires in " + show_duration(retry_after) +
        " unless it is renewed. Nothing was run. " +
        (options_.wait.empty() ? "To wait for the result, add --wait 10s."
                               : "It did not finish within " + options_.wait + "."));
    return exit_conflict;
  }

  int unknown(const Record& record) const {
    say("the outcome of " + quoted(plan_.key) + " is unknown: " + escaped(record.failure.message) + " (" +
            escaped(record.holder) +
            "). Nothing was run. Find out what happened, then record it with `once resolve --as "
            "completed|failed|released`.",
        LogLevel::err);
    return exit_unknown;
  }

  int claim_failed(const Begin& begin) {
    const int code = store_failed(begin.error, begin.record != nullptr);
    if (begin.error.kind != ErrorKind::misuse) return code;
    // If another key meets it too, it is no fault of this call: there is no table, for example.
    const Answer other = blocking::get(*access_.store, Key("once", "is there a store").stored());
    return other.status == AnswerStatus::failed ? exit_code_of_store(other.error.kind) : code;
  }

  // `answered`: the store had returned a record before the failure, so a run would be a second one.
  int store_failed(const Error& error, bool answered) {
    outcome_ = Outcome::Kind::error;
    const bool down = !answered && (error.kind == ErrorKind::unavailable || error.kind == ErrorKind::in_doubt);
    if (!down || options_.on_store_down != "run-unprotected") {
      say(error.message + ". Nothing was run.");
      return exit_code_of(error.kind);
    }
    say(error.message + ". The command runs without protection, because of --on-store-down run-unprotected.",
        LogLevel::warning);
    if (prepared_ == nullptr) prepare();
    has_run_ = true;
    prepared_->options().environment =
        environment_of_command({{"ONCE_KEY", std::string(plan_.key.name())},
                                {"ONCE_SCOPE", plan_.key.scope()},
                                {"ONCE_ATTEMPT", "1"},
                                {"ONCE_TOKEN", "0"},
                                {"ONCE_DERIVED_KEY", derived_key(plan_.key.stored(), options_.derive_name)}});
    outcome_ = Outcome::Kind::unprotected;
    Recorder recorder(0);
    const Supervised supervised = prepared_->run(recorder);
    if (supervised.kind == Supervised::Kind::not_started) return not_started(supervised.error);
    if (supervised.kind == Supervised::Kind::guard_died) return guard_died("It ran without a claim.");
    return exit_code_with_output(supervised);
  }

  const RunOptions& options_;
  const std::vector<std::string> command_;
  const Spans spans_{span_options(SpanKind::internal, SpanKind::internal)};
  RunPlan plan_;
  Input input_;
  Fingerprint fingerprint_;
  Signals* signals_ = nullptr;
  std::unique_ptr<PreparedCommand> prepared_;
  bool has_run_ = false;  // The command was begun.
  importing::FallbackAccess opened_;
  const StoreAccess& access_ = opened_.access;
  std::uint64_t inline_limit_ = 0;
  std::uint64_t record_limit_ = 0;
  Outcome::Kind outcome_ = Outcome::Kind::error;  // So far.
  int questions_ = 0;                             // Asked so far.
  const std::shared_ptr<RunState> state_ = std::make_shared<RunState>();
};

}  // namespace

int run_command(const RunOptions& options, std::vector<std::string> command) {
  return Run(options, std::move(command)).run();
}

}  // namespace once::cli
