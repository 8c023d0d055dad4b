// What a store holds, for Prometheus (docs/metrics.md) and as JSON.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include <once/operate.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "text/prometheus.hpp"

namespace once::operators {

inline constexpr std::array all_standings = {
    operate::Standing::running, operate::Standing::lapsed,  operate::Standing::released, operate::Standing::completed,
    operate::Standing::failed,  operate::Standing::unknown, operate::Standing::expired};

// As `once stats` and `once doctor` print them.
nlohmann::ordered_json counts_json(const operate::Counts& counts);

// Counts of records, together or by scope. Scopes after the first `max_scopes`, and those that are not UTF-8, are
// counted together, so that a page has a limit.
class StoreCounts {
 public:
  static constexpr std::size_t usual_scopes = 100;

  // 0: all records are counted together, under the label `scope` if that is not empty. It must be UTF-8.
  explicit StoreCounts(std::size_t max_scopes, std::string scope = {});

  void add(const Record& record, Time now);

  // All metrics of `once stats`.
  void write(text::Exposition& out, Time now) const;
  // Those of records that may need an operator: not completed, and not expired.
  void write_open(text::Exposition& out) const;

 private:
  struct Group {
    std::string scope;
    std::string_view overflow;
    operate::Counts counts;
  };
  Group& group_of(const Record& record);
  void write(text::Exposition& out, std::span<const operate::Standing> standings, bool all) const;
  void each(const std::function<void(const Group&)>& write) const;

  const std::size_t max_scopes_;
  Group together_;                                      // Without scopes.
  std::map<std::string, Group, std::less<>> by_scope_;  // By the stored key up to its '#'.
  Group others_;
};

}  // namespace once::operators
