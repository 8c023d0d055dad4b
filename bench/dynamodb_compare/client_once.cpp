// once as one of the clients of compare.py, which says what is asked and answered on each line:
//
//   dynamodb_compare_once TABLE EVENT FUNCTION DIALECT
//   dynamodb_compare_once --versions
//
// DIALECT: native, or powertools-typescript for records as that library's. One at a time is what a program writes
// first: once::idempotent() with native records, Engine::run with a key of the dialect. Several in flight are by
// completion.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <once/codec_json.hpp>
#include <once/engine/engine.hpp>
#include <once/idempotent.hpp>
#include <once/keys/key_deriver.hpp>
#include <once/stores/open.hpp>

#include "../in_flight.hpp"

namespace {

using nlohmann::json;

struct Receipt {
  std::string order_id;
  std::string status;
  int amount = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, order_id, status, amount)

std::atomic<int> runs{0};

Receipt charge(const std::string& event) {
  ++runs;
  const json order = json::parse(event);
  return {.order_id = order.at("order_id"), .status = "paid", .amount = order.at("amount")};
}

// The event with another order's number.
std::string numbered(std::string event, int number) {
  const std::string digits = std::to_string(number);
  constexpr std::string_view place = "0000000000";
  return event.replace(event.find(place) + place.size() - digits.size(), digits.size(), digits);
}

class Client {
 public:
  Client(const std::string& table, std::string sample, const std::string& function, const std::string& dialect)
      : event_(std::move(sample)),
        deriver_({.scope = function, .expression = "order_id", .dialect = once::keys::dialect_from(dialect).value()}),
        engine_({.store = once::open_store("dynamodb://" + table + "?dialect=" + dialect)}) {
    if (dialect == "native") {
      call_ = [call = once::idempotent(engine_, {.key = "order_id", .scope = function}, charge)](
                  const std::string& event) { return call(event); };
    } else {
      call_ = [this](const std::string& event) {
        const auto outcome = engine_.run(request(event), [&] { return charge(event); });
        return once::Codec<Receipt>::decode(outcome.value());
      };
    }
  }

  json answer(const json& line) {
    const int first = line.at("first");
    const int in_flight = line.at("in_flight");
    std::vector<std::string> events;
    std::vector<std::string> ids;
    for (int i = 0; i < line.at("count"); ++i) {
      events.push_back(numbered(event_, first + i));
      ids.push_back(json::parse(events.back()).at("order_id"));
    }
    const int count = static_cast<int>(events.size());

    runs = 0;
    int wrong = 0;
    const double cpu = once::bench::cpu_us();
    const auto begin = std::chrono::steady_clock::now();
    if (in_flight == 1) {
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (!good(call_(events[i]), ids[i])) ++wrong;
      }
    } else {
      wrong = once::bench::keep_in_flight(count, in_flight, [&](int number, std::function<void(bool)> done) {
        const auto i = static_cast<std::size_t>(number);
        start(events[i], ids[i], std::move(done));
      });
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double spent = once::bench::cpu_us() - cpu;
    return {{"seconds", took.count()}, {"cpu_us", spent}, {"runs", runs.load()}, {"wrong", wrong}};
  }

 private:
  [[nodiscard]] once::Request request(const std::string& event) const {
    auto derived = deriver_.derive(event);
    return {.key = std::move(derived.key.value())};
  }

  static bool good(const Receipt& receipt, const std::string& id) {
    return receipt.order_id == id && receipt.status == "paid" && receipt.amount == 4990;
  }

  // `event` and `id` live until done() is called.
  void start(const std::string& event, const std::string& id, std::function<void(bool)> done) {
    engine_.begin(request(event), [&event, &id, done = std::move(done)](once::Begin begin) mutable {
      if (begin.kind == once::Begin::Kind::replayed) {
        return done(good(once::Codec<Receipt>::decode(begin.record->result.bytes), id));
      }
      if (begin.kind != once::Begin::Kind::claimed) return done(false);
      const Receipt receipt = charge(event);
      auto result =
          once::Result::inlined(once::Codec<Receipt>::encode(receipt), std::string(once::Codec<Receipt>::content_type));
      // The claim lives until its finish is over.
      auto claim = std::make_shared<once::Claim>(std::move(begin.claim));
      once::Claim& held = *claim;
      held.complete(std::move(result),
                    [done = std::move(done), claim = std::move(claim), is_good = good(receipt, id)](
                        const once::Finish& finish) { done(is_good && finish.kind == once::Finish::Kind::recorded); });
    });
  }

  const std::string event_;
  const once::keys::KeyDeriver deriver_;
  once::Engine engine_;
  std::function<Receipt(const std::string&)> call_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--versions") {
    std::cout << json{{"once", ONCE_VERSION}, {"g++", __VERSION__}} << '\n';
    return 0;
  }
  if (argc != 5) {
    std::cerr << "usage: dynamodb_compare_once TABLE EVENT FUNCTION DIALECT\n";
    return 2;
  }
  try {
    Client client(argv[1], argv[2], argv[3], argv[4]);
    for (std::string line; std::getline(std::cin, line);) std::cout << client.answer(json::parse(line)) << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "dynamodb_compare_once: " << error.what() << '\n';
    return 1;
  }
}
