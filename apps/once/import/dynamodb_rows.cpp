// Items of a DynamoDB table of any shape, by consistent scans.
#include <algorithm>
#include <memory_resource>
#include <span>
#include <utility>

#include <once/aws/transport.hpp>
#include <once/error.hpp>
#include <once/stores/dynamodb.hpp>

#include "aws/service_error.hpp"
#include "import/rows.hpp"
#include "output/text.hpp"
#include "platform/wait.hpp"
#include "stores/open_aws.hpp"
#include "text/json.hpp"
#include "text/json_write.hpp"

namespace once::cli::importing {

namespace {

namespace json = text::json;

constexpr json::Style in_their_order{.order = nullptr};

std::span<const json::Value> elements_of(const json::Value& value) {
  return value.kind() == json::Kind::array ? value.elements() : std::span<const json::Value>();
}

// Items of one table, by consistent reads.
class Items {
 public:
  explicit Items(stores::DynamoDbOptions table)
      : table_(std::move(table)), transport_(stores::make_dynamodb_transport(table_)) {}

  [[nodiscard]] std::string name() const { return "dynamodb:" + table_.table; }
  [[nodiscard]] std::string source() const { return name() + " at " + transport_->name(); }

  // `operation`: "Scan" or "Query". `more`: the rest of its body, without the last brace. Sets `last`, the last item's
  // key as JSON: empty, if the answer is whole.
  std::vector<Row> ask(const std::string& operation, const std::string& more, std::string& last) {
    const std::string body = "{\"TableName\":" + json::quoted(table_.table) + ",\"ConsistentRead\":true" + more + "}";
    const auto reply = wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) {
      transport_->call({.operation = operation, .body = body, .repeatable = true}, std::move(done));
    });
    if (reply.error) throw Exception(reply.error->kind, name() + ": " + reply.error->message);
    std::pmr::monotonic_buffer_resource arena;
    json::Value answer;
    const bool is_json = json::try_parse(reply.body, {.exact_numbers = false}, arena, answer);
    if (!is_json || answer.kind() != json::Kind::object || reply.status != 200) refuse(operation, reply.status, answer);
    std::vector<Row> rows;
    for (const json::Value& item : elements_of(answer.member("Items"))) rows.push_back(row(item));
    const json::Value next = answer.member("LastEvaluatedKey");
    last = next.kind() == json::Kind::object ? json::written(next, in_their_order) : std::string();
    return rows;
  }

 private:
  Row row(const json::Value& item) {
    Row row{.json = {}, .name = "item " + std::to_string(++count_), .problem = {}};
    try {
      row.json = plain_item(item);
      row.binary = binary_attributes(item);
    } catch (const Exception& error) {
      if (error.kind() != ErrorKind::misuse) throw;
      row.problem = error.what();
    }
    return row;
  }

  [[noreturn]] void refuse(const std::string& operation, int status, const json::Value& answer) const {
    const std::string_view type = answer.member("__type").string_or_empty();
    std::string_view message = answer.member("message").string_or_empty();
    if (message.empty()) message = answer.member("Message").string_or_empty();
    const std::string_view name_of_type =
        type.substr(type.rfind('#') == std::string_view::npos ? 0 : type.rfind('#') + 1);
    const bool may_pass =
        aws::remedy_for(name_of_type, status) == aws::Remedy::slow_down || status >= 500 || status == 429;
    const std::string what = operation + " of table '" + table_.table + "' at " + transport_->name() + ": HTTP " +
                             std::to_string(status) + " " + escaped(name_of_type) + ": " + escaped(message);
    if (may_pass) throw Exception(ErrorKind::unavailable, what + ". Try again later");
    throw Exception(ErrorKind::misuse, what + ". It needs the permission dynamodb:" + operation);
  }

  const stores::DynamoDbOptions table_;
  const std::shared_ptr<aws::Transport> transport_;
  std::uint64_t count_ = 0;
};

class DynamoDbRows final : public Rows {
 public:
  explicit DynamoDbRows(const RowsOptions& options) : items_(stores::dynamodb_options(options.from)) {}

  [[nodiscard]] std::string name() const override { return items_.name(); }
  [[nodiscard]] std::string source() const override { return items_.source(); }

 private:
  void read(std::vector<Row>& rows) override {
    while (rows.empty() && !over_) {  // A page may have no item, though it is not the last one.
      rows = items_.ask("Scan", last_.empty() ? std::string() : ",\"ExclusiveStartKey\":" + last_, last_);
      over_ = last_.empty();
    }
  }

  Items items_;
  std::string last_;
  bool over_ = false;
};

stores::DynamoDbOptions within(stores::DynamoDbOptions options, Millis timeout) {
  options.operation_timeout = std::max(timeout, Millis{100});
  options.request_timeout = std::min(options.request_timeout, options.operation_timeout);
  return options;
}

// By the partition key, which is a text: DynamoDB refuses the question if it is another attribute, or no text.
class DynamoDbFinder final : public Finder {
 public:
  explicit DynamoDbFinder(const FinderOptions& options)
      : items_(within(stores::dynamodb_options(options.rows.from), options.timeout)), column_(options.column) {}

  std::vector<Row> find(const std::string& text) override {
    // https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html
    constexpr std::size_t max_key_bytes = 2'048;
    if (text.size() > max_key_bytes) throw Exception(ErrorKind::corrupt, name() + " can have no key of this length");
    std::string last;
    std::vector<Row> rows = items_.ask(
        "Query",
        ",\"KeyConditionExpression\":\"#k = :k\",\"ExpressionAttributeNames\":{\"#k\":" + json::quoted(column_) +
            "},\"ExpressionAttributeValues\":{\":k\":{\"S\":" + json::quoted(text) + "}}",
        last);
    if (!last.empty() || rows.size() > max_rows) refuse_many(name());
    return rows;
  }
  std::vector<Row> some() override {
    std::string last;
    return items_.ask("Scan", ",\"Limit\":" + std::to_string(some_rows), last);
  }
  [[nodiscard]] std::string name() const override { return items_.name(); }
  [[nodiscard]] std::string source() const override { return items_.source(); }

 private:
  Items items_;
  const std::string column_;
};

}  // namespace

std::unique_ptr<Rows> open_dynamodb_rows(const RowsOptions& options) { return std::make_unique<DynamoDbRows>(options); }

std::unique_ptr<Finder> open_dynamodb_finder(const FinderOptions& options) {
  return std::make_unique<DynamoDbFinder>(options);
}

}  // namespace once::cli::importing
