#include <once/record.hpp>

#include <once/fingerprint.hpp>
#include <once/offload.hpp>
#include <once/store.hpp>

#include "text/ascii.hpp"
#include "text/hex.hpp"
#include "text/netstring.hpp"

namespace once {

std::string_view to_string(State state) noexcept {
  switch (state) {
    case State::in_progress:
      return "in_progress";
    case State::completed:
      return "completed";
    case State::failed:
      return "failed";
    case State::unknown:
      return "unknown";
  }
  return "?";
}

std::optional<State> state_from_string(std::string_view name) {
  for (const State state : {State::in_progress, State::completed, State::failed, State::unknown}) {
    if (name == to_string(state)) return state;
  }
  return std::nullopt;
}

std::string_view to_string(Placement placement) noexcept {
  switch (placement) {
    case Placement::inlined:
      return "inlined";
    case Placement::offloaded:
      return "offloaded";
    case Placement::dropped:
      return "dropped";
    case Placement::compressed:
      return "compressed";
    case Placement::sealed:
      return "sealed";
  }
  return "?";
}

std::string_view to_string(OnLapse on_lapse) noexcept {
  switch (on_lapse) {
    case OnLapse::takeover:
      return "takeover";
    case OnLapse::hold:
      return "hold";
  }
  return "?";
}

std::optional<OnLapse> on_lapse_from_string(std::string_view name) {
  for (const OnLapse on_lapse : {OnLapse::takeover, OnLapse::hold}) {
    if (name == to_string(on_lapse)) return on_lapse;
  }
  return std::nullopt;
}

std::uint64_t next_revision(std::uint64_t before, std::uint32_t random) noexcept {
  constexpr std::uint64_t mask = (std::uint64_t{1} << revision_random_bits) - 1;
  return (revision_count(before) + 1) << revision_random_bits | (random & mask);
}

std::string Owner::hex() const { return to_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}); }

std::optional<Owner> Owner::from_hex(std::string_view hex) {
  Owner owner;
  if (hex.size() != 2 * owner.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < owner.bytes.size(); ++i) {
    const int byte = text::hex_byte_at(hex, 2 * i);
    if (byte < 0) return std::nullopt;
    owner.bytes[i] = static_cast<std::uint8_t>(byte);
  }
  return owner;
}

Error sealed_error(const Record& record) {
  constexpr std::size_t longest_id = 64;  // SealKey::max_id_bytes. Whoever writes to the store chooses these bytes.
  std::string_view sealed = record.result.bytes;
  const auto id = text::take_netstring(sealed);
  return {ErrorKind::misuse, "the record '" + text::printable(record.key) + "' is sealed with the key '" +
                                 text::printable(id.value_or("").substr(0, longest_id)) +
                                 "', which this program does not have: give it the key, as seal=FILE in the store's "
                                 "URL or by once::seal()"};
}

std::optional<Error> check_offloaded(const Result& result, std::string_view bytes) {
  if (bytes.size() == result.size && sha256(bytes) == result.digest) return std::nullopt;
  return Error{ErrorKind::corrupt, "the result at " + result.location +
                                       " is not the one that was kept there: " + std::to_string(bytes.size()) +
                                       " bytes instead of " + std::to_string(result.size) + ", or other ones"};
}

std::size_t history_bytes(const History& history) noexcept {
  std::size_t sum = history.trace.empty() ? 0 : History::trace_bytes;
  for (const HistoryEntry& entry : history.entries) {
    sum += 64 + entry.what.size() + entry.who.size() + entry.why.size();
    if (!entry.trace.empty()) sum += History::trace_bytes;
    if (entry.revision != 0) sum += History::revision_bytes;
  }
  return sum;
}

std::size_t record_bytes(const Record& record) noexcept {
  std::size_t sum = 256 + record.key.size() + record.holder.size() + record.note.size();
  sum += record.label.size() + record.input.size() + history_bytes(record.history);
  for (const Step& step : record.steps) sum += step.name.size() + step.result.size();
  sum += record.result.bytes.size() + record.result.content_type.size() + record.result.location.size();
  return sum + record.failure.code.size() + record.failure.message.size();
}

}  // namespace once
