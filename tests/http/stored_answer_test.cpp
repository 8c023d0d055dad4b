// The form in which answers are kept.
#include "frontends/http/stored_answer.hpp"

#include <limits>
#include <string>
#include <vector>

#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace stored_answer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

std::string bytes(const Answer& answer) { return encode_answer(answer, unlimited).bytes; }

TEST(StoredAnswer, IsReadable) {
  const Answer answer{.status = 201,
                      .reason = "Created",
                      .headers = {{"Content-Type", "application/json"},
                                  {"Date", "Sat, 21 Nov 2026 20:43:00 GMT"},
                                  {"X-Tag", "one"},
                                  {"Content-Length", "15"},
                                  {"X-Tag", "  two\t"},
                                  {"Set-Cookie", "session=secret"}},
                      .body = R"({"id":"ch_1001"})"};
  const Result result = encode_answer(answer, unlimited);
  EXPECT_EQ(result.content_type, answer_content_type);
  EXPECT_EQ(result.placement, Placement::inlined);
  EXPECT_EQ(result.bytes,
            "once-http/1 201 body 16 Created\n"
            "Content-Type: application/json\n"
            "X-Tag: one\n"
            "X-Tag: two\n"
            "(not stored: Date, Set-Cookie)\n"
            "\n"
            R"({"id":"ch_1001"})");
}

TEST(StoredAnswer, WhatBelongsToTheConnectionIsNotStored) {
  const Headers headers = {{"connection", "X-Hop, keep-alive"},
                           {"X-Hop", "1"},
                           {"Connection", "x-other"},
                           {"X-Other", "2"},
                           {"Keep-Alive", "timeout=5"},
                           {"Proxy-Connection", "keep-alive"},
                           {"TE", "trailers"},
                           {"Trailer", "X"},
                           {"Transfer-Encoding", "chunked"},
                           {"Upgrade", "h2c"},
                           {"DATE", "now"},
                           {"server", "nginx"},
                           {"Set-Cookie", "a"},
                           {"Set-Cookie", "b"},
                           {"WWW-Authenticate", "Basic"},
                           {"Proxy-Authenticate", "Basic"},
                           {"Idempotent-Replayed", "true"},
                           {"X-Mine", "3"},
                           {"Kept", "4"}};
  const std::vector<std::string> never = {"x-mine"};
  const StoredAnswer stored =
      decode_answer(encode_answer({.status = 200, .headers = headers, .body = {}}, unlimited, never).bytes);
  EXPECT_THAT(stored.answer.headers, ElementsAre(Header{"Kept", "4"}));
  EXPECT_EQ(
      stored.not_stored,
      "connection, X-Hop, Connection, X-Other, Keep-Alive, Proxy-Connection, TE, Trailer, Transfer-Encoding, Upgrade, "
      "DATE, server, Set-Cookie, Set-Cookie, WWW-Authenticate, Proxy-Authenticate, Idempotent-Replayed, X-Mine");
}

// By finish_or_raise(), or by an import.
TEST(StoredAnswer, WhatOtherProgramsStoredHasNoMoreThanOurs) {
  Options options = by_authorization();
  options.never_store = {"X-Mine"};
  const Rules rules(options);
  Record record;
  record.state = State::completed;
  const auto stored = [&](const std::string& bytes) {
    record.result = Result::inlined(bytes, std::string(answer_content_type));
    return rules.answer_of(record);
  };
  const std::string lines =
      "Transfer-Encoding: chunked\nContent-Length: 999\nconnection: X-Hop\nX-Hop: 1\nSet-Cookie: a\nDate: now\n"
      "Server: x\nOnce-Owner: 00\nOnce-Stored-Key: 01\nonce-fate: hold\nIdempotent-Replayed: no\nx-mine: 1\n"
      "Location: /1\n\n";
  EXPECT_EQ(stored("once-http/1 201 body 2\n" + lines + "ok"), text_answer(201, "ok", {{"Location", "/1"}}));
  EXPECT_TRUE(is_replay(rules.replay(record)));
  const Answer dropped = stored("once-http/1 201 dropped 2\n" + lines);
  EXPECT_EQ(dropped.status, 410U);
  EXPECT_EQ(values(dropped, "Location"), std::vector<std::string>{"/1"});
  for (const char* const status : {"100", "101", "199"}) {
    for (const char* const body : {" body 0\n\n", " dropped 0\n\n"}) {
      EXPECT_THAT(stored("once-http/1 " + std::string(status) + body).body, HasSubstr("record-unreadable")) << status;
    }
  }
}

