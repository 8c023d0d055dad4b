// once::lambda::idempotent_stream(): a streaming handler whose work runs once for all deliveries of an event.
//
//   once::lambda::run(once::lambda::idempotent_stream(
//       engine, {.key = "report_id"},
//       [](std::string_view event, once::Context& context, once::lambda::ResponseStream& response) {
//         response.content_type("text/csv");
//         for (const std::string& line : report(event, context.derived_key("query"))) response.write(line);
//       }));
//
// The response is stored while it is sent. When the event comes again, the caller gets the stored bytes, in one chunk,
// with the same content type or head, and nothing runs.
#pragma once

#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/frontends/lambda/idempotent.hpp>
#include <once/frontends/lambda/invocation.hpp>
#include <once/frontends/lambda/runtime.hpp>

namespace once::lambda {

namespace detail {

using StreamWork = std::function<void(std::string_view, const Invocation&, Context&, ResponseStream&)>;

StreamingHandler make_idempotent_stream(Engine& engine, IdempotentOptions options, StreamWork work);

}  // namespace detail

// `work` is called as work(event, response), work(event, context, response) or work(event, invocation, context,
// response). Options are those of idempotent(), without on_replay.
//
// - Before the first byte, everything is as with idempotent(): a conflict, a mismatch and so on are error answers.
// - A response over IdempotentOptions::max_stream_bytes, or over what the store takes, is sent whole and leaves a
//   tombstone.
// - If the caller stops reading, write() does not throw: the work goes on, and its response is stored. Then the handler
//   throws what the stream threw, so that run() reports it.
// - If the work throws, its operation ends by Policy::on_throw, and the stream with the error in its trailers. A retry
//   may run again although the caller has a part of the response.
// - If the lease is lost while the response is sent, the stream ends with errors::claim_lost. A retry gets the response
//   that counts.
//
// Throws Exception(misuse) for invalid options. The handler may be called by several threads at once if the work may.
// The engine must outlive it; copies share the work.
template <class Function>
StreamingHandler idempotent_stream(Engine& engine, IdempotentOptions options, Function&& work) {
  using Plain = std::decay_t<Function>;
  return detail::make_idempotent_stream(
      engine, std::move(options),
      [work = std::forward<Function>(work)](std::string_view event, const Invocation& invocation, Context& context,
                                            ResponseStream& response) mutable {
        if constexpr (std::is_invocable_v<Plain&, std::string_view, const Invocation&, Context&, ResponseStream&>) {
          work(event, invocation, context, response);
        } else if constexpr (std::is_invocable_v<Plain&, std::string_view, Context&, ResponseStream&>) {
          work(event, context, response);
        } else {
          static_assert(std::is_invocable_v<Plain&, std::string_view, ResponseStream&>,
                        "once: the work must be callable as work(event, response), work(event, context, response) or "
                        "work(event, invocation, context, response), with a std::string_view, a const "
                        "once::lambda::Invocation&, a once::Context& and a once::lambda::ResponseStream&");
          work(event, response);
        }
      });
}

}  // namespace once::lambda
