// A row of the PostgreSQL store's table after a manual edit or by a server that errs: reading it gives a record, which
// the store can write again, or is corrupt.
//
// The first byte says how many columns of a good row are replaced: each by a byte for the column, one for the type, one
// for the length (255: NULL) and so many bytes. With 255 as first byte, the rest is the whole row.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/error.hpp>
#include <once/record.hpp>

#include "stores/postgresql/rows.hpp"

namespace {

using namespace once::stores::postgresql;

constexpr std::array types = {Type::boolean, Type::bytes, Type::int8, Type::int2, Type::int4};

struct Column {
  Type type = Type::bytes;
  std::optional<std::string> bytes;
};

std::string big_endian(std::uint64_t value, unsigned bytes) {
  std::string out;
  for (unsigned i = bytes; i > 0; --i) out += static_cast<char>(value >> (8 * (i - 1)));
  return out;
}

// In the order of the table.
std::vector<Column> good_row() {
  const Column number{Type::int8, big_endian(1, 8)};
  const Column small{Type::int2, big_endian(0, 2)};
  const Column none{Type::bytes, std::nullopt};
  const Column null_number{Type::int8, std::nullopt};
  return {{Type::bytes, "pay#one"},
          small,   // state
          small,   // listed
          number,  // attempt
          {Type::int8, big_endian(std::uint64_t{1} << once::revision_random_bits, 8)},
          number,                                // token
          {Type::bytes, std::string(16, '\7')},  // owner
          number,                                // lease_until
          null_number,                           // expires_at
          null_number,                           // sweep_at
          number,                                // created_at
          null_number,                           // finished_at
          null_number,                           // expected_until
          {Type::int2, std::nullopt},            // on_lapse
          {Type::bytes, "fingerprint"},
          {Type::bytes, "host"},
          none,  // note
          {Type::bytes, "order-17"},
          none,  // history
          {Type::bytes, "input"},
          null_number,  // input_bytes
          {Type::bytes, "5:first,1:1,"},
          {Type::bytes, "result"},
          {Type::bytes, "text/plain"},
          small,   // placement
          none,    // location
          number,  // result_bytes
          none,    // result_sha256
          none,    // failure_code
          none};   // failure_message
}

std::string composite_of(const std::vector<Column>& row) {
  std::string out = big_endian(row.size(), 4);
  for (const Column& column : row) {
    out += big_endian(static_cast<std::uint64_t>(column.type), 4);
    out += big_endian(column.bytes ? column.bytes->size() : 0xFFFFFFFFU, 4) + column.bytes.value_or("");
  }
  return out;
}

// Empty: corrupt.
std::optional<once::Record> read(std::string_view composite) {
  try {
    return read_row(composite, "postgresql:");
  } catch (const once::Exception& e) {
    if (e.error().kind != once::ErrorKind::corrupt) std::abort();
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  if (!read(composite_of(good_row()))) std::abort();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string composite(rest);
  if (data[0] != 255) {
    std::vector<Column> row = good_row();
    for (unsigned change = 0; change < data[0] && rest.size() >= 3; ++change) {
      Column& column = row[static_cast<std::uint8_t>(rest[0]) % row.size()];
      column.type = types[static_cast<std::uint8_t>(rest[1]) % types.size()];
      const auto length = static_cast<std::uint8_t>(rest[2]);
      rest.remove_prefix(3);
      column.bytes.reset();
      if (length == 255) continue;
      column.bytes = rest.substr(0, length);
      rest.remove_prefix(std::min<std::size_t>(length, rest.size()));
    }
    composite = composite_of(row);
  }
  if (const auto record = read(composite)) {
    const once::Seen seen{record->owner, record->revision};
    if (write_parameters(Act::replace, *record, &seen, false).count() == 0) std::abort();
  }
  return 0;
}
