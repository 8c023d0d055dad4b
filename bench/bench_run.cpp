// What `once run -- true` adds to `true`: a new key each time, and a replay, as wall time of the whole process. The
// lower bound of a claim and a result is two durable syncs (4 KiB appended and fdatasync, twice).
//
//   bench_run [rounds]
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

extern char** environ;

namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void run(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t process = 0;
  if (posix_spawnp(&process, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) fail(arguments[0]);
  int status = 0;
  if (waitpid(process, &status, 0) != process || status != 0) fail("the command did not end well");
}

double microseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  const std::filesystem::path directory = std::filesystem::current_path() / ("bench_run." + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  const std::string store = "sqlite:" + (directory / "once.db").string();
  const int file = open((directory / "floor").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) fail("open");
  const std::string page(4096, 'x');

  // Taken in turn, so that all see the same machine.
  std::vector<double> alone, fresh, replay, syncs;
  run({ONCE_PROGRAM, "run", "--store", store, "--key", "first", "--", "true"});
  for (int round = 0; round < rounds; ++round) {
    const std::string key = "key-" + std::to_string(round);
    const std::vector<std::string> command = {ONCE_PROGRAM, "run", "--store", store, "--key", key, "--", "true"};
    alone.push_back(microseconds([] { run({"true"}); }));
    fresh.push_back(microseconds([&] { run(command); }));
    replay.push_back(microseconds([&] { run(command); }));
    syncs.push_back(microseconds([&] {
      for (int i = 0; i < 2; ++i) {
        if (write(file, page.data(), page.size()) != static_cast<ssize_t>(page.size()) || fdatasync(file) != 0) {
          fail("write");
        }
      }
    }));
  }
  close(file);
  std::filesystem::remove_all(directory);

  const double base = median(alone);
  const double floor = median(syncs);
  std::printf("median of %d rounds, µs of wall time\n", rounds);
  std::printf("%-34s %8.0f\n", "true", base);
  std::printf("%-34s %8.0f\n", "two durable syncs", floor);
  const auto row = [&](const char* name, double value) {
    std::printf("%-34s %8.0f   adds %6.0f   %.2f of two durable syncs\n", name, value, value - base,
                (value - base) / floor);
  };
  row("once run -- true, a new key", median(fresh));
  row("once run -- true, replayed", median(replay));
}
