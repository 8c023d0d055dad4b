// Where the server is: libpq's connection string, taken apart.
#pragma once

#include <libpq-fe.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/time.hpp>

namespace once::stores::postgresql {

struct FinishConnection {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
};
using ConnectionPtr = std::unique_ptr<PGconn, FinishConnection>;

// The newest server that any connection of a store has led to. Its connections have to be to that one. Thread-safe.
class NewestServer {
 public:
  // Of a new connection, from what about_1 told. Sets its epoch; or says why not: a standby was promoted in the place
  // of this server, which keeps the cluster's identifier and has a higher timeline.
  std::optional<std::string> meet(const PGresult* about, std::uint64_t& epoch);
  // Another than a connection's: another connection has met a newer server since.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

 private:
  // Both are empty where the server is of a kind that has none.
  struct Server {
    std::optional<std::int64_t> cluster;
    std::optional<std::int64_t> timeline;
    friend bool operator==(const Server&, const Server&) = default;
  };

  std::mutex mutex_;
  Server newest_;
  std::atomic<std::uint64_t> epoch_{0};
};

// Copies share what they know of the newest server.
class Target {
 public:
  // `url`: postgresql://…, or keyword=value …. Throws Exception(misuse) with libpq's own words, and without a password.
  Target(const std::string& url, std::string schema);

  // For each host of the URL the name that has to be looked up; "" for an address, or the folder of a socket. Empty:
  // nothing has to be, or libpq does it in start(), which blocks then: a service file or one of libpq's variables says
  // more of the host.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  // Begins to connect. `turn`: which host of a list comes first; any number. `addresses`: for each of names() those
  // that were found, as numbers; a host without any is left out.
  using Addresses = std::vector<std::vector<std::string>>;
  [[nodiscard]] ConnectionPtr start(std::size_t turn, const Addresses& addresses) const;
  // Connects, and waits for it. Throws Exception(unavailable).
  [[nodiscard]] ConnectionPtr connect(std::size_t turn = 0) const;
  [[nodiscard]] NewestServer& newest() const noexcept { return *newest_; }

  [[nodiscard]] std::size_t hosts() const noexcept { return hosts_; }
  // Of one attempt: connect_timeout= of the URL, else 5 s.
  [[nodiscard]] Millis connect_timeout() const noexcept { return connect_timeout_; }
  // "postgresql://db.example:5432/pay schema once"; never a password.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  struct Lists {
    std::vector<const char*> keywords;
    std::vector<std::string> values;
    const char* const* keywords_for_libpq();  // Ends them.
    [[nodiscard]] std::vector<const char*> values_for_libpq() const;
  };
  [[nodiscard]] Lists by_turn(std::size_t turn, const Addresses& addresses) const;

  std::vector<std::pair<std::string, std::string>> options_;
  std::size_t hosts_ = 1;
  std::vector<std::string> names_;
  Millis connect_timeout_{5'000};
  std::string name_;
  std::shared_ptr<NewestServer> newest_ = std::make_shared<NewestServer>();
};

// The parts of one of libpq's lists of hosts, addresses or ports.
std::vector<std::string> split(std::string_view list);

// The error of a failed attempt, in one line.
std::string connect_problem(const PGconn* connection);

}  // namespace once::stores::postgresql
