// Which records to select, in words of flags and of the API.
#pragma once

#include <string>
#include <string_view>

#include <once/operate.hpp>
#include <once/time.hpp>

namespace once::operators {

struct FilterOptions {
  std::string state;
  std::string scope;
  std::string prefix;
  std::string label;
  std::string holder;
  std::string older_than;
  std::string newer_than;
  bool has_scope = false;
  bool expired = false;
  bool overdue = false;
};

bool is_empty(const FilterOptions& options) noexcept;

// The words that `state` takes, for texts.
extern const char* const state_words;

// Throws Exception(misuse) for unknown words; `dashes` is the prefix of option names in its text.
operate::Filter filter_of(const FilterOptions& options, Time now, bool raw_scopes, std::string_view dashes = "--");

}  // namespace once::operators
