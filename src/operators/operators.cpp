#include "operators/operators.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include <once/error.hpp>
#include <once/key.hpp>

#include "operators/answers.hpp"
#include "operators/bulk.hpp"
#include "operators/description.hpp"
#include "operators/lists.hpp"
#include "operators/one_act.hpp"
#include "operators/one_record.hpp"
#include "operators/related.hpp"
#include "operators/reporter.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "platform/thread.hpp"

namespace once::operators {

namespace {

constexpr std::size_t most_waiting = 16;
constexpr std::string_view records_path = "/v1/records";
constexpr std::string_view bulk_path = "/v1/bulk";
constexpr std::string_view reconcile_word = "reconcile";

http::Answer not_found() {
  return operators_problem("not-found", 404, "There is nothing at this path",
                           "/v1/openapi.json describes all paths. Those of records begin with /v1/records/KEY, where "
                           "KEY is stored_key_hex.");
}

// A request's path and query.
struct Target {
  explicit Target(std::string_view target) {
    const auto question = target.find('?');
    path = target.substr(0, question);
    if (question != std::string_view::npos) query = target.substr(question + 1);
  }
  void refuse_query() const { Query(query).end(); }

  std::string_view path;
  std::string_view query;
};

std::string key_of(std::string_view digits) {
  std::string key = parse_hex(digits, "the key in the path");
  if (key.empty() || key.size() > max_key_bytes) throw wrong("the key in the path must be a record's stored_key_hex");
  return key;
}

// `rest`: of the path, behind "/v1/records/".
http::Answer route_record(const StoreAccess& access, Service& service,
                          const std::function<std::vector<std::string>()>& prefixes, const http::Request& request,
                          const Caller& caller, const Target& target, std::string_view rest) {
  const bool reads = is_read(request);
  const auto slash = rest.find('/');
  const std::string_view digits = rest.substr(0, slash);
  if (slash == std::string_view::npos) {
    if (reads) return show_record(access, service, caller, key_of(digits), target.query);
    if (request.method != "DELETE") return not_allowed("GET, HEAD, DELETE");
    target.refuse_query();
    return act_on_one(access, service, request, caller, key_of(digits), OneAct::remove);
  }
  const std::string_view word = rest.substr(slash + 1);
  if (word == "raw") {
    return reads ? raw_payload(access, caller, key_of(digits), target.query) : not_allowed("GET, HEAD");
  }
  if (word == "related") {
    return reads ? related_records(access, prefixes(), key_of(digits), target.query) : not_allowed("GET, HEAD");
  }
  if (word == reconcile_word) {
    if (request.method != "POST") return not_allowed("POST");
    target.refuse_query();
    return ask_about_one(access, service, request, caller, key_of(digits));
  }
  const std::optional<OneAct> act = act_from_string(word);
  if (!act || *act == OneAct::remove) return not_found();
  if (request.method != "POST") return not_allowed("POST");
  target.refuse_query();
  return act_on_one(access, service, request, caller, key_of(digits), *act);
}

// Those that need no store: all but the making of a plan, whose body may be large.
std::optional<http::Answer> route_bulk(BulkActs& bulk, const http::Request& request, const Caller& caller) {
  const Target target(request.target);
  if (target.path == bulk_path) {
    if (request.method == "POST") return std::nullopt;
    if (!is_read(request)) return not_allowed("GET, HEAD, POST");
    target.refuse_query();
    return bulk.list();
  }
  if (!target.path.starts_with(bulk_path) || target.path[bulk_path.size()] != '/') return std::nullopt;
  const std::string_view rest = target.path.substr(bulk_path.size() + 1);
  const auto slash = rest.find('/');
  const std::string_view id = rest.substr(0, slash);
  const std::string_view word = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  if (slash == std::string_view::npos && !is_read(request)) return not_allowed("GET, HEAD");
  if (slash != std::string_view::npos && word != "start" && word != "stop") return not_found();
  if (slash != std::string_view::npos && request.method != "POST") return not_allowed("POST");
  target.refuse_query();
  if (slash == std::string_view::npos) return bulk.show(id);
  return word == "start" ? bulk.start(id, request, caller) : bulk.stop(id, request, caller);
}

bool asks_the_service(const http::Request& request) {
  const std::string_view path = Target(request.target).path;
  return request.method == "POST" && path.starts_with(records_path) && path.ends_with(reconcile_word);
}

// What `answer` returns, or what the exception that it throws says.
template <typename Function>
auto caught(Function&& answer) -> decltype(answer()) {
  try {
    return answer();
  } catch (const StoreFailed& failure) {
    return store_problem(failure.error());
  } catch (const Exception& error) {
    return error.kind() == ErrorKind::misuse ? bad_request(error.what()) : store_problem(error.error());
  } catch (const std::exception& error) {  // A mistake here, or no memory. It must not end the process.
    report(std::string("the operators' API failed: ") + error.what(), LogLevel::err);
    return operators_problem("internal", 500, "The request could not be answered",
                             "Standard error of the program says why. A change may have been made: check.");
  }
}

}  // namespace

http::Answer Operators::route(const http::Request& request, const Caller& caller) const {
  const Target target(request.target);
  const bool reads = is_read(request);
  if (target.path == bulk_path) {  // POST.
    target.refuse_query();
    return bulk_->plan(request, caller);
  }
  const auto prefixes = [&] {
    const auto figures = sources_.figures ? sources_.figures() : std::nullopt;
    return figures ? figures->prefixes : std::vector<std::string>();
  };
  if (target.path.starts_with(records_path) && target.path.substr(records_path.size()).starts_with('/')) {
    return route_record(access_, service_, prefixes, request, caller, target,
                        target.path.substr(records_path.size() + 1));
  }
  const bool is_list = target.path == records_path;
  const bool is_overview = target.path == "/v1/overview";
  const bool is_description = target.path == "/v1/openapi.json";
  const bool is_acts = target.path == "/v1/acts";
  if (!is_list && !is_overview && !is_description && !is_acts) return not_found();
  if (!reads) return not_allowed("GET, HEAD");
  if (is_list) return list_records(access_, service_, prefixes(), target.query);
  if (is_acts) return notes_->list(target.query);
  target.refuse_query();
  return is_overview ? overview(access_, sources_) : description();
}

// A copy of the request, because the original is gone when its turn comes.
struct Operators::Waiting {
  std::string method;
  std::string target;
  http::Headers headers;
  std::string body;
  Callback<void(proxy::OperatorsAnswer)> done;
};

Operators::Operators(StoreAccess access, const AdminToken& token, OverviewSources sources, Console* console,
                     std::shared_ptr<Clock> clock)
    : access_(std::move(access)),
      token_(token),
      sources_(std::move(sources)),
      console_(console),
      own_notes_(nullptr),
      notes_(console == nullptr ? &own_notes_ : &console->notes()),
      service_(access_.store->capabilities().max_record_bytes, clock),
      bulk_(std::make_unique<BulkActs>(access_, service_, std::move(clock))),
      events_(
          access_.store, sources_, {}, [this](std::string_view id) { return bulk_->line(id); },
          [this](const Record& record) { return service_json(service_, record); }) {
  try {
    for (Lane* const lane : {&store_lane_, &service_lane_})
      lane->worker = start_thread<std::jthread>([this, lane] { work(*lane); });
  } catch (...) {  // At the limit of threads: the first one must not wait for requests for ever.
    stop();
    throw;
  }
}

Operators::~Operators() { stop(); }

void Operators::stop_bulk() { bulk_->stop_all(); }

void Operators::stop() {
  std::deque<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    left.swap(store_lane_.waiting);
    std::ranges::move(service_lane_.waiting, std::back_inserter(left));
    service_lane_.waiting.clear();
  }
  news_.notify_all();
  bulk_->stop_all();
  events_.stop();
  for (Waiting& one : left) one.done(stopping());
}

