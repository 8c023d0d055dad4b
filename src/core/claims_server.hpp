// A server that claims instead of the engine, as `once serve` does: it decides, renews and writes. The engine sends it
// what a caller wants and what became of the work.
//
// 1. The engine calls begin() for a caller. The server makes a claim, or says what stands in the way.
// 2. The claim's machine (core/claim_machine) decides when to renew it and what to try again. Its writes go to
//    ServerClaim::write().
// 3. An answer that the machine would get from a store comes back: done, refused with what is stored, or failed.
//
// Times: a server says for how long a claim is valid, counted from when the request was sent. Clocks are not compared.
#pragma once

#include <memory>
#include <optional>

#include <once/callback.hpp>
#include <once/decide.hpp>
#include <once/error.hpp>
#include <once/policy.hpp>
#include <once/store.hpp>

#include "core/claim_machine.hpp"

namespace once {

// A claim that a server has made. Thread-safe; one write runs at a time.
class ServerClaim {
 public:
  ServerClaim() = default;
  ServerClaim(const ServerClaim&) = delete;
  ServerClaim& operator=(const ServerClaim&) = delete;
  virtual ~ServerClaim() = default;

  struct Written {
    Answer answer = {};  // done: its record, if set, is what the server has stored in place of what was sent.
    std::optional<Uptime> until = {};  // The claim is ours until then. Empty: the server does not say.
  };
  // Completes as a store's operations do. A refused one has the record that is stored, as far as the server tells it:
  // under the claim's owner only if that has finished it.
  virtual void write(ClaimMachine::Transmit&& write, Callback<void(Written&&)> done) = 0;
  // As Store::get() of the claim's key, but the record has the claim's owner where it is its claim, or what it
  // finished.
  virtual void read(Done done) = 0;
};

// Thread-safe. Completions: as those of Store.
class ClaimsServer {
 public:
  ClaimsServer(const ClaimsServer&) = delete;
  ClaimsServer& operator=(const ClaimsServer&) = delete;

  struct Begun {
    // claim set: `record` is the claim as the server has it, valid until `until`. Its request was sent at `sent`.
    // claim null, record set: that is in the way, and `decision` is the server's.
    // Neither: `error`. Nothing may run.
    std::shared_ptr<ServerClaim> claim = {};
    RecordPtr record = {};
    Decision decision = {};
    Uptime sent{};
    Uptime until{};
    Error error = {};
    bool is_unreadable = false;  // error: what is stored cannot be had. Trying again does not help.
  };
  // Tries again while the server does not answer, for its own time-out beyond `wait`, which is how long to wait for
  // another attempt's result. The attempt needs no owner.
  virtual void begin(const Attempt& attempt, const EffectivePolicy& policy, Millis wait,
                     Callback<void(Begun&&)> done) = 0;

 protected:
  ClaimsServer() = default;
  ~ClaimsServer() = default;
};

}  // namespace once
