// GET /v1/events: what changes, told as it happens, to everybody who looks: the overview, single records, and acts on
// many.
//
// One poller serves all viewers: it asks for each record once however many watch it, for one at a time, and for nothing
// while there is no viewer. A viewer that is slow misses what was between, never what is.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>

#include <once/clock.hpp>
#include <once/frontends/proxy.hpp>
#include <once/platform/system.hpp>
#include <once/store.hpp>
#include <once/time.hpp>

#include "operators/overview.hpp"

namespace once::operators {

inline constexpr std::string_view events_path = "/v1/events";

struct EventsOptions {
  // From the end of a round, which asks for each record once, to the next. Four times a round's duration if that is
  // longer.
  Millis pause{2'000};
  Millis overview_pause{5'000};
  Millis ping_pause{15'000};
  Millis patience{10'000};  // A store without an answer after this is told to be silent. It is not asked again before.
  std::size_t most_viewers = 32;
  Millis bulk_pause{500};
  std::size_t most_of_one = 12;  // Viewers with the same name, if they have one.
  std::size_t most_keys = 16;    // Of one viewer.
  std::shared_ptr<Clock> clock = system_clock();
};

// Thread-safe.
class Events {
 public:
  // The data of an act on many records, in one line. Must not block.
  using BulkData = std::function<std::string(std::string_view id)>;

  // What is told of a record as `service`. Must not block.
  using ServiceData = std::function<nlohmann::ordered_json(const Record& record)>;

  // `bulk`: empty if there are no such acts. `service`: empty if nobody is asked. Called until stop().
  Events(std::shared_ptr<Store> store, OverviewSources sources, EventsOptions options = {}, BulkData bulk = {},
         ServiceData service = {});
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events();  // As stop(). Does not wait for a running request of the store, whose answer is dropped.

  // A stream; or 503 with too many viewers, in all or of this name. `query`: of the request; throws Exception(misuse)
  // if it is wrong. `name`: of the session or the token; empty for programs of this host, which need neither.
  // `resumes`: the client had a stream before. `is_allowed`: whether it still may see this; asked before anything is
  // sent, and each second. Called under a lock: it must not call this. It must be valid until stop().
  proxy::OperatorsAnswer open(std::string_view query, bool resumes, std::function<bool()> is_allowed,
                              std::string name = {});

  // What HEAD gets: the status and headers of a stream. Throws as open() does.
  [[nodiscard]] http::Answer head(std::string_view query) const;

  void stop();  // Ends all streams, and refuses new ones.

  [[nodiscard]] std::size_t viewers() const;
  [[nodiscard]] bool rests() const;  // Nobody looks, and the poller waits for somebody.

 private:
  struct Viewer;
  struct Shared;
  class Stream;
  const std::shared_ptr<Shared> shared_;  // Also of a request's completion, which may come after the end of this.
  std::jthread worker_;
};

}  // namespace once::operators
