#include "aws/credentials_refresh.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/error.hpp>

#include "platform/forks.hpp"
#include "platform/snapshots.hpp"
#include "platform/thread.hpp"

namespace once::aws {

namespace {

using Done = Callback<void(CredentialsAnswer)>;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Millis least_lead = minutes(5);  // How long before the old ones expire instances have new ones.
constexpr Millis most_lead = minutes(10);
constexpr Millis retry_after = seconds(30);

struct State {
  State(Look l, std::shared_ptr<Clock> c, std::shared_ptr<Random> r)
      : look(std::move(l)), clock(std::move(c)), random(std::move(r)) {}

  const Look look;
  const std::shared_ptr<Clock> clock;
  const std::shared_ptr<Random> random;
  const std::shared_ptr<Cancellation> cancellation = std::make_shared<Cancellation>();

  std::mutex mutex;
  std::shared_ptr<const Credentials> current;  // Null: none, or refused by the service.
  unsigned found_at = 0;                       // The snapshots() when they were looked for.
  Time refresh_at = never;                     // When there are some.
  Credentials rejected;                        // The last rejected ones,
  std::uint64_t rejections = 0;                // and how many there were.
  bool found_before = false;
  std::vector<Done> waiting;
  bool wanted = false;  // A search is due although no caller waits.
  bool looking = false;
  bool running = false;  // A thread runs, and will check `waiting` and `wanted` again before it ends.
  bool stopping = false;
};

bool are_same(const Credentials& a, const Credentials& b) {
  return a.access_key_id == b.access_key_id && a.secret_access_key == b.secret_access_key &&
         a.session_token == b.session_token;
}

bool is_good(const Credentials& credentials, Time now) {
  return !credentials.expires_at || now < *credentials.expires_at;
}

Time next_refresh(State& state, const Credentials& credentials, Time now) {
  if (!credentials.expires_at) return never;
  std::array<std::uint8_t, 4> bytes{};
  state.random->fill(bytes);
  std::uint32_t dice = 0;
  std::memcpy(&dice, bytes.data(), sizeof dice);
  const Millis lead = least_lead + Millis(dice % (most_lead - least_lead).count());
  return *credentials.expires_at - std::min(lead, (*credentials.expires_at - now) / 2);
}

CredentialsAnswer look_once(const State& state) {
  try {
    auto found = std::make_shared<const Credentials>(state.look(state.cancellation));
    if (is_good(*found, state.clock->now())) return {std::move(found), {}};
    return {nullptr,
            {ErrorKind::unavailable, "the AWS credentials from " + found->source +
                                         " have already expired: get new ones, and check this host's clock"}};
  } catch (const Exception& failure) {
    return {nullptr, failure.error()};
  } catch (const std::exception& failure) {  // For example no memory. Waiting callers must get an error.
    return {nullptr, {ErrorKind::unavailable, std::string("cannot look for AWS credentials: ") + failure.what()}};
  }
}

CredentialsAnswer stopped() {
  return {nullptr, {ErrorKind::unavailable, "the AWS credentials provider was destroyed while it was being asked"}};
}

void answer(std::vector<Done> waiting, const CredentialsAnswer& with) {
  for (Done& done : waiting) done(with);
}

void run(State& state) {
  std::unique_lock lock(state.mutex);
  while (!state.stopping && (state.wanted || !state.waiting.empty())) {
    state.wanted = false;
    state.looking = true;
    const std::uint64_t rejections = state.rejections;
    const unsigned looked_at = snapshots();
    lock.unlock();
    CredentialsAnswer found = look_once(state);
    const Time now = state.clock->now();
    lock.lock();
    state.looking = false;
    if (found.credentials != nullptr && state.rejections != rejections &&
        are_same(*found.credentials, state.rejected)) {
      state.wanted = true;  // They were refused meanwhile. There may be newer ones.
      continue;
    }
    if (looked_at != snapshots()) {
      state.wanted = true;  // They may be those of before the snapshot.
      continue;
    }
    if (found.credentials != nullptr) {
      state.found_before = true;
      state.current = found.credentials;
      state.found_at = looked_at;
      state.refresh_at = next_refresh(state, *found.credentials, now);
    } else {
      // It worked before, so the setup is right.
      if (state.found_before && found.error.kind == ErrorKind::misuse) found.error.kind = ErrorKind::unavailable;
      if (state.current != nullptr && state.current->expires_at) {
        const Millis left = *state.current->expires_at - now;
        state.refresh_at = now + std::clamp<Millis>(left / 2, seconds(1), retry_after);
      }
    }
    std::vector<Done> waiting = std::exchange(state.waiting, {});
    lock.unlock();
    answer(std::move(waiting), found);
    lock.lock();
  }
  state.running = false;
  std::vector<Done> waiting = std::exchange(state.waiting, {});
  lock.unlock();
  answer(std::move(waiting), stopped());
}

// One process's search. The child of a fork has none of its threads, and its lock may be held for ever.
struct Part {
  explicit Part(std::shared_ptr<State> s) : state(std::move(s)) {}

