// The actions of ls, find, show, resolve, release, extend and rm as a JSON API, for the operators of a process.
// docs/operators-api.md describes it, and openapi.json does for programs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include <once/callback.hpp>
#include <once/frontends/http/message.hpp>

#include "operators/admin_token.hpp"
#include "operators/overview.hpp"
#include "settings/access.hpp"

namespace once::cli {

class Operators {
 public:
  // `token` and what the sources use must outlive it.
  Operators(StoreAccess access, const AdminToken& token, OverviewSources sources = {});
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;
  ~Operators();  // Answers waiting requests.

  // Blocks for the store. From any thread.
  [[nodiscard]] http::Answer answer(const http::Request& request) const;

  // The same on its own thread, one request after the other; does not block. `request` is copied. With 16 requests
  // before it, the answer is 503.
  void answer_later(const http::Request& request, Callback<void(http::Answer)> done);

 private:
  struct Waiting;
  [[nodiscard]] http::Answer route(const http::Request& request) const;
  void work();

  const StoreAccess access_;
  const AdminToken& token_;
  const OverviewSources sources_;
  std::mutex mutex_;  // Guards the following members.
  std::condition_variable news_;
  std::deque<Waiting> waiting_;
  bool ending_ = false;
  std::jthread worker_;
};

}  // namespace once::cli
