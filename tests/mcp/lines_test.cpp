#include "frontends/mcp/lines.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace once {
namespace mcp_lines_test {

// "line", or "!ID BYTES" for one that is too long.
std::vector<std::string> read_in_pieces(const std::string& bytes, std::size_t piece, std::size_t limit) {
  std::vector<std::string> out;
  mcp::LineReader reader({.max_bytes = limit});
  const mcp::LineReader::Sink sink{
      .line = [&](std::string&& line) { out.push_back(std::move(line)); },
      .too_long = [&](const std::string& id,
                      std::uint64_t size) { out.push_back("!" + id + " " + std::to_string(size)); }};
  for (std::size_t at = 0; at < bytes.size(); at += piece) reader.take(std::string_view(bytes).substr(at, piece), sink);
  if (reader.has_part()) out.emplace_back("part");
  return out;
}

TEST(McpLines, AreSplitHoweverTheyArrive) {
  const std::string bytes = "one\n\ntwo\r\nthree";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(read_in_pieces(bytes, piece, 100), (std::vector<std::string>{"one", "", "two\r", "part"})) << piece;
  }
}

TEST(McpLines, ALineAtTheLimitIsKept) {
  EXPECT_EQ(read_in_pieces("12345678\n123456789\n1\n", 3, 8), (std::vector<std::string>{"12345678", "! 9", "1"}));
}

TEST(McpLines, TheIdOfALongMessageIsFound) {
  const std::string filling(100, 'x');
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"jsonrpc":"2.0","id":17,"result":{"id":5,"a":[{"id":6}],"x":"FILL"}})", "17"},
      {R"({"result":{"id":5,"x":"FILL\"id\":8,"},"jsonrpc":"2.0", "id" : "a\"b" })", R"("a\"b")"},
      {R"({"id":"\u0061","x":"FILL"})", R"("a")"},
      {R"({"x":"FILL","id":-3})", "-3"},
      {R"({"x":"FILL","id":null})", ""},
      {R"({"x":"FILL","id":1.5})", ""},
      {R"({"x":"FILL","id":{"a":1}})", ""},
      {R"({"x":"FILL","params":{"id":7}})", ""},
      {R"([{"id":7,"x":"FILL"}])", ""},
      {R"({"id":"FILLFILLFILL","x":1})", ""},
      {R"({"FILLFILLFILL":1,"id":4})", "4"},
      {"FILL", ""}};
  for (const auto& [pattern, id] : cases) {
    std::string text = pattern;
    for (std::size_t at = text.find("FILL"); at != std::string::npos; at = text.find("FILL"))
      text.replace(at, 4, filling);
    for (const std::size_t piece : {1U, 7U, 1000U}) {
      EXPECT_EQ(read_in_pieces(text + "\n", piece, 20),
                (std::vector<std::string>{"!" + id + " " + std::to_string(text.size())}))
          << pattern;
    }
  }
}

}  // namespace mcp_lines_test
}  // namespace once
