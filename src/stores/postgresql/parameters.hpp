// Parameters of a statement and columns of its answer, both in PostgreSQL's binary format.
#pragma once

#include <libpq-fe.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/stores/sql.hpp>

namespace once::stores::postgresql {

// Numbers of types in PostgreSQL's catalogue (src/include/catalog/pg_type.dat); they are the same in every server.
enum class Type : Oid { boolean = 16, bytes = 17, int8 = 20, int2 = 21, int4 = 23 };

// Filled once, on the thread that begins the operation; may be sent several times.
class Parameters {
 public:
  Parameters() = default;
  // How many there will be, and of how many bytes; there may be more. A write has 33: without this their memory costs
  // as much as all else that the store does for it.
  Parameters(std::size_t count, std::size_t bytes) {
    items_.reserve(count);
    buffer_.reserve(bytes);
  }

  Parameters& boolean(bool value);
  Parameters& int2(std::int16_t value);
  Parameters& int4(std::int32_t value);
  Parameters& int8(std::int64_t value);
  Parameters& bytes(std::string_view value);
  Parameters& null(Type type);
  // NULL if it is empty.
  Parameters& text(std::string_view value) { return value.empty() ? null(Type::bytes) : bytes(value); }

  // Writes over the first parameter, an int8 that may be NULL.
  void set_first(std::optional<std::int64_t> value);

  // The same for a library that takes texts.
  [[nodiscard]] std::vector<SqlValue> values() const;

  [[nodiscard]] int count() const noexcept { return static_cast<int>(items_.size()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return buffer_.size(); }

  // As libpq takes them. May be used again for others: it keeps its memory.
  class View {
   public:
    View() = default;
    explicit View(const Parameters& of) { show(of); }
    // Valid until the next call, or a change of the parameters.
    void show(const Parameters& of);

    [[nodiscard]] int count() const noexcept { return static_cast<int>(values_.size()); }
    [[nodiscard]] const Oid* types() const noexcept { return types_.data(); }
    [[nodiscard]] const char* const* values() const noexcept { return values_.data(); }
    [[nodiscard]] const int* lengths() const noexcept { return lengths_.data(); }
    [[nodiscard]] const int* formats() const noexcept { return formats_.data(); }

   private:
    std::vector<Oid> types_;
    std::vector<const char*> values_;
    std::vector<int> lengths_;
    std::vector<int> formats_;
  };

 private:
  struct Item {
    Oid type;
    int length;
    std::ptrdiff_t start;  // In buffer_, or -1: NULL.
  };

  void number(Type type, std::uint64_t value, unsigned bytes);
  void append_number(std::uint64_t value, unsigned bytes);
  void add(Type type, std::size_t bytes);

  std::string buffer_;
  std::vector<Item> items_;
};

struct ClearResult {
  void operator()(PGresult* result) const noexcept { PQclear(result); }
};
using ResultPtr = std::unique_ptr<PGresult, ClearResult>;

// For libpq's parameters of results.
inline constexpr int binary_format = 1;

// The statement was executed, and this is its answer.
inline bool is_fine(const PGresult* result) noexcept {
  return PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK;
}

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
