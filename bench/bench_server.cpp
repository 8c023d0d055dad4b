// Many processes on one SQLite file: each opens it itself, or all let one `once serve` claim. New keys, one call at a
// time in each process.
//
//   bench_server [seconds [processes ...]]     default: 5 seconds; 1, 4 and 16 processes
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/stores/open.hpp>

extern char** environ;

namespace {

using Steady = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// Shared by the processes.
struct Board {
  std::atomic<int> ready{0};
  std::atomic<bool> begun{false};
  std::atomic<bool> over{false};
  std::atomic<long> cycles{0};
};

void work(const std::string& url, Board& board, int number) {
  once::Engine engine({.store = once::open_store(url), .scope = "bench"});
  const std::string name = std::to_string(number) + "-" + std::to_string(getpid()) + "-";
  long cycles = 0;
  const auto call = [&] {
    const once::Outcome outcome = engine.run(name + std::to_string(cycles++), "", [] { return std::string("done"); });
    if (outcome.kind != once::Outcome::Kind::executed) fail(outcome.error.message.c_str());
  };
  call();  // Connections and threads are there.
  ++board.ready;
  while (!board.begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  while (!board.over) {
    call();
    ++board.cycles;
  }
}

double rate(const std::string& url, int processes, int seconds) {
  void* const shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("mmap");
  Board& board = *new (shared) Board;
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      work(url, board, i);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  while (board.ready < processes) {
    if (waitpid(-1, nullptr, WNOHANG) > 0) fail("a process ended early");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto start = Steady::now();
  board.begun = true;
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  board.over = true;
  const double took = std::chrono::duration<double>(Steady::now() - start).count();
  const long cycles = board.cycles;
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  munmap(shared, sizeof(Board));
  return static_cast<double>(cycles) / took;
}

class Server {
 public:
  Server(const std::string& store, const std::string& socket) {
    const std::vector<std::string> words = {ONCE_PROGRAM, "serve",          "--store", store,
                                            "--listen",   "unix:" + socket, "--log",   "none"};
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (posix_spawnp(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) fail(arguments[0]);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int seconds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::vector<int> counts;
  for (int i = 2; i < argc; ++i) counts.push_back(std::max(1, std::atoi(argv[i])));
  if (counts.empty()) counts = {1, 4, 16};
  const std::filesystem::path directory =
      std::filesystem::current_path() / ("bench_server." + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  std::printf("%-12s %14s %14s %8s\n", "processes", "own store /s", "server /s", "ratio");
  for (const int processes : counts) {
    const std::string own = "sqlite:" + (directory / ("own" + std::to_string(processes) + ".db")).string();
    const std::string served = "sqlite:" + (directory / ("served" + std::to_string(processes) + ".db")).string();
    const std::string socket = (directory / ("s" + std::to_string(processes))).string();
    const double apart = rate(own, processes, seconds);
    const Server server(served, socket);
    const double together = rate("once://" + socket, processes, seconds);
    std::printf("%-12d %14.0f %14.0f %8.2f\n", processes, apart, together, together / apart);
  }
  std::filesystem::remove_all(directory);
}
