#include <once/testing/faulty_store.hpp>

#include <algorithm>
#include <concepts>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <once/stores/sql.hpp>
#include <once/testing/manual_time.hpp>

namespace once::testing {

namespace {

std::string lost(const StoreCall::Operation operation) {
  return "the answer to " + std::string(to_string(operation)) +
         " was lost: read, or write again under the same condition";
}

// Sets a failure in each of the three answer types.
void put_error(Answer& answer, Error error) { answer = Answer::fail(error.kind, std::move(error.message)); }
void put_error(ListPage& page, Error error) { page.error = std::move(error); }
void put_error(SweepAnswer& answer, Error error) { answer.error = std::move(error); }

template <class T>
T error_answer(ErrorKind kind, std::string message) {
  T answer;
  put_error(answer, {kind, std::move(message)});
  return answer;
}

}  // namespace

std::string_view to_string(StoreCall::Operation operation) noexcept {
  switch (operation) {
    case StoreCall::Operation::insert:
      return "insert";
    case StoreCall::Operation::replace:
      return "replace";
    case StoreCall::Operation::remove:
      return "remove";
    case StoreCall::Operation::get:
      return "get";
    case StoreCall::Operation::list:
      return "list";
    case StoreCall::Operation::sweep:
      return "sweep";
  }
  return "?";
}

std::string_view to_string(Fault::Kind kind) noexcept {
  switch (kind) {
    case Fault::Kind::none:
      return "none";
    case Fault::Kind::unavailable:
      return "unavailable";
    case Fault::Kind::forbidden:
      return "forbidden";
    case Fault::Kind::lost_before:
      return "lost_before";
    case Fault::Kind::lost_after:
      return "lost_after";
    case Fault::Kind::resent:
      return "resent";
    case Fault::Kind::repeated:
      return "repeated";
  }
  return "?";
}

FaultPlan no_faults() {
  return [](const StoreCall&) { return Fault{}; };
}

FaultPlan random_faults(const FaultRates& rates, std::uint64_t seed) {
  // The same number of draws for every call, so that one call's fault does not shift the next one's.
  return [rates, random = std::make_shared<SeededRandom>(seed)](const StoreCall&) {
    const auto delay = [&] {
      const bool late = random->chance(rates.delayed);
      const Millis by{1 + static_cast<Millis::rep>(random->below(static_cast<std::uint64_t>(rates.max_delay.count())))};
      return late && rates.max_delay > Millis{0} ? by : Millis{0};
    };
    Fault fault;
    std::uint64_t draw = random->below(1000);
    const std::pair<std::uint32_t, Fault::Kind> kinds[] = {{rates.unavailable, Fault::Kind::unavailable},
                                                           {rates.lost_before, Fault::Kind::lost_before},
                                                           {rates.lost_after, Fault::Kind::lost_after},
                                                           {rates.resent, Fault::Kind::resent},
                                                           {rates.repeated, Fault::Kind::repeated}};
    for (const auto& [rate, kind] : kinds) {
      if (draw < rate) {
        fault.kind = kind;
        break;
      }
      draw -= rate;
    }
    fault.request_delay = delay();
    fault.answer_delay = delay();
    fault.repeat_after = delay();
    return fault;
  };
}

// Outlives the store while timers and the inner store may still call.
class FaultyStore::State : public std::enable_shared_from_this<State> {
 public:
  State(std::shared_ptr<Store> inner, FaultPlan plan, std::shared_ptr<Clock> clock, std::shared_ptr<Timers> timers)
      : inner_(std::move(inner)), clock_(std::move(clock)), timers_(std::move(timers)), plan_(std::move(plan)) {
    if (!inner_ || !plan_) throw Exception(ErrorKind::misuse, "a faulty store needs a store and a plan");
    if ((clock_ == nullptr) != (timers_ == nullptr)) {
      throw Exception(ErrorKind::misuse, "a faulty store needs both a clock and timers, or neither");
    }
  }

  Store& inner() const noexcept { return *inner_; }

  template <class T>
  using Carry = std::function<void(Store&, Callback<void(T)>)>;

