// The tables, how a file gets them, and what the file remembers besides its records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <once/clock.hpp>

#include "stores/sqlite/connection.hpp"

namespace once::stores::sqlite {

// PRAGMA application_id of our files: "once" in ASCII. file(1) shows it.
inline constexpr std::int64_t application_id = 0x6F6E6365;

// A step from one version of the tables to the next. PRAGMA user_version counts those that were taken.
struct Migration {
  const char* sql;
};

// All of them, from an empty file on. Never change one that was released: add one.
std::span<const Migration> migrations() noexcept;

// The version of the file's tables; 0 for an empty file. Writes nothing. Throws Exception(misuse) for a file of another
// program or of a later version.
std::int64_t version_of(Connection& connection, std::span<const Migration> steps = migrations());

// Brings the file to the last version in one transaction; nothing happens to a file that is there already. The version
// it had. Throws as version_of() does.
std::int64_t migrate(Connection& connection, std::span<const Migration> steps = migrations());

// Random bytes of the file that its key hashes depend on, so that nobody who only chooses keys can make them collide.
struct HashKey {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};
HashKey read_hash_key(Connection& connection);

// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) of the bytes.
std::int64_t hash_of(const HashKey& key, std::string_view bytes) noexcept;

// The store's clock as the file keeps it. Time = uptime + offset.
struct StoredClock {
  std::string boot_id;
  Millis offset{0};
  Time set_at{};  // The wall clock at that time.
};

// Reads it, or sets it if the host was booted since. Inside the lock.
StoredClock settle_clock(Connection& connection, const Clock& clock, const std::string& boot_id);

// Notes that the store's time has come this far. Inside a transaction.
void note_time(Connection& connection, Time now);

// The kernel's name for this boot of the host. Throws Exception(unavailable).
std::string kernel_boot_id();

}  // namespace once::stores::sqlite
