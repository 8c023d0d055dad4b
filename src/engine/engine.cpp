#include <once/engine/engine.hpp>

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <exception>
#include <typeinfo>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/compression.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/tracer.hpp>
#include <once/engine/unwinding.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/platform/environment.hpp>
#include <once/platform/system.hpp>

#include "engine/claim_state.hpp"
#include "engine/core.hpp"
#include "engine/disabled_store.hpp"
#include "engine/run.hpp"
#include "engine/running.hpp"
#include "engine/tenant.hpp"
#include "platform/wait.hpp"

namespace once {

namespace {

constexpr Millis shortest_lease{10};  // Policy::lease

// What only the program that writes the store can do.
void refuse_at_server(const EffectivePolicy& policy, const Store& store) {
  const auto refuse = [&](const std::string& what) { throw Exception(ErrorKind::misuse, store.name() + ": " + what); };
  if (policy.keep_input) refuse("a server keeps no inputs: leave out keep_input, or open the server's own store");
  if (policy.fixed_lease) refuse("a server renews its claims, so no lease is fixed: open the server's own store");
}

void prepare_for_server(EngineOptions& options) {
  const Store& store = *options.store;
  refuse_at_server(effective(options.policy), store);
  if (options.offload != nullptr) {
    throw Exception(ErrorKind::misuse, store.name() + ": large results are kept by the server: set no offload");
  }
  // The server decides what is too large for a record.
  if (!options.policy.max_inline_bytes) options.policy.max_inline_bytes = store.capabilities().max_record_bytes;
}

EngineOptions with_defaults(EngineOptions options) {
  if (options.store == nullptr) throw Exception(ErrorKind::misuse, "an engine needs a store: set EngineOptions::store");
  check(options.policy);
  if (options.store->claims_server() != nullptr) prepare_for_server(options);
  if (options.offload != nullptr && options.store->capabilities().seals && !options.offload->seals()) {
    throw Exception(ErrorKind::misuse,
                    "the store is sealed, and large results would be kept in the clear: seal the offload too, by "
                    "once::seal() or with seal=FILE in its URL");
  }
  if (!options.policy.skew) options.policy.skew = options.store->capabilities().default_skew;
  if (!options.disabled) options.disabled = is_disabled_by_environment();
  if (*options.disabled) {
    options.store = std::make_shared<DisabledStore>(std::move(options.store));
    options.cache_records = 0;
  }
  options.holder = options.holder.empty() ? process_name() : clean_text(options.holder);
  if (!options.clock) options.clock = system_clock();
  if (!options.random) options.random = system_random();
  if (options.tracer != nullptr) {
    options.observer = [tracer = options.tracer, observer = std::move(options.observer)](const Event& event) {
      if (observer) observer(event);
      tracer->observe(event);
    };
  }
  if (!options.timers) options.timers = make_system_timers(options.clock);
  return options;
}

// The current exception's code (FailureCode or its type) and text.
Failure failure_of_current_exception() {
  Failure failure;
  if (const std::type_info* type = abi::__cxa_current_exception_type()) {
    int status = 0;
    char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    failure.code = status == 0 ? name : type->name();
    std::free(name);
  }
  try {
    throw;
  } catch (const std::exception& error) {
    failure.message = error.what();
    if (const auto* const coded = dynamic_cast<const FailureCode*>(&error)) failure.code = coded->failure_code();
  } catch (...) {  // It has no text, only a type.
    failure.message = "an exception that is not a std::exception";
  }
  return failure;
}

}  // namespace

bool is_claim_lost(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ClaimLost&) {
    return true;
  } catch (...) {  // Another type: false.
    return false;
  }
}

void finish_thrown(Claim& claim, const EffectivePolicy& policy, const ThrowRule& rule, FinishDone done) {
  const OnThrow what = rule ? rule(std::current_exception()).value_or(policy.on_throw) : policy.on_throw;
  const Failure failure = failure_of_current_exception();
  switch (what) {
    case OnThrow::release:
      break;
    case OnThrow::store:
      return claim.fail(failure, {}, std::move(done));
    case OnThrow::hold:
      return claim.hold(failure.code + ": " + failure.message, std::move(done));
  }
  claim.release(failure.code + ": " + failure.message, std::move(done));
}

