// GET /v1/records: a page of the records that match, or of those that a text is found in. However many records a store
// has, one request reads a bounded number of its pages, and the answer says where the next one goes on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/record.hpp>

#include "operators/filters.hpp"
#include "operators/requests.hpp"
#include "operators/search.hpp"
#include "operators/service.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// Which records a query selects.
struct ListedFilter {
  FilterOptions filter;
  std::optional<Search> search;
  std::string text;                         // Of the search.
  bool has_standing = false;                // It was given by this word.
  std::optional<Finding::Kind> reconciled;  // What the service says. Only unknown records have that.
  std::string client;                       // Of a proxy, as client_in() gives it. Empty: any.

  // It selects all records.
  [[nodiscard]] bool is_empty() const {
    return operators::is_empty(filter) && !search && !reconciled && client.empty();
  }
};
// The client whose record it is, as the digest that ends the scope of a proxy's keys: "shop/POST /charges 5f0c…".
// Empty: the record is not one of a proxy.
std::string client_in(std::string_view stored_key);

// Takes its parameters. Throws Exception(misuse).
ListedFilter take_filter(Query& query);
// Whether its search, if there is one, finds the record, the service says what it should, and it is of the client.
bool is_found(const ListedFilter& wanted, const Service& service, const Record& record);

// `prefixes`: beginnings of stored keys up to the '#', one for each scope in which a searched key is looked up at once.
// Blocks. Throws Exception(misuse) for a wrong query, StoreFailed.
http::Answer list_records(const StoreAccess& access, const Service& service, const std::vector<std::string>& prefixes,
                          std::string_view query);

}  // namespace once::operators
