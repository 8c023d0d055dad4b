// The addresses of upstreams' names, for one loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <once/callback.hpp>
#include <once/frontends/proxy.hpp>
#include <once/time.hpp>

#include "frontends/proxy/loop.hpp"

namespace once::proxy {

class Names {
 public:
  struct Found {
    std::vector<tcp::endpoint> endpoints;  // In the order to try them. If empty:
    std::string problem;                   // why, for the operator.
    bool late = false;                     // Not known yet.
  };
  // Calls back once, on any thread. Throws std::system_error if it cannot begin.
  using LookUp = std::function<void(const Address&, Callback<void(Found)>)>;

  // `lasting`: how long a result is used.
  Names(Loop& loop, LookUp look_up, Millis lasting) : loop_(loop), look_up_(std::move(look_up)), lasting_(lasting) {}
  explicit Names(Loop& loop);  // The system's resolver.

  // Each name is looked up once at a time, for all callers, and does not delay other names. `limit` is only this
  // caller's: a later result serves later callers.
  Task<Found> find(const Address& address, Millis limit);

 private:
  struct Lookup {
    bool is_done = false;
    Found found;
    Steady::time_point until;
    std::vector<Timer*> waiting;
  };
  std::shared_ptr<Lookup> begin(const Address& address);

  Loop& loop_;
  const LookUp look_up_;
  const Millis lasting_;
  std::map<std::pair<std::string, std::uint16_t>, std::shared_ptr<Lookup>> lookups_;
};

}  // namespace once::proxy
