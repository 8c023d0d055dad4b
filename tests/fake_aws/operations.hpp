// The operations of the fake, one after another: a request in, an answer out. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <once/clock.hpp>

#include "fake_aws/fake_dynamodb.hpp"
#include "fake_aws/tables.hpp"

namespace once::testing::fake {

class Operations {
 public:
  explicit Operations(std::shared_ptr<const Clock> clock) : clock_(std::move(clock)) {}

  // Throws Refusal.
  nlohmann::json carry_out(std::string_view operation, const nlohmann::json& request);

  std::size_t expire_now(std::string_view table);
  void set_creation_steps(std::size_t steps) { creation_steps_ = steps; }
  [[nodiscard]] FakeUnits units() const noexcept { return units_; }

 private:
  using Request = const nlohmann::json&;
  using Handler = nlohmann::json (Operations::*)(Request);
  struct Write;
  struct Page;
  struct Done {  // A transaction that may be asked for again.
    std::size_t request_digest = 0;
    std::map<std::string, double> read_units;  // By table: what asking again costs.
    Time at{};
  };

  nlohmann::json create_table(Request request);
  nlohmann::json describe_table(Request request);
  nlohmann::json delete_table(Request request);
  nlohmann::json list_tables(Request request);
  nlohmann::json update_time_to_live(Request request);
  nlohmann::json describe_time_to_live(Request request);
  nlohmann::json update_continuous_backups(Request request);
  nlohmann::json describe_continuous_backups(Request request);
  nlohmann::json put_item(Request request);
  nlohmann::json get_item(Request request);
  nlohmann::json update_item(Request request);
  nlohmann::json delete_item(Request request);
  nlohmann::json query(Request request);
  nlohmann::json scan(Request request);
  nlohmann::json transact_write_items(Request request);

  Table& any_table(Request request);     // Also one that is still being created.
  Table& usable_table(Request request);  // For items.
  Write prepare(Request request, std::string_view kind);
  nlohmann::json write_one(Request request, std::string_view kind);
  nlohmann::json read_page(Page& page, Request request);

  const std::shared_ptr<const Clock> clock_;
  std::size_t creation_steps_ = 0;
  FakeUnits units_;
  std::map<std::string, Table, std::less<>> tables_;
  std::map<std::string, Done> done_;  // By ClientRequestToken.
};

}  // namespace once::testing::fake