  // Call it under the lock. The previous thread has ended its work, and does not lock again.
  bool start(Error& error) {
    if (thread.joinable()) thread.join();
    try {
      thread = start_thread([state = state] { run(*state); });
    } catch (const std::system_error& failure) {
      error = {ErrorKind::unavailable, std::string("no thread to look for AWS credentials: ") + failure.what()};
      return false;
    }
    state->running = true;
    return true;
  }

  const std::shared_ptr<State> state;
  std::thread thread;
  const unsigned forks_before = forks();
};

class RefreshingProvider final : public CredentialsProvider {
 public:
  explicit RefreshingProvider(std::shared_ptr<State> state) : part_(new Part(std::move(state))) {}

  RefreshingProvider(const RefreshingProvider&) = delete;
  RefreshingProvider& operator=(const RefreshingProvider&) = delete;

  ~RefreshingProvider() override {
    Part* const part = part_.load(std::memory_order_acquire);
    if (part->forks_before != forks()) return;  // The parent's: left as it is.
    const std::unique_ptr<Part> ended(part);
    {
      const std::lock_guard lock(part->state->mutex);
      part->state->stopping = true;
    }
    part->state->cancellation->cancel();
    if (!part->thread.joinable()) return;
    if (part->thread.get_id() == std::this_thread::get_id()) {
      part->thread.detach();  // Destroyed by a completion: the thread ends later, with the shared state.
    } else {
      part->thread.join();
    }
  }

  void get(Done done) override {
    Part& part = own();
    State& state = *part.state;
    std::shared_ptr<const Credentials> ready;
    Done at_once;
    std::vector<Done> lost;
    Error error;
    {
      const std::lock_guard lock(state.mutex);
      const Time now = state.clock->now();
      if (state.found_at != snapshots()) state.current = nullptr;
      if (state.current != nullptr && is_good(*state.current, now)) ready = state.current;
      if (ready == nullptr) {
        state.waiting.push_back(std::move(done));
      } else {
        at_once = std::move(done);
        if (now >= state.refresh_at && !state.looking) state.wanted = true;
      }
      if ((ready == nullptr || state.wanted) && !state.running && !part.start(error)) {
        lost = std::exchange(state.waiting, {});
        state.wanted = false;
      }
    }
    if (at_once) at_once({std::move(ready), {}});
    answer(std::move(lost), {nullptr, std::move(error)});
  }

  void reject(const Credentials& credentials) override {
    State& state = *own().state;
    const std::lock_guard lock(state.mutex);
    state.rejected = credentials;
    ++state.rejections;
    if (state.current != nullptr && are_same(*state.current, credentials)) state.current = nullptr;
  }

 private:
  // In the child of a fork: a new one, which searches for itself. The parent's is left as it is.
  Part& own() {
    Part* part = part_.load(std::memory_order_acquire);
    if (part->forks_before == forks()) return *part;
    const State& old = *part->state;
    auto fresh = std::make_unique<Part>(std::make_shared<State>(old.look, old.clock, old.random));
    // Unless another thread of this process was faster.
    if (part_.compare_exchange_strong(part, fresh.get(), std::memory_order_acq_rel)) part = fresh.release();
    return *part;
  }

  std::atomic<Part*> part_;  // Owned, unless it is a parent's.
};

}  // namespace

std::shared_ptr<CredentialsProvider> refreshing_credentials(Look look, std::shared_ptr<Clock> clock,
                                                            std::shared_ptr<Random> random) {
  return std::make_shared<RefreshingProvider>(
      std::make_shared<State>(std::move(look), std::move(clock), std::move(random)));
}

}  // namespace once::aws
