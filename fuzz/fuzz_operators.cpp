// Any request to the operators' API, with and without a session of the console.
//
// Besides not crashing: no request is an error of the program; what is not JSON has another type or no body; a refusal
// is a problem that says its status, or, for a file of the console, a text.
//
// "METHOD TARGET", lines of headers, an empty line, the body. Lines end with a line feed. {tag} in a header is the ETag
// of the record "pay#one", and {half} and {cookie} are a session's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/key.hpp>
#include <once/platform/blocking.hpp>
#include <once/stores/memory.hpp>

#include "operators/admin_token.hpp"
#include "operators/console.hpp"
#include "operators/operators.hpp"

namespace {

using once::operators::AdminToken;
using once::operators::Console;
using once::operators::Operators;

void need(bool condition) {
  if (!condition) std::abort();
}

once::Record record_of(const char* name, once::State state) {
  once::Record record;
  record.key = once::Key("pay", name).stored();
  record.state = state;
  record.owner.bytes.fill(7);
  record.token = record.attempt = 1;
  record.revision = once::next_revision(0, 0);
  record.created_at = record.finished_at = record.lease_until = once::Time{std::chrono::hours(1)};
  record.label = "order-17";
  record.input = "input";
  record.result = once::Result::inlined("{\"charge\":1}", "application/json");
  return record;
}

std::string_view take_line(std::string_view& rest) {
  const auto end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return line;
}

std::string with(std::string text, std::string_view name, std::string_view value) {
  const auto at = text.find(name);
  return at == std::string::npos ? text : text.replace(at, name.size(), value);
}

// What a browser gets for a link: the cookie and the other half.
std::pair<std::string, std::string> session_of(Console& console) {
  const std::string link = console.new_link({.name = "alice"});
  const std::string body = R"({"link":")" + link + R"("})";
  const auto answer = console.answer(
      {.method = "POST",
       .target = "/v1/session",
       .headers = {{"Host", "127.0.0.1:9100"}, {"Content-Type", "application/json"}, {"Sec-Fetch-Site", "same-origin"}},
       .body = body,
       .principal = {}});
  need(answer && answer->status == 200);
  const std::string& cookie = *once::http::find_header(answer->headers, "Set-Cookie");
  return {cookie.substr(0, cookie.find(';')), nlohmann::json::parse(answer->body)["half"]};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static AdminToken no_token("", "--admin-token-file");
  const std::shared_ptr<once::Store> store = once::stores::make_memory_store();
  const once::Record one = record_of("one", once::State::unknown);
  for (const once::Record& record : {one, record_of("two", once::State::completed)}) {
    need(once::blocking::insert(*store, record).status == once::AnswerStatus::done);
  }
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const bool by_links = rest.find("{cookie}") != std::string_view::npos;  // Then programs are refused.
  Console console(no_token, {.by_links = by_links});
  const auto [cookie, half] = by_links ? session_of(console) : std::pair<std::string, std::string>();
  const Operators operators({.url = "memory:", .store = store}, no_token, {}, &console);

  const std::string_view first = take_line(rest);
  const auto space = first.find(' ');
  if (space == std::string_view::npos) return 0;
  const std::string tag = '"' + one.owner.hex() + '-' + std::to_string(one.revision) + '"';
  std::vector<std::string> lines;
  for (std::string_view line = take_line(rest); !line.empty(); line = take_line(rest)) {
    lines.push_back(with(with(with(std::string(line), "{tag}", tag), "{half}", half), "{cookie}", cookie));
  }
  once::http::Request request{.method = first.substr(0, space),
                              .target = first.substr(space + 1),
                              .headers = {},
                              .body = rest,
                              .principal = {}};
  for (const std::string_view line : lines) {
    const auto colon = line.find(": ");
    if (colon != std::string_view::npos) request.headers.push_back({line.substr(0, colon), line.substr(colon + 2)});
  }

  const once::http::Answer answer = operators.answer(request);
  need(answer.status >= 200 && answer.status < 500);
  const std::string* type = once::http::find_header(answer.headers, "Content-Type");
  if (type != nullptr && type->ends_with("json")) need(nlohmann::json::accept(answer.body));
  const bool text = request.target.starts_with("/console/") && type != nullptr && type->starts_with("text/plain");
  if (answer.status >= 400 && !text) need(nlohmann::json::parse(answer.body)["status"] == answer.status);
  return 0;
}