bool is_over(Begin& begun, Outcome& outcome) {
  if (begun.kind == Begin::Kind::claimed) return false;
  outcome.record = std::move(begun.record);
  outcome.retry_after = begun.retry_after;
  outcome.error = std::move(begun.error);
  switch (begun.kind) {
    case Begin::Kind::claimed:
      break;
    case Begin::Kind::replayed:
      outcome.kind = Outcome::Kind::replayed;
      outcome.result = outcome.record->result;
      break;
    case Begin::Kind::stored_failure:
      outcome.kind = Outcome::Kind::stored_failure;
      break;
    case Begin::Kind::conflict:
      outcome.kind = Outcome::Kind::conflict;
      break;
    case Begin::Kind::mismatch:
      outcome.kind = Outcome::Kind::mismatch;
      break;
    case Begin::Kind::unknown:
      outcome.kind = Outcome::Kind::unknown;
      break;
    case Begin::Kind::error:
      outcome.kind = Outcome::Kind::error;
      break;
  }
  return true;
}

bool runs_unprotected(const Outcome& outcome, const EffectivePolicy& policy) noexcept {
  const bool down = outcome.error.kind == ErrorKind::unavailable || outcome.error.kind == ErrorKind::in_doubt;
  return outcome.kind == Outcome::Kind::error && down && outcome.record == nullptr &&
         policy.on_store_down == OnStoreDown::run_unprotected;
}

std::string_view scope_of(std::string_view stored) noexcept { return stored.substr(0, stored.find('#')); }

Error no_time_to_begin(const EffectivePolicy& policy) {
  return {ErrorKind::unavailable, "the lease of " + std::to_string(policy.lease.count()) + " ms expired " +
                                      std::to_string(max_claims) +
                                      " times before the work could begin, and nothing was run: use a longer lease, or "
                                      "retry when this host is less busy"};
}

void settle_lost(Finish&& finish, Outcome& outcome) {
  outcome.result = {};
  outcome.record = std::move(finish.record);
  outcome.error = std::move(finish.error);
  outcome.kind = finish.kind == Finish::Kind::superseded ? Outcome::Kind::superseded : Outcome::Kind::lost;
  if (outcome.kind == Outcome::Kind::superseded) outcome.result = outcome.record->result;
}

void settle(Finish&& finish, bool companion, const EffectivePolicy& policy, Outcome& outcome) {
  switch (finish.kind) {
    case Finish::Kind::recorded:
      outcome.kind = Outcome::Kind::executed;
      outcome.record = std::move(finish.record);
      return;
    case Finish::Kind::unrecorded:
      outcome.kind = Outcome::Kind::unrecorded;
      outcome.error = std::move(finish.error);
      if (companion) {
        throw Unrecorded(outcome.error.kind,
                         "the work ran, but it is not known yet whether its result and its writes were committed (both "
                         "or neither); repeat the call to get the result: " +
                             outcome.error.message,
                         nullptr);
      }
      if (policy.on_unrecorded == OnUnrecorded::fail) {
        throw Unrecorded(outcome.error.kind,
                         "the work ran, but its result could not be recorded: " + outcome.error.message, nullptr);
      }
      return;
    case Finish::Kind::superseded:
    case Finish::Kind::lost:
      return settle_lost(std::move(finish), outcome);
    case Finish::Kind::declined:
      throw Declined(finish.error.kind,
                     "the writes that were to commit with the result were refused, and nothing was written: " +
                         finish.error.message,
                     nullptr);
  }
}

EngineCore::EngineCore(EngineOptions engine_options)
    : is_observed(engine_options.observer != nullptr),
      options(with_defaults(std::move(engine_options))),
      key_scope(options.scope),
      usual_policy(effective(options.policy)),
      capabilities(options.store->capabilities()),
      server(options.store->claims_server()),
      heartbeats(*this),
      cache(options.cache_records, options.cache_bytes),
      flights(*this) {
  Running::forget_other_threads_after_forks();
}

Moment EngineCore::moment_at(Uptime at) const {
  if (const auto told = options.store->time_at(*options.clock, at)) return {at, told->now, told->error, true};
  if (const auto learnt = store_clock_.at(at)) return {at, learnt->now, learnt->error, true};
  return {at, options.clock->now(), Millis{0}, false};
}

