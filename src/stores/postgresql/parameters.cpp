#include "stores/postgresql/parameters.hpp"

#include <array>

namespace once::stores::postgresql {

namespace {

std::uint64_t unsigned_of(std::string_view bytes) noexcept {
  std::uint64_t value = 0;
  for (const char c : bytes) value = value << 8U | static_cast<unsigned char>(c);
  return value;
}

}  // namespace

void Parameters::append_number(std::uint64_t value, unsigned bytes) {
  std::array<char, 8> big_endian{};
  value <<= 64 - 8 * bytes;
  for (std::size_t at = 0; at < big_endian.size(); ++at) big_endian[at] = static_cast<char>(value >> (56 - 8 * at));
  buffer_.append(big_endian.data(), bytes);
}

// Of the next `bytes` of the buffer.
void Parameters::add(Type type, std::size_t bytes) {
  items_.push_back({.type = static_cast<Oid>(type),
                    .length = static_cast<int>(bytes),
                    .start = static_cast<std::ptrdiff_t>(buffer_.size())});
}

void Parameters::number(Type type, std::uint64_t value, unsigned bytes) {
  add(type, bytes);
  append_number(value, bytes);
}

Parameters& Parameters::boolean(bool value) {
  number(Type::boolean, value ? 1U : 0U, 1);
  return *this;
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
  add(Type::bytes, value.size());
  buffer_.append(value);
  return *this;
}

Parameters& Parameters::null(Type type) {
  items_.push_back({.type = static_cast<Oid>(type), .length = 0, .start = -1});
  return *this;
}

void Parameters::set_first(std::optional<std::int64_t> value) {
  Item& first = items_.at(0);
  first.length = 0;
  first.start = -1;
  if (!value) return;
  // At the end of the buffer, where it does not move the others.
  first.length = 8;
  first.start = static_cast<std::ptrdiff_t>(buffer_.size());
  append_number(static_cast<std::uint64_t>(*value), 8);
}

std::vector<SqlValue> Parameters::values() const {
  std::vector<SqlValue> out;
  out.reserve(items_.size());
  for (const Item& item : items_) {
    if (item.start < 0) {
      out.emplace_back();
      continue;
    }
    const std::string_view value(buffer_.data() + item.start, static_cast<std::size_t>(item.length));
    switch (static_cast<Type>(item.type)) {
      case Type::bytes:
        out.push_back(SqlValue::bytes(value));
        break;
      case Type::boolean:
        out.emplace_back(value.front() != 0 ? "t" : "f");
        break;
      case Type::int2:
      case Type::int4:
      case Type::int8:
        out.emplace_back(number_of(value).value_or(0));
        break;
    }
  }
  return out;
}

void Parameters::View::show(const Parameters& of) {
  const std::size_t count = of.items_.size();
  types_.resize(count);
  values_.resize(count);
  lengths_.resize(count);
  formats_.resize(count, binary_format);
  for (std::size_t at = 0; at < count; ++at) {
    const Item& item = of.items_[at];
    types_[at] = item.type;
    values_[at] = item.start < 0 ? nullptr : of.buffer_.data() + item.start;
    lengths_[at] = item.length;
  }
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
