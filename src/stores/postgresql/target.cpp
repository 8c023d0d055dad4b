#include "stores/postgresql/target.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <string_view>

#include <once/error.hpp>

#include "platform/look_up.hpp"
#include "stores/postgresql/parameters.hpp"

namespace once::stores::postgresql {

namespace {

// Whether libpq would look it up.
bool is_name(const std::string& host) {
  in6_addr address{};
  return !host.empty() && host.front() != '/' && host.front() != '@' &&
         inet_pton(AF_INET, host.c_str(), &address) != 1 && inet_pton(AF_INET6, host.c_str(), &address) != 1;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string list;
  for (const std::string& part : parts) list += (&part == &parts.front() ? "" : ",") + part;
  return list;
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

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  for (std::size_t comma = list.find(','); comma != std::string_view::npos; comma = list.find(',')) {
    parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(comma + 1);
  }
  parts.emplace_back(list);
  return parts;
}

Target::Target(const std::string& url, std::string schema) {
  prepare_lookups();
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
  // NOLINTBEGIN(concurrency-mt-unsafe)
  bool has_attributes = std::getenv("PGTARGETSESSIONATTRS") != nullptr;
  // From these libpq may take addresses, or a list of ports that belongs to the list of hosts.
  bool has_more =
      std::getenv("PGHOSTADDR") != nullptr || std::getenv("PGPORT") != nullptr || std::getenv("PGSERVICE") != nullptr;
  // NOLINTEND(concurrency-mt-unsafe)
  for (const PQconninfoOption* option = parsed; option->keyword != nullptr; ++option) {
    if (option->val == nullptr) continue;
    const std::string_view keyword = option->keyword;
    const std::string value = option->val;
    if (keyword == "host" || (keyword == "hostaddr" && host.empty())) {
      host = value;
      hosts_ = split(value).size();
    }
    has_more = has_more || keyword == "hostaddr" || keyword == "service";
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
  if (!has_more) {
    std::vector<std::string> names = split(host);
    std::replace_if(names.begin(), names.end(), std::not_fn(is_name), "");
    if (std::any_of(names.begin(), names.end(), is_name)) names_ = std::move(names);
  }
  if (!has_attributes) options_.emplace_back("target_session_attrs", "read-write");
  options_.emplace_back("client_encoding", "UTF8");
  options_.emplace_back("fallback_application_name", "once");
  if (host.empty()) host = service.empty() ? "local" : "service " + service;
  name_ = "postgresql://" + host + (port.empty() ? "" : ":" + port) + "/" + database + " schema " + schema;
}

std::optional<std::string> NewestServer::meet(const PGresult* about, std::uint64_t& epoch) {
  const auto told = [&](int column) -> std::optional<std::int64_t> {
    if (PQgetisnull(about, 0, column) != 0) return std::nullopt;
    return number_of({PQgetvalue(about, 0, column), static_cast<std::size_t>(PQgetlength(about, 0, column))});
  };
  const Server met{.cluster = told(3), .timeline = told(4)};
  const std::lock_guard lock(mutex_);
  if (met.cluster && met.cluster == newest_.cluster && met.timeline && newest_.timeline &&
      *met.timeline < *newest_.timeline) {
    return "the server is on timeline " + std::to_string(*met.timeline) + ", and this program has met timeline " +
           std::to_string(*newest_.timeline) +
           " already: a standby was promoted in its place. If this server is the one to use all the same, because it "
           "was restored from a backup, restart the program";
  }
  if (met != newest_) {
    newest_ = met;
    ++epoch_;
  }
  epoch = epoch_;
  return std::nullopt;
}

Target::Lists Target::by_turn(std::size_t turn, const Addresses& addresses) const {
  // By two turns, with two addresses of a: host=a,b,/c port=1,2,3 becomes host=/c,a,a,b hostaddr=,A,A',B port=3,1,1,2.
  const auto host_at = [&](std::size_t place) { return (turn + place) % hosts_; };
  const auto is_found = [&](std::size_t host) { return !addresses.empty() && !names_[host].empty(); };
  Lists lists;
  for (const auto& [keyword, value] : options_) {
    std::vector<std::string> parts;
    if (keyword == "host" || keyword == "hostaddr" || keyword == "port") parts = split(value);
    lists.keywords.push_back(keyword.c_str());
    if (parts.size() != hosts_) {  // Such as one port for all.
      lists.values.push_back(value);
      continue;
    }
    std::vector<std::string> out;
    for (std::size_t place = 0; place < hosts_; ++place) {
      const std::size_t host = host_at(place);
      out.insert(out.end(), is_found(host) ? addresses[host].size() : 1, parts[host]);
    }
    lists.values.push_back(joined(out));
  }
  if (addresses.empty()) return lists;
  std::vector<std::string> found;
  for (std::size_t place = 0; place < hosts_; ++place) {
    const std::size_t host = host_at(place);
    if (!is_found(host)) found.emplace_back();
    if (is_found(host)) found.insert(found.end(), addresses[host].begin(), addresses[host].end());
  }
  lists.keywords.push_back("hostaddr");
  lists.values.push_back(joined(found));
  return lists;
}

ConnectionPtr Target::start(std::size_t turn, const Addresses& addresses) const {
  Lists lists = by_turn(turn, addresses);
  return ConnectionPtr(PQconnectStartParams(lists.keywords_for_libpq(), lists.values_for_libpq().data(), 0));
}

ConnectionPtr Target::connect(std::size_t turn) const {
  Lists lists = by_turn(turn, {});
  const bool has_timeout = std::any_of(options_.begin(), options_.end(),
                                       [](const auto& option) { return option.first == "connect_timeout"; });
  if (!has_timeout) {
    lists.keywords.push_back("connect_timeout");
    lists.values.push_back(std::to_string(connect_timeout_.count() / 1'000));
  }
  // libpq's blocking calls wait for ever for a host that is cut off, unless the system finds that out: here in about
  // 20 s, and not in two hours. https://www.postgresql.org/docs/15/libpq-connect.html
  constexpr std::array<std::pair<const char*, const char*>, 4> watched = {{{"keepalives_idle", "10"},
                                                                           {"keepalives_interval", "3"},
                                                                           {"keepalives_count", "3"},
                                                                           {"tcp_user_timeout", "20000"}}};
  for (const auto& [keyword, value] : watched) {
    const auto is_it = [name = std::string_view(keyword)](const char* there) { return there == name; };
    if (std::any_of(lists.keywords.begin(), lists.keywords.end(), is_it)) continue;
    lists.keywords.push_back(keyword);
    lists.values.emplace_back(value);
  }
  ConnectionPtr connection(PQconnectdbParams(lists.keywords_for_libpq(), lists.values_for_libpq().data(), 0));
  if (connection == nullptr || PQstatus(connection.get()) != CONNECTION_OK) {
    throw Exception(ErrorKind::unavailable, name_ + ": " + connect_problem(connection.get()));
  }
  return connection;
}

const char* const* Target::Lists::keywords_for_libpq() {
  keywords.push_back(nullptr);
  return keywords.data();
}
std::vector<const char*> Target::Lists::values_for_libpq() const {
  std::vector<const char*> texts;
  texts.reserve(values.size() + 1);
  for (const std::string& value : values) texts.push_back(value.c_str());
  texts.push_back(nullptr);
  return texts;
}

std::string connect_problem(const PGconn* connection) {
  std::string text = connection == nullptr ? "out of memory" : one_line(PQerrorMessage(connection));
  return text.empty() ? "the connection was lost" : text;
}

}  // namespace once::stores::postgresql
