#include <once/engine/within_invocation.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "engine/tenant.hpp"
#include "platform/wait.hpp"
#include "text/percent.hpp"

namespace once {

namespace {

constinit thread_local const WithinInvocation* innermost_invocation = nullptr;

struct RunningInvocations {
  std::atomic<bool> any{false};  // Spares a program without invocations the mutex.
  std::mutex mutex;
  std::list<const WithinInvocation*> all;  // Under that mutex.
};

RunningInvocations& running_invocations() {
  static RunningInvocations instance;
  return instance;
}

constexpr std::string_view tenant_mark = "/@tenant=";
constexpr std::size_t longest_plain_tenant = 128;

std::string tenant_part(std::string_view tenant) {
  std::string coded = text::percent_encoded(tenant, text::is_unreserved);
  // No encoded tenant has a '*', so no other tenant gets this text.
  if (coded.size() > longest_plain_tenant) coded = "*" + to_hex(sha256(tenant));
  return std::string(tenant_mark) + coded;
}

}  // namespace

WithinInvocation::WithinInvocation(InvocationFacts facts)
    : facts_(std::move(facts)), outer_(innermost_invocation), waiting_(Waiting::innermost()) {
  RunningInvocations& running = running_invocations();
  const std::lock_guard lock(running.mutex);
  place_ = running.all.insert(running.all.end(), this);
  running.any = true;
  innermost_invocation = this;
}

WithinInvocation::~WithinInvocation() {
  innermost_invocation = outer_;
  RunningInvocations& running = running_invocations();
  const std::lock_guard lock(running.mutex);
  running.all.erase(place_);
  running.any = !running.all.empty();
}

InvocationFacts WithinInvocation::current() {
  const WithinInvocation* const own = innermost_invocation;
  if (own != nullptr && own->waiting_ == Waiting::innermost()) return own->facts_;
  RunningInvocations& running = running_invocations();
  if (!running.any) return {};
  const std::lock_guard lock(running.mutex);
  if (running.all.empty()) return {};
  InvocationFacts shared = running.all.front()->facts_;
  for (const WithinInvocation* const each : running.all) {
    if (each->facts_.tenant != shared.tenant) {
      throw Exception(ErrorKind::misuse,
                      "invocations of several tenants run in this process, and this thread is in none of them, so "
                      "its key would be shared by tenants. Nothing was run: make a once::WithinInvocation on it");
    }
    shared.deadline = std::max(shared.deadline, each->facts_.deadline);
  }
  return shared;
}

// Whether the scope's last part is a tenant's. In a path that a client chose the mark may stand anywhere.
static bool ends_with_a_tenant(std::string_view scope) {
  const std::size_t at = scope.rfind('/');
  if (at == std::string_view::npos || !scope.substr(at).starts_with(tenant_mark)) return false;
  return std::ranges::all_of(scope.substr(at + tenant_mark.size()),
                             [](char c) { return text::is_unreserved(c) || c == '%' || c == '*'; });
}

void add_tenant(Key& key, std::string_view tenant) {
  const std::string_view stored = key.stored();
  const bool may_have_one = stored.substr(0, stored.find('#')).find(tenant_mark) != std::string_view::npos;
  const bool has_one = may_have_one && ends_with_a_tenant(key.scope());
  if (tenant.empty()) {
    if (!has_one) return;
    throw Exception(ErrorKind::misuse, "the scope '" + key.scope() +
                                           "' names a tenant, and the call is in no invocation of one. Nothing was "
                                           "run: use another scope");
  }
  const std::string part = tenant_part(tenant);
  const std::string scope = key.scope();
  if (has_one) {
    if (scope.ends_with(part)) return;
    throw Exception(ErrorKind::misuse,
                    "the scope '" + scope + "' names a tenant that is not the invocation's. Nothing was run");
  }
  key = Key(scope + part, key.name());
}

}  // namespace once
