// A claim at a server, and how one is made.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <once/clock.hpp>
#include <once/policy.hpp>

#include "core/claims_server.hpp"
#include "stores/server/transport.hpp"

namespace once::stores {

// What the parts of one store share.
struct ServerParts {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<Clock> clock;
  std::shared_ptr<Random> random;
  std::shared_ptr<Timers> timers;
  std::string name;  // Of the server, for messages.

  // GET, as Store::get().
  void look(std::string stored_key, Done done) const;
  // 10 ms, doubling to 1 s; a random part of it, from half to all.
  [[nodiscard]] Millis pause(unsigned tries) const;
};

class HttpClaim final : public ServerClaim, public std::enable_shared_from_this<HttpClaim> {
 public:
  // `key`: as it is sent, without what the server adds to it. `record`: as the server has it.
  HttpClaim(std::shared_ptr<const ServerParts> parts, std::string id, std::string key, Millis lease,
            const Record& record);

  void write(ClaimMachine::Transmit&& write, Callback<void(Written&&)> done) override;
  void read(Done done) override;
  // A sign of life that is not the machine's.
  void renew(Callback<void(Written&&)> done);

 private:
  struct Job;
  void next(const std::shared_ptr<Job>& job);
  void answered(const std::shared_ptr<Job>& job, Exchanged&& exchanged);
  // Sends the same again, as long as the store's time-out allows. The last error is the machine's to judge.
  void again(const std::shared_ptr<Job>& job, Error error, bool is_final);

  const std::shared_ptr<const ServerParts> parts_;
  const std::string id_;
  const std::string key_;
  const Owner owner_;
  const Millis lease_;
  // Of the one write that runs.
  std::size_t steps_;  // How many the server has.
  std::string note_;   // The last one that it has.
};

// Makes a claim, or finds what is in the way: repeats one request until it is answered, and waits for another caller's
// result by requests that the server holds.
void begin_at_server(std::shared_ptr<const ServerParts> parts, const Attempt& attempt, const EffectivePolicy& policy,
                     Millis wait, Callback<void(ClaimsServer::Begun&&)> done);

}  // namespace once::stores
