// The store's connections, and the loop that serves them. A caller that waits for an answer runs the loop itself
// (platform/shared_loop.hpp).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <once/callback.hpp>
#include <once/clock.hpp>
#include <once/error.hpp>
#include <once/store.hpp>
#include <once/stores/postgresql.hpp>

#include "platform/look_up.hpp"
#include "platform/shared_loop.hpp"
#include "platform/snapshots.hpp"
#include "stores/postgresql/failure.hpp"
#include "stores/postgresql/parameters.hpp"
#include "stores/postgresql/target.hpp"

namespace once::stores::postgresql {

using Steady = std::chrono::steady_clock;

// The functions of schema_sql.hpp.
enum class Call : std::uint8_t { write, get, list, sweep, about };
constexpr std::size_t call_count = 5;

struct Reply {
  ResultPtr result;  // Rows; null if `error` is set.
  std::optional<Error> error;
  Uptime sent{};  // Of the last attempt.
  Uptime received{};
  bool declined = false;  // The error is the companion's.
  bool no_room = false;   // Answer::no_room.
};

// One call of one function.
struct Request {
  Call call = Call::get;
  std::string key;  // Writes are sent in its order.
  Parameters parameters;
  Steady::time_point deadline;
  Callback<void(Reply)> done;
  std::shared_ptr<const Companion> companion;  // Of a write; null: none. See companions.hpp.

  unsigned failures = 0;  // How often it failed and was sent again.
  unsigned rounds = 0;    // How often it was rolled back because another member of its group failed.
  Reply reply;

  // A lost answer leaves it in doubt.
  [[nodiscard]] bool writes() const noexcept { return call == Call::write || call == Call::sweep; }
};
using RequestPtr = std::unique_ptr<Request>;

class Io;

// One connection and the requests for it. Everything here runs on the thread with the loop's turn.
//
// What has queued is sent as one group: the statement, unless the server has it, then its members, then one Sync, at
// which the server commits all of them. No member is answered before the Sync is (PGRES_PIPELINE_SYNC): an answer of
// the server inside a group comes before its commit. An error rolls back all of the group. The member that failed is
// dealt with, and the others are sent again.
class Lane {
 public:
  enum class Kind : std::uint8_t {
    writes,     // In the order of the keys, so that two programs lock records in the same order.
    reads,      // In groups too.
    operators,  // Lists and sweeps, one at a time: they take longer.
    aside,      // Writes that met a lock or failed in a group, one at a time: they hold up no other.
  };

  Lane(Io& io, Kind kind);

  void add(RequestPtr request) { queue_.push_back(std::move(request)); }
  void pump();                        // Sends what is queued, if it can.
  void tick(Steady::time_point now);  // Deadlines, and the next attempt to connect.
  void stop();                        // Fails all requests, and closes.
  [[nodiscard]] bool busy() const noexcept { return !queue_.empty() || !batch_.empty() || stage_ == Stage::checking; }
  [[nodiscard]] std::size_t load() const noexcept { return queue_.size() + batch_.size(); }
  [[nodiscard]] bool open() const noexcept { return stage_ != Stage::closed; }
  [[nodiscard]] std::optional<Steady::time_point> idle_since() const noexcept {
    return stage_ == Stage::idle ? std::optional(idle_since_) : std::nullopt;
  }
  void close() noexcept;

 private:
  enum class Stage : std::uint8_t { closed, looking_up, connecting, checking, idle, busy };

  // What the server answers next.
  struct Expected {
    enum class What : std::uint8_t { other, prepare, member, commit, sync } what;
    std::size_t member = 0;  // In batch_. Of a prepare: the Call.
    bool answered = false;   // Its result was read; the end of it comes.
  };
  // Members with one Sync.
  struct Unit {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::optional<Failure> failure = {};
    std::optional<std::size_t> failed = {};  // The member; empty: the unit itself.
    bool late = false;                       // The error came after all answers, instead of the Sync.
  };

  void connect();
  void looked_up(std::uint64_t generation, std::size_t host, const NameAddresses& told);
  void begin();  // To connect, to the addresses that were found.
  void next_host() noexcept;
  void go_on_connecting();
  void could_not_connect(std::string problem, bool retry);
  void connected();
  void check();  // Asks the schema's version.
  void checked(const PGresult* result);
  [[nodiscard]] bool alive();                          // Whether an idle connection is still open at the other end.
  [[nodiscard]] bool is_left_behind() const noexcept;  // Another connection has found a newer server since.
  void name_statements(const PGresult* about);
  void take_batch();
  void send_batch();
  [[nodiscard]] bool send_unit(std::size_t begin, std::size_t end);
  void flush();
  void read();
  void answered(ResultPtr result);
  void end_unit();
  void failed_unit(Unit& unit);
  void end_batch();
  void lost(const std::string& problem);
  void watch(bool for_writing);
  void expire_queue(Steady::time_point now);
  void finish(RequestPtr request, std::optional<Error> error);
  static void notice(void* lane, const PGresult* result);

