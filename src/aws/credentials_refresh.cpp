#include "aws/credentials_refresh.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/error.hpp>

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
    if (found.credentials != nullptr) {
      state.found_before = true;
      state.current = found.credentials;
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

class RefreshingProvider final : public CredentialsProvider {
 public:
  explicit RefreshingProvider(std::shared_ptr<State> state) : state_(std::move(state)) {}

  RefreshingProvider(const RefreshingProvider&) = delete;
  RefreshingProvider& operator=(const RefreshingProvider&) = delete;

  ~RefreshingProvider() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
    }
    state_->cancellation->cancel();
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // Destroyed by a completion: the thread ends later, with the shared state.
    } else {
      thread_.join();
    }
  }

  void get(Done done) override {
    std::shared_ptr<const Credentials> ready;
    Done at_once;
    std::vector<Done> lost;
    Error error;
    {
      const std::lock_guard lock(state_->mutex);
      const Time now = state_->clock->now();
      if (state_->current != nullptr && is_good(*state_->current, now)) ready = state_->current;
      if (ready == nullptr) {
        state_->waiting.push_back(std::move(done));
      } else {
        at_once = std::move(done);
        if (now >= state_->refresh_at && !state_->looking) state_->wanted = true;
      }
      if ((ready == nullptr || state_->wanted) && !state_->running && !start(error)) {
        lost = std::exchange(state_->waiting, {});
        state_->wanted = false;
      }
    }
    if (at_once) at_once({std::move(ready), {}});
    answer(std::move(lost), {nullptr, std::move(error)});
  }

  void reject(const Credentials& credentials) override {
    const std::lock_guard lock(state_->mutex);
    state_->rejected = credentials;
    ++state_->rejections;
    if (state_->current != nullptr && are_same(*state_->current, credentials)) state_->current = nullptr;
  }

 private:
  // Call it under the lock. The previous thread has ended its work, and does not lock again.
  bool start(Error& error) {
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = std::thread([state = state_] { run(*state); });
    } catch (const std::system_error& failure) {
      error = {ErrorKind::unavailable, std::string("no thread to look for AWS credentials: ") + failure.what()};
      return false;
    }
    state_->running = true;
    return true;
  }

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<CredentialsProvider> refreshing_credentials(Look look, std::shared_ptr<Clock> clock,
                                                            std::shared_ptr<Random> random) {
  return std::make_shared<RefreshingProvider>(
      std::make_shared<State>(std::move(look), std::move(clock), std::move(random)));
}

}  // namespace once::aws
