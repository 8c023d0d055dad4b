#include <once/engine/within_invocation.hpp>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/fingerprint.hpp>

#include "engine/tenant.hpp"
#include "engine/this_stack.hpp"
#include "platform/wait.hpp"
#include "text/percent.hpp"

namespace once {

namespace {

std::uint64_t this_thread() noexcept {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed);
  return number;
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

// Entries are found by their address, because coroutines end in any order, on any thread.
class RunningInvocations {
 public:
  static RunningInvocations& get() {
    // Never destroyed: threads may still be in an invocation when the process ends.
    static RunningInvocations* const only = [] {
      pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().keep_own(); });
      return new RunningInvocations;
    }();
    return *only;
  }

  void add(const WithinInvocation* one) {
    const std::lock_guard lock(mutex_);
    all_.push_back(one);
    any_ = true;
  }
  void remove(const WithinInvocation* one) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(all_, one);
    any_ = !all_.empty();
  }

  InvocationFacts current() {
    if (!any_) return {};
    const std::lock_guard lock(mutex_);
    if (all_.empty()) return {};
    if (agree(all_)) return all_.front()->facts_;
    const ThisStack stack;
    const Waiting* const waiting = Waiting::innermost();
    std::vector<const WithinInvocation*> on_thread;
    for (auto at = all_.rbegin(); at != all_.rend(); ++at) {
      if ((*at)->waiting_ != waiting) continue;
      if (stack.has(reinterpret_cast<std::uintptr_t>(*at))) return (*at)->facts_;
      if ((*at)->thread_ == this_thread()) on_thread.push_back(*at);
    }
    if (!on_thread.empty() && agree(on_thread)) return on_thread.front()->facts_;
    return shared();
  }

 private:
  static bool agree(const std::vector<const WithinInvocation*>& some) {
    return std::ranges::all_of(some, [&](const auto* one) { return one->facts_ == some.front()->facts_; });
  }

  InvocationFacts shared() {
    InvocationFacts out = all_.front()->facts_;
    for (const WithinInvocation* const each : all_) {
      if (each->facts_.tenant != out.tenant) {
        throw Exception(ErrorKind::misuse,
                        "invocations of several tenants run in this process, and this call is in none of them, so "
                        "its key would be shared by tenants. Nothing was run: make a once::WithinInvocation around "
                        "it, on its thread");
      }
      out.deadline = std::max(out.deadline, each->facts_.deadline);
    }
    return out;
  }

  // In the child of a fork the stacks of other threads are used anew.
  void keep_own() noexcept {
    std::erase_if(all_, [](const WithinInvocation* one) { return one->thread_ != this_thread(); });
    any_ = !all_.empty();
    mutex_.unlock();
  }

  std::atomic<bool> any_{false};  // Spares a program without invocations the mutex.
  std::mutex mutex_;
  std::vector<const WithinInvocation*> all_;  // Under that mutex. The newest is the last.
};

WithinInvocation::WithinInvocation(InvocationFacts facts)
    : facts_(std::move(facts)), thread_(this_thread()), waiting_(Waiting::innermost()) {
  RunningInvocations::get().add(this);
}

WithinInvocation::~WithinInvocation() { RunningInvocations::get().remove(this); }

InvocationFacts WithinInvocation::current() { return RunningInvocations::get().current(); }

// Whether the scope's last part is a tenant's. In a path that a client chose the mark may stand anywhere.
static bool ends_with_a_tenant(std::string_view scope) {
  const std::size_t at = scope.rfind('/');
  if (at == std::string_view::npos || !scope.substr(at).starts_with(tenant_mark)) return false;
  return std::ranges::all_of(scope.substr(at + tenant_mark.size()),
                             [](char c) { return text::is_unreserved(c) || c == '%' || c == '*'; });
}

bool has_tenant(const Key& key) {
  const std::string_view stored = key.stored();
  const bool may_have_one = stored.substr(0, stored.find('#')).find(tenant_mark) != std::string_view::npos;
  return may_have_one && ends_with_a_tenant(key.scope());
}

void add_tenant(Key& key, std::string_view tenant) {
  const bool has_one = has_tenant(key);
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
