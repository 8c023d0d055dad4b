// Any bytes as an answer of DynamoDB, and its items as records in each format.
//
// Besides not crashing: an answer or an item is refused as corrupt; an item that is read as JSON is written as JSON
// that is read as the same; and a record that is read from an item is refused as misuse, or written as an item that is
// read as the same record, under the same key.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <once/stores/dynamodb.hpp>

#include "stores/dynamodb/item.hpp"
#include "stores/dynamodb/item_format.hpp"

namespace {

using namespace once::stores::dynamodb;
using once::Error;
using once::ErrorKind;
using once::Record;
using once::stores::DynamoDbDialect;
using once::stores::DynamoDbOptions;

void need(bool condition) {
  if (!condition) std::abort();
}

const ItemFormat& format_of(std::uint8_t which) {
  static const std::array formats = {
      make_native_format({.table = "t"}),
      make_native_format({.table = "t", .sort_key = "sk", .partition_value = "idempotency#f"}),
      make_powertools_format({.table = "t", .dialect = DynamoDbDialect::powertools_python}),
      make_powertools_format({.table = "t", .dialect = DynamoDbDialect::powertools_typescript}),
      make_powertools_format({.table = "t", .dialect = DynamoDbDialect::powertools_java}),
      make_powertools_format({.table = "t", .dialect = DynamoDbDialect::powertools_dotnet}),
  };
  return *formats[which % formats.size()];
}

// Empty: refused.
std::optional<Record> written_and_read(const ItemFormat& format, const Record& record) {
  const auto encoded = format.encode(record);
  if (const Error* error = std::get_if<Error>(&encoded)) {
    need(error->kind == ErrorKind::misuse);
    return std::nullopt;
  }
  const auto same = format.decode(std::get<Item>(encoded));
  need(std::holds_alternative<Record>(same));
  return std::get<Record>(same);
}

void try_item(const Item& item, const ItemFormat& format) {
  std::string json;
  append_json(json, item);
  const auto again = item_from_json(json);
  need(std::holds_alternative<Item>(again) && std::get<Item>(again) == item);
  item_bytes(item);

  const auto key = format.key_of(item);
  if (const Error* error = std::get_if<Error>(&key)) need(error->kind == ErrorKind::corrupt);
  const auto decoded = format.decode(item);
  if (const Error* error = std::get_if<Error>(&decoded)) {
    need(error->kind == ErrorKind::corrupt);
    return;
  }
  const auto& record = std::get<Record>(decoded);
  need(std::get<std::string>(key) == record.key);
  const auto first = written_and_read(format, record);
  if (!first) return;
  need(first->key == record.key && first->state == record.state);
  // What another library wrote becomes a record of ours, and its JSON is written as that library writes it: once.
  const auto second = written_and_read(format, *first);
  need(second && *second == *first);
}

}  // namespace

// The first byte chooses the format.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ItemFormat& format = format_of(data[0]);
  const auto read = answer_from_json({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (const Error* error = std::get_if<Error>(&read)) {
    need(error->kind == ErrorKind::corrupt);
    return 0;
  }
  const auto& answer = std::get<ServiceAnswer>(read);
  if (answer.item) try_item(*answer.item, format);
  if (answer.attributes) try_item(*answer.attributes, format);
  for (const Item& item : answer.items) try_item(item, format);
  for (const auto& reason : answer.reasons) {
    if (reason.item) try_item(*reason.item, format);
  }
  return 0;
}
