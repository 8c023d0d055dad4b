#include "frontends/proxy/names.hpp"

#include <cstring>
#include <system_error>

#include "platform/look_up.hpp"

namespace once::proxy {

namespace {

constexpr Millis names_last{5'000};  // As short as the TTL of services whose addresses change.

void look_up_name(const Address& address, Callback<void(Names::Found)> done) {
  look_up(address.host, address.port, [done = std::move(done)](NameAddresses addresses) mutable {
    Names::Found found;
    for (const NameAddress& each : addresses.found) {
      tcp::endpoint& endpoint = found.endpoints.emplace_back();
      endpoint.resize(each.size);
      std::memcpy(endpoint.data(), &each.bytes, each.size);
    }
    found.problem = std::move(addresses.problem);
    done(std::move(found));
  });
}

}  // namespace

Names::Names(Loop& loop) : Names(loop, look_up_name, names_last) {}

Task<Names::Found> Names::find(const Address& address, Millis limit) {
  std::shared_ptr<Lookup>& kept = lookups_[{address.host, address.port}];
  const bool is_over = kept && kept->is_done && (kept->found.endpoints.empty() || kept->until <= about_now());
  if (!kept || is_over) kept = begin(address);
  const std::shared_ptr<Lookup> lookup = kept;
  if (!lookup->is_done) {
    Timer timer(loop_.io, limit);
    lookup->waiting.push_back(&timer);
    co_await loop_.sleep(timer);
    std::erase(lookup->waiting, &timer);
  }
  if (lookup->is_done) co_return lookup->found;
  Found nothing;
  nothing.problem = "its name was not resolved within " + std::to_string(limit.count()) + " ms";
  nothing.late = true;
  co_return nothing;
}

std::shared_ptr<Names::Lookup> Names::begin(const Address& address) {
  const auto lookup = std::make_shared<Lookup>();
  const auto finish = [lasting = lasting_](Lookup& ended, Found found) {
    ended.found = std::move(found);
    if (ended.found.endpoints.empty()) ended.found.problem = "its name cannot be resolved: " + ended.found.problem;
    ended.until = about_now() + lasting;
    ended.is_done = true;
    for (Timer* const timer : ended.waiting) timer->cancel();
  };
  auto done = [mailbox = loop_.mailbox(), lookup, finish](Found found) {
    mailbox->post([lookup, finish, found = std::move(found)]() mutable { finish(*lookup, std::move(found)); });
  };
  try {
    look_up_(address, std::move(done));
  } catch (const std::system_error& error) {  // No thread could be started.
    finish(*lookup, {.endpoints = {}, .problem = error.what()});
  }
  return lookup;
}

}  // namespace once::proxy
