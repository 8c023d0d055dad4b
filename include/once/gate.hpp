// The gate of a store: which writes it lets through while its records move to another store (once/move.hpp). The store
// keeps the gate with its records and holds every program to it, also programs that have it open already and programs
// of older versions. An open gate costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/record.hpp>
#include <once/store.hpp>

namespace once {

// Which writes a store lets through.
enum class Gate : std::uint8_t {
  open,       // Everything is let through.
  filling,    // Only StoreGate::fill() writes: records come in from another store.
  filled,     // Everything is let through, after such a move.
  announced,  // Everything is let through. A move out of here has its name, and may go on to draining.
  draining,   // No claim: no insert, and no write that makes a record another owner's with a lease. Holders renew and
              // finish, operators act.
  closed,     // No write: the records are in another store.
};

std::string_view to_string(Gate gate) noexcept;  // "open" …

// What a store keeps of its gate.
struct GateMark {
  Gate gate = Gate::open;  // What it lets through now.
  std::string move = {};   // Names the move, the same in both stores: 32 hexadecimal digits. Empty: open.
  std::string other = {};  // The other store's name, for people.

  friend bool operator==(const GateMark&, const GateMark&) = default;
};

// Whether claims are let through.
inline bool takes_claims(const GateMark& mark) noexcept {
  return mark.gate == Gate::open || mark.gate == Gate::filled || mark.gate == Gate::announced;
}

// As stores keep it: "filling MOVE OTHER". Empty for another text.
std::string gate_text(const GateMark& mark);
// The reverse of gate_text(). Empty for a text of another form.
std::optional<GateMark> gate_from_text(std::string_view text);

// What a program is told whose write was stopped. Empty if the gate stops nothing.
std::string gate_refusal(const GateMark& mark);

// What fill() says after the store's name if the mark is another one.
inline constexpr const char* fill_refusal =
    ": it no longer waits for these records, as another once copy has ended the move, or --undo has. Nothing was "
    "written";

// The writes that the gate stops fail as misuse and change nothing, so that no policy runs them unprotected. A write
// whose condition does not hold is refused with the record in the way, as ever: replays go on.
//
// For one thread at a time. All functions block, and throw Exception: unavailable, in_doubt (read the mark again),
// misuse (such as a role that may not change the schema), corrupt (the mark was edited by hand).
class StoreGate {
 public:
  StoreGate() = default;
  StoreGate(const StoreGate&) = delete;
  StoreGate& operator=(const StoreGate&) = delete;
  virtual ~StoreGate() = default;

  virtual GateMark mark() = 0;  // Read from the store.

  // How change() ended.
  struct Changed {
    // Whether the mark was changed, and what prevented it.
    enum class Kind : std::uint8_t {
      done,      // Durable. Every write that began before has ended, and every later one meets the new gate.
      other,     // The mark is not `seen`.
      occupied,  // To filling: there are records.
      live,      // To closed, from draining: `live` claims have a lease that ends after `live_after`.
    };
    Kind kind = Kind::done;  // Only `done` changed the mark.
    std::size_t live = 0;    // live: how many claims. Otherwise 0.
  };
  // Changes the mark in one transaction with what it depends on. Nothing is changed unless `done`. `live_after` is for
  // a change from draining to closed.
  virtual Changed change(const GateMark& seen, const GateMark& next, Time live_after) = 0;

  // Inserts those of the records whose keys are not there, in one transaction, if the mark is `filling` then; otherwise
  // throws misuse. A record is kept as it is, with its owner, revision and token.
  virtual void fill(const GateMark& filling, const std::vector<RecordPtr>& records) = 0;
};

}  // namespace once
