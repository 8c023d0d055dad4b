// once::lambda::idempotent_stream(): a response that is sent and stored at once, and given again.
#include <once/frontends/lambda/idempotent_stream.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>

#include "handler_test.hpp"

namespace once::lambda {
namespace idempotent_stream_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::string_view order = R"({"id":"order-17","cents":500})";

// What the platform gets.
class Sent final : public ResponseStream {
 public:
  void content_type(std::string_view type) override { head = "type " + std::string(type); }
  void http_head(std::string_view json) override { head = "http " + std::string(json); }
  void write(std::string_view bytes) override {
    if (chunks.size() == reads) throw Exception(ErrorKind::unavailable, "nobody reads on");
    chunks.emplace_back(bytes);
  }

  std::string head;
  std::vector<std::string> chunks;
  std::size_t reads = 1'000;  // Chunks.
};

class IdempotentStream : public HandlerTest {
 protected:
  // Writes three chunks, the first of which counts the runs.
  StreamingHandler report(Process& in, IdempotentOptions of = options()) {
    return idempotent_stream(*in.engine, std::move(of), [this](std::string_view event, ResponseStream& response) {
      EXPECT_EQ(event, order);
      response.content_type("text/csv");
      response.write("run " + std::to_string(++runs) + "\n");
      response.write("");
      response.write(std::string("\0\xFF\n", 3));
      response.write("end\n");
    });
  }
  Sent send(const StreamingHandler& handler, Millis left = 30s) const {
    Sent sent;
    handler(order, invocation(left), sent);
    return sent;
  }

