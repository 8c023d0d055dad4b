#include "process/lambda_invoke.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/frontends/lambda/local_api.hpp>
#include <once/platform/system.hpp>

#include "output/exit_codes.hpp"
#include "output/lambda_report.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "process/guard.hpp"
#include "process/lambda_environment.hpp"
#include "process/supervise.hpp"
#include "settings/access.hpp"

namespace once::cli {

namespace {

using lambda::InvocationOutcome;
using lambda::LocalApi;
using LambdaPoint = lambda::LocalApiOptions::Point;
using Steady = std::chrono::steady_clock;

constexpr std::string_view killed_as_planned = "killed as planned";

// A notice from the threads of the Runtime APIs to the main one.
struct LambdaNotice {
  enum class Kind : std::uint8_t { ended, waiting, given, kill, cleared };
  Kind kind = Kind::waiting;
  std::size_t environment = 0;
  std::size_t job = 0;             // ended
  std::string request_id = {};     // given
  InvocationOutcome outcome = {};  // ended
};

class LambdaNotices {
 public:
  void put(LambdaNotice notice) {
    {
      const std::lock_guard lock(mutex_);
      notices_.push_back(std::move(notice));
    }
    changed_.set();
  }
  std::deque<LambdaNotice> take() {
    changed_.clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(notices_, {});
  }
  [[nodiscard]] int fd() const noexcept { return changed_.fd(); }

 private:
  Wakeup changed_;
  std::mutex mutex_;
  std::deque<LambdaNotice> notices_;
};

struct LambdaJob {
  std::size_t event = 0;
  std::string request_id;
  bool cold = false;
};

class LambdaInvoke {
 public:
  explicit LambdaInvoke(const InvokeOptions& options)
      : options_(options),
        timeout_(parse_duration(options.timeout, "--timeout")),
        init_timeout_(parse_duration(options.init_timeout, "--init-timeout")),
        freeze_(options.freeze.empty() ? Millis{0} : parse_duration(options.freeze, "--freeze")),
        kill_(parse_kill_plan(options.kill_at)),
        report_(options.json, timeout_) {
    check_invoke_options(options);
    events_ = read_events(options);
    jobs_.resize(events_.size() * options.repeat);
    for (std::size_t i = 0; i < jobs_.size(); ++i)
      jobs_[i] = {.event = i % events_.size(), .request_id = lambda::make_request_id(*system_random())};
    for (std::size_t i = 0; i < jobs_.size(); ++i) by_request_id_[jobs_[i].request_id] = i;
    if (kill_.point != KillPlan::Point::never && kill_.invocation > jobs_.size()) {
      misuse("--kill-at names invocation " + std::to_string(kill_.invocation) + " of " + std::to_string(jobs_.size()));
    }
  }

  int run() {
    const std::string store = store_of_function(options_);  // It need not be a URL of ours.
    if (store.find("?fallback=") != std::string::npos || store.find("&fallback=") != std::string::npos) {
      refuse_fallback();
    }
    if (kill_.point != KillPlan::Point::never && store_ends_with_function(options_)) {
      say("ONCE_STORE=memory: ends with the function, so after a kill its work runs again. Use a store that outlives "
          "the function");
    }
    Signals signals;  // Before the threads of the APIs.
    signals_ = &signals;
    null_.reset(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null_) throw Exception(ErrorKind::unavailable, std::string("cannot open /dev/null: ") + std::strerror(errno));
    const std::size_t count = std::min(options_.concurrency, jobs_.size());
    for (std::size_t i = 0; i < count; ++i) {
      environments_.emplace_back();
      environments_.back().api = std::make_unique<LocalApi>(api_options(i));
    }
    began_ = Steady::now();
    while (ended_ < jobs_.size() && interrupted_ == 0 && failed_ == exit_ok) {
      dispatch();
      turn();
    }
    shut_down();
    if (interrupted_ != 0) Signals::die_of(interrupted_);
    if (failed_ != exit_ok) return failed_;
    return sum_up();
  }

