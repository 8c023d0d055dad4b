// Which bodies are the same request, whatever bytes a client library chose for them.
#include "frontends/http/body.hpp"

#include <zlib.h>
#include <zstd.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>

#include "http_test.hpp"

namespace once::http {
namespace body_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As a client library with these settings writes it; `time` is in the head of gzip. `bits`: of deflateInit2().
std::string deflated(std::string_view text, int bits, unsigned long time = 0) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  gz_header head{};
  head.time = time;
  if (bits > 15) deflateSetHeader(&stream, &head);
  std::string out(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // NOLINT: zlib does not write to it.
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}
std::string gzip(std::string_view text, unsigned long time = 0) { return deflated(text, 31, time); }

std::string zstd(std::string_view text, int level = 1) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level);
  EXPECT_EQ(ZSTD_isError(size), 0U);
  out.resize(size);
  return out;
}
// As a client that does not know the size, with a window of 2^`window_log` bytes.
std::string zstd_stream(std::string_view text, int window_log) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  EXPECT_EQ(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log)), 0U);
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  EXPECT_EQ(ZSTD_isError(ZSTD_compressStream2(context, &to, &in, ZSTD_e_flush)), 0U);
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &in, ZSTD_e_end), 0U);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

struct Sent {
  std::string type;
  std::string body;
  std::string encoding = {};
};

Options shared() {
  Options options{.principal = Principal::shared()};
  return options;
}

Examination examine(const Rules& rules, const Sent& sent) {
  Request request{.method = "POST", .target = "/forms", .headers = {{"Idempotency-Key", "k"}}, .body = sent.body};
  if (!sent.type.empty()) request.headers.push_back({"Content-Type", sent.type});
  if (!sent.encoding.empty()) request.headers.push_back({"Content-Encoding", sent.encoding});
  return rules.examine(request);
}

Fingerprint fingerprint(const Rules& rules, const Sent& sent) {
  const Examination found = examine(rules, sent);
  EXPECT_TRUE(found.operation.has_value()) << found.answer.body;
  return found.operation ? found.operation->fingerprint : Fingerprint();
}