void EngineCore::learn(const Answer& answer, Uptime sent) {
  if (!answer.time) return;
  // A store that always knows its time is asked each time.
  if (options.store->time()) return;
  store_clock_.learn(*answer.time, sent, options.clock->uptime());
}

Stamp EngineCore::stamp(Time now) const {
  std::array<std::uint8_t, 4> bytes{};
  options.random->fill(bytes);
  return {now, std::bit_cast<std::uint32_t>(bytes)};
}

Stamp EngineCore::claim_stamp(EngineAttempt& attempt, Time now) const {
  if (!(attempt.owner == Owner())) return stamp(now);
  struct {
    Owner owner;
    std::array<std::uint8_t, sizeof(Stamp::random)> random;
  } drawn{};
  static_assert(sizeof drawn == sizeof drawn.owner + sizeof drawn.random);
  options.random->fill({reinterpret_cast<std::uint8_t*>(&drawn), sizeof drawn});
  attempt.owner = drawn.owner;
  return {now, std::bit_cast<std::uint32_t>(drawn.random)};
}

Owner EngineCore::new_owner() const {
  Owner owner;
  options.random->fill(owner.bytes);
  return owner;
}

Millis EngineCore::backoff(unsigned tries, Millis first, Millis most) const {
  std::uint8_t random = 0;
  options.random->fill({&random, 1});
  const unsigned doublings = std::min(tries == 0 ? 0U : tries - 1, 16U);
  const Millis whole = std::min(most, first * (1U << doublings));
  return whole / 2 + whole / 2 * random / 255;
}

EffectivePolicy EngineCore::take_in(Request& request) const {
  if (request.policy) check(*request.policy);
  EffectivePolicy policy = request.policy ? effective(fill_in(*request.policy, options.policy)) : usual_policy;
  const InvocationFacts facts = WithinInvocation::current();
  add_tenant(request.key, facts.tenant);
  if (facts.deadline != never) {
    const Time now = options.clock->now();
    const Millis left = facts.deadline > now ? facts.deadline - now : Millis{0};
    if (left < shortest_lease) {
      throw NoTimeLeft(ErrorKind::unavailable,
                       "the invocation's deadline leaves no time for '" + request.key.scope() +
                           "', and nothing was run: retry, or give the function a longer timeout",
                       nullptr);
    }
    policy = ending_within(policy, left);
  }
  if (server != nullptr) refuse_at_server(policy, *options.store);
  return policy;
}

std::shared_ptr<const CallTrace> EngineCore::trace_of(const TracePtr& caller) const {
  if (options.tracer != nullptr) return options.tracer->begin(caller);
  if (caller == nullptr) return nullptr;
  auto trace = std::make_shared<CallTrace>();
  trace->caller = trace->call = trace->work = caller->parent;
  trace->state = caller->state;
  return trace;
}

void EngineCore::tell_failed(const Attempt& attempt, const Error& error) const {
  if (options.tracer != nullptr && attempt.trace != nullptr) {
    options.tracer->failed(*attempt.trace, attempt.key, error);
  }
}

std::shared_ptr<EngineAttempt> EngineCore::attempt_of(Request&& request, const EffectivePolicy& policy) const {
  auto attempt = std::make_shared_for_overwrite<EngineAttempt>();
  attempt->policy = policy;
  attempt->key = std::move(request.key).stored();
  if (*options.disabled) attempt->alone = attempt->key + '\0' + new_owner().hex();
  attempt->fingerprint = request.fingerprint;
  attempt->holder = options.holder;
  if (!request.holder.empty()) attempt->holder = clean_text(options.holder + " " + request.holder);
  const bool labels = policy.label == Label::all || (policy.label == Label::named && !request.label_from_payload);
  if (labels && !request.label.empty()) attempt->label = clean_text(request.label);
  if (request.trace != nullptr || options.tracer != nullptr) attempt->trace = trace_of(request.trace);
  if (policy.keep_input && request.input != nullptr) keep_input(*attempt, request);
  return attempt;
}

std::shared_ptr<EngineAttempt> EngineCore::attaching(Request&& request, const Owner& owner,
                                                     const EffectivePolicy& policy) const {
  auto attempt = attempt_of(std::move(request), policy);
  attempt->owner = owner;
  attempt->attaches = true;
  return attempt;
}