 private:
  [[nodiscard]] bool is_target(const std::string& request_id) const {
    return kill_.point != KillPlan::Point::never && request_id == jobs_[kill_.invocation - 1].request_id;
  }

  lambda::LocalApiOptions api_options(std::size_t environment) {
    lambda::LocalApiOptions options;
    options.on_point = [this, environment](LambdaPoint point, const std::string& request_id) {
      // Called on the API's thread, so it reads only data that no longer changes.
      const bool target = is_target(request_id);
      switch (point) {
        case LambdaPoint::waiting:
          notices_.put({.environment = environment, .request_id = request_id});
          break;
        case LambdaPoint::given:
          notices_.put({.kind = LambdaNotice::Kind::given, .environment = environment, .request_id = request_id});
          if (target && kill_.point == KillPlan::Point::given) kill_soon(environment);
          break;
        case LambdaPoint::answering:
          if (!target) break;
          if (kill_.point == KillPlan::Point::answering) kill_soon(environment);
          // With `given`, the answer came before the signal.
          return kill_.point != KillPlan::Point::answering && kill_.point != KillPlan::Point::given;
        case LambdaPoint::answered:
          if (target && kill_.point == KillPlan::Point::answered) kill_soon(environment);
          break;
      }
      return true;
    };
    return options;
  }

  void kill_soon(std::size_t environment) {
    notices_.put({.kind = LambdaNotice::Kind::kill, .environment = environment});
  }

  // --- what is to be done ---

  void dispatch() {
    for (LambdaEnvironment& environment : environments_) {  // Its process ended just before it got them.
      if (!environment.alive() && !environment.dying && !environment.not_given.empty()) start(environment);
    }
    for (bool given = true; given;) {  // Round-robin, so that all environments are busy.
      given = false;
      for (std::size_t i = 0; i < environments_.size() && next_job_ < jobs_.size() && failed_ == exit_ok; ++i) {
        LambdaEnvironment& environment = environments_[i];
        if (environment.ending || environment.dying || environment.rest_until || environment.thaw_at ||
            environment.open >= options_.threads) {
          continue;
        }
        if (!environment.alive()) start(environment);
        submit(i, next_job_++);
        given = true;
      }
    }
  }

  void submit(std::size_t index, std::size_t number) {
    LambdaEnvironment& environment = environments_[index];
    const LambdaJob& job = jobs_[number];
    ++environment.open;
    environment.not_given.insert(number);
    lambda::SubmitOptions options;
    options.request_id = job.request_id;
    options.function_arn = "arn:aws:lambda:eu-central-1:000000000000:function:" + options_.name;
    options.timeout = timeout_;
    options.tenant_id = options_.tenant_id.value_or("");
    environment.api->submit(events_[job.event], std::move(options), [this, index, number](InvocationOutcome outcome) {
      notices_.put(
          {.kind = LambdaNotice::Kind::ended, .environment = index, .job = number, .outcome = std::move(outcome)});
    });
  }

  void start(LambdaEnvironment& environment) {
    environment.start(options_, null_, *signals_);
    ++starts_;
  }

  void on_report(std::size_t index) {
    LambdaEnvironment& environment = environments_[index];
    const auto death = environment.read_report();
    if (!death) return;
    if (death->cannot_execute != 0) {
      failed_ = death->cannot_execute == ENOENT ? exit_not_found : exit_cannot_execute;
      say("cannot execute '" + escaped(options_.program) + "': " + std::strerror(death->cannot_execute) +
          (options_.program.find('/') == std::string::npos
               ? ". For a program in this folder, write ./" + escaped(options_.program)
               : "") +
          ". Nothing was run.");
    }
    // A process that takes no event must not be restarted forever: the waiting events fail.
    environment.api->function_died(death->how, LocalApi::Waiting::end_if_untouched, [this, index] {
      notices_.put({.kind = LambdaNotice::Kind::cleared, .environment = index});
    });
  }

  // --- waiting ---

