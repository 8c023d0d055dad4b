// Asks the upstreams what became of unknown operations: http::Options::reconcile.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/engine/engine.hpp>
#include <once/frontends/http/endpoint.hpp>
#include <once/frontends/proxy.hpp>
#include <once/reconcile.hpp>

#include "frontends/proxy/head.hpp"
#include "frontends/proxy/loop.hpp"

namespace once::proxy {

// The head of the question that a client's request gives rise to: a GET with the client's own headers, so that the
// service answers for that client, without its key and what belongs to a body.
std::string question_head(const RequestHead& request, std::string_view target, const http::Options& rules,
                          const Arrival& arrival);

// A question on its way.
struct Question {
  std::shared_ptr<const http::Rules> rules;
  std::string head;
  Callback<void(Finding)> answer = {};
};
// Sends it to an upstream, and calls back with what the answer means. On the loop's thread.
void ask_upstream(Loop& loop, const ProxyOptions& options, Question question);

// What the answer of a service means. `is_whole`: false if the body is longer than what is stored.
Finding finding_of(const http::Answer& answer, bool is_whole, const http::Rules& rules, const ProxyOptions& options);

// Asks by itself about operations whose clients all share their keys: who the client was is not in a record, and
// another one's answer must not become this one's. One for a proxy.
class Reconciling {
 public:
  Reconciling(Engine& engine, const ProxyOptions& options, Loop& loop);

  // On the loop's thread, or before there is one.
  void set_rules(std::shared_ptr<http::Endpoints> endpoints);
  Task<void> run();  // Until the loop is closed.
  [[nodiscard]] Reconciler& reconciler() noexcept { return reconciler_; }
  [[nodiscard]] const Reconciler& reconciler() const noexcept { return reconciler_; }

 private:
  struct Shared;

  const ProxyOptions& options_;
  Loop& loop_;
  std::shared_ptr<Shared> shared_;  // With callbacks that may outlive the proxy.
  Reconciler reconciler_;
};

}  // namespace once::proxy