  template <class T>
  void begin(StoreCall call, Carry<T> carry, Callback<void(T)> done) {
    auto operation = std::make_shared<Operation<T>>();
    operation->kind = call.operation;
    operation->is_write = call.is_write();
    operation->carry = std::move(carry);
    operation->done = std::move(done);
    {
      const std::lock_guard lock(mutex_);
      call.number = calls_++;
      operation->fault = plan_(call);
      operation->number = call.number;
      if (operation->fault.kind != Fault::Kind::none) ++faults_;
      if (operation->fault.request_delay > Millis{0} || operation->fault.answer_delay > Millis{0}) ++delayed_;
      under_way_.emplace(call.number, operation);
    }
    after(operation->fault.request_delay, [self = shared_from_this(), operation] { self->carry_out(operation); });
  }

  void set_plan(FaultPlan plan) {
    if (!plan) throw Exception(ErrorKind::misuse, "a faulty store needs a plan");
    const std::lock_guard lock(mutex_);
    plan_ = std::move(plan);
  }

  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return {.calls = calls_, .faults = faults_, .delayed = delayed_, .under_way = under_way_.size()};
  }

  void close() {
    std::map<std::uint64_t, std::shared_ptr<Unanswered>> left;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      left = under_way_;
    }
    for (const auto& [number, operation] : left) operation->abandon(*this);
    // The destructor waits for completions on other threads, but not for one on this thread.
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] {
      return std::all_of(completing_.begin(), completing_.end(),
                         [](std::thread::id id) { return id == std::this_thread::get_id(); });
    });
  }

 private:
  struct Unanswered {
    virtual ~Unanswered() = default;
    virtual void abandon(State& state) = 0;
    std::uint64_t number = 0;
  };

  template <class T>
  struct Operation final : Unanswered {
    StoreCall::Operation kind{};
    bool is_write = false;
    Fault fault;
    Carry<T> carry;
    Callback<void(T)> done;

    T lost_answer() const {
      const bool may_have_acted = is_write || std::same_as<T, SweepAnswer>;
      return error_answer<T>(may_have_acted ? ErrorKind::in_doubt : ErrorKind::unavailable, lost(kind));
    }
    void abandon(State& state) override { state.answer(*this, lost_answer()); }
  };

  template <class F>
  void after(Millis delay, F run) {
    if (delay <= Millis{0}) return run();
    if (!timers_) throw Exception(ErrorKind::misuse, "a faulty store delays only if it was given a clock and timers");
    timers_->at(clock_->uptime() + delay, std::move(run));
  }

  // The first answer counts; later ones are dropped.
  template <class T>
  void answer(Operation<T>& operation, T answer) {
    {
      const std::lock_guard lock(mutex_);
      if (under_way_.erase(operation.number) == 0) return;
      completing_.push_back(std::this_thread::get_id());
    }
    operation.done(std::move(answer));
    operation.done = nullptr;
    const std::lock_guard lock(mutex_);
    completing_.erase(std::find(completing_.begin(), completing_.end(), std::this_thread::get_id()));
    idle_.notify_all();
  }

  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  template <class T>
  void answer_later(const std::shared_ptr<Operation<T>>& operation, T value) {
    if (operation->fault.answer_delay <= Millis{0}) return answer(*operation, std::move(value));
    after(operation->fault.answer_delay, [self = shared_from_this(), operation, value = std::move(value)]() mutable {
      self->answer(*operation, std::move(value));
    });
  }

  template <class T>
  void carry_out(const std::shared_ptr<Operation<T>>& operation) {
    if (is_closed()) return;
    const auto self = shared_from_this();
    switch (operation->fault.kind) {
      case Fault::Kind::unavailable:
        return answer_later(operation,
                            error_answer<T>(ErrorKind::unavailable, "the store cannot be reached; nothing was done"));
      case Fault::Kind::forbidden:
        return answer_later(operation,
                            error_answer<T>(ErrorKind::misuse, "the store may not be used; nothing was done"));
      case Fault::Kind::lost_before:
        return answer_later(operation, operation->lost_answer());
      case Fault::Kind::lost_after:
        return operation->carry(*inner_,
                                [self, operation](T) { self->answer_later(operation, operation->lost_answer()); });
      case Fault::Kind::resent:
        return operation->carry(*inner_, [self, operation](T) {
          operation->carry(*self->inner_,
                           [self, operation](T second) { self->answer_later(operation, std::move(second)); });
        });
      case Fault::Kind::repeated:
        return operation->carry(*inner_, [self, operation](T first) {
          if (operation->fault.repeat_after > Millis{0}) {
            self->after(operation->fault.repeat_after, [self, operation] {
              if (!self->is_closed()) operation->carry(*self->inner_, [](T) {});  // The caller has its answer already.
            });
            return self->answer_later(operation, std::move(first));
          }
          operation->carry(*self->inner_, [self, operation, first = std::move(first)](T) mutable {
            self->answer_later(operation, std::move(first));
          });
        });
      case Fault::Kind::none:
        return operation->carry(*inner_,
                                [self, operation](T value) { self->answer_later(operation, std::move(value)); });
    }
  }

  const std::shared_ptr<Store> inner_;
  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Timers> timers_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  FaultPlan plan_;
  bool closed_ = false;
  std::uint64_t calls_ = 0;
  std::uint64_t faults_ = 0;
  std::uint64_t delayed_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Unanswered>> under_way_;
  std::vector<std::thread::id> completing_;
};