  void turn() {
    std::vector<pollfd> waits;
    waits.push_back({.fd = signals_->fd(), .events = POLLIN, .revents = 0});
    waits.push_back({.fd = notices_.fd(), .events = POLLIN, .revents = 0});
    for (const LambdaEnvironment& environment : environments_) {
      waits.push_back({.fd = environment.alive() ? environment.socket.get() : -1, .events = POLLIN, .revents = 0});
    }
    int limit = -1;
    if (const auto next = next_moment()) limit = poll_timeout(*next - Steady::now());
    if (poll(waits.data(), waits.size(), limit) < 0 && errno != EINTR) {
      throw Exception(ErrorKind::unavailable, std::string("cannot wait for the function: ") + std::strerror(errno));
    }
    on_signals();
    for (LambdaNotice& notice : notices_.take()) on_notice(notice);
    for (std::size_t i = 0; i < environments_.size(); ++i) {
      if (waits[i + 2].revents != 0 && environments_[i].alive()) on_report(i);
    }
    on_time();
  }

  [[nodiscard]] std::optional<Steady::time_point> next_moment() const {
    std::optional<Steady::time_point> next;
    const auto consider = [&](const std::optional<Steady::time_point>& when) {
      if (when && (!next || *when < *next)) next = when;
    };
    for (const LambdaEnvironment& environment : environments_) {
      consider(environment.kill_at);
      consider(environment.rest_until);
      consider(environment.thaw_at);
      if (environment.alive() && !environment.asked && !environment.ending)
        consider(environment.started + init_timeout_);
    }
    return next;
  }

  void on_time() {
    const auto now = Steady::now();
    for (LambdaEnvironment& environment : environments_) {
      const bool starting = environment.alive() && !environment.asked && !environment.ending;
      if (starting && now >= environment.started + init_timeout_) {
        environment.kill("it did not ask for an event within " + show_duration(init_timeout_) +
                         " (--init-timeout), and was killed");
      }
      if (environment.kill_at && now >= *environment.kill_at) {
        environment.kill_at.reset();
        killed_ = true;
        environment.kill(killed_as_planned);
      }
      if (environment.rest_until && now >= *environment.rest_until) environment.rest_until.reset();
      if (environment.thaw_at && now >= *environment.thaw_at) {
        environment.thaw_at.reset();
        environment.order({.kind = GuardOrder::Kind::signal, .value = SIGCONT});
      }
    }
  }

  void on_signals() {
    while (const auto signal = signals_->next()) {
      if (Signals::asks_for_end(signal->number)) interrupted_ = signal->number;
      if (signal->number == SIGTSTP) Signals::stop_ourselves();
    }
  }

  // It will be killed, and must get no further event before.
  [[nodiscard]] bool is_killed_when_answered(const InvocationOutcome& outcome) const {
    return kill_.point == KillPlan::Point::answered && is_target(outcome.request_id);
  }

  void on_notice(LambdaNotice& notice) {
    LambdaEnvironment& environment = environments_[notice.environment];
    switch (notice.kind) {
      case LambdaNotice::Kind::waiting:
        environment.asked = true;
        if (environment.rest_until && environment.alive() && !environment.ending) {
          environment.rest_until.reset();
          environment.thaw_at = Steady::now() + freeze_;
          environment.order({.kind = GuardOrder::Kind::signal, .value = SIGSTOP});
        }
        return;
      case LambdaNotice::Kind::given: {
        environment.asked = true;
        const std::size_t number = by_request_id_.at(notice.request_id);
        jobs_[number].cold = environment.given == 0;
        environment.not_given.erase(number);
        ++environment.given;
        if (is_target(notice.request_id) && kill_.point == KillPlan::Point::later) {
          environment.kill_at = Steady::now() + kill_.later;
        }
        return;
      }
      case LambdaNotice::Kind::cleared:
        environment.dying = false;
        return;
      case LambdaNotice::Kind::kill:
        killed_ = true;
        return environment.kill(killed_as_planned);
      case LambdaNotice::Kind::ended:
        --environment.open;
        environment.not_given.erase(notice.job);
        ++ended_;
        if (is_target(notice.outcome.request_id) && kill_.point == KillPlan::Point::later) environment.kill_at.reset();
        if (notice.outcome.kind == InvocationOutcome::Kind::error && !notice.outcome.given) {
          environment.end("its init failed");
        } else if (notice.outcome.kind == InvocationOutcome::Kind::timed_out) {
          environment.kill("the function was killed because another of its invocations timed out");
        } else if (is_killed_when_answered(notice.outcome) ||
                   (freeze_ > Millis{0} && environment.alive() && next_job_ < jobs_.size())) {
          environment.rest_until = Steady::now() + init_timeout_;
        }
        return show(notice.environment, jobs_[notice.job], notice.outcome);
    }
  }

