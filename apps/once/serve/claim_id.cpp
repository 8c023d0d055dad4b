#include "serve/claim_id.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include <once/fingerprint.hpp>

#include "engine/tenant.hpp"
#include "operators/answers.hpp"
#include "output/text.hpp"

namespace once::cli {

namespace {

constexpr char version = 1;
constexpr std::int64_t absent = -1;
constexpr std::size_t number_bytes = sizeof(std::int64_t);
constexpr std::size_t owner_bytes = std::tuple_size_v<decltype(Owner::bytes)>;
constexpr std::size_t tag_bytes = 32;
constexpr std::size_t head_bytes = 1 + owner_bytes + 3 * number_bytes;

void append(std::string& out, std::int64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(static_cast<std::uint64_t>(number) >> shift);
}

std::int64_t number_at(std::string_view bytes, std::size_t at) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < number_bytes; ++i) number = number << 8U | static_cast<unsigned char>(bytes[at + i]);
  return static_cast<std::int64_t>(number);
}

}  // namespace

Key with_tenant(Key key, const std::string& tenant) {
  if (!tenant.empty()) add_tenant(key, tenant);
  return key;
}

std::string ClaimId::text() const {
  std::string bytes(1, version);
  bytes.append(owner.bytes.begin(), owner.bytes.end());
  append(bytes, lease.count());
  append(bytes, retention.count());
  append(bytes, failure_retention ? failure_retention->count() : absent);
  for (const std::string_view part : {fingerprint.bytes(), std::string_view(tag), std::string_view(holder)}) {
    bytes += static_cast<char>(part.size());
    bytes += part;
  }
  return to_hex(bytes + key.stored());
}

ClaimId ClaimId::from_text(std::string_view text, const std::string& tenant) {
  const std::string bytes = parse_hex(text, "the claim in the path");
  const auto refuse = [] {
    throw wrong("the claim in the path is not the member `claim` of an answer to POST /v1/claims");
  };
  if (bytes.size() <= head_bytes || bytes.front() != version) refuse();
  Owner owner;
  std::copy_n(bytes.begin() + 1, owner_bytes, owner.bytes.begin());
  const std::int64_t failures = number_at(bytes, 1 + owner_bytes + 2 * number_bytes);
  std::string_view rest = std::string_view(bytes).substr(head_bytes);
  const auto take = [&] {
    const std::size_t size = rest.empty() ? 0 : static_cast<unsigned char>(rest.front());
    if (rest.size() < 1 + size) refuse();
    const std::string_view part = rest.substr(1, size);
    rest.remove_prefix(1 + size);
    return part;
  };
  const Fingerprint fingerprint(take());
  const std::string tag(take());
  const std::string holder(take());
  if (!tag.empty() && (tag.size() != tag_bytes || tag.find_first_not_of("0123456789abcdef") != std::string::npos))
    refuse();
  ClaimId id{.owner = owner,
             .lease = Millis{number_at(bytes, 1 + owner_bytes)},
             .retention = Millis{number_at(bytes, 1 + owner_bytes + number_bytes)},
             .failure_retention = failures == absent ? std::nullopt : std::optional(Millis{failures}),
             .fingerprint = fingerprint,
             .tag = tag,
             .holder = holder,
             .key = Key::from_stored(rest),
             .tenant = tenant};
  if (has_tenant(id.key)) refuse();
  static_cast<void>(id.stored_key());
  check(id.policy());
  return id;
}

Policy ClaimId::policy() const {
  return {.lease = lease, .retention = retention, .failure_retention = failure_retention};
}

}  // namespace once::cli
