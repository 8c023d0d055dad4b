// Problem details (RFC 9457) as answers, for whoever refuses requests beside an Endpoint and wants to look like it.
#pragma once

#include <string>
#include <string_view>

#include <once/frontends/http/rules.hpp>

namespace once::http {

// Plain ASCII without quotes and backslashes: it goes into JSON as it is.
struct ProblemText {
  std::string_view name;  // The end of `type`: "key-missing".
  unsigned status;        // 400 to 599.
  std::string_view title;
  std::string_view detail;
};

// `docs_url`: the page that `type` links to, with the name behind '#'. Empty: "urn:once:problem:" and the name.
// `members`: further ones, as JSON with a comma before each: ,"a":1
Answer problem_answer(const ProblemText& text, std::string_view docs_url, std::string_view members = {});

// `detail`, `status`: in place of the problem's own.
Answer problem_answer(Problem problem, std::string_view docs_url, std::string_view detail = {},
                      std::string_view members = {}, unsigned status = 0);

}  // namespace once::http
