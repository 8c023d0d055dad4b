// The command under a claim, without a store.
#include "process/supervise.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "operators/run_result.hpp"
#include "process/signals.hpp"

namespace once::cli {
namespace supervise_test {

// 1. The command is prepared, and its operation is claimed. 2. The guard gets the lease, and begins the command. 3.
// `once` is stopped. The guard ends the command with the lease. Between 2 and 3 the lease must come first: here the
// claim has none to tell, and so nothing begins.
TEST(Supervise, GuardKnowsTheLeaseBeforeTheCommandBegins) {
  const std::string ran = std::filesystem::temp_directory_path() / ("once-supervise-" + std::to_string(getpid()));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // What the guard leaves is waited for here.
    int result = 1;
    {
      Signals signals;
      Recorder recorder(1024);
      SuperviseOptions options;
      options.command = {"sh", "-c", "echo >" + ran};
      options.survive = true;  // Once begun, it would go on to its end.
      options.take_signals = false;
      options.deadline = []() -> std::optional<Uptime> { throw std::runtime_error("not known"); };
      const auto command = prepare_command(std::move(options), signals);
      try {
        command->run(recorder);
      } catch (const CommandUnwatched&) {
        result = 0;
      }
    }
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    _exit(result);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(std::filesystem::remove(ran)) << "the command has begun";
}

}  // namespace supervise_test
}  // namespace once::cli
