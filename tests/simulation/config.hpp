// What kind of world a seed makes.
#pragma once

#include <cstddef>
#include <cstdint>

#include <once/time.hpp>

#include "simulation.hpp"
#include "world.hpp"

namespace once::simulation {

// What the store says when it refuses a write.
inline constexpr const char* forbidden = "the role may not write this";
inline constexpr const char* unfit = "the table has no room for this";

enum class Tells : std::uint8_t { by_call, in_answers, never };

struct Config {
  std::size_t processes = 1;
  std::size_t keys = 4;
  Millis lease{1'000};
  Millis retention{60'000};
  Instant latency{std::chrono::milliseconds(2)};
  Instant between_calls{std::chrono::milliseconds(50)};
  Tells tells = Tells::by_call;
  Millis told_error{0};
  Millis skew{0};
  bool jumps = false;
  bool cached = false;
  bool offloads = false;
  bool compresses = false;
  bool retries_failures = false;
  bool ghosts = false;           // What is delivered late, or twice, may come very late, and records are soon swept.
  bool small = false;            // The store keeps only small records.
  bool companions = false;       // Some results are committed together with other writes.
  bool storms = false;           // Everything that goes wrong does so often.
  bool tokens = true;            // A second copy of companions is told from the first even where its record stands.
  std::uint32_t declines = 200;  // Of companions, in a thousand.
  bool forbids = false;          // Now and then the store refuses writes as misuse, or records as unfit.
  bool misuses = false;          // Callers ask for things after a finish.
  bool hands_out = false;        // Some results are committed by transactions of the callers' own.
  bool differing = false;        // Callers of a key do not agree about lease and retention.
  bool copies = false;           // A process is copied once, with its memory.
  bool attaches = false;         // Claims of a process that died are taken up by the next one.
  bool sleeps = false;           // Processes often sleep, longer than a lease; half of the work looks before it acts.
  std::uint32_t trouble = 0;     // Of the network, in a thousand requests.
  Instant between_crashes{0}, between_pauses{0}, between_outages{0}, between_operators{0};  // 0: never.

  static Config draw(World& world, std::uint64_t seed, Bug bug, Which store);
};

}  // namespace once::simulation
