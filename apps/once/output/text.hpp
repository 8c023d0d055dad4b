// Text for people: columns.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "operators/words.hpp"
#include "output/names.hpp"

namespace once::cli {

// Columns for people. The first row is the head.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_.size(); }  // How many rows take() would return.
  // The rows since the last call. A column is never narrower than it was before.
  std::string take();

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

}  // namespace once::cli
