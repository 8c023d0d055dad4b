#include "worker.hpp"

#include <csignal>
#include <random>
#include <stdexcept>
#include <thread>

#include <once/codec_json.hpp>
#include <once/idempotent.hpp>
#include <once/stores/sqlite.hpp>

namespace storm {

struct Order {
  std::string id;
  std::int64_t cents = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Order, id, cents)

struct Receipt {
  std::string order;
  std::uint32_t charge = 0;
  std::uint64_t serial = 0;  // Different for each written receipt: all callers must see the same one.
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Receipt, order, charge, serial)

namespace {

class Worker {
 public:
  Worker(const Socket& director, const Socket& bank, const WorkerOptions& options)
      : director_(director), bank_(bank), options_(options), random_(options.seed) {}

  void run() {
    if (options_.without_once) {
      serve([this](const Order& order) { return charge_card({}, order); });
      return;
    }
    once::Policy policy;
    policy.lease = once::Millis(options_.lease_ms);
    policy.on_conflict = once::OnConflict::fail;  // Clients of the storm retry, so that conflicts can be counted.
    once::Engine engine({.store = once::stores::make_sqlite_store({.path = options_.store_path}),
                         .policy = policy,
                         .scope = "payments",
                         .observer = [this](const once::Event& event) {
                           tell({.kind = Note::Kind::event, .event = static_cast<std::uint8_t>(event.kind)});
                         }});
    // All that is needed: the order's id is the key, and an order that comes with another amount is refused.
    serve(once::idempotent(engine, {.name = "charge", .key = &Order::id, .fingerprint = "cents"},
                           [this](once::Context& context, const Order& order) {
                             // The bank gets the same key from every attempt. The charge is kept in the record as soon
                             // as it is known, so that an attempt that takes over continues after it.
                             const auto charge = context.step(
                                 "charge", [&] { return charge_at_bank(context.derived_key("bank"), order); });
                             return write_receipt(order, charge);
                           }));
  }

 private:
  void serve(const std::function<Receipt(const Order&)>& charge) {
    while (director_.receive(job_)) {
      const Order order{"order-" + std::to_string(job_.order), job_.cents};
      try {
        tell({.kind = Note::Kind::answer, .text = Text<256>(nlohmann::json(charge(order)).dump())});
      } catch (const once::Conflict&) {
        tell({.kind = Note::Kind::repeat});
      } catch (const once::ClaimLost&) {
        tell({.kind = Note::Kind::repeat});
      } catch (const std::exception& error) {
        tell({.kind = Note::Kind::broken, .text = Text<256>(error.what())});
      }
    }
  }

  // What a program does without once.
  Receipt charge_card(std::string_view key, const Order& order) {
    return write_receipt(order, charge_at_bank(key, order));
  }

  std::uint32_t charge_at_bank(std::string_view key, const Order& order) {
    Charged charged;
    if (!bank_.send(Charge{.key = Text<72>(key), .order = job_.order, .cents = order.cents}) ||
        !bank_.receive(charged)) {
      throw std::runtime_error("the bank is gone");
    }
    freeze(Freeze::after_the_charge);
    return charged.number;
  }

  Receipt write_receipt(const Order& order, std::uint32_t charge) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(5, 25)(random_)));
    freeze(Freeze::before_the_answer);
    return {order.id, charge, random_()};
  }

  // As if the machine paused: nothing runs, not even heartbeats, until the director continues it.
  void freeze(Freeze where) {
    if (job_.freeze != where) return;
    job_.freeze = Freeze::no;
    tell({.kind = Note::Kind::freezing});
    static_cast<void>(std::raise(SIGSTOP));
  }

  // From any thread: events come from those of the engine.
  void tell(const Note& note) {
    if (!director_.send(note)) _exit(0);  // Without the director, the storm ends.
  }

  const Socket& director_;
  const Socket& bank_;
  const WorkerOptions& options_;
  std::mt19937_64 random_;
  Job job_;
};

}  // namespace

void run_worker(const Socket& director, const Socket& bank, const WorkerOptions& options) {
  Worker(director, bank, options).run();
}

}  // namespace storm
