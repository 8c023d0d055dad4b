// What the operators' API answers with: JSON, and problems of RFC 9457.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/frontends/http/message.hpp>
#include <once/record.hpp>
#include <once/time.hpp>

#include "operators/store_access.hpp"

namespace once::operators {

http::Answer json_answer(unsigned status, const nlohmann::ordered_json& json,
                         std::string_view type = "application/json");

nlohmann::ordered_json problem_json(std::string_view name, unsigned status, std::string_view title,
                                    std::string_view detail);
// application/problem+json
http::Answer operators_problem(std::string_view name, unsigned status, std::string_view title, std::string_view detail);

// A mistake of the client's. `wrong` is its exception, Exception(misuse).
http::Answer bad_request(std::string_view detail);
Exception wrong(const std::string& detail);

// 401 and 405, with the header that goes with them.
http::Answer unauthorized(std::string_view title, std::string_view detail);
http::Answer not_allowed(const std::string& allowed);

// What the store raised. Never the client's mistake: its misuse is a missing table, or a permission.
http::Answer store_problem(const Error& error);
class StoreFailed : public Exception {
 public:
  using Exception::Exception;
};

// The program ends: 503.
http::Answer stopping();

http::Answer no_record(const std::string& stored_key);

// "OWNER-REVISION", with the quotation marks: the record as it is now.
std::string etag(const Record& record);

// operate::learn_now(). Throws StoreFailed.
Time store_now(const StoreAccess& access);

}  // namespace once::operators
