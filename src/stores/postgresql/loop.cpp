#include "stores/postgresql/loop.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <boost/asio/post.hpp>

#include "stores/postgresql/schema_sql.hpp"

namespace once::stores::postgresql {

namespace {

constexpr Millis busy_tick{25};       // How late a deadline may be noticed.
constexpr Millis idle_limit{30'000};  // Of the connections for operators and aside.

}  // namespace

Io::Io(PostgresqlOptions given, Target given_target)
    : options(std::move(given)),
      target(std::move(given_target)),
      sql_{write_call(options.schema), get_call(options.schema), list_call(options.schema), sweep_call(options.schema),
           about_call(options.schema)},
      timer_(context),
      work_(context.get_executor()) {
  for (std::uint32_t i = 0; i < options.write_connections; ++i) writes_.push_back(&add_lane(Lane::Kind::writes));
  reads_ = &add_lane(Lane::Kind::reads);
  operators_ = &add_lane(Lane::Kind::operators);
  for (std::uint32_t i = 0; i < options.side_connections; ++i) aside_.push_back(&add_lane(Lane::Kind::aside));
}

Lane& Io::add_lane(Lane::Kind kind) { return *lanes_.emplace_back(std::make_unique<Lane>(*this, kind)); }

Lane& Io::writes_of(const std::string& key) const noexcept {
  return *writes_[writes_.size() == 1 ? 0 : std::hash<std::string>()(key) % writes_.size()];
}

void Io::submit(RequestPtr request) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    request->reply.error = Error{ErrorKind::unavailable, target.name() + ": the store was closed"};
    request->done(std::move(request->reply));
    return;
  }
  const bool is_first = arrivals_.empty();
  arrivals_.push_back(std::move(request));
  lock.unlock();
  // If there are others already, want() was called for them.
  if (want() && is_first) nudge();
}

void Io::nudge() noexcept {
  boost::asio::post(context, [this] { arrive(); });
}

void Io::arrive() noexcept {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(arrivals_);
  }
  for (RequestPtr& request : std::exchange(taken_, {})) route(std::move(request));
  for (const auto& lane : lanes_) lane->pump();
  if (busy()) schedule(Steady::now(), busy_tick);
  flush();
}

void Io::pump_soon() { nudge(); }

void Io::route(RequestPtr request) {
  switch (request->call) {
    case Call::write: {
      // The group would wait for the same lock.
      if (aside_keys_.contains(request->key)) return put_aside(std::move(request));
      Lane& lane = writes_of(request->key);
      return lane.add(std::move(request));
    }
    case Call::get:
    case Call::about:
      return reads_->add(std::move(request));
    case Call::list:
    case Call::sweep:
      return operators_->add(std::move(request));
  }
}

void Io::put_aside(RequestPtr request) {
  aside_keys_.insert(request->key);
  // An open one with nothing to do, else a new one, else the one with the least to do.
  const auto rank = [](const Lane* lane) { return 2 * lane->load() + (lane->open() ? 0 : 1); };
  Lane& lane =
      **std::min_element(aside_.begin(), aside_.end(), [&](const Lane* a, const Lane* b) { return rank(a) < rank(b); });
  lane.add(std::move(request));
  lane.pump();
}

bool Io::busy() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!arrivals_.empty()) return true;
  }
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->busy(); });
}

void Io::flush() {
  while (!finished_.empty()) {
    const RequestPtr request = std::move(finished_.front());
    finished_.pop_front();
    request->done(std::move(request->reply));
  }
}

void Io::schedule(Steady::time_point now, Steady::duration after) {
  if (next_tick_ && *next_tick_ <= now + after) return;
  next_tick_ = now + after;
  timer_.expires_at(*next_tick_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

void Io::tick() {
  next_tick_.reset();
  const auto now = Steady::now();
  bool may_close = false;
  for (const auto& lane : lanes_) lane->tick(now);
  const auto close_idle = [&](Lane& lane) {
    if (!lane.idle_since()) return;
    if (*lane.idle_since() + idle_limit <= now) {
      lane.close();
    } else {
      may_close = true;
    }
  };
  close_idle(*operators_);
  for (Lane* const lane : aside_) close_idle(*lane);
  if (busy()) {
    schedule(now, busy_tick);
  } else if (may_close) {
    schedule(now, idle_limit / 4);
  }
  flush();
}

void Io::shut() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    taken_.swap(arrivals_);
  }
  for (RequestPtr& request : std::exchange(taken_, {})) route(std::move(request));
  for (const auto& lane : lanes_) lane->stop();
  timer_.cancel();
  next_tick_.reset();
  work_.reset();
  flush();
}

}  // namespace once::stores::postgresql
