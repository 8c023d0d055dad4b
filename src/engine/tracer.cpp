#include <once/engine/tracer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>

#include <once/key.hpp>
#include <once/platform/system.hpp>

namespace once {

namespace {

TracerOptions with_parts(TracerOptions options) {
  if (!options.sink) throw Exception(ErrorKind::misuse, "a tracer needs a sink: set TracerOptions::sink");
  if (options.clock == nullptr) options.clock = system_clock();
  if (options.random == nullptr) options.random = system_random();
  if (!options.wall) {
    options.wall = [] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
    };
  }
  return options;
}

// All in one system call, which costs more than the bytes. No id is all zeros.
void draw_ids(Random& random, std::initializer_list<std::span<std::uint8_t>> ids) {
  std::array<std::uint8_t, 32> bytes{};
  const auto is_zero = [](std::span<const std::uint8_t> id) {
    return std::ranges::all_of(id, [](std::uint8_t byte) { return byte == 0; });
  };
  do {
    std::size_t count = 0;
    for (const auto id : ids) count += id.size();
    std::span<std::uint8_t> drawn = std::span(bytes).first(count);
    random.fill(drawn);
    for (const auto id : ids) {
      std::ranges::copy(drawn.first(id.size()), id.begin());
      drawn = drawn.subspan(id.size());
    }
  } while (std::ranges::any_of(ids, is_zero));
}

enum class Part : std::uint8_t { none, work, answer, finish };

// Which span an event ends. answer: the call's, nothing ran. finish: the call's, and its work's if that is still open.
Part part_ended_by(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::work_done:
      return Part::work;
    case EventKind::replayed:
    case EventKind::conflict:
    case EventKind::mismatch:
    case EventKind::unknown:
      return Part::answer;
    case EventKind::completed:
    case EventKind::failed:
    case EventKind::held:
    case EventKind::released:
    case EventKind::abandoned:
    case EventKind::finish_refused:
    case EventKind::unrecorded:
      return Part::finish;
    case EventKind::claimed:
    case EventKind::resumed:
    case EventKind::took_over:
    case EventKind::step_recorded:
    case EventKind::renewed:
    case EventKind::renewal_lost:
    case EventKind::declined:
    case EventKind::unprotected:
    case EventKind::reconciled:
    case EventKind::reconcile_later:
    case EventKind::reconcile_gave_up:
    case EventKind::store_error:
      return Part::none;
  }
  return Part::none;
}

bool is_error(EventKind kind) noexcept {
  return kind == EventKind::failed || kind == EventKind::held || kind == EventKind::abandoned ||
         kind == EventKind::finish_refused || kind == EventKind::unrecorded || kind == EventKind::unknown;
}

void link(Span& span, const TraceParent& to, std::string_view why) {
  if (!to.empty() && !(to == span.self)) span.links.emplace_back(to, why);
}

}  // namespace

Tracer::Tracer(TracerOptions options) : options_(with_parts(std::move(options))) {}

std::shared_ptr<const CallTrace> Tracer::begin(const TracePtr& given) const {
  const TracePtr caller = given == nullptr && options_.current ? options_.current() : given;
  auto trace = std::make_shared<CallTrace>();
  TraceParent& call = trace->call;
  if (caller != nullptr) {
    trace->caller = call = caller->parent;
    trace->state = caller->state;
    draw_ids(*options_.random, {call.span_id, trace->work.span_id});
  } else {
    draw_ids(*options_.random, {call.trace_id, call.span_id, trace->work.span_id});
  }
  call.sampled = samples(caller, call);
  trace->work = {.trace_id = call.trace_id, .span_id = trace->work.span_id, .sampled = call.sampled};
  trace->began = options_.wall();
  trace->began_up = options_.clock->uptime();
  return trace;
}

