// Parameters of a statement and columns of its answer, both in PostgreSQL's binary format.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace once::stores::postgresql {

// Numbers of types in PostgreSQL's catalogue (src/include/catalog/pg_type.dat); they are the same in every server.
enum class Type : Oid { boolean = 16, bytes = 17, int8 = 20, int2 = 21, int4 = 23 };

// Filled once, on the thread that begins the operation; may be sent several times.
class Parameters {
 public:
  Parameters& int2(std::int16_t value);
  Parameters& int4(std::int32_t value);
  Parameters& int8(std::int64_t value);
  Parameters& bytes(std::string_view value);
  Parameters& null(Type type);
  // NULL if it is empty.
  Parameters& text(std::string_view value) { return value.empty() ? null(Type::bytes) : bytes(value); }

  // Writes over the first parameter, an int8 that may be NULL.
  void set_first(std::optional<std::int64_t> value);

  [[nodiscard]] int count() const noexcept { return static_cast<int>(types_.size()); }
  [[nodiscard]] const Oid* types() const noexcept { return types_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return buffer_.size(); }

  // For libpq, valid until the next call: values, lengths and formats.
  struct View {
    const char* const* values;
    const int* lengths;
    const int* formats;
  };
  [[nodiscard]] View view();

 private:
  void number(Type type, std::uint64_t value, unsigned bytes);

  std::string buffer_;
  std::vector<Oid> types_;
  std::vector<std::ptrdiff_t> starts_;  // In buffer_, or -1: NULL.
  std::vector<int> lengths_;
  std::vector<int> formats_;
  std::vector<const char*> values_;
};

struct ClearResult {
  void operator()(PGresult* result) const noexcept { PQclear(result); }
};
using ResultPtr = std::unique_ptr<PGresult, ClearResult>;

// Reads big-endian numbers of 2, 4 or 8 bytes; empty for another length.
std::optional<std::int64_t> number_of(std::string_view bytes) noexcept;

// The columns of a composite value, one after another (record_send() in src/backend/utils/adt/rowtypes.c).
class Composite {
 public:
  explicit Composite(std::string_view bytes) noexcept;

  struct Column {
    Oid type = 0;
    std::optional<std::string_view> bytes;  // Empty: NULL.
  };
  // Empty: there is none, or the value is malformed.
  std::optional<Column> next() noexcept;
  [[nodiscard]] std::int32_t columns() const noexcept { return columns_; }

 private:
  std::string_view rest_;
  std::int32_t columns_ = 0;
};

}  // namespace once::stores::postgresql