std::shared_ptr<EngineAttempt> EngineCore::again(const EngineAttempt& attempt) const {
  auto next = std::make_shared<EngineAttempt>(attempt);
  next->forget_owner();
  return next;
}

void EngineCore::keep_input(Attempt& attempt, Request& request) const {
  // A rule sees all of an input: a field may lie anywhere in it.
  InputPtr input = options.input_rule ? options.input_rule(*request.input) : std::move(request.input);
  if (input == nullptr) return;
  attempt.input_bytes = std::max<std::uint64_t>(request.input_bytes, input->size());
  const std::string_view beginning = input_beginning(*input);
  attempt.input = beginning.size() == input->size() ? std::move(input) : std::make_shared<const std::string>(beginning);
}

void EngineCore::begin(std::shared_ptr<EngineAttempt>&& attempt, Callback<void(Begin&&)>&& done) {
  const EffectivePolicy& policy = attempt->policy;
  try {
    options.timers->make_ready();
  } catch (const Exception& error) {
    tell_failed(*attempt, error.error());
    Begin begin;
    begin.kind = Begin::Kind::error;
    begin.error = error.error();
    begin.error.message += "; nothing was claimed";
    return std::move(done)(std::move(begin));
  }
  Caller caller;
  caller.done = std::move(done);
  // Only these two need `since`.
  if (options.observer || policy.on_conflict == OnConflict::wait) caller.since = uptime();
  caller.wait_until = caller.since + policy.wait;
  caller.attempt = std::move(attempt);
  if (*options.disabled) tell_unprotected(scope_of(caller.attempt->key), caller.attempt->key);
  if (server != nullptr) return flights.begin_at(*server, std::move(caller));
  flights.join(std::move(caller));
}

EffectivePolicy EngineCore::ready_to_attach(Request& request) const {
  if (server != nullptr) {
    throw Exception(ErrorKind::misuse,
                    options.store->name() + ": a server takes up its claims itself, so there is nothing to attach to");
  }
  const EffectivePolicy policy = take_in(request);
  options.timers->make_ready();
  return policy;
}

void EngineCore::fetch(std::shared_ptr<const Record> record, Fetched done) {
  const Result& result = record->result;
  if (is_sealed(*record)) {
    Error error = sealed_error(*record);
    return done(std::move(record), std::move(error));
  }
  if (result.placement == Placement::compressed) {
    Record whole = *record;
    std::optional<Error> error = expand(whole.result);
    return done(std::make_shared<const Record>(std::move(whole)), std::move(error));
  }
  if (result.placement != Placement::offloaded || !result.bytes.empty() || result.size == 0) {
    return done(std::move(record), std::nullopt);
  }
  if (!options.offload) {
    Error error{ErrorKind::misuse, "the result is kept at " + result.location +
                                       ", but this engine has no offload to read it from: set EngineOptions::offload"};
    return done(std::move(record), std::move(error));
  }
  struct Fetch {
    std::shared_ptr<EngineCore> core;
    std::shared_ptr<const Record> record;
    Fetched done;
  };
  const std::string location = result.location;
  auto fetch = std::make_unique<Fetch>(Fetch{shared_from_this(), std::move(record), std::move(done)});
  options.offload->get(location, [fetch = std::move(fetch)](OffloadAnswer answer) {
    const Result& wanted = fetch->record->result;
    if (!answer.error) answer.error = check_offloaded(wanted, answer.text);
    if (answer.error) return fetch->done(std::move(fetch->record), std::move(answer.error));
    Record whole = *fetch->record;
    whole.result.bytes = std::move(answer.text);
    fetch->done(std::make_shared<const Record>(std::move(whole)), std::nullopt);
  });
}

Engine::Engine(EngineOptions options) : core_(std::make_shared<EngineCore>(std::move(options))) {}

Engine::~Engine() = default;

const EngineOptions& Engine::options() const noexcept { return core_->options; }

Request Engine::request(std::string_view key, std::string_view payload) const {
  Request request{.key = core_->key_scope.key(key)};
  if (!payload.empty()) {
    request.fingerprint = Fingerprint::of(payload);
    if (core_->usual_policy.keep_input) request.input = std::make_shared<const std::string>(payload);
  }
  return request;
}