  // Asks the function to end as the platform does, then ends it.
  void shut_down() {
    const std::int64_t limit = interrupted_ != 0 ? 0 : LambdaEnvironment::shutdown_limit();
    for (LambdaEnvironment& environment : environments_) {
      if (environment.thaw_at) environment.order({.kind = GuardOrder::Kind::signal, .value = SIGCONT});
      environment.thaw_at.reset();
      environment.rest_until.reset();
      environment.kill_at.reset();
      environment.why_ending = "once was asked to end";
      environment.ending = true;
      environment.order({.kind = GuardOrder::Kind::end, .value = 0, .limit = limit});
    }
    const auto any_alive = [&] {
      return std::any_of(environments_.begin(), environments_.end(), [](const auto& one) { return one.alive(); });
    };
    const bool was_interrupted = interrupted_ != 0;
    while (any_alive()) {
      turn();
      if (interrupted_ != 0 && !was_interrupted) {
        for (const LambdaEnvironment& environment : environments_) {
          environment.order({.kind = GuardOrder::Kind::end, .value = 0, .limit = 0});
        }
      }
    }
    for (LambdaEnvironment& environment : environments_) environment.api.reset();
  }

  // --- what is told ---

  static bool broke_off(const InvocationOutcome& outcome) { return outcome.error_type == "Runtime.TruncatedResponse"; }

  void show(std::size_t environment, const LambdaJob& job, const InvocationOutcome& outcome) {
    using Kind = InvocationOutcome::Kind;
    if (interrupted_ != 0 || failed_ != exit_ok) return;
    std::string_view word = to_string(outcome.kind);
    if (outcome.kind == Kind::died && outcome.error_message == killed_as_planned) word = "killed";
    if (outcome.kind == Kind::error && broke_off(outcome))
      word = killed_ && is_target(outcome.request_id) ? "killed" : "died";
    failed_ = report_.show({.word = word,
                            .event = options_.events[job.event],
                            .environment = environment,
                            .cold = job.cold,
                            .outcome = outcome});
  }

  int sum_up() const {
    report_.sum_up(starts_, std::chrono::duration_cast<Millis>(Steady::now() - began_));
    if (kill_.point != KillPlan::Point::never && !killed_) {
      say("nothing was killed: invocation " + std::to_string(kill_.invocation) + " ended before the time of --kill-at");
    }
    return report_.exit_code();
  }

  const InvokeOptions& options_;
  const Millis timeout_;
  const Millis init_timeout_;
  const Millis freeze_;
  const KillPlan kill_;
  LambdaReport report_;
  std::vector<std::string> events_;
  std::vector<LambdaJob> jobs_;
  std::unordered_map<std::string, std::size_t> by_request_id_;
  Signals* signals_ = nullptr;
  Fd null_;
  LambdaNotices notices_;
  std::deque<LambdaEnvironment> environments_;  // Destroyed before the members that their callbacks use.
  std::size_t next_job_ = 0;
  std::size_t ended_ = 0;
  std::size_t starts_ = 0;
  int interrupted_ = 0;
  int failed_ = exit_ok;
  bool killed_ = false;
  Steady::time_point began_{};
};

}  // namespace

int lambda_invoke(const InvokeOptions& options) { return LambdaInvoke(options).run(); }

}  // namespace once::cli