TEST(StoredAnswer, WhatTheProxyTellsTheServiceIsNotStored) {
  const StoredAnswer stored = decode_answer(bytes({.status = 200,
                                                   .headers = {{"Once-Owner", "1"},
                                                               {"once-stored-key", "2"},
                                                               {"Once-Attempt", "1"},
                                                               {"Once-Token", "17"},
                                                               {"Once-Derived-Key", "3"},
                                                               {"Oncebox", "4"}},
                                                   .body = {}}));
  EXPECT_THAT(stored.answer.headers, ElementsAre(Header{"Oncebox", "4"}));
  EXPECT_EQ(stored.not_stored, "Once-Owner, once-stored-key, Once-Attempt, Once-Token, Once-Derived-Key");
}

TEST(StoredAnswer, LinesThatWouldSplitAnAnswerAreNotStored) {
  const Headers headers = {
      {"X-Split", "a\r\nSet-Cookie: x"}, {"X Name", "1"}, {"", "2"}, {"X-Nul", std::string("\0", 1)}, {"X-Colon:", "3"},
      {"X-Utf8", "caf\xC3\xA9"},         {"X-Empty", ""}};
  const StoredAnswer stored = decode_answer(bytes({.status = 200, .reason = "a\nb", .headers = headers, .body = {}}));
  EXPECT_THAT(stored.answer.headers, ElementsAre(Header{"X-Utf8", "caf\xC3\xA9"}, Header{"X-Empty", ""}));
  EXPECT_EQ(stored.not_stored, "X-Split, ?, ?, X-Nul, ?");
  EXPECT_EQ(stored.answer.reason, "");
}

TEST(StoredAnswer, OverTheLimitATombstoneIsLeft) {
  Answer answer = text_answer(201, std::string(1000, 'x'), {{"Location", "/charges/7"}});
  EXPECT_EQ(encode_answer(answer, 1000).bytes, bytes(answer)) << "the head does not count";
  const Result result = encode_answer(answer, 999);
  EXPECT_EQ(result.bytes, "once-http/1 201 dropped 1000\nLocation: /charges/7\n\n");
  const StoredAnswer stored = decode_answer(result.bytes);
  EXPECT_EQ(stored.dropped_bytes, 1000U);
  EXPECT_EQ(stored.answer.body, "");
  EXPECT_EQ(decode_answer(encode_answer(answer, 0).bytes), stored);
  EXPECT_EQ(encode_tombstone(answer, 0).bytes, "once-http/1 201 dropped 0\nLocation: /charges/7\n\n");
}

