#include <once/frontends/sqs/poller.hpp>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <once/engine/exceptions.hpp>
#include <once/error.hpp>

#include "frontends/sqs/queue.hpp"
#include "platform/wait.hpp"
#include "queues/dead_ends.hpp"
#include "queues/ends.hpp"
#include "queues/keyed_record.hpp"
#include "queues/message.hpp"

namespace once::sqs {

namespace {

using queues::RecordEnd;

constexpr std::size_t most_at_work = 1'000;
constexpr Millis least_visibility{3'000};
constexpr Millis most_wait{20'000};
constexpr Millis first_pause{250};
constexpr Millis most_pause{20'000};
constexpr int drain_tries = 3;
constexpr unsigned most_claims = 3;    // For one message, if each lease ends before the work begins.
constexpr Millis hide_slack{1'000};    // Subtracted from the 12 h, for the time of a request.
constexpr Millis answer_slack{5'000};  // For a request, added to the time that it waits for messages.

[[noreturn]] void refuse_option(const std::string& what) {
  throw Exception(ErrorKind::misuse, "once::sqs::PollerOptions: " + what);
}

PollerOptions checked_options(PollerOptions options) {
  const auto whole = [](Millis span) { return span.count() % 1'000 == 0; };
  if (options.queue.empty()) refuse_option("`queue` is missing: give its URL or its name");
  if (options.queue.ends_with('/')) refuse_option("`queue` ends with '/', where its name should be: " + options.queue);
  if (options.parallel < 1 || options.parallel > most_at_work) refuse_option("`parallel` must be 1 to 1000");
  if (options.visibility < least_visibility || options.visibility > most_visibility || !whole(options.visibility)) {
    refuse_option("`visibility` must be 3 s to 12 h, in whole seconds");
  }
  if (options.receive_wait < Millis{0} || options.receive_wait > most_wait || !whole(options.receive_wait)) {
    refuse_option("`receive_wait` must be 0 to 20 s, in whole seconds");
  }
  if (options.retry_after &&
      (*options.retry_after < Millis{0} || *options.retry_after > most_visibility || !whole(*options.retry_after))) {
    refuse_option("`retry_after` must be 0 to 12 h, in whole seconds");
  }
  if (options.retry_after_limit) {
    if (!options.retry_after || *options.retry_after < Millis{1'000}) {
      refuse_option("`retry_after_limit` needs a `retry_after` of at least 1 s");
    }
    if (*options.retry_after_limit < *options.retry_after || *options.retry_after_limit > most_visibility ||
        !whole(*options.retry_after_limit)) {
      refuse_option("`retry_after_limit` must be from `retry_after` to 12 h, in whole seconds");
    }
  }
  check_key(options.key_source, options.key);
  return options;
}

Policy poller_policy(const Engine& engine, const PollerOptions& options) {
  Policy policy = options.policy.value_or(Policy{});
  policy.on_missing_key = OnMissingKey::refuse;
  // The queue delivers again, and a waiting message would block others.
  policy = fill_in(fill_in(policy, engine.options().policy), {.on_conflict = OnConflict::fail});
  check(policy);
  if (effective(policy).on_lapse == OnLapse::hold) check_hold(options.key_source, options.key);
  return policy;
}

bool is_url(std::string_view queue) noexcept { return queue.find("://") != std::string_view::npos; }

std::string name_of_queue(std::string_view url) { return std::string(url.substr(url.rfind('/') + 1)); }

// One received message. Guarded by the poller's mutex, except for constant members.
struct Job {
  std::string record;  // In Lambda's form.
  Message message;
  queues::KeyedRecord keyed;

  bool begun = false;
  bool over = false;       // It is processed: its visibility is no longer extended.
  bool extending = false;  // A request for it is running, which must not be overtaken.
  bool overdue = false;
  Uptime received_at{};  // When it was requested: SQS counts from then or later.
  Timers::Id timer = 0;
  Callback<void()> then;  // Called after that request.
};
using JobPtr = std::shared_ptr<Job>;

// What to do with a message that is processed.
struct Settlement {
  bool remove = false;
  std::optional<Millis> hide = {};  // Visible again after this time. Neither: unchanged.
};

}  // namespace

class Poller::State : public std::enable_shared_from_this<State> {
 public:
  State(Engine& engine, std::shared_ptr<aws::Transport> receiver, std::shared_ptr<aws::Transport> transport,
        PollerOptions options, PolledWork work)
      : engine_(engine),
        receiver_(std::move(receiver)),
        transport_(std::move(transport)),
        options_(checked_options(std::move(options))),
        policy_(poller_policy(engine, options_)),
        work_(std::move(work)),
        url_(is_url(options_.queue) ? options_.queue : std::string()),
        keys_({.scope = options_.scope.empty() ? name_of_queue(options_.queue) : options_.scope,
               .source = options_.key_source,
               .expression = options_.key,
               .fingerprint = options_.fingerprint,
               .allow_null_parts = options_.allow_null_parts,
               .keep_input = policy_.keep_input.value_or(false),
               .input_without = options_.input_without}) {}

  void run() {
    timers().make_ready();  // Before a message is received.
    find_queue();
    bool unanswered = false;
    {
      std::vector<std::jthread> threads;
      std::unique_lock lock(mutex_);
      while (!ended()) {
        while (threads.size() < std::min(jobs_.size(), options_.parallel)) {
          try {
            threads.emplace_back([this] { work(); });
          } catch (const std::system_error&) {
            if (threads.empty()) throw;
            break;  // The existing threads do the rest.
          }
        }
        if (!stopping_ && !receiving_ && !pausing_ && jobs_.size() < options_.parallel) {
          start_receiving(lock);
        } else {
          changed_.wait(lock);
        }
      }
      quitting_ = true;
      unanswered = receiving_;
      lock.unlock();
      changed_.notify_all();
    }  // Joined.
    if (unanswered) tell({.kind = PollEvent::Kind::abandoned});
    const std::lock_guard lock(mutex_);
    if (fatal_) throw Exception(*fatal_);
  }

  void stop() {
    std::unique_lock lock(mutex_);
    stop_now(lock);
  }

  void abandon() {
    {
      const std::lock_guard lock(mutex_);
      abandoned_ = true;
    }
    changed_.notify_all();
  }

  // Later answers have no effect.
  void close() {
    std::shared_ptr<aws::Transport> receiver;
    std::shared_ptr<aws::Transport> transport;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    if (pausing_) timers().cancel(pause_timer_);
    if (abandon_timer_ != 0) timers().cancel(std::exchange(abandon_timer_, 0));
    receiver.swap(receiver_);
    transport.swap(transport_);
  }

  [[nodiscard]] PollCounts counts() const {
    const std::lock_guard lock(mutex_);
    PollCounts counts = counts_;
    counts.in_flight = jobs_.size();
    return counts;
  }

  Backlog look() {
    const QueueBacklog now = read_backlog(ask(get_backlog(url_)));
    Backlog backlog{.visible = now.visible,
                    .hidden = now.hidden,
                    .delayed = now.delayed,
                    .dead_letter_queue = now.dead_letter_queue,
                    .dead = 0,
                    .dead_unknown = {}};
    if (now.dead_letter_queue.empty()) return backlog;
    try {
      const std::string dead = read_queue_url(ask(get_queue_url(now.dead_letter_queue)));
      const QueueBacklog there = read_backlog(ask(get_backlog(dead)));
      backlog.dead = there.visible + there.hidden + there.delayed;
    } catch (const Exception& error) {
      backlog.dead_unknown = error.error();
    }
    return backlog;
  }

 private:
  [[nodiscard]] Timers& timers() const { return *engine_.options().timers; }
  [[nodiscard]] Uptime uptime() const { return engine_.options().clock->uptime(); }

  void tell(const PollEvent& event) const {
    if (options_.observer) options_.observer(event);
  }
  void tell_about(const Job& job, PollEvent::Kind kind, std::string_view why) const {
    PollEvent event = about(job, kind);
    event.why = why;
    tell(event);
  }
  static PollEvent about(const Job& job, PollEvent::Kind kind) {
    return {.kind = kind,
            .id = job.message.id,
            .key = job.keyed.key ? std::string_view(job.keyed.key->stored()) : std::string_view(),
            .receive_count = job.message.receive_count};
  }

  // --- The queue ---

  void find_queue() {
    if (url_.empty()) url_ = read_queue_url(ask(get_queue_url(options_.queue)));
    arn_ = read_queue_arn(ask(get_queue_arn(url_)));
  }

  // Blocks; used before the poller works.
  aws::Reply ask(const aws::Call& call) {
    aws::Reply reply =
        wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) { transport_->call(call, std::move(done)); });
    if (const std::optional<Error> problem = problem_of(reply, options_.queue)) throw Exception(*problem);
    return reply;
  }

  [[nodiscard]] bool ended() const {
    // Messages of an abandoned request stay hidden.
    if (!jobs_.empty() || (receiving_ && !abandoned_)) return false;
    return stopping_ || (options_.drain && drained_);
  }

  void start_receiving(std::unique_lock<std::mutex>& lock) {
    receiving_ = true;
    asked_idle_ = jobs_.empty();
    const std::size_t most = std::min(most_received, options_.parallel - jobs_.size());
    const std::shared_ptr<aws::Transport> receiver = receiver_;
    const Uptime asked_at = uptime();
    lock.unlock();
    receiver->call(
        receive(url_, most, options_.receive_wait, options_.visibility),
        [self = shared_from_this(), asked_at](aws::Reply reply) { self->on_received(std::move(reply), asked_at); });
    lock.lock();
  }

  void on_received(aws::Reply reply, Uptime asked_at) {
    std::optional<Error> problem = problem_of(reply, options_.queue);
    std::vector<JobPtr> jobs;
    try {
      if (!problem) jobs = jobs_of(reply);
    } catch (const Exception& error) {
      problem = error.error();
    }
    std::unique_lock lock(mutex_);
    receiving_ = false;
    changed_.notify_all();
    if (closed_ || quitting_) return;  // Abandoned. The engine may be gone.
    if (abandon_timer_ != 0) timers().cancel(std::exchange(abandon_timer_, 0));
    if (problem) return on_problem(std::move(lock), std::move(*problem));
    failures_ = 0;
    counts_.refusal.clear();
    has_received_ = true;
    counts_.received += jobs.size();
    // Messages that were being worked on during the request may have come back since.
    drained_ = jobs.empty() && asked_idle_;
    if (jobs.empty() && options_.receive_wait == Millis{0}) rest(first_pause);
    for (const JobPtr& job : jobs) {
      job->received_at = asked_at;
      jobs_.push_back(job);
      set_timer(job);
    }
    if (stopping_) stop_now(lock);
    lock.unlock();
    changed_.notify_all();
  }

  std::vector<JobPtr> jobs_of(const aws::Reply& reply) const {
    std::vector<JobPtr> out;
    for (ReceivedMessage& received : read_messages(reply, arn_)) {
      const auto job = std::make_shared<Job>();
      job->record = std::move(received.record);
      job->message.id = received.id;
      job->message.receipt_handle = received.receipt_handle;
      queues::KeyedRecord& keyed = job->keyed;
      keyed.json = job->record;
      keyed.id = keyed.name = received.id;
      try {
        job->message = read_message(job->record);
        if (job->message.is_fifo()) keyed.order = job->message.group_id;
        keys_.take(keyed,
                   options_.key_source == KeySource::deduplication_id ? deduplication_name(job->message) : keyed.name,
                   job->record, job->message.body, payload_elsewhere(job->message));
        if (options_.key_source == KeySource::deduplication_id && job->message.deduplication_id.empty()) {
          keyed.key.reset();
          keyed.poison = "the message has no deduplication id: its queue is not a FIFO queue";
        }
      } catch (const Exception& error) {
        keyed.poison = error.what();
      }
      out.push_back(job);
    }
    return out;
  }

  void on_problem(std::unique_lock<std::mutex> lock, Error problem) {
    ++failures_;
    counts_.refusal = problem.message;
    // A refusal before the first answer is a mistake in the settings. A later one may pass: a queue that is made again,
    // a policy or a key that is being changed, credentials that are renewed.
    const bool passing = problem.kind != ErrorKind::misuse || has_received_;
    if (!passing || (options_.drain && failures_ >= drain_tries)) {
      if (!fatal_) fatal_ = std::move(problem);
      return stop_now(lock);
    }
    pause(std::move(lock), problem.message);
  }

  // Receives nothing for a while, longer after each failure in a row.
  void pause(std::unique_lock<std::mutex> lock, const std::string& why) {
    if (stopping_ || uptime() < trouble_until_) return;  // Simultaneous failures count once.
    const int row = std::max({failures_, failed_messages_, 1});
    const Millis span = std::min(most_pause, first_pause * (1 << std::min(row - 1, 10)));
    trouble_until_ = uptime() + span;
    rest(span);
    lock.unlock();
    tell({.kind = PollEvent::Kind::pause, .why = why, .pause = span});
  }

  void rest(Millis span) {
    const Uptime until = uptime() + span;
    if (stopping_ || (pausing_ && until <= pause_until_)) return;
    if (pausing_) timers().cancel(pause_timer_);
    pausing_ = true;
    pause_until_ = until;
    pause_timer_ = timers().at(until, [self = shared_from_this(), until] {
      {
        const std::lock_guard guard(self->mutex_);
        if (self->pause_until_ != until) return;  // The pause was extended.
        self->pausing_ = false;
      }
      self->changed_.notify_all();
    });
  }

  void stop_now(std::unique_lock<std::mutex>& lock) {
    stopping_ = true;
    give_back(
        lock, [](const Job&) { return true; }, "the poller is stopping");
    if (receiving_ && abandon_timer_ == 0) {
      abandon_timer_ = timers().at(uptime() + options_.receive_wait + answer_slack,
                                   [self = shared_from_this()] { self->abandon(); });
    }
    changed_.notify_all();
  }

  // --- Visibility ---

  void set_timer(const JobPtr& job) {
    job->timer =
        timers().at(uptime() + options_.visibility / 3, [self = shared_from_this(), job] { self->extend(job); });
  }

  // The wanted time, limited to what SQS allows: at most 12 h after the receipt, otherwise InvalidParameterValue,
  // "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]".
  [[nodiscard]] Millis hideable(const Job& job, Millis wanted) const {
    const auto left = most_visibility - (uptime() - job.received_at) - hide_slack;
    return std::clamp<Millis>(std::chrono::floor<std::chrono::seconds>(left), Millis{0}, wanted);
  }

  void extend(const JobPtr& job) {
    std::unique_lock lock(mutex_);
    if (job->over || job->overdue || closed_) return;
    job->timer = 0;
    const Millis span = hideable(*job, options_.visibility);
    if (span == Millis{0}) {
      job->overdue = true;
      lock.unlock();
      return tell_about(*job, PollEvent::Kind::overdue,
                        "it was received 12 h ago, and SQS hides no message for longer");
    }
    job->extending = true;
    const std::shared_ptr<aws::Transport> transport = transport_;
    lock.unlock();
    transport->call(hide_for(url_, job->message.receipt_handle, span),
                    [self = shared_from_this(), job](aws::Reply reply) { self->on_extended(job, reply); });
  }

  void on_extended(const JobPtr& job, const aws::Reply& reply) {
    const std::optional<Error> problem = problem_of(reply, options_.queue);
    std::unique_lock lock(mutex_);
    job->extending = false;
    Callback<void()> then = std::move(job->then);
    // A refusal is final: the message was deleted, or received 12 h ago. Without an answer, the next timer tries again.
    if (problem && problem->kind == ErrorKind::misuse) job->overdue = true;
    const bool tells = job->overdue && !job->over;
    if (!job->over && !job->overdue && !closed_) set_timer(job);
    lock.unlock();
    if (tells) tell_about(*job, PollEvent::Kind::overdue, problem->message);
    if (then) then();
  }

  // Deletes a message, changes its visibility, or leaves it.
  void settle(std::unique_lock<std::mutex>& lock, const JobPtr& job, Settlement how) {
    job->over = true;
    if (job->timer != 0) timers().cancel(job->timer);
    auto send = [self = shared_from_this(), job, how] { self->send_settlement(job, how); };
    if (job->extending) {
      job->then = std::move(send);
      return;
    }
    lock.unlock();
    send();
    lock.lock();
  }

  void send_settlement(const JobPtr& job, Settlement how) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<aws::Transport> transport = closed_ ? nullptr : transport_;
    if (transport != nullptr && how.hide > Millis{0}) {
      how.hide = hideable(*job, *how.hide);
      if (how.hide == Millis{0}) how.hide.reset();  // Its visibility ends by itself.
    }
    lock.unlock();
    if (transport == nullptr || (!how.remove && !how.hide)) return drop(job, false);
    aws::Call call = how.remove ? delete_message(url_, job->message.receipt_handle)
                                : hide_for(url_, job->message.receipt_handle, *how.hide);
    transport->call(std::move(call), [self = shared_from_this(), job, how](const aws::Reply& reply) {
      const std::optional<Error> problem = problem_of(reply, self->options_.queue);
      if (problem && (how.remove || !job->overdue)) {
        self->tell_about(*job, how.remove ? PollEvent::Kind::not_deleted : PollEvent::Kind::not_hidden,
                         problem->message);
      }
      self->drop(job, how.remove && !problem);
    });
  }

  void drop(const JobPtr& job, bool deleted) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.remove(job);
      ++(deleted ? counts_.deleted : counts_.stayed);
      if (options_.drain) {  // Only with `drain`, because otherwise there would be too many.
        if (deleted) {
          left_.erase(job->message.id);
        } else {
          left_.insert(job->message.id);
        }
        counts_.left = left_.size();
      }
    }
    changed_.notify_all();
  }

  // Gives back messages that were not begun, in reverse order, so that a group keeps its order.
  template <class Which>
  void give_back(std::unique_lock<std::mutex>& lock, Which which, std::string_view why) {
    std::vector<JobPtr> back;
    for (const JobPtr& job : jobs_) {
      if (!job->begun && !job->over && which(*job)) back.insert(back.begin(), job);
    }
    for (const JobPtr& job : back) job->over = true;
    for (const JobPtr& job : back) {
      lock.unlock();
      tell_about(*job, PollEvent::Kind::given_back, why);
      lock.lock();
      settle(lock, job, {.remove = false, .hide = Millis{0}});
    }
  }

  // --- The work ---

  void work() {
    std::unique_lock lock(mutex_);
    while (!quitting_) {
      const JobPtr job = next();
      if (job == nullptr) {
        changed_.wait(lock);
        continue;
      }
      job->begun = true;
      lock.unlock();
      Processed processed = process(*job);
      lock.lock();
      if (stopping_ && processed.released)
        processed.settlement.hide = Millis{0};  // Other consumers need not wait for it.
      if (!processed.settlement.remove && !job->keyed.order.empty()) {
        give_back(
            lock, [&](const Job& other) { return other.keyed.order == job->keyed.order; },
            "it follows " + job->message.id + ", which stays in the queue");
      }
      if (!processed.pauses) {
        failed_messages_ = 0;
      } else if (uptime() >= trouble_until_) {
        ++failed_messages_;
      }
      lock.unlock();
      PollEvent event = about(*job, PollEvent::Kind::ended);
      event.end = processed.end;
      event.deleted = processed.settlement.remove;
      event.parked = processed.parked;
      event.why = processed.why;
      tell(event);
      if (processed.pauses) pause(std::unique_lock(mutex_), processed.why);
      lock.lock();
      settle(lock, job, processed.settlement);
    }
  }

  // The first one with no earlier message of its group or key.
  JobPtr next() const {
    for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
      const Job& job = **at;
      if (job.begun || job.over) continue;
      const bool follows = std::any_of(jobs_.begin(), at, [&](const JobPtr& other) {
        return (!job.keyed.order.empty() && other->keyed.order == job.keyed.order) ||
               (job.keyed.key && other->keyed.key == job.keyed.key);
      });
      if (!follows) return *at;
    }
    return nullptr;
  }

  struct Processed {
    RecordEnd end = RecordEnd::executed;
    Settlement settlement = {};
    bool parked = false;
    bool released = false;  // It may begin at once.
    bool pauses = false;    // The store or the service does not answer: no other message would succeed.
    std::string why = {};
  };

  static Processed done(RecordEnd end) { return {.end = end, .settlement = {.remove = true}}; }

  [[nodiscard]] Processed stays(const Job& job, RecordEnd end, std::string why) const {
    return {.end = end, .settlement = {.remove = false, .hide = retry_after(job)}, .why = std::move(why)};
  }

  // Doubles with each receipt.
  [[nodiscard]] std::optional<Millis> retry_after(const Job& job) const {
    if (!options_.retry_after_limit) return options_.retry_after;
    const std::uint32_t doublings = std::min(std::max(job.message.receive_count, 1U) - 1, 20U);
    return std::min(*options_.retry_after * (std::int64_t{1} << doublings), *options_.retry_after_limit);
  }

  // `asked`: the service was asked about it already.
  Processed process(Job& job, bool asked = false) {
    if (!job.keyed.poison.empty()) return dead_end(job, RecordEnd::poison, options_.on_poison, job.keyed.poison);
    try {
      Begin begin = begin_work(job);
      switch (begin.kind) {
        case Begin::Kind::claimed:
          return carry_out(job, begin.claim, asked);
        case Begin::Kind::replayed:
          return done(RecordEnd::replayed);
        case Begin::Kind::stored_failure:
          return done(RecordEnd::stored_failure);
        case Begin::Kind::conflict: {
          Processed processed = stays(job, RecordEnd::conflict, "held by " + begin.record->holder);
          processed.settlement.hide = std::clamp(begin.retry_after, Millis{1'000}, most_visibility);
          return processed;
        }
        case Begin::Kind::mismatch:
          return dead_end(job, RecordEnd::mismatch, options_.on_mismatch,
                          "the key was used with another payload, by " + begin.record->holder);
        case Begin::Kind::unknown:
          return unknown(job, begin.record, begin.record->failure.message, asked);
        case Begin::Kind::error: {
          if (queues::is_done(begin.record)) {
            Processed processed = done(RecordEnd::replayed);
            processed.why = begin.error.message;
            return processed;
          }
          if (queues::has_failed(begin.record)) {
            Processed processed = done(RecordEnd::stored_failure);
            processed.why = begin.error.message;
            return processed;
          }
          Processed processed = stays(job, RecordEnd::error, begin.error.message);
          processed.pauses = begin.error.kind != ErrorKind::corrupt;
          return processed;
        }
      }
    } catch (const Exception& error) {  // For example a key that the store cannot keep.
      return stays(job, RecordEnd::error, error.what());
    }
    return stays(job, RecordEnd::error, "the engine gave an unknown answer");
  }

  // This thread may have been stopped since the claim. Work that has not begun can be released safely.
  Begin begin_work(const Job& job) {
    for (unsigned times = 1;; ++times) {
      Begin begin = engine_.begin(Request{.key = *job.keyed.key,
                                          .fingerprint = job.keyed.fingerprint,
                                          .policy = policy_,
                                          .holder = job.message.id,
                                          .label = job.keyed.label,
                                          .label_from_payload = true,
                                          .trace = job.message.trace(),
                                          .input = job.keyed.input});
      if (begin.kind != Begin::Kind::claimed || begin.claim.is_ours()) return begin;
      begin.claim.release("the claim was lost before the work began");
      if (times < most_claims) continue;
      Begin never;
      never.error = {ErrorKind::unavailable, "the lease of " + std::to_string(effective(policy_).lease.count()) +
                                                 " ms expired " + std::to_string(times) +
                                                 " times before the work could begin, and nothing was run: use a "
                                                 "longer lease"};
      return never;
    }
  }

  Processed unknown(Job& job, const RecordPtr& record, std::string why, bool asked) {
    using Asked = PollerOptions::Asked;
    const bool asks = options_.reconcile && record != nullptr && record->state == ::once::State::unknown;
    const Asked answer = asked && asks ? Asked::later : asks ? options_.reconcile(record) : Asked::given_up;
    switch (answer) {
      case Asked::decided:
        return process(job, true);
      case Asked::later:
        return stays(job, RecordEnd::unknown, std::move(why));
      case Asked::given_up:
        break;
    }
    return dead_end(job, RecordEnd::unknown, options_.on_unknown, std::move(why));
  }

  Processed carry_out(Job& job, Claim& claim, bool asked) {
    WorkEnd end;
    std::optional<std::string> poison;
    try {
      end = work_(job.message, claim);
    } catch (const queues::PoisonRecord& error) {
      poison = error.what();
      end = {.kind = WorkEnd::Kind::released, .failure = {.message = error.what()}};
    } catch (const std::exception& error) {
      end = {.kind = WorkEnd::Kind::released, .failure = {.message = error.what()}};
    } catch (...) {  // It has no text, but is reported too.
      end = {.kind = WorkEnd::Kind::released, .failure = {.message = "an exception that is not a std::exception"}};
    }
    const std::string why = end.failure.message;
    const WorkEnd::Kind kind = end.kind;
    if (kind == WorkEnd::Kind::lapses) {
      const Claim forgotten = std::move(claim);
      return stays(job, RecordEnd::failed, why);
    }
    const Finish finish = [&] {
      switch (kind) {
        case WorkEnd::Kind::completed:
          if (end.commit_with == nullptr) return claim.complete(std::move(end.result));
          return claim.complete(std::move(end.result), std::move(end.commit_with));
        case WorkEnd::Kind::failed:
          return claim.fail(std::move(end.failure), std::move(end.result));
        case WorkEnd::Kind::held:
          return claim.hold(why);
        case WorkEnd::Kind::released:
        case WorkEnd::Kind::unavailable:
        case WorkEnd::Kind::lapses:
          break;
      }
      return claim.release(why);
    }();
    if (finish.kind == Finish::Kind::superseded) return done(RecordEnd::replayed);
    if (poison) return dead_end(job, RecordEnd::poison, options_.on_poison, *poison);
    if (kind == WorkEnd::Kind::released || kind == WorkEnd::Kind::unavailable) {
      Processed processed = stays(job, RecordEnd::failed, why);
      processed.released = finish.kind == Finish::Kind::recorded;
      processed.pauses = kind == WorkEnd::Kind::unavailable;
      return processed;
    }
    switch (finish.kind) {
      case Finish::Kind::recorded:
      case Finish::Kind::superseded:
        break;
      case Finish::Kind::declined: {
        Processed processed = stays(job, RecordEnd::failed, finish.error.message);
        processed.released = claim.release(finish.error.message).kind == Finish::Kind::recorded;
        return processed;
      }
      case Finish::Kind::unrecorded:
        // Not deleted: when it comes again, its result is stored, or it must run again.
        return stays(job, RecordEnd::unrecorded, finish.error.message);
      case Finish::Kind::lost:
        return stays(job, RecordEnd::lost, "the claim was lost while the work ran");
    }
    if (kind == WorkEnd::Kind::held) return unknown(job, finish.record, why, asked);
    Processed processed = done(kind == WorkEnd::Kind::failed ? RecordEnd::stored_failure : RecordEnd::executed);
    processed.why = why;
    return processed;
  }

  Processed dead_end(const Job& job, RecordEnd end, OnDeadEnd what, std::string why) {
    if (what == OnDeadEnd::leave) return stays(job, end, std::move(why));
    const std::optional<std::string> trouble = queues::park(
        engine_, keys_.scope(), job.keyed, std::string(to_string(end)) + ": " + why, policy_, job.message.id);
    if (trouble) return stays(job, end, why + "; and it could not be parked: " + *trouble);
    Processed processed = done(end);
    processed.parked = true;
    processed.why = std::move(why);
    return processed;
  }

  Engine& engine_;
  std::shared_ptr<aws::Transport> receiver_;
  std::shared_ptr<aws::Transport> transport_;
  const PollerOptions options_;
  const Policy policy_;
  const PolledWork work_;
  std::string url_;
  std::string arn_;
  const queues::RecordKeys keys_;

  mutable std::mutex mutex_;  // Guards all following members.
  std::condition_variable changed_;
  std::list<JobPtr> jobs_;  // In the order in which they came.
  bool receiving_ = false;
  bool pausing_ = false;
  bool stopping_ = false;
  bool quitting_ = false;
  bool abandoned_ = false;
  bool closed_ = false;
  bool drained_ = false;
  bool has_received_ = false;  // The queue has answered a request for messages.
  bool asked_idle_ = false;    // No message was being worked on at the last request.
  int failures_ = 0;           // Of receiving, in a row.
  int failed_messages_ = 0;    // Messages in a row that ended with Processed::pauses.
  Timers::Id pause_timer_ = 0;
  Timers::Id abandon_timer_ = 0;
  Uptime pause_until_{};
  Uptime trouble_until_{};
  std::optional<Error> fatal_;
  PollCounts counts_;
  std::set<std::string> left_;  // Ids of the messages that counts_.left is about.
};

std::string_view to_string(PollEvent::Kind kind) noexcept {
  using Kind = PollEvent::Kind;
  switch (kind) {
    case Kind::ended:
      return "ended";
    case Kind::given_back:
      return "given_back";
    case Kind::overdue:
      return "overdue";
    case Kind::not_hidden:
      return "not_hidden";
    case Kind::not_deleted:
      return "not_deleted";
    case Kind::pause:
      return "pause";
    case Kind::abandoned:
      return "abandoned";
  }
  return "?";
}

Poller::Poller(Engine& engine, std::shared_ptr<aws::Transport> receiver, std::shared_ptr<aws::Transport> transport,
               PollerOptions options, PolledWork work)
    : state_(std::make_shared<State>(engine, std::move(receiver), std::move(transport), std::move(options),
                                     std::move(work))) {}

Poller::~Poller() { state_->close(); }

void Poller::run() { state_->run(); }

void Poller::stop() { state_->stop(); }

void Poller::abandon() { state_->abandon(); }

Backlog Poller::backlog() const { return state_->look(); }

PollCounts Poller::counts() const { return state_->counts(); }

}  // namespace once::sqs
