#include "keys/dialects/lower_case.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "text/utf8.hpp"

namespace once::keys {

namespace {

using text::append_utf8;
using text::next_code_point;

struct LowerRun {
  char32_t first;
  char32_t last;
  std::uint32_t step;
  std::int32_t delta;
};
struct Run {
  char32_t first;
  char32_t last;
};

#include "keys/dialects/lower_case.inc"

template <class Runs>
auto run_of(const Runs& runs, char32_t c) {
  const auto* after = std::upper_bound(std::begin(runs), std::end(runs), c,
                                       [](char32_t value, const auto& run) { return value < run.first; });
  return after == std::begin(runs) || c > std::prev(after)->last ? nullptr : std::prev(after);
}

char32_t lower_of(char32_t c) {
  const auto* after = std::upper_bound(std::begin(lower_runs), std::end(lower_runs), c,
                                       [](char32_t value, const LowerRun& run) { return value < run.first; });
  if (after == std::begin(lower_runs)) return c;
  const LowerRun& run = *std::prev(after);
  if (c > run.last || (c - run.first) % run.step != 0) return c;
  return static_cast<char32_t>(static_cast<std::int32_t>(c) + run.delta);
}

}  // namespace

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  bool behind_cased = false;  // A cased letter came before, followed only by case-ignorable ones.
  while (p != end) {
    const char32_t c = next_code_point(p);
    if (c < 0x80) {
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : static_cast<char>(c);
    } else if (c == 0x130) {
      append_utf8('i', out);
      append_utf8(0x307, out);
    } else if (c == 0x3A3) {
      bool cased_follows = false;
      for (const char* q = p; q != end;) {
        const char32_t next = next_code_point(q);
        if (run_of(ignorable_runs, next) != nullptr) continue;
        cased_follows = run_of(cased_runs, next) != nullptr;
        break;
      }
      append_utf8(behind_cased && !cased_follows ? 0x3C2 : 0x3C3, out);
    } else {
      append_utf8(lower_of(c), out);
    }
    if (run_of(ignorable_runs, c) == nullptr) behind_cased = run_of(cased_runs, c) != nullptr;
  }
  return out;
}

}  // namespace once::keys
