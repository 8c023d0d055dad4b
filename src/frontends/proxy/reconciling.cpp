#include "frontends/proxy/reconciling.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "frontends/proxy/answers.hpp"
#include "frontends/proxy/services.hpp"
#include "frontends/proxy/upstream.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"

namespace once::proxy {

namespace {

constexpr Millis longest_question{10'000};  // A client waits for it.

bool is_empty_list(std::string_view body) noexcept {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t open = body.find_first_not_of(blanks);
  const std::size_t close =
      open == body.npos || body[open] != '[' ? body.npos : body.find_first_not_of(blanks, open + 1);
  return close != body.npos && body[close] == ']' && body.find_first_not_of(blanks, close + 1) == body.npos;
}

Millis answer_limit_of(const http::Rules& rules, const ProxyOptions& options) {
  const Millis own = rules.options().answer_timeout;
  return own == Millis{0} ? options.timeouts.answer : own;
}

// Until the end of its body, or as much as may be stored.
Task<Finding> exchange_question(Loop& loop, const ProxyOptions& options, std::shared_ptr<Services> services,
                                const http::Rules& rules, std::string_view head) {
  const Millis limit = std::min(answer_limit_of(rules, options), longest_question);
  const auto until = Steady::now() + limit;
  const auto exchange = std::make_shared<Exchange>(loop, *services, options, limit);
  const Trouble trouble = co_await exchange->start(head, BodySource(), false, nullptr);
  if (trouble != Trouble::none) {
    co_await exchange->join();
    co_return Finding::not_known("the service was asked: " + std::string(to_string(trouble)));
  }
  http::Answer answer = head_of(exchange->answer());
  const std::size_t most = rules.options().max_answer_bytes;
  Piece piece;
  bool is_late = false;
  while (piece.trouble == Piece::End::none && !exchange->answer().is_done() && answer.body.size() <= most && !is_late) {
    piece = exchange->take();
    if (piece.is_to_come() && !exchange->answer().is_done()) piece = co_await exchange->read();
    answer.body.append(piece.bytes);
    is_late = Steady::now() > until;
  }
  const bool is_whole = answer.body.size() <= most;
  const bool broke_off = is_late || piece.trouble != Piece::End::none;
  co_await exchange->join();
  if (broke_off) co_return Finding::not_known("the service was asked, and its answer broke off");
  co_return finding_of(answer, is_whole, rules, options);
}

Task<void> carry_question(Loop& loop, const ProxyOptions& options, std::shared_ptr<Services> services,
                          Question question) {
  Finding finding = co_await exchange_question(loop, options, std::move(services), *question.rules, question.head);
  question.answer(std::move(finding));
}

}  // namespace

std::string question_head(const RequestHead& request, std::string_view target, const http::Options& rules,
                          const Arrival& arrival) {
  RequestHead head = request;
  head.method = "GET";
  head.target = target;
  std::erase_if(head.headers, [&](const http::HeaderView& header) {
    const std::string name = text::lower(header.name);
    return std::ranges::any_of(text::list_members(rules.key_header),
                               [&](std::string_view key) { return http::same_name(name, key); }) ||
           name.starts_with("content-") || name.starts_with("if-") || name == "range" || name == "transfer-encoding" ||
           name == "trailer" || name == "te";
  });
  return write_request_head(head, {}, arrival);
}

void ask_upstream(Loop& loop, const ProxyOptions& options, Question question) {
  Task<void> carrying = carry_question(loop, options, loop.services, std::move(question));
  spawn(loop.io, std::move(carrying));
}

Finding finding_of(const http::Answer& answer, bool is_whole, const http::Rules& rules, const ProxyOptions& options) {
  const http::Options& own = rules.options();
  const std::string why = "the service was asked, and answered " + std::to_string(answer.status);
  Finding finding;
  switch (answer.status) {
    case 200:
    case 201:
    case 203:
    case 204:
      // A list of what there is would be an answer for every key.
      if (is_empty_list(answer.body)) return Finding::not_known(why + " with an empty list");
      finding = Finding::happened(is_whole ? rules.encode(answer) : rules.encode_tombstone(answer, 0), why);
      break;
    default:
      if (std::ranges::find(own.reconcile_not_done, answer.status) == own.reconcile_not_done.end()) {
        return Finding::not_known(why);
      }
      finding = Finding::not_done(why);
  }
  const EffectivePolicy policy = effective(own.policy.value_or(Policy{}));
  constexpr Millis least_settle{60'000};
  finding.settle =
      own.reconcile_settle.value_or(std::max({policy.lease, answer_limit_of(rules, options), least_settle}));
  finding.retention = policy.retention;
  return finding;
}

struct Reconciling::Shared {
  std::mutex mutex;
  std::shared_ptr<http::Endpoints> endpoints;  // Guarded by the mutex.

  // The rules of a record that may be asked about without its client. Null: none.
  std::shared_ptr<const http::Rules> rules_of(const Record& record) {
    std::shared_ptr<http::Endpoints> now;
    {
      const std::lock_guard lock(mutex);
      now = endpoints;
    }
    if (record.key.find('#') == std::string::npos) return nullptr;
    const http::Endpoint* const found = now->find_shared(Key::from_stored(record.key));
    if (found == nullptr || found->rules().options().reconcile.empty()) return nullptr;
    return {now, &found->rules()};
  }
};

Reconciling::Reconciling(Engine& engine, const ProxyOptions& options, Loop& loop)
    : options_(options),
      loop_(loop),
      shared_(std::make_shared<Shared>()),
      reconciler_({.store = engine.options().store,
                   .ask =
                       [shared = shared_, mailbox = loop.mailbox(), &options, &loop](const RecordPtr& record,
                                                                                     Callback<void(Finding)> answer) {
                         // The loop and the options live as long as the mailbox is open.
                         mailbox->post([shared, record, answer = std::move(answer), &options, &loop]() mutable {
                           const std::shared_ptr<const http::Rules> rules = shared->rules_of(*record);
                           if (rules == nullptr) return;
                           const std::string target = rules->reconcile_target(Key::from_stored(record->key).name());
                           if (target.empty()) return;
                           ask_upstream(loop, options,
                                        {.rules = rules,
                                         .head = "GET " + loop.services->path() + target + " HTTP/1.1\r\nHost: " +
                                                 std::string(loop.services->host()) + "\r\nUser-Agent: once\r\n\r\n",
                                         .answer = std::move(answer)});
                         });
                       },
                   .concerns = [shared = shared_](const Record& record) { return shared->rules_of(record) != nullptr; },
                   .observer = engine.options().observer,
                   .clock = engine.options().clock,
                   .random = engine.options().random}) {}

void Reconciling::set_rules(std::shared_ptr<http::Endpoints> endpoints) {
  const std::lock_guard lock(shared_->mutex);
  shared_->endpoints = std::move(endpoints);
}

Task<void> Reconciling::run() {
  while (!loop_.closing()) {
    co_await loop_.sleep(options_.reconcile_interval);
    const auto& rules = loop_.rules->router().routes();
    const bool asks = !rules.otherwise.reconcile.empty() || std::ranges::any_of(rules.routes, [](const auto& route) {
      return !route.options.reconcile.empty();
    });
    if (loop_.stopping() || !asks) continue;
    Pending<ReconcilePass> passed(loop_);
    reconciler_.pass(passed.callback());
    if (!passed.is_there()) co_await passed.wait();
  }
}

}  // namespace once::proxy
