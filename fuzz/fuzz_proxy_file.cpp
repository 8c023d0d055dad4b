// Any file of `once proxy`.
// - It is read, or complaints say where; no place is outside the text.
// - What it comes to, printed and read again, comes to the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "settings/proxy_check.hpp"
#include "settings/proxy_file.hpp"

namespace {

using namespace once::cli;

void expect(bool what) {
  if (!what) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<Complaint> complaints;
  const ProxyFile file = parse_proxy_file("p.toml", text, complaints);
  expect(file.read || complaints.size() == 1);
  const Given somebody{{"no-principal", {.words = {"true"}, .place = {}}}};  // Else nothing would be right.
  if (file.read) settle(merged(somebody, file.settings), file.routes, complaints);
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n')) + 1;
  for (const Complaint& complaint : complaints) {
    expect(complaint.place.line <= lines && complaint.place.column <= size + 1);
    expect(!complaint.text.empty());
  }
  if (!complaints.empty()) return 0;
  const std::string printed = settings_text(file.settings, file.routes);
  const ProxyFile again = parse_proxy_file("printed.toml", printed, complaints);
  expect(complaints.empty());
  expect(settings_text(again.settings, again.routes) == printed);
  return 0;
}