FaultyStore::FaultyStore(std::shared_ptr<Store> inner, FaultPlan plan, std::shared_ptr<Clock> clock,
                         std::shared_ptr<Timers> timers)
    : state_(std::make_shared<State>(std::move(inner), std::move(plan), std::move(clock), std::move(timers))) {}

FaultyStore::~FaultyStore() { state_->close(); }

void FaultyStore::insert(RecordPtr record, Done done) {
  const StoreCall call{.operation = StoreCall::Operation::insert, .key = record->key};
  state_->begin<Answer>(
      call, [record](Store& store, Done then) { store.insert(record, std::move(then)); }, std::move(done));
}

void FaultyStore::replace(RecordPtr record, Seen seen, Done done) {
  const StoreCall call{.operation = StoreCall::Operation::replace, .key = record->key};
  state_->begin<Answer>(
      call, [record, seen](Store& store, Done then) { store.replace(record, seen, std::move(then)); }, std::move(done));
}

void FaultyStore::replace_with(RecordPtr record, Seen seen, std::shared_ptr<const Companion> companion, Done done) {
  const StoreCall call{.operation = StoreCall::Operation::replace, .key = record->key};
  state_->begin<Answer>(
      call,
      [record, seen, companion](Store& store, Done then) {
        store.replace_with(record, seen, companion, std::move(then));
      },
      std::move(done));
}

stores::SqlStatement FaultyStore::finish_statement(const Record& record, std::uint64_t place) {
  return state_->inner().finish_statement(record, place);
}

void FaultyStore::remove(std::string key, Seen seen, Done done) {
  const StoreCall call{.operation = StoreCall::Operation::remove, .key = key};
  state_->begin<Answer>(
      call, [key, seen](Store& store, Done then) { store.remove(key, seen, std::move(then)); }, std::move(done));
}

void FaultyStore::get(std::string key, Done done) {
  const StoreCall call{.operation = StoreCall::Operation::get, .key = key};
  state_->begin<Answer>(
      call, [key](Store& store, Done then) { store.get(key, std::move(then)); }, std::move(done));
}

void FaultyStore::list(ListQuery query, Callback<void(ListPage)> done) {
  state_->begin<ListPage>(
      {.operation = StoreCall::Operation::list},
      [query = std::move(query)](Store& store, Callback<void(ListPage)> then) { store.list(query, std::move(then)); },
      std::move(done));
}

void FaultyStore::sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) {
  state_->begin<SweepAnswer>(
      {.operation = StoreCall::Operation::sweep},
      [now, limit](Store& store, Callback<void(SweepAnswer)> then) { store.sweep(now, limit, std::move(then)); },
      std::move(done));
}

std::optional<StoreTime> FaultyStore::time() const noexcept { return state_->inner().time(); }

Capabilities FaultyStore::capabilities() const noexcept { return state_->inner().capabilities(); }

std::string FaultyStore::name() const { return "faulty:" + state_->inner().name(); }

void FaultyStore::set_plan(FaultPlan plan) { state_->set_plan(std::move(plan)); }

FaultyStore::Counts FaultyStore::counts() const { return state_->counts(); }

}  // namespace once::testing
