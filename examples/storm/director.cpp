#include "director.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>
#include <queue>
#include <random>
#include <stdexcept>

#include <once/engine/event.hpp>

#include "wire.hpp"
#include "worker.hpp"

namespace storm {

namespace {

using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;
using std::chrono::milliseconds;

constexpr std::chrono::seconds longest{120};  // Then something is wrong.

// Runs `body` in another process, which dies with this one.
template <class Body>
pid_t start_process(Body&& body) {
  std::cout << std::flush;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  try {
    std::forward<Body>(body)();
  } catch (const std::exception& error) {
    std::cerr << "storm: " << error.what() << std::endl;
    _exit(1);
  }
  _exit(0);
}

void reap(pid_t child) {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

struct Worker {
  pid_t pid = 0;
  Socket socket;
  std::optional<Job> job;  // Its open job.
  std::optional<Moment> kill_at;
  std::optional<Moment> frozen_since;
  bool late = false;  // It wrote after it had lost its claim.
};

struct Waiting {
  Moment at;
  Job job;
  friend bool operator>(const Waiting& a, const Waiting& b) { return a.at > b.at; }
};

struct OrderState {
  std::int64_t cents = 0;
  bool crash = false;  // Still to happen.
  Freeze freeze = Freeze::no;
  std::string answer;  // The first caller's.
};

class Director {
 public:
  Director(const Options& options, std::string store_path, const std::string& ledger_path)
      : options_(options), store_path_(std::move(store_path)), random_(options.seed) {
    std::signal(SIGPIPE, SIG_IGN);
    write_script();
    bank_ = start_process([&] { run_bank(door_, ledger_path, options_.seed + 1); });
    for (int i = 0; i < options_.workers; ++i) workers_.push_back(start_worker());
  }

  ~Director() {
    for (Worker& worker : workers_) worker.socket = Socket();  // They end when they see that.
    const Moment last = Clock::now() + std::chrono::seconds(5);
    for (Worker& worker : workers_) {
      bool ended = false;
      while (!(ended = waitpid(worker.pid, nullptr, WNOHANG) != 0) && Clock::now() < last) poll(nullptr, 0, 5);
      if (ended) continue;
      kill(worker.pid, SIGKILL);
      reap(worker.pid);
    }
    kill(bank_, SIGKILL);
    reap(bank_);
  }

  Summary run() {
    while (summary_.answered < options_.requests || somebody_is_frozen()) {
      const Moment now = Clock::now();
      if (now - began_ > longest) {
        summary_.problems.push_back("the storm did not end within " + std::to_string(longest.count()) + " s");
        break;
      }
      strike(now);
      hand_out(now);
      show(now);
      listen(now);
    }
    show({});
    return std::move(summary_);
  }

 private:
  // Draws all requests, crashes and freezes from the seed.
  void write_script() {
    orders_.resize(static_cast<std::size_t>(options_.orders));
    std::vector<std::uint32_t> numbers;
    for (std::size_t i = 0; i < orders_.size(); ++i) {
      orders_[i].cents = std::uniform_int_distribution<int>(500, 20'000)(random_);
      numbers.push_back(static_cast<std::uint32_t>(i));
    }
    std::shuffle(numbers.begin(), numbers.end(), random_);
    std::size_t unlucky = 0;
    for (int i = 0; i < options_.crashes; ++i) orders_[numbers[unlucky++]].crash = true;
    for (int i = 0; i < options_.freezes; ++i) {
      orders_[numbers[unlucky++]].freeze = i % 2 == 0 ? Freeze::before_the_answer : Freeze::after_the_charge;
    }
    // Every order is requested once, and the rest are duplicates. Most come soon after, as from an impatient client or
    // a queue that delivers twice, the others at any time.
    std::uniform_real_distribution<double> anywhere(0, options_.seconds);
    std::exponential_distribution<double> soon(1 / 0.08);
    std::vector<double> first(orders_.size());
    for (double& at : first) at = anywhere(random_) * 0.9;
    for (int i = 0; i < options_.requests; ++i) {
      const std::size_t order = static_cast<std::size_t>(i) % orders_.size();
      double at = first[order];
      if (static_cast<std::size_t>(i) >= orders_.size()) at = i % 3 != 0 ? at + soon(random_) : anywhere(random_);
      ask(static_cast<std::uint32_t>(order), began_ + milliseconds(static_cast<int>(at * 1000)));
    }
  }

  void ask(std::uint32_t order, Moment at) { waiting_.push({at, Job{.order = order, .cents = orders_[order].cents}}); }

  Worker start_worker() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::system_error(errno, std::generic_category(), "socketpair");
    }
    Socket mine(ends[0]);
    Socket theirs(ends[1]);
    const WorkerOptions options{.store_path = store_path_,
                                .lease_ms = options_.lease_ms,
                                .seed = random_(),
                                .without_once = options_.without_once};
    const pid_t pid = start_process([&] {
      mine = Socket();
      for (Worker& other : workers_) other.socket = Socket();  // So that each sees its own end close.
      run_worker(theirs, door_.enter(), options);
    });
    return {.pid = pid, .socket = std::move(mine), .job = {}, .kill_at = {}, .frozen_since = {}, .late = false};
  }

  [[nodiscard]] bool somebody_is_frozen() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.frozen_since.has_value(); });
  }

  // Kills workers whose time has come, and continues frozen workers after another has answered for them.
  void strike(Moment now) {
    for (Worker& worker : workers_) {
      if (worker.frozen_since) {
        const bool taken_over = !orders_[worker.job->order].answer.empty();
        if (taken_over || now - *worker.frozen_since > 10 * milliseconds(options_.lease_ms)) kill(worker.pid, SIGCONT);
      } else if (worker.kill_at && *worker.kill_at <= now) {
        kill(worker.pid, SIGKILL);
        summary_.crashes += 1;
        bury(worker);
      }
    }
  }

  // Its last messages still count. A client without an answer asks again.
  void bury(Worker& worker) {
    reap(worker.pid);
    Note note;
    while (worker.socket.receive(note)) hear(worker, note);
    if (worker.job && !worker.frozen_since) repeat(worker.job->order, milliseconds(50));
    worker.socket = Socket();
    worker = start_worker();
  }

  void repeat(std::uint32_t order, milliseconds after) {
    summary_.repeated += 1;
    ask(order, Clock::now() + after);
  }

  void hand_out(Moment now) {
    for (Worker& worker : workers_) {
      if (worker.job || waiting_.empty() || waiting_.top().at > now) continue;
      worker.job = waiting_.top().job;
      worker.job->freeze = orders_[worker.job->order].freeze;
      waiting_.pop();
      static_cast<void>(worker.socket.send(*worker.job));  // If it is dead, listen() finds out.
      if (options_.without_once) {                         // There are no claims to wait for.
        plan_crash(worker);
        orders_[worker.job->order].freeze = Freeze::no;
      }
    }
  }

  void listen(Moment now) {
    std::vector<pollfd> watched;
    watched.reserve(workers_.size());
    for (const Worker& worker : workers_) watched.push_back({.fd = worker.socket.fd(), .events = POLLIN, .revents = 0});
    milliseconds timeout(50);
    const bool idle = std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return !worker.job; });
    if (idle && !waiting_.empty()) timeout = std::min(timeout, until(waiting_.top().at, now));
    for (const Worker& worker : workers_) {
      if (worker.kill_at) timeout = std::min(timeout, until(*worker.kill_at, now));
    }
    if (poll(watched.data(), watched.size(), static_cast<int>(timeout.count())) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (watched[i].revents == 0) continue;
      Note note;
      if (workers_[i].socket.receive(note)) {
        hear(workers_[i], note);
      } else {
        summary_.problems.emplace_back("a worker ended that nobody had killed");
        bury(workers_[i]);
      }
    }
  }

  static milliseconds until(Moment at, Moment now) {
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(at - now));
  }

  void hear(Worker& worker, const Note& note) {
    if (note.kind == Note::Kind::event) return count(worker, static_cast<once::EventKind>(note.event));
    OrderState& order = orders_[worker.job->order];
    switch (note.kind) {
      case Note::Kind::event:
        return;
      case Note::Kind::freezing:
        worker.frozen_since = Clock::now();
        order.freeze = Freeze::no;
        summary_.freezes += 1;
        repeat(worker.job->order, milliseconds(50));  // Its client has lost patience, and asks another worker.
        return;
      case Note::Kind::answer:
        summary_.answered += worker.frozen_since ? 0 : 1;  // A frozen one's client is counted where it asked again.
        if (options_.without_once) {
          summary_.executions += 1;
        } else if (!order.answer.empty() && order.answer != note.text.str()) {
          summary_.problems.push_back("two callers got two answers: " + order.answer + " and " + note.text.str());
        }
        order.answer = note.text.str();
        break;
      case Note::Kind::repeat:
        if (!worker.frozen_since) {
          repeat(worker.job->order, milliseconds(std::uniform_int_distribution<int>(40, 160)(random_)));
        }
        break;
      case Note::Kind::broken:
        summary_.problems.push_back("order-" + std::to_string(worker.job->order) + ": " + note.text.str());
        summary_.answered += worker.frozen_since ? 0 : 1;
        break;
    }
    worker.job.reset();
    worker.frozen_since.reset();
    worker.late = false;
  }

  void count(Worker& worker, once::EventKind event) {
    switch (event) {
      case once::EventKind::claimed:
      case once::EventKind::resumed:
      case once::EventKind::took_over:
        summary_.executions += 1;
        summary_.takeovers += event == once::EventKind::took_over ? 1 : 0;
        plan_crash(worker);
        break;
      case once::EventKind::replayed:
        summary_.replays += 1;
        break;
      case once::EventKind::conflict:
        summary_.conflicts += 1;
        break;
      case once::EventKind::finish_refused:
      case once::EventKind::renewal_lost:  // A refused step is reported as this.
        summary_.late_refused += worker.late ? 0 : 1;
        worker.late = true;
        break;
      default:
        break;
    }
  }

  // It has the claim now and will charge: it dies at some later moment, before or after the charge.
  void plan_crash(Worker& worker) {
    if (!worker.job || !orders_[worker.job->order].crash) return;
    orders_[worker.job->order].crash = false;
    worker.kill_at = Clock::now() + milliseconds(std::uniform_int_distribution<int>(0, 60)(random_));
  }

  // Four times a second on a terminal, once a second in a log; the last time at the end (a zero moment).
  void show(Moment now) {
    if (options_.json) return;
    static const bool terminal = isatty(STDOUT_FILENO) == 1;
    const bool last = now == Moment{};
    if (!last && now < next_show_) return;
    next_show_ = now + (terminal ? milliseconds(250) : milliseconds(1000));
    if (last) now = Clock::now();
    std::array<char, 200> line{};
    std::snprintf(line.data(), line.size(),
                  "%5.1f s  %d/%d answered, %d run, %d replayed, %d conflicts, %d killed, %d frozen",
                  std::chrono::duration<double>(now - began_).count(), summary_.answered, options_.requests,
                  summary_.executions, summary_.replays, summary_.conflicts, summary_.crashes, summary_.freezes);
    std::cout << (terminal ? "\r\x1b[K" : "") << line.data() << (terminal && !last ? "" : "\n") << std::flush;
  }

  const Options& options_;
  const std::string store_path_;
  std::mt19937_64 random_;
  const Moment began_ = Clock::now();
  Moment next_show_ = began_;
  BankDoor door_;
  pid_t bank_ = 0;
  std::vector<OrderState> orders_;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::vector<Worker> workers_;
  Summary summary_;
};

}  // namespace

Summary play(const Options& options, const std::string& store_path, const std::string& ledger_path) {
  Summary summary;
  {
    Director director(options, store_path, ledger_path);
    summary = director.run();
  }
  summary.accounts = read_ledger(ledger_path);
  return summary;
}

}  // namespace storm
