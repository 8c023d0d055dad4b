// A user's own writes to DynamoDB that commit together with a result, by Context::commit_with() or Claim::complete():
// both are written, or neither. Even if a process dies or an answer is lost, the items change once per completed
// operation.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <once/store.hpp>

namespace once::stores {

// The parts of one TransactWriteItems besides the record
// (https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_TransactWriteItems.html). They may be in any
// tables of the store's account and region, in any order. No item may occur twice, nor the record itself. Not
// thread-safe while it is filled; afterwards any thread may use it.
//
// Each call adds one write, as the JSON object of the service's API:
//
//   items.update(R"({"TableName": "stock", "Key": {"sku": {"S": "tea"}}, "UpdateExpression": "ADD pieces :less",
//                    "ConditionExpression": "pieces >= :one",
//                    "ExpressionAttributeValues": {":less": {"N": "-1"}, ":one": {"N": "1"}}})");
//
// It throws Exception(misuse), which names the write and the place, and then adds nothing:
// - for a text that is not a JSON object, and for a malformed item or value,
// - for a member that the service does not know there, because a misspelt condition would be none,
// - for a member that is missing, has the wrong type or occurs twice,
// - above the limits.
// The service checks expressions and tables. If it refuses one, completing the claim reports declined (misuse).
//
// Put untrusted values into JSON with a library, not by joining strings.
class TransactItems final : public Companion {
 public:
  static constexpr std::size_t max_items = 99;  // The record is the hundredth.
  // Of bytes(), including the record's item.
  static constexpr std::size_t max_bytes = std::size_t{4} * 1024 * 1024;

  TransactItems& put(std::string_view json);              // TableName, Item
  TransactItems& update(std::string_view json);           // TableName, Key, UpdateExpression
  TransactItems& remove(std::string_view json);           // TableName, Key: the service's Delete
  TransactItems& condition_check(std::string_view json);  // TableName, Key, ConditionExpression

  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }  // Writes so far, at most max_items.
  // Bytes of items, keys and values, as the service counts them. The service also counts the items that it reads for an
  // update.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  // As sent: {"Put":{…}},{"Update":{…}}.
  [[nodiscard]] const std::string& json() const noexcept { return json_; }
  // "write 2 (Update in 'stock')"; n from 0 and below size().
  [[nodiscard]] const std::string& name(std::size_t n) const { return names_.at(n); }

 private:
  TransactItems& add(std::string_view kind, std::string_view json);

  std::string json_;
  std::vector<std::string> names_;
  std::size_t bytes_ = 0;
};

}  // namespace once::stores
