// What the front end for HTTP reads from outside: headers with keys, bodies with keys in them, and stored answers.
// - A key is found or refused, always the same way, has only what a key may have, and quoting it changes nothing.
// - Decoding refuses as corrupt, or gives what encodes to the very same bytes.
// - Storing an answer with any headers, and reading it back, never fails, and storing that again changes nothing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>
#include <once/frontends/http/rules.hpp>

#include "frontends/http/client_key.hpp"
#include "frontends/http/stored_answer.hpp"

namespace {

using namespace once::http;

void expect(bool what) {
  if (!what) std::abort();
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

void keys(const std::vector<std::string_view>& lines) {
  const ClientKey key = key_from_lines(lines);
  expect((key.kind == ClientKey::Kind::found) == !key.key.empty());
  expect(key.kind != ClientKey::Kind::missing);
  if (key.kind != ClientKey::Kind::found) return;
  expect(key.key.size() <= max_client_key_bytes);
  std::string quoted = "\"";
  for (const char c : key.key) {
    expect(c >= 0x20 && c <= 0x7E);
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  quoted += '"';
  std::vector<std::string_view> again = lines;
  again.push_back(quoted);
  expect(key_from_lines(again) == key);
}

void stored(std::string_view bytes) {
  try {
    expect(to_bytes(decode_answer(bytes)) == bytes);
  } catch (const once::Exception& error) {
    expect(error.kind() == once::ErrorKind::corrupt);
  }
}

void answers(const std::vector<std::string_view>& lines, std::string_view body) {
  Answer answer;
  answer.status = 200;
  answer.reason = lines[0];
  for (const std::string_view line : lines) {
    const auto colon = line.find(':');
    answer.headers.push_back(
        {std::string(line.substr(0, colon)),
         std::string(colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1))});
  }
  answer.body = body;
  const std::string bytes = encode_answer(answer, body.size() + 100).bytes;
  const StoredAnswer kept = decode_answer(bytes);
  expect(to_bytes(kept) == bytes);
  expect(kept.dropped_bytes || kept.answer.body == body);
  if (!kept.dropped_bytes)
    expect(decode_answer(encode_answer(kept.answer, ~std::size_t{0}).bytes).answer == kept.answer);
}

void requests(const std::vector<std::string_view>& lines, std::string_view body) {
  static const Rules by_header{[] {
    Options options{.principal = Principal::header("Authorization")};
    options.max_body_bytes = 1000;
    return options;
  }()};
  static const Rules by_field{[] {
    Options options{.principal = Principal::shared()};
    options.key_field = "id";
    return options;
  }()};
  Request request{.method = "POST", .target = lines[0], .headers = {}, .body = body};
  for (const std::string_view line : lines) {
    const auto colon = line.find(':');
    request.headers.push_back(
        {line.substr(0, colon), colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1)});
  }
  for (const Rules* rules : {&by_header, &by_field}) {
    const Examination head = rules->examine_head(request);
    const Examination whole = rules->examine(request);
    expect(head.kind != Examination::Kind::pass && whole.kind != Examination::Kind::pass);
    expect((whole.kind == Examination::Kind::operation) == whole.operation.has_value());
    if (whole.operation) expect(whole.operation->key.stored().size() <= once::max_key_bytes);
    // What the head gives away is final, but for what a wrong Content-Length says.
    if (head.kind == Examination::Kind::no_key) expect(whole.kind == head.kind);
    if (head.kind == Examination::Kind::refuse && head.answer.status == 400) expect(whole.answer == head.answer);
  }
}

}  // namespace

// Lines up to the first empty one, then a body.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto empty = bytes.find("\n\n");
  const std::string_view body = empty == std::string_view::npos ? std::string_view() : bytes.substr(empty + 2);
  const std::vector<std::string_view> lines = split(bytes.substr(0, empty), '\n');
  keys(lines);
  stored(bytes);
  answers(lines, body);
  requests(lines, body);
  return 0;
}