std::optional<http::Answer> Operators::answer_at_once(const http::Request& request, Caller& caller) const {
  if (console_ != nullptr) {
    if (auto answer = console_->answer(request)) return answer;
  }
  caller.notes = notes_;
  if (console_ != nullptr && console_->decides(request)) {
    if (auto refused = console_->admit(request, caller)) return refused;
  } else {
    if (auto refused = token_.refuse(request, &caller.token)) return refused;
    if (caller.token && !caller.token->identity.name.empty()) caller.session = caller.token->identity;
    if (auto refused = refuse_reader(request, caller)) return refused;
  }
  return route_bulk(*bulk_, request, caller);
}

http::Answer Operators::answer(const http::Request& request) const {
  return caught([&] {
    Caller caller;
    if (auto answer = answer_at_once(request, caller)) return std::move(*answer);
    return route(request, caller);
  });
}

proxy::OperatorsAnswer Operators::events(const http::Request& request, const Caller& caller) {
  const Target target(request.target);
  if (request.method == "HEAD") return events_.head(target.query);
  if (request.method != "GET") return not_allowed("GET, HEAD");
  std::function<bool()> is_allowed = [this, token = caller.token] { return !token || token_.has(*token); };
  if (caller.number != 0) is_allowed = [this, number = caller.number] { return console_->still_admits(number); };
  const std::string name = caller.number != 0 ? "session " + std::to_string(caller.number)
                           : caller.token     ? "token " + to_hex(caller.token->digest)
                                              : std::string();
  return events_.open(target.query, header_of(request, "Last-Event-ID") != nullptr, std::move(is_allowed), name);
}

void Operators::answer_later(const http::Request& request, Callback<void(proxy::OperatorsAnswer)> done) {
  // What needs no store must not wait for it, and refused requests must not delay others.
  Caller caller;
  auto answer = caught([&]() -> std::optional<http::Answer> { return answer_at_once(request, caller); });
  if (answer) return done(std::move(*answer));
  if (Target(request.target).path == events_path) return done(caught([&] { return events(request, caller); }));
  Waiting waiting{.method = std::string(request.method),
                  .target = std::string(request.target),
                  .headers = {},
                  .body = std::string(request.body),
                  .done = std::move(done)};
  for (const http::HeaderView& line : request.headers) {
    waiting.headers.push_back({std::string(line.name), std::string(line.value)});
  }
  bool is_ending = false;
  {
    const std::lock_guard lock(mutex_);
    std::deque<Waiting>& queue = asks_the_service(request) ? service_lane_.waiting : store_lane_.waiting;
    is_ending = ending_;
    if (!ending_ && queue.size() < most_waiting) {
      queue.push_back(std::move(waiting));
      news_.notify_all();
      return;
    }
  }
  if (is_ending) return waiting.done(stopping());
  http::Answer busy = operators_problem("busy", 503, "Too many requests are waiting", "Retry in a second.");
  busy.headers.push_back({"Retry-After", "1"});
  waiting.done(std::move(busy));
}

void Operators::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    news_.wait(lock, [&] { return ending_ || !lane.waiting.empty(); });
    if (ending_) return;
    Waiting next = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    lock.unlock();
    http::Request request{
        .method = next.method, .target = next.target, .headers = {}, .body = next.body, .principal = {}};
    for (const http::Header& line : next.headers) request.headers.push_back({line.name, line.value});
    next.done(answer(request));
    lock.lock();
  }
}

}  // namespace once::operators
