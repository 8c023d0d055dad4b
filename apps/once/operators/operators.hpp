// The actions of ls, show, resolve, release and rm as a JSON API, for the proxy's operators. docs/proxy.md describes
// it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <once/callback.hpp>
#include <once/frontends/http/message.hpp>

#include "operators/admin_token.hpp"
#include "settings/access.hpp"

namespace once::cli {

class Operators {
 public:
  // `token` must outlive it.
  Operators(StoreAccess access, const AdminToken& token);
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
  void work();

  const StoreAccess access_;
  const AdminToken& token_;
  std::mutex mutex_;  // Guards the following members.
  std::condition_variable news_;
  std::deque<Waiting> waiting_;
  bool ending_ = false;
  std::jthread worker_;
};

// application/problem+json
http::Answer operators_problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail);

}  // namespace once::cli