  Io& io_;
  const Kind kind_;
  Stage stage_ = Stage::closed;
  ConnectionPtr connection_;
  unsigned made_at_ = 0;  // The snapshots() when it was. After another one, another copy of the process may have it.
  std::vector<std::vector<std::string>> addresses_;  // For each of the target's names.
  std::size_t looking_up_ = 0;                       // How many of them are under way.
  std::uint64_t epoch_ = 0;                          // Of connection_: see NewestServer.
  std::size_t turn_ = 0;                             // At which it began.
  std::string statement_prefix_;                     // Of the names of statements. Empty: they have none.
  std::array<bool, call_count> parsed_{};            // Which the server keeps under their names.
  using Descriptor = boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type>;
  Descriptor socket_;             // A duplicate of libpq's, which may change while it connects.
  std::uint64_t generation_ = 0;  // Of socket_: older handlers do nothing.
  bool reading_ = false;
  bool writing_ = false;

  std::deque<RequestPtr> queue_;
  std::vector<RequestPtr> batch_;  // Under way. Those that were answered are null.
  std::deque<Unit> units_;
  std::deque<Expected> expected_;
  Parameters::View view_;          // Of the request that is sent.
  std::vector<RequestPtr> again_;  // Rolled back, to be sent next.
  bool warned_ = false;            // The commit that comes next may not be on its standby.
  bool doomed_ = false;            // Close it after this batch.
  bool fatal_ = false;             // The server said that it closes the connection.
  std::string fatal_message_;

  Steady::time_point found_by_;  // Then the addresses that were found have to do.
  Steady::time_point connect_by_;
  Steady::time_point answer_by_;  // Of the batch.
  Steady::time_point retry_at_;
  Steady::time_point idle_since_;
  Millis backoff_{0};
  std::string problem_;  // Of the last attempt to connect.
};

// Shared by the store, the loop's own thread and waiting callers; the last owner destroys it.
class Io final : public SharedLoop {
 public:
  Io(PostgresqlOptions given, Target given_target);

  // From any thread.
  void submit(RequestPtr request);
  void nudge() noexcept override;

  [[nodiscard]] std::shared_ptr<Io> shared() { return std::static_pointer_cast<Io>(shared_from_this()); }

  // The following are called with the turn.
  void finish(RequestPtr request) { finished_.push_back(std::move(request)); }
  // Calls the completions. Each handler does this last, in a consistent state: a completion may destroy the store, or
  // block and run the loop from inside.
  void flush();
  void put_aside(RequestPtr request);  // To a connection of its own.
  void pump_soon();                    // After the completions of what has ended.
  void route(RequestPtr request);
  [[nodiscard]] const std::string& sql(Call call) const { return sql_.at(static_cast<std::size_t>(call)); }

  boost::asio::io_context context;
  const PostgresqlOptions options;
  const Target target;
  std::size_t turn = 0;         // Which host is tried first.
  bool explicit_begin = false;  // A default isolation other than read committed was met.

 private:
  using Timer = boost::asio::basic_waitable_timer<Steady, boost::asio::wait_traits<Steady>,
                                                  boost::asio::io_context::executor_type>;

  void arrive() noexcept override;
  bool run_one() noexcept override { return context.run_one() > 0; }
  void run_ready() noexcept override { context.poll(); }
  void shut() noexcept override;
  bool busy() noexcept override;
  std::optional<Steady::time_point> due() noexcept override { return next_tick_; }

  void schedule(Steady::time_point now, Steady::duration after);
  void tick();

  std::vector<std::string> sql_;
  std::mutex mutex_;
  std::vector<RequestPtr> arrivals_;
  bool stopped_ = false;

  std::vector<RequestPtr> taken_;
  Lane& add_lane(Lane::Kind kind);
  [[nodiscard]] Lane& writes_of(const std::string& key) const noexcept;

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> writes_;
  Lane* reads_ = nullptr;
  Lane* operators_ = nullptr;
  std::vector<Lane*> aside_;
  std::multiset<std::string> aside_keys_;  // What is written on a connection aside now.
  std::deque<RequestPtr> finished_;
  Timer timer_;
  std::optional<Steady::time_point> next_tick_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  friend class Lane;
};

}  // namespace once::stores::postgresql
