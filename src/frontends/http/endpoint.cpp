#include <once/frontends/http/endpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <utility>

#include <once/decide.hpp>
#include <once/engine/event.hpp>
#include <once/engine/exceptions.hpp>
#include <once/engine/unwinding.hpp>
#include <once/engine/within_invocation.hpp>
#include <once/error.hpp>

#include "engine/tenant.hpp"
#include "frontends/http/headers.hpp"
#include "platform/wait.hpp"
#include "text/json.hpp"

namespace once::http {

namespace {

// Of nlohmann/json, whose type is another one in each of its versions, and of Boost.JSON.
bool is_json_parse_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    const std::string_view what = thrown.what();
    return what.starts_with("[json.exception.parse_error.") || what.find("[boost.json:") != std::string_view::npos;
  } catch (...) {  // Something else.
    return false;
  }
}

// Certainly: for every parser of JSON. Texts that are only beyond a limit of ours are not.
bool is_no_json(std::string_view body) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (body.starts_with(byte_order_mark)) body.remove_prefix(byte_order_mark.size());
  const auto opens = std::ranges::count(body, '[') + std::ranges::count(body, '{');
  if (body.size() > text::json::max_bytes || opens > static_cast<std::ptrdiff_t>(text::json::max_depth)) return false;
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value value;
  const text::json::Rules loose{.unique_names = false, .exact_numbers = false};
  return !text::json::try_parse(body, loose, arena, value);
}

bool begins_like_json(std::string_view body) {
  const std::size_t first = body.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (body[first] == '{' || body[first] == '[');
}

constexpr bool is_status(unsigned number) noexcept { return number >= 100 && number <= 599; }

// What to do with the claim, after ambiguous ones were decided.
enum class End : std::uint8_t { store, release, hold, lapse };

Options with_engine_defaults(Options options, const EngineOptions& engine) {
  if (options.scope.empty()) options.scope = engine.scope;
  options.policy = fill_in(options.policy.value_or(Policy{}), engine.policy);
  return options;
}

// For people: the operation that runs unprotected.
std::string title_of(const Options& options) {
  const std::string title = options.scope + (options.scope.empty() || options.route.empty() ? "" : " ") + options.route;
  return title.empty() ? "HTTP requests" : title;
}

Opening::Kind kind_of(Begin::Kind kind) noexcept {
  switch (kind) {
    case Begin::Kind::claimed:
      return Opening::Kind::claimed;
    case Begin::Kind::replayed:
    case Begin::Kind::stored_failure:
      return Opening::Kind::replayed;
    case Begin::Kind::conflict:
      return Opening::Kind::conflict;
    case Begin::Kind::mismatch:
      return Opening::Kind::mismatch;
    case Begin::Kind::unknown:
      return Opening::Kind::unknown;
    case Begin::Kind::error:
      return Opening::Kind::error;
  }
  return Opening::Kind::error;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return std::string("the handler threw: ") + thrown.what();
  } catch (...) {  // It has no text.
    return "the handler threw something that is not a std::exception";
  }
}

}  // namespace

std::string_view to_string(Opening::Kind kind) noexcept {
  switch (kind) {
    case Opening::Kind::passed:
      return "passed";
    case Opening::Kind::unprotected:
      return "unprotected";
    case Opening::Kind::claimed:
      return "claimed";
    case Opening::Kind::replayed:
      return "replayed";
    case Opening::Kind::conflict:
      return "conflict";
    case Opening::Kind::mismatch:
      return "mismatch";
    case Opening::Kind::unknown:
      return "unknown";
    case Opening::Kind::refused:
      return "refused";
    case Opening::Kind::error:
      return "error";
  }
  return "?";
}

// Shared by the completions of one request: they own this, and need no allocation.
class Execution::State {
 public:
  // Without a claim. `key`: empty if there is none.
  State(Engine& engine, std::shared_ptr<const Rules> rules, std::string key, bool is_json = false)
      : engine_(engine), rules_(std::move(rules)), key_(std::move(key)), is_json_(is_json) {}