void Engine::begin(Request request, Callback<void(Begin&&)> done) {
  const EffectivePolicy policy = core_->take_in(request);
  Running::refuse_here(*core_, request.key.stored());
  begin_elsewhere(std::move(request), policy, std::move(done));
}

void Engine::begin_elsewhere(Request&& request, const EffectivePolicy& policy, Callback<void(Begin&&)>&& done) {
  if (auto known = core_->flights.cached(request, policy)) return done(std::move(*known));
  core_->begin(core_->attempt_of(std::move(request), policy), std::move(done));
}

Begin Engine::begin(Request request) {
  EffectivePolicy policy = core_->take_in(request);
  if (Running::refuse_anywhere(*core_, request.key.stored())) policy.on_conflict = OnConflict::fail;
  return wait_for<Begin>(
      [&](Callback<void(Begin&&)>&& done) { begin_elsewhere(std::move(request), policy, std::move(done)); });
}

Begin Engine::begin(std::string_view key, std::string_view payload) { return begin(request(key, payload)); }

void Engine::attach(Request request, Owner owner, Callback<void(Attached&&)> done) {
  const EffectivePolicy policy = core_->ready_to_attach(request);
  core_->flights.attach(core_->attaching(std::move(request), owner, policy), std::move(done));
}

Attached Engine::attach(Request request, Owner owner) {
  const EffectivePolicy policy = core_->ready_to_attach(request);
  return wait_for<Attached>([&](Callback<void(Attached&&)>&& done) {
    core_->flights.attach(core_->attaching(std::move(request), owner, policy), std::move(done));
  });
}

void Engine::run_work(Request&& request, ErasedWork work, Outcome& outcome) {
  EffectivePolicy policy = core_->take_in(request);
  if (Running::refuse_anywhere(*core_, request.key.stored())) policy.on_conflict = OnConflict::fail;
  if (*core_->options.disabled) {
    const std::string key = std::move(request.key).stored();
    return run_work_without_claim(work, scope_of(key), &key, outcome);
  }
  std::shared_ptr<const EngineAttempt> kept;  // For work without a claim.
  bool at_once = false;                       // This thread has read the clock for the claim a moment ago.
  Begin begun = [&] {
    if (auto known = core_->flights.cached(request, policy)) return std::move(*known);
    std::shared_ptr<EngineAttempt> attempt = core_->attempt_of(std::move(request), policy);
    if (policy.on_store_down == OnStoreDown::run_unprotected) kept = attempt;
    return wait_for<Begin>([&](Callback<void(Begin&&)>&& done) { core_->begin(std::move(attempt), std::move(done)); },
                           &at_once);
  }();
  // Since the clock was read for the claim, this thread may have been stopped, or have run the observer. Work that has
  // not begun can be released safely.
  if (core_->options.observer) at_once = false;
  for (unsigned times = 1; begun.kind == Begin::Kind::claimed && !at_once && !begun.claim.is_ours(); ++times) {
    const std::shared_ptr<const EngineAttempt> attempt = begun.claim.state_->attempt;
    begun.claim.release("the claim was lost before the work began");
    if (times == max_claims) {
      outcome.error = no_time_to_begin(policy);
      core_->tell({.kind = EventKind::store_error,
                   .key = attempt->key,
                   .trace = attempt->trace.get(),
                   .error = &outcome.error});
      outcome.kind = Outcome::Kind::error;
      return;
    }
    begun =
        wait_for<Begin>([&](Callback<void(Begin&&)>&& done) { core_->begin(core_->again(*attempt), std::move(done)); });
  }
  if (is_over(begun, outcome)) {
    if (!runs_unprotected(outcome, policy)) return;
    return run_work_without_claim(work, scope_of(kept->key), &kept->key, outcome);
  }

  Claim claim = std::move(begun.claim);
  Context context(*core_, &claim, &claim.key());
  const auto end_thrown = [&] {
    return wait_for<Finish>(
        [&](FinishDone done) { finish_thrown(claim, policy, core_->options.throw_rule, std::move(done)); });
  };
  try {
    const Running running(*core_, claim.key());
    work(context, outcome.result);
    check(outcome.result);
  } catch (...) {  // Any exception is passed to the caller. The policy decides about the claim.
    // The stack is ended, and that must not be stopped. What the work did is not known, so the claim lapses.
    if (is_unwinding()) throw;
    if (context.own_writes_.may_be_committed()) {
      const Finish finish =
          wait_for<Finish>([&](FinishDone done) { context.own_writes_.read_outcome(std::move(done)); });
      if (finish.kind != Finish::Kind::declined) throw;  // The transaction has finished the claim, or may still do so.
    }
    if (is_claim_lost(std::current_exception()) && claim.stop_token().stop_requested()) {
      // Thrown because of this claim. It is not known what the work did, so the claim is left to lapse, unless another
      // attempt has stored a result.
      Finish finish = wait_for<Finish>([&](FinishDone done) { claim.give_up(std::move(done)); });
      if (finish.kind == Finish::Kind::superseded) return settle_lost(std::move(finish), outcome);
      throw;
    }
    end_thrown();
    throw;
  }
  const std::shared_ptr<const Companion> companion = context.own_writes_.take_companion();  // The work has returned.
  const bool handed_out = context.own_writes_.was_handed_out();
  try {
    settle(wait_for<Finish>([&](FinishDone&& done) {
             if (handed_out) return context.own_writes_.read_outcome(std::move(done));
             claim.complete(outcome.result, companion, std::move(done));
           }),
           companion != nullptr || handed_out, policy, outcome);
  } catch (const Declined&) {
    Finish finish = end_thrown();
    if (finish.kind != Finish::Kind::superseded) throw;
    settle_lost(std::move(finish), outcome);
  }
}

