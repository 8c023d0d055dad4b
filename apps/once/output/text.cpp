#include "output/text.hpp"

#include <algorithm>
#include <string_view>

namespace once::cli {

std::string Table::take() {
  const auto width = [](std::string_view cell) {  // In characters: UTF-8 continuation bytes take no room.
    return static_cast<std::size_t>(
        std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  for (const auto& row : rows_) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], width(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(widths_[i] - width(row[i]) + 2, ' ');
    }
    out += '\n';
  }
  rows_.clear();
  return out;
}

}  // namespace once::cli
