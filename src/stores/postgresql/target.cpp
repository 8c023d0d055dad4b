#include "stores/postgresql/target.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <once/error.hpp>

namespace once::stores::postgresql {

namespace {

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  for (std::size_t comma = list.find(','); comma != std::string_view::npos; comma = list.find(',')) {
    parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(comma + 1);
  }
  parts.emplace_back(list);
  return parts;
}

// "a,b,c" by one turn: "b,c,a". A list of one other length than `count`, such as one port for all, stays.
std::string turned(const std::string& list, std::size_t count, std::size_t turn) {
  std::vector<std::string> parts = split(list);
  if (parts.size() != count) return list;
  std::rotate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(turn % count), parts.end());
  std::string out = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) out += "," + parts[i];
  return out;
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != '\n') {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(' ');
    }
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace

Target::Target(const std::string& url, std::string schema) {
  char* problem = nullptr;
  PQconninfoOption* const parsed = PQconninfoParse(url.c_str(), &problem);
  if (parsed == nullptr) {
    // libpq names the part that it does not understand, which may be one of a password with an unescaped '@' or '#'.
    std::string text = problem == nullptr ? "out of memory" : one_line(problem);
    PQfreemem(problem);
    const std::size_t value = text.find(": \"");
    if (value != std::string::npos && url.find('@') != std::string::npos) text.erase(value);
    throw Exception(ErrorKind::misuse, "postgresql store: the URL is none of libpq's: " + text +
                                           ". Write it as in postgresql://user@host:5432/database; in a name or "
                                           "password write '@' as %40, '/' as %2F and '#' as %23");
  }
  std::string host;
  std::string port;
  std::string database;
  std::string service;
  bool has_attributes = std::getenv("PGTARGETSESSIONATTRS") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  for (const PQconninfoOption* option = parsed; option->keyword != nullptr; ++option) {
    if (option->val == nullptr) continue;
    const std::string_view keyword = option->keyword;
    const std::string value = option->val;
    if (keyword == "host" || (keyword == "hostaddr" && host.empty())) {
      host = value;
      hosts_ = split(value).size();
    }
    if (keyword == "port") port = value;
    if (keyword == "dbname") database = value;
    if (keyword == "service") service = value;
    if (keyword == "target_session_attrs") has_attributes = true;
    if (keyword == "connect_timeout") {
      int seconds = 0;
      std::from_chars(value.data(), value.data() + value.size(), seconds);
      if (seconds > 0) connect_timeout_ = Millis{std::min(seconds, 600) * 1'000};
    }
    options_.emplace_back(keyword, value);
  }
  PQconninfoFree(parsed);
  // Or else a password with an unescaped '/' would be taken for a port, and shown in messages.
  if (port.find_first_not_of("0123456789,") != std::string::npos) {
    throw Exception(ErrorKind::misuse,
                    "postgresql store: the port in the URL is not a number. In a password write '@' as %40, '/' as "
                    "%2F and '#' as %23");
  }
  if (!has_attributes) options_.emplace_back("target_session_attrs", "read-write");
  options_.emplace_back("client_encoding", "UTF8");
  options_.emplace_back("fallback_application_name", "once");
  if (host.empty()) host = service.empty() ? "local" : "service " + service;
  name_ = "postgresql://" + host + (port.empty() ? "" : ":" + port) + "/" + database + " schema " + schema;
}

ConnectionPtr Target::start(std::size_t turn) const {
  std::vector<const char*> keywords;
  std::vector<std::string> values;
  values.reserve(options_.size());
  for (const auto& [keyword, value] : options_) {
    keywords.push_back(keyword.c_str());
    const bool is_list = keyword == "host" || keyword == "hostaddr" || keyword == "port";
    values.push_back(is_list && hosts_ > 1 ? turned(value, hosts_, turn) : value);
  }
  std::vector<const char*> texts;
  texts.reserve(values.size() + 1);
  for (const std::string& value : values) texts.push_back(value.c_str());
  keywords.push_back(nullptr);
  texts.push_back(nullptr);
  return ConnectionPtr(PQconnectStartParams(keywords.data(), texts.data(), 0));
}

ConnectionPtr Target::connect() const {
  std::vector<const char*> keywords;
  std::vector<const char*> values;
  bool has_timeout = false;
  for (const auto& [keyword, value] : options_) {
    keywords.push_back(keyword.c_str());
    values.push_back(value.c_str());
    has_timeout = has_timeout || keyword == "connect_timeout";
  }
  const std::string seconds = std::to_string(connect_timeout_.count() / 1'000);
  if (!has_timeout) {
    keywords.push_back("connect_timeout");
    values.push_back(seconds.c_str());
  }
  keywords.push_back(nullptr);
  values.push_back(nullptr);
  ConnectionPtr connection(PQconnectdbParams(keywords.data(), values.data(), 0));
  if (connection == nullptr || PQstatus(connection.get()) != CONNECTION_OK) {
    throw Exception(ErrorKind::unavailable, name_ + ": " + connect_problem(connection.get()));
  }
  return connection;
}

std::string connect_problem(const PGconn* connection) {
  std::string text = connection == nullptr ? "out of memory" : one_line(PQerrorMessage(connection));
  return text.empty() ? "the connection was lost" : text;
}

}  // namespace once::stores::postgresql