void Engine::tell_unprotected(std::string_view operation, std::string_view key) {
  core_->tell_unprotected(operation, key);
}

void Engine::run_work_without_claim(ErasedWork work, std::string_view operation, const std::string* key,
                                    Outcome& outcome) {
  core_->tell_unprotected(operation, key == nullptr ? std::string_view() : std::string_view(*key));
  Context context(*core_, nullptr, key);
  work(context, outcome.result);
  outcome.kind = Outcome::Kind::unprotected;
}

std::uint32_t Context::attempt() const noexcept { return claim_ == nullptr ? 1 : claim_->attempt(); }
std::uint64_t Context::token() const noexcept { return claim_ == nullptr ? 0 : claim_->token(); }

std::string Context::derived_key(std::string_view name) const {
  if (claim_ != nullptr) return claim_->derived_key(name);
  if (key_ != nullptr) return once::derived_key(*key_, name);
  return once::derived_key(core_.new_owner().hex(), name);
}

std::stop_token Context::stop_token() const {
  if (stop_ != nullptr) return stop_->get_token();
  return claim_ == nullptr ? std::stop_token() : claim_->stop_token();
}

std::optional<Uptime> Context::deadline() const {
  return claim_ == nullptr ? std::nullopt : std::optional(claim_->deadline());
}

void Context::heartbeat(std::string_view note) {
  if (claim_ != nullptr) claim_->heartbeat(note);
}

TraceContext Context::trace() const { return claim_ == nullptr ? TraceContext() : claim_->trace(); }

void Context::commit_with(std::shared_ptr<const Companion> writes) {
  own_writes_.commit_with(claim_, std::move(writes));
}

namespace detail {

std::optional<std::string> finished_step(Claim* claim, std::string_view name) {
  if (claim == nullptr) return std::nullopt;
  std::optional<std::string> result = claim->step(name);
  if (!result && claim->stop_token().stop_requested()) {
    throw ClaimLost(ErrorKind::unavailable,
                    "step '" + std::string(name) + "' was not started: the claim on '" + claim->key() + "' was lost",
                    nullptr);
  }
  return result;
}

void keep_step(Claim* claim, std::string_view name, std::string result) {
  if (claim == nullptr) return;
  check_step(*claim, name, claim->add_step(std::string(name), std::move(result)));
}

void check_step(const Claim& claim, std::string_view name, const Finish& finish) {
  if (finish.kind == Finish::Kind::recorded || finish.kind == Finish::Kind::unrecorded) return;
  throw ClaimLost(ErrorKind::unavailable,
                  "step '" + std::string(name) + "' ran, but the claim on '" + claim.key() + "' was lost meanwhile",
                  finish.record);
}

}  // namespace detail

}  // namespace once
