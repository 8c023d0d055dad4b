// credential_process: a command that prints credentials.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <once/error.hpp>

#include "aws/credentials_search.hpp"
#include "platform/command.hpp"

namespace once::aws {

Credentials from_process(const Search& search, std::string_view command, const std::string& place) {
  const std::string text = output_of(command, {.name = place, .limit = search.process_limit, .given_up = [&search] {
                                                 return search.cancellation->cancelled();
                                               }});
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("Version") || json["Version"] != 1) {
    throw Exception(ErrorKind::misuse, place + R"( printed no JSON object with "Version": 1)");
  }
  return parse_credentials(text, "SessionToken", place);
}

}  // namespace once::aws
