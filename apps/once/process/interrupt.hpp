// Ctrl-C in the middle of something: notes it, so that the program ends at a good place.
#pragma once

#include <csignal>

#include <once/time.hpp>

namespace once::cli {

// While one exists, the first SIGINT or SIGTERM is only noted; a second one ends the program as usual.
// Ignored signals stay ignored. One object at a time.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  [[nodiscard]] bool asked() const { return asked_within(Millis{0}); }
  [[nodiscard]] bool asked_within(Millis time) const;  // Waits for it.

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

}  // namespace once::cli
