// Problem details (RFC 9457) as answers, for servers that refuse requests in the same form as an Endpoint.
#pragma once

#include <string>
#include <string_view>

#include <once/frontends/http/rules.hpp>

namespace once::http {

// Plain ASCII without quotes and backslashes, because it is put into JSON unescaped.
struct ProblemText {
  std::string_view name;  // The end of `type`: "key-missing".
  unsigned status;        // 400 to 599.
  std::string_view title;
  std::string_view detail;
};

// `docs_url`: the page that `type` links to, with the name after '#'. Empty: "urn:once:problem:" and the name.
// `members`: further members, as JSON with a comma before each: ,"a":1
Answer problem_answer(const ProblemText& text, std::string_view docs_url, std::string_view members = {});

// `detail`, `status`: instead of the problem's own.
Answer problem_answer(Problem problem, std::string_view docs_url, std::string_view detail = {},
                      std::string_view members = {}, unsigned status = 0);

}  // namespace once::http