TEST(StoredAnswer, EveryStatusAndNoOther) {
  for (unsigned status = 100; status <= 599; ++status) {
    const Answer answer = text_answer(status);
    EXPECT_EQ(decode_answer(bytes(answer)).answer, answer);
  }
  for (const unsigned status : {0U, 99U, 600U, 1000U, 4'294'967'295U}) {
    EXPECT_THROW(bytes(text_answer(status)), Exception) << status;
    EXPECT_THROW(encode_tombstone(text_answer(status), 1), Exception) << status;
  }
}

TEST(StoredAnswer, WhatIsStoredComesBackWhateverItsBytes) {
  once::testing::SeededRandom random(20'261'121);
  const auto text = [&](std::string_view characters, std::size_t most) {
    std::string out(random.below(most + 1), ' ');
    for (char& c : out) c = random.pick(characters);
    return out;
  };
  for (int round = 0; round < 3'000; ++round) {
    Answer answer;
    answer.status = 100 + static_cast<unsigned>(random.below(500));
    answer.reason = text("abc \t\xE9()", 12);
    for (auto n = random.below(6); n > 0; --n) {
      answer.headers.push_back({"X" + text("aZ0-_.~|!", 8), text("abc:;,() \t\"\\\x80\xFF", 20)});
    }
    std::string body(random.below(300), '\0');
    for (char& c : body) c = static_cast<char>(random.below(256));
    answer.body = body;

    const std::string encoded = bytes(answer);
    const StoredAnswer stored = decode_answer(encoded);
    EXPECT_EQ(to_bytes(stored), encoded);
    EXPECT_EQ(stored.answer.body, answer.body);
    EXPECT_EQ(stored.answer.status, answer.status);
    ASSERT_EQ(stored.answer.headers.size(), answer.headers.size());
    for (std::size_t i = 0; i < answer.headers.size(); ++i) {
      EXPECT_EQ(stored.answer.headers[i].name, answer.headers[i].name);
    }
    EXPECT_EQ(decode_answer(bytes(stored.answer)), stored) << "storing what was stored changes nothing";

    // One byte changed, or the end cut off: refused as corrupt, or another answer, and never anything else.
    std::string spoilt = encoded;
    if (random.chance(500)) {
      spoilt[random.below(spoilt.size())] = static_cast<char>(random.below(256));
    } else {
      spoilt.resize(random.below(spoilt.size()));
    }
    try {
      EXPECT_EQ(to_bytes(decode_answer(spoilt)), spoilt);
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt) << error.what();
    }
  }
}

TEST(StoredAnswer, AnythingElseIsCorrupt) {
  for (const std::string_view wrong : {"",
                                       "\n",
                                       "once-http/1",
                                       "once-http/2 200 body 0\n\n",
                                       "once-http/1 200 body 0\n",
                                       "once-http/1 200 body 1\n\n",
                                       "once-http/1 200 body 0\n\nx",
                                       "once-http/1 200 body 00\n\n",
                                       "once-http/1 200 body -1\n\n",
                                       "once-http/1 200 body +0\n\n",
                                       "once-http/1 200 body 99999999999999999999\n\n",
                                       "once-http/1 200 body\n\n",
                                       "once-http/1 99 body 0\n\n",
                                       "once-http/1 600 body 0\n\n",
                                       "once-http/1 2x0 body 0\n\n",
                                       "once-http/1 200 bodies 0\n\n",
                                       "once-http/1 200 dropped 0\n\nx",
                                       "once-http/1 200 body 0 \n\n",
                                       "once-http/1 200 body 0  OK\n\n",
                                       "once-http/1 200 body 0 OK \n\n",
                                       "once-http/1 200 body 0 O\x01K\n\n",
                                       "once-http/1 200 body 0\nA\n\n",
                                       "once-http/1 200 body 0\nA:1\n\n",
                                       "once-http/1 200 body 0\nA:  1\n\n",
                                       "once-http/1 200 body 0\nA: 1 \n\n",
                                       "once-http/1 200 body 0\n: 1\n\n",
                                       "once-http/1 200 body 0\nA B: 1\n\n",
                                       "once-http/1 200 body 0\nA: 1\r\n\n",
                                       "once-http/1 200 body 0\n(not stored: )\n\n",
                                       "once-http/1 200 body 0\n(not stored: a,b)\n\n",
                                       "once-http/1 200 body 0\n(not stored: a)\n(not stored: b)\n\n",
                                       "once-http/1 200 body 0\n(not stored: a)\nB: 1\n\n"}) {
    SCOPED_TRACE(wrong);
    try {
      decode_answer(wrong);
      ADD_FAILURE() << "was taken for an answer";
    } catch (const Exception& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    }
  }
}

}  // namespace stored_answer_test
}  // namespace once::http
