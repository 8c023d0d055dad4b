#include "stores/postgresql/parameters.hpp"

namespace once::stores::postgresql {

namespace {

constexpr int binary = 1;

std::uint64_t unsigned_of(std::string_view bytes) noexcept {
  std::uint64_t value = 0;
  for (const char c : bytes) value = value << 8U | static_cast<unsigned char>(c);
  return value;
}

}  // namespace

void Parameters::number(Type type, std::uint64_t value, unsigned bytes) {
  types_.push_back(static_cast<Oid>(type));
  starts_.push_back(static_cast<std::ptrdiff_t>(buffer_.size()));
  lengths_.push_back(static_cast<int>(bytes));
  for (unsigned at = bytes; at-- > 0;) buffer_.push_back(static_cast<char>(value >> (8U * at) & 0xFFU));
}

Parameters& Parameters::int2(std::int16_t value) {
  number(Type::int2, static_cast<std::uint16_t>(value), 2);
  return *this;
}
Parameters& Parameters::int4(std::int32_t value) {
  number(Type::int4, static_cast<std::uint32_t>(value), 4);
  return *this;
}
Parameters& Parameters::int8(std::int64_t value) {
  number(Type::int8, static_cast<std::uint64_t>(value), 8);
  return *this;
}

Parameters& Parameters::bytes(std::string_view value) {
  types_.push_back(static_cast<Oid>(Type::bytes));
  starts_.push_back(static_cast<std::ptrdiff_t>(buffer_.size()));
  lengths_.push_back(static_cast<int>(value.size()));
  buffer_.append(value);
  return *this;
}

Parameters& Parameters::null(Type type) {
  types_.push_back(static_cast<Oid>(type));
  starts_.push_back(-1);
  lengths_.push_back(0);
  return *this;
}

void Parameters::set_first(std::optional<std::int64_t> value) {
  if (!value) {
    starts_.at(0) = -1;
    lengths_.at(0) = 0;
    return;
  }
  // At the end of the buffer, where it does not move the others.
  Parameters alone;
  alone.int8(*value);
  starts_.at(0) = static_cast<std::ptrdiff_t>(buffer_.size());
  lengths_.at(0) = 8;
  buffer_ += alone.buffer_;
}

Parameters::View Parameters::view() {
  values_.clear();
  for (const std::ptrdiff_t start : starts_) values_.push_back(start < 0 ? nullptr : buffer_.data() + start);
  formats_.assign(types_.size(), binary);
  return {values_.data(), lengths_.data(), formats_.data()};
}

std::optional<std::int64_t> number_of(std::string_view bytes) noexcept {
  switch (bytes.size()) {
    case 2:
      return static_cast<std::int16_t>(unsigned_of(bytes));
    case 4:
      return static_cast<std::int32_t>(unsigned_of(bytes));
    case 8:
      return static_cast<std::int64_t>(unsigned_of(bytes));
    default:
      return std::nullopt;
  }
}

Composite::Composite(std::string_view bytes) noexcept {
  if (bytes.size() < 4) return;
  columns_ = static_cast<std::int32_t>(unsigned_of(bytes.substr(0, 4)));
  rest_ = bytes.substr(4);
}

std::optional<Composite::Column> Composite::next() noexcept {
  if (rest_.size() < 8) return std::nullopt;
  Column column;
  column.type = static_cast<Oid>(unsigned_of(rest_.substr(0, 4)));
  const auto length = static_cast<std::int32_t>(unsigned_of(rest_.substr(4, 4)));
  rest_.remove_prefix(8);
  if (length < 0) return column;
  if (static_cast<std::size_t>(length) > rest_.size()) return std::nullopt;
  column.bytes = rest_.substr(0, static_cast<std::size_t>(length));
  rest_.remove_prefix(static_cast<std::size_t>(length));
  return column;
}

}  // namespace once::stores::postgresql
