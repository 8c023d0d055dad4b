#include <once/stores/sql.hpp>

#include "text/utf8.hpp"

namespace once::stores {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw Exception(ErrorKind::misuse, why); }

std::string rows(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " row" : " rows"); }

}  // namespace

SqlValue SqlValue::bytes(std::string_view bytes) {
  SqlValue value;
  value.value_ = Bytes{std::string(bytes)};
  return value;
}

std::size_t SqlValue::size() const noexcept {
  if (const auto* const text = std::get_if<std::string>(&value_)) return text->size();
  if (const auto* const bytes = std::get_if<Bytes>(&value_)) return bytes->bytes.size();
  return 8;
}

void SqlValue::too_large() { refuse("a parameter of a statement is above 2^63 - 1, the largest integer of SQL"); }

std::string SqlValue::checked(std::string text) {
  if (text.find('\0') != std::string::npos || !text::valid_utf8(text)) {
    refuse("a parameter of a statement is not text (UTF-8 without NUL): use SqlValue::bytes()");
  }
  return text;
}

SqlStatements& SqlStatements::add(std::string text, std::vector<SqlValue> values, SqlRows expected) {
  const std::string which = "statement " + std::to_string(entries_.size() + 1);
  if (text.find_first_not_of(" \t\r\n;") == std::string::npos) refuse(which + " is empty");
  if (text.find('\0') != std::string::npos || !text::valid_utf8(text)) {
    refuse(which + " is not text (UTF-8 without NUL)");
  }
  if (expected.least > expected.most) refuse(which + " expects a number of rows that cannot be");
  if (entries_.size() == max_statements) {
    refuse(which + " is too much: at most " + std::to_string(max_statements) + " statements commit with a result");
  }
  std::size_t sum = bytes_ + text.size();
  for (const SqlValue& value : values) sum += value.size();
  if (sum > max_bytes) {
    refuse(which + " is too much: at most " + std::to_string(max_bytes) +
           " bytes of statements and values commit with a result");
  }
  entries_.push_back({.statement = {std::move(text), std::move(values)}, .expected = expected});
  bytes_ = sum;
  return *this;
}

std::string SqlStatements::name(std::size_t n) const {
  constexpr std::size_t most = 60;
  const std::string& text = entries_.at(n).statement.text;
  std::string head = text;
  if (text.size() > most) {
    std::size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // Not within a character.
    head = text.substr(0, end) + " ...";
  }
  return "statement " + std::to_string(n + 1) + " (" + head + ")";
}

Error SqlStatements::miscounted(std::size_t n, std::uint64_t count) const {
  const SqlRows& expected = entries_.at(n).expected;
  std::string wanted = rows(expected.least);
  if (expected.least != expected.most) {
    wanted = expected.most == UINT64_MAX ? "at least " + wanted
                                         : std::to_string(expected.least) + " to " + rows(expected.most);
  }
  return {ErrorKind::unavailable, name(n) + " found " + rows(count) + " instead of " + wanted};
}

}  // namespace once::stores
