#include "output/nearest.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace once::cli {

namespace {

// How many letters must be changed, added or removed (Levenshtein).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 64;  // Longer than any name, and the search takes the product of both lengths.
  if (word.size() > longest) return {};
  std::string best;
  std::size_t least = word.size() / 3 + 1;
  for (const std::string& name : known) {
    const std::size_t far = distance(word, name);
    if (far < least || (far == least && best.empty())) {
      least = far;
      best = name;
    }
  }
  return best;
}

}  // namespace once::cli