  const std::string whole = std::string("run 1\n\0\xFF\nend\n", 13);
  int runs = 0;
};

TEST_F(IdempotentStream, IsStoredWhileItIsSent) {
  Process& here = process();
  const StreamingHandler handler = report(here);
  const Sent first = send(handler);
  EXPECT_EQ(first.head, "type text/csv");
  EXPECT_THAT(first.chunks, ElementsAre("run 1\n", std::string("\0\xFF\n", 3), "end\n"));
  EXPECT_EQ(record().state, State::completed);
  EXPECT_EQ(record().result.bytes, whole);
  EXPECT_EQ(record().result.content_type, "text/csv");
  for (int i = 0; i < 2; ++i) {
    const Sent again = send(report(process()));
    EXPECT_EQ(again.head, "type text/csv");
    EXPECT_THAT(again.chunks, ElementsAre(whole));
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(IdempotentStream, TheHeadOfAnHttpAnswerIsGivenAgain) {
  const std::string head = R"({"statusCode":201,"headers":{"Content-Type":"text/html"}})";
  const std::string body = std::string("<p>") + std::string(12, '\0') + "</p>";
  const StreamingHandler handler =
      idempotent_stream(*process().engine, options(),
                        [&](std::string_view, const Invocation& of, Context& context, ResponseStream& response) {
                          EXPECT_EQ(of.request_id, "req-1");
                          context.step("once", [&] { ++runs; });
                          response.content_type("text/plain");  // The last one counts.
                          response.http_head(head);
                          response.write(body);
                        });
  for (int i = 0; i < 2; ++i) {
    const Sent sent = send(handler);
    EXPECT_EQ(sent.head, "http " + head);
    EXPECT_THAT(sent.chunks, ElementsAre(body));
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(IdempotentStream, AnEmptyResponseIsOneToo) {
  const StreamingHandler handler =
      idempotent_stream(*process().engine, options(), [&](std::string_view, ResponseStream&) { ++runs; });
  for (int i = 0; i < 2; ++i) {
    const Sent sent = send(handler);
    EXPECT_EQ(sent.head, "");
    EXPECT_THAT(sent.chunks, IsEmpty());
  }
  EXPECT_EQ(runs, 1);
}

TEST_F(IdempotentStream, BeyondTheBoundItLeavesATombstone) {
  for (const std::size_t bound : {whole.size(), whole.size() - 1, std::size_t{0}}) {
    SCOPED_TRACE(bound);
    shared = stores::make_memory_store(clock);
    runs = 0;
    IdempotentOptions bounded = options();
    bounded.max_stream_bytes = bound;
    Process& here = process();
    const StreamingHandler handler = report(here, bounded);
    EXPECT_EQ(send(handler).chunks.size(), 3U) << "it is sent whole";
    if (bound == whole.size()) {
      EXPECT_THAT(send(handler).chunks, ElementsAre(whole));
    } else {
      EXPECT_EQ(record().result.placement, Placement::dropped);
      EXPECT_EQ(record().result.size, whole.size());
      Sent again;
      EXPECT_EQ(error_of([&] { return handler(order, invocation(), again), std::string(); }), errors::result_dropped);
      EXPECT_THAT(again.chunks, IsEmpty());
    }
    EXPECT_EQ(runs, 1);
  }
}

TEST_F(IdempotentStream, IsStoredThoughNobodyReadsOn) {
  const StreamingHandler handler = report(process());
  for (const std::size_t reads : {1U, 0U}) {
    Sent cut;
    cut.reads = reads;
    EXPECT_THROW(handler(order, invocation(), cut), Exception) << "run() reports it";
    EXPECT_EQ(cut.chunks.size(), reads);
    EXPECT_EQ(record().result.bytes, whole);
  }
  EXPECT_THAT(send(handler).chunks, ElementsAre(whole));
  EXPECT_EQ(runs, 1);
}

TEST_F(IdempotentStream, AFailureEndsItAndARetryRuns) {
  const StreamingHandler handler =
      idempotent_stream(*process().engine, options(), [&](std::string_view, ResponseStream& response) {
        response.write("part");
        if (++runs == 1) throw std::runtime_error("boom");
      });
  Sent first;
  EXPECT_THROW(handler(order, invocation(), first), std::runtime_error);
  EXPECT_THAT(first.chunks, ElementsAre("part"));
  EXPECT_THAT(send(handler).chunks, ElementsAre("part"));
  EXPECT_EQ(runs, 2);
}

TEST_F(IdempotentStream, RefusesBeforeTheFirstByte) {
  Process& here = process();
  Process& there = process();
  const StreamingHandler other = report(there);
  const StreamingHandler handler =
      idempotent_stream(*here.engine, options(), [&](std::string_view, Context&, ResponseStream& response) {
        Sent meanwhile;
        EXPECT_EQ(error_of([&] { return other(order, invocation(), meanwhile), std::string(); }), errors::conflict);
        EXPECT_THAT(meanwhile.chunks, IsEmpty());
        response.write("mine");
      });
  EXPECT_THAT(send(handler).chunks, ElementsAre("mine"));
  Sent none;
  EXPECT_EQ(error_of([&] { return handler("{}", invocation(), none), std::string(); }), errors::no_key);
  here.cut();
  EXPECT_EQ(error_of([&] { return handler(order, invocation(), none), std::string(); }), errors::store_unavailable);
  EXPECT_THAT(none.chunks, IsEmpty());
  EXPECT_EQ(runs, 0);
}

// What was sent cannot be taken back: the caller learns that it does not count.
TEST_F(IdempotentStream, SentUnderALostLeaseItEndsWithAnError) {
  for (const bool writes_before : {true, false}) {
    SCOPED_TRACE(writes_before);
    shared = stores::make_memory_store(clock);
    runs = 0;
    Process& frozen = process();
    Process& other = process();
    const StreamingHandler handler =
        idempotent_stream(*frozen.engine, options(), [&](std::string_view, ResponseStream& response) {
          if (writes_before) response.write("late");
          timers->advance(10min);  // Frozen, and thawed by the platform's next event.
          EXPECT_THAT(send(report(other)).chunks.size(), 3U);
        });
    Sent sent;
    if (writes_before) {
      EXPECT_EQ(error_of([&] { return handler(order, invocation(), sent), std::string(); }), errors::claim_lost);
      EXPECT_THAT(sent.chunks, ElementsAre("late"));
    } else {
      handler(order, invocation(), sent);
      EXPECT_THAT(sent.chunks, ElementsAre(whole));
    }
    EXPECT_THAT(send(handler).chunks, ElementsAre(whole)) << "a retry gets the response that counts";
    EXPECT_EQ(runs, 1);
  }
}

TEST_F(IdempotentStream, SwitchedOffItOnlySends) {
  IdempotentOptions off = options();
  off.environment->disabled = "1";
  const StreamingHandler handler = report(process(), off);
  EXPECT_EQ(send(handler).chunks.size(), 3U);
  EXPECT_EQ(send(handler).chunks.size(), 3U);
  EXPECT_EQ(runs, 2);
  EXPECT_THAT(records(), IsEmpty());
}

TEST_F(IdempotentStream, RefusesWhatItCannotDo) {
  Engine& engine = *process().engine;
  IdempotentOptions with_hook = options();
  with_hook.on_replay = [](std::string response, const Record&) { return response; };
  EXPECT_THROW(idempotent_stream(engine, with_hook, [](std::string_view, ResponseStream&) {}), Exception);
  const StreamingHandler handler = idempotent_stream(engine, options(), [](std::string_view, ResponseStream& response) {
    response.content_type(std::string(256, 't'));
  });
  Sent sent;
  EXPECT_THROW(handler(order, invocation(), sent), Exception) << "the record has no room for it";
  EXPECT_EQ(sent.head, "");
}

}  // namespace idempotent_stream_test
}  // namespace once::lambda
