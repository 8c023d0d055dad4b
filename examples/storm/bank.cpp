#include "bank.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/un.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <unordered_map>
#include <vector>

namespace storm {

namespace {

using Clock = std::chrono::steady_clock;

sockaddr_un address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
  return address;
}

Socket new_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) throw std::system_error(errno, std::generic_category(), "socket");
  return socket;
}

struct Client {
  Socket socket;
  std::optional<Clock::time_point> answer_at;
  Charged answer;
};

}  // namespace

BankDoor::BankDoor() : name_("once-storm-bank-" + std::to_string(getpid())), listener_(new_socket()) {
  const sockaddr_un address = address_of(name_);
  if (bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_.fd(), 64) != 0) {
    throw std::system_error(errno, std::generic_category(), "the bank cannot listen");
  }
}

Socket BankDoor::enter() const {
  Socket socket = new_socket();
  const sockaddr_un address = address_of(name_);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot reach the bank");
  }
  return socket;
}

void run_bank(const BankDoor& door, const std::string& ledger_path, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> delay_ms(15, 45);
  std::ofstream ledger(ledger_path, std::ios::trunc);
  ledger << "order,cents,charge,what,key\n" << std::flush;
  std::unordered_map<std::string, std::uint32_t> charge_of_key;
  std::uint32_t charges = 0;
  std::vector<Client> clients;

  const auto serve = [&](Client& client) {
    Charge wanted;
    if (!client.socket.receive(wanted)) return false;
    const std::string key = wanted.key.str();
    const auto known = key.empty() ? charge_of_key.end() : charge_of_key.find(key);
    const bool again = known != charge_of_key.end();
    client.answer.number = again ? known->second : ++charges;
    if (!again && !key.empty()) charge_of_key.emplace(key, charges);
    ledger << wanted.order << ',' << wanted.cents << ',' << client.answer.number << ','
           << (again ? "same-key-again" : "charged") << ',' << key << '\n'
           << std::flush;
    if (!ledger) throw std::runtime_error("the bank cannot write its ledger " + ledger_path);
    client.answer_at = Clock::now() + std::chrono::milliseconds(delay_ms(random));
    return true;
  };

  for (;;) {
    std::vector<pollfd> watched{{.fd = door.listener().fd(), .events = POLLIN, .revents = 0}};
    int timeout = -1;
    for (const Client& client : clients) {
      watched.push_back({.fd = client.socket.fd(), .events = POLLIN, .revents = 0});
      if (!client.answer_at) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*client.answer_at - Clock::now()).count();
      timeout = static_cast<int>(std::max<std::int64_t>(0, timeout < 0 ? left : std::min<std::int64_t>(timeout, left)));
    }
    if (poll(watched.data(), watched.size(), timeout) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    std::vector<Client> alive;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      Client& client = clients[i];
      if (watched[i + 1].revents != 0 && !serve(client)) continue;  // The client died; its charge stays.
      if (client.answer_at && *client.answer_at <= Clock::now()) {
        client.answer_at.reset();
        if (!client.socket.send(client.answer)) continue;
      }
      alive.push_back(std::move(client));
    }
    clients = std::move(alive);
    if (watched[0].revents != 0) {
      const int fd = accept4(door.listener().fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) clients.push_back({.socket = Socket(fd), .answer_at = {}, .answer = {}});
    }
  }
}

std::map<std::uint32_t, Account> read_ledger(const std::string& path) {
  std::map<std::uint32_t, Account> accounts;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the ledger " + path);
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    std::uint32_t order = 0;
    long long cents = 0;
    unsigned charge = 0;
    std::array<char, 32> what{};
    if (std::sscanf(line.c_str(), "%u,%lld,%u,%31[^,]", &order, &cents, &charge, what.data()) != 4) {
      throw std::runtime_error("the ledger " + path + " has a line that is none: " + line);
    }
    Account& account = accounts[order];
    account.calls += 1;
    if (std::string_view(what.data()) == "charged") {
      account.charges += 1;
      account.cents += cents;
    }
  }
  return accounts;
}

}  // namespace storm