// "order" and a file, between these boundaries.
Sent form(const std::string& boundary, const std::function<void(std::string&)>& change = {}) {
  std::string body =
      "--B\r\nContent-Disposition: form-data; name=\"order\"\r\n\r\n17\r\n"
      "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"i.txt\"\r\n"
      "Content-Type: text/plain\r\n\r\ninvoice\r\n--B--\r\n";
  if (change) change(body);
  for (std::size_t at = 0; (at = body.find("--B", at)) != std::string::npos; at += 2 + boundary.size()) {
    body.replace(at, 3, "--" + boundary);
  }
  return {"multipart/form-data; boundary=" + boundary, body};
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

std::function<void(std::string&)> with(std::string from, std::string to) {
  return [=](std::string& body) { replace(body, from, to); };
}

TEST(Body, FormsAreComparedByTheirParts) {
  const Rules rules(shared());
  const Fingerprint first = fingerprint(rules, form("----WebKitFormBoundary7MA4YWxkTrZu0gW"));
  EXPECT_EQ(fingerprint(rules, form("98c3ce1f0c7b8ef9a1")), first);
  Sent quoted = form("a b");
  quoted.type = "Multipart/Form-Data;boundary=\"a b\"";
  EXPECT_EQ(fingerprint(rules, quoted), first);
  EXPECT_EQ(fingerprint(rules, form("B2", with("; name=\"order\"", ";name=order"))), first);
  EXPECT_EQ(fingerprint(rules, form("B2", with("Content-Disposition", "content-disposition"))), first);
  EXPECT_EQ(fingerprint(rules, form("B2", with("\r\n\r\n17", "\r\nContent-Length: 2\r\n\r\n17"))), first);
  EXPECT_EQ(fingerprint(rules, form("B2", with("--B--\r\n", "--B--"))), first);

  std::set<std::string> all{first.hex()};
  for (const auto& change : {
           with("\"order\"", "\"Order\""),
           with("i.txt", "j.txt"),
           with("; filename=\"i.txt\"", ""),
           with("text/plain", "text/html"),
           with("Content-Type: text/plain\r\n", ""),
           with("17", "18"),
           with("17", ""),
           with("invoice", "invoice\r\n"),
           with("\r\n\r\n17", "\r\nContent-Transfer-Encoding: base64\r\n\r\n17"),
           with("; name=\"order\"", "; name=\"order\"; filename*=UTF-8''a"),
           // The same parts in another order, one twice, one less.
           with("--B\r\nContent-Disposition: form-data; name=\"order\"\r\n\r\n17\r\n", ""),
       }) {
    const Fingerprint one = fingerprint(rules, form("X1", change));
    EXPECT_TRUE(all.insert(one.hex()).second) << form("X1", change).body;
    EXPECT_EQ(fingerprint(rules, form("X2", change)), one) << form("X1", change).body;
  }
  const std::string a = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n";
  const std::string b = "--B\r\nContent-Disposition: form-data; name=b\r\n\r\n2\r\n";
  const auto body = [&](const std::string& parts) {
    return form("x", [&](std::string& out) { out = parts + "--B--"; });
  };
  EXPECT_NE(fingerprint(rules, body(a + b)), fingerprint(rules, body(b + a)));
  EXPECT_NE(fingerprint(rules, body(a + a)), fingerprint(rules, body(a)));
}

TEST(Body, MalformedFormsCountAsBytes) {
  const Rules rules(shared());
  for (const auto& change : {
           with("--B--\r\n", "--B--more"),                    // Something behind the last one.
           with("--B--\r\n", "--B\r\n"),                      // No last one.
           with("--B--\r\n", ""),                             //
           with("\r\n\r\n17", "\n\n17"),                      // Bare line feeds.
           with("name=\"order\"", "title=\"order\""),         // No name.
           with("form-data", "attachment"),                   // No field.
           with("name=\"order\"", "name=\"order"),            // Open quotes.
           with("name=\"order\"", "name=\"a\"; name=\"b\""),  // Two names.
           with("17\r\n--B", "17\r\n--Bx"),                   // A line that only begins like the boundary.
           with("Content-Type: text/plain", "Content-Type : text/plain"),
           with("Content-Type: text/plain", " Content-Type: text/plain"),
           with("Content-Type: text/plain", "Content-Type: a\r\nContent-Type: b"),
       }) {
    const Sent one = form("X1", change);
    SCOPED_TRACE(one.body);
    EXPECT_EQ(fingerprint(rules, one), fingerprint(rules, {"", one.body})) << "its bytes";
    EXPECT_NE(fingerprint(rules, one), fingerprint(rules, form("X2", change)));
  }
  for (const std::string type : {"multipart/form-data", "multipart/form-data; boundary=",
                                 "multipart/form-data; boundary=\"\"", "multipart/form-data; boundary=X1; boundary=X1",
                                 "multipart/form-data; boundary=X1/", "text/plain; boundary=X1"}) {
    Sent sent = form("X1");
    sent.type = type;
    EXPECT_EQ(fingerprint(rules, sent), fingerprint(rules, {"", sent.body})) << type;
  }
  Sent two = form("X1");
  Request request{.method = "POST",
                  .target = "/forms",
                  .headers = {{"Idempotency-Key", "k"}, {"Content-Type", two.type}, {"Content-Type", two.type}},
                  .body = two.body};
  EXPECT_EQ(rules.examine(request).operation->fingerprint, fingerprint(rules, {"", two.body}));
}

// RFC 2046 allows a text before the first boundary, and one after the last. No parser takes them for parts.
TEST(Body, TextAroundThePartsCounts) {
  const Rules rules(shared());
  std::set<std::string> all{fingerprint(rules, form("X1")).hex()};
  for (const auto& change : {
           with("--B\r\n", "This is a message of several parts.\r\n--B\r\n"),
           with("--B\r\n", "\n\r\n--B\r\n"),
           with("--B--\r\n", "--B--\r\nmore"),
           with("--B--\r\n", "--B-- \r\nmore\r\n"),
       }) {
    const Sent one = form("X1", change);
    SCOPED_TRACE(one.body);
    EXPECT_EQ(fingerprint(rules, form("X2", change)), fingerprint(rules, one));
    EXPECT_TRUE(all.insert(fingerprint(rules, one).hex()).second);
  }
}

// As `new FormData()` without a field is sent.
TEST(Body, AFormWithoutPartsIsOne) {
  const Rules rules(shared());
  const auto empty = [](const std::string& boundary) {
    return form(boundary, [](std::string& body) { body = "--B--\r\n"; });
  };
  EXPECT_EQ(fingerprint(rules, empty("X1")), fingerprint(rules, empty("X2")));
  EXPECT_NE(fingerprint(rules, empty("X1")), fingerprint(rules, form("X1")));
  EXPECT_NE(fingerprint(rules, empty("X1")), fingerprint(rules, {"", ""}));
}

// Each parameter is compared with all before it, so their number is bounded.
TEST(Body, HeadersOfTooManyParametersAreMalformed) {
  const Rules rules(shared());
  const auto part_with = [](std::size_t count) {  // The name of the part is one of them.
    std::string line = "; name=\"order\"";
    for (std::size_t i = 1; i < count; ++i) line += "; p" + std::to_string(i) + "=1";
    return with("; name=\"order\"", line);
  };
  const auto type_with = [](std::size_t count) {
    Sent sent = form("X1");
    for (std::size_t i = 1; i < count; ++i) sent.type += "; p" + std::to_string(i) + "=1";
    return sent;
  };
  EXPECT_EQ(fingerprint(rules, form("X1", part_with(16))), fingerprint(rules, form("X2", part_with(16))));
  EXPECT_NE(fingerprint(rules, type_with(16)), fingerprint(rules, {"", type_with(16).body}));
  for (const std::size_t count : {17UL, 50'000UL}) {
    const Sent one = form("X1", part_with(count));
    EXPECT_EQ(fingerprint(rules, one), fingerprint(rules, {"", one.body})) << count;
    EXPECT_NE(fingerprint(rules, one), fingerprint(rules, form("X2", part_with(count)))) << count;
    const Sent many = type_with(count);
    EXPECT_EQ(fingerprint(rules, many), fingerprint(rules, {"", many.body})) << count;
  }
}

TEST(Body, OtherBodiesOfPartsAreTheSameKind) {
  const Rules rules(shared());
  const auto related = [](const std::string& boundary, const std::string& inner, const std::string& id = "17") {
    return Sent{"multipart/related; type=\"application/json\"; boundary=" + boundary,
                "--" + boundary + "\r\nContent-Type: application/json\r\n\r\n{\"id\":" + id + "}\r\n--" + boundary +
                    "\r\nContent-Type: multipart/mixed; boundary=" + inner + "\r\n\r\n--" + inner + "\r\n\r\nx\r\n--" +
                    inner + "--\r\n--" + boundary + "--"};
  };
  const Fingerprint first = fingerprint(rules, related("a1", "b1"));
  EXPECT_EQ(fingerprint(rules, related("a2", "b2")), first);
  EXPECT_NE(fingerprint(rules, related("a2", "b2", "18")), first);
  Sent mixed = related("a1", "b1");
  replace(mixed.type, "related", "mixed");
  EXPECT_NE(fingerprint(rules, mixed), first);
}

TEST(Body, TheBoundaryIsNoComparedHeader) {
  Options options = shared();
  options.fingerprint_headers = {"Content-Type"};
  const Rules rules(options);
  EXPECT_EQ(fingerprint(rules, form("x1")), fingerprint(rules, form("x2")));
  Sent charset = form("x1");
  charset.type += "; charset=utf-8";
  EXPECT_NE(fingerprint(rules, charset), fingerprint(rules, form("x1")));
  EXPECT_NE(fingerprint(rules, {"text/plain", "a"}), fingerprint(rules, {"text/html", "a"}));
}

TEST(Body, CompressedBodiesAreComparedByContent) {
  Options options = shared();
  options.max_body_bytes = 4'000;
  const Rules rules(options);
  const std::string text = R"({"amount":100})";
  const Fingerprint plain = fingerprint(rules, {"application/json", text});
  ASSERT_NE(gzip(text, 1), gzip(text, 2)) << "the time of compression is in it";
  for (const std::string encoding : {"gzip", "GZIP", "x-gzip", "identity, gzip"}) {
    EXPECT_EQ(fingerprint(rules, {"application/json", gzip(text, 1), encoding}), plain) << encoding;
    EXPECT_EQ(fingerprint(rules, {"application/json", gzip(text, 2), encoding}), plain) << encoding;
  }
  EXPECT_EQ(fingerprint(rules, {"", gzip("{\"amount\"") + gzip(":100}"), "gzip"}), plain) << "two members";
  EXPECT_EQ(fingerprint(rules, {"", deflated(text, 15), "deflate"}), plain);
  EXPECT_EQ(fingerprint(rules, {"", gzip(deflated(text, 15)), "deflate, gzip"}), plain);
  EXPECT_NE(fingerprint(rules, {"", gzip(R"({"amount":101})", 1), "gzip"}), plain);
  for (const int level : {1, 19}) EXPECT_EQ(fingerprint(rules, {"", zstd(text, level), "zstd"}), plain);
  EXPECT_EQ(fingerprint(rules, {"", zstd("{\"amount\"", 1) + zstd(":100}", 1), "ZSTD"}), plain) << "two frames";
  EXPECT_EQ(fingerprint(rules, {"", zstd(gzip(text, 1), 1), "gzip, zstd"}), plain);
  const std::string skippable("\x5A\x2A\x4D\x18\x02\x00\x00\x00xx", 10);
  EXPECT_EQ(fingerprint(rules, {"", skippable + zstd(text) + skippable, "zstd"}), plain);
  EXPECT_EQ(fingerprint(rules, {"", zstd_stream(text, 23), "zstd"}), plain);
  Sent zipped = form("x1");
  zipped.body = gzip(zipped.body, 5);
  zipped.encoding = "gzip";
  EXPECT_EQ(fingerprint(rules, zipped), fingerprint(rules, form("x2")));

  // What cannot be inflated, or to too much, counts as bytes.
  const std::string bomb = gzip(std::string(4'001, 'a'), 1);
  EXPECT_EQ(fingerprint(rules, {"", gzip(std::string(4'000, 'a'), 1), "gzip"}),
            fingerprint(rules, {"", std::string(4'000, 'a')}));
  std::string cut = gzip(text);
  cut.pop_back();
  std::string cut_frame = zstd(text);
  cut_frame.pop_back();
  // A frame of version 0.7 with a raw block: libzstd may read it, and then knows no limit of the window (2^27 bytes).
  const std::string old_zstd("\x27\xB5\x2F\xFD\x00\x88\x40\x00\x02{}\xC0\x00\x00", 14);
  struct Case {
    std::string body;
    std::string encoding;
  };
  for (const Case& c : std::vector<Case>{{bomb, "gzip"},
                                         {cut, "gzip"},
                                         {gzip(text) + "x", "gzip"},
                                         {deflated(text, 15) + "x", "deflate"},
                                         {text, "gzip"},
                                         {zstd(std::string(4'001, 'a')), "zstd"},
                                         {cut_frame, "zstd"},
                                         {zstd(text) + "x", "zstd"},
                                         {text, "zstd"},
                                         {"", "zstd"},
                                         {zstd_stream(text, 24), "zstd"},  // Its window is too large.
                                         {old_zstd, "zstd"},
                                         {zstd(text) + old_zstd, "zstd"},
                                         {std::string("\x28\xB5\x2F", 3), "zstd"},
                                         {gzip(text), "br"},
                                         {gzip(text), "gzip, br"},
                                         {gzip(text), ""}}) {
    EXPECT_EQ(fingerprint(rules, {"", c.body, c.encoding}), fingerprint(rules, {"", c.body})) << c.encoding;
  }
}

TEST(Body, FingerprintsOfOtherBodiesAreThoseOfBefore) {
  // Records of earlier versions have them.
  const Rules rules(shared());
  EXPECT_EQ(fingerprint(rules, {"application/json", R"({"cents":5})"}).hex(),
            "2d2be802bb5786cbd98e724f8efc5d6b9ca936a41b73315ae57dadb439ebc102");
  EXPECT_EQ(fingerprint(rules, {"application/x-www-form-urlencoded", "a=1&b=2"}).hex(),
            "33bedc367a325b3a7ef821d84c84c2721c169c8ac82ffc898f6165e4cb8ff58f");
  EXPECT_EQ(fingerprint(rules, {"", ""}).hex(), "6bc68c933861fa01340ef4bac751577a06834c479f32c4b9f63a6b12a354180b");
}

TEST(Body, JsonIsComparedByMeaningIfChosen) {
  const Sent a{"application/json", R"({"a":1,"b":[1,2]})"};
  const Sent b{"application/json", "{ \"b\": [1.0, 2],\n\"a\": 1 }"};
  EXPECT_NE(fingerprint(Rules(shared()), a), fingerprint(Rules(shared()), b));
  Options options = shared();
  options.compare_json = true;
  const Rules rules(options);
  EXPECT_EQ(fingerprint(rules, a), fingerprint(rules, b));
  EXPECT_NE(fingerprint(rules, a), fingerprint(rules, {"application/json", R"({"a":1,"b":[2,1]})"}));
  EXPECT_NE(fingerprint(rules, {"", "{\"a\":1,"}), fingerprint(rules, {"", "{\"a\":1, "})) << "not JSON: bytes";
  EXPECT_NE(fingerprint(rules, {"", R"({"a":1,"a":2})"}), fingerprint(rules, {"", R"({"a":1, "a":2})"}));
  EXPECT_NE(fingerprint(rules, {"", "9007199254740993"}), fingerprint(rules, {"", "9007199254740992"}));
  EXPECT_EQ(fingerprint(rules, form("x1")), fingerprint(rules, form("x2")));
}

TEST(Body, AnExpressionSelectsWhatIsCompared) {
  Options options = shared();
  options.fingerprint = "{event: event, id: payload.id}";
  const Rules rules(options);
  const auto hook = [](const std::string& id, const std::string& time) {
    return R"({"event":"done","payload":{"id":)" + id + R"(},"createdAt":")" + time + "\"}";
  };
  const Fingerprint first = fingerprint(rules, {"application/json", hook("17", "10:00")});
  EXPECT_EQ(fingerprint(rules, {"application/json", hook("17", "10:05")}), first);
  EXPECT_EQ(fingerprint(rules, {"application/json", gzip(hook("17", "10:06")), "gzip"}), first);
  EXPECT_NE(fingerprint(rules, {"application/json", hook("18", "10:00")}), first);
  for (const std::string body : {"", "not json", "{}", R"({"event":null})"}) {
    const Examination refused = examine(rules, {"application/json", body});
    EXPECT_EQ(refused.kind, Examination::Kind::refuse) << body;
    EXPECT_EQ(refused.answer.status, 400U);
    EXPECT_THAT(refused.answer.body, HasSubstr("body-unreadable"));
  }
  options.ignore_body = true;
  EXPECT_THROW(Rules{options}, Exception);
  options.ignore_body = false;
  options.fingerprint = "'constant'";
  EXPECT_THROW(Rules{options}, Exception);
}

TEST(Body, ValuesOfForms) {
  const MediaType pairs{.name = "application/x-www-form-urlencoded", .parameters = {}};
  EXPECT_THAT(*form_values(pairs, "a=1&b=x+y%21&a=2&c", "b"), ElementsAre("x y!"));
  EXPECT_THAT(*form_values(pairs, "a=1&b=x+y%21&a=2&c", "a"), ElementsAre("1", "2"));
  EXPECT_THAT(*form_values(pairs, "a=1&%63", "c"), ElementsAre(""));
  EXPECT_THAT(*form_values(pairs, "a=1&b=2", "d"), IsEmpty());
  EXPECT_EQ(form_values(MediaType{.name = "application/json", .parameters = {}}, "a=1", "a"), std::nullopt);
}

}  // namespace body_test
}  // namespace once::http
