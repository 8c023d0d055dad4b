#include "serve/sessions.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "operators/answers.hpp"
#include "output/report.hpp"
#include "output/text.hpp"

namespace once::cli {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t id_bytes = 16;

// Of a client that does not read its lines. It has lost its claims by then, or does not care.
constexpr std::size_t most_unsent_bytes = std::size_t{1} << 20;

}  // namespace

struct ClaimSessions::Session {
  std::string id;
  std::string tenant;
  std::uint64_t number = 0;
  Fd process;  // A descriptor of it, which can be read when it has ended. Empty: not known.
  std::string unsent;
  std::optional<Callback<void(std::string)>> waiting = {};  // Of the stream, for the next bytes.
  bool is_over = false;
  Uptime alive_at{};  // When the next line is due.
};

struct ClaimSessions::State {
  State(std::shared_ptr<Clock> its_clock, std::shared_ptr<Random> its_random, ClaimSessionsOptions its_options,
        std::function<void(const std::string&)> its_closed)
      : clock(std::move(its_clock)),
        random(std::move(its_random)),
        options(its_options),
        closed(std::move(its_closed)) {}

  // Takes what is to be sent, and who waits for it, if there is both or the session is over.
  using Sending = std::pair<std::optional<Callback<void(std::string)>>, std::string>;
  static Sending take(Session& session) {  // With the mutex locked.
    if (!session.waiting || (session.unsent.empty() && !session.is_over)) return {};
    return {std::exchange(session.waiting, std::nullopt),
            session.is_over ? std::string() : std::exchange(session.unsent, {})};
  }
  static void send(Sending sending) {
    if (sending.first) (*sending.first)(std::move(sending.second));
  }
  void add(Session& session, const ordered_json& event) {  // With the mutex locked.
    session.unsent += json_line(event) + "\n";
    session.alive_at = clock->uptime() + options.alive_pause;
  }
  void end(const SessionPtr& session) {
    Sending sending;
    {
      const std::lock_guard lock(mutex);
      if (std::exchange(session->is_over, true)) return;
      open.erase(session->id);
      session->process.reset();
      sending = take(*session);
    }
    send(std::move(sending));
    if (!is_stopping) closed(session->id);
  }

  const std::shared_ptr<Clock> clock;
  const std::shared_ptr<Random> random;
  const ClaimSessionsOptions options;
  const std::function<void(const std::string&)> closed;
  mutable std::mutex mutex;
  std::map<std::string, SessionPtr> open;
  std::uint64_t opened = 0;
  std::atomic<bool> is_stopping{false};
};

class ClaimSessions::Stream final : public proxy::AnswerStream {
 public:
  Stream(std::shared_ptr<State> state, SessionPtr session) : state_(std::move(state)), session_(std::move(session)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() override { state_->end(session_); }

  void next(Callback<void(std::string)> done) override {
    State::Sending sending;
    {
      const std::lock_guard lock(state_->mutex);
      session_->waiting = std::move(done);
      sending = State::take(*session_);
    }
    State::send(std::move(sending));
  }
  void stop() override { state_->end(session_); }

 private:
  const std::shared_ptr<State> state_;
  const SessionPtr session_;
};

ClaimSessions::ClaimSessions(std::shared_ptr<Clock> clock, std::shared_ptr<Random> random, ClaimSessionsOptions options,
                             std::function<void(const std::string&)> closed)
    : state_(std::make_shared<State>(std::move(clock), std::move(random), options, std::move(closed))) {}

ClaimSessions::~ClaimSessions() { stop(); }

proxy::OperatorsAnswer ClaimSessions::open(std::int64_t process, const std::string& tenant) {
  auto session = std::make_shared<Session>();
  session->tenant = tenant;
  std::array<std::uint8_t, id_bytes> random{};
  state_->random->fill(random);
  session->id = to_hex({reinterpret_cast<const char*>(random.data()), random.size()});
  const auto full = [](std::string_view why, std::string_view what_to_do) {
    http::Answer answer = operators_problem("too-many-sessions", 503, why, what_to_do);
    answer.headers.push_back({"Retry-After", "1"});
    return answer;
  };
  if (process > 0) {
    // Its number may be another one's by now only if it has ended, and its connection was passed on.
    session->process.reset(static_cast<int>(syscall(SYS_pidfd_open, process, 0U)));
    // Without it, a child with the connection would keep the claims of a dead parent.
    if (session->process.get() < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
      return full("The server has no room for another session", "Close some, or raise its limit of open files.");
    }
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_stopping || state_->open.size() >= state_->options.most_open) {
      return full("Too many sessions are open", "Close some, or use one for all claims of a process.");
    }
    session->number = ++state_->opened;
    state_->open.emplace(session->id, session);
    state_->add(*session, {{"event", "open"}, {"session", session->id}});
  }
  http::Answer head{.status = 200,
                    .reason = {},
                    .headers = {{"Content-Type", "application/x-ndjson"}, {"Cache-Control", "no-store"}},
                    .body = {}};
  return {std::move(head), std::make_unique<Stream>(state_, std::move(session))};
}

std::optional<std::uint64_t> ClaimSessions::number_of(const std::string& id, const std::string& tenant) const {
  const std::lock_guard lock(state_->mutex);
  const auto at = state_->open.find(id);
  const bool is_there = at != state_->open.end() && at->second->tenant == tenant;
  return is_there ? std::optional(at->second->number) : std::nullopt;
}

void ClaimSessions::tell(const std::string& id, const ordered_json& event) {
  State::Sending sending;
  SessionPtr slow;
  {
    const std::lock_guard lock(state_->mutex);
    const auto at = state_->open.find(id);
    if (at == state_->open.end()) return;
    state_->add(*at->second, event);
    if (at->second->unsent.size() > most_unsent_bytes) slow = at->second;
    sending = State::take(*at->second);
  }
  State::send(std::move(sending));
  if (slow) state_->end(slow);
}

void ClaimSessions::look() {
  std::vector<SessionPtr> gone;
  std::vector<State::Sending> sendings;
  {
    const std::lock_guard lock(state_->mutex);
    const Uptime now = state_->clock->uptime();
    std::vector<pollfd> processes;
    for (const auto& [id, session] : state_->open) {
      processes.push_back({.fd = session->process.get(), .events = POLLIN, .revents = 0});  // Negative: left out.
    }
    const bool has_ended = poll(processes.data(), processes.size(), 0) > 0;
    auto process = processes.begin();
    for (const auto& [id, session] : state_->open) {
      if (has_ended && (process++)->revents != 0) {
        gone.push_back(session);
      } else if (session->alive_at <= now && session->unsent.empty()) {
        state_->add(*session, {{"event", "alive"}});
        sendings.push_back(State::take(*session));
      }
    }
  }
  for (State::Sending& sending : sendings) State::send(std::move(sending));
  for (const SessionPtr& session : gone) state_->end(session);
}

void ClaimSessions::stop() {
  std::map<std::string, SessionPtr> open;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_stopping = true;
    open = state_->open;
  }
  for (const auto& [id, session] : open) state_->end(session);
}

std::size_t ClaimSessions::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->open.size();
}

}  // namespace once::cli