  [[nodiscard]] Claim* claim() noexcept { return claim_ ? &claim_ : nullptr; }

  [[nodiscard]] std::string derived_key(std::string_view name) const {
    if (!key_.empty()) return once::derived_key(key_, name);
    Owner random;  // Without a key nothing is the same in a retry.
    engine_.options().random->fill(random.bytes);
    return once::derived_key(random.hex(), name);
  }

  [[nodiscard]] End end_of(Fate fate) const noexcept {
    switch (fate) {
      case Fate::store:
        return End::store;
      case Fate::release:
        return End::release;
      case Fate::hold:
        return End::hold;
      case Fate::ambiguous:
        break;
    }
    return rules_->options().on_ambiguous == OnLapse::hold ? End::hold : End::lapse;
  }

  [[nodiscard]] Fate fate_of(unsigned status) const noexcept {
    return status >= 100 && status <= 599 ? rules_->fate_of(status) : Fate::ambiguous;
  }

  [[nodiscard]] End end_of(const std::exception_ptr& error) const {
    const ThrowRule& rule = engine_.options().throw_rule;
    std::optional<OnThrow> what = rule ? rule(error) : std::nullopt;
    if (!what) what = rules_->options().on_throw;
    if (!what) return end_of(Fate::ambiguous);
    switch (*what) {
      case OnThrow::release:
        return End::release;
      case OnThrow::store:
        return End::store;
      case OnThrow::hold:
        break;
    }
    return End::hold;
  }

  [[nodiscard]] const Rules& rules() const noexcept { return *rules_; }

  [[nodiscard]] bool is_malformed(const std::exception_ptr& error, std::string_view body) const {
    const ThrowRule& rule = engine_.options().throw_rule;
    const bool is_meant_as_json = is_json_ || begins_like_json(body);
    return is_meant_as_json && is_json_parse_error(error) && !(rule && rule(error)) && is_no_json(body);
  }

  void commit_with(std::shared_ptr<const Companion> writes, std::optional<Answer> declined) {
    own_writes_.commit_with(claim(), std::move(writes));
    declined_ = std::move(declined);
  }

  HandedOut hand_out(Answer answer) {
    HandedOut handed = own_writes_.hand_out(claim(), rules_->encode(answer));
    handed_ = std::move(answer);
    return handed;
  }

  bool hand_out_to_service() {
    if (!claim_ || !engine_.options().store->capabilities().has_finish_function) return false;
    to_service_ = claim_.hand_out();
    return true;
  }

  // Opens the operation, and passes `self` to `done`, with its claim if there is one.
  static void open(std::unique_ptr<State> self, once::Request operation, Callback<void(Opening)> done) {
    self->opened_ = std::move(done);
    Engine& engine = self->engine_;
    engine.begin(std::move(operation), [self = std::move(self)](Begin begin) mutable {
      Callback<void(Opening)> opened = std::move(self->opened_);
      Opening out;
      out.kind = kind_of(begin.kind);
      if (begin.kind == Begin::Kind::claimed) {
        self->claim_ = std::move(begin.claim);
        out.execution = Execution(std::move(self));
        return opened(std::move(out));
      }
      // With a record, the store had answered, and the request would run again.
      const bool down = begin.kind == Begin::Kind::error && begin.record == nullptr &&
                        (begin.error.kind == ErrorKind::unavailable || begin.error.kind == ErrorKind::in_doubt);
      if (down && self->rules().options().policy->on_store_down == OnStoreDown::run_unprotected) {
        self->engine_.tell_unprotected(title_of(self->rules().options()), self->key_);
        out.kind = Opening::Kind::unprotected;
        out.execution = Execution(std::move(self));
        return opened(std::move(out));
      }
      if (out.kind == Opening::Kind::unknown) out.record = begin.record;
      out.answer = self->rules().answer_for(begin);
      opened(std::move(out));
    });
  }

  struct Ended {
    std::optional<Answer> instead;  // The answer for the client, instead of the one passed to the finish.
    bool dropped = false;           // The record had no room for it.
  };

