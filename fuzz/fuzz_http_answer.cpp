// Any HTTP answer, in one piece and in many: read the same way, within its limits, without a crash. What it says about
// an error is read, too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "aws/http_reader.hpp"
#include "aws/service_error.hpp"

using once::aws::HttpAnswer;
using once::aws::HttpReader;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = data[0] % 32 + 1U;  // The first byte says how the rest is cut.
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::size_t most = 300;

  HttpReader whole(most, most);
  whole.begin();
  whole.feed(text);
  whole.end();
  HttpReader pieces(most, most);
  pieces.begin();
  for (std::size_t at = 0; at < text.size(); at += step) pieces.feed(text.substr(at, step));
  pieces.end();

  if (whole.status() != pieces.status() || whole.problem() != pieces.problem()) std::abort();
  if (whole.status() != HttpReader::Status::done) return 0;
  const HttpAnswer one = whole.take();
  const HttpAnswer other = pieces.take();
  if (one.status != other.status || one.body != other.body || one.headers != other.headers) std::abort();
  if (one.body.size() > most) std::abort();
  once::aws::parse_http_date(one.header("date"));
  once::aws::read_service_error(one);
  return 0;
}
