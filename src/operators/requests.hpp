// What a request of the operators' API says: its query, its body, its headers. All is checked strictly; what is wrong
// throws Exception(misuse), which says how it should be.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/frontends/http/message.hpp>
#include <once/record.hpp>
#include <once/result.hpp>

namespace once::operators {

// "state=unknown&limit=5". Each parameter at most once.
class Query {
 public:
  explicit Query(std::string_view text);
  // The same parameters in a body.
  explicit Query(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  std::optional<std::string> take(const std::string& name);
  std::size_t take_limit();  // `limit`: 1 to 500 (100).
  // Throws for parameters that were never asked for; names those that were.
  void end() const;

  // Of all parameters but these: two requests with one digest ask for the same.
  [[nodiscard]] std::string digest_without(const std::set<std::string>& names) const;

 private:
  std::map<std::string, std::string> values_;
  std::set<std::string> known_;
};

// The members of a body; checks their types and names. A member that is null counts as absent.
class Members {
 public:
  explicit Members(std::string_view body);
  Members(nlohmann::ordered_json json, std::string where);

  std::optional<std::string> text(const char* name);
  bool flag(const char* name);
  bool has(const char* name);
  bool is_text(const char* name);
  std::optional<std::uint64_t> number(const char* name);
  std::optional<Members> object(const char* name);
  std::optional<std::map<std::string, std::string>> texts_by_name(const char* name);  // An object with texts only.
  std::optional<std::vector<std::string>> texts(const char* name);
  // Throws for members that were never asked for; names those that were.
  void end() const;
  void refuse_nulls() const;  // Throws for a member that is null, where "absent" would protect less.

 private:
  const nlohmann::ordered_json* find(const char* name);

  nlohmann::ordered_json json_;
  std::string where_;  // "result."
  std::set<std::string> known_;
};

// Its member `result`.
std::optional<Result> result_of(Members& members);

// Takes an ETag of ours apart. Empty for anything else, also for weak tags and lists.
struct Tag {
  Owner owner;
  std::uint64_t revision = 0;
};
std::optional<Tag> tag_of(std::string_view text);

// The first one of this name, or null.
const std::string_view* header_of(const http::Request& request, std::string_view name);
std::vector<std::string_view> values_of(const http::Request& request, std::string_view name);  // All of them.

bool is_read(const http::Request& request);  // GET or HEAD.

// Of a Host header: "127.0.0.1:9100", "localhost", "[::1]:9100": hosts that no web page can have.
bool is_loopback_host(std::string_view host);
// For a port on a loopback address: refuses a request under another host's name, because a page in a browser can have
// its own name resolve to this address (DNS rebinding). Empty: it may go on.
std::optional<http::Answer> refuse_foreign_host(const http::Request& request);

// Throws unless the body is at most 4 KiB: for what is read on the server's own thread.
void refuse_long(const http::Request& request);

// 415 unless the body is JSON.
std::optional<http::Answer> refuse_other_than_json(const http::Request& request);

}  // namespace once::operators