  // Ends `self`, and calls its complete(). The completion owns it then, and may end before the claim's method returns,
  // so the claim stays here. `status` or `reason`: for the record.
  static void end(std::unique_ptr<State> self, End end, Result result, unsigned status, std::string reason) {
    if (!self->claim_) return self->complete({});
    if (self->to_service_) return end_with_service(std::move(self), end, std::move(result), status, std::move(reason));
    if (self->own_writes_.may_be_committed()) {
      const once::detail::OwnWrites& own_writes = self->own_writes_;
      return own_writes.read_outcome([self = std::move(self), end, result = std::move(result), status,
                                      reason = std::move(reason)](Finish finish) mutable {
        if (finish.kind == Finish::Kind::declined) {
          return State::end(std::move(self), end, std::move(result), status, std::move(reason));
        }
        if (finish.kind == Finish::Kind::recorded) self->replaced_ = std::move(self->handed_);
        self->complete({self->instead(End::store, std::move(finish), true)});
      });
    }
    if (end == End::store && self->own_writes_.was_handed_out()) {
      const Error error{ErrorKind::unavailable, "the transaction that was to store the answer was rolled back"};
      auto claim = std::make_shared<Claim>(std::move(self->claim_));
      return decline(std::move(self), std::move(claim), error);
    }
    std::shared_ptr<const Companion> writes = self->own_writes_.take_companion();
    if (writes != nullptr && end == End::store) {
      auto claim = std::make_shared<Claim>(std::move(self->claim_));
      return claim->complete(std::move(result), std::move(writes),
                             [self = std::move(self), claim](Finish finish) mutable {
                               if (finish.kind == Finish::Kind::declined) {
                                 return decline(std::move(self), std::move(claim), finish.error);
                               }
                               const bool dropped = self->is_dropped(finish);
                               self->complete({self->instead(End::store, std::move(finish), true), dropped});
                             });
    }
    Claim claim = std::move(self->claim_);
    write(std::move(self), claim, nullptr, end, std::move(result), status, std::move(reason));
  }

  // The service may have finished it, or be about to. A write of ours is refused then, and finds it. Where there is
  // none, the record is read: the service may have died after its commit.
  static void end_with_service(std::unique_ptr<State> self, End end, Result result, unsigned status,
                               std::string reason) {
    auto handed = std::make_shared<HandedOut>(std::exchange(self->to_service_, HandedOut()));
    self->own_digest_ = sha256(result.bytes);
    if (end != End::lapse) {
      std::optional<Finish> known = handed->take_back();
      if (!known) return State::end(std::move(self), end, std::move(result), status, std::move(reason));
      self->meet_service(end, *known);
      return self->complete({self->instead(end, *std::move(known), false)});
    }
    handed->unknown([self = std::move(self), handed](Finish finish) mutable {
      if (finish.kind == Finish::Kind::unrecorded) {  // It has not, up to now.
        static_cast<void>(handed->take_back());
        self->claim_ = Claim();
        return self->complete({});
      }
      self->meet_service(End::lapse, finish);
      self->complete({self->instead(End::lapse, std::move(finish), false)});
    });
  }

  // Whether it is the answer that the service sent, without headers that are not kept.
  [[nodiscard]] bool is_answer_kept_as(const Answer& stored) const {
    const std::vector<HeaderView> own = storable(answer_.headers, rules_->options().never_store).headers;
    return stored.status == answer_.status && stored.body == answer_.body &&
           std::ranges::is_permutation(stored.headers, own, [](const auto& a, const auto& b) {
             return same_name(a.name, b.name) && a.value == b.value;
           });
  }

  // If the service has stored an answer, the client gets that one. If it is the one that we would have stored, it has
  // headers that are not kept.
  void meet_service(End end, const Finish& finish) {
    const bool is_recorded = finish.kind == Finish::Kind::recorded && finish.record != nullptr;
    if (!own_digest_ || !is_recorded || finish.record->state != ::once::State::completed) return;
    const Result& result = finish.record->result;
    const bool is_ours = result.placement != Placement::inlined || sha256(result.bytes) == *own_digest_;
    if (end == End::store && is_ours) return;
    by_service_ = true;
    Answer stored = rules_->answer_of(*finish.record);
    if (end == End::store && is_answer_kept_as(stored)) return;
    replaced_ = std::move(stored);
  }

