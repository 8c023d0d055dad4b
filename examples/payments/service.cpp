// A payments service without idempotency: each POST /charges takes money, and nothing takes it back. It stands for any
// service in any language; the proxy in front of it keeps it from charging twice.
//
//   payments_service PORT LEDGER
//
//   POST /charges         {"order":"order-17","cents":500}: 201, and the number of the charge
//   GET  /charges/ORDER   what the ledger has of it
//   GET  /charges?order=  200 with the charge, or 404 if there is none. 503 for orders abroad ("order-1-abroad"):
//                         another bank has the books
//
// As with the test cards of real services, the request may say how it goes: "card":"slow-to-charge" is charged after
// half a second, "card":"slow-to-answer" is charged at once and answered half a second later, and "card":"busy" is sent
// away with 503, uncharged, the first time.
//
// The ledger is a text file. Each line is written before anything else happens, so that it is there after kill -9.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <httplib.h>
#include <nlohmann/json.hpp>

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

struct Charge {
  std::string order = {};
  std::int64_t cents = 0;
  std::string card = {};
};

// Lines of "asked,ORDER,CENTS," and "charged,ORDER,CENTS,NUMBER".
class Ledger {
 public:
  explicit Ledger(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("charged,")) keep(line);
    }
    file_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), path);
  }

  void ask(const Charge& charge) {
    const std::lock_guard lock(mutex_);
    write(line("asked", charge, ""));
  }

  // Here money moves.
  std::size_t charge(const Charge& charge) {
    const std::lock_guard lock(mutex_);
    const std::string text = line("charged", charge, std::to_string(charges_.size() + 1));
    write(text);
    keep(text);
    return charges_.size();
  }

  Json charges_of(const std::string& order) {
    const std::lock_guard lock(mutex_);
    Json found = Json::array();
    for (std::size_t i = 0; i < charges_.size(); ++i) {
      if (charges_[i].order == order) found.push_back(i + 1);
    }
    return found;
  }

  // Null: there is none.
  Json first_charge_of(const std::string& order) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < charges_.size(); ++i) {
      if (charges_[i].order == order) return {{"order", order}, {"cents", charges_[i].cents}, {"charge", i + 1}};
    }
    return nullptr;
  }

 private:
  static std::string line(const std::string& what, const Charge& charge, const std::string& number) {
    return what + "," + charge.order + "," + std::to_string(charge.cents) + "," + number;
  }
  void keep(const std::string& line) {
    const auto begin = line.find(',') + 1;
    const auto end = line.find(',', begin);
    charges_.push_back({.order = line.substr(begin, end - begin), .cents = std::stoll(line.substr(end + 1))});
  }
  void write(const std::string& line) const {
    const std::string text = line + "\n";
    if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      std::perror("payments_service: the ledger cannot be written");
      std::_Exit(1);  // A charge that is not in the ledger must not be answered.
    }
  }

  std::mutex mutex_;
  int file_ = -1;
  std::vector<Charge> charges_;  // From number 1.
};

// Throws std::exception if it is not a charge.
Charge read_charge(const std::string& body) {
  const Json json = Json::parse(body);
  Charge charge{json.at("order"), json.at("cents"), json.value("card", "")};
  if (charge.order.empty() || charge.order.find_first_of(",\r\n") != std::string::npos) {
    throw std::invalid_argument("an order is a word without commas");
  }
  if (charge.cents <= 0) throw std::invalid_argument("cents must be positive");
  return charge;
}

class Service {
 public:
  explicit Service(const std::string& ledger_path) : ledger_(ledger_path) {}

  void charge(const httplib::Request& request, httplib::Response& response) {
    Charge charge;
    try {
      charge = read_charge(request.body);
    } catch (const std::exception& error) {
      return answer(response, 400, {{"error", error.what()}});
    }
    ledger_.ask(charge);
    if (charge.card == "busy" && first_time(charge.order)) {
      response.set_header("Retry-After", "1");
      return answer(response, 503, {{"error", "busy, and not charged: ask again"}});
    }
    pause(charge.card == "slow-to-charge");
    const std::size_t number = ledger_.charge(charge);
    pause(charge.card == "slow-to-answer");
    response.set_header("Location", "/charges/" + charge.order);
    answer(response, 201, {{"order", charge.order}, {"cents", charge.cents}, {"charge", number}});
  }

  void look(const httplib::Request& request, httplib::Response& response) {
    const std::string order = request.matches[1];
    answer(response, 200, {{"order", order}, {"charges", ledger_.charges_of(order)}});
  }

  // What the proxy asks when it does not know how a charge ended.
  void find(const httplib::Request& request, httplib::Response& response) {
    const std::string order = request.get_param_value("order");
    if (order.ends_with("-abroad")) return answer(response, 503, {{"error", "another bank has the books"}});
    const Json charge = ledger_.first_charge_of(order);
    if (charge.is_null()) return answer(response, 404, {{"error", "no such charge"}});
    answer(response, 200, charge);
  }

 private:
  static void answer(httplib::Response& response, int status, const Json& json) {
    response.status = status;
    response.set_content(json.dump() + "\n", "application/json");
  }
  bool first_time(const std::string& order) {
    const std::lock_guard lock(mutex_);
    return sent_away_.insert(order).second;
  }
  // As slow as a bank.
  void pause(bool slow) {
    milliseconds time(500);
    if (!slow) {
      const std::lock_guard lock(mutex_);
      time = milliseconds(std::uniform_int_distribution<int>(5, 30)(random_));
    }
    std::this_thread::sleep_for(time);
  }

  Ledger ledger_;
  std::mutex mutex_;  // Guards the following members.
  std::set<std::string> sent_away_;
  std::mt19937_64 random_{std::random_device{}()};
};

int run(int port, const std::string& ledger_path) {
  Service service(ledger_path);
  httplib::Server server;
  // The library uses a thread for each connection, and the proxies keep some open.
  server.new_task_queue = [] { return new httplib::ThreadPool(64); };
  server.set_keep_alive_max_count(1'000'000);
  // Not SO_REUSEPORT, which is the library's default: two services on one port would share the requests.
  server.set_socket_options([](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_tcp_nodelay(true);
  server.Post("/charges",
              [&](const httplib::Request& request, httplib::Response& response) { service.charge(request, response); });
  server.Get("/charges/([^/]+)",
             [&](const httplib::Request& request, httplib::Response& response) { service.look(request, response); });
  server.Get("/charges",
             [&](const httplib::Request& request, httplib::Response& response) { service.find(request, response); });
  if (!server.bind_to_port("127.0.0.1", port)) {
    std::fprintf(stderr, "payments_service: port %d cannot be listened on\n", port);
    return 1;
  }
  std::fprintf(stderr, "payments_service: listening on port %d\n", port);
  return server.listen_after_bind() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: payments_service PORT LEDGER\n");
    return 2;
  }
  try {
    return run(std::atoi(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "payments_service: %s\n", error.what());
    return 1;
  }
}
