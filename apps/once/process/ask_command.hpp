// --reconcile CMD: a shell command that says what became of an unknown operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include <once/reconcile.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "process/signals.hpp"

namespace once::cli {

// Its exit codes. All others, and signals, mean that it does not know. Codes that a typo, a shell or a usual program
// ends with are none of these: 1, 2, 64 to 78, 126, 127, 128 and more.
inline constexpr int happened_code = 0;    // It took place: the standard output is the result.
inline constexpr int not_done_code = 100;  // It did not take place.
inline constexpr int failed_code = 101;    // It failed for good: standard output and this code are replayed.

struct AskCommand {
  std::string command;  // For sh -c.
  Millis timeout{30'000};
  std::uint64_t output_limit = 0;       // Of its standard output, as Recorder has it. 0: the exit code only.
  std::string derive_name;              // For ONCE_DERIVED_KEY.
  int wake = -1;                        // Readable when `gives_up` should be called. -1: none.
  std::function<bool()> gives_up = {};  // True: kill the command, nobody waits for it. May be empty.
};

// Runs it, with its standard error passed on and nothing on its standard input. Blocks. Thread-safe.
Finding ask_command(const AskCommand& ask, const Record& unknown);

// A reconciler that asks such a command, as long as this lives.
class Asking {
 public:
  // `wake` and `gives_up` of `ask`, and `ask` of `options`, are set here.
  Asking(AskCommand ask, ReconcileOptions options);
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() { end(); }

  [[nodiscard]] Reconciler& reconciler() noexcept { return reconciler_; }
  // Passes again and again, with this pause between, until end(). On the caller's thread.
  void run(Millis pause);
  // Running questions are ended, and later ones too.
  void end() noexcept;

 private:
  std::atomic<bool> ending_{false};
  const Wakeup over_;
  const AskCommand ask_;
  Reconciler reconciler_;
};

}  // namespace once::cli