  // `kept`: null, or `claim`, which the completion keeps alive.
  static void write(std::unique_ptr<State> self, Claim& claim, std::shared_ptr<Claim> kept, End end, Result result,
                    unsigned status, std::string reason) {
    if (end == End::lapse) {
      claim = Claim();  // The next request after the lease takes it over.
      return self->complete({});
    }
    auto on_end = [self = std::move(self), kept = std::move(kept), end](Finish finish) mutable {
      const bool dropped = end == End::store && self->is_dropped(finish);
      self->meet_service(end, finish);
      self->complete({self->instead(end, std::move(finish), false), dropped});
    };
    if (end == End::store) {
      return status >= 400 ? claim.complete_as_failure(std::move(result), std::move(on_end))
                           : claim.complete(std::move(result), std::move(on_end));
    }
    if (reason.empty()) reason = "answered " + std::to_string(status);
    if (end == End::release) return claim.release(reason, std::move(on_end));
    claim.hold(reason, std::move(on_end));
  }

  // The writes that were to commit with the answer were not made, and will not be.
  static void decline(std::unique_ptr<State> self, std::shared_ptr<Claim> claim, const Error& error) {
    const std::string reason = "the writes that were to commit with the answer were refused: " + error.message;
    End end = End::lapse;
    if (self->declined_) {
      self->replaced_ = std::move(self->declined_);
      end = self->end_of(self->fate_of(self->replaced_->status));
    } else {
      self->replaced_ = self->rules().problem(Problem::handler_failed);
      end = self->end_of(std::make_exception_ptr(Declined(error.kind, reason, nullptr)));
    }
    Result result;
    if (end == End::store) result = self->rules_->encode(*self->replaced_);
    const unsigned status = self->replaced_->status;
    Claim& same = *claim;
    write(std::move(self), same, std::move(claim), end, std::move(result), status, reason);
  }

  // finish() with a complete answer.
  static void end_with(std::unique_ptr<State> self, End end, Answer answer, Callback<void(Finished)> done,
                       std::string reason = {}) {
    Result result;
    const bool is_stored = self->claim_ && end == End::store;
    self->is_over_ = is_stored && answer.body.size() > self->rules_->options().max_answer_bytes;
    if (is_stored) result = self->rules_->encode(answer);
    const unsigned status = answer.status;
    self->answer_ = std::move(answer);
    self->finished_ = std::move(done);
    State::end(std::move(self), end, std::move(result), status, std::move(reason));
  }

  // finish_streamed().
  static void end_streamed(std::unique_ptr<State> self, End end, const Answer& head, std::uint64_t body_bytes,
                           Callback<void(std::optional<Answer>)> done, std::string reason) {
    Result result;
    if (end == End::store) result = self->rules_->encode_tombstone(head, body_bytes);
    self->streamed_ = std::move(done);
    State::end(std::move(self), end, std::move(result), head.status, std::move(reason));
  }

  // For callers that need only the answer.
  static Callback<void(Finished)> answer_only(Callback<void(Answer)> done) {
    return [done = std::move(done)](Finished finished) mutable { done(std::move(finished.answer)); };
  }

 private:
  // The record had no room for the answer.
  static bool is_dropped(const Finish& finish) noexcept {
    return finish.kind == Finish::Kind::recorded && finish.record != nullptr &&
           finish.record->result.placement == Placement::dropped;
  }

  void complete(Ended ended) {
    if (!ended.instead) ended.instead = std::move(replaced_);
    if (streamed_) return streamed_(std::move(ended.instead));
    const bool is_tombstone = ended.dropped || (is_over_ && !ended.instead);
    const bool is_another = ended.instead.has_value();
    finished_({is_another ? std::move(*ended.instead) : std::move(answer_), is_tombstone, is_another, by_service_});
  }

