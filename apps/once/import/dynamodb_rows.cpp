// Items of a DynamoDB table of any shape, by consistent scans.
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

class DynamoDbRows final : public Rows {
 public:
  explicit DynamoDbRows(const RowsOptions& options)
      : table_(stores::dynamodb_options(options.from)), transport_(stores::make_dynamodb_transport(table_)) {}

  [[nodiscard]] std::string name() const override { return "dynamodb:" + table_.table; }
  [[nodiscard]] std::string source() const override { return name() + " at " + transport_->name(); }

 private:
  void read(std::vector<Row>& rows) override {
    while (rows.empty() && !over_) rows = page();
  }

  // Maybe without an item, though it is not the last one.
  std::vector<Row> page() {
    std::string body = "{\"TableName\":" + json::quoted(table_.table) + ",\"ConsistentRead\":true";
    if (!last_.empty()) body += ",\"ExclusiveStartKey\":" + last_;
    const auto reply = wait_for<aws::Reply>([&](Callback<void(aws::Reply)> done) {
      transport_->call({.operation = "Scan", .body = body + "}", .repeatable = true}, std::move(done));
    });
    if (reply.error) throw Exception(reply.error->kind, name() + ": " + reply.error->message);
    std::pmr::monotonic_buffer_resource arena;
    json::Value answer;
    const bool is_json = json::try_parse(reply.body, {.exact_numbers = false}, arena, answer);
    if (!is_json || answer.kind() != json::Kind::object || reply.status != 200) refuse(reply.status, answer);
    std::vector<Row> rows;
    for (const json::Value& item : elements_of(answer.member("Items"))) rows.push_back(row(item));
    const json::Value last = answer.member("LastEvaluatedKey");
    last_ = last.kind() == json::Kind::object ? json::written(last, in_their_order) : std::string();
    over_ = last_.empty();
    return rows;
  }

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

  [[noreturn]] void refuse(int status, const json::Value& answer) const {
    const std::string_view type = answer.member("__type").string_or_empty();
    std::string_view message = answer.member("message").string_or_empty();
    if (message.empty()) message = answer.member("Message").string_or_empty();
    const std::string_view name_of_type =
        type.substr(type.rfind('#') == std::string_view::npos ? 0 : type.rfind('#') + 1);
    const bool may_pass =
        aws::remedy_for(name_of_type, status) == aws::Remedy::slow_down || status >= 500 || status == 429;
    if (may_pass) {
      throw Exception(ErrorKind::unavailable, "Scan of table '" + table_.table + "' at " + transport_->name() +
                                                  ": HTTP " + std::to_string(status) + " " + escaped(name_of_type) +
                                                  ": " + escaped(message) + ". Import again later");
    }
    throw Exception(ErrorKind::misuse, "Scan of table '" + table_.table + "' at " + transport_->name() + ": HTTP " +
                                           std::to_string(status) + " " + escaped(name_of_type) + ": " +
                                           escaped(message) + ". The import needs the permission dynamodb:Scan");
  }

  const stores::DynamoDbOptions table_;
  const std::shared_ptr<aws::Transport> transport_;
  std::string last_;  // The last item's key, as JSON. Empty: at the beginning, or at the end.
  std::uint64_t count_ = 0;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Rows> open_dynamodb_rows(const RowsOptions& options) { return std::make_unique<DynamoDbRows>(options); }

}  // namespace once::cli::importing
