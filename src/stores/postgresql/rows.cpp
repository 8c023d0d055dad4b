#include "stores/postgresql/rows.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "stores/postgresql/schema_sql.hpp"
#include "text/ascii.hpp"
#include "text/netstring.hpp"

namespace once::stores::postgresql {

namespace {

std::string_view view_of(const Owner& owner) noexcept {
  return {reinterpret_cast<const char*>(owner.bytes.data()), owner.bytes.size()};
}
std::string_view view_of(const Sha256& digest) noexcept {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

void add_time(Parameters& to, Time time, Time if_null) {
  if (time == if_null) {
    to.null(Type::int8);
  } else {
    to.int8(unix_ms(time));
  }
}
void add_count(Parameters& to, std::uint64_t count) {
  if (count == 0) {
    to.null(Type::int8);
  } else {
    to.int8(static_cast<std::int64_t>(count));
  }
}

void add_condition(Parameters& to, Act act, const Seen* seen) {
  to.null(Type::int8).int2(static_cast<std::int16_t>(act));
  if (seen == nullptr) {
    to.null(Type::bytes).null(Type::int8);
  } else {
    to.bytes(view_of(seen->owner)).int8(static_cast<std::int64_t>(seen->revision));
  }
}

constexpr std::size_t write_parameter_count = 33;  // Of write_1.

// The columns of the table, in its order. Later versions append to them.
enum Column : std::size_t {
  c_key,
  c_state,
  c_listed,
  c_attempt,
  c_revision,
  c_token,
  c_owner,
  c_lease_until,
  c_expires_at,
  c_sweep_at,
  c_created_at,
  c_finished_at,
  c_expected_until,
  c_on_lapse,
  c_fingerprint,
  c_holder,
  c_note,
  c_label,
  c_history,
  c_input,
  c_input_bytes,
  c_steps,
  c_result,
  c_content_type,
  c_placement,
  c_location,
  c_result_bytes,
  c_result_sha256,
  c_failure_code,
  c_failure_message,
  column_count,
};

struct Row {
  std::array<Composite::Column, column_count> columns;
  const std::string& store;

  [[noreturn]] void fail(const char* column) const {
    const Composite::Column& key = columns[c_key];
    throw Exception(ErrorKind::corrupt, store + ": the row of the key '" +
                                            text::printable(key.bytes.value_or(std::string_view())) +
                                            "' has a malformed " + column + ": repair or delete that row");
  }
  [[nodiscard]] std::optional<std::int64_t> number(std::size_t at, const char* name) const {
    const Composite::Column& column = columns[at];
    if (!column.bytes) return std::nullopt;
    const auto value = number_of(*column.bytes);
    const auto type = static_cast<Type>(column.type);
    if (!value || (type != Type::int8 && type != Type::int4 && type != Type::int2)) fail(name);
    return value;
  }
  [[nodiscard]] std::int64_t number(std::size_t at, const char* name, std::int64_t low, std::int64_t high) const {
    const auto value = number(at, name);
    if (!value || *value < low || *value > high) fail(name);
    return *value;
  }
  [[nodiscard]] std::uint64_t count(std::size_t at, const char* name) const {
    const auto value = number(at, name);
    if (value && *value < 0) fail(name);
    return static_cast<std::uint64_t>(value.value_or(0));
  }
  [[nodiscard]] Time time(std::size_t at, const char* name, Time if_null) const {
    const auto value = number(at, name);
    return value ? Time(Millis(*value)) : if_null;
  }
  [[nodiscard]] std::string_view bytes(std::size_t at, const char* name) const {
    const Composite::Column& column = columns[at];
    if (!column.bytes) return {};
    if (static_cast<Type>(column.type) != Type::bytes) fail(name);
    return *column.bytes;
  }
};

}  // namespace

Parameters write_parameters(Act act, const Record& record, const Seen* seen, bool clear_allowed) {
  constexpr std::size_t numbers = 160;  // All that are no texts.
  Parameters to(write_parameter_count, numbers + record.key.size() + record.holder.size() + record.result.bytes.size());
  add_condition(to, act, seen);
  to.bytes(record.key)
      .int2(static_cast<std::int16_t>(record.state))
      .int8(record.attempt)
      .int8(static_cast<std::int64_t>(record.revision))
      .int8(static_cast<std::int64_t>(record.token))
      .bytes(view_of(record.owner));
  add_time(to, record.lease_until, Time{});
  add_time(to, record.expires_at, never);
  to.int8(unix_ms(record.created_at));
  add_time(to, record.finished_at, Time{});
  add_time(to, record.expected_until, Time{});
  if (record.on_lapse == OnLapse::takeover) {
    to.null(Type::int2);
  } else {
    to.int2(static_cast<std::int16_t>(record.on_lapse));
  }
  to.text(record.fingerprint.bytes()).text(record.holder).text(record.note).text(record.label);
  to.text(history_text(record.history)).text(record.input);
  add_count(to, record.input_bytes);
  std::string steps;
  for (const Step& step : record.steps) {
    text::append_netstring(steps, step.name);
    text::append_netstring(steps, step.result);
  }
  const Result& result = record.result;
  to.text(steps).text(result.bytes).text(result.content_type);
  if (result.placement == Placement::inlined) {
    to.null(Type::int2);
  } else {
    to.int2(static_cast<std::int16_t>(result.placement));
  }
  to.text(result.location);
  add_count(to, result.size);
  to.text(result.digest == Sha256{} ? std::string_view() : view_of(result.digest));
  to.text(record.failure.code).text(record.failure.message).boolean(clear_allowed);
  return to;
}

Parameters remove_parameters(std::string_view key, const Seen& seen) {
  Parameters to(write_parameter_count, 64 + key.size());
  add_condition(to, Act::remove, &seen);
  to.bytes(key);
  // The rest of write_1, in its order.
  constexpr std::array rest = {Type::int2,  Type::int8,  Type::int8,  Type::int8,   Type::bytes, Type::int8,
                               Type::int8,  Type::int8,  Type::int8,  Type::int8,   Type::int2,  Type::bytes,
                               Type::bytes, Type::bytes, Type::bytes, Type::bytes,  Type::bytes, Type::int8,
                               Type::bytes, Type::bytes, Type::bytes, Type::int2,   Type::bytes, Type::int8,
                               Type::bytes, Type::bytes, Type::bytes, Type::boolean};
  for (const Type type : rest) to.null(type);
  return to;
}

SqlStatement finish_statement(const Record& record, std::string_view schema) {
  const auto bytes = [](std::string_view value) { return value.empty() ? SqlValue() : SqlValue::bytes(value); };
  const auto number = [](auto value, bool is_there) {
    return is_there ? SqlValue(static_cast<std::int64_t>(value)) : SqlValue();
  };
  constexpr std::uint64_t random_bits = (std::uint64_t{1} << revision_random_bits) - 1;
  static_assert(revision_random_bits == 20, "finish_1 says so");
  const Result& result = record.result;
  const bool expires = record.expires_at != never;
  return {finish_call(schema),
          {SqlValue::bytes(record.key), SqlValue::bytes(view_of(record.owner)), record.revision & random_bits,
           number(expires ? unix_ms(record.expires_at) : 0, expires), unix_ms(record.finished_at), bytes(result.bytes),
           bytes(result.content_type), number(result.placement, result.placement != Placement::inlined),
           bytes(result.location), number(result.size, result.size != 0),
           bytes(result.digest == Sha256{} ? std::string_view() : view_of(result.digest))}};
}

Record read_row(std::string_view composite, const std::string& store) {
  constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
  Row row{.columns = {}, .store = store};
  Composite reader(composite);
  for (Composite::Column& column : row.columns) {
    const auto next = reader.next();
    if (!next) row.fail("set of columns");
    column = *next;
  }
  Record record;
  record.key = row.bytes(c_key, "key");
  if (record.key.empty()) row.fail("key");
  record.state = static_cast<State>(row.number(c_state, "state", 0, 3));
  record.attempt =
      static_cast<std::uint32_t>(row.number(c_attempt, "attempt", 0, std::numeric_limits<std::uint32_t>::max()));
  record.revision = static_cast<std::uint64_t>(row.number(c_revision, "revision", 0, max));
  if (!is_revision(record.revision)) row.fail("revision");
  record.token = static_cast<std::uint64_t>(row.number(c_token, "token", 0, max));
  const std::string_view owner = row.bytes(c_owner, "owner");
  if (owner.size() != record.owner.bytes.size()) row.fail("owner");
  std::memcpy(record.owner.bytes.data(), owner.data(), owner.size());
  record.lease_until = row.time(c_lease_until, "lease_until_ms", Time{});
  record.expires_at = row.time(c_expires_at, "expires_at_ms", never);
  record.created_at = Time(Millis(row.number(c_created_at, "created_at_ms", -max - 1, max)));
  record.finished_at = row.time(c_finished_at, "finished_at_ms", Time{});
  record.expected_until = row.time(c_expected_until, "expected_until_ms", Time{});
  if (row.columns[c_on_lapse].bytes) {
    record.on_lapse = static_cast<OnLapse>(row.number(c_on_lapse, "on_lapse", 0, 1));
  }
  const std::string_view fingerprint = row.bytes(c_fingerprint, "fingerprint");
  if (fingerprint.size() > Fingerprint::max_bytes) row.fail("fingerprint");
  record.fingerprint = Fingerprint(fingerprint);
  record.holder = row.bytes(c_holder, "holder");
  record.note = row.bytes(c_note, "note");
  record.label = row.bytes(c_label, "label");
  auto history = history_from_text(row.bytes(c_history, "history"));
  if (!history) row.fail("history");
  record.history = *std::move(history);
  record.input = row.bytes(c_input, "input");
  record.input_bytes = row.count(c_input_bytes, "input_bytes");
  std::string_view steps = row.bytes(c_steps, "steps");
  while (!steps.empty()) {
    const auto name = text::take_netstring(steps);
    const auto result = name ? text::take_netstring(steps) : std::nullopt;
    if (!result) row.fail("steps");
    record.steps.push_back({std::string(*name), std::string(*result)});
  }
  Result& result = record.result;
  result.bytes = row.bytes(c_result, "result");
  result.content_type = row.bytes(c_content_type, "content_type");
  if (row.columns[c_placement].bytes) {
    result.placement = static_cast<Placement>(row.number(c_placement, "placement", 0, 4));
  }
  result.location = row.bytes(c_location, "location");
  result.size = row.count(c_result_bytes, "result_bytes");
  const std::string_view digest = row.bytes(c_result_sha256, "result_sha256");
  if (!digest.empty()) {
    if (digest.size() != result.digest.size()) row.fail("result_sha256");
    std::memcpy(result.digest.data(), digest.data(), digest.size());
  }
  record.failure.code = row.bytes(c_failure_code, "failure_code");
  record.failure.message = row.bytes(c_failure_message, "failure_message");
  return record;
}

}  // namespace once::stores::postgresql