  // The answer for the client, instead of the one passed to the finish. `together`: it is stored with other writes.
  [[nodiscard]] std::optional<Answer> instead(End end, Finish finish, bool together) const {
    switch (finish.kind) {
      case Finish::Kind::recorded:
        return std::nullopt;
      case Finish::Kind::superseded:
        return rules_->replay(*finish.record);
      case Finish::Kind::lost:
        // Without an answer to store, none can be lost.
        if (end != End::store) return std::nullopt;
        return rules_->problem(finish.record != nullptr && finish.record->state == ::once::State::unknown
                                   ? Problem::outcome_unknown
                                   : Problem::claim_lost);
      case Finish::Kind::unrecorded:
        if (!together && (end != End::store || rules_->options().policy->on_unrecorded != OnUnrecorded::fail)) {
          return std::nullopt;
        }
        return rules_->problem(Problem::not_recorded);
      case Finish::Kind::declined:  // See decline().
        return rules_->problem(Problem::not_recorded);
    }
    return std::nullopt;
  }

  Engine& engine_;
  const std::shared_ptr<const Rules> rules_;
  Claim claim_;         // Empty: unprotected.
  std::string key_;     // Stored form; empty: no key.
  const bool is_json_;  // Examination::is_json.
  // Until they are called.
  Callback<void(Opening)> opened_;
  Callback<void(Finished)> finished_;
  Callback<void(std::optional<Answer>)> streamed_;
  once::detail::OwnWrites own_writes_;
  std::optional<Answer> declined_;    // For its companion.
  std::optional<Answer> handed_;      // To its transaction.
  HandedOut to_service_;              // Until the finish. Empty: not handed out.
  std::optional<Sha256> own_digest_;  // Of our result, if it was handed out to the service.
  bool by_service_ = false;           // The service has finished it.
  std::optional<Answer> replaced_;  // What the client gets instead of `answer_`, unless another attempt has stored one.
  // For finished_.
  Answer answer_;
  bool is_over_ = false;  // Its body is over the limit.
};

