// The actions of ls, find, show, resolve, release, extend and rm as a JSON API, for the operators of a process.
// docs/operators-api.md describes it, and openapi.json does for programs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <once/callback.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/proxy.hpp>

#include "operators/admin_token.hpp"
#include "operators/bulk.hpp"
#include "operators/console.hpp"
#include "operators/events.hpp"
#include "operators/notes.hpp"
#include "operators/overview.hpp"
#include "operators/service.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

class Operators {
 public:
  // `token`, `console` and what the sources use must outlive it. `console`: null if there is none.
  Operators(StoreAccess access, const AdminToken& token, OverviewSources sources = {}, Console* console = nullptr,
            std::shared_ptr<Clock> clock = system_clock());
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;
  ~Operators();  // Refuses waiting requests, and waits for the one that is carried out, and for a bulk act's one write.

  // Blocks for the store. From any thread.
  [[nodiscard]] http::Answer answer(const http::Request& request) const;

  // The same on its own thread, one request after the other; does not block. `request` is copied. With 16 requests
  // before it, the answer is 503. What needs no store is answered within the call. Questions to the service have
  // another thread, as they may take long.
  void answer_later(const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done);

  // Whom to ask about unknown operations, see Service.
  void ask_by(std::optional<Reconciler> reconciler) { service_.ask_by(std::move(reconciler)); }

  // Ends the act on many records that is under way, and begins no other. All else is still answered. Does not wait.
  void stop_bulk();

  // Requests that wait or come later are answered with 503, and streams of events end. Does not wait for the one that
  // is carried out.
  void stop();

 private:
  struct Waiting;
  // Requests that wait for a thread.
  struct Lane {
    std::deque<Waiting> waiting;
    std::jthread worker;
  };
  [[nodiscard]] http::Answer route(const http::Request& request, const Caller& caller) const;
  // Empty: the store has to be asked, for this caller.
  [[nodiscard]] std::optional<http::Answer> answer_at_once(const http::Request& request, Caller& caller) const;
  // GET and HEAD of /v1/events.
  [[nodiscard]] proxy::OperatorsAnswer events(const http::Request& request, const Caller& caller);
  void work(Lane& lane);

  const StoreAccess access_;
  const AdminToken& token_;
  const OverviewSources sources_;
  Console* const console_;
  Notes own_notes_;  // If there is no console.
  Notes* const notes_;
  mutable Service service_;
  const std::unique_ptr<BulkActs> bulk_;
  Events events_;
  std::mutex mutex_;  // Guards the following members, but the lanes' threads.
  std::condition_variable news_;
  bool ending_ = false;
  Lane store_lane_;
  Lane service_lane_;
};

}  // namespace once::operators
