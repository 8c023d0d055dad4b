// What the worlds have met: rows of docs/claim-table.md and docs/decision-table.md, and pairs of a fault and what it
// met. The linker puts counters around the functions of ClaimMachine and decide() (coverage.cpp), so that these have no
// hooks for it.
//
// All of it must be met, but what tests/simulation/never_met.txt lists with its reason; and nothing that is listed may
// be met.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <once/record.hpp>

#include "core/claim_machine.hpp"

namespace once::simulation {

// What the network does to a request.
enum class Mishap : std::uint8_t { refused, lost, answer_lost, late, slow, twice };
inline constexpr std::array mishaps = {"refused", "lost", "answer lost", "late", "slow", "twice"};
// What happens to a process, and so to all of its claims.
enum class Blow : std::uint8_t { killed, stopped, clock_jumps };
inline constexpr std::array blows = {"process killed", "process stopped", "clock jumps"};
// What happens to a record.
enum class Act : std::uint8_t { release, extend, hold, take_over, resolve_completed, resolve_failed, sweep };
inline constexpr std::array acts = {"release",           "extend", "set hold", "set takeover", "resolve as completed",
                                    "resolve as failed", "sweep"};

class Coverage {
 public:
  void begin_world() { machines_.clear(), states_.clear(); }

  // ---- told by the worlds
  void met(Mishap mishap, std::string_view request) { count(mishaps.at(index(mishap)), request); }
  void met(Blow blow, const Owner& claim) { count(blows.at(index(blow)), "claim " + state_of(claim)); }
  void met(Act act, const Record& record, Time now);
  // The write of a claim that is handed to the store now, as "renewal"; or empty, once. What else is sent then is of a
  // conversation.
  [[nodiscard]] std::string take_sending() { return std::exchange(sending_, {}); }
  // What a caller asks for by mistake.
  void calls(const char* what) { calling_ = what; }

  // ---- told by the counters
  struct Before {
    std::string state;
    std::string event;
  };
  void began(const ClaimMachine& machine);
  [[nodiscard]] std::string state(const ClaimMachine& machine);
  void happened(const ClaimMachine& machine, const Before& before);
  void sent(const ClaimMachine& machine, const RecordPtr& next);
  void finishes(const ClaimMachine& machine, bool with_companion) {
    machines_[&machine].with_companion = with_companion;
  }
  [[nodiscard]] std::string event_of(const ClaimMachine& machine, const Answer& answer);
  [[nodiscard]] const char* calling() const noexcept { return calling_; }
  void decided(std::string row) { ++met_["decision: " + std::move(row)]; }

  // Prints what was met how often, and what never. False if that is not what the list says.
  bool report(std::ostream& out, const std::string& folder) const;

  bool on = false;

 private:
  struct Machine {
    RecordPtr sent;
    std::vector<std::uint64_t> revisions = {};  // Of all that it has sent.
    bool with_companion = false;
  };
  template <class Enum>
  static std::size_t index(Enum value) noexcept {
    return static_cast<std::size_t>(value);
  }
  void count(std::string_view what, std::string_view whom) {
    if (on) ++met_[std::string(what) + ": " + std::string(whom)];
  }
  [[nodiscard]] std::string state_of(const Owner& claim) const;

  std::map<std::string, std::uint64_t> met_;
  std::unordered_map<const ClaimMachine*, Machine> machines_;
  std::map<std::string, std::string> states_;  // Of claims, by their owners' bytes.
  std::string sending_;
  const char* calling_ = "";
};

// Of all the worlds of this program, which run on one thread.
Coverage& coverage();

}  // namespace once::simulation