Execution::Execution() noexcept = default;
Execution::Execution(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Execution::Execution(Execution&&) noexcept = default;
Execution& Execution::operator=(Execution&&) noexcept = default;
Execution::~Execution() = default;

Claim* Execution::claim() const noexcept { return state_->claim(); }

std::string Execution::derived_key(std::string_view name) const { return state_->derived_key(name); }

std::stop_token Execution::stop_token() const {
  const Claim* const claim = state_->claim();
  return claim == nullptr ? std::stop_token() : claim->stop_token();
}

void Execution::commit_with(std::shared_ptr<const Companion> writes, std::optional<Answer> declined) {
  state_->commit_with(std::move(writes), std::move(declined));
}

HandedOut Execution::hand_out(Answer answer) { return state_->hand_out(std::move(answer)); }

bool Execution::hand_out_to_service() { return state_->hand_out_to_service(); }

bool Execution::may_begin() const noexcept {
  const Claim* const claim = state_->claim();
  return claim == nullptr || claim->is_ours();
}

void Execution::finish(Answer answer, Callback<void(Answer)> done) {
  const Fate fate = state_->fate_of(answer.status);
  finish(std::move(answer), fate, std::move(done));
}

void Execution::finish(Answer answer, Fate fate, Callback<void(Answer)> done) {
  finish_told(std::move(answer), fate, State::answer_only(std::move(done)));
}

void Execution::finish_told(Answer answer, Fate fate, Callback<void(Finished)> done, std::string reason) {
  if (!is_status(answer.status)) fate = Fate::ambiguous;
  const End end = state_->end_of(fate);
  State::end_with(std::move(state_), end, std::move(answer), std::move(done), std::move(reason));
}

void Execution::finish_streamed(const Answer& head, std::uint64_t body_bytes,
                                Callback<void(std::optional<Answer>)> done) {
  const Fate fate = state_->fate_of(head.status);
  finish_streamed(head, body_bytes, fate, std::move(done));
}

void Execution::finish_streamed(const Answer& head, std::uint64_t body_bytes, Fate fate,
                                Callback<void(std::optional<Answer>)> done, std::string reason) {
  if (!is_status(head.status)) fate = Fate::ambiguous;
  const End end = state_->end_of(fate);
  State::end_streamed(std::move(state_), end, head, body_bytes, std::move(done), std::move(reason));
}

void Execution::finish_thrown(const std::exception_ptr& error, Callback<void(Answer)> done) {
  const End end = state_->end_of(error);
  Answer answer = state_->rules().problem(Problem::handler_failed);
  State::end_with(std::move(state_), end, std::move(answer), State::answer_only(std::move(done)), text_of(error));
}

void Execution::finish_thrown(const std::exception_ptr& error, std::string_view body, Callback<void(Answer)> done) {
  if (!state_->is_malformed(error, body)) return finish_thrown(error, std::move(done));
  finish_told(state_->rules().problem(Problem::request_malformed), Fate::release, State::answer_only(std::move(done)),
              text_of(error));
}

bool Execution::is_malformed(const std::exception_ptr& error, std::string_view body) const {
  return state_->is_malformed(error, body);
}

void Execution::finish_unbegun(Callback<void(Answer)> done) {
  Answer answer = state_->rules().problem(Problem::in_progress);
  finish(std::move(answer), Fate::release, std::move(done));
}

Answer Execution::finish_unbegun() {
  return wait_for<Answer>([&](Callback<void(Answer)> done) { finish_unbegun(std::move(done)); });
}

Answer Execution::finish(Answer answer) {
  return wait_for<Answer>([&](Callback<void(Answer)> done) { finish(std::move(answer), std::move(done)); });
}

Answer Execution::finish(Answer answer, Fate fate) {
  return wait_for<Answer>([&](Callback<void(Answer)> done) { finish(std::move(answer), fate, std::move(done)); });
}

std::optional<Answer> Execution::finish_streamed(const Answer& head, std::uint64_t body_bytes) {
  return wait_for<std::optional<Answer>>(
      [&](Callback<void(std::optional<Answer>)> done) { finish_streamed(head, body_bytes, std::move(done)); });
}

Answer Execution::finish_thrown(const std::exception_ptr& error) {
  return wait_for<Answer>([&](Callback<void(Answer)> done) { finish_thrown(error, std::move(done)); });
}

Answer Execution::finish_thrown(const std::exception_ptr& error, std::string_view body) {
  return wait_for<Answer>([&](Callback<void(Answer)> done) { finish_thrown(error, body, std::move(done)); });
}

Endpoint::Endpoint(Engine& engine, Options options)
    : engine_(engine),
      rules_(std::make_shared<const Rules>(with_engine_defaults(std::move(options), engine.options()))) {
  const EngineOptions& own = engine.options();
  if (rules_->options().service_finish && !own.store->capabilities().has_finish_function &&
      !own.disabled.value_or(false)) {
    throw Exception(ErrorKind::misuse, "service_finish: no transaction of a service can finish a record of " +
                                           own.store->name() + "; choose PostgreSQL");
  }
}

void Endpoint::open(const Request& request, Callback<void(Opening)> done) {
  open(rules_->examine(request), std::move(done));
}

void Endpoint::open(Examination examination, Callback<void(Opening)> done) {
  Opening opening;
  const auto unprotected = [&] {
    return Execution(std::make_unique<Execution::State>(engine_, rules_, std::string()));
  };
  switch (examination.kind) {
    case Examination::Kind::pass:
      opening.kind = Opening::Kind::passed;
      opening.execution = unprotected();
      return done(std::move(opening));
    case Examination::Kind::no_key:
      engine_.tell_unprotected(title_of(rules_->options()), {});
      opening.kind = Opening::Kind::unprotected;
      opening.execution = unprotected();
      return done(std::move(opening));
    case Examination::Kind::refuse:
      opening.kind = Opening::Kind::refused;
      opening.answer = std::move(examination.answer);
      return done(std::move(opening));
    case Examination::Kind::operation:
      break;
  }
  if (!examination.operation) {
    throw Exception(ErrorKind::misuse, "only the head was examined: read the body, then call Rules::examine()");
  }
  // Here already, because derived keys are made of it.
  add_tenant(examination.operation->key, WithinInvocation::current().tenant);
  auto state =
      std::make_unique<Execution::State>(engine_, rules_, examination.operation->key.stored(), examination.is_json);
  Execution::State::open(std::move(state), std::move(*examination.operation), std::move(done));
}

Opening Endpoint::open(const Request& request) {
  return wait_for<Opening>([&](Callback<void(Opening)> done) { open(request, std::move(done)); });
}

Opening Endpoint::open(Examination examination) {
  return wait_for<Opening>([&](Callback<void(Opening)> done) { open(std::move(examination), std::move(done)); });
}

Answer Endpoint::run(const Request& request, const std::function<Answer(Execution&)>& handler) {
  return run(rules_->examine(request), handler, request.body);
}

Answer Endpoint::run(Examination examination, const std::function<Answer(Execution&)>& handler,
                     std::optional<std::string_view> body) {
  Opening opening = open(std::move(examination));
  if (!opening.runs()) return std::move(opening.answer);
  if (!opening.execution.may_begin()) return opening.execution.finish_unbegun();
  Answer answer;
  try {
    answer = handler(opening.execution);
  } catch (const ClaimLost&) {
    if (!opening.execution.stop_token().stop_requested()) {  // It is about another claim.
      static_cast<void>(opening.execution.finish_thrown(std::current_exception()));
      throw;
    }
    // Not the handler's fault: the client gets the stored answer, if there is one.
    return opening.execution.finish(rules_->problem(Problem::claim_lost), Fate::ambiguous);
  } catch (...) {               // Any exception is passed to the caller. The policy decides about the claim.
    if (is_unwinding()) throw;  // As in Engine::run(): the claim lapses.
    const std::exception_ptr error = std::current_exception();
    if (body && opening.execution.is_malformed(error, *body)) return opening.execution.finish_thrown(error, *body);
    static_cast<void>(opening.execution.finish_thrown(error));
    throw;
  }
  return opening.execution.finish(std::move(answer));
}

Endpoints::Endpoints(Engine& engine, Routes routes) : router_(std::move(routes)) {
  for (const Route& route : router_.routes().routes) endpoints_.emplace_back(engine, route.options);
  endpoints_.emplace_back(engine, router_.routes().otherwise);
}

Endpoint* Endpoints::find(const Request& request) {
  const auto index = router_.find(request);
  return index ? &endpoints_[*index] : nullptr;
}

std::string_view Endpoints::path_of(const Endpoint& endpoint) const noexcept {
  const auto index = static_cast<std::size_t>(&endpoint - endpoints_.data());
  const std::vector<Route>& routes = router_.routes().routes;
  return index < routes.size() ? std::string_view(routes[index].path) : std::string_view();
}

// Its scope ends with method, route and the principal's digest: see Rules.
const Endpoint* Endpoints::find_shared(const Key& key) const {
  const std::string scope = key.scope();
  const std::size_t end = scope.rfind(' ');
  if (end == std::string::npos || end == 0) return nullptr;
  const std::size_t middle = scope.rfind(' ', end - 1);
  if (middle == std::string::npos) return nullptr;
  const std::string_view route = std::string_view(scope).substr(middle + 1, end - middle - 1);
  const std::string_view before = std::string_view(scope).substr(0, middle);
  const std::string_view method = before.substr(before.rfind('/') + 1);
  const auto by_path = route.starts_with('/') ? router_.find(method, route) : std::nullopt;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    const Options& options = endpoints_[i].rules().options();
    const bool matches = options.route.empty() ? by_path == i : options.route == route;
    if (matches && endpoints_[i].rules().is_shared_key(key, method, route)) return &endpoints_[i];
  }
  return nullptr;
}

Answer Endpoints::unclear() const { return endpoints_.back().rules().problem(Problem::path_unclear); }

}  // namespace once::http