bool Tracer::samples(const TracePtr& caller, const TraceParent& call) const noexcept {
  if (options_.sampler.asks_parent && caller != nullptr) return caller->parent.sampled;
  if (options_.sampler.ratio >= 1) return true;
  // OpenTelemetry's TraceIdRatioBased: the last 63 bits of the id are below the ratio's part of all.
  constexpr std::size_t from = 8;
  constexpr int bits = 63;
  std::uint64_t low = 0;
  for (std::size_t i = from; i < call.trace_id.size(); ++i) low = low << 8U | call.trace_id[i];
  return static_cast<double>(low >> 1U) < std::ldexp(std::max(options_.sampler.ratio, 0.0), bits);
}

// It ends now.
Span Tracer::span_of(const CallTrace& trace, bool is_work) const {
  Span span;
  span.name = is_work ? "once.work" : "once.call";
  span.kind = is_work ? options_.work_kind : options_.call_kind;
  span.self = is_work ? trace.work : trace.call;
  span.parent_id = is_work ? trace.call.span_id : trace.caller.span_id;
  span.state = trace.state;
  span.start = trace.began;
  span.end = trace.began + std::max(options_.clock->uptime() - trace.began_up, Uptime{0});
  return span;
}

void Tracer::end_call(Span span, std::string_view outcome, std::string_view key) const {
  span.attributes.emplace_back("once.outcome", std::string(outcome));
  span.attributes.emplace_back("once.key_hash", key_hash(key));
  const std::size_t mark = key.find('#');
  if (options_.scopes && mark != std::string_view::npos && mark + 1 < key.size()) {
    span.attributes.emplace_back("once.scope", Key::from_stored(key).scope());
  }
  if (!options_.store.empty()) span.attributes.emplace_back("once.store", options_.store);
  options_.sink(std::move(span));
}

void Tracer::observe(const Event& event) const noexcept try {
  if (event.trace == nullptr || !event.trace->call.sampled) return;
  const CallTrace& trace = *event.trace;
  const Part part = part_ended_by(event.kind);
  if (part == Part::none) return;
  const Record* const record = event.record;
  if (part != Part::answer && !trace.is_work_told.exchange(true)) {
    Span work = span_of(trace, true);
    work.start = std::max(work.start, work.end - event.took);  // `took` is the time since the claim.
    if (record != nullptr) work.attributes.emplace_back("once.attempt", std::int64_t{record->attempt});
    options_.sink(std::move(work));
  }
  if (part == Part::work || trace.is_call_told.exchange(true)) return;
  Span call = span_of(trace, false);
  const bool is_failure = record != nullptr && record->state == State::failed;
  const bool replays_failure = event.kind == EventKind::replayed && is_failure;
  call.is_error = is_error(event.kind) || replays_failure;
  if (event.error != nullptr) {
    call.message = event.error->message;
    call.attributes.emplace_back("error.type", std::string(to_string(event.error->kind)));
  } else if (call.is_error && record != nullptr && !record->failure.code.empty()) {
    call.attributes.emplace_back("error.type", record->failure.code);
  }
  if (record != nullptr) {
    call.attributes.emplace_back("once.attempt", std::int64_t{record->attempt});
    if (part == Part::answer) {
      link(call, record->history.trace, event.kind == EventKind::conflict ? "holder" : "attempt");
    } else if (record->attempt > 1) {
      const auto& entries = record->history.entries;
      const auto last = std::find_if(entries.rbegin(), entries.rend(),
                                     [&](const HistoryEntry& entry) { return entry.attempt == record->attempt - 1; });
      if (last != entries.rend()) link(call, last->trace, "previous");
    }
  }
  if (event.coalesced) call.attributes.emplace_back("once.coalesced", true);
  end_call(std::move(call), replays_failure ? "stored_failure" : to_string(event.kind), event.key);
} catch (...) {  // Out of memory: a span is lost, and the call goes on.
}

void Tracer::failed(const CallTrace& trace, std::string_view key, const Error& error) const noexcept try {
  if (!trace.call.sampled || trace.is_call_told.exchange(true)) return;
  Span span = span_of(trace, false);
  span.is_error = true;
  span.message = error.message;
  span.attributes.emplace_back("error.type", std::string(to_string(error.kind)));
  end_call(std::move(span), "error", key);
} catch (...) {  // As above.
}

}  // namespace once
