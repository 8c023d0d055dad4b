#include "operators/sessions.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <utility>

namespace once::operators {

namespace {

bool same(const Sha256& one, const Sha256& other) { return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0; }

}  // namespace

struct Sessions::Link {
  Sha256 secret;
  Identity identity;
  Uptime made;
};

struct Sessions::Session {
  Sha256 cookie;
  Sha256 header;
  Identity identity;
  std::optional<Sha256> credential;
  Uptime opened;
  Uptime used;
  std::uint64_t number = 0;  // No other session has had it.
};

Sessions::Sessions(std::shared_ptr<Clock> clock, std::shared_ptr<Random> random)
    : clock_(std::move(clock)), random_(std::move(random)) {}
Sessions::~Sessions() = default;

std::string Sessions::secret() {
  constexpr std::size_t bytes = 16;
  std::array<std::uint8_t, bytes> random{};
  random_->fill(random);
  return to_hex({reinterpret_cast<const char*>(random.data()), random.size()});
}

void Sessions::drop_old() {
  const Uptime now = clock_->uptime();
  std::erase_if(links_, [&](const Link& link) { return now - link.made >= link_life; });
  std::erase_if(sessions_, [&](const Session& session) {
    return now - session.used >= idle_life || now - session.opened >= whole_life;
  });
  std::erase_if(failures_, [&](const Failure& failed) { return now - failed.at >= failure_life; });
}

Sessions::Session* Sessions::of(std::string_view cookie, std::string_view header) {
  drop_old();
  const Sha256 first = sha256(cookie);
  const Sha256 second = sha256(header);
  for (Session& session : sessions_) {
    const bool has_first = same(session.cookie, first);
    const bool has_second = same(session.header, second);
    if (has_first && has_second) return &session;
  }
  return nullptr;
}

std::string Sessions::new_link(Identity identity) {
  const std::lock_guard lock(mutex_);
  drop_old();
  if (links_.size() >= most_links) links_.erase(links_.begin());
  std::string made = secret();
  links_.push_back({.secret = sha256(made), .identity = std::move(identity), .made = clock_->uptime()});
  return made;
}

std::optional<Identity> Sessions::take_link(std::string_view secret) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const Sha256 digest = sha256(secret);
  const auto found = std::ranges::find_if(links_, [&](const Link& link) { return same(link.secret, digest); });
  if (found == links_.end()) return std::nullopt;
  Identity identity = std::move(found->identity);
  links_.erase(found);
  return identity;
}

Sessions::Halves Sessions::open(Identity identity, std::optional<Sha256> credential) {
  const std::lock_guard lock(mutex_);
  drop_old();
  if (sessions_.size() >= most_sessions) {
    sessions_.erase(std::ranges::min_element(sessions_, {}, &Session::used));
  }
  Halves halves{.cookie = secret(), .header = secret()};
  const Uptime now = clock_->uptime();
  sessions_.push_back({.cookie = sha256(halves.cookie),
                       .header = sha256(halves.header),
                       .identity = std::move(identity),
                       .credential = credential,
                       .opened = now,
                       .used = now,
                       .number = ++opened_});
  return halves;
}

std::optional<Sessions::Found> Sessions::find(std::string_view cookie, std::string_view header) {
  const std::lock_guard lock(mutex_);
  Session* const session = of(cookie, header);
  if (session == nullptr) return std::nullopt;
  session->used = clock_->uptime();
  return Found{session->identity, session->number};
}

bool Sessions::use(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const auto found = std::ranges::find(sessions_, number, &Session::number);
  if (found == sessions_.end()) return false;
  found->used = clock_->uptime();
  return true;
}

void Sessions::end(std::string_view cookie, std::string_view header) {
  const std::lock_guard lock(mutex_);
  const Session* const session = of(cookie, header);
  if (session != nullptr) sessions_.erase(sessions_.begin() + (session - sessions_.data()));
}

void Sessions::end_unless(const std::function<bool(const Sha256& credential, const Identity& identity)>& is_good) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sessions_, [&](const Session& session) {
    return session.credential && !is_good(*session.credential, session.identity);
  });
}

bool Sessions::count_failure(std::string_view address) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const auto before = std::ranges::count(failures_, address, &Failure::address);
  if (static_cast<std::size_t>(before) >= most_failures || failures_.size() >= most_failures_in_all) return false;
  failures_.push_back({std::string(address), clock_->uptime()});
  return true;
}

}  // namespace once::operators
