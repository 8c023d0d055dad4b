#include <once/gate.hpp>

#include <algorithm>
#include <array>

namespace once {

namespace {

constexpr std::array<std::string_view, 6> words = {"open", "filling", "filled", "announced", "draining", "closed"};

}  // namespace

std::string_view to_string(Gate gate) noexcept { return words.at(static_cast<std::size_t>(gate)); }

std::string gate_text(const GateMark& mark) {
  return std::string(to_string(mark.gate)) + " " + mark.move + " " + mark.other;
}

std::optional<GateMark> gate_from_text(std::string_view text) {
  const std::size_t first = text.find(' ');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = text.find(' ', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto word = std::find(words.begin(), words.end(), text.substr(0, first));
  if (word == words.end()) return std::nullopt;
  return GateMark{.gate = static_cast<Gate>(word - words.begin()),
                  .move = std::string(text.substr(first + 1, second - first - 1)),
                  .other = std::string(text.substr(second + 1))};
}

std::string gate_refusal(const GateMark& mark) {
  switch (mark.gate) {
    case Gate::open:
    case Gate::filled:
    case Gate::announced:
      return {};
    case Gate::draining:
      return "once copy moves this store to " + mark.other +
             ", so no operation can begin here. Nothing was run: use that store once the move is over";
    case Gate::closed:
      return "this store has moved to " + mark.other + ". Nothing was run or written: use that store";
    case Gate::filling:
      return "this store waits for the records of " + mark.other +
             ". Nothing was run or written: use that store until once copy says that the move is over";
  }
  return {};
}

}  // namespace once
